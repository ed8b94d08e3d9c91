"""A reader drafts a word for the model that writes it: the text is the model's own, whatever was read, and what was read is
proposed by its place."""

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.kits import example_strip
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.read_word import ReadWordDrafter
from polydec.methods.speculative.loop.one_pass_reading import OnePassReading
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import word_reader

TARGET = ShapedTarget(toy_law(4, 8), GreedyRule())
READERS = word_reader.examples(TARGET.vocab, 4, 4)


def reads(*tokens):
    """How a reader reads that sees these letters, whatever the image."""

    def read(head, states_NW, rng=None):
        return torch.nn.functional.one_hot(torch.tensor(tokens), 8) * 9.0

    return read


def written(drafter, most=8, prompt=(0,)):
    decoder = SpeculativeDecoder(TARGET, drafter, MatchVerifier(), FixedPolicy(16))
    return run_coroutines([answer_one(decoder, Request(prompt, max_tokens=most))])[0]


PLAIN = written(NothingDrafter()).token_ids


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.reading)
def test_the_text_is_the_models_own(reader):
    assert written(ReadWordDrafter(reader, example_strip())).token_ids == PLAIN


def test_a_right_reading_is_written_in_one_pass():
    done = written(ReadWordDrafter(READERS[0], example_strip(), reads(*PLAIN)))
    assert done.token_ids == PLAIN and done.stats.passes == 1


def test_behind_a_wrong_letter_what_was_read_still_stands():
    seen = [x if at != 3 else (x + 1) % 8 for at, x in enumerate(PLAIN)]
    done = written(ReadWordDrafter(READERS[0], example_strip(), reads(*seen)))
    assert done.token_ids == PLAIN and done.stats.passes == 2


def test_what_the_prompt_begins_counts_as_read():
    done = written(ReadWordDrafter(READERS[0], example_strip(), reads(*PLAIN)), 4, (0, *PLAIN[:3]))
    assert done.token_ids == PLAIN[3:7] and done.stats.passes == 1


def test_an_image_is_read_once_for_all_answers():
    calls = list[int]()

    def counted(head, states_NW):
        calls.append(1)
        return reads(*PLAIN)(head, states_NW)

    drafter = ReadWordDrafter(READERS[0], example_strip(), counted)
    decoder = SpeculativeDecoder(TARGET, drafter, MatchVerifier(), FixedPolicy(2))
    run_coroutines([answer_one(decoder, Request((0,), max_tokens=8, n=1))])
    assert len(calls) == 1


def test_a_reading_alone_is_the_answer_up_to_its_end():
    def answer(*tokens, most=8, prompt=(0,), ends=True):
        vocab = TokenVocabulary(8, frozenset({1}) if ends else frozenset())
        decoder = OnePassReading(READERS[0], example_strip(), vocab, reads(*tokens))
        return run_coroutines([answer_one(decoder, Request(prompt, max_tokens=most, logprobs=2))])[
            0
        ]

    done = answer(3, 4, 1, 5)
    assert done.token_ids == (3, 4, 1) and done.finish_reason == "stop" and done.stats.passes == 1
    assert [n.token for n in done.logprobs] == [3, 4, 1] and len(done.logprobs[0].top) == 2
    # One as long as all places ends as well, and one behind a begun word goes on.
    assert answer(3, 4).token_ids == (3, 4, 1)
    assert answer(3, 4, 5, most=2).token_ids == (3, 4)
    assert answer(3, 4, 5, 1, prompt=(0, 3, 4)).token_ids == (5, 1)
    assert answer(3, 1, ends=False, most=4).token_ids == (3, 1, 1, 1)


def test_several_images_in_one_pass_are_read_as_they_are_alone():
    for reader in READERS:
        asked = word_reader.ReadingQuery(example_strip(), word_reader.usual_reading)
        (alone,) = reader.forward([asked])
        read = [rows.argmax(-1).tolist() for rows in reader.forward([asked] * 3)]
        assert read == [alone.argmax(-1).tolist()] * 3


def test_an_image_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"^source is an image of 10 positions of 2 x 8 pixels"):
        READERS[0].check_image(word_reader.PixelStrip(8, 2, example_strip().pixels))
