"""Tiny insertion models that are known exactly: what perfect training would make of a law over a
few texts, and an autoregressive law that only ever puts a token last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from polydec.core.effects import ForwardQuery
from polydec.core.insertion_law import InsertionScores
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.enumerate import Law

Asked = tuple[tuple[int, ...], tuple[int, ...], int]
"""Of a query the text without its end, the slots, and the tokens of the prompt."""


class PosteriorNetwork:
    """What the training's loss is least for, of a law over texts.

    Of a text of L tokens a number of tokens is hidden, uniform in 0 to L, and any of them; each one
    hidden is as likely to be the next as any other. A network of a `ToyInserter`; `fed` counts
    positions.

    Args:
        law: Probabilities of texts, without an end.
        size: Tokens of the vocabulary, EOS not counted.
        even: Whether a text counts L + 1 times, as in `polydec train insertion`. Default True.
    """

    def __init__(self, law: Law, size: int, *, even: bool = True) -> None:
        self.size = size
        self.cost = 1.0
        self.fed = 0
        self._weight = defaultdict[tuple[int, ...], dict[tuple[int, int], float]](
            lambda: defaultdict(float)
        )
        self._whole = defaultdict[tuple[int, ...], float](float)
        self._total = defaultdict[tuple[int, ...], float](float)
        for text, p in law.items():
            L = len(text)
            # Every subset of k hidden tokens is as likely as any other of its size.
            for k in range(L + 1):
                every = list(combinations(range(L), k))
                for hidden in every:
                    self._add(text, hidden, p * (1.0 if even else 1 / (L + 1)) / len(every))

    def _add(self, text: tuple[int, ...], hidden: tuple[int, ...], w: float) -> None:
        kept = tuple(x for i, x in enumerate(text) if i not in hidden)
        self._total[kept] += w
        self._whole[kept] += w * (not hidden)
        for i in hidden:
            # The slot of a hidden token is how many tokens before it still stand.
            slot = sum(j not in hidden for j in range(i))
            self._weight[kept][slot, text[i]] += w / len(hidden)

    def forward(self, queries: Sequence[Asked]) -> list[InsertionScores]:
        """Say what is missing in texts, and where: behind the prompt's last token (slot 0) or
        behind one of the answer's.

        Args:
            queries: Of each the text without its end, the slots, and the tokens of the prompt.

        Returns:
            For each query log-weights by slot and token, and the probability that nothing is
            missing.
        """
        self.fed += sum(len(text) + 1 for text, _, _ in queries)
        return [
            self._offer(text[prompt:], [s + 1 - prompt for s in slots])
            for text, slots, prompt in queries
        ]

    def _offer(self, kept: tuple[int, ...], slots: Sequence[int]) -> InsertionScores:
        weight_SV = torch.zeros(len(slots), self.size + 1, dtype=torch.float64)
        for (slot, token), w in self._weight[kept].items():
            weight_SV[slots.index(slot), token] = w
        return InsertionScores(weight_SV.log(), self._whole[kept] / self._total[kept])


class LastSlotNetwork:
    """An autoregressive law as an insertion model.

    p(EOS) says that nothing is missing, the rest is put behind the last token.

    Args:
        step_VV: Probabilities of a token by the one before it, shape ``[size + 1, size + 1]``, the
            last column EOS.
    """

    def __init__(self, step_VV: Tensor) -> None:
        self.step_VV = step_VV
        self.size = step_VV.shape[1] - 1
        self.cost = 1.0
        self.fed = 0
        self.calls = 0

    def forward(self, queries: Sequence[Asked]) -> list[InsertionScores]:
        self.calls += 1
        self.fed += sum(len(text) + 1 for text, _, _ in queries)
        out = list[InsertionScores]()
        for text, slots, _ in queries:
            logw_SV = torch.full((len(slots), self.size + 1), float("-inf"), dtype=torch.float64)
            # All slots but the last are closed; the end is the answer to whether anything is
            # missing.
            logw_SV[-1, :-1] = self.step_VV[text[-1], :-1].log()
            out.append(InsertionScores(logw_SV, float(self.step_VV[text[-1], -1])))
        return out

    def text_law(self, before: int, length: int) -> Law:
        """Compute the law of texts behind a token.

        Args:
            before: The token before the text.
            length: The most tokens of a text, EOS included; a longer one is cut.

        Returns:
            The probability of each text.
        """
        law: Law = {}
        for n in range(length + 1):
            for text in product(range(self.size), repeat=n):
                p = 1.0
                at = before
                for x in text:
                    p = p * float(self.step_VV[at, x])
                    at = x
                if n == length:
                    law[text] = p
                else:
                    law[*text, self.size] = p * float(self.step_VV[at, self.size])
        return law


class ExactNetwork(Protocol):
    """A network that is known exactly."""

    size: int
    cost: float

    def forward(self, queries: Sequence[Asked]) -> list[InsertionScores]: ...


@dataclass(frozen=True)
class ToyInserter:
    """An Inserter over a `PosteriorNetwork` or a `LastSlotNetwork`. EOS is the id behind their
    tokens.

    Attributes:
        network: The network.
        prompt: Tokens of the prompt. Default 1.
        context: Tokens that a prompt and its answer may take together. Default 64.
    """

    network: ExactNetwork
    prompt: int = 1
    context: int = 64
    family: ClassVar[str] = "insertion"
    layers: ClassVar[int] = 0

    @property
    def vocab(self) -> TokenVocabulary:
        return TokenVocabulary(self.network.size + 1, frozenset({self.network.size}))

    def open_slate(self, length: int) -> ToySlate:
        slate = ToySlate(self)
        _OPEN.add(id(slate))
        return slate


_OPEN: set[int] = set()


def left_open() -> int:
    """Slates that were opened and not closed, since this was last asked."""
    count = len(_OPEN)
    _OPEN.clear()
    return count


class ToySlate:
    """Remembers nothing but how long the text was."""

    def __init__(self, model: ToyInserter) -> None:
        self._model = model
        self._length = 0

    async def score_slots(self, text: Sequence[int], slots: Sequence[int]) -> InsertionScores:
        """Score what is missing in a text, after a check of what is asked.

        Args:
            text: Token ids of the text as it stands; it may have grown since the last call.
            slots: Positions behind whose tokens something may be inserted, ascending, at least one.

        Returns:
            Log-weights for each slot and token, and the probability that nothing is missing.

        Raises:
            AssertionError: The text became shorter, or slots break the protocol of an insertion
                session.
        """
        assert len(text) >= self._length, "the text became shorter"
        assert slots and list(slots) == sorted({*slots}), "slots ascend"
        assert self._model.prompt - 1 <= slots[0] and slots[-1] < len(text), (
            "a slot lies outside the answer"
        )
        self._length = len(text)
        end = self._model.network.size
        # The end may stand already; the network sees the text without it.
        kept = tuple(text[:-1] if text[-1] == end else text)
        return await ForwardQuery(
            self._model.network, (kept, tuple(slots), self._model.prompt), len(text) + 1
        )

    def close(self) -> None:
        _OPEN.discard(id(self))
