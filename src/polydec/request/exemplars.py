"""Solved problems shown before a question: those of the most steps first.

Source: Fu et al., "Complexity-based prompting for multi-step reasoning" (2022): published with 8 of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polydec.base.edge import (
    StrictRecord,
    error_sentence,
    parse_object,
    read_bytes,
    require_integer,
    validate_record,
    whole_text,
)
from polydec.base.errors import RequestError
from polydec.methods.search.loop.vote import count_steps
from polydec.request.fields import LENGTH
from polydec.request.loaded import LoadedModel

ANSWER = "####"
"""What stands before the answer in a solution of GSM8K's form."""
MOST = 64
"""Exemplars at most."""


@dataclass(frozen=True)
class SolvedExemplar:
    """A question, a line for each step of its solution, and the answer."""

    question: str
    solution: str
    answer: str

    @property
    def reasoning_complexity(self) -> int:
        """Lines of the solution that are not empty."""
        return count_steps(self.solution)

    @property
    def shown(self) -> str:
        return f"{exemplar_question_text(self.question)}\n{self.solution.strip()}\nThe answer is {self.answer}"


class _ExemplarRecord(StrictRecord):
    """solution may be missing where the answer is a solution that ends in "#### answer", as GSM8K
    has it."""

    question: str
    answer: str
    solution: str | None = None


def read_exemplars(path: Path) -> list[SolvedExemplar]:
    """The solved problems of a JSON-lines file, at least one: `question`, `solution` and `answer`,
    or `question` and an `answer` that is a solution and ends in "#### 42". Raises RequestError with
    one sentence for anything else."""
    out = list[SolvedExemplar]()
    for i, line in enumerate(read_bytes(path).decode("utf-8-sig", "replace").split("\n"), 1):
        if line.strip():
            what = f"line {i} of {str(path)!r}"
            row = validate_record(_ExemplarRecord, parse_object(line, what), what)
            # The sign before the answer is that of GSM8K.
            solution, mark, answer = row.answer.rpartition(ANSWER)
            if row.solution is not None:
                solution = row.solution
                answer = row.answer
            elif not mark:
                raise RequestError(
                    error_sentence(
                        f"{what} has no solution: neither in a field, nor before {ANSWER} in its answer"
                    )
                )
            fields = (row.question, solution, answer)
            out.append(SolvedExemplar(*(whole_text(text.strip(), what) for text in fields)))
    if not out:
        raise RequestError(error_sentence(f"file {str(path)!r} holds no solved problem"))
    return out


def most_complex_exemplars(
    pool: Sequence[SolvedExemplar], question: str, count: int
) -> list[SolvedExemplar]:
    """The solved problems of most steps.

    Args:
        pool: To choose from.
        question: Is never among them.
        count: How many.

    Returns:
        The most complex first, of equal ones the earlier; all where the pool holds fewer.
    """
    others = [e for e in pool if e.question.strip() != question.strip()]
    return sorted(others, key=lambda e: -e.reasoning_complexity)[:count]


def exemplar_question_text(question: str) -> str:
    """A question as it stands behind solved problems."""
    return f"Question: {question.strip()}\nLet's think step by step"


def exemplar_prompt(
    lm: LoadedModel,
    pool: Sequence[SolvedExemplar],
    question: str,
    count: int,
    *,
    max_tokens: int | None = None,
    raw: bool = False,
) -> str:
    """A question behind solved problems. Those that leave the answer no room in the model's context
    are passed over, and the next of the 64 most complex take their places.

    Args:
        lm: The model that reads it.
        pool: The solved problems.
        question: Stands at the end.
        count: How many are shown, 1 to 64.
        max_tokens: Of the answer. None: 128.
        raw: The prompt is read without the chat template.

    Returns:
        The prompt.

    Raises:
        RequestError: The count is out of range, or not one of them fits.
    """
    require_integer("shots", count, 1, MOST)
    room = lm.checkpoint.lm.network.context - (LENGTH if max_tokens is None else max_tokens)
    shown = list[SolvedExemplar]()

    def exemplar_text(examples: Sequence[SolvedExemplar]) -> str:
        return "\n\n".join([*(e.shown for e in examples), exemplar_question_text(question)])

    # One that is too long for the context is passed over, and a shorter one may take its place.
    for e in most_complex_exemplars(pool, question, MOST):
        if (
            len(shown) < count
            and len(lm.encode_prompt(exemplar_text([*shown, e]), raw=raw)) <= room
        ):
            shown.append(e)
    if not shown:
        raise RequestError(
            f"exemplars: of {len(pool)} solved problems not one fits into the context of {lm.name} with the "
            "question and max_tokens"
        )
    return exemplar_text(shown)
