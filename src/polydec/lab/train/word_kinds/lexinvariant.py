"""Lexinvariant: every text has its own random embeddings, so a byte gets its meaning from use.

Source: Huang et al., Lexinvariant language models, 2023. The marks BEGIN and END keep rows of their
own; the network's size is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.lab.train.data import SPECIAL
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.tokens import mark_id
from polydec.lab.train.word_kinds import plain_bytes
from polydec.lab.train.word_kinds.positions import by_position
from polydec.lab.train.word_kinds.protocols import WordModelKind

AVERAGED = (1, 4, 16)
"""Tables whose laws are averaged."""


class LexinvariantLlama(nn.Module):
    """A Llama whose embedding table, tied to its head, is drawn anew for each text.

    Rows are drawn from N(0, 1 / width). `fixed` are the tokens whose rows are learned. With `kept`
    above 0 that share of the other rows, drawn for each text too, is learned as well (the partial
    form): then the law is that of the learned table, and drawn rows only regularise it.
    """

    def __init__(
        self, network: TrainableLlama, fixed: Sequence[int], seed: int, kept: float = 0.0
    ) -> None:
        super().__init__()
        self.network = network
        self.fixed = sorted(fixed)
        self.seed = seed
        self.kept = kept

    def draw_tables(self, count: int, seed: int) -> Tensor:
        """Draw tables, always the same ones for a seed.

        Args:
            count: Number of tables, B.
            seed: Seed of the draws.

        Returns:
            Shape ``[B, V, H]``; rows of `fixed` tokens are the learned ones, and with `kept` so are
            others.
        """
        own_VH = self.network.model.embed_tokens.weight
        generator = torch.Generator().manual_seed(seed)
        # Rows have a length of about 1.
        drawn = torch.randn(count, *own_VH.shape, generator=generator) * own_VH.shape[1] ** -0.5
        keep_BV1 = torch.zeros(count, len(own_VH), 1, dtype=torch.bool)
        # Without a share the draws are those of runs before there was one.
        if self.kept:
            keep_BV1 = torch.rand(keep_BV1.shape, generator=generator) < self.kept
        keep_BV1[:, self.fixed] = True
        return torch.where(keep_BV1, own_VH, drawn)

    @property
    def law_table(self) -> Tensor:
        """The table of the law, shape ``[V, H]``: that of the seed, or the learned one."""
        # Of the partial form all rows have been learned, in one text or another.
        if self.kept:
            return self.network.model.embed_tokens.weight
        return self.draw_tables(1, self.seed)[0]

    def by_tables(self, token_BT: Tensor, table_BVH: Tensor) -> Tensor:
        """Logits of rows, each by its own table.

        Args:
            token_BT: Token ids, shape ``[B, T]``.
            table_BVH: Tables, shape ``[B, V, H]``.

        Returns:
            Shape ``[B, T, V]``.
        """
        trunk = self.network.model
        T = token_BT.shape[1]
        at_BTH = token_BT[..., None].expand(-1, -1, table_BVH.shape[-1])
        # Embedding lookup in a table for each row.
        x = table_BVH.gather(1, at_BTH)
        cos_TD = trunk.cos[:T]
        sin_TD = trunk.sin[:T]
        for layer in trunk.layers:
            x = layer(x, cos_TD, sin_TD)
        # The head is the row's own table, too.
        return torch.einsum("bth,bvh->btv", trunk.norm(x), table_BVH)

    def forward(self, token_BT: Tensor) -> Tensor:
        """Logits by the one table that the directory has."""
        # One table serves all rows.
        return self.by_tables(token_BT, self.law_table.expand(len(token_BT), -1, -1))


def lexinvariant_logits(network: LexinvariantLlama, token_BT: Tensor, step: int) -> Tensor:
    """Logits by tables that are drawn for a step, one a row.

    Args:
        network: The network.
        token_BT: Token ids, shape ``[B, T]``.
        step: Step of the training.

    Returns:
        Shape ``[B, T, V]``.
    """
    # The seeds of two steps, or of two runs, do not meet.
    seed = (network.seed + 1) * 1_000_003 + step
    return network.by_tables(token_BT, network.draw_tables(len(token_BT), seed))


def build_lexinvariant_network(spec: WordsSpec, tokenizer: Tokenizer) -> LexinvariantLlama:
    """A new lexinvariant network.

    Args:
        spec: Options; the sizes.
        tokenizer: Tokenizer of bytes.

    Returns:
        The network, trainable.
    """
    fixed = [mark_id(tokenizer, mark) for mark in SPECIAL]
    return LexinvariantLlama(
        plain_bytes.build_byte_network(spec, tokenizer), fixed, spec.seed, spec.kept
    )


def save_lexinvariant_network(
    out: Path, network: LexinvariantLlama, tokenizer: Tokenizer, spec: WordsSpec
) -> None:
    """Save a Llama directory with the table of the law.

    That is one draw, or what was learned, and every method decodes it.

    Args:
        out: Directory to write.
        network: The trained network.
        tokenizer: Its tokenizer.
        spec: Options; the sizes.
    """
    made = plain_bytes.build_byte_network(spec, tokenizer)
    made.load_state_dict(network.network.state_dict())
    with torch.no_grad():
        made.model.embed_tokens.weight.copy_(network.law_table)
    plain_bytes.save_byte_network(out, made, tokenizer, spec)


@torch.no_grad()
def bits_by_tables(
    network: LexinvariantLlama, texts: Sequence[Sequence[int]], length: int
) -> dict[str, dict[str, float]]:
    """Bits a byte by the mean of the laws of several tables.

    Args:
        network: The trained network.
        texts: Token ids of held-out texts, BEGIN first; only texts longer than a row are read, at
            most 16.
        length: Tokens of a row.

    Returns:
        `bits_by_tables`: bits a byte by the number of tables; nothing where no text is long enough.
    """
    rows = [ids[: length + 1] for ids in texts if len(ids) > length][:16]
    if not rows:
        return {}
    token_BT = torch.tensor(rows)
    # Only the chance of what really follows is needed of each law.
    right_BT1 = token_BT[:, 1:, None]
    out = dict[str, float]()
    # Probabilities are added up, so that each further count goes on where the one before ended.
    chance_BT = torch.zeros(right_BT1.shape[:2])
    for n in range(max(AVERAGED)):
        table_BVH = network.draw_tables(1, n).expand(len(rows), -1, -1)
        logp_BTV = F.log_softmax(network.by_tables(token_BT[:, :-1], table_BVH), -1)
        chance_BT += logp_BTV.gather(-1, right_BT1)[..., 0].exp()
        # A mean of laws, not of their logarithms: one table that knows a byte is enough.
        if n + 1 in AVERAGED:
            out[str(n + 1)] = float(-(chance_BT / (n + 1)).log2().mean())
    return {"bits_by_tables": out}


@torch.no_grad()
def lexinvariant_figures(
    network: LexinvariantLlama, texts: Sequence[Sequence[int]], length: int
) -> Mapping[str, Any]:
    """Bits a byte by position and by how many tables are averaged, and whether renaming bytes
    changes nothing.

    Args:
        network: The trained network.
        texts: Token ids of held-out texts, BEGIN first.
        length: Tokens of a row.

    Returns:
        See `by_position` and `bits_by_tables`; `renamed_apart`: largest difference of a
        log-probability when bytes are renamed.
    """
    # Few short rows are enough: apart from rounding both laws are equal.
    rows = [ids[:64] for ids in texts if len(ids) >= 64][:4]
    out: dict[str, Any] = {
        **by_position(network, texts, length),
        **bits_by_tables(network, texts, length),
    }
    if rows:
        token_BT = torch.tensor(rows)
        table_BVH = network.draw_tables(len(rows), 7)
        size = table_BVH.shape[1]
        free = [i for i in range(size) if i not in network.fixed]
        order = torch.arange(size)
        mixed = torch.randperm(len(free), generator=torch.Generator().manual_seed(7))
        # A random renaming of all bytes; the special marks stay.
        order[free] = torch.tensor(free)[mixed]
        # The table is permuted alike, so the renamed text has the same embeddings.
        back = order.argsort()
        plain = F.log_softmax(network.by_tables(token_BT, table_BVH), -1)
        renamed = F.log_softmax(network.by_tables(order[token_BT], table_BVH[:, back]), -1)
        out["renamed_apart"] = float((renamed[..., order] - plain).abs().max())
    return out


KIND = WordModelKind(
    build_lexinvariant_network, lexinvariant_logits, save_lexinvariant_network, lexinvariant_figures
)
