"""What insertion hands around: a text with the places where it may grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class InsertionSheet:
    """An answer while it grows.

    token: what stands; behind: of the prompt's last token and of each of these the gap that opens behind it, None where
    nothing may be put; room: of each gap how many tokens it still takes. A token that is put into a gap has it on both sides.
    """

    token: tuple[int, ...]
    behind: tuple[int | None, ...]
    room: tuple[int, ...]

    @staticmethod
    def of(answer: Sequence[int | None]) -> InsertionSheet:
        """None stands for a gap; a run of so many is one that takes up to so many tokens."""
        token = list[int]()
        behind = list[int | None]([None])
        room = list[int]()
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
        """Where a token may be put: 0 is behind the prompt, i behind token i - 1."""
        return tuple(i for i, gap in enumerate(self.behind) if gap is not None and self.room[gap])

    def put(self, slot: int, token: int) -> InsertionSheet:
        """With one more token in an open slot."""
        gap = self.behind[slot]
        stop = slot + 1
        room = tuple(n - (i == gap) for i, n in enumerate(self.room))
        return InsertionSheet(
            (*self.token[:slot], token, *self.token[slot:]),
            (*self.behind[:stop], gap, *self.behind[stop:]),
            room,
        )
