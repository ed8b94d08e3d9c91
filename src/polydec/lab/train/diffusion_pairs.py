"""Rows of one's own questions and answers for a masked-diffusion model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from polydec.lab.train import pairs
from polydec.lab.train.data import END, held_out
from polydec.lab.train.pairs import TextPair
from polydec.lab.train.specs.diffusion import DiffusionSpec
from polydec.lab.train.tokens import mark_id


def read_learned_pairs(path: str) -> list[TextPair]:
    """The pairs of a file or a folder whose question is not held out.

    Raises:
        FileError: There is none, or a line is wrong.
    """
    return [p for p in pairs.read_text_pairs(Path(path)) if not held_out(p.source)]


class DiffusionPairRows:
    """Batches of pairs as the chat template writes them.

    The answer and the EOS after it fill the row. Each pair is seen once in every round.
    """

    def __init__(self, tokenizer: Tokenizer, spec: DiffusionSpec) -> None:
        assert spec.pairs is not None
        self._spec = spec
        self._end = mark_id(tokenizer, END)
        # What a causal model reads where its question is dropped.
        self._empty = pairs.empty_question(tokenizer)
        self._learned = pairs.encode_chat_pairs(
            read_learned_pairs(spec.pairs), tokenizer, spec.length
        )

    @property
    def pairs_digest(self) -> str:
        """What tells these pairs from others."""
        return self._learned.digest

    def batch_rows(self, step: int) -> tuple[Tensor, Tensor]:
        """The rows of a step, a function of the step alone.

        Returns token ids and which of them belong to the answer, both of shape ``[rows, length]``.
        """
        spec = self._spec
        dice = np.random.default_rng([spec.seed, 5, step])
        chosen = [self._round_pair(step * spec.rows + i) for i in range(spec.rows)]
        # A causal model reads an empty question; others see gaps, see `apply_prompt_dropout`.
        if spec.causal and spec.drop:
            chosen = pairs.drop_sources(chosen, spec.drop, self._empty, dice)
        # No shorter than the longest pair, so that each is seen whole and equally often.
        longest = max(len(asked) + len(answer) for asked, answer in chosen)
        length = int(dice.integers(max(spec.shortest, longest), spec.length + 1))
        # The end is repeated up to the length, as a canvas is filled.
        filled = [
            [*asked, *answer, *[self._end] * (length - len(asked) - len(answer))]
            for asked, answer in chosen
        ]
        return torch.tensor(filled), torch.tensor(
            [[at >= len(asked) for at in range(length)] for asked, _ in chosen]
        )

    def _round_pair(self, i: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pair i of an endless sequence of shuffled rounds."""
        learned = self._learned.learned
        # Each round has an order of its own.
        turn, at = divmod(i, len(learned))
        order = np.random.default_rng([self._spec.seed, 4, turn]).permutation(len(learned))
        return learned[order[at]]
