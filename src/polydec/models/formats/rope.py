"""Rotary position embeddings: one complex factor for each position and pair of dimensions, with the
published scalings."""

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
    """What a config says of positions.

    Attributes:
        kind: Which of KINDS scales it.
        base: Base of the frequencies.
        dim: Rotated dimensions of a head.
        span: max_position_embeddings, in positions.
        options: Parameters of the scaling, by their names in configs.
    """

    kind: str
    base: float
    dim: int
    span: int
    options: Mapping[str, Any]

    @staticmethod
    def of_config(config: Mapping[str, Any], head: int, theta: float = 10000.0) -> RotaryEmbedding:
        """Read what a config.json says: `rope_scaling` or, where it says nothing,
        `rope_parameters`, and `rope_theta`.

        As transformers 5 has it: of two, `rope_parameters` is not read at all.

        Args:
            config: The dict of a config.json.
            head: Size of a head.
            theta: The base where none of them names one. Default 10000.

        Returns:
            The embedding.

        Raises:
            FileError: The kind is not one of KINDS, or its parameters are missing.
        """
        if config.get("rope_scaling"):
            name = "rope_scaling"
        else:
            name = "rope_parameters"
        options = dict(config.get(name) or {})
        # Options by kind of layer would need several embeddings.
        if of_layers := [kind for kind in LAYER_KINDS if kind in options]:
            raise FileError(
                f"{name} has {of_layers[0]}: this model turns all layers alike, so it must hold what is right for all of them"
            )
        # "type" is the older name of the field.
        kind = options.get("rope_type") or options.get("type") or "default"
        if kind not in KINDS:
            raise FileError(f"rope_type is {kind!r}: it must be one of {', '.join(KINDS)}")
        base = options.get("rope_theta") or config.get("rope_theta") or theta
        part = options.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        if config.get("original_max_position_embeddings"):
            options["original_max_position_embeddings"] = config["original_max_position_embeddings"]
        # Scaling is counted from the length that the model was trained for.
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

    def factor_table(self, start: int, stop: int) -> Tensor:
        """Factors of consecutive positions.

        Where the published rule looks at the length of the text (dynamic, longrope), position p is
        turned as in a text of p + 1 tokens: what is cached stays right, and the order of feeding
        does not matter.

        Args:
            start: The first position.
            stop: The position after the last one.

        Returns:
            ``[stop - start, dim / 2]``, complex128.
        """
        position_P = torch.arange(start, stop, dtype=torch.float64)
        inverse, magnitude = KINDS[self.kind].inverse(self, position_P[:, None])
        # A pair (x, y) at position p becomes (x + iy) * magnitude * exp(i p inverse).
        angle = position_P[:, None] * inverse
        return torch.polar(torch.full_like(angle, magnitude), angle)

    @property
    def adds(self) -> bool:
        """Whether turning by a and then by b positions is turning by a + b, wherever one stands."""
        return self.kind not in ("dynamic", "longrope")

    def plain_frequencies(self, base: float | Tensor | None = None) -> Tensor:
        """The unscaled frequencies: base^(-2k / dim) for each pair k; base None: the embedding's
        own."""
        return (self.base if base is None else base) ** -self.steps

    @property
    def steps(self) -> Tensor:
        """Exponents of the frequencies, 2k / dim for each pair k."""
        return torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim


def _default(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    return r.plain_frequencies(), 1.0


def _linear(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    return r.plain_frequencies() / r.options["factor"], 1.0


def _dynamic(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    factor = r.options["factor"]
    # NTK scaling: the base grows with the length once that is beyond the span.
    length = (position + 1).clamp(min=r.span)
    return r.plain_frequencies(
        r.base * (factor * length / r.span - (factor - 1)) ** (r.dim / (r.dim - 2))
    ), 1.0


def _llama3(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    o = r.options
    inverse = r.plain_frequencies()
    turns = (
        o["original_max_position_embeddings"] * inverse / (2 * math.pi)
    )  # full turns over the first context
    # Frequencies of many turns stay as they are, those of few are divided by the factor, and
    # between both it goes smoothly.
    keep = ((turns - o["low_freq_factor"]) / (o["high_freq_factor"] - o["low_freq_factor"])).clamp(
        0.0, 1.0
    )
    return inverse * (keep + (1.0 - keep) / o["factor"]), 1.0


def _yarn(r: RotaryEmbedding, position: Tensor) -> tuple[Tensor, float]:
    o = r.options
    inverse = r.plain_frequencies()
    first = o["original_max_position_embeddings"]
    factor = o.get("factor") or r.span / first

    # The dimension whose frequency makes so many turns over the first context.
    def turn_dimension(turns: float) -> float:
        return r.dim * math.log(first / (turns * 2 * math.pi)) / (2 * math.log(r.base))

    low = turn_dimension(o.get("beta_fast") or 32)
    high = turn_dimension(o.get("beta_slow") or 1)
    if o.get("truncate", True):
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, r.dim - 1)
    high += 0.001 * (low == high)
    # A ramp over dimensions: fast ones keep their frequency, slow ones are divided by the factor.
    keep = 1.0 - ((torch.arange(r.dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(
        0.0, 1.0
    )
    # Scaled texts get sharper attention: keys and queries grow by 0.1 ln(factor) + 1.
    magnitude = o.get("attention_factor")
    if magnitude is None:

        def scale_by(by: float) -> float:
            if factor <= 1:
                return 1.0
            return 0.1 * by * math.log(factor) + 1.0

        both = o.get("mscale") and o.get("mscale_all_dim")
        if both:
            magnitude = scale_by(o["mscale"]) / scale_by(o["mscale_all_dim"])
        else:
            magnitude = scale_by(1.0)
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
    # Positions beyond the first context have divisors of their own.
    return r.plain_frequencies() / torch.where(position + 1 > first, long, short), float(magnitude)


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
    """A way to scale rotary embedding.

    Attributes:
        inverse: From the embedding and positions ``[P, 1]``, the frequencies and what all factors
            are multiplied by.
        needs: Parameters that a config must name.
        context: The longest sequence that it is meant for.
    """

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
