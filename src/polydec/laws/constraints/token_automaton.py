"""Automata over the tokens of a vocabulary, made of automata over bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from polydec.base.errors import RequestError
from polydec.laws.constraints.byte_automaton import ByteAutomaton

MOST_STATES = 8_192
"""States of an automaton over bytes that is made one over tokens."""
MOST_EDGES = 1_000_000
"""Edges of an automaton over tokens: triples of a state, a class of tokens and a state."""
MOST_WORK = 400_000_000
"""Steps of states over bytes, some seconds of work."""

NO_CLASS = -1
"""The class of tokens that no text holds."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A set of texts, said token by token, with what may stand behind their ends.

    Tokens that lead alike from every state are of one class. A token that ends a text leads from
    each state in which it may end to one state behind it, where such tokens follow without end.
    Every state is reached, and from every state a text is finished.

    Attributes:
        class_V: The class of each token, `NO_CLASS` for those of no text, shape ``[V]``.
        end_class: The class of tokens that end a text; NO_CLASS where none does.
        source_E: State that each edge comes from, ascending, shape ``[E]``.
        class_E: Class of tokens that follow an edge, shape ``[E]``.
        target_E: State that each edge leads to, shape ``[E]``.
        accepts_S: Whether a canvas may end in a state, shape ``[S]``; 0 is the first state.
        classes: How many classes there are, that of ends counted in.
    """

    class_V: Indices
    end_class: int
    source_E: Indices
    class_E: Indices
    target_E: Indices
    accepts_S: NDArray[np.bool_]
    classes: int

    @property
    def state_count(self) -> int:
        return len(self.accepts_S)

    @cached_property
    def edges_of_class(self) -> tuple[Indices, ...]:
        """Of each class the indices of its edges."""
        order = np.argsort(self.class_E, kind="stable")
        bounds = np.searchsorted(self.class_E[order], np.arange(self.classes + 1))
        return tuple(order[bounds[c] : bounds[c + 1]] for c in range(self.classes))


def compile_token_automaton(
    texts: ByteAutomaton,
    spelled: Sequence[bytes | None],
    ends: Collection[int],
    called: str,
    forbidden: Collection[int] = (),
) -> TokenAutomaton:
    """Make the automaton of some texts over a vocabulary.

    Every spelling of a text in tokens belongs to it.

    Args:
        texts: The texts, over bytes.
        spelled: The bytes of each token; None: it writes nothing.
        ends: Token ids that end a text and fill what is behind it. None of them: a text ends where
            the canvas does.
        called: How errors name the texts.
        forbidden: Token ids that are never written. Default: none.

    Returns:
        The automaton.

    Raises:
        RequestError: It is too large, or no tokens spell a text.
    """
    size = len(texts.accepts_S)
    if size > MOST_STATES:
        raise _too_large(called)
    class_V, rows = _token_classes(texts, spelled, frozenset(forbidden), called)
    if sum(int((row < size).sum()) for row in rows) > MOST_EDGES:
        raise _too_large(called)
    source = list[Indices]()
    target = list[Indices]()
    for row in rows:
        begins = np.flatnonzero(row < size)
        source.append(begins)
        target.append(row[begins].astype(np.int64))
    kind = [np.full(len(x), c) for c, x in enumerate(source)]
    accepts_S = texts.accepts_S
    last = [x for x in ends if 0 <= x < len(spelled) and x not in forbidden]
    end_class = NO_CLASS
    if last:
        # One state more, behind the end; tokens that end a text are a class of their own.
        end_class = len(rows)
        class_V[last] = end_class
        begins = np.append(np.flatnonzero(accepts_S), size)
        source.append(begins)
        target.append(np.full(len(begins), size))
        kind.append(np.full(len(begins), end_class))
        accepts_S = np.append(accepts_S, True)
    return _trimmed(
        class_V,
        end_class,
        np.concatenate([*source, np.zeros(0, np.int64)]),
        np.concatenate([*kind, np.zeros(0, np.int64)]),
        np.concatenate([*target, np.zeros(0, np.int64)]),
        accepts_S,
        called,
    )


def _too_large(called: str) -> RequestError:
    return RequestError(
        f"{called}: over this model's tokens its automaton is too large (more than {MOST_STATES} states or "
        f"{MOST_EDGES} edges), so make it simpler (shorter repetitions, fewer texts)"
    )


def _token_classes(
    texts: ByteAutomaton,
    spelled: Sequence[bytes | None],
    forbidden: frozenset[int],
    called: str,
) -> tuple[Indices, list[NDArray[np.int32]]]:
    """The class of each token, and of each class the state behind each state, S where there is
    none."""
    size = len(texts.accepts_S)
    class_V = np.full(len(spelled), NO_CLASS, np.int64)
    # Bytes that lead alike everywhere are one letter: tokens of the same letters are of one class.
    columns, letter_B = np.unique(texts.next_SB, axis=1, return_inverse=True)
    letters = bytes(letter_B.reshape(-1).astype(np.uint8))
    by_letters = dict[bytes, list[int]]()
    for token, piece in enumerate(spelled):
        if piece and token not in forbidden:
            by_letters.setdefault(piece.translate(letters), []).append(token)
    next_LS = np.ascontiguousarray(np.append(columns, np.full((1, columns.shape[1]), size), 0).T)
    # In order, so that words share the walk over what they begin with alike (a trie, depth first).
    walked = [np.arange(size, dtype=np.int32)]
    before = b""
    dead = b""
    work = 0
    known = dict[bytes, int]()
    rows = list[NDArray[np.int32]]()
    for word in sorted(by_letters):
        # Nothing is behind a beginning that leads nowhere.
        if dead and word.startswith(dead):
            continue
        dead = b""
        shared = sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(before, word, strict=False)))
        del walked[shared + 1 :]
        before = word
        for i in range(shared, len(word)):
            row = next_LS[word[i]].astype(np.int32)[walked[-1]]
            work += size
            walked.append(row)
            if (row == size).all():
                dead = word[: i + 1]
                before = dead
                break
        if work > MOST_WORK:
            raise _too_large(called)
        if dead:
            continue
        row = walked[-1]
        number = known.setdefault(row.tobytes(), len(rows))
        if number == len(rows):
            rows.append(row)
        class_V[by_letters[word]] = number
    return class_V, rows


def _trimmed(
    class_V: Indices,
    end_class: int,
    source_E: Indices,
    class_E: Indices,
    target_E: Indices,
    accepts_S: NDArray[np.bool_],
    called: str,
) -> TokenAutomaton:
    """Only states that are reached and go on, and classes that lead between them."""
    size = len(accepts_S)
    reached_S = np.zeros(size, bool)
    reached_S[0] = True
    useful_S = accepts_S.copy()
    for marked_S, begins_E, there_E in (
        (reached_S, source_E, target_E),
        (useful_S, target_E, source_E),
    ):
        while True:
            new = there_E[marked_S[begins_E]]
            if marked_S[new].all():
                break
            marked_S[new] = True
    kept_S = reached_S & useful_S
    if not kept_S[0]:
        raise RequestError(f"{called}: no tokens of this model spell a text of it")
    kept_E = kept_S[source_E] & kept_S[target_E]
    place_S = np.cumsum(kept_S) - 1
    classes, class_E = np.unique(class_E[kept_E], return_inverse=True)
    number_C = np.full(max(end_class, int(class_V.max())) + 2, NO_CLASS)
    number_C[classes] = np.arange(len(classes))
    order = np.argsort(place_S[source_E[kept_E]], kind="stable")
    return TokenAutomaton(
        number_C[class_V],  # the last entry, NO_CLASS, is that of NO_CLASS
        int(number_C[end_class]),
        place_S[source_E[kept_E]][order],
        class_E.reshape(-1)[order],
        place_S[target_E[kept_E]][order],
        accepts_S[kept_S],
        len(classes),
    )
