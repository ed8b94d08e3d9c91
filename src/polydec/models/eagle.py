"""A one-layer network on a target's last hidden states: of a state and the token behind it the next state (EAGLE)."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from polydec.core.protocols import Target
from polydec.core.types import Vocab
from polydec.models import artefact, edge
from polydec.models.fields import EagleFields
from polydec.models.heads import even
from polydec.models.transformer import Transformer

KIND = artefact.Kind("eagle", "eagle", "eagle.safetensors", "eagle")


@dataclass(frozen=True, eq=False)
class Eagle:
    """fuse_H2: weight [H, 2 H] that joins a token's embedding with the state before it, each divided by its root mean square;
    layer: the tensors of one layer of the Llama skeleton, by the names that they have there behind "model.layers.0."; shape:
    heads, kv_heads, theta; vocab: the target's; rates: how often the token of each rank was right on held-out text."""
    called: ClassVar[str] = "an EAGLE drafter"
    kind: ClassVar[str] = "eagle"
    made_by: ClassVar[str] = "polydec train eagle"

    fuse_H2: Tensor
    layer: Mapping[str, Tensor]
    shape: tuple[int, int, float]
    vocab: Vocab
    rates: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.fuse_H2)

    def fit(self, target: Target, draft: Target | None) -> None:
        """Raise ValueError where it was trained for another vocabulary or for states of another width."""
        target.vocab.require_same(self.vocab, "the target of the EAGLE drafter")
        artefact.require_width(target, self.width, "EAGLE's weights")

    def enter(self, embed_NH: Tensor, state_NH: Tensor) -> Tensor:
        """What enters the layer for tokens and the states before them."""
        return linear(torch.cat([even(embed_NH), even(state_NH)], 1), self.fuse_H2)

    @cached_property
    def network(self) -> Transformer:
        """The layer as a network, in fp32, which is fed by `Query.embed` and asked for states alone."""
        heads, kv_heads, theta = self.shape
        config = {"model_type": "llama", "vocab_size": 1, "hidden_size": self.width, "num_hidden_layers": 1,
                  "num_attention_heads": heads, "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-5, "rope_theta": theta,
                  "intermediate_size": len(self.layer["mlp.up_proj.weight"]), "max_position_embeddings": 1 << 16,
                  "hidden_act": "silu", "tie_word_embeddings": True}
        outside = {"model.embed_tokens.weight": torch.zeros(1, self.width), "model.norm.weight": torch.ones(self.width)}
        own = {f"model.layers.0.{name}": t.detach() for name, t in self.layer.items()}
        return Transformer.build(config, {**own, **outside}, dtype="float32")


def layer_shapes(width: int, heads: int, kv_heads: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Of each tensor of the layer."""
    kv = width // heads * kv_heads
    return {"self_attn.q_proj.weight": (width, width), "self_attn.k_proj.weight": (kv, width),
            "self_attn.v_proj.weight": (kv, width), "self_attn.o_proj.weight": (width, width),
            "mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width),
            "mlp.down_proj.weight": (width, inner), "input_layernorm.weight": (width,),
            "post_attention_layernorm.weight": (width,)}


def examples(vocab: Vocab, width: int, draft_width: int) -> tuple[Eagle, ...]:
    """A random one for tests."""
    g, heads = torch.Generator().manual_seed(6), 2 if width < 32 else width // 16
    layer = {name: torch.randn(shape, generator=g) * 0.7 / width ** 0.5 if len(shape) == 2 else torch.ones(shape)
             for name, shape in layer_shapes(width, heads, heads, 2 * width).items()}
    return (Eagle(torch.randn(width, 2 * width, generator=g) / width ** 0.5, layer, (heads, heads, 1e4), vocab, (0.5, 0.2)),)


def save(path: str | Path, eagle: Eagle, about: Mapping[str, Any]) -> None:
    """Write eagle.safetensors and config.json into the directory `path`; about: what else the config says."""
    heads, kv_heads, theta = eagle.shape
    tensors = {"fuse.weight": eagle.fuse_H2, **{f"layer.{name}": t for name, t in eagle.layer.items()}}
    artefact.save(path, KIND, {name: t.float() for name, t in tensors.items()}, {
        **about, "width": eagle.width, "heads": heads, "kv_heads": kv_heads, "theta": theta,
        "inner": len(eagle.layer["mlp.up_proj.weight"]), "vocab_size": eagle.vocab.size, "tokenizer": eagle.vocab.tokenizer,
        "rates": list(eagle.rates)})


def load(path: str | Path) -> Eagle:
    """The drafter in a directory that `save` wrote. Raises ValueError where there is none, or it is damaged."""
    path = Path(path).expanduser()
    config, t = artefact.read(path, KIND)
    with artefact.damaged(path, KIND):
        c = edge.check(EagleFields, config, artefact.CONFIG)
        if c.width % (2 * c.heads) or c.heads % c.kv_heads:
            raise ValueError(f"heads is {c.heads}, kv_heads {c.kv_heads}: they must divide the width {c.width}")
        layer = {name: artefact.tensor(t, KIND, f"layer.{name}", shape).float()
                 for name, shape in layer_shapes(c.width, c.heads, c.kv_heads, c.inner).items()}
        fuse = artefact.tensor(t, KIND, "fuse.weight", (c.width, 2 * c.width)).float()
        return Eagle(fuse, layer, (c.heads, c.kv_heads, c.theta), Vocab(c.vocab_size, frozenset(), c.tokenizer), tuple(c.rates))
