"""Which canvases are allowed, and what is left possible between what is written.

A canvas is filled in any order. So what may stand in a gap hangs on what stands to its left and to
its right: an automaton is followed from both ends (forward and backward, as in a hidden Markov
model), with the weights that a pass of the model gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas
from polydec.core.law import normalise_log_weights
from polydec.laws.constraints.token_automaton import NO_CLASS, TokenAutomaton

Weights = NDArray[np.float64]
"""Logarithms."""

NEVER = float("-inf")


@dataclass(frozen=True, eq=False)
class _EdgeGroups:
    """Edges put together by a number that each of them has.

    Attributes:
        order: Indices of the edges, those of a group side by side.
        starts: Where each group begins in that order.
        numbers: The number of each group.
        counts: How many edges each group has.
        size: How many numbers there are.
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]
    size: int

    @staticmethod
    def of_numbers(number_E: NDArray[np.int64], size: int) -> _EdgeGroups:
        """Group edges.

        Args:
            number_E: The number of each edge, shape ``[E]``.
            size: How many numbers there are.

        Returns:
            The groups.
        """
        order = np.argsort(number_E, kind="stable")
        numbers, starts, counts = np.unique(number_E[order], return_index=True, return_counts=True)
        return _EdgeGroups(order, starts, numbers, counts, size)

    def log_sums(self, weight_E: Weights) -> Weights:
        """For each number the logarithm of the sum of its edges' weights, along the last axis."""
        out = np.full((*weight_E.shape[:-1], self.size), NEVER)
        if not len(self.order):
            return out
        sorted_E = weight_E[..., self.order]
        # The greatest of each group is taken out first, so that no power overflows.
        most_G = np.maximum.reduceat(sorted_E, self.starts, axis=-1)
        # -inf less -inf is no number.
        most_G[most_G == NEVER] = 0.0
        sorted_E -= np.repeat(most_G, self.counts, axis=-1)
        np.exp(sorted_E, out=sorted_E)
        with np.errstate(divide="ignore"):
            out[..., self.numbers] = most_G + np.log(
                np.add.reduceat(sorted_E, self.starts, axis=-1)
            )
        return out

    def any_holds(self, holds_E: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """For each number whether one of its edges does."""
        out = np.zeros(self.size, bool)
        out[self.numbers[np.logical_or.reduceat(holds_E[self.order], self.starts)]] = True
        return out


@dataclass(frozen=True, eq=False)
class CanvasSegment:
    """A part of the answer that an automaton speaks of.

    Attributes:
        automaton: Its texts.
        start: First position of the answer that belongs to it.
        stop: Position behind its last one. None: it goes on to the end of the canvas.
        first_end: First position of the answer at which a token may stand that ends a text.
    """

    automaton: TokenAutomaton
    start: int = 0
    stop: int | None = None
    first_end: int = 0
    _tails: dict[int, NDArray[np.bool_]] = field(
        default_factory=dict[int, NDArray[np.bool_]], init=False, repr=False
    )

    @cached_property
    def source_groups(self) -> _EdgeGroups:
        return _EdgeGroups.of_numbers(self.automaton.source_E, self.automaton.state_count)

    @cached_property
    def target_groups(self) -> _EdgeGroups:
        return _EdgeGroups.of_numbers(self.automaton.target_E, self.automaton.state_count)

    @cached_property
    def class_groups(self) -> _EdgeGroups:
        return _EdgeGroups.of_numbers(self.automaton.class_E, self.automaton.classes)

    @cached_property
    def token_groups(self) -> _EdgeGroups:
        """Tokens by their classes, in the place of edges; those of no class come first."""
        return _EdgeGroups.of_numbers(self.automaton.class_V + 1, self.automaton.classes + 1)

    @cached_property
    def is_end_E(self) -> NDArray[np.bool_]:
        a = self.automaton
        # A vocabulary without an end: texts fill their canvas.
        if a.end_class == NO_CLASS:
            return np.zeros(len(a.class_E), bool)
        return a.class_E == a.end_class

    @cached_property
    def _repeats_E(self) -> NDArray[np.bool_]:
        """Whether an edge joins states that an earlier edge of its kind (a text's token, or an end)
        joins."""
        a = self.automaton
        key_E = (a.source_E * a.state_count + a.target_E) * 2 + self.is_end_E
        first = np.unique(key_E, return_index=True)[1]
        repeats_E = np.ones(len(key_E), bool)
        repeats_E[first] = False
        return repeats_E

    def edge_weights(self, token: int | None, at: int, law_C: Weights | None) -> Weights:
        """Return the weight of each edge at a position.

        Args:
            token: What stands there; None: a gap.
            at: Position of the answer.
            law_C: Of a gap the logarithm of each class's probability, shape ``[C]``. None: its law
                is not known; then every state that some token leads to counts alike.

        Returns:
            Logarithms, shape ``[E]``.
        """
        a = self.automaton
        if token is not None:
            weight_E = np.full(len(a.class_E), NEVER)
            kind = int(a.class_V[token])
            if kind != NO_CLASS:
                weight_E[a.edges_of_class[kind]] = 0.0
        elif law_C is not None:
            weight_E = law_C[a.class_E]
        else:
            # Many tokens may join the same two states: these count once.
            weight_E = np.where(self._repeats_E, NEVER, 0.0)
        if at < self.first_end:
            weight_E = np.where(self.is_end_E, NEVER, weight_E)
        return weight_E

    def class_laws(self, logp_RV: Weights) -> Weights:
        """The logarithm of each class's probability, shape ``[R, C]``, of laws, shape ``[R, V]``."""
        return self.token_groups.log_sums(logp_RV)[:, 1:]

    def step_left(self, weight_E: Weights, ahead_S: Weights) -> Weights:
        """Return the weight of what can follow, one position further to the left.

        Args:
            weight_E: Of the edges at that position, from `edge_weights`.
            ahead_S: Behind that position.
        """
        return self.source_groups.log_sums(weight_E + ahead_S[self.automaton.target_E])

    def step_right(self, weight_E: Weights, reached_S: Weights) -> Weights:
        """Return the weight of what stands, one position further to the right.

        Args:
            weight_E: Of the edges at that position, from `edge_weights`.
            reached_S: Before that position.
        """
        return self.target_groups.log_sums(weight_E + reached_S[self.automaton.source_E])

    def end_weights(self, canvas: Canvas, begin: int, after: int) -> Weights:
        """Return from which states the rest of a segment can be filled.

        Args:
            canvas: Prompt and answer; None is a gap, in which any token may come to stand.
            begin: First position of the answer on the canvas.
            after: First position of the answer that belongs to the rest.

        Returns:
            0 for a state from which it can, -inf for the others, shape ``[S]``.
        """
        a = self.automaton
        # A canvas that is still to grow may end before the segment does.
        stop = len(canvas) - begin
        if self.stop is not None:
            stop = min(stop, self.stop)
        # Where nothing is written any more the answer hangs on the number of gaps alone.
        written = [i for i in range(after, stop) if canvas[begin + i] is not None]
        last = max(written, default=after - 1) + 1
        able_S = self._open_tail(last, stop)
        for i in range(last - 1, after - 1, -1):
            weight_E = self.edge_weights(canvas[begin + i], i, None)
            able_S = self.source_groups.any_holds((weight_E > NEVER) & able_S[a.target_E])
        return np.where(able_S, 0.0, NEVER)

    def _open_tail(self, first: int, stop: int) -> NDArray[np.bool_]:
        """From which states gaps from `first` to before `stop` can be filled."""
        a = self.automaton
        # Ends may stand everywhere from `first_end` on, so there the number of gaps decides.
        free = stop - max(first, min(self.first_end, stop))
        # What n gaps can be filled to is what n - 1 can, one edge further: worked out once for all.
        if not self._tails:
            self._tails[0] = a.accepts_S
        while len(self._tails) <= free:
            ahead_S = self._tails[len(self._tails) - 1]
            self._tails[len(self._tails)] = self.source_groups.any_holds(ahead_S[a.target_E])
        able_S = self._tails[free]
        for _ in range(stop - first - free):
            able_S = self.source_groups.any_holds(able_S[a.target_E] & ~self.is_end_E)
        return able_S


@dataclass(frozen=True, eq=False)
class CanvasLanguage:
    """Which answers a canvas may come to hold.

    The parts that no segment speaks of may be filled with anything.

    Attributes:
        segments: Automata over parts of the answer, which do not overlap, from the left.
        called: How errors name what is asked.
    """

    segments: tuple[CanvasSegment, ...]
    called: str = "constraint"

    def with_first_end(self, first: int) -> CanvasLanguage:
        """The language without answers that end before a position; first: in the answer."""
        return replace(self, segments=tuple(replace(s, first_end=first) for s in self.segments))

    def can_finish(self, canvas: Canvas, begin: int) -> bool:
        """Tell whether a canvas can be filled to an answer that is allowed.

        Args:
            canvas: Prompt and answer; None is a gap.
            begin: First position of the answer.

        Returns:
            True where it can.
        """
        return all(
            s.end_weights(canvas, begin, s.start)[0] == 0.0
            for s in self.segments
            if begin + s.start < len(canvas) or s.stop is None
        )

    def read_rows(
        self, canvas: Canvas, begin: int, rows: Sequence[int], logp_RV: Tensor
    ) -> ConditionedRows:
        """Bind the language to what a pass shows.

        Args:
            canvas: Prompt and answer; None is a gap.
            begin: First position of the answer.
            rows: Gaps whose laws are known, ascending.
            logp_RV: Their laws by the model, normalised, shape ``[R, V]``, float64.

        Returns:
            The laws of these gaps, on condition that the canvas can be finished.
        """
        parts = dict[int, tuple[_SegmentRows, int]]()
        for segment in self.segments:
            start = begin + segment.start
            stop = len(canvas)
            if segment.stop is not None:
                stop = min(stop, begin + segment.stop)
            inside = [i for i, r in enumerate(rows) if start <= r < stop]
            if inside:
                read = _SegmentRows.of_canvas(segment, canvas, begin, rows, inside, logp_RV)
                parts |= {i: (read, rows[i] - start) for i in inside}
        return ConditionedRows(self, logp_RV, parts)


@dataclass(eq=False)
class ConditionedRows:
    """The laws of some gaps on condition that the canvas can be finished, and of gaps that are
    filled one after the other, each with what was filled before.

    The law is the product of the gaps' laws, on that condition. Gaps whose laws are not known count
    as something that can be filled: those behind the last row exactly so, those between rows by the
    states that any token leads to, each alike.

    Attributes:
        language: What is allowed.
        logp_RV: The laws without it, shape ``[R, V]``.
        parts: Of a row that a segment speaks of its segment, and its place there.
    """

    language: CanvasLanguage
    logp_RV: Tensor
    parts: dict[int, tuple[_SegmentRows, int]]

    def all_laws(self) -> Tensor:
        """The law of each gap, given what was filled so far, shape ``[R, V]``.

        Raises RequestError where nothing is left of one.
        """
        weight_RV = torch.zeros_like(self.logp_RV)
        inside = dict[int, tuple[_SegmentRows, list[int]]]()
        # All gaps of a segment at once: their messages are shared.
        for i, (read, _) in self.parts.items():
            inside.setdefault(id(read), (read, []))[1].append(i)
        for read, rows in inside.values():
            weight_RV[rows] = torch.from_numpy(read.token_weights([self.parts[i][1] for i in rows]))
        return self._normalised(self.logp_RV + weight_RV)

    def law_of_row(self, i: int) -> Tensor:
        """The law of a gap given what was filled so far, log-probabilities, shape ``[V]``.

        Raises RequestError where nothing is left of it.
        """
        if i not in self.parts:
            return self.logp_RV[i]
        read, place = self.parts[i]
        # One gap alone: after each filled gap only the messages next to it are new.
        weight_RV = torch.from_numpy(read.token_weights([place]))
        return self._normalised(self.logp_RV[i] + weight_RV[0])

    def _normalised(self, logw_RV: Tensor) -> Tensor:
        if not bool((logw_RV > NEVER).any(-1).all()):
            raise RequestError(
                f"no token is left for a gap: what {self.language.called} allows there has probability 0 under this model"
            )
        return normalise_log_weights(logw_RV)

    def fill_row(self, i: int, token: int) -> None:
        """Fill a gap: the laws of the others are from now on given this token.

        Args:
            i: Index of the row.
            token: Token id, of positive probability.
        """
        if i in self.parts:
            read, place = self.parts[i]
            read.fill_place(place, token)

    def fork_rows(self) -> ConditionedRows:
        """A twin in which other tokens may be filled."""
        # Rows of one segment share its messages, in the twin too.
        made = dict[int, _SegmentRows]()
        for read, _ in self.parts.values():
            if id(read) not in made:
                made[id(read)] = read.fork_rows()
        parts = {i: (made[id(read)], place) for i, (read, place) in self.parts.items()}
        return ConditionedRows(self.language, self.logp_RV, parts)


@dataclass(eq=False)
class _SegmentRows:
    """A segment up to its last gap with a law. Messages are worked out when somebody asks.

    Attributes:
        segment: The segment.
        weights: Of each place the weights of the edges there.
        reached: The weights of states before a place, as far as they are known, from the left.
        ahead: The weights of states behind the last places, from the right.
    """

    segment: CanvasSegment
    weights: list[Weights]
    reached: list[Weights]
    ahead: list[Weights]

    @staticmethod
    def of_canvas(
        segment: CanvasSegment,
        canvas: Canvas,
        begin: int,
        rows: Sequence[int],
        inside: Sequence[int],
        logp_RV: Tensor,
    ) -> _SegmentRows:
        """Read a canvas up to the last gap of a segment whose law is known.

        Args:
            segment: The segment.
            canvas: Prompt and answer; None is a gap.
            begin: First position of the answer.
            rows: Gaps whose laws are known, ascending.
            inside: Indices of those that the segment speaks of, at least one.
            logp_RV: The laws, shape ``[R, V]``.

        Returns:
            Its messages, none worked out yet.
        """
        first = begin + segment.start
        count = rows[inside[-1]] + 1 - first
        laws_RC = segment.class_laws(logp_RV[list(inside)].numpy())
        law_of = {rows[i]: law_C for i, law_C in zip(inside, laws_RC, strict=True)}
        weights = [
            segment.edge_weights(canvas[first + t], segment.start + t, law_of.get(first + t))
            for t in range(count)
        ]
        # State 0 is the one in which every text begins.
        start_S = np.full(segment.automaton.state_count, NEVER)
        start_S[0] = 0.0
        end_S = segment.end_weights(canvas, begin, segment.start + count)
        return _SegmentRows(segment, weights, [start_S], [end_S])

    def token_weights(self, places: Sequence[int]) -> Weights:
        """What each token of the vocabulary leads to and comes from, logarithms, [places, V]."""
        count = len(self.weights)
        # Both lists grow as far as somebody asks, and keep what is still valid.
        while len(self.reached) <= max(places):
            t = len(self.reached) - 1
            self.reached.append(self.segment.step_right(self.weights[t], self.reached[t]))
        while count - len(self.ahead) > min(places):
            t = count - len(self.ahead)
            self.ahead.append(self.segment.step_left(self.weights[t], self.ahead[-1]))
        a = self.segment.automaton
        reached_RS = np.stack([self.reached[t] for t in places])
        ahead_RS = np.stack([self.ahead[count - t - 1] for t in places])
        path_RE = reached_RS[:, a.source_E] + ahead_RS[:, a.target_E]
        early = [i for i, t in enumerate(places) if self.segment.start + t < self.segment.first_end]
        if early:
            path_RE[early] = np.where(self.segment.is_end_E, NEVER, path_RE[early])
        # The last entry stands for tokens of no class.
        class_RC = self.segment.class_groups.log_sums(path_RE)
        return np.append(class_RC, np.full((len(places), 1), NEVER), 1)[:, a.class_V]

    def fill_place(self, place: int, token: int) -> None:
        """Put a token there, and forget what hung on the gap.

        Args:
            place: Place of the gap in the segment.
            token: Token id.
        """
        at = self.segment.start + place
        self.weights[place] = self.segment.edge_weights(token, at, None)
        # To the right of it what is reached changed, to the left what lies ahead.
        del self.reached[place + 1 :]
        del self.ahead[len(self.weights) - place :]

    def fork_rows(self) -> _SegmentRows:
        return _SegmentRows(self.segment, list(self.weights), list(self.reached), list(self.ahead))
