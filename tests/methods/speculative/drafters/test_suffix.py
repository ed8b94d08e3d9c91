"""The suffix automaton: matches and counts against a scan, drafts by chance, stores."""

import random
from collections import Counter

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.automaton import SuffixAutomaton, SuffixStore
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier


def propose(guess, depth=8, nodes=8, text=None):
    text = guess.text if text is None else text
    return run_coroutines(
        [guess.propose_draft(text[-1], len(text), DraftBudget(depth, nodes), Rng.of_choice(0))]
    )[0]


def ends(text, run_of):
    n = len(run_of)
    return [e for e in range(n, len(text) + 1) if text[e - n : e] == run_of]


def texts(count, sizes=(1, 2, 3, 6)):
    dice = random.Random(1)
    for _ in range(count):
        yield [dice.randrange(dice.choice(sizes)) for _ in range(dice.randint(1, 40))]


def test_match_and_counts_equal_a_scan():
    for text in texts(150):
        seen = SuffixAutomaton()
        for n, x in enumerate(text, 1):
            seen.extend_by_token(x)
            head = text[:n]
            longest = max((k for k in range(1, n) if len(ends(head, head[n - k :])) > 1), default=0)
            state, length = seen.match
            assert length == longest
            if length:
                places = [e for e in ends(head, head[n - length :]) if e < n]
                count, last = Counter(head[e] for e in places), {head[e]: e + 1 for e in places}
                assert seen.followers_of(state) == sorted(
                    ((count[t], last[t], t) for t in count), reverse=True
                )


def test_a_copy_is_independent():
    seen = SuffixAutomaton()
    for x in (1, 2, 1, 2):
        seen.extend_by_token(x)
    twin = seen.copy()
    twin.extend_by_token(1)
    assert seen.size == 4 and seen.match[1] == 2 and twin.match[1] == 3


def test_longest_run_is_copied_as_lookup_does():
    """With floor 0, one child a node and no ambiguity the draft is prompt lookup's with a long enough n-gram."""
    suffix, lookup = SuffixDrafter(floor=0.0, width=1), LookupDrafter(16, 1, loop=False)
    for text in texts(150, (20,)):
        a, b = suffix.open_guess(text, None), lookup.open_guess(text, None)
        state, length = a.automaton.match
        if length and len(a.automaton.followers_of(state)) == 1 and a.automaton.count[state] == 2:
            copied = propose(b, 6, 6, text).token
            assert propose(a, 6, 6).token[: len(copied)] == copied


def test_the_commonest_continuation_comes_first_and_the_latest_on_a_tie():
    assert propose(
        SuffixDrafter(floor=0.0).open_guess((1, 2, 1, 3, 1, 2, 9, 1), None), 1
    ).token == (
        1,
        2,
        3,
    )
    assert propose(SuffixDrafter(floor=0.0).open_guess((1, 2, 1, 3, 1), None), 1).token == (1, 3, 2)
    assert propose(
        SuffixDrafter(floor=0.0, width=1).open_guess((1, 2, 1, 3, 1), None), 1
    ).token == (1, 3)


def test_chance_grows_with_the_match_and_falls_with_division():
    long, short = (
        SuffixDrafter(floor=0.1).open_guess(t, None)
        for t in ((1, 2, 3, 4, 9, 1, 2, 3), (1, 2, 3, 4, 9, 8, 3))
    )
    split = SuffixDrafter(floor=0.0).open_guess((1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3), None)
    assert propose(long).chance[1] > propose(short).chance[1] > 0.0
    both = propose(split, 1).chance
    assert both[1] == both[2] == pytest.approx(propose(long).chance[1] / 2)
    assert len(propose(long)) > len(propose(short))  # so a long match is copied further


def test_every_node_is_worth_the_floor_and_none_worth_it_is_left_out():
    for text in texts(100):
        for floor in (0.1, 0.3, 0.6):
            got, more = (
                propose(SuffixDrafter(floor=f, width=3).open_guess(text, None), 5, 200)
                for f in (floor, 0.0)
            )

            def products(draft):
                out = {}
                for i in range(1, len(draft)):
                    path = draft.path_to(i)
                    value = 1.0
                    for j in path:
                        value *= draft.chance[j]
                    out[tuple(draft.token[j] for j in path)] = value
                return out

            assert products(got) == {k: v for k, v in products(more).items() if v >= floor}


def test_rates_are_learned():
    guess = SuffixDrafter(trust=2.0).open_guess((1, 2, 1), None)
    before = guess.match_chance(1, 1, 1)
    assert (
        guess.match_chance(1, 1, 2) == before / 2
        and guess.match_chance(1, 2, 2) == guess.match_chance(2, 1, 1) > before
    )
    guess.learn_round(Draft.chain_draft(1), None, Verdict((), 2))  # as before
    assert guess.match_chance(1, 1, 1) == pytest.approx((1 + 2 * before) / 3)
    assert sum(guess.rates.tried) == sum(guess.rates.right) == 1
    worse = SuffixDrafter(trust=2.0).open_guess((1, 2, 1), None)
    worse.learn_round(Draft.chain_draft(1), None, Verdict((), 7))
    assert worse.match_chance(1, 1, 1) == pytest.approx(2 * before / 3)
    split = SuffixDrafter().open_guess((1, 2, 1, 3, 1), None)
    split.learn_round(Draft.chain_draft(1), None, Verdict((), 3))
    assert (
        split.rates.tried[0] == 0.5 and split.rates.right[0] == 1
    )  # a continuation among two should come half the time


def test_a_store_is_searched_where_it_matches_longer():
    store = SuffixStore.of_corpus([(5, 6, 7, 8, 9), (1, 2)])
    assert propose(SuffixDrafter(store=store, floor=0.0).open_guess((4, 5, 6, 7), None)).token == (
        7,
        8,
        9,
    )
    assert propose(SuffixDrafter(store=store, floor=0.0).open_guess((3, 9), None)).token == (
        9,
    )  # no match runs over an end
    own = SuffixDrafter(store=store, floor=0.0).open_guess((5, 6, 7, 1, 5, 6, 7), None)
    assert propose(own, 1).token == (7, 1)  # equally long: the text itself


def test_a_match_in_a_store_survives_its_growth():
    for text in texts(60, (3,)):
        store = SuffixStore()
        guess = SuffixDrafter(store=store).open_guess((), None)
        for i, x in enumerate(text):
            guess.extend_by_tokens((x,))
            if i % 3 == 2:
                store.add_sequence(text[i : i + 7])
            at, want = guess.at, SuffixStore(store.automaton.copy())
            state, length = want.automaton.state_of(*at), at[1]
            matched = guess.text[len(guess.text) - length :]
            walked = 0
            for y in matched:
                walked = want.automaton.next[walked][y]
            assert walked == state


def test_a_store_outlives_the_request():
    target, store, request = toy_law(4, 5, eos=-1), SuffixStore(), Request((0, 1), max_tokens=20)
    decoder = SpeculativeDecoder(
        target, SuffixDrafter(store=store, add=True), MatchVerifier(), FixedPolicy(6)
    )
    first, again = (run_coroutines([answer_one(decoder, request)])[0] for _ in range(2))
    assert first.token_ids == again.token_ids and again.stats.passes < first.stats.passes


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"min_match": 0}, "min_match is 0: it must lie in 1 to 64"),
        ({"floor": 1.5}, "floor is 1.5: it must lie in 0 to 1"),
        ({"width": 17}, "width is 17: it must lie in 1 to 16"),
        ({"trust": 0.0}, "trust is 0.0: it must be above 0"),
    ],
)
def test_bad_options(fields, message):
    with pytest.raises(ValueError, match=message):
        SuffixDrafter(**fields)


def test_a_match_in_the_text_or_a_store_equals_a_scan():
    """The longest suffix that stood in either, the text's own where both are as long, and what followed it."""
    dice, found = random.Random(2), Counter()
    for text in texts(40, (2, 3, 5)):
        corpus = [[dice.randrange(5) for _ in range(dice.randint(2, 30))] for _ in range(3)]
        guess = SuffixDrafter(store=SuffixStore.of_corpus(corpus)).open_guess((), None)
        for n, x in enumerate(text, 1):
            guess.extend_by_tokens((x,))
            head = text[:n]
            own = max((k for k in range(1, n) if len(ends(head, head[n - k :])) > 1), default=0)
            stored = [k for k in range(1, n + 1) if any(ends(one, head[n - k :]) for one in corpus)]
            longest = max(own, *stored, 0)
            where, state, length = guess.longest_match()
            assert length == longest
            if length:
                places = (
                    [(head, e) for e in ends(head, head[n - own :]) if e < n]
                    if longest == own
                    else [(one, e) for one in corpus for e in ends(one, head[n - longest :])]
                )
                after = Counter(one[e] for one, e in places if e < len(one))
                assert {x: count for count, _, x in where.followers_of(state)} == after
            found["text" if longest == own else "store"] += length > 2
    assert found["text"] > 50 and found["store"] > 50
