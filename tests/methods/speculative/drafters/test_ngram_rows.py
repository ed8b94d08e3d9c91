"""STAND's memory of rows: averages, back-off, drawn trees, and known bugs of such drafters."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

from polydec.core.decoder import answer_one, request_streams
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import ignore_event
from polydec.core.transcript import Transcript
from polydec.core.types import Draft, DrawKind, ScoreRequest
from polydec.lab.testing.check_decoder import check_decoder, check_law
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.enumerate import enumerate_executions, target_law, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters._tree_shapes import (
    most_accepted_paths,
    of_counts,
    template_child_counts,
    tree_template,
)
from polydec.methods.speculative.drafters.ngram_rows import (
    NgramRowsDrafter,
    NgramRowsGuess,
    NgramRowStore,
)
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

BIG = DraftBudget(64, 256)


def propose(guess, budget=BIG, seed=0):
    return run_coroutines(
        [guess.propose_draft(guess.text[-1], len(guess.text), budget, Rng.of_choice(seed))]
    )[0]


def fed(how, text, target):
    """A guess that saw the rows of a text, token by token."""
    guess, session = how.open_guess(text[:1], None), target.open_session(text[:1])
    for x, y in pairwise(text):
        scores = run_coroutines([session.score_draft(Draft.chain_draft(x), ScoreRequest())])[0]
        guess.learn_round(Draft.chain_draft(x), scores, Verdict((), y))
        session.commit_tokens((x,))
    return guess


def test_rows_are_the_mean_of_what_was_seen():
    target, text = toy_law(3, 5, eos=-1), (0, 1, 2, 1, 2, 3, 1, 2, 0)
    guess = fed(NgramRowsDrafter(keep=5), text, target)
    seen = Counter(
        tuple(text[max(0, i - n + 1) : i + 1])
        for i in range(len(text) - 1)
        for n in (2, 3, 4)
        if i - n + 1 >= 0
    )
    assert {key: row[0] for key, row in guess.store.after.items()} == seen
    for key, (
        _,
        tokens,
        p,
    ) in guess.store.after.items():  # the toy's rows depend on two tokens: all the same
        want = target.network.weight[key[-2], key[-1]].log_softmax(-1).exp()
        assert dict(zip(tokens, p, strict=True)) == pytest.approx(dict(enumerate(want.tolist())))
        assert list(p) == sorted(p, reverse=True)


def test_averages_of_unlike_rows():
    guess = NgramRowsDrafter(keep=2).open_guess((0,), None)
    guess.write_row((1, 2), {5: 0.6, 6: 0.3})
    guess.write_row((1, 2), {7: 0.9})
    assert guess.store.after[1, 2] == (2, (7, 5), (0.45, 0.3))
    guess.write_row((1, 2), {5: 0.6})
    assert guess.store.after[1, 2] == (3, (5, 7), (pytest.approx(0.4), pytest.approx(0.3)))


def test_backs_off_to_shorter_ngrams():
    rows = NgramRowStore(
        {(1, 2, 3, 4): (1, (9,), (1.0,)), (3, 4): (1, (8,), (1.0,)), (2, 3, 5): (1, (7,), (1.0,))}
    )
    guess = NgramRowsDrafter(store=rows).open_guess((1, 2, 3, 4), None)
    assert (
        guess.find_row((0, 1, 2, 3, 4))[1] == (9,)
        and guess.find_row((2, 3, 4))[1] == (8,)
        and guess.find_row((4,)) is None
    )
    assert guess.find_row((2, 3, 5))[1] == (7,) and guess.find_row((3, 5)) is None


def test_the_least_recently_written_row_goes_first():
    guess = NgramRowsDrafter(most=2).open_guess((0,), None)
    for key in ((1, 1), (2, 2), (1, 1), (3, 3)):
        guess.write_row(key, {0: 1.0})
    assert set(guess.store.after) == {(1, 1), (3, 3)} and guess.store.nbytes == 2 * (8 + 8 + 4)


def test_children_are_drawn_without_replacement():
    rows = NgramRowStore({(0, 1): (1, (2, 3, 4), (0.5, 0.3, 0.2))})
    got, n = Counter(), 4000
    for seed in range(n):
        guess = NgramRowsDrafter((2,), store=rows).open_guess((0, 1), None)
        guess.like.append(torch.zeros(6, dtype=torch.float64))
        got[propose(guess, seed=seed).token[1:]] += 1
    want = {
        (a, b): p[a] * p[b] / (1 - p[a])
        for p in ({2: 0.5, 3: 0.3, 4: 0.2},)
        for a in p
        for b in p
        if a != b
    }
    assert set(got) == set(want)
    assert all(abs(got[k] / n - want[k]) < 4 * (want[k] / n) ** 0.5 for k in want)


def test_the_law_is_a_snapshot_of_the_row():
    rows = NgramRowStore({(0, 1): (1, (2, 3), (0.5, 0.25))})
    guess = NgramRowsDrafter((2,), store=rows).open_guess((0, 1), None)
    guess.like.append(torch.zeros(5, dtype=torch.float64))
    draft = propose(guess)
    guess.write_row((0, 1), {4: 1.0})
    assert draft.law[1] is draft.law[2] and draft.draw[1] is DrawKind.WITHOUT
    assert draft.law[1].exp().tolist() == pytest.approx([0, 0, 2 / 3, 1 / 3, 0])


def test_a_greedy_target_gets_the_likeliest_and_the_model_own_rows():
    target = ShapedTarget(toy_law(3, 5, eos=-1), GreedyRule())
    guess = fed(NgramRowsDrafter((3, 1)), (0, 1, 2, 0, 1, 2, 0), target)
    draft = propose(guess)
    assert all(d is DrawKind.CERTAIN for d in draft.draw) and len(draft.children[0]) == 3
    assert [draft.token[c] for c in draft.children[0]] == list(guess.find_row(guess.text)[1][:3])


def test_tree_has_its_shape():
    target = toy_law(3, 9, eos=-1)
    for draws in (True, False):
        guess = fed(NgramRowsDrafter((3, 2, 0, 1), 1, 1, draws=draws), tuple(range(9)) * 2, target)
        assert [len(c) for c in propose(guess).children] == [3, 2, 0, 1, 0, 0, 0]
        assert (
            len(propose(guess, DraftBudget(1, 9))) == 4
            and len(propose(guess, DraftBudget(9, 4))) == 5
        )


@pytest.mark.parametrize(
    "how",
    [
        NgramRowsDrafter((2, 1), 2, 1),
        NgramRowsDrafter((1, 1, 1), 3, 1, keep=2),
        NgramRowsDrafter((2, 1), 2, 1, draws=False),
    ],
    ids=["tree", "chain of short rows", "likeliest"],
)
def test_contract(record_counts, how):
    record_counts(check_drafter(how))
    record_counts(
        check_decoder(
            lambda target, draft: SpeculativeDecoder(
                target, how, ExactVerifier(), FixedPolicy(2, 4)
            ),
            laws=4,
            length=3,
        )
    )


def test_samples_of_one_question_help_each_other():
    target, rows = toy_law(4, 6, eos=-1, sharp=2.5), NgramRowStore()
    decoder = SpeculativeDecoder(
        target, NgramRowsDrafter(store=rows), ExactVerifier(), FixedPolicy(16, 16)
    )
    rate = [
        sum(
            run_coroutines([answer_one(decoder, Request((0, 1), max_tokens=40, choice=8 * j + i))])[
                0
            ].stats.passes
            for i in range(8)
        )
        for j in range(3)
    ]
    assert rate[2] < rate[0]
    cold = SpeculativeDecoder(target, NgramRowsDrafter(), ExactVerifier(), FixedPolicy(16, 16))
    assert (
        sum(
            run_coroutines([answer_one(cold, Request((0, 1), max_tokens=40, choice=i))])[
                0
            ].stats.passes
            for i in range(8)
        )
        > rate[0]
    )


def answers_of(decoder, request, rng=None):
    of = (
        request_streams(request)
        if rng is None
        else lambda choice: rng.child_stream("choice", choice)
    )
    into = Transcript(request, decoder.vocab.eos, ignore_event)
    return run_coroutines([decoder.write_choices(request, of, into)])[0]


def test_choices_of_a_request_share_rows_without_a_store():
    target, request = toy_law(4, 6, eos=-1, sharp=2.5), Request((0, 1), max_tokens=40, n=8)
    passes = {}
    for shared in (False, True):
        decoder, _ = build("stand", target, options={"shared": shared, "shortest": 2})
        first, second = (answers_of(decoder, request) for _ in range(2))
        passes[shared] = sum(r.stats.passes for r in first)
        assert [r.token_ids for r in first] == [r.token_ids for r in second]  # nothing stays behind
    assert passes[True] < 0.9 * passes[False]


def test_choices_that_share_rows_are_independent():
    target, request, joint = toy_law(2, 3, eos=-1), Request((0, 1), max_tokens=3, n=2), Counter()
    how = NgramRowsDrafter((2,), 1, 1, shared=True)
    decoder = SpeculativeDecoder(target, how, ExactVerifier(), FixedPolicy(1, 2))
    for pair, p in enumerate_executions(
        lambda rng: tuple(a.token_ids for a in answers_of(decoder, request, rng))
    ):
        joint[pair] += p
    law = target_law(target, (0, 1), 3)
    want = {(a, b): law[a] * law[b] for a in law for b in law}
    assert text_law_distance(joint, want) < 1e-9


class Likeliest(NgramRowsGuess):
    """Known bug: takes the likeliest tokens and has them tested as if they were drawn."""

    def _children(self, row, count, rng):
        tokens, law_V = super()._children(row, count, rng)
        return (tokens if law_V is None else row[1][:count]), law_V


class Stale(NgramRowsGuess):
    """Known bug: the law that is tested is not the one that was drawn from (the row moved on in between)."""

    def _children(self, row, count, rng):
        tokens, law_V = super()._children(row, count, rng)
        return tokens, None if law_V is None else (law_V * 0.5).log_softmax(-1)


class Independent(NgramRowsGuess):
    """Known bug: siblings without replacement that are tested as independent ones."""

    async def propose_draft(self, root, position, budget, rng):
        draft = await super().propose_draft(root, position, budget, rng)
        return replace(
            draft,
            draw=tuple(DrawKind.INDEPENDENT if d is DrawKind.WITHOUT else d for d in draft.draw),
        )


@dataclass(frozen=True)
class Faulty:
    fault: type

    def open_guess(self, prompt, session):
        guess = NgramRowsDrafter((2,), 1, 1).open_guess(prompt, session)
        return self.fault(guess.config, guess.store, guess.text, guess.like)


@pytest.mark.parametrize("fault", [Likeliest, Stale, Independent])
def test_known_bugs_show_in_the_output_law(fault):
    def make(guess):
        return lambda target, draft: SpeculativeDecoder(
            target, Faulty(guess), ExactVerifier(), FixedPolicy(1, 2)
        )

    check_law(make(NgramRowsGuess), laws=3, length=4, shapings=["plain"])
    with pytest.raises(AssertionError, match="output law"):
        check_law(make(fault), laws=8, length=4, shapings=["plain"])


def test_match_would_be_lossless_too():
    """With certain children the verifier that never looks at laws gives the same text as plain decoding's."""
    target, request = toy_law(4, 5, eos=-1), Request((0, 1), max_tokens=20, seed=5)
    a, b = (
        run_coroutines(
            [
                answer_one(
                    SpeculativeDecoder(target, NgramRowsDrafter(draws=False), v, FixedPolicy(9)),
                    request,
                )
            ]
        )[0]
        for v in (ExactVerifier(), MatchVerifier())
    )
    assert a.token_ids == b.token_ids


def test_shapes():
    assert of_counts((2, 1)) == ((0, 0), (0, 1), (1, 0)) == tree_template([(0,), (1,), (0, 0)])
    assert template_child_counts([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]) == (
        2,
        1,
        1,
        1,
    ) and of_counts((2, 1, 1, 1)) == tree_template([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)])
    seen = {(0,): 9, (1,): 3, (0, 0): 5, (0, 1): 4, (1, 0): 2, (2,): 1}
    assert most_accepted_paths(seen, 4) == ((0,), (1,), (0, 0), (0, 1)) and most_accepted_paths(
        seen, 2
    ) == ((0,), (0, 0))
    assert most_accepted_paths({(1, 0): 3}, 3) == ((0,), (1,), (1, 0)) and most_accepted_paths(
        {(1, 0): 3, (0,): 1}, 2
    ) == ((0,),)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"shape": (2, 0, 0, 0, 1)}, "it must be the child counts"),
        ({"shape": ()}, "shape has 0 nodes"),
        ({"shape": (65,)}, "shape is 65"),
        ({"longest": 17}, "longest is 17: it must lie in 1 to 16"),
        ({"shortest": 5}, "shortest is 5: it must lie in 1 to longest, which is 4"),
        ({"keep": 0}, "keep is 0: it must lie in 1 to 64"),
        ({"most": 0}, "most is 0: it must be at least 1"),
    ],
)
def test_bad_options(fields, message):
    with pytest.raises(ValueError, match=message):
        NgramRowsDrafter(**fields)
