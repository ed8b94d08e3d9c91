"""Tasks that show what decoding in parallel loses: lists and small puzzles whose tokens depend on
each other, or do not.

Source: ParallelBench (Kang et al., 2025). The questions are worded here; tasks of writing, which
are ours, stand in parallel_texts.py. Closed forms follow from its definitions.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log

from polydec.api import Engine, LoadedModel
from polydec.base.errors import RequestError
from polydec.lab.bench import parallel_texts
from polydec.lab.bench.intervals import wilson_interval
from polydec.lab.bench.measure import MethodSetting
from polydec.lab.bench.problem import BenchProblem
from polydec.lab.train import tasks as digits
from polydec.lab.train.held_out_questions import embedded_training_questions, fresh_held_out_tasks
from polydec.laws.shapers.sampling import Sampling
from polydec.methods.registry.family import MASKED_DIFFUSION, family_of

FIRST = (
    "Ada",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Irene",
    "Jack",
    "Laura",
    "Martin",
    "Nora",
    "Oscar",
    "Paula",
    "Robert",
    "Sarah",
    "Thomas",
    "Vera",
    "Walter",
)
LAST = (
    "Adams",
    "Baker",
    "Carter",
    "Davis",
    "Evans",
    "Fisher",
    "Green",
    "Harris",
    "Jones",
    "King",
    "Lewis",
    "Miller",
    "Nelson",
    "Parker",
    "Reed",
    "Scott",
    "Turner",
    "Walker",
    "Young",
    "Wright",
)


@dataclass(frozen=True)
class ListTask:
    """An operation on a list of names.

    Attributes:
        ask: How it is asked, with `{at}` and `{new}` for a place and a name.
        change: Makes one right answer of a list, a place and a new item.
        right: Judges a list, its answer, the place and the new item.
    """

    ask: str
    change: Callable[[list[str], int, str], list[str]]
    right: Callable[[list[str], list[str], int, str], bool]


def _same(
    change: Callable[[list[str], int, str], list[str]],
) -> Callable[[list[str], list[str], int, str], bool]:
    """There is one right answer."""
    return lambda items, answer, at, new: answer == change(items, at, new)


def _copy(items: list[str], at: int, new: str) -> list[str]:
    return list(items)


def _reverse(items: list[str], at: int, new: str) -> list[str]:
    return items[::-1]


def _sort(items: list[str], at: int, new: str) -> list[str]:
    return sorted(items)


def _shuffle(items: list[str], at: int, new: str) -> list[str]:
    # One right answer of many, for the solved example: every name changes its place.
    return items[1:] + items[:1]


def _insert(items: list[str], at: int, new: str) -> list[str]:
    return [*items[:at], new, *items[at:]]


def _remove(items: list[str], at: int, new: str) -> list[str]:
    return [*items[:at], *items[at + 1 :]]


def _replace(items: list[str], at: int, new: str) -> list[str]:
    return [*items[:at], new, *items[at + 1 :]]


def _shuffled(items: list[str], answer: list[str], at: int, new: str) -> bool:
    # Any order but the given one is right: the same names, each as often.
    return Counter(answer) == Counter(items) and answer != items


def _inserted(items: list[str], answer: list[str], at: int, new: str) -> bool:
    # Without the new name the line must be what it was, wherever the name went in.
    return answer.count(new) == 1 and [x for x in answer if x != new] == items


def _removed(items: list[str], answer: list[str], at: int, new: str) -> bool:
    # Some one person is missing and nothing else has changed.
    return any(answer == _remove(items, i, new) for i in range(len(items)))


def _replaced(items: list[str], answer: list[str], at: int, new: str) -> bool:
    return any(answer == _replace(items, i, new) for i in range(len(items)))


LISTS: Mapping[str, ListTask] = {
    "copy": ListTask("Write the waiting line as it is.", _copy, _same(_copy)),
    "reverse": ListTask(
        "Write the waiting line from its end to its beginning.", _reverse, _same(_reverse)
    ),
    "sort": ListTask("Write the waiting line in alphabetical order.", _sort, _same(_sort)),
    "shuffle": ListTask(
        "Write the people of the waiting line in another order, whichever you like.",
        _shuffle,
        _shuffled,
    ),
    "insert_index": ListTask(
        "Let {new} enter the waiting line at index {at} (the first person has index 0).",
        _insert,
        _same(_insert),
    ),
    "insert_random": ListTask(
        "Let {new} enter the waiting line at any place you like.", _insert, _inserted
    ),
    "remove_index": ListTask(
        "Let the person at index {at} (the first one has index 0) leave the waiting line.",
        _remove,
        _same(_remove),
    ),
    "remove_random": ListTask("Let any one person leave the waiting line.", _remove, _removed),
    "replace_index": ListTask(
        "Put {new} in the place of the person at index {at} (the first one has index 0).",
        _replace,
        _same(_replace),
    ),
    "replace_random": ListTask(
        "Put {new} in the place of any one person of the waiting line.", _replace, _replaced
    ),
}
"""The operations on a waiting line. Of those with `random` in their name, and of shuffle, several
answers are right, and their tokens depend on each other."""

DIGITS = ("copy", "slots", "fill", "shuffle", "pick", "count", "replace")
"""Tasks of the models that `polydec train diffusion` makes."""

SUITES = ("parallelbench", "parallelbench-15", "parallelbench-digits")
"""In words, for models that follow instructions; the waiting lines alone, of 15 people; and as the
models ask that `polydec train diffusion` makes."""

LONG_LINE = 15
"""People of the second suite's lines."""


def suite_problems(suite: str, each: int, seed: int = 0) -> Iterator[BenchProblem]:
    """Make the problems of a suite, the same ones for a seed.

    Args:
        suite: One of `SUITES`.
        each: Problems of every task.
        seed: Names the randomness. Default 0.

    Yields:
        The problems, those of one task one after the other.

    Raises:
        RequestError: The suite is unknown.
    """
    if suite not in SUITES:
        raise RequestError(f"suite is {suite!r}: it must be one of {', '.join(SUITES)}")
    # Questions that the embedded models were not trained on, as far as there are enough of them.
    if suite == "parallelbench-digits":
        yield from (
            of_digits(name, t) for name in DIGITS for t in fresh_held_out_tasks(name, seed, each)
        )
        return
    if suite == "parallelbench-15":
        yield from (of_names(name, seed, i, LONG_LINE) for name in LISTS for i in range(each))
        return
    # The whole suite: lists, then writing, then puzzles.
    yield from (of_names(name, seed, i) for name in LISTS for i in range(each))
    for level in parallel_texts.MIXED:
        yield from (parallel_texts.given_words_problem(level, seed, i) for i in range(each))
    yield from (parallel_texts.synonyms_problem(seed, i) for i in range(each))
    yield from (parallel_texts.agreement_problem(seed, i) for i in range(each))
    yield from (latin_square(seed, i) for i in range(each))
    yield from (sudoku_problem(seed, i) for i in range(each))


def of_digits(name: str, task: digits.SyntheticTask) -> BenchProblem:
    """Turn a task of digits into a problem. Of a list it is known how many gaps its answer has.

    Args:
        name: Name of the task, one of `DIGITS`.
        task: The task with its question.

    Returns:
        The problem.
    """

    def is_right(answer: str) -> bool:
        return digits.is_right_task_answer(name, task.question, answer)

    # Every other task answers with a list of known length, so its gaps can be given in advance.
    if name == "slots":
        items = 0
    else:
        items = digits.ITEMS
    infill = f"[[{items}]]" if items else None
    known = task.question in embedded_training_questions(name)
    return BenchProblem(name, task.question, is_right, is_right, 13, items, infill, known)


def of_names(name: str, seed: int, number: int, people: int | None = None) -> BenchProblem:
    """Make a problem: an operation on a waiting line, after one that is solved as an example.

    Args:
        name: Name of the operation, a key of `LISTS`.
        seed: Names the randomness.
        number: Number of the problem under this seed.
        people: Length of the line; None: 3 to 6, by `number`.

    Returns:
        The problem.
    """
    # Named by task, seed and number: a problem does not depend on how many others are made.
    r = random.Random(f"parallelbench {name} {seed} {number}")
    task = LISTS[name]

    def waiting_line(count: int) -> tuple[list[str], int, str]:
        # One name more than the line has: it is the new person of some operations.
        all_of = [
            f"{a} {b}"
            for a, b in zip(r.sample(FIRST, count + 1), r.sample(LAST, count + 1), strict=True)
        ]
        return all_of[1:], r.randrange(count), all_of[0]

    def asked_line(items: list[str], at: int, new: str) -> str:
        """Word the question about one waiting line.

        Args:
            items: People of the line, in order.
            at: The place that the operation names.
            new: The new person.

        Returns:
            The line and the operation, in words.
        """
        # The same wording for the example and for the question.
        return f"Waiting line: {_written(items)}\n{task.ask.format(at=at, new=new)}"

    # A line of three people for the example, so that its length cannot be copied.
    example, (items, at, new) = waiting_line(3), waiting_line(people or 3 + number % 4)
    question = (
        "Here is a waiting line, as a list. Answer with the new list alone, written in the same way.\n\n"
        f"{asked_line(*example)}\n{_written(task.change(*example))}\n\n{asked_line(items, at, new)}"
    )

    def is_right(answer: str) -> bool:
        # The last list counts: models often repeat the question's list first.
        names_listed = parse_last_list(answer)
        return names_listed is not None and task.right(items, names_listed, at, new)

    return BenchProblem(
        name,
        question,
        is_right,
        lambda answer: is_right(answer) and _as_asked(answer),
        length=64 if people is None else 12 * people,
        items=len(items),
    )


def _written(items: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{x}"' for x in items) + "]"


def parse_last_list(answer: str) -> list[str] | None:
    """The items of the last list in an answer, with or without quotes; None where there is no list."""
    lists = re.findall(r"\[([^\[\]]*)\]", answer)
    if not lists:
        return None
    if lists[-1].strip():
        return [x.strip().strip("\"'").strip() for x in lists[-1].split(",")]
    return []


def _as_asked(answer: str) -> bool:
    """Whether the last list stands in quotes, with a comma and a space between its items."""
    return re.search(r'\["[^",]*"(, "[^",]*")*\][^\[\]]*$', answer) is not None


def latin_square(seed: int, number: int) -> BenchProblem:
    """Make a problem: four rows of four symbols, none twice in a row or a column.

    Args:
        seed: Names the randomness.
        number: Number of the problem under this seed.

    Returns:
        The problem; any Latin square of the symbols is right.
    """
    symbols = random.Random(f"parallelbench latin {seed} {number}").sample(
        "ABCDEFGHJKLMNPRSTUVWXYZ123456789", 4
    )

    def is_right(answer: str) -> bool:
        # Lines of other symbols, such as a repeated question, are passed over.
        return _is_latin([row for row in _rows(answer) if set(row) == set(symbols)][:4])

    return BenchProblem(
        "latin_square",
        f"Write a Latin square of {', '.join(symbols)}: four lines of four symbols, with "
        "commas between them; no symbol stands twice in a line or a column. Answer with the square alone.",
        is_right,
        lambda answer: is_right(answer) and len(_rows(answer)) == 4,
    )


def sudoku_problem(seed: int, number: int) -> BenchProblem:
    """Make a problem: a 4 x 4 sudoku of which twelve places are given.

    Args:
        seed: Names the randomness.
        number: Number of the problem under this seed.

    Returns:
        The problem; an answer is right where it is a valid sudoku that keeps the given places.
    """
    r = random.Random(f"parallelbench sudoku {seed} {number}")
    a, b, c, d = r.sample("1234", 4)
    # A valid square for any order of the digits: all rows, columns and boxes hold each once.
    square = [[a, b, c, d], [c, d, a, b], [b, a, d, c], [d, c, b, a]]
    hidden = set(r.sample(range(16), 4))
    shown = [
        ["_" if 4 * i + j in hidden else x for j, x in enumerate(row)]
        for i, row in enumerate(square)
    ]

    def is_right(answer: str) -> bool:
        rows = [row for row in _rows(answer) if set(row) == set("1234")][:4]
        if len(rows) == 4:
            # The four 2 x 2 boxes by their upper left corners.
            boxes = [
                {rows[i][j], rows[i][j + 1], rows[i + 1][j], rows[i + 1][j + 1]}
                for i in (0, 2)
                for j in (0, 2)
            ]
        else:
            boxes = []
        # A gap takes any digit; a given place must have its own.
        kept = all(
            x in ("_", y) for shown_row, row in zip(shown, rows) for x, y in zip(shown_row, row)
        )
        return _is_latin(rows) and kept and all(len(box) == 4 for box in boxes)

    lines = "\n".join(",".join(row) for row in shown)
    return BenchProblem(
        "sudoku",
        "Fill the gaps (_) of this 4 x 4 sudoku with the digits 1 to 4: none stands twice in a line, a "
        f"column or a 2 x 2 box. Answer with the whole square alone.\n{lines}",
        is_right,
        lambda answer: is_right(answer) and len(_rows(answer)) == 4,
    )


def _rows(answer: str) -> list[list[str]]:
    """The lines of an answer that hold four symbols with commas between them."""
    rows = [[x.strip() for x in line.split(",")] for line in answer.strip().splitlines()]
    return [row for row in rows if len(row) == 4]


def _is_latin(rows: Sequence[Sequence[str]]) -> bool:
    return len(rows) == 4 and all(len({*line}) == 4 for line in (*rows, *zip(*rows, strict=True)))


def pass_group_sizes(items: int, passes: int) -> tuple[int, ...]:
    """Spread items over passes as evenly as can be, at most one pass an item.

    Args:
        items: Items in all.
        passes: Passes, at least 1 where there are items.

    Returns:
        How many items each pass fills; their sum is `items`.
    """
    passes = min(passes, items)
    # The remainder goes to the first passes, one item each.
    return tuple(items // passes + (i < items % passes) for i in range(passes))


def closed_form_accuracy(task: str, sizes: Sequence[int]) -> float | None:
    """The probability of a right answer where groups of items are drawn in parallel.

    Each item is drawn from its exact law given the groups before; items of one group are drawn
    independently.

    Args:
        task: Name of the task.
        sizes: Items of each group, in order.

    Returns:
        The probability; None for a task without a closed form.
    """
    left = sum(sizes)
    right = 1.0
    still = 1.0
    # Every item is determined by the question: independence costs nothing.
    if task in ("copy", "replace_index", "fill"):
        return 1.0
    if task == "shuffle":
        # A group must draw k different items of those that are left: left! / ((left - k)! left^k).
        for k in sizes:
            # Of left^k equally likely ways to draw k items, _falling(left, k) repeat none.
            right *= _falling(left, k) / left**k
            left -= k
        return right
    if task in ("replace", "replace_random"):
        right = 0.0
        # Right: exactly one item is replaced. `still` is the chance that none was so far.
        for k in sizes:
            # Exactly one of the group's k items replaced, each with probability 1 / left.
            right += still * k / left * (1 - 1 / left) ** (k - 1)
            still *= (1 - 1 / left) ** k
            left -= k
        return right
    return None


def divergence_floor(task: str, sizes: Sequence[int]) -> float | None:
    """The least divergence between parallel draws and the task's own law of right answers, all of
    them equally likely.

    It is the expected total correlation within the groups: the sum of the items' entropies less the
    entropy of the group.

    Args:
        task: Name of the task.
        sizes: Items of each group, in order.

    Returns:
        Nats; None for a task without a closed form.
    """
    left = sum(sizes)
    out = 0.0
    if task in ("copy", "replace_index", "fill"):
        return 0.0
    for k in sizes:
        # k items with log(left) each, less the entropy of drawing k of them without repetition.
        if task == "shuffle":
            out += k * log(left) - log(_falling(left, k))
        elif task in ("replace", "replace_random"):
            # Only where the one replacement is still to come does a group have any entropy.
            share = left / sum(sizes)
            # The group as a whole: one of its k items is replaced, or none is.
            none = 1 - k / left
            if left > 1:
                each = -log(1 / left) / left - (1 - 1 / left) * log(1 - 1 / left)
            else:
                each = 0.0
            together = -k / left * log(1 / left) - (none * log(none) if none > 0 else 0.0)
            out += share * (k * each - together)
        else:
            return None
        left -= k
    return out


def _falling(n: int, k: int) -> float:
    """n (n - 1) … (n - k + 1)."""
    out = 1.0
    for i in range(k):
        out *= n - i
    return out


@dataclass(frozen=True)
class ParallelBenchScore:
    """A method's score on a task.

    Attributes:
        task: Name of the task.
        method: Label of the method.
        n: Answers.
        right: Answers that are right; in tasks of writing the sum of how right they are.
        strict: The same of answers that are written as asked for.
        passes: Passes of all answers.
        tokens: Tokens of all answers, without end tokens.
        closed: Closed form of the accuracy; None where the method does not fill a fixed number of
            gaps a pass, or the task has none.
        floor: Closed form of the divergence, nats; None as above.
        known: How many questions an embedded model was trained on.
    """

    task: str
    method: str
    n: int
    right: float
    strict: float
    passes: int
    tokens: int
    closed: float | None = None
    floor: float | None = None
    known: int = 0

    def table_row(self) -> dict[str, float | str | int | None]:
        """The row of `polydec bench --json`."""
        low, high = wilson_interval(self.right, self.n)
        return {
            "task": self.task,
            "method": self.method,
            "n": self.n,
            "in_training": self.known,
            "right": self.right / self.n,
            "low": low,
            "high": high,
            "strict": self.strict / self.n,
            "passes": self.passes / self.n,
            "tokens_per_pass": self.tokens / self.passes if self.passes else None,
            "closed_form": self.closed,
            "floor_nats": self.floor,
        }


def score_method(
    lm: LoadedModel,
    method: MethodSetting,
    problems: Sequence[BenchProblem],
    sampling: Sampling,
    seed: int = 0,
) -> ParallelBenchScore:
    """Score a method on problems of one task.

    All answers are decoded at once; none depends on the others. The seed of the i-th one is `seed`
    + i.

    Args:
        lm: The loaded model.
        method: The method and its options.
        problems: Problems of one task, at least one.
        sampling: Sampling rules.
        seed: Seed of the first answer. Default 0.

    Returns:
        The score.
    """
    engine = Engine(lm)
    # Only a masked-diffusion model can be given the gaps; others write the list by themselves.
    asked = [
        engine.submit(
            p.question,
            method=method.name,
            options=method.options,
            sampling=sampling,
            seed=seed + i,
            max_tokens=p.length,
            infill=p.infill if family_of(lm.checkpoint.lm) is MASKED_DIFFUSION else None,
        )
        for i, p in enumerate(problems)
    ]
    done = engine.run(asked)
    # Without `steps` the method takes one pass an item.
    passes = int(method.options.get("steps", 0))
    sizes = {pass_group_sizes(p.items, passes or p.items) for p in problems}
    # Closed forms hold where every pass fills a fixed number of gaps of a known list.
    fixed = len(sizes) == 1 and method.name in ("mdlm", "llada") and all(p.infill for p in problems)
    size = next(iter(sizes)) if fixed else ()
    ends = lm.checkpoint.lm.vocab.eos
    return ParallelBenchScore(
        problems[0].task,
        method.label,
        len(problems),
        sum(p.right(a.text) for p, a in zip(problems, done, strict=True)),
        sum(p.strict(a.text) for p, a in zip(problems, done, strict=True)),
        sum(a.metrics["target_passes"] for a in done),
        # An end token is no part of the answer that a pass is credited with.
        sum(len([x for x in a.token_ids if x not in ends]) for a in done),
        closed_form_accuracy(problems[0].task, size) if fixed else None,
        divergence_floor(problems[0].task, size) if fixed else None,
        sum(p.known for p in problems),
    )


def default_suite_methods(lm: LoadedModel) -> list[MethodSetting]:
    """The methods that are compared where the user names none.

    For a masked-diffusion model random order at 6, 3, 2 and 1 passes a list of six, and the surest
    gaps; for an autoregressive model plain decoding, else the family's default method.
    """
    family = family_of(lm.checkpoint.lm)
    if family is not MASKED_DIFFUSION:
        return [MethodSetting("plain" if family.continues_text else family.default_method, {})]
    fixed = [MethodSetting("mdlm", {"steps": str(k)}) for k in (6, 3, 2, 1)]
    return [*fixed, MethodSetting("fast-dllm", {"threshold": "0.9", "block": "0"})]
