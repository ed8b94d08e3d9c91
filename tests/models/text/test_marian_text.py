"""Marian's tokenizer, from a SentencePiece file and a vocab.json."""

import json
import struct

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from polydec import generate, load
from polydec.base.errors import FileError
from polydec.models.text.marian_text import marian_tokenizer, read_pieces
from polydec.models.text.tokenizer import Tokenizer

PIECES = {"▁the": -1.0, "▁": -2.0, "fox": -1.5, "f": -4.0, "o": -4.0, "x": -4.0, "▁th": -3.0}
VOCAB = {"</s>": 0, "<unk>": 1, "▁the": 2, "▁": 3, "fox": 4, "f": 5, "o": 6, "x": 7, "▁th": 8}
VOCAB |= {"▁der": 9, "uchs": 10, ">>de<<": 11, "<pad>": 12}


def number(x):
    out = bytearray()
    while x > 127:
        out.append(x & 127 | 128)
        x >>= 7
    return bytes([*out, x])


def field(key, data):
    return number(key << 3 | 2) + number(len(data)) + data


def piece(text, score, kind=1):
    body = field(1, text.encode()) + number(2 << 3 | 5) + struct.pack("<f", score)
    return field(1, body + number(3 << 3) + number(kind))


def write(path, vocab=VOCAB, pieces=PIECES):
    special = piece("<unk>", 0.0, 2) + piece("</s>", 0.0, 3)
    spm = special + b"".join(piece(*one) for one in pieces.items())
    (path / "source.spm").write_bytes(spm + field(2, b"") + field(3, field(1, b"nmt_nfkc")))
    (path / "vocab.json").write_text(json.dumps(vocab))
    return path


def text_of(path, vocab=VOCAB):
    return Tokenizer(marian_tokenizer(path, vocab), eos=[0])


def test_sources_are_spelled_by_scores_and_end(tmp_path):
    text = text_of(write(tmp_path))
    assert text.encode("the  fox") == (2, 3, 4, 0)
    assert text.encode("the fo\n") == (2, 3, 5, 6, 0)
    assert text.encode("the q") == (2, 3, 1, 0)


def test_a_source_may_name_its_language(tmp_path):
    assert text_of(write(tmp_path)).encode(">>de<< the fox") == (11, 2, 3, 4, 0)


def test_texts_of_the_target_are_read_by_the_same_ids(tmp_path):
    text = text_of(write(tmp_path))
    assert text.decode((9, 3, 5, 10, 0)) == "der fuchs"
    assert text.encode("the uchs", special=False)[-1] == 10  # of no piece of the source


@pytest.mark.parametrize(
    "vocab, message",
    [
        ({"</s>": 0, "a": 1}, "lacks <unk> or </s>"),
        ({"</s>": 0, "<unk>": 2}, "ids must be 0 to 1, each once"),
        ({"</s>": 0, "<unk>": "1"}, "ids must be 0 to 1, each once"),
    ],
    ids=str,
)
def test_vocabularies_that_are_none(tmp_path, vocab, message):
    with pytest.raises(FileError) as error:
        marian_tokenizer(write(tmp_path), vocab)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        field(1, b"\x08"),
        field(1, field(1, b"\xff")),
        number(1 << 3) + number(5),
        field(1, field(2, b"12345")),
        b"\x0a\xff\x7f",
    ],
    ids=lambda data: data[:8].hex() or "empty",
)
def test_damaged_files(tmp_path, data):
    at = tmp_path / "source.spm"
    at.write_bytes(data)
    with pytest.raises(FileError, match=r"source\.spm"):
        read_pieces(at)


def test_a_directory_as_it_is_published_loads(tmp_path):
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=len(VOCAB),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=32,
        pad_token_id=12,
        decoder_start_token_id=12,
        eos_token_id=0,
        bad_words_ids=[[12]],
    )
    MarianMTModel(config).save_pretrained(tmp_path)
    lm = load(str(write(tmp_path)), draft=None)
    done = generate(lm, "the fox", max_tokens=8, ignore_eos=True, logprobs=0)
    assert 12 not in done.token_ids  # padding is never written
    assert done.usage == {"prompt_tokens": 5, "completion_tokens": 8}
