"""Tiny laws with a cache that behaves like a real one: every law is known, and every slip of the cache shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polydec.base.errors import RequestError
from polydec.core.types import RowDetail, TokenVocabulary
from polydec.models.nets.entries import EntryCache
from polydec.models.nets.query import NetworkAnswer, NetworkQuery
from polydec.models.sessions.lm import CausalLaw

State = tuple[int, int, int, int]


TextCache = EntryCache[Any]
"""A cache whose entries hold the whole text that led to them, and what each layer wrote there."""


@dataclass(frozen=True)
class ToyWords:
    """Words of a toy: of each id one text; ids in `silent` stand for nothing."""

    of: tuple[str, ...]
    silent: frozenset[int] = frozenset()

    @property
    def pieces(self) -> tuple[bytes | None, ...]:
        return tuple(
            None if i in self.silent else piece.encode() for i, piece in enumerate(self.of)
        )

    def encode(self, text: str, special: bool = True) -> tuple[int, ...]:
        """The longest piece first, from the left."""
        out = list[int]()
        at = 0
        while at < len(text):
            fit = [
                i
                for i, piece in enumerate(self.of)
                if i not in self.silent and text.startswith(piece, at)
            ]
            if not fit:
                raise RequestError(f"no piece begins {text[at:]!r}")
            out.append(max(fit, key=lambda i: len(self.of[i])))
            at += len(self.of[out[-1]])
        return tuple(out)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.of[i] for i in ids if i not in self.silent)


def text_fraction(text: Sequence[int]) -> float:
    """A number of at least 0 and below 1 that few other texts have."""
    digest = 0
    for token in text:
        digest = (digest * 37 + token + 1) % 1024
    return digest / 1024


class OrderTwoNetwork:
    """An order-2 law: the next token depends on the last two. Float64. `cost` orders it in the scheduler.

    It has `layers` layers. A state is (token, the one before it, which layers ran, what was wrong), and each entry notes
    for every layer what it wrote there: -1 nothing, 0 what a whole pass writes, else a number that names the fault; faults
    spread to what attends to them. Depths that leave layers or halves of them out, and faulty caches, have laws of their own
    near the whole one's.

    Hidden states that it shows depend on all of the text: a fraction that stands for the text before the last two tokens is
    added to the second number. The law does not read it; who mixes up states of texts that end alike is seen by it.
    """

    layers = 3
    context = 1 << 20
    partial = True
    rollback = True
    # One layer in the middle is no group.
    grouped = True

    def __init__(
        self, seed: int, size: int = 3, sharp: float = 1.2, *, cost: float = 1.0, tree: bool = True
    ) -> None:
        g = torch.Generator().manual_seed(seed)
        self.weight = (
            torch.randn(size + 1, size + 1, size, generator=g, dtype=torch.float64) * sharp
        )
        self.other = torch.randn(97, size, generator=g, dtype=torch.float64) * sharp / 2
        self.size = size
        self.cost = cost
        self.tree = tree
        self.runs = 0  # layers times positions, so far
        self.calls = 0

    def new_cache(self) -> TextCache:
        return TextCache()

    def forward(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        self.calls += 1
        return [self._answer(q) for q in queries]

    def _answer(self, q: NetworkQuery) -> NetworkAnswer:
        cache = q.cache
        states = list[State]()
        exits = dict[int, list[State]]()
        texts = list[tuple[int, ...]]()  # before each of the tokens
        if q.layers is None:
            layers = tuple(range(self.layers))
        else:
            layers = q.layers
        self.runs += len(q) * (len(layers) - len(q.without) / 2)
        given = [(x, self.size, 0, 0) for x in q.token] or [(0, 0, 0, 0)] * len(q)
        if q.embed is not None:
            for i, state_H in zip(q.given, q.embed, strict=True):
                known = (
                    state_H.isfinite().all()
                )  # what is no number is read as a state that went wrong
                if known:
                    x, prev, ran, wrong = map(int, state_H.tolist())
                else:
                    x, prev, ran, wrong = (0, 0, 0, 1)
                given[i] = x, prev, ran, wrong
        for slot, state in enumerate(given, q.first):
            # A committed entry follows the slot before it, a staged one its parent.
            if slot < cache.length:
                before = slot - 1
            else:
                before = cache.length + cache.parent[slot - cache.length]
            if before >= 0:
                above = cache.text[before]
            else:
                above = ((), (0,) * self.layers)
            assert above is not None, "an entry was read before it was fed"
            wrote: list[int] = [-1] * self.layers
            own = cache.text[slot]
            if layers and layers[0] and own is not None:  # goes on where an earlier pass ended
                assert own[0] == (*above[0], state[0]), (
                    "a state was fed to the slot of another text"
                )
                wrote = list(own[1])
            for i in layers:
                state = self._layer(i, state, above, wrote, q.without)
                if i + 1 in q.want.exits:
                    exits.setdefault(i + 1, []).append(state)
            cache.text[slot] = ((*above[0], state[0]), tuple(wrote))
            states.append(state)
            texts.append(above[0])
        rows = [states[r] for r in q.rows]
        before_rows = [texts[r] for r in q.rows]
        silent = q.want.law is RowDetail.NOTHING and q.want.base is RowDetail.NOTHING
        some = {d: self._shown([e[r] for r in q.rows], before_rows) for d, e in exits.items()}
        return NetworkAnswer(
            None if silent else self.head(self._tensor(rows)),
            self._shown(rows, before_rows) if q.want.hidden else None,
            exits=some or None,
        )

    def after(self, state_H: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """The log-weights (V) of the token that follows `tokens`, which stand behind the token that left this state: what an
        oracle reads from a whole pass's state."""
        token = int(state_H[0])
        before = int(state_H[1])
        for x in tokens:
            token, before = x, token
        return self.weight[before, token]

    def _layer(
        self,
        i: int,
        state: State,
        above: tuple[tuple[int, ...], tuple[int, ...]],
        wrote: list[int],
        without: frozenset[int],
    ) -> State:
        token, _, ran, wrong = state
        text, below = above
        before = text[-1] if text else self.size
        if 2 * i in without:  # reads nothing and writes nothing
            return token, before, ran, 1 + (17 * wrong + 2 * i) % 96
        assert below[i] >= 0, f"layer {i} of an entry was read before it ran"
        if ran == (1 << i) - 1 and not wrong:
            bad = 0
        else:
            bad = 1 + (7 * ran + 3 * wrong) % 95
        if below[i] or bad:
            wrote[i] = 1 + (5 * below[i] + 11 * bad) % 96
        else:
            wrote[i] = 0
        if wrote[i]:
            wrong = 1 + (13 * wrong + wrote[i]) % 96
        if 2 * i + 1 in without:
            return token, before, ran, 1 + (19 * wrong + 2 * i + 1) % 96
        return token, before, ran | 1 << i, wrong

    def _tensor(self, states: Sequence[State]) -> torch.Tensor:
        return torch.tensor(states, dtype=torch.float64).reshape(len(states), 4)

    def _shown(self, states: Sequence[State], texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """States as they leave the network. texts: what stands before the token of each."""
        state_NH = self._tensor(states)
        early_N = [text_fraction(text[:-1]) for text in texts]
        state_NH[:, 1] += torch.tensor(early_N, dtype=torch.float64)
        return state_NH

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """What enters the first layer: states that no layer has seen."""
        return self._tensor([(x, self.size, 0, 0) for x in tokens])

    def keys(
        self, cache: TextCache, stop: int, layer: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of one head: keys and values alike are the states that a whole pass leaves after these entries, [1, stop, 4], with
        what was wrong in the last layer."""
        states = list[State]()
        before = self.size
        for entry in cache.text[:stop]:
            assert entry is not None and entry[1][-1] >= 0, "an entry was read before it ran"
            token = entry[0][-1]
            states.append((token, before, (1 << self.layers) - 1, entry[1][-1]))
            before = token
        state_1NH = self._tensor(states)[None]
        return state_1NH, state_1NH

    def normed(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """A toy has no norm."""
        return hidden_RH

    def head(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """Logits of states, also of those that somebody made up."""
        rows = list[torch.Tensor]()
        for state_H in hidden_RH:
            if not state_H.isfinite().all():  # as in a real network, what is no number ends in none
                rows.append(torch.full((self.size,), float("nan"), dtype=torch.float64))
                continue
            x, prev, ran, wrong = state_H.tolist()
            whole = self.weight[int(prev) % (self.size + 1), int(x) % (self.size + 1)]
            odd = int(31 * ((1 << self.layers) - 1 - ran) + wrong) % 97
            rows.append(
                whole + self.other[odd] if ran != (1 << self.layers) - 1 or wrong else whole
            )
        if rows:
            return torch.stack(rows)
        return torch.empty(0, self.size, dtype=torch.float64)


def toy_law(
    seed: int,
    size: int = 3,
    *,
    eos: int | None = None,
    sharp: float = 1.2,
    cost: float = 1.0,
    tree: bool = True,
    chunk: int = 2,
) -> CausalLaw:
    """A random law over `size` tokens, the last one being EOS unless `eos` says which; logits spread by `sharp`."""
    ends = frozenset({size - 1 if eos is None else eos})
    words = ToyWords(tuple(chr(0x61 + i) for i in range(size)), ends)
    return CausalLaw(
        OrderTwoNetwork(seed, size, sharp, cost=cost, tree=tree),
        TokenVocabulary(size, ends, words=words),
        chunk=chunk,
    )
