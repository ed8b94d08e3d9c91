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
    """Answers to one prompt that are under way.

    Attributes:
        account: Whose they are.
        answers: How many.
        left: Tokens that each of them may still write.
        running: Whether they are being written.
    """

    account: str
    answers: int
    left: float
    running: bool


class TokenPace:
    """How fast tokens are written, and how much of what requests may write they do write.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._written = deque[tuple[float, int]](maxlen=4096)
        self._last_rate = 0.0
        self._used = deque[float](maxlen=32)

    def note_tokens(self, tokens: int) -> None:
        """Note tokens that were written.

        Args:
            tokens: How many since the last call, 0 or more.
        """
        if tokens:
            self._written.append((self._clock(), tokens))

    def note_ended_answer(self, written: int, allowed: int) -> None:
        """Note an answer that has ended.

        Args:
            written: Tokens that it has.
            allowed: Tokens that it might have had.
        """
        # An answer that stops early takes less than its max_tokens: the mean of the last ones
        # corrects the estimate.
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
        # A copy was taken above: the engine's thread appends while others read.
        lately = [(at, count) for at, count in written if at > now - WINDOW]
        if len(lately) > 1 and lately[-1][0] > lately[0][0]:
            # what the first of them counts was written before it
            tokens = sum(count for _, count in lately[1:])
            self._last_rate = tokens / (lately[-1][0] - lately[0][0])
        return self._last_rate


def seconds_until(answers: int, loads: Iterable[RequestLoad], rate: float) -> float:
    """Estimate when some of the answers under way will have ended.

    Those that run share the rate evenly, and the others follow.

    Args:
        answers: How many answers must have ended, at least 1.
        loads: All answers under way.
        rate: Tokens a second of all of them together, above 0.

    Returns:
        Seconds.
    """
    loads = list(loads)
    running = sorted((x.left, x.answers) for x in loads if x.running)
    writing = sum(count for _, count in running)
    ended = 0
    # All that run advance together: after `left` tokens of each, those with no more to write have
    # ended.
    for left, count in running:
        ended += count
        if ended >= answers:
            return left * writing / rate
    return sum(x.left * x.answers for x in loads) / rate


class AdmissionControl:
    """Counts answers under way by account, and says who may add to them.

    A server that is full takes more of an account that has less than its share: the others have
    more than theirs then.

    Args:
        limits: Limits of the server.
        pace: How fast it writes.
    """

    def __init__(self, limits: RequestLimits, pace: TokenPace) -> None:
        self.limits = limits
        self.pace = pace
        self.under_way = Counter[str]()

    @property
    def most(self) -> int:
        return self.limits.running + self.limits.waiting

    def begin_answers(self, account: str, count: int) -> None:
        """Count answers of an account.

        Args:
            account: Whose they are.
            count: How many.
        """
        self.under_way[account] += count

    def end_answers(self, account: str, count: int) -> None:
        """Count answers of an account as ended.

        Args:
            account: Whose they were.
            count: How many.
        """
        self.under_way[account] -= count
        if self.under_way[account] <= 0:
            del self.under_way[account]

    def admit_answers(
        self, account: str, count: int, loads: Callable[[], Iterable[RequestLoad]]
    ) -> None:
        """Let answers in, or refuse them.

        Args:
            account: Whose they are.
            count: How many.
            loads: Gives what is under way; it is called only for a refusal, which says when to ask
                again.

        Raises:
            RefusalError: There is no room for them (status 429).
        """
        own = self.under_way[account]
        total = self.under_way.total()
        # An equal share for every account with answers under way, the asking one included.
        share = self.most // len(self.under_way.keys() | {account})
        if total + count <= self.most or own + count <= share:
            return
        # Either so many of all answers end, or so many of the account's own: then there is room.
        of_all = total + count - self.most
        of_own = own + count - share
        raise RefusalError(
            f"{total} answers are under way, {own} of them yours: this server takes {self.limits.running} at a time "
            f"and lets {self.limits.waiting} wait",
            status=429,
            code="rate_limit_exceeded",
            retry=self._wait(account, of_all, of_own if count <= share else None, list(loads())),
        )

    def expected_turn(self, loads: Iterable[RequestLoad]) -> int:
        """Estimate when a request that comes now would have its turn.

        Args:
            loads: All answers under way.

        Returns:
            Seconds, at least 1 and at most the longest time of a request.
        """
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
                # The account's own answers go on at their part of the rate: it is enough if these
                # end.
                own = [x for x in loads if x.account == account]
                others = sum(x.answers for x in loads if x.running and x.account != account)
                mine = sum(x.answers for x in own if x.running)
                if mine:
                    part = rate * mine / (mine + others)
                else:
                    part = rate
                seconds = min(seconds, seconds_until(of_own, own, part))
        return max(1, ceil(min(seconds, self.limits.seconds)))
