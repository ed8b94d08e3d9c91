"""Tasks that show what decoding in parallel loses: lists and small puzzles whose tokens depend on each other, or do not.

Source: ParallelBench (Kang et al., 2025). The questions are worded here; tasks of writing stand in parallel_texts.py.
Closed forms follow from its definitions.
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
from polydec.lab.train.earlier import embedded_training_questions, fresh_held_out_tasks
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
    """ask: how it is said of a list, `{at}` and `{new}` standing for a place and a name; change: what becomes of a list at a
    place with a new item, one right answer of possibly several; right: of a list, its answer, the place and the new item."""

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
    return items[1:] + items[:1]


def _insert(items: list[str], at: int, new: str) -> list[str]:
    return [*items[:at], new, *items[at:]]


def _remove(items: list[str], at: int, new: str) -> list[str]:
    return [*items[:at], *items[at + 1 :]]


def _replace(items: list[str], at: int, new: str) -> list[str]:
    return [*items[:at], new, *items[at + 1 :]]


def _shuffled(items: list[str], answer: list[str], at: int, new: str) -> bool:
    return Counter(answer) == Counter(items) and answer != items


def _inserted(items: list[str], answer: list[str], at: int, new: str) -> bool:
    return answer.count(new) == 1 and [x for x in answer if x != new] == items


def _removed(items: list[str], answer: list[str], at: int, new: str) -> bool:
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
"""The operations on a waiting line. Of those with `random` in their name, and of shuffle, several answers are right, and their
tokens depend on each other."""

DIGITS = ("copy", "slots", "fill", "shuffle", "pick", "count", "replace")
"""Tasks of the models that `polydec train diffusion` makes."""

SUITES = ("parallelbench", "parallelbench-15", "parallelbench-digits")
"""In words, for models that follow instructions; the waiting lines alone, of 15 people; and as the models ask that `polydec
train diffusion` makes."""

LONG_LINE = 15
"""People of the second suite's lines."""


def suite_problems(suite: str, each: int, seed: int = 0) -> Iterator[BenchProblem]:
    """`each` problems of every task of a suite, always the same for a seed. Raises RequestError for a suite that is unknown."""
    if suite not in SUITES:
        raise RequestError(f"suite is {suite!r}: it must be one of {', '.join(SUITES)}")
    if suite == "parallelbench-digits":
        yield from (
            of_digits(name, t) for name in DIGITS for t in fresh_held_out_tasks(name, seed, each)
        )
        return
    if suite == "parallelbench-15":
        yield from (of_names(name, seed, i, LONG_LINE) for name in LISTS for i in range(each))
        return
    yield from (of_names(name, seed, i) for name in LISTS for i in range(each))
    for level in parallel_texts.MIXED:
        yield from (parallel_texts.words_to_sentence(level, seed, i) for i in range(each))
    yield from (parallel_texts.paraphrase_problem(seed, i) for i in range(each))
    yield from (parallel_texts.summary_problem(seed, i) for i in range(each))
    yield from (latin_square(seed, i) for i in range(each))
    yield from (sudoku_problem(seed, i) for i in range(each))


def of_digits(name: str, task: digits.SyntheticTask) -> BenchProblem:
    """A task of lab/train/tasks.py; of a list it is known how many gaps its answer has."""

    def right(answer: str) -> bool:
        return digits.is_right_task_answer(name, task.question, answer)

    if name == "slots":
        items = 0
    else:
        items = digits.ITEMS
    infill = f"[[{items}]]" if items else None
    known = task.question in embedded_training_questions(name)
    return BenchProblem(name, task.question, right, right, 13, items, infill, known)


def of_names(name: str, seed: int, number: int, people: int | None = None) -> BenchProblem:
    """An operation on a waiting line of so many people (None: 3 to 6), with one solved before it."""
    r = random.Random(f"parallelbench {name} {seed} {number}")
    task = LISTS[name]

    def line(count: int) -> tuple[list[str], int, str]:
        all_of = [
            f"{a} {b}"
            for a, b in zip(r.sample(FIRST, count + 1), r.sample(LAST, count + 1), strict=True)
        ]
        return all_of[1:], r.randrange(count), all_of[0]

    def asked(items: list[str], at: int, new: str) -> str:
        return f"Waiting line: {_written(items)}\n{task.ask.format(at=at, new=new)}"

    example, (items, at, new) = line(3), line(people or 3 + number % 4)
    question = (
        "Here is a waiting line, as a list. Answer with the new list alone, written in the same way.\n\n"
        f"{asked(*example)}\n{_written(task.change(*example))}\n\n{asked(items, at, new)}"
    )

    def right(answer: str) -> bool:
        names_listed = parse_last_list(answer)
        return names_listed is not None and task.right(items, names_listed, at, new)

    return BenchProblem(
        name,
        question,
        right,
        lambda answer: right(answer) and _as_asked(answer),
        length=64 if people is None else 12 * people,
        items=len(items),
    )


def _written(items: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{x}"' for x in items) + "]"


def parse_last_list(answer: str) -> list[str] | None:
    """The items of the last list in an answer, with quotes or without; None where there is none."""
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
    """Four rows of four symbols, none twice in a row or a column."""
    symbols = random.Random(f"parallelbench latin {seed} {number}").sample(
        "ABCDEFGHJKLMNPRSTUVWXYZ123456789", 4
    )

    def right(answer: str) -> bool:
        return _is_latin([row for row in _rows(answer) if set(row) == set(symbols)][:4])

    return BenchProblem(
        "latin_square",
        f"Write a Latin square of {', '.join(symbols)}: four lines of four symbols, with "
        "commas between them; no symbol stands twice in a line or a column. Answer with the square alone.",
        right,
        lambda answer: right(answer) and len(_rows(answer)) == 4,
    )


def sudoku_problem(seed: int, number: int) -> BenchProblem:
    """A Latin square whose 2 x 2 boxes hold every symbol, too, of which twelve places are given."""
    r = random.Random(f"parallelbench sudoku {seed} {number}")
    a, b, c, d = r.sample("1234", 4)
    square = [[a, b, c, d], [c, d, a, b], [b, a, d, c], [d, c, b, a]]
    hidden = set(r.sample(range(16), 4))
    shown = [
        ["_" if 4 * i + j in hidden else x for j, x in enumerate(row)]
        for i, row in enumerate(square)
    ]

    def right(answer: str) -> bool:
        rows = [row for row in _rows(answer) if set(row) == set("1234")][:4]
        if len(rows) == 4:
            boxes = [
                {rows[i][j], rows[i][j + 1], rows[i + 1][j], rows[i + 1][j + 1]}
                for i in (0, 2)
                for j in (0, 2)
            ]
        else:
            boxes = []
        kept = all(
            x in ("_", y) for shown_row, row in zip(shown, rows) for x, y in zip(shown_row, row)
        )
        return _is_latin(rows) and kept and all(len(box) == 4 for box in boxes)

    lines = "\n".join(",".join(row) for row in shown)
    return BenchProblem(
        "sudoku",
        "Fill the gaps (_) of this 4 x 4 sudoku with the digits 1 to 4: none stands twice in a line, a "
        f"column or a 2 x 2 box. Answer with the whole square alone.\n{lines}",
        right,
        lambda answer: right(answer) and len(_rows(answer)) == 4,
    )


def _rows(answer: str) -> list[list[str]]:
    """The lines of an answer that hold four symbols with commas between them."""
    rows = [[x.strip() for x in line.split(",")] for line in answer.strip().splitlines()]
    return [row for row in rows if len(row) == 4]


def _is_latin(rows: Sequence[Sequence[str]]) -> bool:
    return len(rows) == 4 and all(len({*line}) == 4 for line in (*rows, *zip(*rows, strict=True)))


def pass_group_sizes(items: int, passes: int) -> tuple[int, ...]:
    """How many of so many items each pass fills, as evenly as can be; at most one pass an item."""
    passes = min(passes, items)
    return tuple(items // passes + (i < items % passes) for i in range(passes))


def closed_form_accuracy(task: str, sizes: Sequence[int]) -> float | None:
    """The chance of a right answer where the items are drawn in groups of these sizes, each from its exact law given the groups
    before, the items of a group independently; None for a task without a closed form."""
    left = sum(sizes)
    right = 1.0
    still = 1.0
    if task in ("copy", "replace_index", "fill"):
        return 1.0
    if task == "shuffle":
        for k in sizes:  # another item each: left! / ((left - k)! left^k)
            right *= _falling(left, k) / left**k
            left -= k
        return right
    if task in ("replace", "replace_random"):
        right = 0.0
        for k in sizes:  # `still`: nothing was replaced so far
            right += still * k / left * (1 - 1 / left) ** (k - 1)
            still *= (1 - 1 / left) ** k
            left -= k
        return right
    return None


def divergence_floor(task: str, sizes: Sequence[int]) -> float | None:
    """The least divergence, in nats, between what is drawn so and the task's own law of right answers (all of them equally
    likely): the expected total correlation within the groups; None for a task without a closed form."""
    left = sum(sizes)
    out = 0.0
    if task in ("copy", "replace_index", "fill"):
        return 0.0
    for k in sizes:
        if task == "shuffle":
            out += k * log(left) - log(_falling(left, k))
        elif task in ("replace", "replace_random"):
            share = left / sum(sizes)
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
    """A method on a task: of n answers how many were right, and written as asked (in tasks of writing the sum of how right they
    were); passes and tokens of all of them, EOS left
    out. closed, floor: the closed forms, where the method fills a fixed number of gaps a pass and the task has them; known: of
    how many questions an embedded model knew the answer from its training."""

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

    def row(self) -> dict[str, float | str | int | None]:
        """What `polydec bench --json` says."""
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
    """A method on problems of one task, all at once: no answer depends on its company. The seed of the i-th is `seed` + i."""
    engine = Engine(lm)
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
    passes = int(method.options.get("steps", 0))
    sizes = {pass_group_sizes(p.items, passes or p.items) for p in problems}
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
        sum(len([x for x in a.token_ids if x not in ends]) for a in done),
        closed_form_accuracy(problems[0].task, size) if fixed else None,
        divergence_floor(problems[0].task, size) if fixed else None,
        sum(p.known for p in problems),
    )


def default_suite_methods(lm: LoadedModel) -> list[MethodSetting]:
    """Of a masked-diffusion model random order at 6, 3, 2 and 1 passes a list of six, and the surest gaps; of an insertion
    model a token a pass, of an autoregressive one plain decoding."""
    family = family_of(lm.checkpoint.lm)
    if family is not MASKED_DIFFUSION:
        return [MethodSetting("plain" if family.continues_text else family.default_method, {})]
    fixed = [MethodSetting("mdlm", {"steps": str(k)}) for k in (6, 3, 2, 1)]
    return [*fixed, MethodSetting("fast-dllm", {"threshold": "0.9", "block": "0"})]
