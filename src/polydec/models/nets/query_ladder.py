"""Learned queries that climb a vision tower: behind each of its layers they look at that layer's states,
and what they hold behind the last one is read beside the patches (Q-Ladder).

The tower's own weights stay as they are, so one tower serves with a ladder and without.

Source: Arcana, "Improving Multi-modal Large Language Model through Boosting Vision Capabilities", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from polydec.models.formats.vision import VitShape

MAPS = ("query", "key", "value", "out")
"""Maps of a rung's attention; all rungs' stand side by side in a tensor."""


def ladder_shapes(
    vit: VitShape, rungs: int, queries: int, inner: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a ladder, by name.

    Args:
        vit: Sizes of the tower.
        rungs: Layers of it that are looked at.
        queries: Learned queries.
        inner: Inner units of a rung's MLP.

    Returns:
        The shapes. Of a norm the weights stand first, and its biases behind them.
    """
    W = vit.width
    return {
        "queries": (queries, W),
        **dict.fromkeys(("query_norm", "state_norm", "mlp_norm"), (rungs, 2, W)),
        **dict.fromkeys(MAPS, (rungs, W, W)),
        "up": (rungs, inner, W),
        "up_bias": (rungs, inner),
        "down": (rungs, W, inner),
        "down_bias": (rungs, W),
    }


def new_ladder_tensors(
    vit: VitShape, rungs: int, queries: int, inner: int, g: torch.Generator
) -> dict[str, Tensor]:
    """The tensors of a ladder that nothing has trained yet, whose rungs add nothing.

    Args:
        vit: Sizes of the tower.
        rungs: Layers of it that are looked at.
        queries: Learned queries.
        inner: Inner units of a rung's MLP.
        g: Draws them.

    Returns:
        The tensors, by name.
    """
    # One over the root of the inputs, as other maps begin.
    out = {
        name: torch.randn(shape, generator=g) * shape[-1] ** -0.5
        for name, shape in ladder_shapes(vit, rungs, queries, inner).items()
    }
    for name in ("query_norm", "state_norm", "mlp_norm"):
        out[name] = torch.stack([torch.ones(rungs, vit.width), torch.zeros(rungs, vit.width)], 1)
    # What is added to the queries begins at zero; both halves still get a gradient.
    for name in ("out", "down", "up_bias", "down_bias"):
        out[name] = torch.zeros_like(out[name])
    # About as long as states that a norm has made.
    out["queries"] = out["queries"] * vit.width**0.5
    return out


@dataclass(frozen=True, eq=False)
class QueryLadder:
    """A ladder of learned queries.

    Attributes:
        heads: Heads of its attention, as many as the tower's.
        eps: Added to the norms' variances.
        tensors: Its tensors, as `ladder_shapes` names them.
    """

    heads: int
    eps: float
    tensors: Mapping[str, Tensor]

    @property
    def query_count(self) -> int:
        """How many vectors of an image it adds."""
        return len(self.tensors["queries"])

    def climb_states(self, states: Sequence[Tensor]) -> Tensor:
        """What the queries hold behind the last rung.

        Args:
            states: What the tower's layers left, the first layer's first: of each tile a row for
                every token, ``[tiles, P, W]``.

        Returns:
            A row for each query of each tile, ``[tiles, queries, W]``.
        """
        # Every image begins with the same queries.
        t = self.tensors
        x_TQW = t["queries"].expand(len(states[0]), -1, -1)
        for rung, state_TPW in enumerate(states):
            asked = linear(self._normed(x_TQW, "query_norm", rung), t["query"][rung])
            # Whatever a layer is like in size, its rung reads it normed.
            shown = self._normed(state_TPW, "state_norm", rung)
            keys, values = (linear(shown, t[name][rung]) for name in ("key", "value"))
            # [tiles, tokens, W] -> [tiles, heads, tokens, head].
            q_THQD, k_THPD, v_THPD = (
                y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (asked, keys, values)
            )
            seen_THQD = scaled_dot_product_attention(q_THQD, k_THPD, v_THPD)
            seen_TQW = seen_THQD.transpose(1, 2).flatten(2)
            # Each half adds to what the queries hold, and reads it normed.
            x_TQW = x_TQW + linear(seen_TQW, t["out"][rung])
            inner = gelu(
                linear(self._normed(x_TQW, "mlp_norm", rung), t["up"][rung], t["up_bias"][rung])
            )
            x_TQW = x_TQW + linear(inner, t["down"][rung], t["down_bias"][rung])
        return x_TQW

    def _normed(self, y: Tensor, name: str, rung: int) -> Tensor:
        weight_W, bias_W = self.tensors[name][rung]
        return layer_norm(y, weight_W.shape, weight_W, bias_W, self.eps)
