"""A bench's record: every run is written down as soon as it is measured, and what stands there is
not measured again."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TextIO

from pydantic import Field

from polydec.base import files
from polydec.base.edge import error_sentence, parse_object, read_bytes, validate_record
from polydec.base.errors import FileError, RequestError, UnwritableError
from polydec.base.outside_records import StrictRecord as Checked
from polydec.lab.bench.measure import BenchRun

VERSION = 1
"""Of the layout of records."""

Identity = Mapping[str, Any]
"""What runs must have in common to be held against one another: machine, versions, models,
settings, prompts, methods."""


@dataclass(frozen=True)
class BenchCell:
    """Runs that are compared with one another.

    Attributes:
        model: Name of the model.
        batch: Requests that run at once, at least 1.
        temperature: Sampling temperature, 0 is greedy.
    """

    model: str
    batch: int
    temperature: float


Count = Annotated[int, Field(ge=0, le=1 << 50)]
Amount = Annotated[float, Field(ge=0.0, lt=1e12)]
Ids = list[Annotated[int, Field(ge=0, lt=1 << 32)]]


class _BenchRunRecord(Checked):
    """The fields of a Run as JSON has them."""

    task: Count
    repeat: Count
    tokens: Annotated[int, Field(ge=-(1 << 30), le=1 << 50)]
    seconds: Amount
    whole_seconds: Annotated[float, Field(gt=0.0, lt=1e12)]
    generated: Count
    passes: Count
    positions: Count
    drafts: Count
    accepted: Count
    ids: list[Ids]
    distinct: Annotated[float, Field(ge=0.0, le=1.0)]
    firsts: list[Amount]
    gaps: list[Amount]
    accepted_at: list[Count]
    tried_at: list[Annotated[int, Field(ge=1, le=1 << 50)]]
    target_seconds: Amount
    other_seconds: Amount
    cache_bytes: Count
    joules: Amount | None
    right: list[bool | None]

    @property
    def run(self) -> BenchRun:
        told = {f.name: getattr(self, f.name) for f in fields(BenchRun)}
        as_they_were = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}  # pyright: ignore
        return BenchRun(**{**as_they_were, "ids": tuple(map(tuple, self.ids))})


class _BenchLineRecord(Checked):
    """A line of the file behind its first."""

    model: Annotated[str, Field(max_length=4096)]
    batch: Annotated[int, Field(ge=1, le=1 << 20)]
    temperature: Amount
    method: Annotated[str, Field(max_length=4096)]
    run: _BenchRunRecord


class BenchRecord:
    """The runs that a file holds, and the file that takes further ones. Without a file it holds
    nothing and keeps nothing."""

    def __init__(self, lines: Sequence[_BenchLineRecord] = (), into: TextIO | None = None) -> None:
        """Read the runs of a file's lines.

        Args:
            lines: Lines of the file after its first.
            into: The file, open for appending; None: nothing is written.
        """
        self._into = into
        self._found = defaultdict[BenchCell, dict[tuple[str, int, int], BenchRun]](dict)
        for line in lines:
            # Of two runs of one turn the later one counts: the first turn was cut short.
            at = (line.method, line.run.task, line.run.repeat)
            self._found[BenchCell(line.model, line.batch, line.temperature)][at] = line.run.run

    def complete_runs(self, cell: BenchCell, methods: Sequence[str]) -> dict[str, list[BenchRun]]:
        """Runs of all complete turns: a method is compared with others of its own turn only.

        Args:
            cell: Model, batch and temperature.
            methods: Labels of the methods that a complete turn must have.

        Returns:
            By method its runs, in the same order of turns for every method.
        """
        mine = self._found[cell]
        # A turn is one repetition of one task, run by each method.
        turns = dict.fromkeys((task, repeat) for _, task, repeat in mine)
        whole = [t for t in turns if all((m, *t) in mine for m in methods)]
        return {m: [mine[m, *t] for t in whole] for m in methods}

    def write_run(self, cell: BenchCell, method: str, run: BenchRun) -> None:
        """Write a run to the file at once, so that a failure later does not lose it.

        Args:
            cell: Model, batch and temperature of the run.
            method: Label of the method.
            run: What was measured.
        """
        if self._into is not None:
            line = {**asdict(cell), "method": method, "run": asdict(run)}
            self._into.write(json.dumps(line) + "\n")
            self._into.flush()


@contextmanager
def open_bench_record(path: Path | None, identity: Identity) -> Iterator[BenchRecord]:
    """Open the record in a file, which is made where there is none, and hold its lock.

    Args:
        path: The file; None: a record that holds nothing and writes nothing.
        identity: What all runs of the file must have in common.

    Yields:
        The record. The file stays locked and open until the context ends.

    Raises:
        FileError: The file is no record, holds runs of another identity, cannot be written, or
            another process writes to it.
    """
    if path is None:
        yield BenchRecord()
        return
    try:
        with files.hold_file_lock(path, wait=0.0):
            lines = list[_BenchLineRecord]()
            if path.exists() and path.stat().st_size:
                # A process that was killed may have left half a line: it is cut off, as its run is
                # measured again.
                files.end_last_line(path, lambda text: False)
                lines = read_bench_lines(path, identity)
            with path.open("a", encoding="utf-8") as into:
                if not into.tell():
                    into.write(json.dumps({"bench": VERSION, "identity": dict(identity)}) + "\n")
                    into.flush()
                yield BenchRecord(lines, into)
    except UnwritableError:  # of another file, which it names
        raise
    except OSError as error:
        raise FileError(
            error_sentence(f"record {str(path)!r} cannot be written: {error.strerror or error}")
        ) from None


def read_bench_lines(path: Path, identity: Identity) -> list[_BenchLineRecord]:
    """Read the lines of a record after its first one.

    Args:
        path: The record's file.
        identity: The identity that the file must have.

    Returns:
        The checked lines, in order.

    Raises:
        FileError: The file is no record of a bench, is of another version or identity, or has a
            damaged line.
    """
    # The first line names the layout and the identity, each further one holds a run.
    first, *rest = read_bytes(path).split(b"\n")
    what = f"record {str(path)!r}"
    try:
        head = parse_object(first, f"line 1 of {what}")
    except RequestError as error:
        raise FileError(error_sentence(error)) from None
    known: Any = head.get("identity")
    # By type: true is a number in Python.
    if type(head.get("bench")) is not int or not isinstance(known, dict):
        raise FileError(error_sentence(f"{what} is no record of a bench: name another file"))
    # Rows of another version have other fields.
    if head["bench"] != VERSION:
        raise FileError(
            error_sentence(
                f"{what} is of version {head['bench']}: this polydec goes on with {VERSION}"
            )
        )
    # Through JSON, so that tuples and lists, and keys of other types, compare as they do in the
    # file.
    now: Any = json.loads(json.dumps(dict(identity)))
    if other := first_identity_difference(known, now):  # pyright: ignore[reportUnknownArgumentType]
        raise FileError(
            error_sentence(
                f"{what} was measured with other settings: {other}. Unlike runs are not mixed: name another file"
            )
        )
    try:
        return [
            validate_record(
                _BenchLineRecord, parse_object(line, f"line {n} of {what}"), f"line {n} of {what}"
            )
            for n, line in enumerate(rest, 2)
            if line
        ]
    except RequestError as error:
        raise FileError(error_sentence(error)) from None


def first_identity_difference(known: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first entry in which two identities differ, in words.

    Args:
        known: Identity of the record.
        now: Identity of the present run.

    Returns:
        A clause for a message; None where they are alike.
    """
    for name in [*now, *known]:
        if known.get(name) != now.get(name):
            return f"{name} was {_short(known.get(name))}, now it is {_short(now.get(name))}"
    return None


def _short(value: object) -> str:
    text = json.dumps(value)
    if len(text) <= 90:
        return text
    return f"{text[:88]}…"
