"""`polydec train heads`: draft heads on a target's last hidden state, from text that it wrote itself (Medusa-1, Hydra)."""
from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.drafters.heads import FromHeads
from polydec.families.ar.protocols import Drafter
from polydec.families.ar.speculative import Speculative
from polydec.files import replace
from polydec.models import checkpoint
from polydec.models import heads as trained
from polydec.models.heads import Heads, even
from polydec.models.lm import LM
from polydec.policies.fixed import Fixed
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.train import selfplay
from polydec.train.loop import Schedule, fit
from polydec.train.network import Llama, from_weights
from polydec.train.own_text import Lessons, gather
from polydec.train.progress import shown
from polydec.train.selfplay import Sample
from polydec.trees.ranked import Ranked
from polydec.verifiers.match import Match

RANKS = 8
"""Ranks of each head whose hits are counted, for trees."""
NODES = (3, 8, 16)
"""Sizes of the trees that are measured."""

MEASURED = 32
"""Held-out prompts that they are measured on, at most."""


@dataclass(frozen=True)
class HeadsSpec:
    """What `train_heads` makes.

    out: the directory to write; target: a checkpoint of the Llama skeleton, by any name that `polydec.load` takes; reads: heads
    read the tokens drafted before (Hydra), else the state alone (Medusa); data: where prompts are (None: POLYDEC_DATA, else
    ../shared/data); text: JSONL of the target's samples (None: out/text.jsonl, written first: `each` prompts a kind, answers
    of at most `max_tokens` at `temperature`); heads: 1 to 16; decay: weight of each head's loss beside the one before it,
    above 0; steps; rows: positions a step; rate; seed.
    """
    out: str
    target: str = "zoo:tiny"
    reads: bool = False
    data: str | None = None
    text: str | None = None
    each: int = 60
    max_tokens: int = 128
    temperature: float = 0.0
    heads: int = 3
    decay: float = 0.8
    steps: int = 600
    rows: int = 256
    rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= 16:
            raise ValueError(f"heads is {self.heads}: it must lie in 1 to 16")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}: it must be at least 0")
        for name in ("decay", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("each", "max_tokens", "steps", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


class Student(nn.Module):
    """The weights of Heads, to be trained; the target's own norm, head and embeddings stay."""
    def __init__(self, spec: HeadsSpec, target: Llama) -> None:
        super().__init__()
        self._reads, self._target = spec.reads, [target]            # a list: its weights are none of ours
        heads = trained.fresh(target.s.width, spec.heads, spec.reads, spec.seed)
        self.heads = nn.ParameterList([nn.Parameter(t) for head in heads for t in head])

    def model(self, lm: LM, rates: Sequence[Sequence[float]]) -> Heads:
        t = list(self.heads)
        return Heads([(t[i], t[i + 1], t[i + 2]) for i in range(0, len(t), 3)], self._reads, lm.vocab, rates)

    def logits(self, heads: Heads, lessons: Lessons, row_R: Tensor, k: int) -> Tensor:
        """Head k's of what stands k + 1 tokens behind these rows' own, teacher-forced."""
        inputs, token_RT = even(lessons.state_NH[row_R]), torch.stack([lessons.token_N[row_R + i] for i in range(k + 1)], 1)
        if self._reads:
            inputs = torch.cat([inputs, even(self._target[0].model.embed_tokens(token_RT)).flatten(1)], 1)
        return self.laws(heads.after(k, inputs))

    def laws(self, state_NH: Tensor) -> Tensor:
        """The target's own logits of states."""
        return self._target[0].logits(self._target[0].model.norm(state_NH))


def train_heads(spec: HeadsSpec) -> dict[str, Any]:
    """Train, save at spec.out (heads.safetensors, config.json), and say how they do on held-out prompts (also in
    out/training.json): how often each head's token of each rank is right, and tokens a pass of greedy decoding by trees of
    several sizes. They learn the target's laws. Every eighth answer is set aside, and the weights that are best on these are
    saved. Interrupted, it goes on where it was when called again. Raises ValueError on a wrong spec, missing data, or a target
    outside the Llama skeleton."""
    out, began = Path(spec.out), time.perf_counter()
    point, source = checkpoint.load(spec.target), checkpoint.open_source(spec.target)
    student = Student(spec, from_weights(source.config, source.weights))
    samples, unseen = (gather(spec, point.lm, point.text, held) for held in (False, True))
    lessons = Lessons.of(point.lm, [s for i, s in enumerate(samples) if i % 8] or samples)
    aside, held = Lessons.of(point.lm, samples[::8]), Lessons.of(point.lm, unseen)
    looked = [aside.ahead(k + 1)[:: max(1, len(aside.token_N) // 512)] for k in range(spec.heads)]

    def divergence(given: Lessons, rows: Sequence[Tensor]) -> Tensor:
        heads, total = student.model(point.lm, ()), torch.zeros(())
        for k, row_R in enumerate(rows):
            with torch.no_grad():
                aim_RV = student.laws(given.state_NH[row_R + k + 1]).softmax(-1)
            total = total + spec.decay ** k * F.cross_entropy(student.logits(heads, given, row_R, k), aim_RV)
        return total

    def loss(step: int) -> tuple[Tensor, int]:
        g = torch.Generator().manual_seed(spec.seed << 32 | step)
        rows = [r[torch.randint(len(r), (spec.rows,), generator=g)] for r in map(lessons.ahead, range(1, spec.heads + 1))]
        return divergence(lessons, rows), spec.rows * spec.heads

    identity = {**{k: v for k, v in asdict(spec).items() if k not in ("out", "data")}, "samples": selfplay.fingerprint(samples)}
    with shown("heads", spec.steps) as watch:
        curve = fit(student, loss, Schedule(spec.steps, spec.rate, warmup=0.1, decay=1.0, save_every=500, log_every=50),
                    state=out / "state.pt", identity=identity, watch=watch, aside=lambda: divergence(aside, looked))
    heads = student.model(point.lm, rates(student, aside, point.lm))
    trained.save(out, heads, {"target": spec.target})
    result = {"parameters": sum(p.numel() for p in student.parameters()), "positions": len(lessons.token_N),
              "loss": curve[-1][1], "seconds": round(time.perf_counter() - began, 1),
              "held_out": rates(student, held, point.lm),
              "tokens_per_pass": tokens_per_pass(point.lm, unseen[:MEASURED], spec.max_tokens, heads.rates,
                                                 lambda tree: FromHeads(heads, tree))}
    replace(out / "training.json", lambda at: Path(at).write_text(json.dumps({**result, "curve": curve}, indent=1) + "\n"))
    return result


@torch.no_grad()
def rates(student: Student, lessons: Lessons, lm: LM) -> list[list[float]]:
    """Of each head, how often its token of each rank is what was written."""
    heads, out = student.model(lm, ()), list[list[float]]()
    for k in range(len(heads)):
        rows, hits_K = lessons.ahead(k + 1), torch.zeros(RANKS)
        for row_R in rows.split(512):
            top_RK = student.logits(heads, lessons, row_R, k).topk(RANKS).indices
            hits_K += (top_RK == lessons.token_N[row_R + k + 1][:, None]).float().sum(0)
        out.append([round(x, 4) for x in (hits_K / max(len(rows), 1)).tolist()])
    return out


def tokens_per_pass(lm: LM, samples: Sequence[Sample], max_tokens: int, rates: Sequence[Sequence[float]],
                    make: Callable[[Ranked], Drafter]) -> dict[int, float]:
    """Of greedy answers to the prompts of these samples, by trees of several sizes."""
    target, out = Shaped(lm, Greedy()), dict[int, float]()
    for nodes in NODES:
        decoder = Speculative(target, make(Ranked.of(rates, nodes)), Match(), Fixed(len(rates), nodes))
        results = run([answer_one(decoder, Request(s.prompt_ids, max_tokens=max_tokens)) for s in samples])
        out[nodes] = round(sum(len(r.token_ids) for r in results) / sum(r.stats.passes for r in results), 3)
    return out
