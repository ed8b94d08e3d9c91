"""Answers that a file keeps, so that they are judged again without asking the model for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import Field

from polydec.base import files
from polydec.base.edge import error_sentence, parse_object, read_bytes, validate_record
from polydec.base.errors import FileError, RequestError
from polydec.base.outside_records import StrictRecord
from polydec.lab.bench.trust.protocols import TrustQuestion

Answers = tuple[tuple[str, ...], ...]
"""Of each question its answers."""


class _KeptLineRecord(StrictRecord):
    """A line of the file."""

    model: Annotated[str, Field(max_length=4096)]
    method: Annotated[str, Field(max_length=4096)]
    asked: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    answers: list[list[str]]


def asked_digest(questions: Sequence[TrustQuestion], seed: int) -> str:
    """What tells the questions of a row from all others: their text and how they are drawn.

    Args:
        questions: The questions.
        seed: Of the row's first answer.

    Returns:
        40 hexadecimal digits.
    """
    # Seeds count: what is drawn differs by them.
    told = json.dumps([seed, *(asdict(question) for question in questions)])
    return hashlib.sha1(told.encode()).hexdigest()


class KeptAnswers:
    """The answers of a file, by model, method and questions, and the file that takes further ones.

    Without a file it holds nothing and keeps nothing. A model is known by its name alone.

    Args:
        path: The file; None: there is none.

    Raises:
        FileError: A line of it is damaged, or it cannot be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._found = dict[tuple[str, str, str], Answers]()
        if path is None or not path.exists():
            return
        # A process that was killed may have left half a line: its answers are written anew.
        files.end_last_line(path, lambda text: False)
        for n, line in enumerate(read_bytes(path).split(b"\n"), 1):
            if line:
                self._take_line(line, f"line {n} of {str(path)!r}")

    def _take_line(self, line: bytes, what: str) -> None:
        try:
            found = validate_record(_KeptLineRecord, parse_object(line, what), what)
        except RequestError as error:
            raise FileError(error_sentence(error)) from None
        # Of two lines about the same questions the later one counts.
        answers = tuple(map(tuple, found.answers))
        self._found[found.model, found.method, found.asked] = answers

    def find_answers(self, model: str, method: str, asked: str) -> Answers | None:
        """Look answers up.

        Args:
            model: Name of the model.
            method: Label of the method.
            asked: Digest of the row's questions.

        Returns:
            The answers to each question; None where they are not kept.
        """
        return self._found.get((model, method, asked))

    def keep_answers(self, model: str, method: str, asked: str, answers: Answers) -> None:
        """Write answers to the file at once.

        Args:
            model: Name of the model.
            method: Label of the method.
            asked: Digest of the row's questions.
            answers: The answers to each question.
        """
        # Found from now on as well, with a file or without one.
        self._found[model, method, asked] = answers
        if self._path is None:
            return
        # Opened anew for each row: a run may last hours, and nobody waits for this file.
        line = {"model": model, "method": method, "asked": asked, "answers": answers}
        with (
            files.translate_write_errors(f"file {str(self._path)!r} cannot be written"),
            self._path.open("a", encoding="utf-8") as into,
        ):
            into.write(json.dumps(line) + "\n")
