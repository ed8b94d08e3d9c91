"""Data that denoising passes on: canvases, and the laws at their gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydec.core.canvas_law import AllowedCanvases, AllowedRows, Canvas
from polydec.core.law import float64_probabilities, normalise_log_weights
from polydec.core.protocols import Shaper
from polydec.core.rng import Rng
from polydec.core.types import TextEdit


def gap_positions(canvas: Canvas, start: int = 0, stop: int | None = None) -> tuple[int, ...]:
    """Return the gaps of a part of a canvas, ascending.

    Args:
        canvas: Token ids by position; None is a gap.
        start: First position that is looked at. Default 0.
        stop: Position after the last one. None: the end of the canvas.
    """
    return tuple(i for i, x in enumerate(canvas[start:stop], start) if x is None)


def canvas_with_edit(canvas: Canvas, edit: TextEdit) -> Canvas:
    """Return a canvas with an edit's tokens written into it.

    Args:
        canvas: Token ids by position; None is a gap.
        edit: Positions and tokens; only its writes count.
    """
    out = list(canvas)
    for position, token in edit.write:
        out[position] = token
    return tuple(out)


@dataclass(frozen=True)
class KnownTokenLaw:
    """What the model says where a token stands already.

    Attributes:
        sure: The highest probability of its law.
        clear: How far the best logit lies above the second best.
    """

    sure: float
    clear: float


@dataclass(frozen=True, eq=False)
class UnmaskerView:
    """What an unmasker sees of one pass.

    Attributes:
        canvas: Canvas as it was fed; None is a gap.
        block: Positions that may be filled now.
        rows: Gaps whose laws are known, ascending: those of the block, and the later ones too where
            the unmasker wants all of them (`Unmasker.everywhere`) and all were fed.
        logw_RV: Log-weights of the model at `rows`, shape ``[R, V]``, float64, not normalised, -inf
            at the mask token.
        shapers: Rules that change the law that tokens are drawn from, never the confidence.
        step: Passes of this answer before this one.
        ends: Token ids that end the answer.
        written: By position of a known token what the model says there, as far as it was asked for
            (`DenoisingDecoder.written`) and fed.
        allowed: Which answers may be written; None: all. Where there is one, every law is that of
            the model on condition that the canvas can be finished, and tokens of one pass are drawn
            from the left, each given those that were drawn before it.
        begin: First position of the answer.
    """

    canvas: Canvas
    block: range
    rows: tuple[int, ...]
    logw_RV: Tensor
    shapers: tuple[Shaper[Any], ...] = ()
    step: int = 0
    ends: frozenset[int] = frozenset()
    written: Mapping[int, KnownTokenLaw] = field(default_factory=dict[int, KnownTokenLaw])
    allowed: AllowedCanvases | None = None
    begin: int = 0

    @cached_property
    def logp_RV(self) -> Tensor:
        """The model's own laws, unshaped, as far as they are allowed."""
        if self._possible is None:
            return normalise_log_weights(self.logw_RV)
        return self._possible.all_laws()

    @cached_property
    def _possible(self) -> AllowedRows | None:
        """The laws on condition that the canvas can be finished; None: all canvases can."""
        if self.allowed is None:
            return None
        logp_RV = normalise_log_weights(self.logw_RV)
        return self.allowed.read_rows(self.canvas, self.begin, self.rows, logp_RV)

    @cached_property
    def shaped_RV(self) -> Tensor:
        """The laws that tokens are drawn from, normalised."""
        if not self.shapers:
            return self.logp_RV
        # What is allowed counts first, then the rules of sampling.
        if self._possible is None:
            rows_RV = self.logw_RV
        else:
            rows_RV = self.logp_RV
        return normalise_log_weights(torch.stack([self._shape_row(w_V) for w_V in rows_RV]))

    def _shape_row(self, logw_V: Tensor) -> Tensor:
        """One row as the rules of sampling shape it, not normalised."""
        for s in self.shapers:
            # Shapers see no text here: rows of a canvas are shaped each by itself, in the rules'
            # order.
            logw_V = s.shape_law(s.start_state(()), logw_V)
        return logw_V

    @cached_property
    def likeliest(self) -> tuple[int, ...]:
        """Each row's likeliest token of those that may be drawn; where not all canvases are allowed
        given those of the rows before it.
        """
        if self._possible is None:
            return tuple(int(x) for x in self.shaped_RV.argmax(-1))
        rows = self._possible.fork_rows()
        out = list[int]()
        for i in range(len(self.rows)):
            out.append(int(self._shape_row(rows.law_of_row(i)).argmax()))
            rows.fill_row(i, out[i])
        return tuple(out)

    @property
    def complete(self) -> bool:
        """Whether the law of every gap of the canvas is known."""
        return len(self.rows) == len(gap_positions(self.canvas))

    def only_rows(self, keep: Sequence[int]) -> UnmaskerView:
        """Return a view of some of the rows, by their indices."""
        return replace(
            self, rows=tuple(self.rows[i] for i in keep), logw_RV=self.logw_RV[list(keep)]
        )

    def inside_block(self) -> UnmaskerView:
        """Return a view of the block's rows alone."""
        keep = [i for i, r in enumerate(self.rows) if r in self.block]
        # Nothing to leave out: the cached laws of this view are kept.
        if len(keep) == len(self.rows):
            return self
        return self.only_rows(keep)

    def draw_token(self, i: int, rng: Rng) -> int:
        """Draw a token for a row; the likeliest one where the law allows no other.

        A Gumbel-argmax draws from the same law; this one inverts its distribution. Where not all
        canvases are allowed, it is given what this view drew from the same stream before.

        Args:
            i: Index of the row.
            rng: Random stream of the answer; the draw is made at
                ``rng.child_stream("token", position, step)``.
        """
        own = rng.child_stream("token", self.rows[i], self.step)
        if self._possible is None:
            return own.draw_categorical(float64_probabilities(self.shaped_RV[i]))
        # Kept with the stream, so that its place in memory is not taken by another one.
        rows = self._drawn.setdefault(id(rng), (rng, self._possible.fork_rows()))[1]
        logp_V = normalise_log_weights(self._shape_row(rows.law_of_row(i)))
        p_V = float64_probabilities(logp_V)
        token = own.draw_categorical(p_V)
        rows.fill_row(i, token)
        return token

    @cached_property
    def _drawn(self) -> dict[int, tuple[Rng, AllowedRows]]:
        """Of each stream the laws given what was drawn from it."""
        return {}

    def draw_tokens(self, rng: Rng) -> tuple[int, ...]:
        """Draw one token for each row: the candidates of rules that look at the token itself."""
        return tuple(self.draw_token(i, rng) for i in range(len(self.rows)))

    def token_confidence(self, tokens: Sequence[int]) -> Tensor:
        """Return the model's own probability of each row's token, shape ``[R]``."""
        # One probability for each row: that of its own token.
        return self.logp_RV[
            torch.arange(len(self.rows)), torch.tensor(tokens, dtype=torch.long)
        ].exp()

    @cached_property
    def entropy_R(self) -> Tensor:
        """Entropy of the model's own law at each row, in nats, shape ``[R]``."""
        return row_entropy(self.logp_RV)

    def fill_edit(
        self, chosen: Sequence[int], tokens: Sequence[int] | Mapping[int, int]
    ) -> TextEdit:
        """Make the edit that fills some rows.

        Args:
            chosen: Indices of the rows to fill.
            tokens: Token of each row, by the row's index.
        """
        # Rows ascend by position, so sorted indices give an ascending edit.
        return TextEdit(write=tuple((self.rows[i], tokens[i]) for i in sorted(chosen)))


def row_entropy(logp_RV: Tensor) -> Tensor:
    """Return the entropy of each row of log-probabilities, in nats."""
    p_RV = logp_RV.exp()
    # 0 log 0 counts as 0; without the fill it would be 0 times -inf, which is NaN.
    return -(p_RV * logp_RV.masked_fill(p_RV == 0, 0.0)).sum(-1)


def best_indices(score_R: Tensor, count: int) -> list[int]:
    """Return the indices of the highest scores, best first, the lowest index first on a tie.

    Args:
        score_R: Scores, shape ``[R]``.
        count: Number of indices at most.
    """
    return sorted(range(len(score_R)), key=lambda i: (-float(score_R[i]), i))[:count]


Rank = tuple[float, ...]
"""Of each position of a canvas when its turn comes, the lowest first; () stands for an order from
the left.
"""


def sort_by_rank(positions: Sequence[int], rank: Rank) -> list[int]:
    """Return positions in the order of their turn.

    Args:
        positions: Positions of the canvas.
        rank: Rank of each position of the canvas, the lowest first; () is an order from the left.
    """
    return sorted(positions, key=lambda p: (rank[p] if rank else 0.0, p))


def pass_quota(count: int, steps: int, step: int) -> int:
    """Return how many gaps a pass fills when they are spread evenly.

    Earlier passes fill one more where the division leaves a rest, so the quotas add up to `count`.

    Args:
        count: Gaps in all.
        steps: Passes in all. 0: one gap a pass.
        step: Number of the pass, from 0.
    """
    if not steps:
        return 1
    # The first `count % steps` passes take one of the rest.
    return count // steps + (step < count % steps)


Pace = tuple[int, int]
"""The state of unmaskers that fill a fixed number: gaps of the block at its begin, and its passes
so far.
"""


def bounded_pass_quota(pace: Pace, steps: int, left: int) -> int:
    """Return how many gaps this pass fills: at least one, at most those that are left.

    Args:
        pace: Gaps of the block when it began, and its passes so far.
        steps: Passes that a block is given. 0: one gap a pass.
        left: Gaps of the block that are left.
    """
    return max(1, min(left, pass_quota(pace[0], steps, pace[1])))
