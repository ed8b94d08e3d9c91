"""A beam inside of words against the best of all words, scored one by one."""

import itertools
import math

import pytest
import torch

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_search import toy_writer_factory
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.word_beam import WordBeamSearch, word_start_tokens

PROMPT = (0, 1, 0)
SIZE, END = 4, 3
"""Three letters and an end; `b` begins a word."""
STARTS = (1, END)


def row_after(target, text):
    """The law behind a text, from a session of its own."""

    async def score():
        session = target.open_session((*PROMPT, *text))
        await session.prefill_prompt(ScoreRequest())
        scores = await session.score_draft(Draft.chain_draft((*PROMPT, *text)[-1]), ScoreRequest())
        session.close()
        return scores.logprob_row(0)

    return run_coroutines([score()])[0].tolist()


def best_word(target, before, longest, first):
    """The likeliest of all words behind a text, and whether it was cut."""
    found = {}
    for length in range(1, longest + 1):
        for word in itertools.product(range(SIZE), repeat=length):
            begins = first or word[0] in STARTS
            if not begins or END in word[:-1] or any(x in STARTS for x in word[1:]):
                continue
            total = 0.0
            for i, x in enumerate(word):
                total += row_after(target, (*before, *word[:i]))[x]
            if word[-1] == END:
                if length == 1:
                    found[word] = total, False
                continue
            over = row_after(target, (*before, *word))
            mass = math.log(sum(math.exp(over[x]) for x in STARTS))
            if length == longest and total > found.get(word, (-math.inf,))[0]:
                found[word] = total, True
            elif length < longest:
                found[word] = total + mass, False
    return max(found.items(), key=lambda item: item[1][0])


def words_one_by_one(target, most, longest):
    text, first = (), True
    while len(text) < most and END not in text:
        word, (_, first) = best_word(target, text, min(longest, most - len(text)), first)
        text = (*text, *word)
    return text


def text_of(target, most, **fields):
    request = Request(PROMPT, most, writer=toy_writer_factory(target, ""))
    decoder = WordBeamSearch(target, apart="b", **fields)
    return run_coroutines([run_decoder(decoder, request)])[0][0]


def test_each_word_is_the_likeliest_of_all():
    narrow = 0
    for seed in range(12):
        target = toy_law(seed, SIZE)
        want = words_one_by_one(target, 3, 3)
        assert text_of(target, 3, beams=64, longest=3).token_ids == want
        narrow += text_of(target, 3, beams=1, longest=3).token_ids != want
    assert narrow, "one beam never missed a word: the laws are too easy"


def test_a_word_counts_that_it_ends():
    """A beginning that would go on is no word, however likely it is: the chance of all ends counts, together."""
    seen = 0
    for seed in range(30):
        target = toy_law(seed, SIZE)
        (word, _) = best_word(target, (), 3, True)
        got = tuple(text_of(target, 6, beams=64, longest=3).token_ids[: len(word)])
        assert got == word
        first = row_after(target, ())
        seen += max(range(SIZE), key=first.__getitem__) != word[0]
    assert seen, "the likeliest letter always began the likeliest word"


def test_a_word_is_cut_at_its_length():
    target = toy_law(1, SIZE, eos=-1)
    text = text_of(target, 8, longest=2)
    assert len(text.token_ids) == 8
    # Of an alphabet without ends any letter may follow a word that was cut.
    decoder = WordBeamSearch(target, beams=1, longest=1, apart="b")
    request = Request(PROMPT, 4, writer=toy_writer_factory(target, ""))
    got = run_coroutines([run_decoder(decoder, request)])[0][0].token_ids
    want = ()
    for _ in range(4):
        row = row_after(target, want)
        want = (*want, max(range(SIZE), key=row.__getitem__))
    assert got == want


def test_tokens_that_begin_a_word():
    class Words:
        pieces = (b" the", b"cat", None, b"\n", b"", b"a b")

    starts = word_start_tokens(TokenVocabulary(7, frozenset(), words=Words()), " \n")
    assert starts.tolist() == [True, False, True, True, True, False, True]


def test_it_writes_texts_of_a_model_and_says_what_is_wrong():
    torch.set_num_threads(1)
    lm = load("zoo:tiny")
    answer = generate(lm, "Once upon a time", method="word-beam", max_tokens=12)
    again = generate(lm, "Once upon a time", method="word-beam", max_tokens=12, seed=5)
    assert answer.token_ids == again.token_ids and len(answer.token_ids) <= 12
    one = generate(lm, "Once upon a time", method="word-beam", options={"beams": 1}, max_tokens=12)
    assert one.token_ids
    with pytest.raises(RequestError, match="n is 2"):
        generate(lm, "Once", method="word-beam", n=2, max_tokens=4)
    with pytest.raises(RequestError, match="beams is 65"):
        WordBeamSearch(toy_law(0), beams=65)
    with pytest.raises(RequestError, match="needs a tokenizer"):
        WordBeamSearch(type("Bare", (), {"vocab": TokenVocabulary(3, frozenset())})())
