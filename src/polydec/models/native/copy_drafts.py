"""Drafts of copies and counts by the compiled library: what
`methods/speculative/drafters/copy_ngram_mixture.py` does in Python, to the bit."""

from __future__ import annotations

import ctypes as C
from array import array
from collections.abc import Sequence
from functools import cache

import numpy as np

from polydec.core.types import Draft
from polydec.models.native.library import native_library_path

_I = C.c_int
_P = C.c_void_p
_SIGNATURES = {
    "copies_table": (_P, [_I, _I, C.c_uint64, _P, _P, _P]),
    "copies_table_free": (None, [_P]),
    "copies_new": (_P, [_P, C.c_double, _I, _I, _I, _P, _I]),
    "copies_copy": (_P, [_P]),
    "copies_free": (None, [_P]),
    "copies_read": (_I, [_P, _P, C.c_uint64]),
    "copies_learn": (_I, [_P, _I]),
    "copies_propose": (_I, [_P, _I, _I, _I, C.c_double, _P, _P, _P]),
}


@cache
def _library() -> C.PyDLL | None:
    """The library, or None where it was not built or does not load.

    Its calls hold the interpreter's lock: they take microseconds, and whoever gives the lock away
    waits longer than that for it.
    """
    try:
        lib = C.PyDLL(str(native_library_path()))
        for name, (result, arguments) in _SIGNATURES.items():
            f = getattr(lib, name)
            f.restype = result
            f.argtypes = arguments
    except (OSError, AttributeError):  # an older library has no such function
        return None
    return lib


class NativeNgramTable:
    """An n-gram table as the library reads it.

    Args:
        library: The library.
        order: Tokens of the longest context.
        key_M: Keys of the M contexts, as in `NGrams`.
        follower_MK: Of each context its K likeliest followers.
        chance_MK: How likely each of them is.

    Raises:
        MemoryError: There is no memory for it.
    """

    __slots__ = ("_held", "handle", "library")

    def __init__(
        self,
        library: C.PyDLL,
        order: int,
        key_M: np.ndarray,
        follower_MK: np.ndarray,
        chance_MK: np.ndarray,
    ) -> None:
        self.library = library
        self.handle = None
        # The types that the library reads, each array in one piece.
        key, follower, chance = (
            np.ascontiguousarray(a, t)
            for a, t in ((key_M, np.uint64), (follower_MK, np.uint16), (chance_MK, np.uint8))
        )
        # Python must not free these arrays while the library has their addresses.
        self._held = follower, chance  # the library reads them where they lie
        self.handle = _made(
            library.copies_table(
                order,
                follower.shape[1],
                len(key),
                key.ctypes.data,
                follower.ctypes.data,
                chance.ctypes.data,
            )
        )

    def __del__(self) -> None:
        if self.handle is not None:
            self.library.copies_table_free(self.handle)


def build_native_table(
    order: int, key_M: np.ndarray, follower_MK: np.ndarray, chance_MK: np.ndarray
) -> NativeNgramTable | None:
    """Make an n-gram table for the library.

    Args:
        order: Tokens of the longest context.
        key_M: Keys of the M contexts, as in `NGrams`.
        follower_MK: Of each context its K likeliest followers.
        chance_MK: How likely each of them is.

    Returns:
        The table; None where there is no library.
    """
    library = _library()
    if library is None:
        return None
    return NativeNgramTable(library, order, key_M, follower_MK, chance_MK)


class NativeCopyDrafter:
    """A text, what stood in it before, and what a table adds to that. Its memory is given back with
    the object."""

    __slots__ = ("_at", "_buffer", "_handle", "_library", "_room", "_table")

    def __init__(self, table: NativeNgramTable, handle: int) -> None:
        self._table = table
        self._library = table.library
        self._handle = handle
        self._room = 0
        self._buffer = (array("i"), array("i"), array("d"))
        self._at = (0, 0, 0)  # where the library writes

    @staticmethod
    def of_table(
        table: NativeNgramTable,
        *,
        trust: float,
        prior: Sequence[float],
        min_match: int,
        copies: int,
        width: int,
    ) -> NativeCopyDrafter:
        """A drafter for an empty text.

        Args:
            table: The n-gram table.
            trust: How many observations the prior counts for, as in `SuffixDrafter`.
            prior: By length of a match, the probability that a copy comes true before anything was
                observed.
            min_match: Tokens of the shortest match, as in `SuffixDrafter`.
            copies: How many copies are followed at a time (`SuffixDrafter`'s width).
            width: Followers of a node, as in `CopyNGramMixtureDrafter`.

        Returns:
            The drafter.

        Raises:
            MemoryError: There is no memory for it.
        """
        # The library copies it: it need not live longer than the call.
        cells = array("d", prior)
        return NativeCopyDrafter(
            table,
            _made(
                table.library.copies_new(
                    table.handle,
                    trust,
                    min_match,
                    copies,
                    width,
                    cells.buffer_info()[0],
                    len(cells),
                )
            ),
        )

    def read_tokens(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text; nothing is learned about how often copies come true."""
        # One call for all of the prompt, which is read once.
        fed = array("i", tokens)
        _checked(self._library.copies_read(self._handle, fed.buffer_info()[0], len(fed)))

    def learn_tokens(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text, and learn from them how often copies come true."""
        for x in tokens:
            _checked(self._library.copies_learn(self._handle, x))

    def propose_tree(self, root: int, depth: int, nodes: int, floor: float) -> Draft:
        """Propose a tree of the likeliest paths.

        Args:
            root: The pending token.
            depth: Levels of the tree below the root.
            nodes: Nodes of the tree, the root left out.
            floor: No path less likely than this is proposed, 0 to 1.

        Returns:
            The draft; the root alone where nothing is likely enough.

        Raises:
            MemoryError: There is no memory for it.
        """
        # Buffers grow as needed and are used again: addresses are looked up once.
        if self._room <= nodes:
            self._room = nodes + 1
            self._buffer = tuple(
                array(kind, bytes(array(kind).itemsize * self._room)) for kind in "iid"
            )
            self._at = tuple(buffer.buffer_info()[0] for buffer in self._buffer)
        n = _checked(
            self._library.copies_propose(self._handle, root, depth, nodes, floor, *self._at)
        )
        # Nothing but the root: no draft is worth a node.
        if n == 1:
            return Draft.chain_draft(root)
        token, parent, chance = self._buffer
        return Draft.certain_tree(token[:n], parent[:n], chance[:n])

    def copy(self) -> NativeCopyDrafter:
        """A twin that goes on by itself."""
        return NativeCopyDrafter(self._table, _made(self._library.copies_copy(self._handle)))

    def __del__(self) -> None:
        self._library.copies_free(self._handle)


def _made(handle: int | None) -> int:
    if not handle:
        raise MemoryError("there is no memory for copies of a text")
    return handle


def _checked(answer: int) -> int:
    if answer < 0:
        raise MemoryError("there is no memory for copies of a text")
    return answer
