"""Byte2Word: words are read from bytes by cross-attention, and written in pieces that share one state."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from polydec.base.errors import FileError, RequestError
from polydec.core.types import ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_target import check_target
from polydec.lab.train.data import END
from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.word_kinds import byte2word, hat
from polydec.lab.train.word_kinds.byte2word import TrainableByteWords
from polydec.models.formats.byte_word_config import (
    WORD_ROW,
    ByteWordConfig,
    read_byte_word_config,
)
from polydec.models.nets.byte_words import (
    NONE,
    byte_embedding_shapes,
    byte_word_network,
    byte_word_tensor_shapes,
    word_vectors_of_bytes,
)
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions.lm import CausalLaw

SMALL = ByteWordConfig(8, 0, (1, 2), 32, 2, 8, 2, 260, 4, context=64)
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


def spoken(config=SMALL, seed=0):
    """A network whose rows differ, in float32."""
    network = TrainableByteWords(config, PIECES, seed).eval()
    with torch.no_grad():
        draw = torch.Generator().manual_seed(seed)
        for p in network.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * 0.1)
        network.head.mul_(4)
    return network


CHAINED = replace(SMALL, chained=True)


def served(network):
    return byte_word_network(network.c, network.state_dict())


def row(network, tokens):
    """Log-probabilities of what follows each token, by the network of sessions."""
    cache = network.new_cache()
    cache.stage_slots([i - 1 for i in range(len(tokens))])
    (answer,) = network.forward(
        [NetworkQuery(cache, 0, tuple(tokens), range(len(tokens)), ScoreRequest())]
    )
    return answer.logits_RV.log_softmax(-1)


def vectors(network, words):
    return word_vectors_of_bytes(
        network.c, network.codec_weights, torch.tensor(words, dtype=torch.long)
    )


@pytest.mark.parametrize("config", [SMALL, CHAINED], ids=["parallel", "chained"])
def test_whole_texts_and_sessions_have_one_law(config):
    network = spoken(config)
    draw = torch.Generator().manual_seed(1)
    serving = served(network)
    for _ in range(10):
        tokens = [0, *torch.randint(1, 8, (23,), generator=draw).tolist()]
        together = network(torch.tensor([tokens, tokens[::-1]]))[0].log_softmax(-1)
        assert row(serving, tokens) == pytest.approx(together.detach(), abs=1e-4)


@pytest.mark.parametrize("config", [SMALL, CHAINED], ids=["parallel", "chained"])
def test_a_session_keeps_the_contract_of_targets(config):
    check_target(CausalLaw(served(spoken(config)), TokenVocabulary(8, frozenset({2})), chunk=3))


def test_a_word_is_its_bytes_whatever_pieces_spell_them():
    """A, B as two pieces and AB as one are one word to all that follows it."""
    serving = served(spoken())
    two, one = row(serving, [0, 3, 4, 1, 6]), row(serving, [0, 5, 1, 6])
    assert torch.allclose(two[-1], one[-1], atol=1e-5) and torch.allclose(two[3], one[2], atol=1e-5)
    assert not torch.allclose(row(serving, [0, 7, 1])[-1], one[2], atol=1e-3)


def test_places_of_bytes_count():
    network = spoken()
    there = vectors(network, [[65, 66, 67, NONE], [67, 66, 65, NONE]])
    assert not torch.allclose(there[0], there[1], atol=1e-3)
    with torch.no_grad():
        network.places.zero_()
    blind = vectors(network, [[65, 66, 67, NONE], [67, 66, 65, NONE]])
    assert torch.allclose(blind[0], blind[1], atol=1e-5)


def test_what_fills_a_word_up_is_not_read():
    """Batched words are the words alone, and a word without bytes has a vector."""
    network = spoken()
    words = [[65, 66, NONE, NONE], [66, 65, 67, 65], [NONE] * 4]
    together = vectors(network, words)
    alone = [vectors(network, [w[: 4 - w.count(NONE)] or w[:0]])[0] for w in words]
    assert torch.allclose(together, torch.stack(alone), atol=1e-5)
    assert bool(together.isfinite().all())


def test_a_vector_is_the_attention_of_each_learned_query():
    """Against a loop over words, heads and bytes."""
    network = spoken()
    w = network.codec_weights
    word = [66, 65, 67]
    x_SE = torch.stack([w["bytes"][b] + w["places"][i] for i, b in enumerate([WORD_ROW, *word])])
    heads = []
    for n in range(2):
        part = slice(4 * n, 4 * n + 4)
        key_SD, value_SD = x_SE @ w["key"].T[:, part], x_SE @ w["value"].T[:, part]
        heads.append((key_SD @ w["query"][n] / 2.0).softmax(0) @ value_SD)
    y_E = w["mix"] @ torch.cat(heads)
    y_E = y_E + w["narrow"] @ F.gelu(w["wide"] @ F.rms_norm(y_E, (8,), eps=SMALL.eps))
    assert torch.allclose(vectors(network, [word])[0], w["up"] @ y_E, atol=1e-5)


def test_pieces_of_a_word_are_independent_given_its_state():
    """The law of the second piece does not depend on the first one; chained it does, and it is the parallel law where the
    chain is zero."""
    parallel, chained = spoken(), spoken(CHAINED)
    a, b = ([0, 6, 1, first] for first in (3, 4))
    assert torch.allclose(row(served(parallel), a)[-1], row(served(parallel), b)[-1], atol=1e-6)
    assert not torch.allclose(row(served(chained), a)[-1], row(served(chained), b)[-1], atol=1e-3)
    with torch.no_grad():
        chained.chain.zero_()
    weights = {k: v for k, v in chained.state_dict().items() if k != "chain"}
    without = byte_word_network(SMALL, weights)
    assert torch.allclose(row(served(chained), a), row(without, a), atol=1e-6)
    # Each place in a word has a law of its own.
    assert not torch.allclose(row(served(parallel), a)[-1], row(served(parallel), a)[-2], atol=1e-3)


def test_the_backbone_runs_once_a_word_and_a_long_word_is_closed():
    serving = served(spoken())
    before = serving.steps
    row(serving, [0, 3, 4, 1, 5, 1, 3, 3, 3, 3, 4])  # "AB", "AB", "AAAA" closed at its length, "B"
    assert serving.steps == before + 3


def test_bytes_beyond_the_longest_are_not_read():
    network = spoken()
    words = torch.tensor([[6, 7, NONE, NONE], [6, 4, NONE, NONE], [6, 3, 6, 6]])
    assert network.word_bytes(words).tolist() == [
        [66, 65, 67, 66],
        [66, 65, 67, 66],
        [66, 65, 67, 65],
    ]
    serving = served(network)
    assert torch.allclose(row(serving, [0, 6, 7, 1])[-1], row(serving, [0, 6, 4, 1])[-1], atol=1e-6)


WORDS = WordsSpec("x", kind="byte2word", width=128, longest=12, vocab=320)
TEXTS = ["The cats of the house see the other cats there. " * 4] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return byte2word.build_byte2word_tokenizer(WORDS, TEXTS)


def test_no_piece_goes_over_the_end_of_a_word(tokenizer):
    """Texts come back whole, and pieces spell what their bytes say."""
    assert 262 < tokenizer.get_vocab_size() <= 320
    rows, count = byte2word.bytes_of_pieces(tokenizer, 64)
    mark = tokenizer.token_to_id(hat.WORD)
    assert rows[mark].tolist() == [NONE] * 64 and count == WORD_ROW + 1 + 5
    draw = random.Random(5)
    for _ in range(100):
        text = "".join(
            draw.choice("the cas,.! \n\téß好\u00a0🙂") for _ in range(draw.randint(1, 24))
        )
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert bytes(x for i in ids for x in rows[i].tolist() if x >= 0) == text.encode()
        for i in ids:
            piece = tokenizer.decode([i])
            assert not any(a.strip() and b.isspace() for a, b in pairwise(piece))


def test_embeddings_weigh_what_the_formula_says(tokenizer):
    network = byte2word.build_byte2word_network(WORDS, tokenizer)
    c, small = network.c, 32
    assert (c.small, c.queries, c.rows, c.ends[-1] < c.vocab) == (32, 4, 262, True)
    assert tokenizer.token_to_id(END) in c.ends
    table = 262 * small + 13 * small + 4 * 8 + 3 * small**2 + 4 * small**2 + 128 * small
    assert network.embedding_size == table
    told = byte2word.byte2word_figures(network, [tokenizer.encode(TEXTS[0]).ids], 64)
    assert told["embedding_share"] == pytest.approx(table / (c.vocab * 128))
    assert 0 < told["backbone_positions_a_piece"] < 0.6
    # Of BERT's table a fiftieth, at our sizes; the paper has a tenth of it.
    large = replace(c, vocab=30522, width=768, small=192, queries=24)
    weighed = sum(torch.Size(s).numel() for s in byte_embedding_shapes(large).values())
    assert weighed < 0.025 * 30522 * 768


@pytest.mark.parametrize(
    "change, says",
    [
        ({"ends": []}, "ends"),
        ({"width": 48}, "width is 48: it must be a multiple of 32"),
        ({"small": 9}, "small is 9: it must be a multiple of queries, 2"),
        ({"longest": 10**9}, "longest"),
        ({"rows": 256}, "rows"),
        ({"chained": 1}, "chained"),
        ({"begin": 9}, "begin and ends must lie below vocab_size"),
    ],
)
def test_a_config_that_cannot_be_is_one_sentence(change, says):
    with pytest.raises(RequestError, match=says):
        read_byte_word_config({**SMALL.to_json(eos=2), **change})
    assert read_byte_word_config(SMALL.to_json(eos=2)) == SMALL


def test_damaged_weights_are_refused(tmp_path):
    weights = dict(spoken().state_dict())
    assert set(weights) == set(byte_word_tensor_shapes(SMALL))
    with pytest.raises(FileError, match=r"up has shape \(4, 8\)"):
        byte_word_network(SMALL, {**weights, "up": weights["up"][:4]})
    for value in (260, -2):
        pieces = weights["pieces"].clone()
        pieces[3, 1] = value
        with pytest.raises(FileError, match="bytes of pieces must lie in -1 to 259"):
            byte_word_network(SMALL, {**weights, "pieces": pieces})
