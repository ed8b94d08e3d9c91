"""API keys, and how much each may take: requests a minute, tokens a day, answers at the same time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from math import ceil
from pathlib import Path
from typing import Annotated

from polydec.base.edge import read_bytes
from polydec.base.errors import RequestError
from polydec.base.options import InRange, callable_options, convert_dataclass_fields, short_repr
from polydec.serve.admission import UNMEASURED
from polydec.serve.errors import RefusalError

MINUTE = 60.0
DAY = 1440
"""Minutes over which tokens are counted."""
LEAST = 8
"""Characters of a key: a shorter one keeps nobody out."""
LONGEST_NAME = 64


@dataclass(frozen=True)
class KeyQuota:
    """What one key may take; 0: as much as there is. Raises RequestError for a value out of its
    range.
    """

    requests: Annotated[int, InRange(0, 100_000), "requests in any minute"] = 0
    tokens: Annotated[
        int,
        InRange(0, 1 << 40),
        "tokens in any 24 hours, of prompts and of all that is written for answers",
    ] = 0
    answers: Annotated[int, InRange(0, 65536), "answers at the same time"] = 0

    def __post_init__(self) -> None:
        convert_dataclass_fields(self)


@dataclass(frozen=True)
class ApiKey:
    """A key that lets a client in.

    Attributes:
        secret: The key itself.
        name: What the log calls its client. "": a short digest of the key.
        quota: What it may take.
    """

    secret: str
    name: str = ""
    quota: KeyQuota = KeyQuota()


def as_api_keys(keys: Iterable[str | ApiKey]) -> tuple[ApiKey, ...]:
    """Keys as texts are keys without limits."""
    return tuple(key if isinstance(key, ApiKey) else ApiKey(key) for key in keys)


def read_keys(path: Path | None, environment: str | None) -> tuple[ApiKey, ...]:
    """Read API keys from a file and from the environment.

    Args:
        path: File with a key on each line, behind which its name and limits may stand
            (``name=ci requests=60 tokens=200000 answers=4``); # begins a remark. None: no file.
        environment: A further key, without limits. None: there is none.

    Returns:
        The keys.

    Raises:
        RequestError: The file has none, one is too short to keep anybody out, or a limit is none.
    """
    if path is None:
        lines = []
    else:
        # Some editors put a mark in front of the text (BOM), which is no part of the first key.
        lines = read_bytes(path, 1 << 20).decode("utf-8-sig", "replace").splitlines()
    keys = [
        _read_line(number, line.split())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.strip().startswith("#")
    ]
    if path is not None and not keys:
        raise RequestError(f"file {str(path)!r} holds no API key: write one a line")
    # The same key in both places is the file's, with its limits.
    if environment is not None and environment.strip() not in [key.secret for key in keys]:
        keys.append(ApiKey(environment.strip()))
    for key in keys:
        secret = key.secret
        if not secret.isascii() or not secret.isprintable() or " " in secret or len(secret) < LEAST:
            raise RequestError(
                f"an API key must have at least {LEAST} characters, printable ASCII without spaces"
            )
    # Two lines with one key might have different limits, and nobody could say which ones hold.
    _refuse_twice([key.secret for key in keys], "an API key stands")
    # The log tells clients apart by these names.
    _refuse_twice([key.name for key in keys if key.name], "a name of an API key stands")
    return tuple(keys)


def _refuse_twice(texts: list[str], what: str) -> None:
    """Raise RequestError where a text comes twice. It is not told: it may be a key."""
    if len(set(texts)) < len(texts):
        raise RequestError(f"{what} in two lines: each client has one of its own")


def _read_line(number: int, words: list[str]) -> ApiKey:
    """A key and what stands behind it."""
    known = {option.name: option for option in callable_options(KeyQuota)}
    given = dict[str, str]()
    for word in words[1:]:
        name, mark, value = word.partition("=")
        # A word that is no limit may be half of a key: it is not told.
        if not mark or name not in ("name", *known) or name in given:
            raise RequestError(
                f"line {number} of the API keys is not a key with limits: behind the key stand "
                f"name=…, {', '.join(f'{x}=…' for x in known)}, each once, and nothing else"
            )
        given[name] = value
    # What is left after this are limits.
    name = given.pop("name", "")
    if name and not (name.isascii() and name.isprintable() and len(name) <= LONGEST_NAME):
        raise RequestError(
            f"line {number} of the API keys: name is {short_repr(name)}: it must have at most "
            f"{LONGEST_NAME} characters, printable ASCII"
        )
    limits = dict[str, int]()
    for limit, value in given.items():
        # isdigit takes digits of other scripts as well, and so long a number is above every range.
        if not value.isascii() or not value.isdigit() or len(value) > 16:
            raise RequestError(
                f"line {number} of the API keys: {limit} is {short_repr(value)}: it must be a whole number, 0 or more"
            )
        limits[limit] = int(value)
    try:
        return ApiKey(words[0], name, KeyQuota(**limits))
    # The quota checks its own ranges; here the message only gets the line.
    except RequestError as error:
        raise RequestError(f"line {number} of the API keys: {error}") from None


class KeyUsage:
    """What one key has taken.

    Args:
        quota: What it may take.
        clock: Gives the time in seconds.
    """

    def __init__(self, quota: KeyQuota, clock: Callable[[], float]) -> None:
        self.quota = quota
        self._clock = clock
        # When each request of the last minute came: never more than the quota allows.
        self._requests = deque[float]()
        self._tokens = deque[list[int]]()  # a minute's number, and tokens that ended in it
        self._open = list[float]()
        # The last ones only: a server that was slow an hour ago may be quick now.
        self._spans = deque[float](maxlen=32)

    def admit_request(self) -> None:
        """Let a request in, and count it; a refused one does not count.

        Raises:
            RefusalError: The key has taken what it may (429).
        """
        now = self._clock()
        # Tokens first: a request that is refused for them is not counted.
        self._refuse_tokens(now)
        most = self.quota.requests
        if not most:
            return
        # A minute that slides: one by the clock would let twice as many in around its edge.
        while self._requests and now - self._requests[0] >= MINUTE:
            self._requests.popleft()
        if len(self._requests) >= most:
            raise _refused(
                f"this key sent {most} requests within a minute, which is what it may send",
                self._requests[0] + MINUTE - now,
            )
        self._requests.append(now)

    def _refuse_tokens(self, now: float) -> None:
        most = self.quota.tokens
        if not most:
            return
        # Counted by the minute, so that a day is at most 1440 entries, however many requests there are.
        minute = int(now // MINUTE)
        while self._tokens and minute - self._tokens[0][0] >= DAY:
            self._tokens.popleft()
        left = sum(count for _, count in self._tokens)
        if left < most:
            return
        used = left
        # Room comes when enough of the oldest minutes are a day old.
        for at, count in self._tokens:
            left -= count
            if left < most:
                raise _refused(
                    f"this key took {used} tokens within 24 hours, and may take {most}",
                    (at + DAY) * MINUTE - now,
                )

    def charge_tokens(self, tokens: int) -> None:
        """Count tokens of a request that has ended.

        Args:
            tokens: How many, of prompts and of all that was written.
        """
        # Without a limit nobody asks for the sum, so none is kept.
        if not self.quota.tokens or not tokens:
            return
        minute = int(self._clock() // MINUTE)
        if self._tokens and self._tokens[-1][0] == minute:
            self._tokens[-1][1] += tokens
        else:
            self._tokens.append([minute, tokens])

    def begin_answers(self, count: int) -> Callable[[], None]:
        """Let answers in, and count them until they have ended.

        Args:
            count: How many.

        Returns:
            What is to be called when they have ended.

        Raises:
            RefusalError: There are too many with them (429), or by themselves (400).
        """
        most = self.quota.answers
        if not most:
            return _nothing_ends
        # No wait would help: this is an error of the request and not of the moment.
        if count > most:
            raise RefusalError(
                f"n is {count} over all prompts: this key takes at most {most} answers at a time",
                param="n",
            )
        now = self._clock()
        beyond = len(self._open) + count - most
        if beyond > 0:
            raise _refused(
                f"{len(self._open)} answers of this key are under way: it takes at most {most} at a time",
                self._until_ended(beyond, now),
            )
        # An entry for each answer: the time at which it began.
        self._open += [now] * count

        def end_answers() -> None:
            for _ in range(count):
                self._open.remove(now)
            self._spans.append(self._clock() - now)

        return end_answers

    def _until_ended(self, answers: int, now: float) -> float:
        """Seconds until so many of those under way have ended, where they take as long as the last ones did."""
        if not self._spans:
            return UNMEASURED
        usual = sum(self._spans) / len(self._spans)
        # If all take equally long, the oldest of them end first.
        return usual - (now - sorted(self._open)[answers - 1])


def _nothing_ends() -> None:
    pass


def _refused(why: str, seconds: float) -> RefusalError:
    # Whole seconds, as Retry-After has them; rounded up, so that the next try is not too early.
    retry = max(1, ceil(seconds))
    return RefusalError(
        f"{why}: ask again in {retry} second{'s' * (retry != 1)}",
        status=429,
        code="rate_limit_exceeded",
        retry=retry,
    )


class QuotaBook:
    """What every key has taken, each by itself.

    It is kept in memory: a server that is started anew has forgotten it.

    Args:
        quotas: What each client may take, by its credential.
        clock: Gives the time in seconds. Default `time.monotonic`.
    """

    def __init__(
        self, quotas: Mapping[str, KeyQuota], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._usages = {name: KeyUsage(quota, clock) for name, quota in quotas.items()}
        # One for all clients without limits, as nothing is counted in it.
        self._none = KeyUsage(KeyQuota(), clock)

    def usage_of(self, credential: str) -> KeyUsage:
        """What a client has taken; of one without limits nothing is counted."""
        return self._usages.get(credential, self._none)


def counts_at_end(quota: KeyQuota) -> bool:
    """Whether a quota counts what is known only where the answer is written."""
    return any(getattr(quota, f.name) for f in fields(quota) if f.name != "requests")
