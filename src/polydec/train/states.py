"""`polydec train heads`, `eagle` and `probes`: drafters on a target's states, from text that it wrote itself."""
from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.drafters.nothing import Nothing
from polydec.families.ar.protocols import Drafter
from polydec.families.ar.speculative import Speculative
from polydec.files import replace
from polydec.models import checkpoint
from polydec.models.lm import LM
from polydec.models.state_layer import even
from polydec.options import above_zero, at_least_one
from polydec.policies.fixed import Fixed
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.train import selfplay
from polydec.train.kinds import KINDS
from polydec.train.loop import Schedule, fit
from polydec.train.network import from_weights
from polydec.train.own_text import Lessons, gather
from polydec.train.progress import shown as progress
from polydec.train.selfplay import Sample
from polydec.train.students import Kind, Shown, Student
from polydec.trees.ranked import Ranked
from polydec.verifiers.match import Match

RANKS = 8
"""Ranks of each level whose hits are counted, for trees."""
NODES = (3, 8, 16)
"""Sizes of the trees that are measured."""
LEVELS = 4
"""Levels of these trees, where a drafter has no end of its own."""
MEASURED = 32
"""Held-out prompts that they are measured on, at most."""


@dataclass(frozen=True)
class StatesSpec:
    """What `train_states` makes.

    out: the directory to write; kind: one of KINDS; target: a checkpoint of the Llama skeleton, by any name that `polydec.load`
    takes; data: where prompts are (None: POLYDEC_DATA, else ../shared/data); text: JSONL of the target's samples (None:
    out/text.jsonl, written first: `each` prompts a kind, answers of at most `max_tokens` at `temperature`); levels: how many
    tokens ahead are guessed, 1 to 16 (0: as the kind has it); decay: weight of each level's loss beside the one before it,
    above 0; tokens: how many a head of the drafter's own knows, the most frequent ones (0: all); steps; rows: pieces of text a
    step, of `length` tokens; rate; seed; save_every: steps between checkpoints.
    """
    out: str
    kind: str
    target: str = "zoo:tiny"
    data: str | None = None
    text: str | None = None
    each: int = 60
    max_tokens: int = 128
    temperature: float = 0.0
    levels: int = 0
    decay: float = 0.8
    tokens: int = 0
    steps: int = 500
    rows: int = 8
    length: int = 48
    rate: float = 2e-3
    seed: int = 0
    save_every: int = 100

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}: it must be one of {', '.join(KINDS)}")
        if not 0 <= self.levels <= 16:
            raise ValueError(f"levels is {self.levels}: it must lie in 0 to 16")
        for name in ("temperature", "tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0")
        above_zero(self, "decay", "rate")
        at_least_one(self, "each", "max_tokens", "steps", "rows", "length", "save_every")


def train_states(spec: StatesSpec) -> dict[str, Any]:
    """Train, save at spec.out, and say how it does on held-out prompts (also in out/training.json): how often each level's
    token of each rank is right behind true tokens, tokens a pass of greedy decoding by trees of several sizes, and how many
    passes of the target a draft costs; its seconds are this process's own. It learns the target's laws at the tokens that the
    target wrote. Every eighth answer is set aside, and the weights that are best on these are saved. Interrupted, it goes on
    where it was when called again. Raises ValueError on a wrong spec, missing data, or a target outside the Llama skeleton."""
    out, began, kind = Path(spec.out), time.process_time(), KINDS[spec.kind]
    point, source = checkpoint.load(spec.target), checkpoint.open_source(spec.target)
    target = from_weights(source.config, source.weights)
    samples, unseen = (gather(spec, point.lm, point.text, held) for held in (False, True))
    counts, size = selfplay.token_counts(samples), point.lm.vocab.size
    frequent = sorted(range(size), key=lambda x: (-counts.get(x, 0), x))[:spec.tokens or size]
    levels = spec.levels or kind.levels
    student = kind.start(Shown(target, point.lm.vocab, torch.tensor(sorted(frequent)), levels, spec.seed))
    depths = kind.depths(point.lm.network.layers)
    lessons = Lessons.of(point.lm, [s for i, s in enumerate(samples) if i % 8] or samples, depths)
    aside, held = Lessons.of(point.lm, samples[::8], depths), Lessons.of(point.lm, unseen, depths)
    pieces, looked = (some.pieces(spec.length, levels) for some in (lessons, aside))
    if not len(pieces) or not len(looked):
        raise ValueError(f"length is {spec.length}: the target wrote no text of {spec.length + levels + 1} tokens")
    looked = looked[::max(1, len(looked) // 24)]

    def loss(step: int) -> tuple[Tensor, int]:
        g = torch.Generator().manual_seed(spec.seed << 32 | step)
        row_B = pieces[torch.randint(len(pieces), (spec.rows,), generator=g)]
        return divergence(student, lessons, row_B, spec, kind), spec.rows * spec.length

    identity = {**{k: v for k, v in asdict(spec).items() if k not in ("out", "data", "save_every")},
                "samples": selfplay.fingerprint(samples)}
    schedule = Schedule(spec.steps, spec.rate, warmup=0.1, decay=1.0, save_every=spec.save_every, log_every=50)
    with progress(spec.kind, spec.steps) as watch:
        curve = fit(student, loss, schedule,
                    state=out / "state.pt", identity=identity, watch=watch,
                    aside=lambda: divergence(student, aside, looked, spec, kind))
    known, seconds = rates(student, aside, spec.length, levels), round(time.process_time() - began, 1)
    drafter = kind.drafter(student.model(known), Ranked.of(deep(known), NODES[-1]))
    share = cost_of(point.lm, drafter, unseen[:4], kind.rows(NODES[-1]))
    kind.save(out, student.model(known, share), {"target": spec.target})
    result = {"kind": spec.kind, "parameters": sum(p.numel() for p in student.parameters()),
              "positions": len(lessons.window_NW), "answers": int(lessons.answer_N.sum()),
              "loss": curve[-1][1], "seconds": seconds, "share": share,
              "held_out": rates(student, held, spec.length, levels),
              "tokens_per_pass": {n: tokens_per_pass(point.lm, unseen[:MEASURED], spec.max_tokens, kind.drafter(
                  student.model(known), Ranked.of(deep(known), n)), kind.rows(n)) for n in NODES}}
    replace(out / "training.json", lambda at: Path(at).write_text(json.dumps({**result, "curve": curve}, indent=1) + "\n"))
    return result


def deep(rates: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Rates of at least LEVELS levels where there is one: what is trained for one step goes on by itself."""
    return [*rates, *[rates[-1]] * (LEVELS - len(rates) if len(rates) == 1 else 0)]


def divergence(student: Student, given: Lessons, row_B: Tensor, spec: StatesSpec, kind: Kind) -> Tensor:
    """Of all levels: the cross-entropy of the target's laws and the student's, and where the kind asks for it how far the
    states lie from the target's."""
    at_BT, total = row_B[:, None] + torch.arange(spec.length), torch.zeros(())
    at_BM = row_B[:, None] + torch.arange(spec.length + student.shown.levels)
    with torch.no_grad():
        truth_BMV = student.shown.logits(given.state_NH[at_BM])
        written_BM = truth_BMV.softmax(-1).gather(-1, given.token_N[at_BM][..., None])[..., 0]
    sure_BM, unit_BT = written_BM >= kind.sure, torch.ones_like(at_BT, dtype=torch.bool)
    for k, (made, logits) in enumerate(student(given.entry_ND[at_BT], given.window_NW[at_BM])):
        true, aim = given.state_NH[at_BT + k + 1], truth_BMV[:, k + 1:k + 1 + spec.length]
        unit_BT = unit_BT & sure_BM[:, k + 1:k + 1 + spec.length]
        counts = given.answer_N[at_BT + k + 1] & unit_BT
        if student.some is not None:              # what its head does not know it cannot learn
            counts = counts & torch.isin(aim.argmax(-1), student.some)
            aim = aim[..., student.some]
        if not counts.any():
            total = total + 0.0 * logits.sum()    # nothing to learn here
            continue
        part = F.cross_entropy(logits[counts], aim[counts].softmax(-1))
        if kind.features:
            part = part + kind.features * F.smooth_l1_loss(even(made[counts]), even(true[counts]))
        total = total + spec.decay ** k * part
    return total


@torch.no_grad()
def rates(student: Student, lessons: Lessons, length: int, levels: int) -> list[list[float]]:
    """Of each level, how often its token of each rank is what the target wrote."""
    hits_LK, counted_L = torch.zeros(levels, RANKS), torch.zeros(levels)
    pieces = lessons.pieces(length, levels)
    for row_B in pieces[::max(1, length // 4)].split(16):
        at_BT, at_BM = (row_B[:, None] + torch.arange(n) for n in (length, length + levels))
        for k, (_, logits) in enumerate(student(lessons.entry_ND[at_BT], lessons.window_NW[at_BM])):
            top_BTK = logits.topk(min(RANKS, logits.shape[-1])).indices
            top_BTK = top_BTK if student.some is None else student.some[top_BTK]
            hit, counts = top_BTK == lessons.token_N[at_BT + k + 1][..., None], lessons.answer_N[at_BT + k + 1]
            hits_LK[k, :top_BTK.shape[-1]] += hit[counts].sum(0)
            counted_L[k] += counts.sum()
    return [[round(x, 4) for x in row] for row in (hits_LK / counted_L.clamp(min=1)[:, None]).tolist()]


def tokens_per_pass(lm: LM, samples: Sequence[Sample], max_tokens: int, drafter: Drafter, nodes: int,
                    depth: int = 16) -> float:
    """Of greedy answers to the prompts of these samples."""
    decoder = Speculative(Shaped(lm, Greedy()), drafter, Match(), Fixed(depth, nodes))
    results = run([answer_one(decoder, Request(s.prompt_ids, max_tokens=max_tokens)) for s in samples])
    return round(sum(len(r.token_ids) for r in results) / sum(r.stats.passes for r in results), 3)


def cost_of(lm: LM, drafter: Drafter, samples: Sequence[Sample], rows: int) -> float:
    """How many passes of one row a proposal takes here, in time of this process, with all that belongs to it."""
    class Timed:
        seconds, count = 0.0, 0

        def open(self, prompt: Sequence[int], session: Any) -> Any:
            guess = drafter.open(prompt, session)
            inner = guess.propose

            async def propose(*asked: Any) -> Any:
                start = time.process_time()
                draft = await inner(*asked)
                Timed.seconds, Timed.count = Timed.seconds + time.process_time() - start, Timed.count + 1
                return draft
            guess.propose = propose  # pyright: ignore[reportAttributeAccessIssue]
            return guess

    target = Shaped(lm, Greedy())
    requests = [Request(s.prompt_ids, max_tokens=32) for s in samples]
    for one in requests:
        run([answer_one(Speculative(target, Timed(), Match(), Fixed(2 * LEVELS, rows)), one)])
    start, passes = time.process_time(), 0
    for one in requests:
        passes += run([answer_one(Speculative(target, Nothing(), Match(), Fixed(0)), one)])[0].stats.passes
    one_pass = (time.process_time() - start) / passes
    return round(Timed.seconds / max(Timed.count, 1) / one_pass, 3)
