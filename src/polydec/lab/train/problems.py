"""Problems in several steps whose answers and steps can be checked: a small model reasons on them.

A solution is a line for each step and, last, a line of "=" and the answer. Three kinds:

- chain: `2+7*3-5`, taken from left to right: `2+7=9`, `9*3=27`, `27-5=22`, `=22`. Nothing to
  choose; one slip spoils it.
- make: `24 from 3 7 5 2`, the game of 24 with any goal: two numbers become one until one is left:
  `3*7=21 5 2`, …
- order: `ABCD B<D A!1 C=3`: who sits where, from clues (C=3: on seat 3, A!1: not on seat 1, B<D:
  left of, A~B: next to, A^B: not next to); exactly one order fits. `A=2`, `B=1`, …, `=BACD`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

from polydec.base.errors import RequestError
from polydec.lab.train.data import held_out

LARGEST = 30
"""No number is larger, or below 0."""


@dataclass(frozen=True)
class ReasoningProblem:
    """A problem with one right solution.

    Attributes:
        kind: Name of a kind of `KINDS`.
        question: The problem as it is asked.
        steps: One right solution, line by line, without the line of the answer.
        answer: The answer, without "=".
    """

    kind: str
    question: str
    steps: tuple[str, ...]
    answer: str

    @property
    def solution(self) -> str:
        """The right solution as text, the line of the answer last."""
        return "\n".join((*self.steps, "=" + self.answer))


def require_kinds(kinds: Sequence[str]) -> None:
    """Raise RequestError where `kinds` is empty, or has an unknown name."""
    if not kinds:
        raise RequestError(f"kinds is empty: name some of {', '.join(KINDS)}")
    for kind in kinds:
        # Raises for an unknown name.
        draw_problem(kind, 0, 0)


def draw_problem(kind: str, seed: int, number: int, unseen: bool = False) -> ReasoningProblem:
    """Draw a problem.

    Args:
        kind: Name of a kind of `KINDS`.
        seed: Seed of the draws.
        number: Number of the problem.
        unseen: Whether its question is held out from training (by SHA-1). Default False.

    Returns:
        The problem.

    Raises:
        RequestError: The kind is unknown.
    """
    if kind not in KINDS:
        raise RequestError(f"kinds has {kind!r}: it must be one of {', '.join(KINDS)}")
    r = random.Random(f"{kind} {seed} {number}")
    # Drawn again until the question lies on the wanted side of the split.
    while held_out((problem := KINDS[kind].draw(r)).question) != unseen:
        pass
    return problem


def label_solution_lines(problem: ReasoningProblem, text: str) -> tuple[bool, ...]:
    """Say of each line of a text whether what stands so far is right and can still be finished.

    Args:
        problem: The problem.
        text: Lines of an attempted solution.

    Returns:
        One label for each line; after the first wrong line all are False.
    """
    lines = text.split("\n")
    right, _ = _right(problem, lines)
    return tuple(i < right for i in range(len(lines)))


def right_until(problem: ReasoningProblem, text: str) -> int:
    """How many characters of a text may be the beginning of a right solution.

    Args:
        problem: The problem.
        text: Lines of an attempted solution, the last of which may be unfinished.

    Returns:
        Number of characters, line breaks included.
    """
    return _right(problem, text.split("\n"))[1]


def is_right_solution(problem: ReasoningProblem, text: str) -> bool:
    """Whether a text is a right solution, every step of it.

    Args:
        problem: The problem.
        text: Lines of an attempted solution.

    Returns:
        True also where another solution than the problem's own is right.
    """
    return text.split("\n")[-1].startswith("=") and all(label_solution_lines(problem, text))


def _right(problem: ReasoningProblem, lines: Sequence[str]) -> tuple[int, int]:
    """How many lines are right and can still be finished, and the same in characters.

    Characters are counted within a line too.
    """
    after = KINDS[problem.kind].after
    characters = 0
    for i, line in enumerate(lines):
        may_follow = after(problem.question, lines[:i])
        characters += int(i > 0 and bool(may_follow))  # the line break
        # The first wrong line counts as far as it agrees with some right one.
        if line not in may_follow:
            return i, characters + max((_alike(line, right) for right in may_follow), default=0)
        characters += len(line)
    return len(lines), characters


def _alike(a: str, b: str) -> int:
    """The number of characters that two texts begin with together."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def draw_flawed_solution(
    problem: ReasoningProblem, seed: int, number: int
) -> tuple[tuple[str, ...], str]:
    """Draw the beginning of a wrong solution: lines that are right, and one that spoils it.

    Args:
        problem: The problem.
        seed: Seed of the draws.
        number: Number of the draw.

    Returns:
        The right lines, and the wrong one.
    """
    r = random.Random(f"flawed {problem.question} {seed} {number}")
    kind = KINDS[problem.kind]
    lines = problem.solution.split("\n")
    at = r.randrange(len(lines))
    before = tuple(lines[:at])
    may_follow = kind.after(problem.question, before)
    # A slip may happen to be right, as several lines may follow; then another is drawn.
    while (line := kind.slip(r, problem.question, before, lines[at])) in may_follow:
        pass
    return before, line


@dataclass(frozen=True)
class ProblemKind:
    """How a kind of problem is drawn and checked.

    Attributes:
        draw: Draws a problem.
        after: Every line that may follow some right ones of a question on the way to a solution;
            none after the answer.
        slip: A line that is written by mistake in place of a given one; most often it is wrong.
    """

    draw: Callable[[random.Random], ReasoningProblem]
    after: Callable[[str, Sequence[str]], Sequence[str]]
    slip: Callable[[random.Random, str, Sequence[str], str], str]


def apply_sign(a: int, sign: str, b: int) -> int | None:
    """The result of a step.

    Args:
        a: Left number.
        sign: "+", "-" or "*".
        b: Right number.

    Returns:
        The result, or None where it is below 0 or above LARGEST.
    """
    if sign == "+":
        value = a + b
    elif sign == "-":
        value = a - b
    else:
        value = a * b
    if 0 <= value <= LARGEST:
        return value
    return None


def _slip_digit(r: random.Random, question: str, before: Sequence[str], line: str) -> str:
    """Change one digit of a line, most often one after the equals sign."""
    digits = [i for i, c in enumerate(line) if c.isdigit()]
    results = [i for i in digits if i > line.index("=")]
    at = r.choice(results if r.random() < 0.7 else digits)
    return line[:at] + r.choice("0123456789") + line[at + 1 :]


def _draw_chain(r: random.Random) -> ReasoningProblem:
    value = r.randint(1, LARGEST)
    question = str(value)
    steps = list[str]()
    for _ in range(r.randint(3, 7)):
        sign = ""
        other = 0
        after = None
        # A step is drawn again until its result is in range.
        while after is None:
            sign = r.choice("+-*")
            if sign == "*":
                other = r.randint(2, 9)
            else:
                other = r.randint(1, LARGEST)
            after = apply_sign(value, sign, other)
        question += f"{sign}{other}"
        steps.append(f"{value}{sign}{other}={after}")
        value = after
    return ReasoningProblem("chain", question, tuple(steps), str(value))


def _after_chain(question: str, lines: Sequence[str]) -> Sequence[str]:
    # The first number, then numbers with their signs.
    first, *rest = re.findall(r"[+*-]?\d+", question)
    value = int(first)
    right = list[str]()
    for part in rest:
        after = apply_sign(value, part[0], int(part[1:]))
        assert after is not None
        right.append(f"{value}{part}={after}")
        value = after
    right.append(f"={value}")
    # There is exactly one right line at each place, and none after the answer.
    return right[len(lines) : len(lines) + 1]


@lru_cache(1 << 14)
def _moves(left: tuple[int, ...]) -> Mapping[str, tuple[int, ...]]:
    """Every step from some numbers, as it is written, and the numbers after it, the new one first."""
    after_move = dict[str, tuple[int, ...]]()
    for i, j in permutations(range(len(left)), 2):
        rest = tuple(x for k, x in enumerate(left) if k not in (i, j))
        for sign in "+-*":
            value = apply_sign(left[i], sign, left[j])
            if value is not None:
                after = (value, *rest)
                after_move[f"{left[i]}{sign}{left[j]}={' '.join(map(str, after))}"] = after
    return after_move


@lru_cache(1 << 16)
def _reaches(left: tuple[int, ...], goal: int) -> bool:
    """Whether the goal can be made of the numbers, which are sorted so that the cache is shared."""
    if len(left) == 1:
        return left[0] == goal
    return any(_reaches(tuple(sorted(after)), goal) for after in _moves(left).values())


def _draw_make(r: random.Random) -> ReasoningProblem:
    numbers = [r.randint(1, 9) for _ in range(r.choice((3, 3, 4)))]
    left: tuple[int, ...] = tuple(numbers)
    # The goal is what random moves lead to, so every problem has a solution.
    steps = list[str]()
    while len(left) > 1:
        moves = _moves(left)
        step = r.choice(sorted(moves))
        steps.append(step)
        left = moves[step]
    goal = sum(left)  # one number
    return ReasoningProblem(
        "make", f"{goal} from {' '.join(map(str, numbers))}", tuple(steps), str(goal)
    )


def _after_make(question: str, lines: Sequence[str]) -> Sequence[str]:
    goal, *numbers = map(int, re.findall(r"\d+", question))
    left = tuple(numbers)
    for line in lines:
        if line.startswith("="):
            return ()
        left = _moves(left)[line]
    if len(left) == 1:  # only the answer can follow
        return (f"={goal}",)
    # A move is right only if the goal can still be reached after it.
    return [line for line, then in _moves(left).items() if _reaches(tuple(sorted(then)), goal)]


def _slip_make(r: random.Random, question: str, before: Sequence[str], line: str) -> str:
    """Change a digit of a line, or take another step."""
    left = tuple(map(int, re.findall(r"\d+", question)[1:]))
    for step in before:
        left = _moves(left)[step]
    if len(left) == 1 or r.random() < 0.4:
        return _slip_digit(r, question, before, line)
    return r.choice(sorted(_moves(left)))


CLUES: Mapping[str, Callable[[int, int], bool]] = {
    "=": lambda a, b: a == b,
    "!": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "~": lambda a, b: abs(a - b) == 1,
    "^": lambda a, b: abs(a - b) > 1,
}
"""What a clue says of two seats: the second is a name's, or a number."""


def _fits(order: str, clue: str) -> bool:
    a, sign, b = clue
    return CLUES[sign](order.index(a) + 1, int(b) if b.isdigit() else order.index(b) + 1)


def _draw_order(r: random.Random) -> ReasoningProblem:
    names = "ABCDE"[: r.choice((3, 4, 4))]
    secret = "".join(r.sample(names, len(names)))
    every = [f"{a}{sign}{b}" for a, b in permutations(names, 2) for sign in "<~^"]
    # "!" stands twice, and so is drawn more often than "=", which says too much.
    every += [
        f"{a}{sign}{seat}" for a in names for seat in range(1, len(names) + 1) for sign in "=!!"
    ]
    clues = list[str]()
    orders = ["".join(p) for p in permutations(names)]
    # Clues are added that the secret order fits and that rule out some other, until one order is
    # left.
    while len(orders) > 1:
        clue = r.choice(every)
        left = [o for o in orders if _fits(o, clue)]
        if secret in left and len(left) < len(orders):
            clues.append(clue)
            orders = left
    steps = tuple(f"{name}={secret.index(name) + 1}" for name in names)
    return ReasoningProblem("order", f"{names} {' '.join(clues)}", steps, secret)


@lru_cache(1 << 14)
def _the_order(question: str) -> str:
    names, *clues = question.split(" ")
    # Exactly one order fits, so the first that is found is it.
    return next("".join(p) for p in permutations(names) if all(_fits("".join(p), c) for c in clues))


def _after_order(question: str, lines: Sequence[str]) -> Sequence[str]:
    secret = _the_order(question)
    # Names in alphabetical order, then the answer: one right line at each place.
    right = [*(f"{name}={secret.index(name) + 1}" for name in sorted(secret)), "=" + secret]
    return right[len(lines) : len(lines) + 1]


def _slip_order(r: random.Random, question: str, before: Sequence[str], line: str) -> str:
    """Another seat, or, in the answer, two names that change places."""
    if not line.startswith("="):
        return line[:-1] + r.choice("12345"[: len(question.split(" ")[0])])
    i, j = r.sample(range(1, len(line)), 2)
    letters = list(line)
    letters[i], letters[j] = letters[j], letters[i]
    return "".join(letters)


KINDS: Mapping[str, ProblemKind] = {
    "chain": ProblemKind(_draw_chain, _after_chain, _slip_digit),
    "make": ProblemKind(_draw_make, _after_make, _slip_make),
    "order": ProblemKind(_draw_order, _after_order, _slip_order),
}
"""By name, how a kind of problem is drawn and checked."""
