"""Rotary position embeddings: one complex factor for each position and pair of dimensions, with the published scalings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import FileError

LAYER_KINDS = ("full_attention", "sliding_attention")
"""What kinds of layers are called."""


@dataclass(frozen=True)
class RotaryEmbedding:
    """What a config says of positions. `dim`: rotated dimensions of a head; `span`: max_position_embeddings."""

    kind: str
    base: float
    dim: int
    span: int
    options: Mapping[str, Any]

    @staticmethod
    def of(config: Mapping[str, Any], head: int, theta: float = 10000.0) -> RotaryEmbedding:
        """From the dict of a config.json: `rope_scaling` or, where it says nothing, `rope_parameters`, and `rope_theta`; theta:
        the base where none of them names one. As transformers 5 has it: of two, `rope_parameters` is not read at all.

        Raises FileError for a kind that is not one of KINDS, and for one whose parameters are missing.
        """
        if config.get("rope_scaling"):
            name = "rope_scaling"
        else:
            name = "rope_parameters"
        options = dict(config.get(name) or {})
        if of_layers := [kind for kind in LAYER_KINDS if kind in options]:
            raise FileError(
                f"{name} has {of_layers[0]}: this model turns all layers alike, so it must hold what is right for all of them"
            )
        kind = options.get("rope_type") or options.get("type") or "default"
        if kind not in KINDS:
            raise FileError(f"rope_type is {kind!r}: it must be one of {', '.join(KINDS)}")
        base = options.get("rope_theta") or config.get("rope_theta") or theta
        part = options.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        if config.get("original_max_position_embeddings"):
            options["original_max_position_embeddings"] = config["original_max_position_embeddings"]
        options.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
        needed = KINDS[kind].needs
        missing = [k for k in needed if options.get(k) is None]
        if missing:
            raise FileError(
                f"rope_type {kind!r} needs {', '.join(needed)}: the config lacks {', '.join(missing)}"
            )
        return RotaryEmbedding(
            kind, float(base), int(head * part), int(config["max_position_embeddings"]), options
        )

    @property
    def context(self) -> int:
        """The longest sequence that the scaling is meant for, in positions."""
        return KINDS[self.kind].context(self)

    def table(self, start: int, stop: int) -> Tensor:
        """Factors [stop - start, dim / 2], complex128, of the positions from `start` on.

        Where the published rule looks at the length of the text (dynamic, longrope), position p is turned as in a text
        of p + 1 tokens: what is cached stays right, and the order of feeding does not matter.
        """
        position_P = torch.arange(start, stop, dtype=torch.float64)
        inverse, magnitude = KINDS[self.kind].inverse(self, position_P[:, None])
        angle = position_P[:, None] * inverse
        return torch.polar(torch.full_like(angle, magnitude), angle)

    @property
    def adds(self) -> bool:
        """Whether turning by a and then by b positions is turning by a + b, wherever one stands."""
        return self.kind not in ("dynamic", "longrope")

    def plain(self, base: float | Tensor | None = None) -> Tensor:
        return (self.base if base is None else base) ** -self.steps

    @property
    def steps(self) -> Tensor:
        return torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim


def _default(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    return r.plain(), 1.0


def _linear(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    return r.plain() / r.options["factor"], 1.0


def _dynamic(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    factor = r.options["factor"]
    length = (position + 1).clamp(min=r.span)
    return r.plain(r.base * (factor * length / r.span - (factor - 1)) ** (r.dim / (r.dim - 2))), 1.0


def _llama3(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    o = r.options
    inverse = r.plain()
    turns = (
        o["original_max_position_embeddings"] * inverse / (2 * math.pi)
    )  # full turns over the first context
    keep = ((turns - o["low_freq_factor"]) / (o["high_freq_factor"] - o["low_freq_factor"])).clamp(
        0.0, 1.0
    )
    return inverse * (keep + (1.0 - keep) / o["factor"]), 1.0


def _yarn(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    o = r.options
    inverse = r.plain()
    first = o["original_max_position_embeddings"]
    factor = o.get("factor") or r.span / first

    def dimension(turns: float) -> float:
        return r.dim * math.log(first / (turns * 2 * math.pi)) / (2 * math.log(r.base))

    low = dimension(o.get("beta_fast") or 32)
    high = dimension(o.get("beta_slow") or 1)
    if o.get("truncate", True):
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, r.dim - 1)
    high += 0.001 * (low == high)
    keep = 1.0 - ((torch.arange(r.dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(
        0.0, 1.0
    )
    magnitude = o.get("attention_factor")
    if magnitude is None:

        def scale(by: float) -> float:
            if factor <= 1:
                return 1.0
            return 0.1 * by * math.log(factor) + 1.0

        both = o.get("mscale") and o.get("mscale_all_dim")
        if both:
            magnitude = scale(o["mscale"]) / scale(o["mscale_all_dim"])
        else:
            magnitude = scale(1.0)
    return inverse * (keep + (1.0 - keep) / factor), float(magnitude)


def _longrope(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    o = r.options
    first = o["original_max_position_embeddings"]
    factor = o.get("factor") or r.span / first
    magnitude = o.get("attention_factor")
    if magnitude is None:
        if factor <= 1:
            magnitude = 1.0
        else:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(first))
    short, long = (torch.tensor(o[k], dtype=torch.float64) for k in ("short_factor", "long_factor"))
    return r.plain() / torch.where(position + 1 > first, long, short), float(magnitude)


def _span(r: RotaryEmbedding) -> int:
    return r.span


def _stretched(r: RotaryEmbedding) -> int:
    return int(r.span * r.options["factor"])


def _from_first(r: RotaryEmbedding) -> int:
    return max(
        r.span,
        int(r.options["original_max_position_embeddings"] * (r.options.get("factor") or 1.0)),
    )


@dataclass(frozen=True)
class RopeKind:
    inverse: Callable[[RotaryEmbedding, Tensor], tuple[Tensor, float]]
    needs: tuple[str, ...] = ()
    context: Callable[[RotaryEmbedding], int] = _span


KINDS = {
    "default": RopeKind(_default),
    "linear": RopeKind(_linear, ("factor",), _stretched),
    "dynamic": RopeKind(_dynamic, ("factor",), _stretched),
    "llama3": RopeKind(
        _llama3,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
    "yarn": RopeKind(_yarn, ("original_max_position_embeddings",), _from_first),
    "longrope": RopeKind(
        _longrope, ("short_factor", "long_factor", "original_max_position_embeddings")
    ),
}
