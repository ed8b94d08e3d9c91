"""Ctrl-C and SIGTERM, taken where nothing that was done is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM)


class SigtermInterrupt(KeyboardInterrupt):
    """SIGTERM came: the same as Ctrl-C, but that no loop of questions goes on behind it."""


def _raised(number: int, frame: Any) -> None:
    raise SigtermInterrupt if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """Raise SigtermInterrupt for SIGTERM inside this context, so that files are closed and what is
    known is said.

    Nothing changes where somebody else takes SIGTERM, or in another thread than the main one.
    """
    with _handled((signal.SIGTERM,), _raised, (signal.SIG_DFL,)):
        yield


class PostponedInterrupts:
    """The interrupts that came inside `postpone_interrupts`.

    Called, it says whether one came. In another thread than the main one, which no signal reaches,
    it never says so.
    """

    def __init__(self) -> None:
        self._came = list[int]()
        self._held = 0

    def __call__(self) -> bool:
        return bool(self._came)

    def add_interrupt(self, number: int, frame: Any) -> bool:
        """Note an interrupt; the second one raises, unless what is under way must stay whole.

        Args:
            number: The signal.
            frame: Not read.

        Returns:
            Whether it is the first one.

        Raises:
            KeyboardInterrupt: It is a later one.
        """
        self._came.append(number)
        if len(self._came) > 1 and not self._held:
            _raised(number, frame)
        return len(self._came) == 1

    @contextmanager
    def without_interrupts(self) -> Iterator[None]:
        """Inside, no interrupt raises: whoever works asks afterwards whether one came."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1


@contextmanager
def postpone_interrupts(notice: str) -> Iterator[PostponedInterrupts]:
    """Inside, the first Ctrl-C or SIGTERM is only noted, and the second ends the work at once
    (KeyboardInterrupt).

    Args:
        notice: what is written on standard error when the first one comes, one line.

    Yields:
        What came: whoever works asks it where it can stop.
    """
    came = PostponedInterrupts()

    def note_signal(number: int, frame: Any) -> None:
        """Note the first signal; the second one raises.

        Args:
            number: The signal.
            frame: Not read.
        """
        # Of the second one nothing is said: nobody wants to wait any longer.
        if came.add_interrupt(number, frame):
            os.write(2, f"{notice}\n".encode())  # print may not be called while it is being called

    usual = (signal.SIG_DFL, signal.default_int_handler, _raised)
    with _handled(STOPS, note_signal, usual):
        yield came


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...],
    handler: Callable[[int, Any], None],
    usual: tuple[Any, ...],
) -> Iterator[None]:
    """Inside, `handler` takes these signals, but for those that something else than `usual` takes
    (SIG_IGN of a job in the background, a handler of a program that this is part of).
    """
    before = dict[signal.Signals, Any]()
    # Signal handlers can only be set in the main thread.
    if threading.current_thread() is threading.main_thread():
        # Only where the usual handler stands: handlers of a program around this one stay.
        before = {n: have for n in numbers if (have := signal.getsignal(n)) in usual}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        # Whatever happened inside, the former handlers come back.
        for number, have in before.items():
            signal.signal(number, have)


@contextmanager
def said_when_stopped(sentence: Callable[[], str]) -> Iterator[None]:
    """Where Ctrl-C or SIGTERM ends what is inside, KeyboardInterrupt says what is kept and how to
    go on.

    Args:
        sentence: makes what is said, when it is; not asked where whoever was stopped has said it.

    Raises:
        KeyboardInterrupt: with that sentence.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        # SigtermInterrupt stays what it is: the exit code depends on it.
        raise type(stop)(str(stop) or sentence()) from None
