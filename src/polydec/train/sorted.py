"""`polydec train sorted`: one draft whose first halves and three quarters are drafts as well (S2D, by sorted fine-tuning)."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polydec.train.exits import Depths
from polydec.train.lm import LMSpec, load_directory, train_lm
from polydec.train.loop import Schedule


@dataclass(frozen=True)
class SortedSpec:
    """What `train_sorted` makes.

    out: the directory to write; target: a directory as `train_lm` writes it, or zoo:NAME, whose first layers, norm, head
    and tokenizer the draft begins with; data: where the texts are (None: POLYDEC_DATA, else ../shared/data); layers: of the
    draft (0: half the target's, at least 2); distil: learn the target's laws (forward KL) instead of the text's tokens;
    steps, rate, muon: of the schedule; train_mb: megabytes of prose, code and dialogue; seed.
    """
    out: str
    target: str
    data: str | None = None
    layers: int = 0
    distil: bool = True
    steps: int = 400
    rate: float = 1e-3
    muon: float = 0.01
    train_mb: tuple[float, ...] = (10.0, 8.0, 6.0)
    held_kb: float = 250.0
    seed: int = 0
    bf16: bool | None = None
    more: Mapping[str, Any] | None = None         # fields of LMSpec, for tests

    def __post_init__(self) -> None:
        if self.layers and not 2 <= self.layers <= 256:
            raise ValueError(f"layers is {self.layers}: it must be 0 or lie in 2 to 256")


def exits_of(layers: int) -> tuple[int, ...]:
    """Half, three quarters and all of the layers, as the recipe s2d takes them."""
    return tuple(sorted({layers // 2, 3 * layers // 4, layers} - {0}))


def train_sorted(spec: SortedSpec) -> dict[str, Any]:
    """Train on the mean loss of all exits, save, and measure (see `train_lm`; bits per byte are the whole draft's)."""
    layers = spec.layers or max(2, load_directory(spec.target).s.layers // 2)
    result = train_lm(LMSpec(
        spec.out, data=spec.data, start=spec.target, teacher=spec.target if spec.distil else None, layers=layers,
        schedule=Schedule(spec.steps, spec.rate, muon=spec.muon, save_every=50), depths=Depths(exits=exits_of(layers)),
        train_mb=spec.train_mb, held_kb=spec.held_kb, seed=spec.seed, bf16=spec.bf16, **(spec.more or {})))
    return {**result, "exits": list(exits_of(layers))}
