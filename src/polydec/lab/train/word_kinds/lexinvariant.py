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


class LexinvariantLlama(nn.Module):
    """A Llama whose embedding table, tied to its head, is drawn anew for each text.

    Rows are drawn from N(0, 1 / width). `fixed` are the tokens whose rows are learned.
    """

    def __init__(self, network: TrainableLlama, fixed: Sequence[int], seed: int) -> None:
        super().__init__()
        self.network = network
        self.fixed = sorted(fixed)
        self.seed = seed

    def draw_tables(self, count: int, seed: int) -> Tensor:
        """Draw tables, always the same ones for a seed.

        Args:
            count: Number of tables, B.
            seed: Seed of the draws.

        Returns:
            Shape ``[B, V, H]``; rows of `fixed` tokens are the learned ones.
        """
        own_VH = self.network.model.embed_tokens.weight
        generator = torch.Generator().manual_seed(seed)
        # Rows have a length of about 1.
        drawn = torch.randn(count, *own_VH.shape, generator=generator) * own_VH.shape[1] ** -0.5
        keep_V1 = torch.zeros(len(own_VH), 1, dtype=torch.bool)
        keep_V1[self.fixed] = True
        return torch.where(keep_V1, own_VH, drawn)

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
        return self.by_tables(
            token_BT, self.draw_tables(1, self.seed).expand(len(token_BT), -1, -1)
        )


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
    return LexinvariantLlama(plain_bytes.build_byte_network(spec, tokenizer), fixed, spec.seed)


def save_lexinvariant_network(
    out: Path, network: LexinvariantLlama, tokenizer: Tokenizer, spec: WordsSpec
) -> None:
    """Save a Llama directory with the table of the seed.

    Its law is that of one draw, which every method decodes.

    Args:
        out: Directory to write.
        network: The trained network.
        tokenizer: Its tokenizer.
        spec: Options; the sizes.
    """
    made = plain_bytes.build_byte_network(spec, tokenizer)
    made.load_state_dict(network.network.state_dict())
    with torch.no_grad():
        made.model.embed_tokens.weight.copy_(network.draw_tables(1, network.seed)[0])
    plain_bytes.save_byte_network(out, made, tokenizer, spec)


@torch.no_grad()
def lexinvariant_figures(
    network: LexinvariantLlama, texts: Sequence[Sequence[int]], length: int
) -> Mapping[str, Any]:
    """Bits a byte by position, and whether renaming bytes changes nothing.

    Args:
        network: The trained network.
        texts: Token ids of held-out texts, BEGIN first.
        length: Tokens of a row.

    Returns:
        See `by_position`; `renamed_apart`: largest difference of a log-probability when bytes are
        renamed.
    """
    # Few short rows are enough: apart from rounding both laws are equal.
    rows = [ids[:64] for ids in texts if len(ids) >= 64][:4]
    out: dict[str, Any] = {**by_position(network, texts, length)}
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
