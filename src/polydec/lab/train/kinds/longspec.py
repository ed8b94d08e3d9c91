"""What is trained of LongSpec: its layer over short pieces of text, moved to where long texts go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.network import LlamaAttention, LlamaDecoderLayer, apply_rotary_embedding
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.state_layer import initialise_tensors, swiglu_mlp
from polydec.lab.train.students import UNROLLED, DrafterKind, DrafterStudent, Rates, TeacherContext
from polydec.methods.speculative.drafters.longspec import LongSpecDrafter
from polydec.models.learned.kinds import longspec
from polydec.models.learned.kinds.longspec import LongSpec, LongSpecSizes
from polydec.models.learned.state_layer import EPS, StateLayer, rms_normalised

WINDOW = 512
"""Tokens that attention of its own sees, as published; of a short context a sixteenth of it."""
LONG = 1200
"""Tokens of a piece from which on all places stay as they are, as published; of a short context an
eighth of it."""
ANCHORS = 4
"""A piece keeps the places of fewer first tokens than this: how many is drawn."""


LIKE = {
    "cross_attn.q_proj.weight": "self_attn.q_proj",
    "cross_attn.o_proj.weight": "self_attn.o_proj",
    "cross_layernorm.weight": "input_layernorm",
    "post_attention_layernorm.weight": "post_attention_layernorm",
    **{f"mlp.{name}_proj.weight": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
"""What begins as a part of the target's last layer."""


def depth_before(layers: int) -> tuple[int, ...]:
    """After which layer the states are read: the last layer's keys and values are made of them.

    Raises:
        RequestError: The target has one layer only.
    """
    if layers < 2:
        raise RequestError(
            f"target has {layers} layers: LongSpec is trained on the states before the last of at least 2"
        )
    return (layers - 1,)


class LongSpecStudent(DrafterStudent):
    """A LongSpec drafter: attention over a short window of its own, then to the target's keys.

    Level k is a token that is k + 1 places further than the last of the target's keys that it sees.
    Weights begin as those of the target's last layer where that has the same part: the queries of
    the target's keys, and the MLP.
    """

    def __init__(self, shown: TeacherContext) -> None:
        s = shown.target.s
        self._sizes = LongSpecSizes(s.width, s.heads, s.kv_heads, s.head, s.inner, s.theta)
        made = initialise_tensors(self._sizes.shapes, torch.Generator().manual_seed(shown.seed))
        super().__init__(shown, list(made.values()), None, self._make)
        trunk = shown.target.state_dict()
        # Parts that the target's last layer has too begin as these.
        for name, like in LIKE.items():
            made[name].data.copy_(trunk[f"model.layers.{s.layers - 1}.{like}.weight"])
        # A draft to begin with replaces all that was taken from the target.
        for name, tensor in (shown.begin or {}).items():
            if made[name].shape != tensor.shape:
                raise RequestError(
                    f"start has {name} of shape {tuple(tensor.shape)}: this target asks for {tuple(made[name].shape)}"
                )
            made[name].data.copy_(tensor)
        self._names = list(made)
        self._draw = torch.Generator()
        self._window = min(WINDOW, max(1, s.context // 16))

    def _make(
        self,
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> LongSpec:
        return LongSpec(
            dict(zip(self._names, t, strict=True)), self._sizes, self._window, vocab, rates, share
        )

    def set_step(self, step: int, steps: int) -> None:
        """Seed the draws of the places of this step.

        Args:
            step: Step of the training, from 0.
            steps: Steps of the training; not used.
        """
        self._draw = generator_for(self.shown.seed, step, "places")

    def forward(
        self, entry_BTW: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Guess the states of all levels.

        Args:
            entry_BTW: The target's states before its last layer, shape ``[B, T, W]``.
            window_BMW: Token ids up to the one after each position, shape ``[B, M, W]``, M at least
                T and the levels.
            every: Levels after the first are guessed after every so many positions only. Default 1.

        Yields:
            For each level the guessed states, shape ``[B, N, W]``, their logits, and the N
            positions after which they were guessed.
        """
        (B, T, _), levels, w = (
            entry_BTW.shape,
            self.shown.levels,
            dict(zip(self._names, self.tensors, strict=True)),
        )
        # The tokens of the piece in order: the first position's own, then the one after each
        # position.
        token_BP = torch.cat([window_BMW[:, :1, -2], window_BMW[..., -1]], 1)
        place_BP = self._places(B, T + levels + 1)
        memory = self._memory(entry_BTW, place_BP[:, :T])
        # Attention of its own goes over true tokens, so all levels share one pass of it.
        x_BPW = self._windowed(w, token_BP[:, : T + levels + 1], place_BP)
        for k in range(levels):
            # The first level is trained after all positions.
            at_T = torch.arange(0, T, every if k else 1)
            # A token k + 1 places on sees the target's keys up to the position only.
            made = self._behind(w, x_BPW[:, at_T + k + 1], place_BP[:, at_T + k + 1], memory, at_T)
            yield made, self.shown.state_logits(made), at_T

    def _places(self, count: int, size: int) -> Tensor:
        """The positions of pieces of `size` tokens [B, P].

        In training the first few keep theirs, and all others are moved to anywhere in the target's
        context (anchor offset). Long pieces stay where they are: they are a stage of its own, which
        begins with what short ones made (`start`).
        """
        place_BP = torch.arange(size).expand(count, size)
        if not torch.is_grad_enabled() or size > min(LONG, self.shown.target.s.context // 8):
            return place_BP
        anchors_B1 = torch.randint(ANCHORS, (count, 1), generator=self._draw)
        most = max(0, self.shown.target.s.context - size)
        return place_BP + (place_BP >= anchors_B1) * torch.randint(
            most + 1, (count, 1), generator=self._draw
        )

    def _memory(self, entry_BTW: Tensor, place_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the target's last layer, [B, kv heads, T, head]."""
        layer = self.shown.target.model.layers[-1]
        assert isinstance(layer, LlamaDecoderLayer) and isinstance(layer.self_attn, LlamaAttention)
        # The target's own norm and projections make the keys that a session would have cached.
        n = layer.input_layernorm(entry_BTW.float())
        keys, values = (
            self._heads(n, proj.weight) for proj in (layer.self_attn.k_proj, layer.self_attn.v_proj)
        )
        return self._turned(keys, place_BT), values

    def _windowed(self, w: dict[str, Tensor], token_BP: Tensor, place_BP: Tensor) -> Tensor:
        """The stream of tokens behind attention of its own, [B, P, W]."""
        # Embeddings enter with a root mean square of 1.
        x = rms_normalised(self.shown.embed_tokens(token_BP))
        P = token_BP.shape[1]
        n = F.rms_norm(x, x.shape[-1:], w["input_layernorm.weight"], EPS)
        q, k, v = (self._heads(n, w[f"self_attn.{name}_proj.weight"]) for name in "qkv")
        # Each token sees itself and the last ones before it, WINDOW in all.
        sees_PP = torch.ones(P, P, dtype=torch.bool).tril().triu(1 - self._window)
        y = self._attended(self._turned(q, place_BP), self._turned(k, place_BP), v, sees_PP)
        return x + F.linear(y, w["self_attn.o_proj.weight"])

    def _behind(
        self,
        w: dict[str, Tensor],
        x_BNW: Tensor,
        place_BN: Tensor,
        memory: tuple[Tensor, Tensor],
        at_N: Tensor,
    ) -> Tensor:
        """What leaves the layer for tokens that see the target's keys up to these positions."""
        n = F.rms_norm(x_BNW, x_BNW.shape[-1:], w["cross_layernorm.weight"], EPS)
        sees_NT = torch.arange(memory[0].shape[2])[None] <= at_N[:, None]
        y = self._attended(
            self._turned(self._heads(n, w["cross_attn.q_proj.weight"]), place_BN), *memory, sees_NT
        )
        x = x_BNW + F.linear(y, w["cross_attn.o_proj.weight"])
        return x + swiglu_mlp(
            w, F.rms_norm(x, x.shape[-1:], w["post_attention_layernorm.weight"], EPS)
        )

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
        """[B, N, heads x head]."""
        # The target's key heads serve several query heads.
        k, v = (t.repeat_interleave(self._sizes.heads // self._sizes.kv_heads, 1) for t in (k, v))
        return (
            F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), sees)
            .transpose(1, 2)
            .flatten(2)
        )

    def _heads(self, n_BNW: Tensor, weight: Tensor) -> Tensor:
        """[B, heads, N, head]."""
        return F.linear(n_BNW, weight).unflatten(-1, (-1, self._sizes.head)).transpose(1, 2)

    def _turned(self, t: Tensor, place_BN: Tensor) -> Tensor:
        """Turn queries or keys by the target's rotary embedding."""
        trunk = self.shown.target.model
        return apply_rotary_embedding(t, trunk.cos[place_BN][:, None], trunk.sin[place_BN][:, None])


def longspec_start_tensors(name: str) -> Mapping[str, Tensor]:
    """The tensors of a LongSpec drafter in a directory. Raises FileError where there is none."""
    return longspec.load(name).tensors


def make_longspec(shown: TeacherContext) -> DrafterStudent:
    """A LongSpec student over the states of the target."""
    return LongSpecStudent(shown)


KINDS = {
    "longspec": DrafterKind(
        make_longspec,
        LongSpecDrafter,
        longspec.save,
        4,
        depths=depth_before,
        takes=UNROLLED | {"start"},
        begins=longspec_start_tensors,
    ),
}
