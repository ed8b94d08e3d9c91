"""How many answers are under way, who may add to them, and when it is worth asking again."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from polydec.serve.errors import RefusalError
from polydec.serve.settings import RequestLimits

WINDOW = 10.0
"""Seconds over which the rate of writing is measured."""
UNMEASURED = 5.0
"""Seconds to wait where nothing has been written yet."""


@dataclass(frozen=True)
class RequestLoad:
    """Answers to one prompt. account: whose; answers: how many; left: tokens that each of them may still write; running: they
    are being written."""

    account: str
    answers: int
    left: float
    running: bool


class TokenPace:
    """Tokens a second, and how much of what requests may write they do write. clock: gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._written = deque[tuple[float, int]](maxlen=4096)
        self._last_rate = 0.0
        self._used = deque[float](maxlen=32)

    def wrote(self, tokens: int) -> None:
        """So many were written since this was last said."""
        if tokens:
            self._written.append((self._clock(), tokens))

    def ended(self, written: int, allowed: int) -> None:
        """An answer has ended that might have had `allowed` tokens."""
        self._used.append(min(1.0, written / allowed) if allowed else 1.0)

    @property
    def used(self) -> float:
        """The share of their tokens that answers take, in 0 to 1; 1 where none has ended yet."""
        used = tuple(self._used)
        if used:
            return sum(used) / len(used)
        return 1.0

    @property
    def rate(self) -> float:
        """Tokens a second, lately or when last something was written; 0 where nothing was."""
        now = self._clock()
        written = tuple(self._written)
        lately = [(at, count) for at, count in written if at > now - WINDOW]
        if len(lately) > 1 and lately[-1][0] > lately[0][0]:
            # what the first of them counts was written before it
            tokens = sum(count for _, count in lately[1:])
            self._last_rate = tokens / (lately[-1][0] - lately[0][0])
        return self._last_rate


def seconds_until(answers: int, loads: Iterable[RequestLoad], rate: float) -> float:
    """When so many of these answers will have ended; rate: tokens a second of all of them together, above 0. Those that run
    share it evenly, and the others follow."""
    loads = list(loads)
    running = sorted((x.left, x.answers) for x in loads if x.running)
    writing = sum(count for _, count in running)
    ended = 0
    for left, count in running:
        ended += count
        if ended >= answers:
            return left * writing / rate
    return sum(x.left * x.answers for x in loads) / rate


class AdmissionControl:
    """Counts answers under way by account. A server that is full takes more of an account that has less than its share: the
    others have more than theirs then."""

    def __init__(self, limits: RequestLimits, pace: TokenPace) -> None:
        self.limits = limits
        self.pace = pace
        self.under_way = Counter[str]()

    @property
    def most(self) -> int:
        return self.limits.running + self.limits.waiting

    def begin(self, account: str, count: int) -> None:
        self.under_way[account] += count

    def end(self, account: str, count: int) -> None:
        self.under_way[account] -= count
        if self.under_way[account] <= 0:
            del self.under_way[account]

    def admit(self, account: str, count: int, loads: Callable[[], Iterable[RequestLoad]]) -> None:
        """Raise Refusal where there is no room for so many more; loads: gives what is under way."""
        own = self.under_way[account]
        total = self.under_way.total()
        share = self.most // len(self.under_way.keys() | {account})
        if total + count <= self.most or own + count <= share:
            return
        of_all = total + count - self.most
        of_own = own + count - share
        raise RefusalError(
            f"{total} answers are under way, {own} of them yours: this server takes {self.limits.running} at a time "
            f"and lets {self.limits.waiting} wait",
            status=429,
            code="rate_limit_exceeded",
            retry=self._wait(account, of_all, of_own if count <= share else None, list(loads())),
        )

    def turn(self, loads: Iterable[RequestLoad]) -> int:
        """Seconds until a request that comes now would have its turn."""
        rate = self.pace.rate
        beyond = self.under_way.total() + 1 - self.limits.running
        if rate:
            seconds = seconds_until(max(1, beyond), loads, rate)
        else:
            seconds = UNMEASURED
        return max(1, ceil(min(seconds, self.limits.seconds)))

    def _wait(self, account: str, of_all: int, of_own: int | None, loads: list[RequestLoad]) -> int:
        """Seconds until so many have ended, of all or (None: that would not do) of the account's own."""
        rate = self.pace.rate
        if not rate:
            seconds = UNMEASURED
        else:
            seconds = seconds_until(of_all, loads, rate)
            if of_own is not None:
                own = [x for x in loads if x.account == account]
                others = sum(x.answers for x in loads if x.running and x.account != account)
                mine = sum(x.answers for x in own if x.running)
                if mine:
                    part = rate * mine / (mine + others)
                else:
                    part = rate
                seconds = min(seconds, seconds_until(of_own, own, part))
        return max(1, ceil(min(seconds, self.limits.seconds)))
