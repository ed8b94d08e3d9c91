"""Solved problems shown before a question: those of the most steps first.

Source: Fu et al., "Complexity-based prompting for multi-step reasoning" (2022): published with 8 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polydec.base.edge import Record, check, parse_object, read_bytes, sentence, whole, whole_text
from polydec.base.errors import RequestError
from polydec.methods.search.loop.vote import steps
from polydec.request.fields import LENGTH
from polydec.request.loaded import LM

ANSWER = "####"
"""What stands before the answer in a solution of GSM8K's form."""
MOST = 64
"""Exemplars at most."""


@dataclass(frozen=True)
class Exemplar:
    """A question, a line for each step of its solution, and the answer."""

    question: str
    solution: str
    answer: str

    @property
    def complexity(self) -> int:
        """Lines of the solution that are not empty."""
        return steps(self.solution)

    @property
    def shown(self) -> str:
        return f"{asked(self.question)}\n{self.solution.strip()}\nThe answer is {self.answer}"


class _Line(Record):
    """solution may be missing where the answer is a solution that ends in "#### answer", as GSM8K has it."""

    question: str
    answer: str
    solution: str | None = None


def read(path: Path) -> list[Exemplar]:
    """The solved problems of a JSON-lines file, at least one: `question`, `solution` and `answer`, or `question` and an
    `answer` that is a solution and ends in "#### 42". Raises RequestError with one sentence for anything else."""
    out = list[Exemplar]()
    for i, line in enumerate(read_bytes(path).decode("utf-8-sig", "replace").split("\n"), 1):
        if line.strip():
            what = f"line {i} of {str(path)!r}"
            row = check(_Line, parse_object(line, what), what)
            solution, mark, answer = row.answer.rpartition(ANSWER)
            if row.solution is not None:
                solution, answer = row.solution, row.answer
            elif not mark:
                raise RequestError(
                    sentence(
                        f"{what} has no solution: neither in a field, nor before {ANSWER} in its answer"
                    )
                )
            fields = (row.question, solution, answer)
            out.append(Exemplar(*(whole_text(text.strip(), what) for text in fields)))
    if not out:
        raise RequestError(sentence(f"file {str(path)!r} holds no solved problem"))
    return out


def chosen(pool: Sequence[Exemplar], question: str, count: int) -> list[Exemplar]:
    """The `count` of most steps, the most complex first, of equal ones the earlier; never the question itself. Where
    the pool holds fewer: all."""
    others = [e for e in pool if e.question.strip() != question.strip()]
    return sorted(others, key=lambda e: -e.complexity)[:count]


def asked(question: str) -> str:
    return f"Question: {question.strip()}\nLet's think step by step"


def prompt(
    lm: LM,
    pool: Sequence[Exemplar],
    question: str,
    count: int,
    *,
    max_tokens: int | None = None,
    raw: bool = False,
) -> str:
    """The question behind `count` exemplars (1 to 64). Those that leave the answer no room in the model's context (`max_tokens`
    tokens, 128 without it) are passed over, and the next of the 64 most complex take their places. Raises RequestError where
    not one fits."""
    whole("shots", count, 1, MOST)
    room = lm.checkpoint.lm.network.context - (LENGTH if max_tokens is None else max_tokens)
    shown = list[Exemplar]()

    def text(examples: Sequence[Exemplar]) -> str:
        return "\n\n".join([*(e.shown for e in examples), asked(question)])

    for e in chosen(pool, question, MOST):
        if len(shown) < count and len(lm.ids(text([*shown, e]), raw=raw)) <= room:
            shown.append(e)
    if not shown:
        raise RequestError(
            f"exemplars: of {len(pool)} solved problems not one fits into the context of {lm.name} with the "
            "question and max_tokens"
        )
    return text(shown)
