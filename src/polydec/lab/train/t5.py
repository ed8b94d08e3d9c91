"""A T5 network that can be trained, with the names of its published tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from polydec.models.formats.seq2seq import Seq2SeqConfig
from polydec.models.nets.seq2seq import relative_position_buckets


class RMSNorm(nn.Module):
    """T5's norm: root mean square, in float32, with a weight for each dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The normed rows, float32."""
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class TrainableT5Attention(nn.Module):
    """Attention of T5.

    `placed` says whether it has the table of relative positions, which all layers of a tower share.
    """

    def __init__(self, c: Seq2SeqConfig, placed: bool) -> None:
        super().__init__()
        self.heads, inner = c.heads, c.heads * c.head
        self.q, self.k, self.v = (nn.Linear(c.width, inner, bias=False) for _ in "qkv")
        self.o = nn.Linear(inner, c.width, bias=False)
        # Queries begin smaller by the root of the head size, as scores are not scaled.
        for layer, over in ((self.q, c.width * c.head), (self.k, c.width), (self.v, c.width)):
            nn.init.normal_(layer.weight, std=over**-0.5)
        nn.init.normal_(self.o.weight, std=inner**-0.5)
        if placed:
            self.relative_attention_bias = nn.Embedding(c.buckets, c.heads)
            nn.init.normal_(self.relative_attention_bias.weight, std=c.width**-0.5)

    def forward(self, x_BTW: Tensor, read_BSW: Tensor, seen: Tensor) -> Tensor:
        """Attend to other rows, or to the same.

        Args:
            x_BTW: Normed states that ask, shape ``[B, T, W]``.
            read_BSW: States that are read, shape ``[B, S, W]``.
            seen: What is added to the scores, a shape that broadcasts to ``[B, heads, T, S]``.

        Returns:
            What attention adds, shape ``[B, T, W]``.
        """
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.q, x_BTW), (self.k, read_BSW), (self.v, read_BSW))
        )
        # T5 does not scale scores by the root of the head size.
        mixed = scaled_dot_product_attention(q, k, v, seen.to(q.dtype), scale=1.0)
        return self.o(mixed.transpose(1, 2).flatten(2))


class T5FeedForward(nn.Module):
    """The MLP of T5 with relu."""

    def __init__(self, c: Seq2SeqConfig, inner: int) -> None:
        super().__init__()
        self.wi = nn.Linear(c.width, inner, bias=False)
        self.wo = nn.Linear(inner, c.width, bias=False)
        # Each matrix begins at one over the root of its inputs.
        nn.init.normal_(self.wi.weight, std=c.width**-0.5)
        nn.init.normal_(self.wo.weight, std=inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """What the MLP adds to the stream."""
        return self.wo(relu(self.wi(x)))


class TrainableT5Sublayer(nn.Module):
    """A residual step: a module under its published name, and the norm before it."""

    def __init__(self, c: Seq2SeqConfig, name: str, does: nn.Module) -> None:
        super().__init__()
        # The module's name is that of its published tensors.
        self.add_module(name, does)
        self.layer_norm = RMSNorm(c.width, c.eps)
        self.name = name

    @property
    def does(self) -> Any:
        """The module of the step."""
        return self.get_submodule(self.name)


class TrainableT5Block(nn.Module):
    """One layer: self-attention, in a decoder attention to the source, and an MLP."""

    def __init__(self, c: Seq2SeqConfig, inner: int, decoder: bool, placed: bool) -> None:
        super().__init__()
        parts = [TrainableT5Sublayer(c, "SelfAttention", TrainableT5Attention(c, placed))]
        if decoder:
            parts.append(TrainableT5Sublayer(c, "EncDecAttention", TrainableT5Attention(c, False)))
        self.layer = nn.ModuleList(
            [*parts, TrainableT5Sublayer(c, "DenseReluDense", T5FeedForward(c, inner))]
        )

    def forward(self, x: Tensor, seen: Tensor, read: Tensor | None, there: Tensor | None) -> Tensor:
        """Run the layer.

        Args:
            x: States, shape ``[B, T, W]``.
            seen: Added to the scores of self-attention.
            read: States of the source, shape ``[B, S, W]``; None in an encoder.
            there: Added to the scores of attention to the source; None in an encoder.

        Returns:
            States, shape ``[B, T, W]``.
        """
        # A decoder's block reads the source between its own attention and the MLP.
        own, *cross, mlp = cast(Sequence[Any], self.layer)
        h = own.layer_norm(x)
        x = x + own.does(h, h, seen)
        for part in cross:
            x = x + part.does(part.layer_norm(x), read, there)
        return x + mlp.does(mlp.layer_norm(x))


class TrainableT5Tower(nn.Module):
    """An encoder or a decoder. `both` says whether a position sees later ones."""

    def __init__(self, c: Seq2SeqConfig, inner: int, decoder: bool, both: bool) -> None:
        super().__init__()
        self.config = c
        self.both = both
        count = c.layers if decoder else c.first
        # Only the first layer has a table of relative positions; the others use its bias.
        self.block = nn.ModuleList(
            [TrainableT5Block(c, inner, decoder, i == 0) for i in range(count)]
        )
        self.final_layer_norm = RMSNorm(c.width, c.eps)

    def position_scores(self, length: int) -> Tensor:
        """What relative positions, and causality, add to scores, shape ``[heads, length, length]``."""
        at = torch.arange(length)
        first: Any = self.block[0]
        table = first.layer[0].does.relative_attention_bias
        # Buckets of distances become one number for each head.
        bias = table(relative_position_buckets(at, at, self.both, self.config)).permute(2, 0, 1)
        if self.both:
            return bias
        # A causal decoder sees itself and what stands before.
        return bias + _hidden(at[None, :] <= at[:, None])

    def forward(
        self,
        x_BTW: Tensor,
        here_BT: Tensor,
        read: Tensor | None = None,
        there: Tensor | None = None,
    ) -> Tensor:
        """Run all layers and the final norm.

        Args:
            x_BTW: Input vectors, shape ``[B, T, W]``.
            here_BT: Which positions hold a token, shape ``[B, T]``.
            read: States of the source, shape ``[B, S, W]``; None: an encoder.
            there: Which positions of the source hold a token, shape ``[B, S]``; None: an encoder.

        Returns:
            States, shape ``[B, T, W]``.
        """
        # [B, heads, T, T]: distances, causality and padding in one sum.
        seen = self.position_scores(x_BTW.shape[1]) + _hidden(here_BT)[:, None, None]
        if there is None:
            beside = None
        else:
            beside = _hidden(there)[:, None, None]
        for block in self.block:
            x_BTW = block(x_BTW, seen, read, beside)
        return self.final_layer_norm(x_BTW)


def _hidden(seen: Tensor) -> Tensor:
    """What is added to scores: 0 where something is seen, -1e9 elsewhere."""
    return torch.where(seen, 0.0, -1e9)


class TrainableT5(nn.Module):
    """A T5 network with a tied head.

    `both` says whether a position of the decoder sees later ones. `rows` are rows of the embedding
    table beyond the vocabulary's, for marks that are read and never written.
    """

    def __init__(
        self, config: Seq2SeqConfig, inner: int, seed: int, *, both: bool = False, rows: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            # One table serves encoder, decoder and head.
            self.shared = nn.Embedding(config.vocab + rows, config.width)
            self.encoder = TrainableT5Tower(config, inner, False, True)
            self.decoder = TrainableT5Tower(config, inner, True, both)

    @property
    def deep(self) -> list[nn.Parameter]:
        """The matrices inside layers, for the optimiser of matrices."""
        towers = (self.encoder, self.decoder)
        named = (pair for tower in towers for pair in tower.named_parameters())
        # The table of distances is an embedding, not a matrix of a layer.
        return [p for n, p in named if p.ndim == 2 and "relative" not in n]

    def encode_source(self, source_BS: Tensor, there_BS: Tensor) -> Tensor:
        """The encoder's states of sources.

        Args:
            source_BS: Token ids, shape ``[B, S]``.
            there_BS: Which positions hold a token, shape ``[B, S]``.

        Returns:
            Shape ``[B, S, W]``.
        """
        return self.encoder(self.shared(source_BS), there_BS)

    def forward(
        self, source_BS: Tensor, there_BS: Tensor, text_BT: Tensor, here_BT: Tensor
    ) -> Tensor:
        """The decoder's states, ready for the head.

        Args:
            source_BS: Token ids of the sources, shape ``[B, S]``.
            there_BS: Which positions of the sources hold a token, shape ``[B, S]``.
            text_BT: Token ids that the decoder reads, shape ``[B, T]``.
            here_BT: Which positions of the texts hold a token, shape ``[B, T]``.

        Returns:
            Shape ``[B, T, W]``.
        """
        read = self.encode_source(source_BS, there_BS)
        return self.decoder(self.shared(text_BT), here_BT, read, there_BS)

    def token_logits(self, states_NW: Tensor) -> Tensor:
        """Logits of states over the vocabulary, without the rows of marks."""
        table = self.shared.weight[: self.config.vocab]
        # A tied T5 head is scaled by the root of the width.
        return states_NW @ table.to(states_NW.dtype).T * self.config.width**-0.5


def pad_id_rows(rows: Sequence[Sequence[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Put rows of ids side by side, the short ones filled up at the end.

    Args:
        rows: Token ids, B rows.
        fill: Id of the padding. Default 0.

    Returns:
        Ids, and which positions hold a token, both of shape ``[B, T]``.
    """
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
    here = torch.arange(longest)[None] < torch.tensor([len(row) for row in rows])[:, None]
    return ids, here


def published_t5_tensors(network: TrainableT5) -> Mapping[str, Tensor]:
    """The tensors of a network as a published file holds them: float32, by their names."""
    return {k: v.detach().float().contiguous() for k, v in network.state_dict().items()}
