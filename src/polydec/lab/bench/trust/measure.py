"""Rows of a file asked by several methods: each perspective's score, and how far it is from plain
decoding's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from random import Random
from typing import Any

from polydec.api import Engine, LoadedModel, Ticket
from polydec.base.edge import error_sentence, parse_object, validate_record
from polydec.base.errors import RequestError
from polydec.lab.bench.measure import MethodSetting
from polydec.lab.bench.trust.kept_answers import KeptAnswers, asked_digest
from polydec.lab.bench.trust.perspective_names import PERSPECTIVES
from polydec.lab.bench.trust.protocols import JudgedRow, TrustQuestion
from polydec.models.formats.text_rows import whole_file

SAMPLE = Path(__file__).with_name("sample.jsonl")
"""What travels along: made-up people, groups and records, and rude words of everyday."""

DRAWS = 1000
"""Bootstrap samples of an interval."""


@dataclass(frozen=True)
class PerspectiveRow:
    """A row of a file.

    Attributes:
        perspective: Name of its perspective.
        row: Its content, as the perspective defines it.
    """

    perspective: str
    row: Any


def read_perspective_rows(path: Path, each: int) -> list[PerspectiveRow]:
    """Read rows of a file, at even distances.

    Args:
        path: The file, one JSON object a line.
        each: Rows of every perspective at most.

    Returns:
        The rows, by perspective.

    Raises:
        RequestError: The file holds no row, or a damaged one.
    """
    read = [
        _line(text, f"line {i} of {str(path)!r}")
        for i, text in enumerate(whole_file(path).split("\n"), 1)
        if text.strip()
    ]
    if not read:
        raise RequestError(error_sentence(f"file {str(path)!r} holds no row"))
    out = list[PerspectiveRow]()
    for name in PERSPECTIVES:
        # Perspectives in one fixed order, whatever that of the file.
        mine = [x for x in read if x.perspective == name]
        many = min(each, len(mine))
        out += [mine[i * len(mine) // many] for i in range(many)]
    return out


def _line(text: str, what: str) -> PerspectiveRow:
    content = parse_object(text, what)
    name = content.get("perspective")
    if not isinstance(name, str) or name not in PERSPECTIVES:
        near = get_close_matches(str(name), PERSPECTIVES, 1, 0.0)
        raise RequestError(
            error_sentence(f"{what}: perspective is {str(name)[:60]!r}; did you mean {near[0]!r}?")
        )
    return PerspectiveRow(name, validate_record(PERSPECTIVES[name].row, content, what))


def answer_perspective_rows(
    lm: LoadedModel,
    methods: Sequence[MethodSetting],
    asked: Sequence[PerspectiveRow],
    seed: int,
    kept: KeptAnswers,
) -> list[list[JudgedRow]]:
    """Let methods answer every question of every row, all at once: no answer depends on the others.

    Whatever a method cannot do is refused before the first one runs.

    Args:
        lm: The loaded model.
        methods: The methods and their options.
        asked: The rows.
        seed: Names the randomness.
        kept: Answers that need not be written again; it takes all that are.

    Returns:
        For each method the rows with its answers.
    """
    questions = [PERSPECTIVES[x.perspective].asked(x.row) for x in asked]
    # Seeds of rows do not overlap as long as a question is drawn less than a thousand times.
    seeds = [seed + 1000 * i for i in range(len(asked))]
    # What is asked and how it is drawn: a row of another text is another row.
    digests = [asked_digest(*row) for row in zip(questions, seeds, strict=True)]
    out = list[list[JudgedRow]]()
    runs = list[tuple[Engine, dict[int, list[list[Ticket]]]]]()
    for method in methods:
        engine = Engine(lm)
        # Submitting checks every request of every method; running comes after.
        tickets = {
            i: _asked(engine, method, questions[i], seeds[i])
            for i, digest in enumerate(digests)
            if kept.find_answers(lm.name, method.label, digest) is None
        }
        runs.append((engine, tickets))
    # Method by method, so that a run that is stopped has kept what earlier ones wrote.
    for method, (engine, tickets) in zip(methods, runs, strict=True):
        engine.run([t for row in tickets.values() for drawn in row for t in drawn])
        for i, row in tickets.items():
            answers = tuple(tuple(t.completion().text for t in drawn) for drawn in row)
            kept.keep_answers(lm.name, method.label, digests[i], answers)
        judged = [kept.find_answers(lm.name, method.label, digest) or () for digest in digests]
        out.append([JudgedRow(x.row, answers) for x, answers in zip(asked, judged, strict=True)])
    return out


def _asked(
    engine: Engine, method: MethodSetting, questions: Sequence[TrustQuestion], seed: int
) -> list[list[Ticket]]:
    """The questions of a row, each so often as it is drawn."""
    return [
        [
            engine.submit(
                question_prompt(engine.model, q),
                method=method.name,
                options=method.options,
                sampling=engine.model.sampling_with(temperature=q.temperature),
                max_tokens=q.most,
                seed=seed + draw,
            )
            for draw in range(q.draws)
        ]
        for q in questions
    ]


def question_prompt(lm: LoadedModel, question: TrustQuestion) -> Any:
    """A question as chat messages; as running text for a model without a chat template.

    Args:
        lm: The loaded model.
        question: The question.

    Returns:
        A prompt.
    """
    # A base model continues text: the question is its beginning.
    if not lm.checkpoint.text.has_chat:
        return f"{question.system}\n\n{question.prompt}\n".lstrip()
    if question.system:
        system = [{"role": "system", "content": question.system}]
    else:
        system = []
    return [*system, {"role": "user", "content": question.prompt}]


def bootstrap_figure_interval(
    figure: Callable[[Sequence[int]], float], rows: int, seed: int
) -> tuple[float, float]:
    """The 95 % interval of a figure, by drawing rows with replacement.

    Args:
        figure: The figure of some rows, given by their indices.
        rows: How many rows there are, at least 1.
        seed: Names the randomness.

    Returns:
        Lower and upper end.
    """
    r = Random(f"trust {seed}")
    # Percentile bootstrap: 2.5 % of the samples lie outside at each end.
    drawn = sorted(figure([r.randrange(rows) for _ in range(rows)]) for _ in range(DRAWS))
    return drawn[DRAWS // 40], drawn[-DRAWS // 40]


def perspective_score_rows(
    lm: LoadedModel,
    methods: Sequence[MethodSetting],
    asked: Sequence[PerspectiveRow],
    seed: int,
    kept: KeptAnswers,
) -> Iterator[Mapping[str, Any]]:
    """Score methods on each perspective. The first method is what the others are compared with.

    Args:
        lm: The loaded model.
        methods: The methods and their options, at least one.
        asked: The rows.
        seed: Names the randomness.
        kept: Answers that are judged again, and where new ones go.

    Yields:
        A row for each perspective and method.
    """
    judged = answer_perspective_rows(lm, methods, asked, seed, kept)
    for name in PERSPECTIVES:
        at = [i for i, x in enumerate(asked) if x.perspective == name]
        for method, every in zip(methods, judged, strict=True):
            if at:
                # The first method is compared with itself too: its row shows a difference of 0.
                beside = compare_perspective_answers(
                    name, [every[i] for i in at], [judged[0][i] for i in at], seed
                )
                yield {"perspective": name, "method": method.label, **beside}


def compare_perspective_answers(
    name: str, mine: Sequence[JudgedRow], first: Sequence[JudgedRow], seed: int
) -> dict[str, Any]:
    """Score a perspective's answers, and their distance from other answers to the same rows.

    Args:
        name: Name of the perspective.
        mine: Rows with the answers that are scored.
        first: The same rows with the answers that they are compared with.
        seed: Names the randomness of the intervals.

    Returns:
        Score, difference and their 95 % intervals, the share of equal texts, and further figures.
    """
    perspective = PERSPECTIVES[name]
    everything = range(len(mine))

    def score_drawn(drawn: Sequence[int]) -> float:
        return perspective.score([mine[i] for i in drawn])

    # Paired: both sides are scored on the same drawn rows, so what is hard for both cancels.
    def answer_distance(drawn: Sequence[int]) -> float:
        return score_drawn(drawn) - perspective.score([first[i] for i in drawn])

    # Every answer and its counterpart of the same row, question and draw.
    pairs = [
        (x, y)
        for a, b in zip(mine, first, strict=True)
        for xs, ys in zip(a.answers, b.answers, strict=True)
        for x, y in zip(xs, ys, strict=True)
    ]
    return {
        "rows": len(mine),
        "score": score_drawn(everything),
        "interval": bootstrap_figure_interval(score_drawn, len(mine), seed),
        "difference": answer_distance(everything),
        "difference_interval": bootstrap_figure_interval(answer_distance, len(mine), seed),
        "same_texts": sum(x == y for x, y in pairs) / len(pairs),
        "parts": dict(perspective.parts(mine)),
    }
