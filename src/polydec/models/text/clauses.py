"""Clauses of a text in tokens: where they stand, and marks around some of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

SURE = (b".", b"!", b"?", b";", b":")
"""What ends a clause, where white space or the end of the text follows."""
SOFT = (b",",)
"""What ends one of at least `LEAST` tokens."""
LEAST = 4
WINDOW = 8
"""Tokens of a clause where nothing says what tokens mean."""

CLAUSE_MARKS = ("<e>", "</e>")
"""Tokens before and behind a clause of a plan, in models that were trained to write by plans."""

ClauseSpan = tuple[int, int]
"""First token of a clause, and the one behind its last."""


def clause_spans(
    ids: Sequence[int], pieces: Sequence[bytes | None] | None, most: int
) -> tuple[ClauseSpan, ...]:
    """Cut a text into clauses.

    Args:
        ids: Token ids.
        pieces: Of each id its bytes, None for a mark, which belongs to no clause. None: not known,
            and every `WINDOW` tokens are a clause.
        most: Clauses at most; what lies behind the last belongs to none.

    Returns:
        The clauses in order; up to the last of them they hold all tokens but marks.
    """
    # Laws without a text, as in tests, have clauses all the same.
    if pieces is None:
        starts = range(0, len(ids), WINDOW)
        return tuple((i, min(i + WINDOW, len(ids))) for i in starts)[:most]
    out = list[ClauseSpan]()
    begin = 0
    for i in range(len(ids)):
        here = _bytes_of(ids[i], pieces)
        if here is None:
            # A mark parts what stands on both sides of it.
            if i > begin:
                out.append((begin, i))
            begin = i + 1
            continue
        # One token ahead: "3.5" and "a.b" hold a full stop that ends nothing.
        after = _bytes_of(ids[i + 1], pieces) if i + 1 < len(ids) else None
        over = after is None or after[:1].isspace() or here[-1:] == b"\n"
        ended = here.rstrip().endswith(SURE) or here.endswith(b"\n")
        # A comma parts clauses, and also the short items of a list, which stay together.
        ended = ended or (here.rstrip().endswith(SOFT) and i + 1 - begin >= LEAST)
        if over and ended:
            out.append((begin, i + 1))
            begin = i + 1
    if begin < len(ids):
        out.append((begin, len(ids)))
    return tuple(out[:most])


def mark_clauses(
    ids: Sequence[int],
    spans: Sequence[ClauseSpan],
    chosen: Collection[int],
    marks: tuple[int, int],
) -> tuple[int, ...]:
    """Put marks around some clauses, in the order of the text.

    Args:
        ids: Token ids of the text.
        spans: Its clauses.
        chosen: Numbers of the clauses that are marked.
        marks: What stands before and behind each of them.

    Returns:
        The text with marks; the text itself where none is chosen.
    """
    # By place, so the order in which clauses were chosen does not show.
    opened = {spans[i][0] for i in chosen}
    closed = {spans[i][1] for i in chosen}
    out = list[int]()
    # One place more than there are tokens, where the last clause may close.
    for at in range(len(ids) + 1):
        # A clause closes before its neighbour opens at the same place.
        if at in closed:
            out.append(marks[1])
        if at in opened:
            out.append(marks[0])
        out += ids[at : at + 1]
    return tuple(out)


def _bytes_of(token: int, pieces: Sequence[bytes | None]) -> bytes | None:
    # Some checkpoints have more rows than their tokenizer has tokens.
    return pieces[token] if token < len(pieces) else None
