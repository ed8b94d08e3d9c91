"""`polydec train heads`, `eagle` and `probes`: drafters on a target's states over its own text."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train import selfplay, texts
from polydec.lab.train.data import training_data
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import from_weights
from polydec.lab.train.own_text import TargetTextStates, answer_text_path, gather_target_text
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.recorded_states import StateFile, StatePassRecorder
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.states import StatesSpec
from polydec.lab.train.students import DrafterKind, DrafterStudent, TeacherContext
from polydec.lab.train.target import load_autoregressive_model
from polydec.lab.train.teacher import TeacherModel
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.protocols import Drafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import narrow
from polydec.models.sessions import checkpoint, sources
from polydec.models.sessions.lm import CausalLaw

RANKS = 8
"""Ranks of each level whose hits are counted, for trees."""
NODES = (3, 8, 16)
"""Sizes of the trees that are measured."""
LOOKED = 256
"""Pieces of text that they are counted on, at most."""
LEVELS = 4
"""Levels of these trees, where a drafter has no end of its own."""
MEASURED = 32
"""Held-out prompts that they are measured on, at most."""


def train_states(spec: StatesSpec) -> dict[str, Any]:
    """Train a drafter on a target's states, and save it at spec.out.

    It learns the target's laws at the tokens that the target wrote. Every eighth answer is set
    aside, and the weights that are best on these are saved. Measured on held-out prompts are: how
    often each level's token of each rank is right after true tokens, tokens a pass of greedy
    decoding by trees of several sizes, and how many passes of the target a draft costs. Seconds are
    those of this process. See `run_training`.

    Raises:
        RequestError: An option is wrong, data is missing, or the target is outside the Llama
            skeleton.
    """
    return run_training("states", spec, _course, time.process_time)


def split_pieces(
    lessons: TargetTextStates, length: int, levels: int, own: int
) -> tuple[Tensor, Tensor]:
    """Find the pieces to learn from, and those that are set aside.

    Args:
        lessons: States of the texts.
        length: Tokens of a piece.
        levels: Tokens behind a piece that are guessed.
        own: Number of the target's own answers; texts of others stand behind them.

    Returns:
        First rows of both. Every eighth of the target's answers is set aside; texts of others are
        all learned from.
    """
    pieces = lessons.piece_starts(length, levels)
    # By the number of the answer and not of the piece: pieces of one answer resemble each other.
    aside = (lessons.number_N[pieces] % 8 == 0) & (lessons.number_N[pieces] < own)
    return pieces[~aside], pieces[aside]


def _short_answers(spec: StatesSpec, lessons: TargetTextStates, levels: int, own: int) -> str:
    """Which flag helps where no piece is as long as was asked for."""
    # A text that holds a piece holds every shorter one.
    fits = 0
    most = spec.length
    while fits < most:
        tried = (fits + most + 1) // 2
        if all(len(part) for part in split_pieces(lessons, tried, levels, own)):
            fits = tried
        else:
            most = tried - 1
    if spec.text is None:
        longer = f"longer answers (--max-tokens above {spec.max_tokens}) of more prompts (--each above {spec.each})"
        longer += " in another --out"
    else:
        longer = "a --text with more and longer answers"
    found = f"length is {spec.length}: {own} answers hold no piece of {spec.length + levels + 1} tokens both"
    found += " to learn from and, in every eighth, to set aside"
    if fits:
        return f"{found}: give --length {fits} or less, or {longer}"
    return f"{found}: give {longer}"


def _course(spec: StatesSpec) -> TrainingRun:
    out = Path(spec.out)
    kind = KINDS[spec.kind]
    point, source = (
        load_autoregressive_model(spec.target, compute=spec.compute),
        sources.open_source(spec.target),
    )
    target = from_weights(source.config, source.weights)
    fast = is_bf16_run(out / STATE, spec.bf16)
    levels, depths = spec.levels or kind.levels, kind.depths(target.s.layers)
    gathered = DrafterTrainingData(
        spec, point, TeacherModel(target, False).fingerprint, depths, target.s.width
    )
    samples = gathered.samples
    lessons = gathered.lessons
    unseen_lessons = gathered.unseen_lessons
    counts = selfplay.token_counts(samples)
    size = point.lm.vocab.size
    # A drafter with a head of its own proposes the most frequent tokens only.
    frequent = sorted(range(size), key=lambda x: (-counts.get(x, 0), x))[: spec.tokens or size]
    if spec.start is None:
        begin = None
    else:
        # A drafter may begin with a draft model, or with a drafter of its own kind.
        begin = kind.begins(spec.start)
    # A draft model brings its head, and with it the tokens.
    if begin is not None and "tokens" in kind.takes:
        frequent = narrow.tokens_of(begin)
    # The target's network is frozen: a student reads its embeddings, norm and head.
    student = kind.start(
        TeacherContext(
            target,
            point.lm.vocab,
            torch.tensor(sorted(frequent)),
            levels,
            spec.seed,
            begin,
            spec.copies,
            spec.layers,
            spec.enters,
        )
    )
    pieces, aside = split_pieces(lessons, spec.length, levels, len(samples))
    if not len(pieces) or not len(aside):
        raise RequestError(_short_answers(spec, lessons, levels, len(samples)))
    # The loss is judged on about 24 pieces, spread over all that are set aside.
    looked = aside[:: max(1, len(aside) // 24)]
    seen = list[list[float]]()

    def step_loss(step: int) -> tuple[Tensor, int]:
        g = generator_for(spec.seed, step, "rows")
        row_B = pieces[torch.randint(len(pieces), (spec.rows,), generator=g)]
        # Some kinds change with time what they are shown.
        student.set_step(step, spec.steps)
        with bf16_autocast(fast):
            return level_divergence(student, lessons, row_B, spec, kind)[0], spec.rows * spec.length

    def on_aside() -> Tensor:
        with bf16_autocast(fast):
            value, right = level_divergence(student, lessons, looked, spec, kind)
        seen.append([round(float(value), 3), *right])
        print(
            f"{spec.kind}: set aside: loss {float(value):.3f}, right at each level {right}",
            file=sys.stderr,
            flush=True,
        )
        return value

    known_as = run_identity(spec, bf16=fast, samples=selfplay.samples_fingerprint(samples))
    # One cosine from the warmup to the end.
    schedule = TrainingSchedule(
        spec.steps,
        spec.rate,
        warmup=0.1,
        decay=1.0,
        log_every=50,
        muon=spec.muon,
    )

    @cache
    def known_rates() -> list[list[float]]:
        """The hit rates on the answers that are set aside, by the final weights."""
        return level_hit_rates(student, lessons, aside, spec.length, levels)

    def make_drafter(nodes: int) -> Drafter:
        """The trained drafter, with a tree of so many nodes made for its hit rates."""
        return kind.drafter(
            student.build_artefact(known_rates()),
            RankedTree.of_rates(extend_level_rates(known_rates()), nodes),
        )

    def measure_result() -> dict[str, Any]:
        # Some kinds need hooks that only the torch network has.
        if kind.torch:
            lm = checkpoint.load_bundle(spec.target, dtype="torch").lm
        else:
            lm = point.lm
        share = cost_of(lm, make_drafter(NODES[-1]), gathered.unseen[:4], kind.rows(NODES[-1]))
        return {
            "kind": spec.kind,
            "parameters": sum(p.numel() for p in student.parameters()),
            "positions": len(lessons.window_NW),
            "tokens": spec.steps * spec.rows * spec.length,
            "layers": spec.layers,
            "answers": int(lessons.answer_N.sum()),
            "share": share,
            "held_out": level_hit_rates(
                student,
                unseen_lessons,
                unseen_lessons.piece_starts(spec.length, levels),
                spec.length,
                levels,
            ),
            "tokens_per_pass": {
                n: tokens_per_pass(
                    lm, gathered.unseen[:MEASURED], spec.max_tokens, make_drafter(n), kind.rows(n)
                )
                for n in NODES
            },
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the drafter as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; the cost of a proposal goes into the artefact.
        """
        about = {"target": spec.target, "start": spec.start}
        kind.save(out, student.build_artefact(known_rates(), result["share"]), about)

    return TrainingRun(
        student,
        step_loss,
        schedule,
        known_as,
        save_result,
        measure_result,
        on_aside,
        student.matrices if spec.muon else (),
        log={"set_aside": seen},
        title=spec.kind,
    )


@dataclass(frozen=True)
class DrafterTrainingData:
    """What is learned from and measured on, gathered when it is first asked for.

    Attributes:
        spec: Options of the training.
        point: The target with its tokenizer.
        known_as: What the target is recognised by.
        depths: Layers after which the drafter reads states.
        width: Numbers of a state.
    """

    spec: StatesSpec
    point: checkpoint.ModelBundle
    known_as: str
    depths: tuple[int, ...]
    width: int

    @cached_property
    def samples(self) -> list[TrainingSample]:
        """The target's answers to prompts."""
        return self._written(False)

    @cached_property
    def unseen(self) -> list[TrainingSample]:
        """The target's answers to held-out prompts."""
        return self._written(True)

    def _written(self, unseen: bool) -> list[TrainingSample]:
        # States are recorded while the target writes: no second pass over its answers.
        record = StatePassRecorder(self.point.lm, self._file(answer_text_path(self.spec, unseen)))
        return gather_target_text(
            self.spec,
            self.point.lm,
            self.point.text,
            unseen,
            record,
            mixed=self.spec.mixed and not unseen,
        )

    def _file(self, text: Path) -> StateFile:
        layers = self.point.lm.network.layers
        # The states after the last layer are always kept: they are what is learned.
        if layers in self.depths:
            depths = self.depths
        else:
            depths = (*self.depths, layers)
        return StateFile.of_text_file(text, depths, self.width, self.known_as)

    @cached_property
    def read(self) -> list[TrainingSample]:
        """Texts of others, none unless the spec asks for them."""
        if not self.spec.texts:
            return []
        return texts.read_text_samples(
            training_data(self.spec.data), self.point.text, self.spec.texts, self.spec.seed
        )

    @cached_property
    def lessons(self) -> TargetTextStates:
        """The states over the target's own answers, and after these over the texts of others."""
        return self._lessons(answer_text_path(self.spec, False), [*self.samples, *self.read])

    @cached_property
    def unseen_lessons(self) -> TargetTextStates:
        """The states over the answers to held-out prompts."""
        return self._lessons(answer_text_path(self.spec, True), self.unseen)

    def _lessons(self, text: Path, samples: Sequence[TrainingSample]) -> TargetTextStates:
        file = self._file(text)
        file.complete_states(self.point.lm, samples)
        row_ND = file.read_samples(samples)
        # Files have no state before the last token, so that one is left out.
        known = [dataclasses.replace(s, output_ids=s.output_ids[:-1]) for s in samples]
        # The last depth is the last layer; what the drafter reads comes first.
        return TargetTextStates.of_states(
            known, row_ND[:, -self.width :], row_ND[:, : self.width * max(1, len(self.depths))]
        )


def extend_level_rates(rates: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Rates of at least LEVELS levels, where a drafter is trained for one level.

    Such a drafter goes on by itself, at about the same rates.
    """
    return [*rates, *[rates[-1]] * (LEVELS - len(rates) if len(rates) == 1 else 0)]


def level_divergence(
    student: DrafterStudent,
    lessons: TargetTextStates,
    row_B: Tensor,
    spec: StatesSpec,
    kind: DrafterKind,
) -> tuple[Tensor, list[float]]:
    """The loss of a student over all levels.

    It adds the cross-entropy of the target's laws and the student's at each level, and where the
    kind asks for it the distance of the states.

    Args:
        student: The drafter in training.
        lessons: The target's states over texts.
        row_B: First rows of the pieces, shape ``[B]``.
        spec: Options; length, decay of the levels, and spacing are read.
        kind: Weights of the kind's losses.

    Returns:
        The loss in nats, and without gradients of each level how often its likeliest token is the
        text's; 0 where no token of an answer lies at the level.
    """
    # M = T + levels rows of each piece: the last levels look beyond its end.
    at_BM = row_B[:, None] + torch.arange(spec.length + student.shown.levels)
    total = torch.zeros(())
    right = list[float]()
    # States, windows of tokens and tokens of all M rows of the pieces.
    state_BMH = lessons.state_NH[at_BM].float()
    window_BMW = lessons.window_NW[at_BM]
    token_BM = window_BMW[..., -1]
    answer_BM = lessons.answer_N[at_BM]
    known_BM = student.knows_tokens(window_BMW[..., -1])
    with torch.no_grad():
        truth_BMC = student.shown.state_logits(state_BMH, student.columns)
        sure_BM = torch.ones_like(answer_BM)
        # Kinds that propose what is nearly certain learn only from tokens that the target was sure
        # of.
        if kind.sure:
            sure_BM = truth_BMC.softmax(-1).gather(-1, token_BM[..., None])[..., 0] >= kind.sure
    unit_BT = torch.ones_like(answer_BM[:, : spec.length])
    entry_BTD = lessons.entry_ND[at_BM[:, : spec.length]].float()
    for k, (made, logits, at_T) in enumerate(student(entry_BTD, window_BMW, spec.every)):
        # All tokens of a span so far must be sure ones.
        unit_BT = unit_BT & sure_BM[:, k + 1 : k + 1 + spec.length]
        counts = (answer_BM & known_BM)[:, at_T + k + 1] & unit_BT[
            :, at_T
        ]  # what its head does not know it cannot learn
        # Every level has its figure, those with nothing to learn too: what follows is in order.
        if not torch.is_grad_enabled():
            asked = answer_BM[:, at_T + k + 1]
            hit = student.token_ids(logits.argmax(-1)) == token_BM[:, at_T + k + 1]
            right.append(round(float(hit[asked].float().sum() / asked.sum().clamp(min=1)), 3))
        if not counts.any():
            total = total + 0.0 * logits.sum()  # nothing to learn here
            continue
        truth_NC = truth_BMC[:, at_T + k + 1][counts].float().softmax(-1)
        # Soft labels: the target's law, over the tokens that the student's head has.
        part = F.cross_entropy(logits[counts].float(), truth_NC) + student.extra_loss(
            made[counts], truth_NC
        )
        if kind.features:
            part = part + kind.features * student.state_distance(
                made[counts], state_BMH[:, at_T + k + 1][counts]
            )
        # Later levels matter less: they count only where all earlier ones were right.
        total = total + spec.decay**k * part
    return total, right


@torch.no_grad()
def level_hit_rates(
    student: DrafterStudent, lessons: TargetTextStates, pieces: Tensor, length: int, levels: int
) -> list[list[float]]:
    """How often the token of each rank is what the target wrote, by level.

    Args:
        student: The drafter.
        lessons: The target's states over texts.
        pieces: First rows of pieces, shape ``[P]``; at most about LOOKED of them are used.
        length: Rows of a piece.
        levels: Levels of the drafter.

    Returns:
        `levels` lists of RANKS shares, 0 to 1.
    """
    hits_LK = torch.zeros(levels, RANKS)
    counted_L = torch.zeros(levels)
    # Pieces begin at every row; those that overlap most are left out.
    for row_B in pieces[:: max(1, length // 4, len(pieces) // LOOKED)].split(16):
        at_BT, at_BM = (row_B[:, None] + torch.arange(n) for n in (length, length + levels))
        made = student(lessons.entry_ND[at_BT].float(), lessons.window_NW[at_BM], 1)
        for k, (_, logits, at_T) in enumerate(made):
            top_BTK = student.token_ids(logits.topk(min(RANKS, logits.shape[-1])).indices)
            aim_BT = at_BT[:, at_T] + k + 1
            hit = top_BTK == lessons.token_N[aim_BT][..., None]
            # Only tokens that the target wrote are counted, not those of prompts.
            counts = lessons.answer_N[aim_BT]
            hits_LK[k, : top_BTK.shape[-1]] += hit[counts].sum(0)
            counted_L[k] += counts.sum()
    return [
        [round(x, 4) for x in row] for row in (hits_LK / counted_L.clamp(min=1)[:, None]).tolist()
    ]


def tokens_per_pass(
    lm: CausalLaw,
    samples: Sequence[TrainingSample],
    max_tokens: int,
    drafter: Drafter,
    nodes: int,
    depth: int = 16,
) -> float:
    """Tokens a pass of greedy decoding with a drafter.

    Args:
        lm: The target.
        samples: Samples whose prompts are answered.
        max_tokens: Tokens of an answer, at most.
        drafter: The drafter.
        nodes: Draft tokens of a pass, at most.
        depth: Levels of a draft, at most. Default 16.

    Returns:
        Committed tokens over passes of the target.
    """
    decoder = SpeculativeDecoder(
        ShapedTarget(lm, GreedyRule()), drafter, MatchVerifier(), FixedPolicy(depth, nodes)
    )
    results = run_coroutines(
        [answer_one(decoder, Request(s.prompt_ids, max_tokens=max_tokens)) for s in samples]
    )
    return round(sum(len(r.token_ids) for r in results) / sum(r.stats.passes for r in results), 3)


def cost_of(lm: CausalLaw, drafter: Drafter, samples: Sequence[TrainingSample], rows: int) -> float:
    """What a proposal costs, with all that belongs to it.

    Args:
        lm: The target.
        drafter: The drafter.
        samples: Samples whose prompts are answered.
        rows: Draft tokens of a proposal, at most.

    Returns:
        Passes of one row that take as long, in time of this process.
    """

    class ProposalTimer:
        """A drafter that measures the time of the proposals of another one."""

        seconds = 0.0
        count = 0

        def open_guess(self, prompt: Sequence[int], session: Any) -> Any:
            """Begin an answer with the measured drafter.

            Args:
                prompt: Token ids of the prompt.
                session: The target's session.

            Returns:
                The drafter's guess, whose `propose_draft` is timed.
            """
            guess = drafter.open_guess(prompt, session)
            inner = guess.propose_draft

            async def propose_tree(*asked: Any) -> Any:
                start = time.process_time()
                draft = await inner(*asked)
                ProposalTimer.seconds = ProposalTimer.seconds + time.process_time() - start
                ProposalTimer.count = ProposalTimer.count + 1
                return draft

            object.__setattr__(guess, "propose_draft", propose_tree)  # many a guess is frozen
            return guess

    target = ShapedTarget(lm, GreedyRule())
    requests = [Request(s.prompt_ids, max_tokens=32) for s in samples]
    for request in requests:
        run_coroutines(
            [
                answer_one(
                    SpeculativeDecoder(
                        target, ProposalTimer(), MatchVerifier(), FixedPolicy(2 * LEVELS, rows)
                    ),
                    request,
                )
            ]
        )
    # The same answers without a draft give the time of one pass.
    start = time.process_time()
    passes = 0
    for request in requests:
        passes += run_coroutines(
            [
                answer_one(
                    SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0)),
                    request,
                )
            ]
        )[0].stats.passes
    # Time of a pass of one row, with all that a request needs.
    one_pass = (time.process_time() - start) / passes
    return round(ProposalTimer.seconds / max(ProposalTimer.count, 1) / one_pass, 3)
