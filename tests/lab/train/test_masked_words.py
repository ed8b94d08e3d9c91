"""Byte2Word as published: hidden words are told from both sides, and none of their pieces is shown."""

import json
from dataclasses import replace

import pytest
import torch

from polydec import load
from polydec.base.errors import FileError, RequestError
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.words import WordsSpec, word_training_summary
from polydec.lab.train.word_kinds import masked_words
from polydec.lab.train.word_kinds.masked_words import (
    MaskedByteWords,
    hidden_words_right,
    masked_word_loss,
)
from polydec.lab.train.words import train_words
from polydec.models.formats.byte_word_config import ByteWordConfig
from polydec.models.nets.byte_words import NONE

SMALL = ByteWordConfig(8, 0, (1, 2), 32, 2, 8, 2, 260, 4, masked=True, context=64)
"""Eight pieces: a mark, two that end words, five of one to three bytes; words of four at most."""

PIECES = torch.tensor(
    [
        [257, NONE, NONE, NONE],
        [NONE, NONE, NONE, NONE],
        [258, NONE, NONE, NONE],
        [65, NONE, NONE, NONE],
        [66, NONE, NONE, NONE],
        [65, 66, NONE, NONE],
        [66, 65, 67, NONE],
        [66, 65, NONE, NONE],
    ]
)
TEXT = [0, 3, 4, 1, 5, 1, 6, 3, 1, 7, 1, 4, 1]
"""Words 34, 5, 63, 7, 4, each with its end."""


def spoken(seed=0):
    network = MaskedByteWords(SMALL, PIECES, seed).eval()
    with torch.no_grad():
        draw = torch.Generator().manual_seed(seed)
        for p in network.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * 0.1)
        network.head.mul_(4)
    return network


def hiding(*words):
    hidden = torch.zeros(1, 5, dtype=torch.bool)
    hidden[0, list(words)] = True
    return hidden


def test_pieces_of_hidden_words_are_asked_and_no_others():
    network = spoken()
    _, right, word = network.hidden_word_logits(torch.tensor([TEXT]), hiding(0, 3))
    assert right.tolist() == [3, 4, 1, 7, 1] and word.tolist() == [0, 0, 0, 3, 3]


def test_a_hidden_word_is_told_by_both_sides_and_not_by_itself():
    network = spoken()
    plain = network.hidden_word_logits(torch.tensor([TEXT]), hiding(2))[0]

    def changed(at, piece):
        text = list(TEXT)
        text[at] = piece
        return network.hidden_word_logits(torch.tensor([text]), hiding(2))[0]

    assert torch.allclose(changed(6, 7), plain, atol=1e-6)  # its own first piece
    assert not torch.allclose(changed(4, 7), plain, atol=1e-3)  # the word before it
    assert not torch.allclose(changed(11, 3), plain, atol=1e-3)  # the last word behind it


def test_rows_are_as_they_are_alone():
    network = spoken()
    short = [0, 5, 1, 3, 1, 4, 7, 1]
    both = torch.tensor([TEXT, [*short, 2, 2, 2, 2, 2]])
    alone = network.hidden_word_logits(torch.tensor([TEXT]), hiding(1))[0]
    words = int(masked_words.word_places(both, SMALL.ends, SMALL.longest)[0].max()) + 1
    hidden = torch.zeros(2, words, dtype=torch.bool)
    hidden[0, 1] = hidden[1, 0] = True
    together, _, word = network.hidden_word_logits(both, hidden)
    assert torch.allclose(together[word < words], alone, atol=1e-5)


def test_a_share_of_the_words_is_hidden_and_one_at_least():
    network = spoken()
    rows = torch.tensor([TEXT] * 400)
    hidden = network.draw_hidden_words(rows, generator_for(0, 0, "hidden words"))
    assert hidden.shape == (400, 5) and bool(hidden.any(1).all())
    # One in five is hidden anyway; of the others the share.
    assert 0.2 < float(hidden.double().mean()) < 0.3
    again = network.draw_hidden_words(rows, generator_for(0, 0, "hidden words"))
    assert torch.equal(hidden, again)
    loss = masked_word_loss(network, rows, 3)
    assert float(loss.detach()) == pytest.approx(float(masked_word_loss(network, rows, 3).detach()))


def test_a_word_is_right_where_all_its_pieces_are(monkeypatch):
    network = spoken()
    monkeypatch.setattr(
        MaskedByteWords, "draw_hidden_words", lambda self, token, dice: hiding(0, 3)
    )

    def answer(pieces):
        logits = torch.nn.functional.one_hot(torch.tensor(pieces), 8).float() * 9
        right = torch.tensor([3, 4, 1, 7, 1]), torch.tensor([0, 0, 0, 3, 3])
        monkeypatch.setattr(
            MaskedByteWords, "hidden_word_logits", lambda self, token, hidden: (logits, *right)
        )
        return hidden_words_right(network, [TEXT], 12)

    assert answer([3, 4, 1, 7, 1])["right"] == 1.0
    assert answer([3, 5, 1, 7, 1])["right"] == 0.5
    assert answer([3, 5, 1, 6, 1])["right"] == 0.0
    assert answer([3, 4, 1, 7, 1])["words"] == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("masked")
    prose = "\n".join(
        json.dumps({"text": f"The {a} {b} saw the {c} by the old river, and nobody asked. " * 2})
        for a in ("grey", "tall", "quiet", "young", "old")
        for b in ("fox", "baker", "teacher", "dog")
        for c in ("boat", "bridge", "train", "mill")
    )
    (at / "own.jsonl").write_text(prose)
    spec = WordsSpec(
        str(at / "out"), str(at / "own.jsonl"), kind="masked-words", steps=60, rows=8, length=32,
        width=64, layers=2, vocab=300, longest=16,
    )  # fmt: skip
    return spec, train_words(spec)


def test_it_learns_what_stands_between_two_words(trained):
    _, result = trained
    # Evenly drawn pieces would take 5.7 nats; what is right differs by the arithmetic of machines.
    assert result["hidden_words"]["nats"] < 4.5, result
    assert result["hidden_words"]["words"] > 10
    assert result["hidden_words_with_slips"]["nats"] > result["hidden_words"]["nats"]
    assert 0 < result["embedding_share"] < 1 and "bits_per_byte" not in result
    said = word_training_summary({**result, "out": "x"})
    assert "masked words told right" in said and "with slips" in said


def test_a_model_of_masked_words_writes_no_text(trained):
    spec, _ = trained
    with pytest.raises(FileError, match="tells masked words from both sides, so it writes no text"):
        load(spec.out)
    with pytest.raises(RequestError, match="chained is true: no piece of a masked word is shown"):
        replace(spec, chained=True)
