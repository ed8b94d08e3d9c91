"""Files that an interruption, a full disk or a second process cannot spoil."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from polydec.base.edge import error_sentence
from polydec.base.errors import FileError, RequestError, UnwritableError

try:
    import fcntl
except ImportError:  # no such system: the lock is a file that only one process can create
    fcntl = None

STALE = 30.0
"""Seconds after which a lock without fcntl counts as left behind by a process that died."""


class FileLockedError(FileError):
    """Another process holds the lock."""


def replace_file_atomically(path: Path, write: Callable[[Path], Any], *, mode: int = 0o644) -> None:
    """Write a file through a temporary one, so that what stands at its path is always complete.

    Args:
        path: The file.
        write: Writes the content to the path that it is given.
        mode: Permission bits of the file. Default 0o644.

    Raises:
        UnwritableError: The disk is full, or the folder cannot be written to; what was there is as
            it was.
    """
    # In the same folder, so that the move stays on one file system; two writers have different
    # names by their process ids.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with translate_write_errors(f"file {str(path)!r}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            temporary.chmod(mode)  # some writers make files that only their owner can read
            # The content must be on the disk before the name points to it.
            with open(temporary, "rb") as f:
                os.fsync(f.fileno())
            os.replace(temporary, path)
        finally:
            # After a success there is nothing left to remove.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def require_writable_file(flag: str, path: Path | None) -> None:
    """Refuse a path that no file could be written to: said before what takes hours.

    Args:
        flag: Name of the flag that gives it, without its hyphens.
        path: The path, whose folder is made where it is missing; None: nothing is checked.

    Raises:
        RequestError: It cannot be written, and why.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The only sure test of a folder is to write into it.
        with TemporaryFile(dir=path.parent):
            folder = path.is_dir()
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        raise RequestError(
            error_sentence(
                f"--{flag} {str(path)!r} cannot be written: {getattr(error, 'strerror', error)}"
            )
        ) from None
    if folder:
        raise RequestError(
            error_sentence(f"--{flag} {str(path)!r} cannot be written: it is a folder")
        )


@contextmanager
def translate_write_errors(what: str) -> Iterator[None]:
    """Around what writes a file: whatever the system, torch or safetensors says of a full disk
    becomes one sentence.

    Args:
        what: the file, as the sentence begins.

    Raises:
        UnwritableError: it cannot be written, and why.
    """
    try:
        yield
    # An inner context has said it already.
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
    """Why a file cannot be written, None for another error. torch and safetensors have words of
    their own for what the system said.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # These libraries raise errors of their own, which are known by their words.
    words = str(error)
    if "PytorchStreamWriter" in words or "inline_container" in words:
        return "the disk is full, or it may not grow so large"
    if type(error).__name__ == "SafetensorError" and "os error" in words:
        return words.rpartition("I/O error: ")[2]
    return None


class NamedText:
    """A text file that is open for writing, and whose errors name it. It is closed as a context
    manager.

    Args:
        path: The file.
        what: How an error begins.
    """

    def __init__(self, path: Path, what: str) -> None:
        with translate_write_errors(what):
            self._file = path.open("w", encoding="utf-8")
        self._what = what

    def write_text(self, text: str) -> None:
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
    """Hold the lock of a file among processes and threads.

    The lock is a file `.NAME.lock` in the same folder.

    Args:
        path: The file.
        wait: Seconds to wait for the lock. Default 20.

    Yields:
        Nothing; the lock is held until the context ends.

    Raises:
        FileLockedError: Another has held the lock for so long.
        OSError: The folder cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    at = path.with_name(f".{path.name}.lock")
    end = time.monotonic() + wait
    if fcntl is not None:
        hold = _with_fcntl
    else:
        hold = _without
    # The lock is polled: the system has no lock with a time limit.
    while (release := hold(at)) is None:
        if time.monotonic() >= end:
            raise FileLockedError(f"{str(path)!r} is being written to by another process")
        time.sleep(0.01)
    try:
        yield
    finally:
        release()


def _with_fcntl(at: Path) -> Callable[[], None] | None:
    """Take the lock; what gives it back, or None where another has it. The system gives it back
    when a process dies.
    """
    # O_CLOEXEC: a child process would hold the lock for as long as it lives.
    file = os.open(at, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:  # a file system without locks
        os.close(file)
        return _without(at)
    # Closing the file gives the lock back.
    return lambda: os.close(file)


def _without(at: Path) -> Callable[[], None] | None:
    """The same by another file, which must not be there yet."""
    at = at.with_suffix(".held")
    try:
        # O_EXCL: creating the file is the one step that only one process can do.
        os.close(os.open(at, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        with suppress(OSError):
            # Nobody removes the lock of a process that died, so an old one is taken away.
            if time.time() - at.stat().st_mtime > STALE:
                at.unlink(missing_ok=True)
        return None
    return lambda: at.unlink(missing_ok=True)


def end_last_line(path: Path, whole: Callable[[bytes], bool]) -> None:
    """Make a file of lines ready to be appended to.

    A last line without an end gets one where it is complete; otherwise it is cut off (an
    interruption left it). Nothing else of the file is touched.

    Args:
        path: The file; it must exist.
        whole: Tells of such a last line whether nothing of it is missing.
    """
    with open(path, "r+b") as f:
        size = f.seek(0, os.SEEK_END)
        begin = size
        tail = b""
        # Backwards in blocks up to the last line end: the file may be large.
        while begin and b"\n" not in tail:
            step = min(1 << 16, begin)
            begin -= step
            f.seek(begin)
            tail = f.read(step) + tail
        at = tail.rfind(b"\n") + 1
        # The last line has its end.
        if at == len(tail):
            return
        if whole(tail[at:]):
            f.seek(size)
            f.write(b"\n")
        else:
            f.truncate(begin + at)
