"""The trainable twin of models/state_layer.py: the same arithmetic over pieces of text, and drafted entries behind them."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.models.state_layer import EPS, StateLayer, shapes
from polydec.train.network import Shape, rotate

Past = list[tuple[Tensor, Tensor]]
"""Keys and values [B, heads, T, head] of the entries so far: those of the text, then of each level of drafted ones."""


class Block(nn.Module):
    """A layer for a target of this shape; wide: how many numbers a position it reads (None: the target's width)."""
    def __init__(self, target: Shape, seed: int, wide: int | None = None, length: int = 4096) -> None:
        super().__init__()
        g, self._target, self._names = torch.Generator().manual_seed(seed), target, list[str]()
        self.wide = wide or target.width
        made = nn.ParameterList()
        for name, shape in shapes(target.width, target.heads, target.kv_heads, target.inner, wide).items():
            t = torch.randn(shape, generator=g) * 0.5 * shape[-1] ** -0.5 if len(shape) == 2 else torch.ones(shape)
            made.append(nn.Parameter(t))
            self._names.append(name)
        self.weights = made
        inverse = target.theta ** (-torch.arange(0, target.head, 2).double() / target.head)
        angle = torch.outer(torch.arange(length).double(), inverse).repeat(1, 2)
        self._turn = angle.cos().float(), angle.sin().float()

    @property
    def layer(self) -> StateLayer:
        """What it is now."""
        t = self._target
        return StateLayer(dict(zip(self._names, self.weights, strict=True)), t.heads, t.kv_heads, t.theta)

    def forward(self, x_BTS: Tensor, past: Past | None = None, at_T: Tensor | None = None) -> Tensor:
        """The stream [B, T, H] behind it. With an empty past: of a piece of text, which is remembered there. Then of drafted
        entries, one behind each position of `at_T`: they see the text up to that position, and those of earlier levels behind
        it."""
        past = [] if past is None else past
        s, w = self._target, self.layer.tensors
        H, T, level = s.width, x_BTS.shape[1], len(past)
        n = F.rms_norm(x_BTS, x_BTS.shape[-1:], w["input_layernorm.weight"], EPS)
        made = (F.linear(n, w[f"self_attn.{name}_proj.weight"]) for name in "qkv")
        q, k, v = (t.unflatten(-1, (-1, s.head)).transpose(1, 2) for t in made)
        first_T = torch.arange(T) if at_T is None or not level else at_T
        cos, sin = (t[first_T + level] for t in self._turn)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (z.repeat_interleave(s.heads // s.kv_heads, dim=1) for z in (k, v))
        past.append((k, v))
        y = behind(q, past, first_T) if level else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x_BTS + F.pad(F.linear(y.transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"]), (x_BTS.shape[-1] - H, 0))
        n = F.rms_norm(x, x.shape[-1:], None, EPS)[..., -H:] * w["post_attention_layernorm.weight"]
        inner = F.silu(F.linear(n, w["mlp.gate_proj.weight"])) * F.linear(n, w["mlp.up_proj.weight"])
        return x[..., -H:] + F.linear(inner, w["mlp.down_proj.weight"])


def behind(q: Tensor, past: Past, at_T: Tensor) -> Tensor:
    """Attention of drafted entries: over the text up to each one's position, and over the entries behind that position."""
    (text_k, text_v), levels = past[0], past[1:]
    scale = q.shape[-1] ** -0.5
    seen = torch.arange(text_k.shape[2])[None] <= at_T[:, None]
    scores = [(q @ text_k.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))]
    scores += [(q * k).sum(-1, keepdim=True) * scale for k, _ in levels]
    weight = torch.cat(scores, -1).softmax(-1)
    out = weight[..., :text_k.shape[2]] @ text_v
    for i, (_, v) in enumerate(levels):
        out = out + weight[..., text_k.shape[2] + i, None] * v
    return out
