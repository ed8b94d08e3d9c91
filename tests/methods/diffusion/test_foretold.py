"""Lengths that are foretold: what the head learns, and what becomes of texts of a known length."""

import json
from dataclasses import replace

import pytest
import torch

from polydec import generate, load
from polydec.base.errors import FileError, MissingError, RequestError
from polydec.core.decoder import answer_one
from polydec.core.law import NEG_INF
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.lab.train.probe import train_probe
from polydec.lab.train.specs.probe.length import LengthSpec
from polydec.laws.shapers.greedy import GreedyRule
from polydec.methods.diffusion.loop import refining
from polydec.methods.diffusion.loop.foretold import first_prompt_state, with_foretold_length
from polydec.methods.diffusion.loop.refining import RefiningDecoder
from polydec.models.learned.artefacts import load_artefact
from polydec.models.learned.kinds import length_head

PROMPT = (1, 2, 0)


def test_laws_of_a_known_length_end_there_and_nowhere_else():
    logw = torch.zeros(5, 4, dtype=torch.float64)
    logw[4, 2:] = NEG_INF
    law = with_foretold_length(logw, 3, {2, 3}).softmax(-1)
    assert (law[:3, 2:] == 0).all() and law[:3, :2] == pytest.approx(0.5)
    assert law[3].tolist() == [0, 0, 0.5, 0.5]
    # Where the model rules every end out, one stands all the same.
    assert law[4].tolist() == [0, 0, 1, 0]
    assert torch.equal(logw[:3], torch.zeros(3, 4, dtype=torch.float64))


class Said:
    """Says these lengths, whatever stands in the prompt."""

    def __init__(self, *lengths):
        self.lengths = lengths
        self.asked = []

    def likeliest_lengths(self, state_H, count, most):
        self.asked.append((state_H, count, most))
        return list(self.lengths[:count])


async def no_state(model, prompt):
    return torch.tensor(prompt, dtype=torch.float32)


@pytest.fixture
def toy(monkeypatch):
    """A toy has no states: the prompt stands for its own."""
    monkeypatch.setattr(refining, "first_prompt_state", no_state)
    return ToyDenoiser(MarkovChainNetwork(1, 5, 2.0), eos=4)


def answer_of(model, said, seed=0, **fields):
    decoder = RefiningDecoder(model, 8, 0.5, shapers=(GreedyRule(),), foretelling=said, **fields)
    request = Request(PROMPT, 9, seed=seed)
    return run_coroutines([answer_one(decoder, request)])[0]


@pytest.mark.parametrize("length", [0, 1, 4, 8])
def test_a_text_has_the_length_that_was_foretold(toy, length):
    said = Said(length)
    for seed in range(6):
        got = answer_of(toy, said, seed, lengths=1).token_ids
        assert len(got) == length + 1 and got[-1] in toy.vocab.eos
        assert not toy.vocab.eos & set(got[:-1])
    state, count, most = said.asked[0]
    assert state.tolist() == list(PROMPT) and (count, most) == (1, 9)


def test_of_several_lengths_the_likeliest_text_is_answered(toy):
    better = set()
    for chain in range(12):
        model = replace(toy, network=MarkovChainNetwork(chain, 5, 2.0))
        both = answer_of(model, Said(2, 6), chain, lengths=2)
        better.add(len(both.token_ids) - 1)
    assert better == {2, 6}


def test_each_length_has_as_many_starts(toy, monkeypatch):
    opened = []

    class Counted(refining._RefiningPasses):
        def _open_texts(self, spot, count, lengths):
            super()._open_texts(spot, count, lengths)
            opened.append([text.length for text in self.texts])

    monkeypatch.setattr(refining, "_RefiningPasses", Counted)
    answer_of(toy, Said(3, 5), lengths=2, starts=3)
    answer_of(toy, Said(3, 5), lengths=0, starts=2)
    assert opened == [[3, 3, 3, 5, 5, 5], [None, None]]


def test_what_is_wrong_is_one_sentence(toy):
    with pytest.raises(RequestError, match="lengths is 2: nothing foretells them"):
        RefiningDecoder(toy, lengths=2)
    with pytest.raises(RequestError, match="lengths is -1"):
        RefiningDecoder(toy, lengths=-1)
    torch.set_num_threads(1)
    lm = load("zoo:diffusion")
    with pytest.raises(MissingError, match="lengths is 2, and there is no length-head"):
        generate(lm, "copy: 12", method="rum-sundae", options={"lengths": 2}, max_tokens=8)


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("lengths")
    rows = [
        {"question": f"say {word} {n}", "answer": word * count}
        for n in range(40)
        for word, count in (("ab", 1), ("cde", 4))
    ]
    (at / "pairs.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    spec = LengthSpec(str(at / "out"), pairs=str(at / "pairs.jsonl"), steps=150, rate=0.03)
    return at / "out", train_probe(spec)


def test_a_head_learns_lengths_from_the_first_state(head):
    out, result = head
    assert result["first_right"] > 0.8, result
    lm = load("zoo:diffusion")
    model = lm.checkpoint.lm
    trained = load_artefact(str(out))
    for word, count in (("ab", 1), ("cde", 4)):
        state = run_coroutines([first_prompt_state(model, lm.encode_prompt(f"say {word} 77"))])[0]
        want = len(lm.checkpoint.text.encode(word * count, False))
        assert trained.likeliest_lengths(state, 1, 60) == [want]
        assert trained.likeliest_lengths(state, 3, 1) in ([0, 1], [1, 0])


def test_the_first_state_is_that_of_the_prompt_and_one_gap():
    class Board:
        closed = False

        async def read_canvas(self, canvas, feed):
            assert canvas == (4, 2, 3, None) and tuple(feed) == (0, 1, 2, 3)
            return torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])

        def close(self):
            self.closed = True

    board = Board()

    class Model:
        def open_canvas(self, length, prompt=0):
            assert (length, prompt) == (4, 3)
            return board

    state = run_coroutines([first_prompt_state(Model(), (4, 2, 3))])[0]
    assert state.tolist() == [1.0, 2.0] and board.closed


def test_an_answer_is_as_long_as_the_head_says(head):
    out, _ = head
    lm = load("zoo:diffusion", trained=[str(out)])
    for word, count in (("ab", 1), ("cde", 4)):
        asked = {"method": "rum-sundae", "options": {"lengths": 1}, "max_tokens": 24}
        answer = generate(lm, f"say {word} 77", ignore_eos=False, **asked)
        ends = lm.checkpoint.lm.vocab.eos
        want = len(lm.checkpoint.text.encode(word * count, False))
        assert len([x for x in answer.token_ids if x not in ends]) == want


def test_a_head_of_another_model_is_refused():
    made, _ = length_head.examples(TokenVocabulary(5, frozenset()), 8, 0)
    with pytest.raises(FileError, match="this is an autoregressive one"):
        made.check_fit(toy_law(0, 5), None)
