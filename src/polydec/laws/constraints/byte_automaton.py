"""Deterministic automata over bytes, made of regular expressions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polydec.base.errors import RequestError
from polydec.laws.constraints.expressions import (
    CharacterSet,
    Expression,
    ExpressionChoice,
    ExpressionSequence,
    RepeatedExpression,
)

MOST_NODES = 200_000
"""Nodes of the nondeterministic automaton."""
MOST_STATES = 8_192
"""States of the deterministic one, before equal ones are put together."""
MOST_WORK = 4_000_000
"""Nodes that are looked at in all, some seconds of work."""

States = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A set of texts, said byte by byte.

    Attributes:
        next_SB: The state behind each state and byte, shape ``[S, 256]``; S, the number of
            states, where no text goes on so.
        accepts_S: Whether a text may end in a state, shape ``[S]``.

    The first state is 0. From every state some text is reached, unless there is no text at all.
    """

    next_SB: States
    accepts_S: NDArray[np.bool_]

    def matches_bytes(self, text: bytes) -> bool:
        """Whether a whole text is one of the set."""
        state = 0
        for byte in text:
            state = int(self.next_SB[state, byte])
            if state == len(self.accepts_S):
                return False
        return bool(self.accepts_S[state])


def compile_expression(expression: Expression, called: str) -> ByteAutomaton:
    """Make the smallest deterministic automaton of an expression.

    Args:
        expression: Over characters; texts are their UTF-8 bytes.
        called: How errors name it.

    Returns:
        The automaton.

    Raises:
        RequestError: It has too many states, or takes too long.
    """
    nodes = _NodeGraph(called)
    first = nodes.new_node()
    last = nodes.add_expression(expression, first)
    return _smallest(*_determinised(nodes, first, last))


@dataclass
class _NodeGraph:
    """A nondeterministic automaton that grows.

    Attributes:
        called: How errors name the expression.
        silent: Of each node those that are reached without a byte.
        arcs: Of each node (first byte, last byte, where they lead).
    """

    called: str
    silent: list[list[int]] = field(default_factory=list[list[int]])
    arcs: list[list[tuple[int, int, int]]] = field(default_factory=list[list[tuple[int, int, int]]])

    def new_node(self) -> int:
        if len(self.silent) >= MOST_NODES:
            raise too_large(self.called)
        self.silent.append([])
        self.arcs.append([])
        return len(self.silent) - 1

    def add_expression(self, expression: Expression, start: int) -> int:
        """Add an expression behind a node.

        Args:
            expression: What is added.
            start: The node.

        Returns:
            The node behind the expression.
        """
        match expression:
            case CharacterSet():
                return self._add_characters(expression, start)
            case ExpressionSequence():
                for part in expression.parts:
                    start = self.add_expression(part, start)
                return start
            case ExpressionChoice():
                end = self.new_node()
                for part in expression.parts:
                    # A node of its own for each: a loop in one must not lead into another.
                    begin = self.new_node()
                    self.silent[start].append(begin)
                    self.silent[self.add_expression(part, begin)].append(end)
                return end
            case RepeatedExpression():
                return self._add_repeated(expression, start)

    def _add_characters(self, expression: CharacterSet, start: int) -> int:
        end = self.new_node()
        # Sequences that begin alike share their first nodes, or states would multiply.
        begun = dict[tuple[int, tuple[int, int]], int]()
        for low, high in expression.ranges:
            for sequence in utf8_sequences(low, high):
                at = start
                for piece in sequence[:-1]:
                    there = begun.get((at, piece))
                    if there is None:
                        there = self.new_node()
                        begun[at, piece] = there
                        self.arcs[at].append((*piece, there))
                    at = there
                self.arcs[at].append((*sequence[-1], end))
        return end

    def _add_repeated(self, expression: RepeatedExpression, start: int) -> int:
        for _ in range(expression.least):
            start = self.add_expression(expression.part, start)
        end = self.new_node()
        if expression.most is None:
            loop = self.new_node()
            self.silent[start].append(loop)
            self.silent[self.add_expression(expression.part, loop)].append(loop)
            self.silent[loop].append(end)
            return end
        self.silent[start].append(end)
        for _ in range(expression.most - expression.least):
            start = self.add_expression(expression.part, start)
            # Straight to the end, so that a state holds few nodes.
            self.silent[start].append(end)
        return end


def too_large(called: str) -> RequestError:
    """The refusal of what has more states than are kept; called: how it is named."""
    return RequestError(
        f"{called}: its automaton has more than {MOST_STATES} states, or takes too long, so make it simpler "
        "(shorter repetitions, fewer texts)"
    )


_LENGTHS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)
"""The last code points of one to four bytes."""


def utf8_sequences(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Say a range of code points as sequences of ranges of bytes.

    Args:
        low: First code point.
        high: Last code point.

    Returns:
        Sequences of (first, last) for each byte, which together match the UTF-8 bytes of these
        code points and nothing else. Surrogates have none.
    """
    if low > high:
        return
    # Halves of characters are no text.
    if low <= 0xDFFF and high >= 0xD800:
        yield from utf8_sequences(low, min(high, 0xD7FF))
        yield from utf8_sequences(max(low, 0xE000), high)
        return
    for last in _LENGTHS:
        if low <= last < high:
            yield from utf8_sequences(low, last)
            yield from utf8_sequences(last + 1, high)
            return
    # Where the final bytes do not go over their whole range, the rest of the character is one.
    for bits in (6, 12, 18):
        mask = (1 << bits) - 1
        if high > 0x7F and low | mask != high | mask:
            if low & mask:
                yield from utf8_sequences(low, low | mask)
                yield from utf8_sequences((low | mask) + 1, high)
                return
            if high & mask != mask:
                yield from utf8_sequences(low, (high & ~mask) - 1)
                yield from utf8_sequences(high & ~mask, high)
                return
    yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))


def _determinised(
    nodes: _NodeGraph, first: int, last: int
) -> tuple[States, NDArray[np.int64], NDArray[np.bool_]]:
    """The subset construction, with limits: the state behind each state and letter (S stands for no
    text), the letter of each byte, and whether each state accepts."""
    left = MOST_WORK
    letters, letter_B = _byte_letters(nodes)

    def reached(start: set[int]) -> frozenset[int]:
        """All nodes that are reached without a byte, as far as they go on or end."""
        nonlocal left
        seen = set(start)
        waiting = list(start)
        while waiting:
            for there in nodes.silent[waiting.pop()]:
                if there not in seen:
                    seen.add(there)
                    waiting.append(there)
        left -= len(seen)
        if left < 0:
            raise too_large(nodes.called)
        return frozenset(x for x in seen if nodes.arcs[x] or x == last)

    # Of each node its arcs by letters: (first letter, behind the last one, where they lead).
    arcs = [
        [(int(letter_B[a]), int(letter_B[b]) + 1, there) for a, b, there in own]
        for own in nodes.arcs
    ]
    known = dict[frozenset[int], int]()
    order = [reached({first})]
    known[order[0]] = 0
    rows = list[list[int]]()
    while len(rows) < len(order):
        by_letter = dict[int, set[int]]()
        for node in order[len(rows)]:
            for low, high, there in arcs[node]:
                left -= high - low
                for letter in range(low, high):
                    by_letter.setdefault(letter, set()).add(there)
        row = [-1] * letters
        for letter, start in by_letter.items():
            there = reached(start)
            if there not in known:
                if len(order) >= MOST_STATES:
                    raise too_large(nodes.called)
                known[there] = len(order)
                order.append(there)
            row[letter] = known[there]
        rows.append(row)
    next_SL = np.array(rows, np.int32)
    next_SL[next_SL < 0] = len(order)
    return next_SL, letter_B, np.array([last in s for s in order])


def _byte_letters(nodes: _NodeGraph) -> tuple[int, NDArray[np.int64]]:
    """Bytes that no arc tells apart are one letter: how many there are, and that of each byte.
    Letters ascend with their bytes."""
    begins = np.zeros(257, np.int64)
    for own in nodes.arcs:
        for low, high, _ in own:
            begins[low] = 1
            begins[high + 1] = 1
    letter_B = np.cumsum(begins[:256])
    letter_B -= letter_B[0]
    return int(letter_B[-1]) + 1, letter_B


def _smallest(
    next_SL: States, letter_B: NDArray[np.int64], accepts_S: NDArray[np.bool_]
) -> ByteAutomaton:
    """Equal states put together, and those left out from which no text is reached."""
    count = len(accepts_S)
    # The state of no text is one as any other here, the last.
    next_TL = np.concatenate([next_SL, np.full((1, next_SL.shape[1]), count, np.int32)])
    accepts_T = np.concatenate([accepts_S, [False]])
    group_T = _equal_states(next_TL, accepts_T)
    # One state of each group stands for it.
    groups = int(group_T.max()) + 1
    first_G = np.zeros(groups, np.int64)
    first_G[group_T[::-1]] = np.arange(count, -1, -1)
    next_GL = group_T[next_TL[first_G]]
    accepts_G = accepts_T[first_G]
    # A state goes on where some text is reached: backwards from the accepting ones.
    alive_G = accepts_G
    while True:
        more_G = alive_G | alive_G[next_GL].any(1)
        if (more_G == alive_G).all():
            break
        alive_G = more_G
    start = int(group_T[0])
    if not alive_G[start]:
        return ByteAutomaton(np.full((1, 256), 1, np.int32), np.array([False]))
    order = [start, *(g for g in range(groups) if alive_G[g] and g != start)]
    place_G = np.full(groups, len(order), np.int32)
    place_G[order] = np.arange(len(order))
    return ByteAutomaton(place_G[next_GL[order]][:, letter_B], accepts_G[order])


def _equal_states(next_TL: States, accepts_T: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of each state the number of its group: states of a group accept the same texts (Moore)."""
    group_T = accepts_T.astype(np.int64)
    groups = -1
    # Rows are told apart by a sum with odd weights; what that takes for equal is compared in full in
    # the end, so a sum that two rows share by chance does no harm.
    weight_L = np.random.default_rng(0).integers(1, 2**62, next_TL.shape[1] + 1) * 2 + 1
    while True:
        while True:
            sum_T = group_T[next_TL] @ weight_L[1:] + group_T * weight_L[0]
            # What was told apart stays apart.
            pairs_T2 = np.stack([group_T, np.unique(sum_T, return_inverse=True)[1].reshape(-1)], 1)
            number_T = pairs_T2[:, 0] * len(group_T) + pairs_T2[:, 1]
            group_T = np.unique(number_T, return_inverse=True)[1].reshape(-1)
            found = int(group_T.max()) + 1
            if found == groups:
                break
            groups = found
        key_TL = np.concatenate([group_T[:, None], group_T[next_TL]], 1)
        group_T = np.unique(key_TL, axis=0, return_inverse=True)[1].reshape(-1)
        if int(group_T.max()) + 1 == groups:
            return group_T
        groups = int(group_T.max()) + 1
