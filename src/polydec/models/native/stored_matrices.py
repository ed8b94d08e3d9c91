"""Matrices that were quantised when a model was loaded, stored in the cache folder: the next load
maps them."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from polydec.base import files
from polydec.models.nets.linear import profile_path

MOST = 1 << 28
"""Numbers of a model whose matrices are kept: draft models are small, and a large one would fill a
disk."""
ROOM = 1 << 29
"""Bytes of the folder; what was not used for the longest is dropped first."""
HEAD = 4
"""Bytes of the checksum before a matrix."""


def quantised_cache_folder() -> Path:
    """$XDG_CACHE_HOME/polydec/quantised."""
    return profile_path().with_name("quantised")


def cached_quantised_blocks(
    kind: str, source: Iterable[Any], shape: tuple[int, ...], make: Callable[[], np.ndarray]
) -> np.ndarray:
    """The blocks of a matrix: stored ones, else those that are made now, which are then stored.

    What is damaged is made anew, and a folder that cannot be written to is no fault.

    Args:
        kind: Kind of the blocks; part of the name that they are stored by.
        source: The arrays that the matrix is made of; a hash of them is the rest of the name.
        shape: Shape of the blocks, uint8.
        make: Makes the blocks.

    Returns:
        The blocks, ``shape``, uint8; read-only where they are mapped.
    """
    # The leading 1 is the version of the stored form; the content of the sources is all of the
    # rest, so no file name or date can mislead.
    name = hashlib.sha256(f"1 {kind} {shape}".encode())
    for part in source:
        name.update(f"{part.dtype} {tuple(part.shape)}".encode())
        name.update(_bytes(part).data)
    path = quantised_cache_folder() / f"{name.hexdigest()}.bin"
    packed = _read(path, shape)
    if packed is not None:
        return packed
    made = make()
    with suppress(OSError):
        files.replace_file_atomically(path, lambda at: _write(at, made))
        _drop_old(path.parent)
    return made


def _bytes(part: Any) -> np.ndarray:
    """Of an array or a tensor."""
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).view(np.uint8).reshape(-1)
    import torch

    return part.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """What is kept there; None where there is nothing, or it is damaged."""
    try:
        whole = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return None
    check = whole[:HEAD].tobytes()
    body = whole[HEAD:]
    # A file that another process is cut off in writing, or a bad disk: the checksum finds out.
    if body.size != int(np.prod(shape)) or zlib.crc32(body.data).to_bytes(4, "little") != check:
        return None
    # The time of the last use decides what is dropped first.
    with suppress(OSError):
        os.utime(path)
    return body.reshape(shape)


def _write(at: Path, made: np.ndarray) -> None:
    body = np.ascontiguousarray(made).reshape(-1)
    with at.open("wb") as file:
        file.write(zlib.crc32(body.data).to_bytes(4, "little"))
        file.write(body.data)


def _drop_old(where: Path) -> None:
    """While the folder holds more than ROOM, delete what was not used for the longest."""
    kept = [(x.stat().st_mtime, x.stat().st_size, x) for x in where.glob("*.bin")]
    size = sum(s for _, s, _ in kept)
    for _, own, path in sorted(kept):
        if size <= ROOM:
            return
        path.unlink(missing_ok=True)
        size -= own
