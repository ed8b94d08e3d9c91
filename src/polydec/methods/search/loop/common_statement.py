"""The most exact statement that several answers agree in (dates, numbers, names)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from itertools import combinations

from polydec.base.errors import RequestError
from polydec.methods.search.loop.types import answer_of

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_MONTH = {name[:3].lower(): number for number, name in enumerate(MONTHS, 1)}
_NAMED = r"(?P<month>" + "|".join(rf"{name[:3]}(?:{name[3:]}|t)?\.?" for name in MONTHS) + ")"
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[12]\d{3})"
DATES = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"{_DAY} (?:of )?{_NAMED},? {_YEAR}",
        rf"{_NAMED} {_DAY},? {_YEAR}",
        rf"{_NAMED},? {_YEAR}",
        rf"{_YEAR}-(?P<number>[01]\d)(?:-{_DAY})?",
        r"(?P<decade>[12]\d{2})0s",
        r"(?P<century>1?\d|2[01])(?:st|nd|rd|th) century",
    )
)
"""How a date may be written."""
_WHEN = re.compile(r"\b(?:when|year|date|decade|century)\b", re.IGNORECASE)
_HOW_MANY = re.compile(
    r"\bhow (?:many|much|long|far|high|tall|deep|heavy|large|big)\b", re.IGNORECASE
)
NUMBER = re.compile(r"[-+]?(?:\d{1,12}|\d{1,3}(?:,\d{3}){1,3})(?:\.\d{1,6})?")


@dataclass(frozen=True)
class AnswerStatement:
    """Something that an answer says, or that follows from it.

    Attributes:
        key: What it is compared by.
        said: How it is written.
    """

    key: tuple[object, ...]
    said: str = field(compare=False)


@dataclass(frozen=True)
class AnswerAgreement:
    """Finds the most exact statement that at least `share` of the answers support.

    An answer supports what it says and what follows from it: a day its month, year, decade and
    century; a number its roundings, "about 1200"; a name what it lies within, by `within`, and
    "Lyon, France" also "France". Answers that say nothing support nothing. Where two statements
    have so many supporters and none follows from the other, the one with more counts, of as many
    neither. The order of the answers does not matter.

    A bare number from 1000 to 2999 is a year where another answer is a date otherwise, or where
    `years` says so and no answer is a number that cannot be one, such as 1,240 or 980.

    Attributes:
        share: Share of the answers that must agree, above 0, to 1.
        within: For a name in small letters what it lies within, as it is written.
        years: Whether bare numbers may be years though no other answer is a date: a question after
            a count (`asks_when`) has none. Default True.

    Source: Yona, Aharoni and Geva, "Narrowing the knowledge evaluation gap: open-domain question
    answering with multi-granularity answers" (2024); there a language model finds the statement,
    these rules are ours.
    """

    share: float = 0.5
    within: Mapping[str, str] = field(default_factory=dict[str, str])
    years: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise RequestError(f"share is {self.share}: it must be above 0, to 1")

    def of_answers(self, answers: Sequence[str]) -> AnswerStatement | None:
        """Return what the answers say together; None where they agree in nothing."""
        ladders = self.support_ladders(answers)
        support = defaultdict[AnswerStatement, list[str]](list)
        for ladder in ladders:
            for statement in ladder:
                support[statement].append(statement.said)
        enough = [s for s, by in support.items() if len(by) >= self.share * len(answers) - 1e-9]
        below = {pair for ladder in ladders for pair in combinations(ladder, 2)}
        # Drop statements that a rival of at least equal support contradicts: neither follows from
        # the other.
        left = [
            s
            for s in enough
            if not any(
                s != t
                and (s, t) not in below
                and (t, s) not in below
                and len(support[t]) >= len(support[s])
                for t in enough
            )
        ]
        # The most exact one is that from which most of the others follow.
        best = max(left, key=lambda s: sum((s, t) in below for t in left), default=None)
        if best is None:
            return None
        # Of several ways to write it one is taken that does not depend on the order of the answers.
        return AnswerStatement(best.key, min(support[best]))

    def read_claim(self, claim: str, answers: Sequence[str]) -> AnswerStatement:
        """Read a claim about some answers as a statement of the kind that they are.

        Args:
            claim: What somebody says of the answers; not empty.
            answers: The answers; they decide whether a bare number is a year.
        """
        return self.support_ladders([*answers, claim])[-1][0]

    def support_ladders(self, answers: Sequence[str]) -> list[tuple[AnswerStatement, ...]]:
        """Return what each answer supports, the most exact first; nothing for an empty one."""
        # Years or counts: one decision for all answers.
        dated = any(_date(a, years=False) for a in answers) or (
            self.years and not any(_counts(a) for a in answers)
        )
        numbers = [Decimal(a.replace(",", "")) for a in answers if NUMBER.fullmatch(a)]
        # Numbers are rounded up to the first place of the largest one.
        digits = max((x.adjusted() for x in numbers if x), default=0)
        return [self._ladder(answer.strip(), dated, digits) for answer in answers]

    def _ladder(self, answer: str, dated: bool, digits: int) -> tuple[AnswerStatement, ...]:
        if date := _date(answer, years=dated):
            return date
        if NUMBER.fullmatch(answer):
            return _roundings(Decimal(answer.replace(",", "")), answer, digits)
        if answer:
            return self._places(answer)
        return ()

    def _places(self, answer: str) -> tuple[AnswerStatement, ...]:
        """Return a name and what it lies within.

        That is what is written after it, then what is known of the last part.
        """
        parts = [p.strip() for p in answer.split(",")]
        if all(parts):
            chain = [", ".join(parts[i:]) for i in range(len(parts))]
        else:
            chain = [answer]
        while (above := self.within.get(answer_of(chain[-1], ""))) is not None:
            chain.append(above)
        return tuple(AnswerStatement((answer_of(name, ""),), name) for name in chain)


def _date(answer: str, years: bool) -> tuple[AnswerStatement, ...]:
    """A date and what it lies in; nothing where it is none. years: whether a bare year is one."""
    answer = re.sub(r"^(?:in|on|the) ", "", answer.strip(), flags=re.IGNORECASE)
    # The first form that all of the text fits; a bare year only where years count.
    match = next((m for form in DATES if (m := form.fullmatch(answer))), None)
    if match is None:
        if years:
            match = re.fullmatch(_YEAR, answer)
        else:
            match = None
        if match is None:
            return ()
    parts = {k: v for k, v in match.groupdict().items() if v is not None}
    if "year" in parts:
        year = int(parts["year"])
    else:
        year = None
    # Coarser parts follow from finer ones, so that 1987 and "the 1980s" can be compared.
    if "decade" in parts:
        decade = int(parts["decade"])
    elif year is None:
        decade = None
    else:
        decade = year // 10
    if "century" in parts:
        century = int(parts["century"])
    else:
        # The nineteenth century is that of the years from 1800 on: one more than the first two
        # digits.
        century = (decade or 0) // 10 + 1
    if "number" in parts:
        month = int(parts["number"])
    else:
        # Names of months are known by their first three letters.
        month = _MONTH.get(parts.get("month", "")[:3].lower())
    if "day" in parts:
        day = int(parts["day"])
    else:
        day = None
    # A date that the calendar has not is no date.
    if month not in (None, *range(1, 13)) or day not in (None, *range(1, 32)):
        return ()
    # From coarse to exact; each key extends the one before, so equal dates have equal keys.
    out = [AnswerStatement(("date", century), f"{ordinal_number(century)} century")]
    if decade is not None:
        out.append(AnswerStatement(("date", century, decade), f"{decade}0s"))
    if year is not None:
        out.append(AnswerStatement(("date", century, decade, year), str(year)))
    if month is not None:
        out.append(
            AnswerStatement(("date", century, decade, year, month), f"{MONTHS[month - 1]} {year}")
        )
        if day is not None:
            out.append(
                AnswerStatement(
                    ("date", century, decade, year, month, day), f"{day} {MONTHS[month - 1]} {year}"
                )
            )
    return tuple(reversed(out))


def asks_when(question: str) -> bool:
    """Whether a question is after a time: it says when, year, date, decade or century, and not how
    many, how much, how long and the like.

    Source: ours; English words alone are known.
    """
    return bool(_WHEN.search(question)) and not _HOW_MANY.search(question)


def _counts(answer: str) -> bool:
    """Whether it is a number that cannot be a year."""
    text = answer.strip()
    return bool(NUMBER.fullmatch(text)) and not re.fullmatch(_YEAR, text)


def ordinal_number(number: int) -> str:
    """Write a number as an ordinal: 1st, 2nd, 3rd, 4th …"""
    if number % 100 in (11, 12, 13):
        end = "th"
    else:
        end = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{end}"


def _roundings(value: Decimal, spelled: str, digits: int) -> tuple[AnswerStatement, ...]:
    """Return a number and its roundings, up to the first place of the largest number."""
    exponent = value.normalize().as_tuple().exponent
    if value:
        finest = min(int(exponent), 0)
    else:
        finest = 0
    out = [AnswerStatement(("number", value.normalize()), spelled)]
    for place in range(finest, digits + 1):
        if place <= 0:
            round_ = value.quantize(Decimal(1).scaleb(place), ROUND_HALF_UP)
        else:
            round_ = (value.scaleb(-place).quantize(Decimal(1), ROUND_HALF_UP)).scaleb(place)
        # "About 0" says nothing of a number.
        if round_:
            out.append(AnswerStatement(("about", place, round_.normalize()), f"about {round_:f}"))
    return tuple(out)


def parse_name_hierarchy(text: str) -> dict[str, str]:
    """Read what lies within what, from "Lyon < France; France < Europe".

    Raises:
        RequestError: The text is of another form, names something twice, or goes round in a circle.
    """
    out = dict[str, str]()
    for part in filter(None, (p.strip() for p in text.split(";"))):
        low, _, high = (side.strip() for side in part.partition("<"))
        # One "<" a part: a chain of several is written as several parts.
        if not low or not high or "<" in high:
            raise RequestError(
                f"within has {part[:60]!r}: write it as 'Lyon < France; France < Europe'"
            )
        # Compared as answers are, without case and signs.
        if answer_of(low, "") in out:
            raise RequestError(f"within has {low[:60]!r} twice: a name lies within one other")
        out[answer_of(low, "")] = high
    # A walk upwards from every name: a circle would keep later walks from ending.
    for name in out:
        seen = {name}
        at = name
        while (above := out.get(at)) is not None:
            at = answer_of(above, "")
            if at in seen:
                raise RequestError(f"within has {name[:60]!r} within itself")
            seen.add(at)
    return out
