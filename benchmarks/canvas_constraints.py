"""Constraints on a masked-diffusion model: how many answers keep to one with it and without, in how many passes and what time.

    python benchmarks/canvas_constraints.py          # 1,000 answers of each method: canvas-constraints.csv in lab/reports

Questions are those of zoo:diffusion's short tasks, held out (SHA-1 mod 10 of at least 7), fresh as far as a task has others.
Each is asked in one of four forms: in the task's own as a regular expression (six digits), as JSON (a schema; the model has
never seen JSON), as a choice (of twelve towns the one that the question names), and as a text with typed gaps. No prompt or
option was tuned. Without the constraint the same is asked without it; of the text with gaps without the patterns. Right is
what `is_right_task_answer` says of the value. An interval is Wilson's, 95 %. Time is CPU time of the process, one answer after
the other on one thread. Texts, passes and shares do not depend on the machine; time does.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csv_rows import write_csv

from polydec import AnyOf, Engine, JsonSchema, Regex, load
from polydec.lab.bench.intervals import wilson_interval
from polydec.lab.train.held_out_questions import fresh_held_out_tasks
from polydec.lab.train.tasks import TOWNS, is_right_task_answer

DIGITS = "[0-9]{6}"
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "pattern": f"^{DIGITS}$"}},
    "required": ["answer"],
}
GAPS = "name:[[1]] town:[[1]] age: [[2]]"
TYPED = "name:[[1: [A-Z][a-z]+]] town:[[1: [A-Z][a-z]+]] age: [[2:[0-9]{2}]]"
LISTS = ("copy", "count", "shuffle", "pick")


@dataclass(frozen=True)
class Form:
    """A way to ask. bound, free: fields of the request with the constraint and without; valid: whether a text keeps to it;
    value: what of a valid text the task judges; share: of all questions, in tenths."""

    name: str
    tasks: Sequence[str]
    bound: Mapping[str, Any]
    free: Mapping[str, Any]
    valid: Callable[[str], bool]
    value: Callable[[str, str], str]
    share: int


def json_answer(text: str) -> str | None:
    """The list in a JSON answer; None where it is none."""
    try:
        read = json.loads(text)
    except ValueError:
        return None
    listed = isinstance(read, dict) and list(read) == ["answer"] and isinstance(read["answer"], str)
    return read["answer"] if listed and re.fullmatch(DIGITS, read["answer"]) else None


def said_town(question: str, text: str) -> str:
    """The task's whole answer, where the town is the one that was asked for."""
    name, town, age = question.partition(": ")[2].split(", ")
    return f"name: {name} town: {text} age: {age}" if text == town else ""


FORMS = (
    Form(
        "six digits",
        LISTS,
        {"constraint": Regex(DIGITS), "max_tokens": 13},
        {"max_tokens": 13},
        lambda text: re.fullmatch(DIGITS, text) is not None,
        lambda question, text: text,
        4,
    ),
    Form(
        "JSON",
        LISTS,
        {"constraint": JsonSchema.of_schema(SCHEMA), "max_tokens": 32},
        {"max_tokens": 32},
        lambda text: json_answer(text) is not None,
        lambda question, text: json_answer(text) or "",
        2,
    ),
    Form(
        "choice",
        ("slots",),
        {"constraint": AnyOf(TOWNS), "max_tokens": 8},
        {"max_tokens": 8},
        lambda text: text in TOWNS,
        said_town,
        2,
    ),
    Form(
        "typed gaps",
        ("slots",),
        {"infill": TYPED},
        {"infill": GAPS},
        lambda text: (
            re.fullmatch("name: [A-Z][a-z]+ town: [A-Z][a-z]+ age: [0-9]{2}", text) is not None
        ),
        lambda question, text: text,
        2,
    ),
)
METHODS: Sequence[tuple[str, str, Mapping[str, Any], float]] = (
    ("one a pass", "llada", {"block": 0}, 0.0),
    ("threshold 0.9", "fast-dllm", {"block": 0}, 0.0),
    ("one pass for all", "llada", {"block": 0, "steps": 1}, 0.0),
    ("threshold 0.9, drawn", "fast-dllm", {"block": 0}, 1.0),
)


@dataclass
class Tally:
    """What was counted of some answers."""

    n: int = 0
    valid: int = 0
    right: int = 0
    passes: int = 0
    ms: float = 0.0
    texts: list[str] = field(default_factory=list[str])

    def with_other(self, other: Tally) -> Tally:
        return Tally(
            self.n + other.n,
            self.valid + other.valid,
            self.right + other.right,
            self.passes + other.passes,
            self.ms + other.ms,
        )


def asked_questions(form: Form, count: int, seed: int) -> list[tuple[str, str]]:
    """So many held-out questions of a form's tasks, each with its task's name."""
    each = -(-count // len(form.tasks))
    found = [
        (name, t.question) for name in form.tasks for t in fresh_held_out_tasks(name, seed, each)
    ]
    return found[:count]


def tally(
    engine: Engine,
    form: Form,
    fields: Mapping[str, Any],
    questions: Sequence[tuple[str, str]],
    method: tuple[str, str, Mapping[str, Any], float],
) -> Tally:
    """The answers to some questions, one after the other."""
    _, name, options, heat = method
    out = Tally()
    for seed, (task, question) in enumerate(questions):
        began = time.process_time()
        ticket = engine.submit(
            question, method=name, options=options, seed=seed, temperature=heat, **fields
        )
        done = engine.run([ticket])[0]
        out.ms += 1000 * (time.process_time() - began)
        text = done.choices[0].text
        valid = form.valid(text)
        out.n += 1
        out.valid += valid
        out.right += valid and is_right_task_answer(task, question, form.value(question, text))
        out.passes += done.metrics["target_passes"]
        out.texts.append(text)
    return out


def rows_of_method(
    engine: Engine, asked: Mapping[str, list[tuple[str, str]]], method: Any
) -> Iterator[dict[str, Any]]:
    """A row for each form, with the constraint and without, and one for all forms together."""
    whole = {"with": Tally(), "without": Tally()}
    for form in FORMS:
        for which, fields in (("with", form.bound), ("without", form.free)):
            tally(engine, form, fields, asked[form.name][:1], method)  # what a first one sets up
            got = tally(engine, form, fields, asked[form.name], method)
            whole[which] = whole[which].with_other(got)
            print(f"  {method[0]}, {form.name}, {which}: {got.texts[:2]}", flush=True)
            yield row(method[0], form.name, which, got)
    for which, got in whole.items():
        yield row(method[0], "all", which, got)


def row(method: str, form: str, which: str, got: Tally) -> dict[str, Any]:
    low, high = wilson_interval(got.valid, got.n)
    return {
        "method": method,
        "form": form,
        "constraint": which,
        "n": got.n,
        "valid": f"{100 * got.valid / got.n:.1f}",
        "low": f"{100 * low:.1f}",
        "high": f"{100 * high:.1f}",
        "right": f"{100 * got.right / got.n:.1f}",
        "passes": f"{got.passes / got.n:.2f}",
        "ms": f"{got.ms / got.n:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="zoo:diffusion")
    parser.add_argument("--count", type=int, default=1000, help="answers of each method")
    parser.add_argument("--seed", type=int, default=0, help="of the questions")
    parser.add_argument(
        "--out", default=Path(__file__).parents[1] / "lab/reports/canvas-constraints.csv"
    )
    a = parser.parse_args()
    engine = Engine(load(a.model, draft=None, threads=1))
    asked = {form.name: asked_questions(form, form.share * a.count // 10, a.seed) for form in FORMS}
    rows = [r for method in METHODS for r in rows_of_method(engine, asked, method)]
    write_csv(a.out, rows)
    for r in rows:
        print(" ".join(f"{x!s:>10}" for x in r.values()))


if __name__ == "__main__":
    main()
