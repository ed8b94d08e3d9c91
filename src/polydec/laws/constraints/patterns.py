"""Expressions of JSON schemas, which are ECMAScript's, in the library's dialect, so that they mean the same there."""

from __future__ import annotations

import re
from functools import lru_cache

_PIECE = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_LAST = re.compile(r"(?<!\\)\{(\d+),\d*\}$")
"""What stands last may be followed by anything, so its greatest number says nothing, and would
cost much.
"""
_RARE = "\\x1f"
"""A sign that no text of a pattern needs. The library takes a class of all control signs for one
of quotes and backslashes as well, so where these are left out this sign is left out with them.
"""


@lru_cache(maxsize=1024)
def library_pattern(pattern: str) -> str:
    """An expression as the library reads it. What is malformed stays so, and is refused there."""
    return _LAST.sub(r"{\1}", "".join(_piece(x) for x in _PIECE.findall(pattern)))


def _piece(piece: str) -> str:
    # These are escapes of plain signs in ECMAScript, and word boundaries in the library.
    if piece in ("\\<", "\\>"):
        return piece[1]
    if piece == "[^]":
        return "(?s:.)"
    if not piece.startswith("[") or len(piece) < 3:
        return piece
    if piece[1] == "^":
        inside = piece[2:-1]
    else:
        inside = piece[1:-1]
    # Signs that begin set operations inside a class of the library are plain signs in ECMAScript.
    signs = re.sub(
        r"(\\.)|([\[&~]|(?<=-)-)", lambda m: m[1] or f"\\{m[2]}", inside, flags=re.DOTALL
    )
    made = f"[{'^' if piece[1] == '^' else ''}{signs}]"
    # See _RARE: one control sign that nobody needs is taken out of the class.
    if _takes_too_much(made):
        return f"[{made}&&[^{_RARE}]]"
    return made


def _takes_too_much(made: str) -> bool:
    """Whether a class has all control signs, and not both of those that are written behind a
    backslash.
    """
    read = re.sub(r"\\x\{([0-9a-fA-F]{1,6})\}", lambda m: re.escape(chr(int(m[1], 16))), made)
    try:
        known = re.compile(read)
    except (re.error, ValueError, OverflowError):
        return False
    return all(known.match(chr(i)) for i in range(32)) and not all(map(known.match, '"\\'))
