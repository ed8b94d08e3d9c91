"""polydec tune --on: which method to choose for these prompts, and what would make them faster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from polydec import api
from polydec.base.errors import PolydecError, RequestError
from polydec.cli import asking, prompts
from polydec.cli.terminal_output import emit_drawn, table_cell_text
from polydec.lab.bench import measure, predicted
from polydec.lab.bench.measure import BenchTask, MethodSetting
from polydec.lab.bench.predicted import MethodPrediction
from polydec.lab.bench.recorded_target import RecordedAnswer
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry.family import family_of
from polydec.request import passes
from polydec.request.profile import PassProfile

REPEATS = 2
"""Interleaved repetitions of what is measured."""
RIGHT = (0.5, 0.7, 0.9)
"""How often a draft that is not there may be right."""
PART = 0.1
"""Of a pass, what a token of it may take."""
SECOND = 1.0
"""How long a pass is timed with other threads or numbers."""
SAVED = 0.05
"""Of a pass, what another setting has to save to be advised: less is within what timings vary."""


@dataclass(frozen=True)
class TunedSetting:
    """A method on these prompts.

    Attributes:
        method: The method and its options.
        predicted: What it would take.
        measured: Tokens a second; None where it was not measured.
        ratio: Its speed as a multiple of plain decoding's; None likewise.
        interval: The ratio's 95 % interval; None likewise.
        identical: Whether it wrote plain decoding's texts; None likewise.
    """

    method: MethodSetting
    predicted: MethodPrediction
    measured: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    identical: bool | None = None

    @property
    def error(self) -> float | None:
        """By which share the prediction missed what was measured; None where it was not measured."""
        if not self.measured:
            return None
        return self.predicted.tokens_per_second / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method.label,
            "predicted_tokens_per_second": self.predicted.tokens_per_second,
            "predicted_tokens_per_pass": self.predicted.tokens_per_pass,
            "measured_tokens_per_second": self.measured,
            "error": self.error,
            "ratio_to_plain": self.ratio,
            "ratio_interval": self.interval,
            "identical": self.identical,
        }


@dataclass(frozen=True)
class TuningAdvice:
    """What a user should know.

    Attributes:
        prompts: How many prompts were decoded.
        tokens: Tokens of their answers.
        settings: Plain decoding first, then the others, the fastest by prediction first.
        left_out: Methods that a record cannot predict.
        choose: Which method to choose, a sentence.
        buy: What would make decoding faster, a sentence each.
        leave: What would not, a sentence each.
    """

    prompts: int
    tokens: int
    settings: tuple[TunedSetting, ...]
    left_out: tuple[str, ...]
    choose: str
    buy: tuple[str, ...]
    leave: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **{k: v for k, v in asdict(self).items() if k != "settings"},
            "settings": [s.to_json() for s in self.settings],
        }


def _request(lm: api.LoadedModel, max_tokens: int) -> dict[str, Any]:
    return {"sampling": lm.sampling_with(temperature=0.0), "max_tokens": max_tokens, "seed": 0}


def require_tunable_prompts(
    lm: api.LoadedModel, rows: Sequence[prompts.PromptRow], max_tokens: int, raw: bool
) -> None:
    """Check that prompts can be decoded greedily, without decoding any.

    Args:
        lm: The loaded model.
        rows: The prompts.
        max_tokens: Most tokens of an answer.
        raw: Whether all prompts go in without the chat template; a row may say so for itself.

    Raises:
        RequestError: The model does not continue texts, or a prompt is refused.
    """
    if not family_of(lm.checkpoint.lm).continues_text:
        raise RequestError(
            "on is given, and the model fills canvases: `polydec bench` compares methods for it"
        )
    asking.check_requests(
        lm,
        ((r.prompt, raw or r.raw) for r in rows),
        [("plain", {})],
        **_request(lm, max_tokens),
    )


def advise_settings(
    lm: api.LoadedModel,
    rows: Sequence[prompts.PromptRow],
    measured: PassProfile,
    max_tokens: int,
    raw: bool,
    best: int,
    say: Callable[[str], None],
) -> TuningAdvice:
    """Find the fastest method for prompts: decode them plainly, predict every method by a replay,
    and measure the best ones.

    Args:
        lm: The loaded model.
        rows: The prompts.
        measured: What passes cost on this machine.
        max_tokens: Tokens of an answer at most.
        raw: Whether prompts go in without the chat template.
        best: How many methods are measured.
        say: Called with what is done now, for a status line.

    Returns:
        The predictions, the measurements and what follows.
    """
    request = _request(lm, max_tokens)
    costs = measured.costs
    vocab = lm.checkpoint.lm.vocab
    # First stage: record what plain decoding writes.
    texts = list[RecordedAnswer]()
    for n, r in enumerate(rows, 1):
        say(f"decoding prompt {n} of {len(rows)}")
        answer = api.generate(lm, r.prompt, method="plain", raw=raw or r.raw, **request)
        ids = lm.encode_prompt(r.prompt, raw=raw or r.raw)
        texts.append(RecordedAnswer(ids, answer.token_ids, vocab.size, vocab.eos))
    plain = predicted.predict_plain_decoding(texts, costs)
    # Greedy drafts: the replay compares their tokens with a greedy text.
    small = lm.draft_law()
    if small is None:
        draft = None
    else:
        draft = ShapedTarget(small, GreedyRule())
    # Second stage: replay the records under every method; greedy texts are the same under each.
    guesses = list[MethodPrediction]()
    left_out = list[str]()
    for method in (*predicted.COPIES, *(predicted.DRAFTED if draft is not None else ())):
        say(f"replaying {method.label}")
        # None: the method reads more of the model than tokens, so only a measurement could tell.
        guess = predicted.predict_method(texts, method, costs, draft, lm.artefacts)
        if guess is None:
            left_out.append(method.label)
        else:
            guesses.append(guess)
    guesses.sort(key=lambda g: -g.tokens_per_second)
    # Third stage: measure the best predictions against plain decoding.
    tried = guesses[:best]
    tasks = [BenchTask("all", (r.prompt,), raw or r.raw) for r in rows]
    runs = measure.measure_methods(
        lm,
        [plain.method, *(g.method for g in tried)],
        tasks,
        **request,
        repeats=REPEATS,
        tick=lambda label: say(f"measuring {label}"),
    )
    # Measured rows by label; most predictions have none.
    told = {r["method"]: r for r in measure.bench_table_rows(lm, runs, tasks)}
    settings = tuple(_setting(g, told.get(g.method.label)) for g in (plain, *guesses))
    changes = _changes(lm, measured, draft is not None, say)
    return TuningAdvice(
        len(rows),
        plain.tokens,
        settings,
        tuple(left_out),
        _choose(settings),
        tuple(text for faster, text in changes if faster),
        tuple(text for faster, text in changes if not faster),
    )


def _setting(guess: MethodPrediction, row: dict[str, Any] | None) -> TunedSetting:
    if row is None:
        return TunedSetting(guess.method, guess)
    return TunedSetting(
        guess.method,
        guess,
        row["tokens_per_second"],
        row["ratio_to_plain"],
        tuple(row["ratio_interval"]),
        row["identical"],
    )


def _choose(settings: Sequence[TunedSetting]) -> str:
    """The fastest whose interval lies above plain's."""
    # Faster beyond chance only: the whole interval lies above 1.
    sure = [s for s in settings[1:] if s.interval is not None and s.interval[0] > 1]
    if not sure:
        return "plain: no method that was measured is faster beyond chance (--method plain)"
    top = max(sure, key=lambda s: s.ratio or 0.0)
    options = "".join(f" --set {k}={v}" for k, v in top.method.options.items())
    return f"{top.method.label}: {top.ratio:.2f} times plain (--method {top.method.name}{options})"


def _changes(
    lm: api.LoadedModel, measured: PassProfile, drafted: bool, say: Callable[[str], None]
) -> list[tuple[bool, str]]:
    """What might make passes cheaper, or fewer of them: whether it does, and a sentence."""
    out = list[tuple[bool, str]]()
    if not drafted:
        # What a draft model could bring, for several assumed acceptances.
        gains = [(right, *predicted.with_draft(measured.costs, right, PART)) for right in RIGHT]
        said = f"a draft model that takes {PART:.0%} of a pass: " + ", ".join(
            f"{gain:.2f} times plain with {k} tokens a draft where {right:.0%} of its tokens are right"
            if k
            else f"nothing where {right:.0%} of its tokens are right"
            for right, k, gain in gains
        )
        out.append((any(k for _, k, _ in gains), said))
    # Only some networks have a number of threads of their own.
    threads = getattr(lm.network, "threads", None)
    cores = os.cpu_count() or 1
    if threads is not None and threads < cores:
        out.append(
            _other(lm, measured, say, f"{cores} threads in place of {threads}", threads=cores)
        )
    else:
        out.append((False, f"more threads: none are left, all {cores} cores are in use"))
    if "int8" not in lm.checkpoint.kernel:
        out.append(
            _other(lm, measured, say, "int8 (--compute int8)", compute="int8", threads=threads)
        )
    return out


def _other(
    lm: api.LoadedModel, measured: PassProfile, say: Callable[[str], None], what: str, **how: Any
) -> tuple[bool, str]:
    """What a pass over one row takes when the model is loaded otherwise, and whether that is less."""
    say(f"timing {what}")
    try:
        other = api.load(lm.name, draft=None, **how)
    # Not every kernel supports every number type.
    except PolydecError as error:
        return False, f"{what}: not for this model ({error})"
    ms = passes.measure_pass_times(passes.PassTimer(other.network, measured.context), (1,), SECOND)[
        1
    ]
    # Timed again next to the other one, as the machine may be slower now than at tuning.
    here = passes.measure_pass_times(passes.PassTimer(lm.network, measured.context), (1,), SECOND)[
        1
    ]
    share = ms / here
    return share < 1 - SAVED, (
        f"{what}: a pass over one row takes {share:.2f} of what it takes now ({ms:.2f} in place of {here:.2f} ms)"
    )


def show_advice(advice: TuningAdvice) -> None:
    """Print the table of methods, then what to choose and what to buy."""

    def draw_figure(out: Console) -> None:
        out.print(f"on {advice.prompts} prompts, {advice.tokens} tokens, greedy:", style="bold")
        table = Table(box=None, pad_edge=False)
        table.add_column("method", no_wrap=True)
        for column in (
            "tokens/pass",
            "predicted",
            "measured",
            "error",
            "ratio",
            "95 %",
            "identical",
        ):
            table.add_column(column, justify="right", no_wrap=True)
        for s in advice.settings:
            # Predicted methods that were not measured have dashes.
            known = s.measured is not None
            low, high = s.interval or (0.0, 0.0)
            table.add_row(
                table_cell_text(s.method.label),
                f"{s.predicted.tokens_per_pass:.2f}",
                f"{s.predicted.tokens_per_second:.1f}",
                f"{s.measured:.1f}" if known else "-",
                f"{s.error:+.0%}" if s.error is not None else "-",
                f"{s.ratio:.2f}" if s.ratio is not None else "-",
                f"{low:.2f}-{high:.2f}" if known else "-",
                "-" if s.identical is None else "yes" if s.identical else "no",
            )
        out.print(table)
        # A method that reads states cannot be replayed from tokens.
        if advice.left_out:
            out.print(
                f"not replayed, as they read more than tokens: {', '.join(advice.left_out)}",
                style="dim",
                soft_wrap=True,
                markup=False,
            )
        parts = (("choose", (advice.choose,)), ("buy", advice.buy), ("leave", advice.leave))
        for name, lines in parts:
            for line in lines:
                out.print(f"{name}: {line}", soft_wrap=True, markup=False)

    emit_drawn(draw_figure)
