"""Files that an interruption, a full disk or a second process cannot spoil."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from polydec.base.edge import error_sentence
from polydec.base.errors import FileError, UnwritableError

try:
    import fcntl
except ImportError:  # no such system: the lock is a file that only one process can create
    fcntl = None

STALE = 30.0
"""Seconds after which a lock without fcntl counts as left behind by a process that died."""


class FileLockedError(FileError):
    """Another process holds the lock."""


def replace_file_atomically(path: Path, write: Callable[[Path], Any], *, mode: int = 0o644) -> None:
    """Call write(temporary path), then move that file to `path`: what is there is always whole. mode: who may read it. Raises
    UnwritableError, one sentence that names the file, where the disk is full or the folder cannot be written to; what was there
    is then as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with translate_write_errors(f"file {str(path)!r}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            temporary.chmod(mode)  # some writers make files that only their owner can read
            with open(temporary, "rb") as f:
                os.fsync(f.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def translate_write_errors(what: str) -> Iterator[None]:
    """Around what writes a file: whatever the system, torch or safetensors says of a full disk becomes one sentence.

    Args:
        what: the file, as the sentence begins.

    Raises:
        UnwritableError: it cannot be written, and why.
    """
    try:
        yield
    except UnwritableError:
        raise
    except Exception as error:
        reason = _unwritable(error)
        if reason is None:
            raise
        said = UnwritableError(error_sentence(f"{what} cannot be written: {reason}"))
        said.strerror = reason
        raise said from None


def _unwritable(error: Exception) -> str | None:
    """Why a file cannot be written, None for another error. torch and safetensors have words of their own for what the system
    said."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    words = str(error)
    if "PytorchStreamWriter" in words or "inline_container" in words:
        return "the disk is full, or it may not grow so large"
    if type(error).__name__ == "SafetensorError" and "os error" in words:
        return words.rpartition("I/O error: ")[2]
    return None


class NamedText:
    """A text file that is open for writing, and whose errors name it. Closed as a context manager."""

    def __init__(self, path: Path, what: str) -> None:
        with translate_write_errors(what):
            self._file = path.open("w", encoding="utf-8")
        self._what = what

    def write(self, text: str) -> None:
        """Raises UnwritableError where there is no room for it."""
        with translate_write_errors(self._what):
            self._file.write(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            with translate_write_errors(self._what):
                self._file.close()
        except UnwritableError:
            if kind is None:  # else it has been said
                raise


@contextmanager
def hold_file_lock(path: Path, *, wait: float = 20.0) -> Iterator[None]:
    """Hold the lock of `path` (a file `.NAME.lock` beside it) among processes and threads. Raises Locked where another has
    held it for `wait` seconds, OSError where the folder cannot be written to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at = path.with_name(f".{path.name}.lock")
    end = time.monotonic() + wait
    if fcntl is not None:
        hold = _with_fcntl
    else:
        hold = _without
    while (release := hold(at)) is None:
        if time.monotonic() >= end:
            raise FileLockedError(f"{str(path)!r} is being written to by another process")
        time.sleep(0.01)
    try:
        yield
    finally:
        release()


def _with_fcntl(at: Path) -> Callable[[], None] | None:
    """Take the lock; what gives it back, or None where another has it. The system gives it back when a process dies."""
    file = os.open(at, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:  # a file system without locks
        os.close(file)
        return _without(at)
    return lambda: os.close(file)


def _without(at: Path) -> Callable[[], None] | None:
    """The same by another file, which must not be there yet."""
    at = at.with_suffix(".held")
    try:
        os.close(os.open(at, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        with suppress(OSError):
            if time.time() - at.stat().st_mtime > STALE:
                at.unlink(missing_ok=True)
        return None
    return lambda: at.unlink(missing_ok=True)


def end_last_line(path: Path, whole: Callable[[bytes], bool]) -> None:
    """Make a file of lines ready to be appended to: a last line without an end gets one where `whole` says that nothing of
    it is missing, else it is cut off (an interruption left it). Nothing else of the file is touched."""
    with open(path, "r+b") as f:
        size = f.seek(0, os.SEEK_END)
        begin = size
        tail = b""
        while begin and b"\n" not in tail:
            step = min(1 << 16, begin)
            begin -= step
            f.seek(begin)
            tail = f.read(step) + tail
        at = tail.rfind(b"\n") + 1
        if at == len(tail):
            return
        if whole(tail[at:]):
            f.seek(size)
            f.write(b"\n")
        else:
            f.truncate(begin + at)
