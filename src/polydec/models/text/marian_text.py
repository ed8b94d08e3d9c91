"""Marian's tokenizers: pieces and scores of a SentencePiece file, under the ids of a vocab.json."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from tokenizers.processors import TemplateProcessing

from polydec.base.errors import FileError

MOST = 64 << 20
"""Bytes of a SentencePiece file at most."""

RARE = -1e5
"""The score of a piece that the file does not have: no spelling holds one that could do without."""

CODE = re.compile(r">>.+<<")
"""The name of a language, which a source may begin with."""


def marian_tokenizer(path: Path, vocab: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a directory with source.spm.

    It spells sources; texts of the target are read with the same ids.

    Args:
        path: The directory.
        vocab: Content of its vocab.json: ids by token.

    Returns:
        The tokenizer; it ends every text with </s>.

    Raises:
        FileError: Files are damaged, or do not belong together.
    """
    size = len(vocab)
    if size < 2 or sorted(x for x in vocab.values() if type(x) is int) != list(range(size)):
        raise FileError(f"{path / 'vocab.json'}: ids must be 0 to {size - 1}, each once")
    unknown = vocab.get("<unk>")
    end = vocab.get("</s>")
    if unknown is None or end is None:
        raise FileError(f"{path / 'vocab.json'} lacks <unk> or </s>")
    # The vocabulary has pieces of the target language, too. They get a score so low that no source
    # is spelled with them.
    score, charsmap = read_pieces(path / "source.spm")
    # Ids are those of vocab.json; the file of pieces gives the scores.
    names = sorted(vocab, key=lambda name: vocab[name])
    tokenizer = Tokenizer(Unigram([(name, score.get(name, RARE)) for name in names], unknown))
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    # Codes of languages are special: no text may be cut within one.
    special = [n for n in names if n in ("<unk>", "</s>", "<pad>") or CODE.fullmatch(n)]
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in special])
    tokenizer.post_processor = TemplateProcessing(
        single=["$A", "</s>"], special_tokens=[("</s>", end)]
    )
    return tokenizer


def read_pieces(path: Path) -> tuple[dict[str, float], bytes]:
    """The pieces of a SentencePiece file that spell text, with their scores; and the table by which
    it normalises characters.

    Raises:
        FileError: It is no such file.
    """
    if path.stat().st_size > MOST:
        raise FileError(f"{path} has {path.stat().st_size} bytes: {MOST} are read at most")
    score = dict[str, float]()
    charsmap = b""
    try:
        for field, value in _fields(path.read_bytes()):
            if field == 1:  # a piece: its text, its score, its kind (1: normal, 4: the user's)
                piece = dict(_fields(value))
                (number,) = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))
                if piece.get(3, 1) in (1, 4) and number == number:
                    score[piece[1].decode()] = max(number, RARE)
            elif field == 3:  # how text is normalised
                charsmap = dict(_fields(value)).get(2, b"")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, struct.error):
        raise FileError(f"{path} is no SentencePiece file, or it is damaged") from None
    if not score:
        raise FileError(f"{path} holds no pieces")
    return score, charsmap


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message in Protocol Buffers' form: numbers as they are, all else as bytes."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        # A key has the number of the field, and in its last three bits the kind: 0 a number, 1
        # eight bytes, 2 bytes with their length, 5 four bytes.
        kind = key & 7
        if kind == 0:
            value, at = _number(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _number(data, at)
        else:
            size = {1: 8, 5: 4}[kind]
        if at + size > len(data):
            raise FileError("a field is longer than its file")
        yield key >> 3, data[at : at + size]
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    out = shift = 0
    while True:
        byte = data[at]
        out |= (byte & 127) << shift
        at += 1
        shift += 7
        if byte < 128:
            return out, at
        if shift > 63:
            raise FileError("a number is too long")
