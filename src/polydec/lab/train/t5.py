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
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class TrainableT5Attention(nn.Module):
    """placed: whether it has the table of relative positions, which all layers of a tower share."""

    def __init__(self, c: Seq2SeqConfig, placed: bool) -> None:
        super().__init__()
        self.heads, inner = c.heads, c.heads * c.head
        self.q, self.k, self.v = (nn.Linear(c.width, inner, bias=False) for _ in "qkv")
        self.o = nn.Linear(inner, c.width, bias=False)
        for layer, over in ((self.q, c.width * c.head), (self.k, c.width), (self.v, c.width)):
            nn.init.normal_(layer.weight, std=over**-0.5)
        nn.init.normal_(self.o.weight, std=inner**-0.5)
        if placed:
            self.relative_attention_bias = nn.Embedding(c.buckets, c.heads)
            nn.init.normal_(self.relative_attention_bias.weight, std=c.width**-0.5)

    def forward(self, x_BTW: Tensor, read_BSW: Tensor, seen: Tensor) -> Tensor:
        """seen: what is added to scores, of a shape that fits [B, heads, T, S]."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.q, x_BTW), (self.k, read_BSW), (self.v, read_BSW))
        )
        mixed = scaled_dot_product_attention(q, k, v, seen.to(q.dtype), scale=1.0)
        return self.o(mixed.transpose(1, 2).flatten(2))


class T5FeedForward(nn.Module):
    def __init__(self, c: Seq2SeqConfig, inner: int) -> None:
        super().__init__()
        self.wi = nn.Linear(c.width, inner, bias=False)
        self.wo = nn.Linear(inner, c.width, bias=False)
        nn.init.normal_(self.wi.weight, std=c.width**-0.5)
        nn.init.normal_(self.wo.weight, std=inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(relu(self.wi(x)))


class TrainableT5Sublayer(nn.Module):
    """A residual step: what it does, under its published name, and the norm before it."""

    def __init__(self, c: Seq2SeqConfig, name: str, does: nn.Module) -> None:
        super().__init__()
        self.add_module(name, does)
        self.layer_norm = RMSNorm(c.width, c.eps)
        self.name = name

    @property
    def does(self) -> Any:
        return self.get_submodule(self.name)


class TrainableT5Block(nn.Module):
    def __init__(self, c: Seq2SeqConfig, inner: int, decoder: bool, placed: bool) -> None:
        super().__init__()
        parts = [TrainableT5Sublayer(c, "SelfAttention", TrainableT5Attention(c, placed))]
        if decoder:
            parts.append(TrainableT5Sublayer(c, "EncDecAttention", TrainableT5Attention(c, False)))
        self.layer = nn.ModuleList(
            [*parts, TrainableT5Sublayer(c, "DenseReluDense", T5FeedForward(c, inner))]
        )

    def forward(self, x: Tensor, seen: Tensor, read: Tensor | None, there: Tensor | None) -> Tensor:
        own, *cross, mlp = cast(Sequence[Any], self.layer)
        h = own.layer_norm(x)
        x = x + own.does(h, h, seen)
        for part in cross:
            x = x + part.does(part.layer_norm(x), read, there)
        return x + mlp.does(mlp.layer_norm(x))


class TrainableT5Tower(nn.Module):
    """An encoder or a decoder. both: whether a position sees later ones."""

    def __init__(self, c: Seq2SeqConfig, inner: int, decoder: bool, both: bool) -> None:
        super().__init__()
        self.config = c
        self.both = both
        count = c.layers if decoder else c.first
        self.block = nn.ModuleList(
            [TrainableT5Block(c, inner, decoder, i == 0) for i in range(count)]
        )
        self.final_layer_norm = RMSNorm(c.width, c.eps)

    def apart(self, length: int) -> Tensor:
        """What is added to scores: [heads, length, length]."""
        at = torch.arange(length)
        first: Any = self.block[0]
        table = first.layer[0].does.relative_attention_bias
        bias = table(relative_position_buckets(at, at, self.both, self.config)).permute(2, 0, 1)
        if self.both:
            return bias
        return bias + _hidden(at[None, :] <= at[:, None])

    def forward(
        self,
        x_BTW: Tensor,
        here_BT: Tensor,
        read: Tensor | None = None,
        there: Tensor | None = None,
    ) -> Tensor:
        """here_BT: which positions hold a token; read, there: states of the source, and which of them do."""
        seen = self.apart(x_BTW.shape[1]) + _hidden(here_BT)[:, None, None]
        if there is None:
            beside = None
        else:
            beside = _hidden(there)[:, None, None]
        for block in self.block:
            x_BTW = block(x_BTW, seen, read, beside)
        return self.final_layer_norm(x_BTW)


def _hidden(seen: Tensor) -> Tensor:
    """0 where something is seen, and so little elsewhere that nothing is left of it."""
    return torch.where(seen, 0.0, -1e9)


class TrainableT5(nn.Module):
    """both: whether a position of the decoder sees later ones; rows: of the table of embeddings beyond the vocabulary's, for
    marks that are read and never written."""

    def __init__(
        self, config: Seq2SeqConfig, inner: int, seed: int, *, both: bool = False, rows: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.shared = nn.Embedding(config.vocab + rows, config.width)
            self.encoder = TrainableT5Tower(config, inner, False, True)
            self.decoder = TrainableT5Tower(config, inner, True, both)

    @property
    def deep(self) -> list[nn.Parameter]:
        """The matrices inside layers."""
        towers = (self.encoder, self.decoder)
        named = (pair for tower in towers for pair in tower.named_parameters())
        return [p for n, p in named if p.ndim == 2 and "relative" not in n]

    def encode(self, source_BS: Tensor, there_BS: Tensor) -> Tensor:
        return self.encoder(self.shared(source_BS), there_BS)

    def forward(
        self, source_BS: Tensor, there_BS: Tensor, text_BT: Tensor, here_BT: Tensor
    ) -> Tensor:
        """The decoder's states [B, T, width], ready for the head."""
        read = self.encode(source_BS, there_BS)
        return self.decoder(self.shared(text_BT), here_BT, read, there_BS)

    def logits(self, states_NW: Tensor) -> Tensor:
        table = self.shared.weight[: self.config.vocab]
        return states_NW @ table.to(states_NW.dtype).T * self.config.width**-0.5


def pad_id_rows(rows: Sequence[Sequence[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ids side by side, the short ones filled up, and which positions hold a token: [B, T] both."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
    here = torch.arange(longest)[None] < torch.tensor([len(row) for row in rows])[:, None]
    return ids, here


def published_t5_tensors(network: TrainableT5) -> Mapping[str, Tensor]:
    """What a published file holds."""
    return {k: v.detach().float().contiguous() for k, v in network.state_dict().items()}
