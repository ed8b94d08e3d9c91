"""What was measured of a model on a machine, kept between runs: `polydec tune` writes it, `--method
auto` reads it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field, model_validator

from polydec.base import edge, files
from polydec.base.caller_warnings import warn_caller
from polydec.base.errors import PolydecError, RequestError
from polydec.core.decoder import answer_one
from polydec.core.protocols import DraftScores, Session
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts, extrapolate_table_entry
from polydec.methods.registry.family import family_of
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters import trained_tree
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.nets.linear import cpu_name, profile_path
from polydec.models.sessions.checkpoint import DeferredBundle
from polydec.request import machine
from polydec.request.passes import PassTimer, measure_pass_times


class ProfiledModel(Protocol):
    """A loaded model, as far as a profile looks at it: its checkpoint and that of its draft."""

    @property
    def checkpoint(self) -> Any: ...
    @property
    def draft(self) -> Any: ...
    @property
    def network(self) -> Any: ...
    def recipe_kit(self) -> Kit: ...


QUICK = 8.0
"""Seconds of a measurement that nobody asked for."""

CONTEXTS = (64, 768)
ROWS = (32, 24, 16, 12, 10, 8, 6, 5, 4, 3, 2, 1)
"""From many to few, so that no pass of one row follows one of many, after which it takes a tenth
longer."""
LARGE = (64, 128, 256)
"""Rows of parts of prompts: a row of a large pass costs less than one of a small pass. Measured
while that is quick."""
BESIDE = 4
"""Sequences that share a pass where several do: so many contexts do not fit into a processor's
caches together."""
QUICKLY = 0.1
"""Share of the time that large passes may take, and those of several sequences."""
FILLING = 0.5
"""As much again, at most, may go into the contexts of these."""


@dataclass(frozen=True)
class PassProfile:
    """rows: t(m) in ms by m, behind `context` tokens; far: the same behind `far_context`, of the
    smaller ones; draft: of the draft model, empty without one; beside: t of one row each of several
    sequences (their number is the key), behind contexts of the first length, far_beside: of the
    second, both empty where that would have taken too long; extra_ms: what Python adds to a pass,
    each_ms: and to it for each further sequence; tree: of a draft of so many levels of what was
    trained on the model's states, empty where there is nothing."""

    context: int
    rows: dict[int, float]
    far_context: int
    far: dict[int, float]
    draft: dict[int, float]
    beside: dict[int, float]
    far_beside: dict[int, float]
    extra_ms: float
    each_ms: float
    measured: str
    tree: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def costs(self) -> PassCosts:
        """The tables with the gaps filled by straight lines; never falling, as a further row is
        never a gain."""
        # Two contexts give a line: what 1,000 tokens more add to a pass of m rows.
        near = _filled(self.rows)
        far = _filled(self.far)
        more = _rising(
            [max(0.0, b - a) / (self.far_context - self.context) * 1000 for a, b in zip(near, far)]
        )
        # The same line, followed down to no context at all, gives what the rows alone cost.
        rows = [
            max(t - extrapolate_table_entry(more, m) * self.context / 1000, 0.1 * t)
            for m, t in enumerate(near, 1)
        ]
        # Contexts of several sequences crowd each other out of a processor's caches.
        apart, crowd = self._crowded(rows, more)
        return PassCosts(
            tuple(_rising([t + self.extra_ms for t in rows])),
            # A draft model is priced by a pass of one row, as drafting goes token by token.
            self.draft[1] + self.extra_ms if self.draft else 0.0,
            tuple(more),
            apart + self.each_ms,
            crowd,
            self._tree_ms,
        )

    @property
    def _tree_ms(self) -> tuple[float, float] | None:
        """What the first level of a tree takes, and each further one."""
        if not self.tree:
            return None
        most = max(self.tree)
        # A straight line through the shortest and the longest tree that were timed.
        further = max(0.0, self.tree[most] - self.tree[1]) / max(most - 1, 1)
        return self.tree[1] + EXTRA_MS, further

    def _crowded(self, rows: Sequence[float], more: Sequence[float]) -> tuple[float, float]:
        """What a further sequence adds to a pass beside its row, and how many times as much a
        context costs there as alone."""
        if not self.beside:
            return 0.0, 1.0
        many = max(self.beside)
        far_many = max(self.far_beside)
        # Milliseconds of 1,000 tokens of each sequence's own context, where several share a pass.
        behind = (
            (self.far_beside[far_many] / far_many - self.beside[many] / many)
            / (self.far_context - self.context)
            * 1000
        )
        # Contexts that cost nothing alone cannot cost a multiple of that.
        if more[0] > 0:
            crowd = min(max(1.0, behind / more[0]), MOST_CROWD)
        else:
            crowd = 1.0
        apart = (
            # What is left after rows and contexts were paid is the price of being apart.
            self.beside[many] - rows[many - 1] - many * crowd * more[0] * self.context / 1000
        ) / (many - 1)
        return max(0.0, apart), crowd


TREE = BestFirstTree(trained_tree.WIDTH, trained_tree.TIPS)
LEVELS = (1, 4)
"""Levels of the trees that are timed."""
DRAFTS = 48
"""How many of them."""
MOST_CROWD = 4.0
"""What was measured beyond that was somebody else's work."""
QUANTILE = 0.1
"""Of the times of a pass: other processes make some of them longer, none shorter."""


def _filled(table: dict[int, float]) -> list[float]:
    known = sorted(table)
    out = list[float]()
    for m in range(1, known[-1] + 1):
        above = next(k for k in known if k >= m)
        below = max(k for k in known if k <= m)
        if above > below:
            part = (m - below) / (above - below)
        else:
            part = 0.0
        out.append(table[below] * (1 - part) + table[above] * part)
    return out


def _rising(values: list[float]) -> list[float]:
    # The largest value so far: noise must not make a larger pass look cheaper.
    return list(accumulate(values, max))


def measure_pass_profile(lm: ProfiledModel, *, seconds: float = 10.0) -> PassProfile:
    """Time passes behind a short and a long context in turn.

    Args:
        lm: The loaded model.
        seconds: About how long it may take.

    Returns:
        What was measured.
    """
    # A small network gets shorter contexts, which leave room for the rows.
    near, far = (min(c, lm.network.context // part) for c, part in zip(CONTEXTS, (8, 2)))
    # Two tables of passes take most of the time; the draft, if any, takes from them.
    share = seconds * (0.3 if lm.draft else 0.4)
    target = PassTimer(lm.network, near)
    # Rows have to fit into the context behind the longer of the two.
    counts = [m for m in ROWS if m <= max(1, lm.network.context - far)]
    rows = measure_pass_times(target, counts, share, quantile=QUANTILE)
    # Filling a long context is itself a measure: it tells whether several can be filled in time.
    start = time.perf_counter()
    behind_far = PassTimer(lm.network, far)
    filled = time.perf_counter() - start
    longer = measure_pass_times(behind_far, counts, share, quantile=QUANTILE)
    spare = QUICKLY * seconds
    room = lm.network.context - near
    rows |= measure_pass_times(
        target,
        # Estimated from the largest pass so far; two runs must fit into what is spare.
        [m for m in LARGE if m < room and 2 * m / max(counts) * rows[max(counts)] < 1e3 * spare],
        0.0,
        least=2,
        quantile=QUANTILE,
    )
    beside = dict[int, float]()
    far_beside = dict[int, float]()
    if BESIDE * filled < FILLING * seconds:
        beside, far_beside = (_together(lm, context, spare / 2) for context in (near, far))
    draft = dict[int, float]()
    if lm.draft is not None and family_of(lm.draft.lm).continues_text:
        draft = measure_pass_times(
            PassTimer(lm.draft.lm.network, near, want=RowDetail.ROW),
            (1, 2, 4),
            spare,
            # A pass of the target before each one: in use the draft finds the caches filled by it.
            behind=target,
            quantile=QUANTILE,
        )
    return PassProfile(
        near,
        rows,
        far,
        longer,
        draft,
        beside,
        far_beside,
        EXTRA_MS,
        EACH_MS,
        time.strftime("%Y-%m-%d"),
        _tree(lm),
    )


def _tree(lm: ProfiledModel) -> dict[int, float]:
    """Drafts of few and of many levels in turns, each behind a pass of the model, which fills the
    processor's caches."""
    grown = trained_tree.find_tree_drafter(lm.recipe_kit(), TREE)
    if grown is None:
        return {}
    took: dict[int, list[float]] = {levels: [] for levels in LEVELS}
    timed = TimedDrafter(grown[0], took)
    decoder = SpeculativeDecoder(
        ShapedTarget(lm.checkpoint.lm, GreedyRule()), timed, MatchVerifier(), FixedPolicy(1, 1)
    )
    # Any text does: the time of a pass does not depend on what it reads.
    prompt = tuple(x % lm.network.size for x in range(1, 33))
    run_coroutines([answer_one(decoder, Request(prompt, max_tokens=DRAFTS, ignore_eos=True))])
    # The first tree of each length is left out: one of them also reads the prompt.
    return {n: sorted(t[1:])[int((len(t) - 2) * QUANTILE)] for n, t in took.items()}


@dataclass(frozen=True)
class TimedDrafter:
    """The drafter asked for trees of so many levels in turns, the milliseconds that each took, and
    nothing proposed."""

    drafter: Drafter
    took_ms: dict[int, list[float]]

    def open_guess(self, prompt: Sequence[int], session: Session) -> TimedGuess:
        """Begin guessing behind a text.

        Args:
            prompt: Ids of the text.
            session: The target's.

        Returns:
            A guess whose trees are timed.
        """
        return TimedGuess(self.drafter.open_guess(prompt, session), self.took_ms)


@dataclass(frozen=True)
class TimedGuess(DraftGuess):
    guess: DraftGuess
    took_ms: dict[int, list[float]]

    @property
    def want(self) -> ScoreRequest:
        return self.guess.want

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Time a tree of so many levels as were timed least, and propose nothing.

        Args:
            root: The last token of the text.
            position: Of the root in the text.
            budget: Is not looked at.
            rng: Names the randomness of the drafter.

        Returns:
            The root alone.
        """
        # In turns, so that a change of the machine's speed meets all levels alike.
        levels = min(self.took_ms, key=lambda n: len(self.took_ms[n]))
        start = time.perf_counter()
        await self.guess.propose_draft(root, position, DraftBudget(levels, 4 * levels), rng)
        self.took_ms[levels].append(1e3 * (time.perf_counter() - start))
        return Draft.chain_draft(root)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Hand on what became of a draft.

        Args:
            draft: What was proposed.
            scores: The target's laws at its nodes.
            verdict: What was accepted.
        """
        self.guess.learn_round(draft, scores, verdict)

    def fork_guess(self, session: Session, choice: int | None = None) -> TimedGuess:
        """An independent guess behind the same text.

        Args:
            session: The target's for the new text.
            choice: The number of the answer. None: it stays.

        Returns:
            The guess; its times go into the same table.
        """
        return TimedGuess(self.guess.fork_guess(session, choice), self.took_ms)

    def close(self) -> None:
        self.guess.close()


def _together(lm: ProfiledModel, context: int, seconds: float) -> dict[int, float]:
    """Several sequences behind contexts of their own, a row each."""
    return {
        BESIDE: measure_pass_times(
            PassTimer(lm.network, context, batch=BESIDE), (1,), seconds, quantile=QUANTILE
        )[1]
    }


EXTRA_MS = 0.12
"""Of the loop, the scheduler and the verifier for each pass; measured with zoo:smollm2 on Zen 5."""
EACH_MS = 0.04
"""The same, for each further sequence of a pass."""


def pass_profile_key(lm: ProfiledModel) -> str:
    """What a profile depends on: machine, threads, models and their kernels."""

    def profile_name(point: Any) -> str:
        # The compiled step counts its own threads; torch's setting serves the rest.
        threads = getattr(point.lm.network, "threads", None) or torch.get_num_threads()
        return f"{point.name} ({point.kernel}, {point.dtype}, {threads} threads)"

    # a model's own draft, which is loaded when a method asks for it, is what its name says
    small = lm.draft and (
        lm.draft.name if isinstance(lm.draft, DeferredBundle) else profile_name(lm.draft)
    )
    tree = trained_tree.find_tree_drafter(lm.recipe_kit(), TREE)
    beside = [small, tree and f"a tree of {tree[0].weights.kind}"]  # pyright: ignore
    return f"{cpu_name()}: {profile_name(lm.checkpoint)}" + "".join(
        f" with {x}" for x in beside if x
    )


def pass_profiles_path() -> Path:
    """The file of all profiles: $XDG_CACHE_HOME/polydec/profiles.json."""
    return profile_path().with_name("profiles.json")


Milliseconds = Annotated[float, Field(gt=0.0, lt=1e9)]
Table = Annotated[
    dict[Annotated[str, Field(pattern=r"^[1-9]\d{0,3}$")], Milliseconds], Field(max_length=4096)
]


class _PassProfileRecord(edge.StrictRecord):
    """A profile as it stands in the file: JSON's keys are texts."""

    context: Annotated[int, Field(ge=1, le=1 << 30)]
    rows: Table
    far_context: Annotated[int, Field(ge=1, le=1 << 30)]
    far: Table
    draft: Table
    beside: Table
    far_beside: Table
    extra_ms: Annotated[float, Field(ge=0.0, lt=1e9)]
    each_ms: Annotated[float, Field(ge=0.0, lt=1e9)]
    measured: Annotated[str, Field(max_length=100)]
    tree: Table = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whole(self) -> _PassProfileRecord:
        if (
            # A line needs two contexts and the same rows behind both.
            not {"1"} <= self.far.keys() <= self.rows.keys()
            or (self.draft and "1" not in self.draft)
            or self.far_context <= self.context
        ):
            raise RequestError(
                "it must hold passes of the same rows, 1 among them, behind a shorter and a longer context"
            )
        if self.beside.keys() != self.far_beside.keys() or "1" in self.beside:
            raise RequestError(
                "it must hold passes of the same numbers of sequences, two or more, behind both contexts"
            )
        if any(int(k) not in range(1, max(map(int, self.rows)) + 1) for k in self.beside):
            raise RequestError("it must hold passes of no more sequences than rows")
        if self.tree and "1" not in self.tree:
            raise RequestError("it must hold a tree of one level where it holds another")
        return self

    @property
    def profile(self) -> PassProfile:
        rows, far, draft, beside, far_beside, tree = (
            {int(m): t for m, t in table.items()}
            for table in (self.rows, self.far, self.draft, self.beside, self.far_beside, self.tree)
        )
        return PassProfile(
            self.context,
            rows,
            self.far_context,
            far,
            draft,
            beside,
            far_beside,
            self.extra_ms,
            self.each_ms,
            self.measured,
            tree,
        )


def read_pass_profile(lm: ProfiledModel) -> PassProfile | None:
    """The profile of this model here, or None where there is none (or what stands there is
    damaged).

    Args:
        lm: the loaded model.

    Returns:
        The profile in the file that POLYDEC_PROFILE names, whatever the model; else what was kept
        of this model and machine.

    Raises:
        RequestError: the file that POLYDEC_PROFILE names holds no profile.
    """
    recorded = os.environ.get("POLYDEC_PROFILE")
    if recorded:
        return read_recorded_profile(Path(recorded))
    try:
        return edge.validate_record(
            _PassProfileRecord, _known()[pass_profile_key(lm)], "profile"
        ).profile
    # RuntimeError: nobody's home is known.
    except (PolydecError, KeyError, RuntimeError):
        return None


def known_pass_costs(lm: ProfiledModel) -> PassCosts:
    """What passes cost on this machine: from the profile that `polydec tune` keeps; where there is
    none, measured now and kept, which takes about ten seconds and is said in a warning."""
    measured = read_pass_profile(lm)
    if measured is None:
        name = lm.checkpoint.name
        # What others compute would stay in the costs: whoever asked first may not know of `tune`.
        if machine.relative_cpu_load() > machine.BUSY:
            advice = "other programs compute: run `polydec tune` when they are done"
        else:
            advice = "`polydec tune` measures more carefully"
        warn_caller(
            f"no profile of {name} on this machine: measuring passes for {QUICK:.0f} seconds ({advice})"
        )
        measured = measure_pass_profile(lm, seconds=QUICK)
        save_pass_profile(lm, measured)
        # Read back rather than trusted: writing fails silently where a home cannot be written.
        if read_pass_profile(lm) is None:
            warn_caller(
                f"the profile could not be kept in {pass_profiles_path()}: the next process measures again "
                "(XDG_CACHE_HOME names another place)"
            )
    return measured.costs


def read_recorded_profile(at: Path) -> PassProfile:
    """The profile in a file of its own: the same costs, hence the same choices of `auto`, on every
    machine.

    Args:
        at: what `polydec tune --json` printed.

    Raises:
        RequestError: the file cannot be read, or holds no profile.
    """
    printed = edge.read_json(at)
    # `polydec tune --json` prints more than the profile, which is left aside.
    named = {name: printed[name] for name in _PassProfileRecord.model_fields if name in printed}
    return edge.validate_record(_PassProfileRecord, named, f"POLYDEC_PROFILE {str(at)!r}").profile


def save_pass_profile(lm: ProfiledModel, profile: PassProfile) -> None:
    """Write a profile as `keep_surely` does; where the file cannot be written it lasts as long as
    the process.

    Args:
        lm: The loaded model.
        profile: What was measured of it.
    """
    with suppress(OSError, files.FileLockedError, RuntimeError):
        keep_surely(lm, profile)


def keep_surely(lm: ProfiledModel, profile: PassProfile) -> None:
    """Write a profile beside those of other models. A file that is no profile file is moved aside
    (`.damaged`), not overwritten.

    Args:
        lm: The loaded model.
        profile: What was measured of it.

    Raises:
        OSError: The file cannot be written.
        FileError: Another process holds it.
        RuntimeError: Nobody's home is known.
    """
    # Several processes may measure at once; without the lock one would drop the other's entry.
    with files.hold_file_lock(pass_profiles_path()):
        try:
            known = _known()
        except PolydecError:
            os.replace(pass_profiles_path(), pass_profiles_path().with_suffix(".damaged"))
            known = {}
        text = json.dumps({**known, pass_profile_key(lm): asdict(profile)}, indent=1)
        files.replace_file_atomically(
            pass_profiles_path(), lambda to: to.write_text(text, encoding="utf-8")
        )


def _known() -> dict[str, Any]:
    """All entries of the file. Raises PolydecError where it is no JSON object."""
    if pass_profiles_path().exists():
        return edge.read_json(pass_profiles_path())
    return {}
