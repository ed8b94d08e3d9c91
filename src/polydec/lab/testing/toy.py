"""Tiny laws with a cache that behaves like a real one: every law is known, and every slip of the
cache shows.
"""

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
    """Words of a toy.

    Attributes:
        of: Text of each id.
        silent: Ids that stand for no text, such as EOS.
    """

    of: tuple[str, ...]
    silent: frozenset[int] = frozenset()

    @property
    def pieces(self) -> tuple[bytes | None, ...]:
        return tuple(
            None if i in self.silent else piece.encode() for i, piece in enumerate(self.of)
        )

    def encode(self, text: str, special: bool = True) -> tuple[int, ...]:
        """Split a text into pieces, the longest one first, from the left.

        Args:
            text: The text.
            special: Not used: a toy has no special tokens around a text.

        Returns:
            Token ids.

        Raises:
            RequestError: No piece begins what is left of the text.
        """
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
    """Hash a text to a fraction that few other texts have.

    Args:
        text: Token ids.

    Returns:
        A number of at least 0 and below 1.
    """
    digest = 0
    for token in text:
        digest = (digest * 37 + token + 1) % 1024
    return digest / 1024


class OrderTwoNetwork:
    """An order-2 law: the next token depends on the last two. Float64.

    It has `layers` layers. A state is (token, the one before it, which layers ran, what was wrong),
    and each entry notes for every layer what it wrote there: -1 nothing, 0 what a whole pass
    writes, else a number that names the fault; faults spread to what attends to them. Depths that
    leave layers or halves of them out, and faulty caches, have laws of their own near the full
    pass's one.

    Hidden states that it shows depend on all of the text: a fraction that stands for the text
    before the last two tokens is added to the second number. The law does not read it; who mixes up
    states of texts that end alike is found out by it.

    Args:
        seed: Seed of the law.
        size: Tokens of the vocabulary, at least 2. Default 3.
        sharp: How far logits are spread. Default 1.2.
        cost: Price of a pass, in any unit; it orders models in the scheduler.
        tree: Whether passes may score token trees. Default True.
    """

    layers = 3
    context = 1 << 20
    partial = True
    rollback = True
    # One layer in the middle is no group.
    grouped = True
    sees_ahead = True

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
        # What enters each position: a token's first state, or a state that the query brings.
        given = [(x, self.size, 0, 0) for x in q.token] or [(0, 0, 0, 0)] * len(q)
        if q.embed is not None:
            for i, state_H in zip(q.given, q.embed, strict=True):
                known = (
                    state_H.isfinite().all()
                )  # what is no number is read as a state that went wrong
                if known:
                    x, prev, ran, wrong = map(int, state_H.tolist())
                else:
                    x = 0
                    prev = 0
                    ran = 0
                    wrong = 1
                given[i] = x, prev, ran, wrong
        for slot, state in enumerate(given, q.first):
            # A committed entry follows the slot before it, a staged one its parent.
            if slot < cache.length:
                before = slot - 1
            else:
                before = cache.length + cache.parent[slot - cache.length]
            if before >= 0:
                # What the entry before holds: its text, and what each layer wrote there.
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
            # Layer by layer, as far as the query runs them; early exits read the state on the way.
            for i in layers:
                state = self._layer(i, state, above, wrote, q.without)
                if i + 1 in q.want.exits:
                    exits.setdefault(i + 1, []).append(state)
            # An entry notes the whole text that led to it, so that a mixed-up slot shows in the
            # law.
            cache.text[slot] = ((*above[0], state[0]), tuple(wrote))
            states.append(state)
            texts.append(above[0])
        # Those that see one another show all of them.
        if q.mutual:
            last = cache.text[q.first + len(q) - 1]
            assert last is not None
            texts[-q.mutual :] = [last[0]] * q.mutual
        rows = [states[r] for r in q.rows]
        before_rows = [texts[r] for r in q.rows]
        # Nobody reads a law: no head runs, as in a real network.
        silent = q.want.law is RowDetail.NOTHING and q.want.base is RowDetail.NOTHING
        some = {d: self._shown([e[r] for r in q.rows], before_rows) for d, e in exits.items()}
        return NetworkAnswer(
            None if silent else self.head_logits(self._tensor(rows)),
            self._shown(rows, before_rows) if q.want.hidden else None,
            exits=some or None,
        )

    def oracle_state(self, state_H: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """Compute what an oracle reads from a full pass's state.

        Args:
            state_H: The state that some token left.
            tokens: Token ids that stand behind that token.

        Returns:
            Log-weights of the token that follows them, shape ``[V]``.
        """
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
        # Nothing is wrong where all layers below ran on a state without fault.
        if ran == (1 << i) - 1 and not wrong:
            bad = 0
        else:
            bad = 1 + (7 * ran + 3 * wrong) % 95
        # A fault of the entry before, or of this state, changes what is written, and so what
        # follows.
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
        # The second number stays the token before when it is cut to an integer.
        state_NH[:, 1] += torch.tensor(early_N, dtype=torch.float64)
        return state_NH

    def embed_tokens(self, tokens: Sequence[int]) -> torch.Tensor:
        """What enters the first layer: states that no layer has seen."""
        return self._tensor([(x, self.size, 0, 0) for x in tokens])

    def read_keys(
        self, cache: TextCache, stop: int, layer: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read keys and values of the one head.

        Both are the states that a full pass leaves after the entries, with what was wrong in the
        last layer.

        Args:
            cache: The cache of one text.
            stop: How many entries, from the first.
            layer: Not used: all layers show the same.

        Returns:
            Keys and values, each of shape ``[1, stop, 4]``.
        """
        states = list[State]()
        before = self.size
        for entry in cache.text[:stop]:
            assert entry is not None and entry[1][-1] >= 0, "an entry was read before it ran"
            token = entry[0][-1]
            states.append((token, before, (1 << self.layers) - 1, entry[1][-1]))
            before = token
        state_1NH = self._tensor(states)[None]
        return state_1NH, state_1NH

    def normed_states(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """A toy has no norm."""
        return hidden_RH

    def head_logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """Compute logits of states, also of those that somebody made up.

        Args:
            hidden_RH: States, shape ``[R, 4]``.

        Returns:
            Logits, shape ``[R, V]``; NaN for a state with a number that is not finite.
        """
        rows = list[torch.Tensor]()
        for state_H in hidden_RH:
            if not state_H.isfinite().all():  # as in a real network, what is no number ends in none
                rows.append(torch.full((self.size,), float("nan"), dtype=torch.float64))
                continue
            x, prev, ran, wrong = state_H.tolist()
            whole = self.weight[int(prev) % (self.size + 1), int(x) % (self.size + 1)]
            # Which layers are missing, and the fault, choose one of 97 disturbances of the law.
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
    """Make a random law that is known exactly.

    Args:
        seed: Seed of the law.
        size: Tokens of the vocabulary, EOS among them. Default 3.
        eos: Id of EOS. None: the last token; -1: no token is.
        sharp: How far logits are spread. Default 1.2.
        cost: Price of a pass, in any unit; it orders models in the scheduler.
        tree: Whether passes may score token trees. Default True.
        chunk: Tokens of a prompt that one pass feeds, at least 1. Default 2.

    Returns:
        The law, with a cache that behaves like a real one.
    """
    ends = frozenset({size - 1 if eos is None else eos})
    words = ToyWords(tuple(chr(0x61 + i) for i in range(size)), ends)
    return CausalLaw(
        OrderTwoNetwork(seed, size, sharp, cost=cost, tree=tree),
        TokenVocabulary(size, ends, words=words),
        chunk=chunk,
    )
