"""Exact modes against brute force, conditional and not, and what a little contamination does to them."""

import math

import pytest
import torch

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.check_search import toy_writer_factory
from polydec.lab.testing.enumerate import target_law
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.exact_mode import ExactModeSearch

PROMPT = (0, 1, 0)


def request_of(target, most, **fields):
    return Request(PROMPT, most, writer=toy_writer_factory(target, ""), **fields)


@pytest.mark.parametrize("sharp", [0.3, 1.0, 3.0])
def test_the_mode_is_that_of_all_texts(sharp):
    for seed in range(10):
        target = toy_law(seed, 3, sharp=sharp)
        law = target_law(target, PROMPT, 4, ())
        want = sorted(law.items(), key=lambda item: -item[1])[:3]
        got = run_coroutines([run_decoder(ExactModeSearch(target), request_of(target, 4, n=3))])[0]
        assert [r.token_ids for r in got] == [text for text, _ in want]
        assert [r.score for r in got] == pytest.approx([math.log(p) for _, p in want])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_mode_of_a_length_is_that_of_all_texts_of_it(length):
    others = 0
    for seed in range(10):
        target = toy_law(seed, 3)
        law = target_law(target, PROMPT, 4, ())
        fits = {t: p for t, p in law.items() if len(t) == length + 1 and t[-1] in target.vocab.eos}
        got = run_coroutines([answer_one(ExactModeSearch(target, length), request_of(target, 4))])[
            0
        ]
        assert got.token_ids == max(fits, key=fits.get)
        assert got.score == pytest.approx(math.log(max(fits.values())))
        others += got.token_ids != max(law, key=law.get)
    assert others


def test_it_looks_at_fewer_beginnings_than_there_are():
    target = toy_law(2, 5, sharp=2.0)
    stats = run_coroutines([answer_one(ExactModeSearch(target), request_of(target, 6))])[0].stats
    assert stats.passes < sum(4**n for n in range(6)) / 2, stats.passes
    assert target.network.runs / target.network.layers == stats.scored + len(PROMPT) - 1


class Contaminated:
    """Uniform over the texts of `length` letters, but the empty text has `empty` more. Letters are 0 and 1, 2 ends a text."""

    def __init__(self, length, empty):
        self.length, self.empty = length, empty

    def row(self, depth):
        share = self.empty if depth == 0 else float(depth == self.length)
        return [(1 - share) / 2, (1 - share) / 2, share]


def mode(law, conditional):
    """By the decoder, over a table of the contaminated law."""
    base = toy_law(0, 3)
    eos = next(iter(base.vocab.eos))
    order = [x for x in range(3) if x != eos] + [eos]

    class Row:
        """The session's scores in the place of the toy's."""

        def __init__(self, depth):
            values = dict(zip(order, law.row(depth)))
            self.logp_V = torch.tensor([values[x] for x in range(3)], dtype=torch.float64).log()

        def logprob_row(self, i):
            return self.logp_V

    class Session:
        depth = 0

        async def prefill_prompt(self, want):
            return None

        async def score_draft(self, draft, want):
            return Row(self.depth)

        def commit_tokens(self, tokens):
            self.depth += len(tokens)

        def rewind_tokens(self, n):
            self.depth -= n

        def close(self):
            pass

    class Table:
        vocab, layers = base.vocab, 0

        def open_session(self, prompt):
            return Session()

    decoder = ExactModeSearch(Table(), law.length if conditional else 0)
    found = run_coroutines([answer_one(decoder, request_of(base, law.length + 1))])[0]
    return len(found.token_ids) - 1, found.stats.passes


@pytest.mark.parametrize("length", [4, 8, 12])
def test_an_exponentially_small_contamination_empties_the_mode_and_a_condition_fills_it(length):
    share = 2.0 ** -(length - 2)
    assert mode(Contaminated(length, share), False)[0] == 0
    assert mode(Contaminated(length, 0.6), False) == (0, 1)  # one beginning suffices
    assert mode(Contaminated(length, share), True)[0] == length
    assert mode(Contaminated(length, 2.0 ** -(length + 2)), False)[0] == length


def test_what_cannot_be_is_one_sentence():
    target = toy_law(1, 4, sharp=0.3)
    for decoder, request, said in (
        (
            ExactModeSearch(target, most=2),
            request_of(target, 6),
            "most is 2: the likeliest text is not proven",
        ),
        (ExactModeSearch(target, 6), request_of(target, 6), "length is 6: max_tokens is 6"),
        (ExactModeSearch(target, width=2), request_of(target, 6, n=3), "n is 3"),
    ):
        with pytest.raises(RequestError, match=said):
            run_coroutines([run_decoder(decoder, request)])
    with pytest.raises(RequestError, match="length is -1"):
        ExactModeSearch(target, -1)


def test_a_model_of_the_zoo_says_its_mode():
    model = load("zoo:tiny", ngrams=None)
    found = generate(
        model, "Say yes.", method="exact-mode", max_tokens=3, options={"most": 5000}, logprobs=0
    ).choices[0]
    greedy = generate(model, "Say yes.", max_tokens=3, logprobs=0).choices[0]
    assert found.score == pytest.approx(sum(t.logp for t in found.logprobs), abs=1e-6)
    assert found.score >= sum(t.model_logp for t in greedy.logprobs) - 1e-4
