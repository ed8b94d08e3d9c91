"""Texts that are read under other names: the law, and a table of embeddings for each request."""

import pytest
import torch

import micro
from polydec import generate, load
from polydec.base.errors import MissingError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_target import check_target
from polydec.lab.testing.enumerate import target_law
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.renamed import RenamedTarget, TokenRenaming, deal_names
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import steer
from polydec.methods.registry.kit import Kit

NAMES = TokenRenaming((2, 0, 3, 1))
PROMPT = (0, 1, 0)


def test_a_text_is_as_likely_as_its_names():
    for seed in range(4):
        target = toy_law(seed, 4, eos=-1)
        law = target_law(RenamedTarget(target, NAMES), PROMPT, 3, ())
        inner = target_law(target, NAMES.rename_tokens(PROMPT), 3, ())
        assert set(law) == set(inner)
        for text, p in law.items():
            assert p == pytest.approx(inner[NAMES.rename_tokens(text)], abs=1e-12)


def scored(target, prompt):
    """What a session says of the token behind a prompt."""

    async def score():
        session = target.open_session(prompt)
        await session.prefill_prompt(ScoreRequest())
        return await session.score_draft(Draft.chain_draft(prompt[-1]), ScoreRequest())

    return run_coroutines([score()])[0]


def test_every_way_to_read_a_row_has_the_tokens_own_names():
    for seed in range(4):
        target = toy_law(seed, 4, eos=-1)
        scores = scored(RenamedTarget(target, NAMES), PROMPT)
        inner = scored(target, NAMES.rename_tokens(PROMPT))
        order = list(NAMES.name_of)
        assert torch.equal(scores.logprob_row(0), inner.logprob_row(0)[order])
        assert torch.equal(scores.log_weights(0), inner.log_weights(0)[order])
        best = inner.likeliest_tokens(0, 4)[0]
        assert [NAMES.name_of[x] for x in scores.likeliest_tokens(0, 4)[0]] == list(best)
        assert NAMES.name_of[scores.likeliest_token(0)] == inner.likeliest_token(0)
        assert scores.topk_rows([0], 2)[0] == list(scores.likeliest_tokens(0, 2)[0])
        assert scores.token_logprobs(0, (3,)) == inner.token_logprobs(0, (NAMES.name_of[3],))


@pytest.mark.parametrize("seed", range(3))
def test_it_keeps_the_contract_of_targets(seed):
    check_target(RenamedTarget(toy_law(seed, 4), NAMES))


def test_a_law_that_was_shaped_inside_bends_other_rows_under_their_names():
    target = ShapedTarget(toy_law(2, 4), GreedyRule())
    check_target(RenamedTarget(target, NAMES))


def test_names_are_dealt_anew_for_each_seed_and_number():
    class Words:
        pieces = (None, *(bytes([i]) for i in range(1, 40)), b"")

    vocab = TokenVocabulary(43, frozenset({7}), words=Words())
    dealt = {deal_names(vocab, seed, number).name_of for seed in range(3) for number in range(3)}
    assert len(dealt) == 9
    assert deal_names(vocab, 1, 2) == deal_names(vocab, 1, 2)
    for names in dealt:
        # Marks, what writes nothing, ends and rows behind the tokenizer keep their names.
        assert [x for x in (0, 7, 40, 41, 42) if names[x] != x] == []
        assert sum(x != name for x, name in enumerate(names)) > 30
    assert deal_names(TokenVocabulary(4, frozenset({3})), 0).name_of[3] == 3


def test_dealing_is_uniform():
    vocab = TokenVocabulary(3, frozenset())
    counts = {}
    for seed in range(1200):
        names = deal_names(vocab, seed).name_of
        counts[names] = counts.get(names, 0) + 1
    assert len(counts) == 6 and min(counts.values()) > 150, counts


@pytest.mark.parametrize("names", [(0, 0, 1), (1, 2, 3)])
def test_each_token_has_a_name_of_its_own(names):
    with pytest.raises(RequestError, match="each of the 3 tokens"):
        TokenRenaming(names)


def test_as_many_names_as_tokens():
    with pytest.raises(RequestError, match="a renaming of 4 tokens: the model has 3"):
        RenamedTarget(toy_law(0, 3), NAMES)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    return load(str(micro.write(tmp_path_factory.mktemp("names") / "a", hidden=64)))


def answer(lm, seed, **options):
    fields = {"steer": "lexinvariant", "steer_options": options} if options else {}
    return generate(lm, "The grey fox", raw=True, max_tokens=8, seed=seed, logprobs=0, **fields)


def test_a_seed_is_a_table_and_no_table_changes_nothing(lm):
    assert answer(lm, 0, tables=1).token_ids == answer(lm, 0, tables=1).token_ids
    assert answer(lm, 0, tables=1).token_ids != answer(lm, 1, tables=1).token_ids
    plain = answer(lm, 0)
    assert answer(lm, 3, tables=0).token_ids == plain.token_ids


def test_several_tables_have_the_mean_of_their_laws():
    target = toy_law(5, 4, eos=-1)
    law, _ = steer.build("lexinvariant", Kit(target, prompt=PROMPT, seed=9), {"tables": 3})
    parts = [
        target_law(RenamedTarget(target, deal_names(target.vocab, 9, i)), PROMPT, 1, ())
        for i in range(3)
    ]
    got = target_law(law, PROMPT, 1, ())
    for text, p in got.items():
        assert p == pytest.approx(sum(part[text] for part in parts) / 3, abs=1e-9)


def test_a_prompt_without_tokens_has_no_names():
    with pytest.raises(MissingError, match="vectors have no name"):
        steer.build("lexinvariant", Kit(toy_law(0, 4)))
