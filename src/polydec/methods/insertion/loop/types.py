"""Data of insertion: a text with the places where it may grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class InsertionSheet:
    """An answer while it grows.

    Attributes:
        token: Token ids that stand, in order.
        behind: For the prompt's last token and for each of these, the number of the gap that opens
            after it; None where nothing may be put.
        room: Tokens that each gap still takes. A token that is put into a gap has it on both sides.
    """

    token: tuple[int, ...]
    behind: tuple[int | None, ...]
    room: tuple[int, ...]

    @staticmethod
    def of_answer(answer: Sequence[int | None]) -> InsertionSheet:
        """Make the sheet of an answer with gaps.

        None stands for a gap; a run of n of them is one gap that takes up to n tokens.
        """
        token = list[int]()
        behind = list[int | None]([None])
        room = list[int]()
        # The leading 0 stands for the prompt's last token, so that a first gap opens like any
        # other.
        for before, x in pairwise((0, *answer)):
            if x is not None:
                token.append(x)
                behind.append(None)
            elif before is None:
                room[-1] += 1
            else:
                behind[-1] = len(room)
                room.append(1)
        return InsertionSheet(tuple(token), tuple(behind), tuple(room))

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots where a token may be put: 0 follows the prompt, i follows token i - 1."""
        return tuple(i for i, gap in enumerate(self.behind) if gap is not None and self.room[gap])

    def with_token(self, slot: int, token: int) -> InsertionSheet:
        """Return the sheet with one more token.

        Args:
            slot: An open slot, one of `slots`.
            token: Token id.
        """
        gap = self.behind[slot]
        stop = slot + 1
        room = tuple(n - (i == gap) for i, n in enumerate(self.room))
        return InsertionSheet(
            (*self.token[:slot], token, *self.token[slot:]),
            (*self.behind[:stop], gap, *self.behind[stop:]),
            room,
        )
