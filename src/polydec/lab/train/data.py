"""Readers of running text by kind, the held-out split, and packing into rows."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from polydec.base.errors import FileError
from polydec.models.formats import text_rows

KINDS = ("prose", "code", "dialogue")
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
BEGIN = "<|begin|>"
SPECIAL = (BEGIN, END, USER, ASSISTANT)

SAMPLE = "sample"
"""The name of the small texts that travel along."""
COLLECTION = (
    "text_books",
    "text_docs",
    "text_tldr",
    "text_python",
    "text_dialogues_sgd",
    "spec_bench/question.jsonl",
    "gsm8k/train.jsonl.gz",
    "svamp/part_a.jsonl",
    "mbpp/prompt_val_train.jsonl",
    "code_edits/edits.jsonl.gz",
    "summ_scitldr/train_dev.jsonl.gz",
    "translation_tatoeba/en_de.jsonl.gz",
    "qa_xquad/en.jsonl.gz",
    "intents_clinc150/train_val.jsonl.gz",
    "bbh/half_a.jsonl.gz",
)
"""What of it lies there tells the collection that the embedded models were trained on."""


def data_root(path: str | Path | None = None) -> Path:
    """The folder of the training texts.

    `path`, else the environment's POLYDEC_DATA.

    Raises:
        FileError: Nothing names it, or there is no such directory.
    """
    named = path or os.environ.get("POLYDEC_DATA")
    if not named:
        raise FileError("data is none: give a directory of texts, or set POLYDEC_DATA to one")
    root = Path(named)
    if not root.is_dir():
        raise FileError(f"data is {str(root)!r}: no such directory (give one, or set POLYDEC_DATA)")
    return root


def training_data(path: str | Path | None = None) -> Path:
    """Where the texts of a training are.

    A file or a folder as `text_rows.read_text_rows` takes them, the collection's folder, or
    `sample`. None: POLYDEC_DATA, else the sample, which is announced on stderr.

    Raises:
        FileError: There is nothing to read.
    """
    if path is not None:
        folder = path
    else:
        folder = os.environ.get("POLYDEC_DATA") or None
    if folder is None:
        print("training on the sample that travels along: name your own by --data", file=sys.stderr)
    # A folder of one's own may be called `sample` too; it comes first.
    if folder is None or (str(folder) == SAMPLE and not Path(SAMPLE).exists()):
        return Path(__file__).with_name("sample")
    if not is_collection_folder(Path(folder)):
        text_rows.list_text_files(Path(folder))  # says what is wrong before a model is loaded
    return Path(folder)


def is_collection_folder(root: Path) -> bool:
    """Whether a folder is that of the collection, of which every file is known by its name."""
    return any((root / name).exists() for name in COLLECTION)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, plain or .gz.

    Raises:
        FileError: A line is no object; one sentence names file and line.
    """
    return (fields for _, fields in text_rows.read_json_lines(path))


def hash_bucket(text: str) -> int:
    """SHA-1 of the UTF-8 text, as a number, mod 10. Below 7: may be trained on; 7 to 9: held out."""
    # The text alone decides, so all readers split alike.
    return int(hashlib.sha1(text.encode("utf-8")).hexdigest(), 16) % 10


def held_out(text: str) -> bool:
    """Whether a text must never be trained on; see `hash_bucket`."""
    return hash_bucket(text) >= 7


def render_dialogue(turns: Sequence[tuple[bool, str]]) -> str:
    """Write turns as the chat template does.

    Of each turn are given: whether the assistant speaks, and its words.
    """
    return "".join(f"{ASSISTANT if answers else USER}{words}{END}" for answers, words in turns)


def as_chat(turns: Sequence[dict[str, Any]]) -> str:
    """Write a dialogue of text_dialogues_sgd as the chat template does."""
    return render_dialogue([(t["speaker"] != "USER", t["utterance"]) for t in turns])


def _texts(root: Path, pattern: str) -> Iterator[str]:
    # Sorted: the order must not depend on the file system.
    paths = sorted(root.glob(pattern))
    if not paths:
        raise FileError(f"data has no {pattern}: {root} is not the directory of the training texts")
    for path in paths:
        for row in read_rows(path):
            yield row["text"]


def _dialogues(root: Path) -> Iterator[str]:
    for row in read_rows(root / "text_dialogues_sgd" / "dialogues.jsonl.gz"):
        yield as_chat(row["turns"])


def read_documents(root: Path, kind: str) -> Iterator[str]:
    """Every document of a kind, in the order of the files.

    Args:
        root: The collection's folder, or a file or folder of one's own. Of one's own data running
            text is prose, and a row with an answer is dialogue.
        kind: "prose" (books, software documents, cheat sheets), "code" (Python) or "dialogue"
            (service dialogues as chats).

    Yields:
        Texts.

    Raises:
        FileError: The kind is unknown, or a file of the collection is missing.
    """
    # Iterators are made inside of lambdas, so that only the files of the wanted kind are opened.
    sources: dict[str, Callable[[], Iterator[Iterator[str]]]] = {
        "prose": lambda: (
            _texts(root, p) for p in ("text_books/*.gz", "text_docs/*.gz", "text_tldr/*.gz")
        ),
        "code": lambda: iter([_texts(root, "text_python/*.gz")]),
        "dialogue": lambda: iter([_dialogues(root)]),
    }
    if kind not in sources:
        raise FileError(f"kind is {kind!r}: it must be one of {', '.join(KINDS)}")
    # Files of the collection are known by kind; of other data the form of a row decides.
    if is_collection_folder(root):
        for source in sources[kind]():
            yield from source
        return
    for item in text_rows.read_text_rows(root):
        if item.text and kind == "prose":
            yield item.text
        elif any(answers for answers, _ in item.turns) and kind == "dialogue":
            yield render_dialogue(item.turns)


@dataclass(frozen=True)
class DocumentSplit:
    """Documents of one kind, in an order drawn by hash.

    Attributes:
        train: Texts to train on, up to a number of bytes.
        unseen: Held-out texts, likewise.
    """

    train: tuple[str, ...]
    unseen: tuple[str, ...]


def split_documents(
    root: Path, kind: str, train_bytes: int, held_bytes: int, seed: int = 0
) -> DocumentSplit:
    """Split the documents of a kind into texts to train on and held-out ones.

    Held-out documents are those with `hash_bucket` of 7 to 9.

    Args:
        root: The collection's folder, or a file or folder of one's own.
        kind: "prose", "code" or "dialogue".
        train_bytes: Bytes of UTF-8 to train on; the last document may pass the limit.
        held_bytes: Bytes of held-out text, likewise.
        seed: Seed of the order of documents. Default 0.

    Returns:
        The two parts. A document of more than 60,000 characters is cut there.
    """
    # A hash of seed and text orders documents alike wherever the files lie.
    order = sorted(
        read_documents(root, kind), key=lambda t: hashlib.sha1(f"{seed}:{t}".encode()).digest()
    )
    parts: tuple[list[str], list[str]] = ([], [])
    left = [train_bytes, held_bytes]
    for text in order:
        # Part 0 is trained on, part 1 held out.
        which = int(held_out(text))
        if left[which] > 0:
            # One book must not fill a part alone.
            text = text[:60000]
            parts[which].append(text)
            left[which] -= len(text.encode("utf-8"))
    return DocumentSplit(tuple(parts[0]), tuple(parts[1]))


def pack_documents(documents_ids: Sequence[Sequence[int]], end: int) -> np.ndarray:
    """Join documents into one stream, each closed by an end token.

    Args:
        documents_ids: Token ids of each document.
        end: Id of the end token.

    Returns:
        One array of uint16.
    """
    # Two bytes hold every id of the vocabularies that are trained here.
    return np.concatenate([np.asarray([*ids, end], dtype=np.uint16) for ids in documents_ids])


@dataclass(frozen=True)
class PackedTokenStream:
    """Rows of a stream of tokens, without overlap; each round through it has another order.

    Attributes:
        stream: Token ids.
        begin: Id that stands before every row.
        seed: Seed of the orders. Default 0.
    """

    stream: np.ndarray
    begin: int
    seed: int = 0

    def stream_row(self, i: int, length: int) -> np.ndarray:
        """Row i of an endless sequence of shuffled rounds. It depends on (seed, length, i) only.

        Args:
            i: Number of the row, from 0.
            length: Tokens of a row, without `begin`.

        Returns:
            `begin`, then `length` tokens of the stream, int64.

        Raises:
            FileError: The stream has fewer tokens than a row.
        """
        count = len(self.stream) // length
        if not count:
            raise FileError(
                f"stream has {len(self.stream)} tokens: rows of {length} need at least as many"
            )
        # A tail that fills no row is never read.
        turn, at = divmod(i, count)
        # The order of a round is drawn once, and cached.
        n = order_of(self.seed, length, turn, count)[at]
        return np.concatenate(
            [[self.begin], self.stream[n * length : (n + 1) * length].astype(np.int64)]
        )


@lru_cache(maxsize=16)
def order_of(seed: int, length: int, turn: int, count: int) -> np.ndarray:
    """The order of the rows in one round through a stream.

    Args:
        seed: Seed of the stream.
        length: Tokens of a row.
        turn: Number of the round, from 0.
        count: Rows of a round.

    Returns:
        A permutation of 0 to count - 1.
    """
    return np.random.default_rng([seed, length, turn]).permutation(count)
