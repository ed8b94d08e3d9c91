"""`polydec train eagle`: a layer that makes a target's next state of its state and the token behind it (EAGLE-1)."""
from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.drafters.eagle import FromEagle
from polydec.files import replace
from polydec.models import checkpoint
from polydec.models import eagle as trained
from polydec.models.eagle import Eagle
from polydec.models.heads import even
from polydec.models.lm import LM
from polydec.train import selfplay
from polydec.train.heads import MEASURED, RANKS, tokens_per_pass
from polydec.train.loop import Schedule, fit
from polydec.train.network import Llama, Trunk, from_weights
from polydec.train.own_text import Lessons, gather
from polydec.train.progress import shown


@dataclass(frozen=True)
class EagleSpec:
    """What `train_eagle` makes.

    out: the directory to write; target: a checkpoint of the Llama skeleton, by any name that `polydec.load` takes; data: where
    prompts are (None: POLYDEC_DATA, else ../shared/data); text: JSONL of the target's samples (None: out/text.jsonl, written
    first: `each` prompts a kind, answers of at most `max_tokens` at `temperature`); features: weight of the states' loss
    beside the laws', at least 0; depth: levels of the trees that are measured; steps; rows: pieces of text a step, of `length`
    tokens; rate; seed.
    """
    out: str
    target: str = "zoo:tiny"
    data: str | None = None
    text: str | None = None
    each: int = 60
    max_tokens: int = 128
    temperature: float = 0.0
    features: float = 1.0
    depth: int = 4
    steps: int = 500
    rows: int = 8
    length: int = 48
    rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("features", "temperature"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0")
        for name in ("each", "max_tokens", "depth", "steps", "rows", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not self.rate > 0:
            raise ValueError(f"rate is {self.rate}: it must be above 0")


class Student(nn.Module):
    """The weights of an Eagle, to be trained; the target's own norm, head and embeddings stay."""
    def __init__(self, target: Llama, seed: int) -> None:
        super().__init__()
        s, self._target = with_(target.s, layers=1), [target]        # a list: its weights are none of ours
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            trunk = Trunk(with_(s, vocab=1))
            for p in trunk.parameters():
                if p.ndim == 2:
                    nn.init.normal_(p, std=0.5 * p.shape[1] ** -0.5)
        self.layer, self._turn = trunk.layers[0], (trunk.cos, trunk.sin)
        self.fuse = nn.Parameter(torch.eye(s.width).repeat(1, 2))

    def forward(self, state_BTH: Tensor, token_BT: Tensor) -> Tensor:
        """The states behind these tokens, which stand behind these states."""
        z = F.linear(torch.cat([even(self._target[0].model.embed_tokens(token_BT)), even(state_BTH)], -1), self.fuse)
        cos_TD, sin_TD = (t[:token_BT.shape[1]] for t in self._turn)
        return self.layer(z, cos_TD, sin_TD)

    def laws(self, state: Tensor) -> Tensor:
        """The target's own logits of states."""
        return self._target[0].logits(self._target[0].model.norm(state))

    def model(self, lm: LM, rates: tuple[float, ...]) -> Eagle:
        s = self._target[0].s
        layer = {name: p.detach() for name, p in self.layer.named_parameters()}
        return Eagle(self.fuse.detach(), layer, (s.heads, s.kv_heads, s.theta), lm.vocab, rates)


def train_eagle(spec: EagleSpec) -> dict[str, Any]:
    """Train, save at spec.out (eagle.safetensors, config.json), and say how it does on held-out prompts (also in
    out/training.json): how often its token of each rank is right behind true states, and tokens a pass of greedy decoding by
    trees of several sizes. Every eighth answer is set aside, and the weights that are best on these are saved. Interrupted, it
    goes on where it was when called again. Raises ValueError on a wrong spec, missing data, or a target outside the Llama
    skeleton."""
    out, began = Path(spec.out), time.perf_counter()
    point, source = checkpoint.load(spec.target), checkpoint.open_source(spec.target)
    student = Student(from_weights(source.config, source.weights), spec.seed)
    samples, unseen = (gather(spec, point.lm, point.text, held) for held in (False, True))
    lessons = Lessons.of(point.lm, [s for i, s in enumerate(samples) if i % 8] or samples, prompts=True)
    aside = Lessons.of(point.lm, samples[::8], prompts=True)
    looked = aside.ahead(spec.length)[::max(1, len(aside.token_N) // 24)]

    def losses(given: Lessons, row_B: Tensor) -> Tensor:
        at_BT = row_B[:, None] + torch.arange(spec.length)
        made, true = student(given.state_NH[at_BT], given.token_N[at_BT]), given.state_NH[at_BT + 1]
        with torch.no_grad():
            aim = student.laws(true).softmax(-1).flatten(0, 1)
        return F.cross_entropy(student.laws(made).flatten(0, 1), aim) + spec.features * F.smooth_l1_loss(even(made), even(true))

    def loss(step: int) -> tuple[Tensor, int]:
        g, rows = torch.Generator().manual_seed(spec.seed << 32 | step), lessons.ahead(spec.length)
        return losses(lessons, rows[torch.randint(len(rows), (spec.rows,), generator=g)]), spec.rows * spec.length

    identity = {**{k: v for k, v in asdict(spec).items() if k not in ("out", "data", "depth")},
                "samples": selfplay.fingerprint(samples)}
    with shown("eagle", spec.steps) as watch:
        curve = fit(student, loss, Schedule(spec.steps, spec.rate, warmup=0.1, decay=1.0, save_every=500, log_every=50),
                    state=out / "state.pt", identity=identity, watch=watch, aside=lambda: losses(aside, looked))
    eagle = student.model(point.lm, rates(student, aside, looked, spec.length))
    trained.save(out, eagle, {"target": spec.target})
    result = {"parameters": sum(p.numel() for p in student.parameters()), "positions": len(lessons.token_N),
              "loss": curve[-1][1], "seconds": round(time.perf_counter() - began, 1), "rates": eagle.rates,
              "tokens_per_pass": tokens_per_pass(point.lm, unseen[:MEASURED], spec.max_tokens, [eagle.rates] * spec.depth,
                                                 lambda tree: FromEagle(eagle, tree))}
    replace(out / "training.json", lambda at: Path(at).write_text(json.dumps({**result, "curve": curve}, indent=1) + "\n"))
    return result


@torch.no_grad()
def rates(student: Student, lessons: Lessons, row_B: Tensor, length: int) -> tuple[float, ...]:
    """How often the token of each rank is what was written, behind true states."""
    at_BT = row_B[:, None] + torch.arange(length)
    top_BTK = student.laws(student(lessons.state_NH[at_BT], lessons.token_N[at_BT])).topk(RANKS).indices
    hits_K = (top_BTK == lessons.token_N[at_BT + 1][..., None]).float().mean((0, 1))
    return tuple(round(x, 4) for x in hits_K.tolist())
