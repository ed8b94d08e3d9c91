"""Passes in groups: the first one plans what the group fills, and the others run on that alone (ReCAP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import approximate_exactness, draw_block_tokens
from polydec.methods.diffusion.loop.types import UnmaskerView
from polydec.methods.diffusion.unmaskers.annealed import AnnealedUnmasker, draw_by_score


@dataclass(frozen=True)
class GroupState:
    """Where a block stands.

    Attributes:
        begun: Gaps of the block at its begin.
        step: Passes of the block so far.
        planned: Positions that the group fills, in the order of their turn; none between groups.
        beside: Positions that the group's passes feed beside these: the prompt's, or none.
        counts: How many of them each pass fills that is left of the group.
    """

    begun: int = 0
    step: int = 0
    planned: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupedUnmasker:
    """MaskGIT's passes in groups, of which the first feeds all and the others what the group fills.

    The first pass of a group runs over the whole canvas. It says which positions the group fills, as
    many as the schedule gives all of its passes, in the order of their scores, and writes the first
    of them. Each further pass of the group feeds these positions alone, against keys and values of
    all others as the first pass left them, and writes the next in that order, drawn anew. The first
    `before` passes of a block are groups of their own: there the layout of all is decided. With
    `prompt_fed` the prompt runs anew in each pass, as the published network's one token of a class
    does; without it is one of the others.

    Attributes:
        schedule: How many gaps each pass fills, and by which scores.
        before: Passes at the begin of a block that feed all, 0 or more. Default 0.
        partial: Passes of a group behind its first, 0 to 64. Default 1.
        prompt_fed: Whether these feed the prompt as well. Default False.

    Exact: no: as `annealed`, and partial passes see a canvas in which the group's tokens are not
    there yet.
    Reduces to: `annealed` for partial 0, or where before is at least its steps.
    Source: "Plug-and-play context feature reuse for efficient masked generation" (ReCAP, 2025).
    """

    schedule: AnnealedUnmasker = field(default_factory=AnnealedUnmasker)
    before: int = 0
    partial: int = 1
    prompt_fed: bool = False
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness

    def __post_init__(self) -> None:
        if self.before < 0:
            raise RequestError(f"before is {self.before}: it must be at least 0")
        if not 0 <= self.partial <= 64:
            raise RequestError(f"partial is {self.partial}: it must lie in 0 to 64")

    def start_state(self, canvas: Canvas) -> GroupState:
        """Begin an answer.

        Args:
            canvas: Not read.

        Returns:
            The state of no block.
        """
        return GroupState()

    def enter_block(self, state: GroupState, count: int) -> GroupState:
        """Begin a block.

        Args:
            state: Not read: a group ends with its block.
            count: Gaps of the block.

        Returns:
            The state before its first pass.
        """
        return GroupState(count)

    def planned_positions(self, state: GroupState) -> Sequence[int] | None:
        """What the next pass feeds.

        Args:
            state: State before the pass.

        Returns:
            The positions of its group and what is fed beside them, ascending; None: it begins a group, and feeds all.
        """
        if not state.counts:
            return None
        return sorted((*state.beside, *state.planned))

    def pass_counts(self, state: GroupState, now: int) -> list[int]:
        """Count the gaps that each pass of a group fills which begins here.

        Args:
            state: State before its first pass.
            now: Gaps of the block, at least 1.

        Returns:
            As many counts as the group has passes, each at least 1.
        """
        if state.step < self.before:
            passes = 1
        else:
            passes = 1 + self.partial
        counts = list[int]()
        for step in range(state.step, state.step + passes):
            if now == 0:
                break
            left = self.schedule.gaps_left(state.begun, step, now)
            counts.append(now - left)
            now = left
        return counts

    def choose_edit(
        self, state: GroupState, look: UnmaskerView, rng: Rng
    ) -> tuple[TextEdit, GroupState]:
        """Plan a group and write its first tokens, or write the next ones.

        Args:
            state: State before the pass.
            look: What the pass shows: canvas, block, and the laws at the gaps that it fed.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        cooled = self.schedule.cooled_view(look, state.step)
        look, tokens, confidence_R = draw_block_tokens(cooled, rng)
        if not state.counts:
            counts = self.pass_counts(state, len(tokens))
            order = draw_by_score(
                confidence_R.log(),
                self.schedule.noise_at(state.step),
                sum(counts),
                rng.child_stream("order", look.step),
            )
            planned = tuple(look.rows[i] for i in order)
            # The plan is made once a group, and says what all its passes feed.
            beside = tuple(range(look.begin)) if self.prompt_fed else ()
            state = replace(state, planned=planned, counts=tuple(counts), beside=beside)
        count, *later = state.counts
        begin = len(state.planned) - sum(state.counts)
        row_of = {position: i for i, position in enumerate(look.rows)}
        chosen = [row_of[p] for p in state.planned[begin : begin + count]]
        after = GroupState(state.begun, state.step + 1)
        # A group ends with its last pass, or with an end of the answer, behind which nothing is filled.
        ended = any(tokens[i] in look.ends for i in chosen)
        if later and not ended:
            after = replace(after, planned=state.planned, counts=tuple(later), beside=state.beside)
        return look.fill_edit(chosen, tokens), after
