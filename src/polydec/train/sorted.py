"""`polydec train sorted`: one draft whose first halves and three quarters are drafts as well (S2D, by sorted fine-tuning)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polydec.base.errors import RequestError
from polydec.train.exits import Depths
from polydec.train.lm import LMSpec, load_directory, train_lm
from polydec.train.loop import Schedule
from polydec.train.network import Shape


@dataclass(frozen=True)
class SortedSpec:
    """What `train_sorted` makes.

    out: the directory to write; target: a directory as `train_lm` writes it, or zoo:NAME, whose tokenizer the draft takes
    and, at the target's width, whose first layers, norm and head it begins with; data: where the texts are (None:
    POLYDEC_DATA, else ../shared/data); layers: of the draft (0: half the target's, at least 2); width: hidden width of the
    draft, in whole heads of the target's size (0: the target's; else the draft begins at random); exits: ascending depths
    that shall serve, the last one is `layers` (none: half, three quarters and all, as the recipe s2d takes them; one: an
    ordinary draft of that depth); distil: learn the target's laws (forward KL) instead of the text's tokens; steps;
    rate, muon: of the schedule (None: 1e-3 and 0.01, or at random 6e-3 and 0.02); train_mb: megabytes of prose, code and
    dialogue; seed.
    """

    out: str
    target: str
    data: str | None = None
    layers: int = 0
    width: int = 0
    exits: tuple[int, ...] = ()
    distil: bool = True
    steps: int = 400
    rate: float | None = None
    muon: float | None = None
    train_mb: tuple[float, ...] = (10.0, 8.0, 6.0)
    held_kb: float = 250.0
    seed: int = 0
    bf16: bool | None = None
    more: Mapping[str, Any] | None = None  # fields of LMSpec, for tests

    def __post_init__(self) -> None:
        if self.layers and not 2 <= self.layers <= 256:
            raise RequestError(f"layers is {self.layers}: it must be 0 or lie in 2 to 256")
        if self.width < 0:
            raise RequestError(
                f"width is {self.width}: it must be 0 or a multiple of the target's head size"
            )


def exits_of(layers: int) -> tuple[int, ...]:
    """Half, three quarters and all of the layers, as the recipe s2d takes them."""
    return tuple(sorted({layers // 2, 3 * layers // 4, layers} - {0}))


def narrow(target: Shape, width: int) -> Shape:
    """The target's shape at another width: heads of the same size, as many to a key as there, inner width in proportion."""
    if width % target.head:
        raise RequestError(
            f"width is {width}: it must be 0 or a multiple of {target.head}, the target's head size"
        )
    heads = width // target.head
    shared = max(1, round(heads * target.kv_heads / target.heads))
    return replace(
        target,
        width=width,
        heads=heads,
        kv_heads=next(k for k in range(shared, 0, -1) if heads % k == 0),
        inner=round(target.inner * width / target.width),
    )


def train_sorted(spec: SortedSpec) -> dict[str, Any]:
    """Train on the mean loss of all exits, save, and measure (see `train_lm`; bits per byte are the whole draft's)."""
    target, begun = load_directory(spec.target).s, not spec.width
    layers = spec.layers or max(2, target.layers // 2)
    exits = spec.exits or exits_of(layers)
    rate, muon = (1e-3, 0.01) if begun else (6e-3, 0.02)
    schedule = Schedule(
        spec.steps, spec.rate or rate, muon=muon if spec.muon is None else spec.muon, save_every=50
    )
    result = train_lm(
        LMSpec(
            spec.out,
            data=spec.data,
            start=spec.target if begun else None,
            tokenizer=spec.target,
            layers=layers,
            shape=None if begun else narrow(target, spec.width),
            teacher=spec.target if spec.distil else None,
            schedule=schedule,
            depths=Depths(exits=exits),
            train_mb=spec.train_mb,
            held_kb=spec.held_kb,
            seed=spec.seed,
            bf16=spec.bf16,
            **(spec.more or {}),
        )
    )
    return {**result, "exits": list(exits)}
