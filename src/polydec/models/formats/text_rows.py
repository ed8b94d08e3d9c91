"""Rows of text as people have them: .txt, .jsonl (also .gz), a folder of these, Arrow and Parquet
files of a data set."""

from __future__ import annotations

import gzip
import importlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from polydec.base.edge import (
    LARGEST_TEXT,
    decoded_text,
    error_sentence,
    parse_object,
    read_at_most,
    read_bytes,
    validate_record,
    whole_text,
)
from polydec.base.errors import FileError, PolydecError
from polydec.base.outside_records import StrictRecord

# Limits, so that a wrong or hostile file ends with a sentence and not with full memory.
LONGEST_LINE = 1 << 24
"""Bytes of a line of JSON lines."""
LARGEST = 1 << 32
"""Bytes of a file of JSON lines, unpacked, and characters of all that is read of one data set."""
MOST_FILES = 100_000
"""Of a folder."""
PIECE = 2000
"""Characters of a piece of a text file, about: pieces end at blank lines, and none has more than
four times as many."""
LONGEST_PROMPT = 400
"""Characters of a prompt that is taken from running text."""
ROWS = 1000
"""Of a data set that are unpacked at once."""
NEEDS = "pip install 'polydec[datasets]'"

USERS = frozenset({"user", "human"})
ASSISTANTS = frozenset({"assistant", "system", "gpt", "bot"})
"""Who speaks in `turns`. There a system is the one that answers; in `messages` its words are
instructions, and left out."""


class TextRowRecord(StrictRecord):
    """A row as people write it: what is asked, who said what, or text that runs on.

    Attributes:
        category: What kind of work it is.
        prompt: What is asked: text, chat messages, or token ids, which only commands that decode
            prompts take.
        question: The same under another name.
        turns: Who said what, as texts or as records; a system is the one that answers.
        messages: Who said what, as chat messages; a system's words are instructions.
        text: Text that runs on.
        answer: What is answered.
        completion: The same under another name.
        response: The same under another name.
    """

    category: str | int | None = None
    prompt: str | list[Any] | None = None
    question: str | None = None
    turns: Annotated[list[Any], Field(min_length=1)] | None = None
    messages: Annotated[list[Any], Field(min_length=1)] | None = None
    text: str | None = None
    answer: str | int | float | None = None
    completion: str | None = None
    response: str | None = None

    @property
    def asked(self) -> str | list[Any] | None:
        """What is asked, under whichever of its names."""
        if self.prompt is None:
            return self.question
        return self.prompt

    @property
    def answered(self) -> str | None:
        """What is answered, under whichever of its names."""
        # Not `or`: 0 and "" are answers, too.
        answer = next(
            (x for x in (self.answer, self.completion, self.response) if x is not None), None
        )
        if answer is None:
            return None
        return str(answer)


FIELDS = tuple(TextRowRecord.model_fields)
NAMES = "prompt, question, turns, messages, text"
"""Of these fields a row has one."""


@dataclass(frozen=True)
class TextRow:
    """A row to learn from.

    Attributes:
        kind: Its category, else the name of its file.
        text: Running text.
        turns: Else what was said, as (whether the assistant says it, words).
    """

    kind: str
    text: str = ""
    turns: tuple[tuple[bool, str], ...] = ()

    @property
    def prompts(self) -> Iterator[str]:
        """What a user may ask: the first turn of a user, or each paragraph of running text (each
        line where it has only one), cut at a word where it is long."""
        if self.turns:
            yield from (words for answers, words in self.turns[:1] if not answers)
            return
        yield from (prompt for _, prompt in paragraph_prompts(self.text))

    @property
    def exchange(self) -> tuple[str, str] | None:
        """The first question with its answer."""
        if len(self.turns) > 1 and not self.turns[0][0] and self.turns[1][0]:
            return self.turns[0][1], self.turns[1][1]
        return None


def paragraph_prompts(text: str) -> Iterator[tuple[str, str]]:
    """The paragraphs of a text (the lines where it has only one), each with the prompt that it
    gives."""
    paragraphs = [p for p in (p.strip() for p in text.split("\n\n")) if p]
    for part in paragraphs if len(paragraphs) > 1 else text.split("\n"):
        # White space shrinks to single spaces; four times the length is cut first, so that a huge
        # paragraph costs nothing.
        if short := " ".join(part[: 4 * LONGEST_PROMPT].split()):
            cut = short[: LONGEST_PROMPT + 1]
            yield part, short if len(short) <= LONGEST_PROMPT else cut[: cut.rfind(" ")] or cut


def read_text_rows(path: Path) -> Iterator[TextRow]:
    """All rows of a file, or of all files of a folder that are of a known kind, in the order of
    their names.

    Raises:
        FileError: One is wrong (one sentence names the file and the line), there is no row, or too
            much.
    """
    size = 0
    any_read = False
    for file in list_text_files(path):
        for item in KINDS[_kind(file)](file):
            # Counted over all files: a folder of many may be too much in total.
            size += len(item.text) + sum(len(words) for _, words in item.turns)
            if size > LARGEST:
                raise FileError(
                    error_sentence(
                        f"data is {str(path)!r}: it has more than {LARGEST:,} characters"
                    )
                )
            any_read = True
            yield item
    if not any_read:
        raise FileError(error_sentence(f"data is {str(path)!r}: there is no text in it"))


def list_text_files(path: Path) -> list[Path]:
    """The file itself, or those of a folder and of the folders in it that are of a known kind.

    Hidden ones, links to folders and what `datasets` stores for itself (cache-….arrow) are left
    out.

    Raises:
        FileError: There is none.
    """
    if path.is_file():
        if not _kind(path):
            raise FileError(
                error_sentence(
                    f"data is {str(path)!r}: its name must end in one of {', '.join(KINDS)}"
                )
            )
        return [path]
    if not path.is_dir():
        raise FileError(error_sentence(f"data is {str(path)!r}: no such directory or file"))
    files_read = list[Path]()
    for folder, folders, names in os.walk(path):
        # In place: os.walk goes into the folders that are left in the list, in this order.
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        # "cache-" files are those of the datasets library.
        for name in sorted(names):
            if _kind(Path(name)) and not name.startswith((".", "cache-")):
                files_read.append(Path(folder, name))
        if len(files_read) > MOST_FILES:
            raise FileError(
                error_sentence(
                    f"data is {str(path)!r}: a folder can hold at most {MOST_FILES:,} files"
                )
            )
    if not files_read:
        raise FileError(
            error_sentence(f"data is {str(path)!r}: there is no file in it with {', '.join(KINDS)}")
        )
    return files_read


def _kind(path: Path) -> str:
    """How the name of a file ends, if that is known, else nothing."""
    if path.suffix == ".gz":
        name = path.name.removesuffix(".gz")
    else:
        name = path.name
    return next((kind for kind in KINDS if name.endswith(kind)), "")


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def whole_file(path: Path) -> str:
    """The text of a file, plain or .gz.

    Raises:
        FileError: It cannot be read.
    """
    content = read_bytes(path, LARGEST_TEXT)
    try:
        if path.suffix == ".gz":
            with gzip.open(BytesIO(content)) as file:
                content = read_at_most(file, LARGEST_TEXT)
        return decoded_text(content)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FileError(error_sentence(f"file {str(path)!r} cannot be read: {error}")) from None


def read_text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, plain or .gz, that are not blank, with their numbers.

    Raises:
        FileError: It cannot be read, or is too large.
    """
    number = 0
    size = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            # A limit a line: a packed file may unpack to one line without end.
            while raw := file.readline(LONGEST_LINE + 1):
                number += 1
                size = size + len(raw)
                if len(raw) > LONGEST_LINE:
                    raise FileError(f"it has more than {LONGEST_LINE:,} bytes")
                if size > LARGEST:
                    raise FileError(f"it is behind the first {LARGEST:,} bytes")
                if raw.strip():
                    # The first line may begin with a byte order mark.
                    if number == 1:
                        line = decoded_text(raw)
                    else:
                        line = raw.decode("utf-8")
                    yield number, line.rstrip("\r\n")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if number:
            what = f"line {number} of {str(path)!r}"
        else:
            what = f"file {str(path)!r}"
        raise FileError(error_sentence(f"{what} cannot be read: {error}")) from None


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, with where each stands.

    Raises:
        FileError: It cannot be read, or a line is no object.
    """
    for number, line in read_text_lines(path):
        what = f"line {number} of {str(path)!r}"
        yield what, parse_object(line, what)


def _of_text(path: Path) -> Iterator[TextRow]:
    for piece in split_text_pieces(whole_file(path)):
        yield TextRow(_stem(path), piece)


def split_text_pieces(text: str) -> Iterator[str]:
    """A text in pieces of about PIECE characters, of which some can be held out: they end at blank
    lines if they can."""
    piece = list[str]()
    size = 0
    for line in text.split("\n"):
        # A line longer than two pieces is cut itself.
        for at in range(0, len(line) + 1, 2 * PIECE):
            if at + 2 * PIECE > len(line):
                end = "\n"
            else:
                end = ""
            piece.append(line[at : at + 2 * PIECE] + end)
            size += len(piece[-1])
            # A piece ends at the first blank line after PIECE characters, or anywhere after twice
            # as many.
            if size >= 2 * PIECE or (size >= PIECE and not line.strip()):
                yield from _whole(piece)
                piece = []
                size = 0
    yield from _whole(piece)


def _whole(piece: Sequence[str]) -> Iterator[str]:
    if joined := "".join(piece).strip("\n"):
        yield joined


def _of_lines(path: Path) -> Iterator[TextRow]:
    for what, fields in read_json_lines(path):
        yield parse_text_row(fields, what, _stem(path))


def _of_parquet(path: Path) -> Iterator[TextRow]:
    file = _pyarrow("parquet", path).ParquetFile(path)
    # Only columns that are read are unpacked.
    columns = [name for name in FIELDS if name in file.schema_arrow.names]
    return _of_batches(path, columns, file.iter_batches(ROWS, columns=columns))


def _of_arrow(path: Path) -> Iterator[TextRow]:
    ipc = _pyarrow("ipc", path)
    source = _pyarrow("", path).memory_map(str(path))
    try:
        # Arrow has two layouts: a stream, and a file with an index of its batches.
        batches = ipc.open_stream(source)  # as `datasets` saves
        columns = batches.schema.names
        parts = batches
    except ValueError:
        batches = ipc.open_file(source)
        columns = batches.schema.names
        parts = (batches.get_batch(i) for i in range(batches.num_record_batches))
    columns = [name for name in FIELDS if name in columns]
    read_batches = (
        # Few rows at a time become Python objects.
        part.select(columns).slice(at, ROWS)
        for part in parts
        for at in range(0, part.num_rows, ROWS)
    )
    return _of_batches(path, columns, read_batches)


def _of_batches(path: Path, columns: Sequence[str], batches: Iterator[Any]) -> Iterator[TextRow]:
    if not columns:
        raise FileError(error_sentence(f"file {str(path)!r} has none of the columns {NAMES}"))
    number = 0
    for batch in batches:
        for fields in batch.to_pylist():
            number += 1
            yield parse_text_row(fields, f"row {number} of {str(path)!r}", _stem(path))


def _pyarrow(module: str, path: Path) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{module}".rstrip("."))
    except ImportError:
        raise FileError(error_sentence(f"file {str(path)!r} needs pyarrow: {NEEDS}")) from None


def _guarded(reader: Any) -> Any:
    """The same reader; what a library says of a damaged file becomes one sentence."""

    def read_file(path: Path) -> Iterator[TextRow]:
        try:
            yield from reader(path)
        except PolydecError:
            raise
        except Exception as error:  # whatever the library meets; kinds of its own among them
            raise FileError(error_sentence(f"file {str(path)!r} cannot be read: {error}")) from None

    return read_file


KINDS: Mapping[str, Any] = {
    ".txt": _of_text,
    ".jsonl": _of_lines,
    ".parquet": _guarded(_of_parquet),
    ".arrow": _guarded(_of_arrow),
}
"""How the name of a file ends, and who reads it."""


def parse_text_row(fields: Mapping[str, Any], what: str, kind: str) -> TextRow:
    """Check a row's fields and read what they say.

    Args:
        fields: The fields; those with unknown names are left out.
        what: Where the row stands; errors begin with it.
        kind: Its kind, where it names no category.

    Returns:
        The row.

    Raises:
        FileError: A field has a wrong form, or there is none that says anything.
    """
    line = validate_record(
        TextRowRecord, {k: v for k, v in fields.items() if k in TextRowRecord.model_fields}, what
    )
    if line.category is not None:
        kind = whole_text(str(line.category), f"{what}: category")
    # The first of these fields that a row has counts.
    if line.messages is not None:
        return TextRow(
            kind, turns=_turns(line.messages, f"{what}: messages", frozenset({"system"}))
        )
    if line.turns is not None:
        return TextRow(kind, turns=_turns(line.turns, f"{what}: turns"))
    if isinstance(line.asked, list):
        return TextRow(kind, turns=_turns(line.asked, f"{what}: prompt", frozenset({"system"})))
    if line.asked is not None:
        if line.answered is None:
            answer = ()
        else:
            answer = ((True, line.answered),)
        return TextRow(kind, turns=_said([(False, line.asked), *answer], what))
    if line.text is not None:
        return TextRow(kind, whole_text(line.text, f"{what}: text"))
    raise FileError(error_sentence(f"{what} has none of the fields {NAMES}"))


class _ChatTurnRecord(StrictRecord):
    role: str | None = None
    speaker: str | None = None
    content: str | list[Any] | None = None
    utterance: str | None = None


class _TextPartRecord(StrictRecord):
    text: str


def _turns(
    turns: Sequence[Any], what: str, silent: frozenset[str] = frozenset()
) -> tuple[tuple[bool, str], ...]:
    """Who said what.

    Mere texts are a user's; whoever is neither user nor assistant (a tool, say) is left out.
    """
    turns_read = list[tuple[bool, str]]()
    for i, turn in enumerate(turns):
        # A bare text is a turn of the user.
        if isinstance(turn, str):
            turns_read.append((False, turn))
            continue
        checked = validate_record(_ChatTurnRecord, turn, f"{what}[{i}]")
        if checked.role is not None:
            who = checked.role
        else:
            who = checked.speaker
        if checked.content is not None:
            words = checked.content
        else:
            words = checked.utterance
        if who is None or (words is None and checked.role is None):
            raise FileError(
                error_sentence(f"{what}[{i}] must have role and content, or speaker and utterance")
            )
        who = who.lower()
        # Parts of a message are joined; only texts are legal.
        if isinstance(words, list):
            words = "".join(
                validate_record(_TextPartRecord, part, f"{what}[{i}].content").text
                for part in words
            )
        # Empty turns say nothing.
        if words and who not in silent and (who in USERS or who in ASSISTANTS):
            turns_read.append((who in ASSISTANTS, words))
    return _said(turns_read, what)


def _said(turns: Sequence[tuple[bool, str]], what: str) -> tuple[tuple[bool, str], ...]:
    return tuple((answers, whole_text(words, what)) for answers, words in turns)
