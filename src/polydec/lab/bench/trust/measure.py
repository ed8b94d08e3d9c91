"""Rows of a file asked by several methods: each perspective's score, and how far it is from plain decoding's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from random import Random
from typing import Any

from polydec.api import LM, Engine, Ticket
from polydec.base.edge import check, parse_object, sentence
from polydec.base.errors import RequestError
from polydec.lab.bench.measure import Method
from polydec.lab.bench.trust.known import PERSPECTIVES
from polydec.lab.bench.trust.protocols import Judged, Question
from polydec.models.formats.text_rows import whole_file

SAMPLE = Path(__file__).with_name("sample.jsonl")
"""What travels along: made-up people, groups and records, and rude words of everyday."""

DRAWS = 1000
"""Bootstrap samples of an interval."""


@dataclass(frozen=True)
class Line:
    """A row of a file, and its perspective."""

    perspective: str
    row: Any


def lines(path: Path, each: int) -> list[Line]:
    """At most `each` rows of every perspective, at even distances. Raises RequestError with one sentence."""
    read = [
        _line(text, f"line {i} of {str(path)!r}")
        for i, text in enumerate(whole_file(path).split("\n"), 1)
        if text.strip()
    ]
    if not read:
        raise RequestError(sentence(f"file {str(path)!r} holds no row"))
    out = list[Line]()
    for name in PERSPECTIVES:
        mine = [x for x in read if x.perspective == name]
        many = min(each, len(mine))
        out += [mine[i * len(mine) // many] for i in range(many)]
    return out


def _line(text: str, what: str) -> Line:
    content = parse_object(text, what)
    name = content.get("perspective")
    if not isinstance(name, str) or name not in PERSPECTIVES:
        near = get_close_matches(str(name), PERSPECTIVES, 1, 0.0)
        raise RequestError(
            sentence(f"{what}: perspective is {str(name)[:60]!r}; did you mean {near[0]!r}?")
        )
    return Line(name, check(PERSPECTIVES[name].row, content, what))


def answers(
    lm: LM, methods: Sequence[Method], asked: Sequence[Line], seed: int
) -> list[list[Judged]]:
    """Of each method what it answers to every question of every row, all at once: no answer depends on its company. Whatever a
    method cannot do is said before the first one runs."""
    engines = [Engine(lm) for _ in methods]
    tickets = [
        [_asked(engine, method, i, x, seed) for i, x in enumerate(asked)]
        for engine, method in zip(engines, methods, strict=True)
    ]
    for engine, each in zip(engines, tickets, strict=True):
        engine.run([t for row in each for drawn in row for t in drawn])
    return [
        [
            Judged(x.row, tuple(tuple(t.completion().text for t in drawn) for drawn in row))
            for x, row in zip(asked, each, strict=True)
        ]
        for each in tickets
    ]


def _asked(engine: Engine, method: Method, i: int, line: Line, seed: int) -> list[list[Ticket]]:
    """The questions of the i-th row, each so often as it is drawn."""
    return [
        [
            engine.submit(
                prompt(engine.model, q),
                method=method.name,
                options=method.options,
                sampling=engine.model.sampling(temperature=q.temperature),
                max_tokens=q.most,
                seed=seed + 1000 * i + draw,
            )
            for draw in range(q.draws)
        ]
        for q in PERSPECTIVES[line.perspective].asked(line.row)
    ]


def prompt(lm: LM, question: Question) -> Any:
    """Chat messages; for a model without a template the same as running text."""
    if not lm.checkpoint.text.has_chat:
        return f"{question.system}\n\n{question.prompt}\n".lstrip()
    system = [{"role": "system", "content": question.system}] if question.system else []
    return [*system, {"role": "user", "content": question.prompt}]


def interval(figure: Callable[[Sequence[int]], float], rows: int, seed: int) -> tuple[float, float]:
    """The 95 % interval of a figure of rows, by drawing rows with replacement."""
    r = Random(f"trust {seed}")
    drawn = sorted(figure([r.randrange(rows) for _ in range(rows)]) for _ in range(DRAWS))
    return drawn[DRAWS // 40], drawn[-DRAWS // 40]


def rows(
    lm: LM, methods: Sequence[Method], asked: Sequence[Line], seed: int
) -> Iterator[Mapping[str, Any]]:
    """A row for each perspective and method. The first method is what the others are held against."""
    judged = answers(lm, methods, asked, seed)
    for name in PERSPECTIVES:
        at = [i for i, x in enumerate(asked) if x.perspective == name]
        for method, every in zip(methods, judged, strict=True):
            if at:
                beside = compared(name, [every[i] for i in at], [judged[0][i] for i in at], seed)
                yield {"perspective": name, "method": method.label, **beside}


def compared(
    name: str, mine: Sequence[Judged], first: Sequence[Judged], seed: int
) -> dict[str, Any]:
    """The score of a perspective's answers, and how far it is from that of other answers to the same rows."""
    perspective, everything = PERSPECTIVES[name], range(len(mine))

    def scored(drawn: Sequence[int]) -> float:
        return perspective.score([mine[i] for i in drawn])

    def apart(drawn: Sequence[int]) -> float:
        return scored(drawn) - perspective.score([first[i] for i in drawn])

    pairs = [
        (x, y)
        for a, b in zip(mine, first, strict=True)
        for xs, ys in zip(a.answers, b.answers, strict=True)
        for x, y in zip(xs, ys, strict=True)
    ]
    return {
        "rows": len(mine),
        "score": scored(everything),
        "interval": interval(scored, len(mine), seed),
        "difference": apart(everything),
        "difference_interval": interval(apart, len(mine), seed),
        "same_texts": sum(x == y for x, y in pairs) / len(pairs),
        "parts": dict(perspective.parts(mine)),
    }
