"""As wide a draft as pays at the batch: the table is the best there is, it changes slowly, and no text hears of it."""

from itertools import pairwise

import pytest

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.examples import example_artefacts
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.economics.widths import (
    BATCHES,
    expected_tokens,
    likeliest_paths,
    read_widths,
    widths_by_batch,
    widths_for,
)
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.batch_width import BatchWidthPolicy, InUse

RATES = ((0.6, 0.2), (0.5, 0.25), (0.4, 0.3))
MACHINES = {
    "rows are free up to forty": PassCosts(tuple(max(20.0, m / 2) for m in range(1, 400)), 1.0),
    "every row costs alike": PassCosts(tuple(float(m) for m in range(1, 60)), 0.1),
    "context costs too": PassCosts((1.0, 1.1, 1.2), 0.1, (0.5,), 0.2),
}


def test_the_paths_are_the_likeliest():
    """All paths by hand: the product of their ranks' rates, beginnings first."""
    paths = {(a,): RATES[0][a] for a in range(2)}
    paths |= {(a, b): RATES[0][a] * RATES[1][b] for a in range(2) for b in range(2)}
    paths |= {
        (*p, c): v * RATES[2][c] for p, v in dict(paths).items() if len(p) == 2 for c in range(2)
    }
    best = sorted(paths.values(), reverse=True)
    assert [v for _, v in likeliest_paths(RATES, 99)] == pytest.approx(best)
    written = expected_tokens(RATES, 99)
    assert written[0] == 1.0 and written[-1] == pytest.approx(1 + sum(best))
    assert len(expected_tokens(RATES, 3)) == 4


@pytest.mark.parametrize("machine", MACHINES)
def test_the_table_is_the_best_of_all_widths_at_every_batch(machine):
    """Brute force over the tokens that a batch writes a millisecond; free drafts never widen with the batch."""
    costs, written = MACHINES[machine], expected_tokens(RATES, 12)
    table = widths_by_batch(written, costs, lambda batch: 2.0 / batch, 64)
    policy = BatchWidthPolicy(table)
    for batch in BATCHES:
        rates = []
        for width, tokens in enumerate(written):
            ms = costs.pass_ms(batch * (1 + width), batch, 64) + (2.0 if width else 0.0)
            rates.append(batch * tokens / ms)
        assert rates[policy.width_at(batch)] == pytest.approx(max(rates))
    free = widths_by_batch(written, costs, lambda batch: 0.0, 64)
    widths = [width for _, width in free]
    assert widths == sorted(widths, reverse=True) and all(a != b for a, b in pairwise(widths))
    if machine == "rows are free up to forty":
        assert widths[0] > widths[-1]


def test_another_width_is_taken_after_some_rounds_that_ask_for_it():
    policy, out = BatchWidthPolicy(((1, 8), (4, 2)), patience=3), []
    state = policy.start_state()
    assert policy.draft_budget(state) == DraftBudget(5, 8)
    for peers in (1, 5, 5, 1, 5, 5, 5, 5, 1, 1, 1):
        state = policy.joined_width(state, peers)
        out.append(state.width)
    #               asked twice, then not: it stays   three in a row           and back
    assert out == [8, 8, 8, 8, 8, 8, 2, 2, 2, 2, 8]
    assert (
        policy.draft_budget(InUse(2)) == DraftBudget(5, 2)
        and policy.draft_budget(InUse(0)).depth == 0
    )
    assert policy.width_at(3) == 8 and policy.width_at(99) == 2


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"widths": ()}, "must begin at 1"),
        ({"widths": ((2, 4),)}, "must begin at 1"),
        ({"widths": ((1, 4), (1, 2))}, "ascend"),
        ({"widths": ((1, 1025),)}, "0 to 1024"),
        ({"widths": ((1, 4),), "depth": 65}, "0 to 64"),
        ({"widths": ((1, 4),), "patience": 0}, "at least 1"),
    ],
)
def test_what_is_wrong_is_said(wrong, says):
    with pytest.raises(RequestError, match=says):
        BatchWidthPolicy(**wrong)


def test_a_table_in_words():
    assert read_widths("1:16, 4:8,16:0") == ((1, 16), (4, 8), (16, 0))
    for wrong in ("", "1", "1:x", "a:1", "1:2:3", "1:99999999999999999"):
        with pytest.raises(RequestError, match="such as 1:16,4:8,16:0"):
            read_widths(wrong)


def test_a_draft_is_paid_once_whatever_its_depth():
    """Its share is measured over all levels: of free rows all pay while a draft costs less than it brings."""
    free = PassCosts((1.0, 1.0), 0.0)
    brings = expected_tokens((*RATES, RATES[-1], RATES[-1]), 8)[-1] - 1.0
    for share, width in ((0.9 * brings, 8), (1.1 * brings, 0)):
        assert widths_for("", RATES, share, free, 8, 5) == ((1, width),)


def answers(name, options, count):
    """Answers that are written at once, and the drafted tokens and passes of all of them."""
    law = ShapedTarget(toy_law(5, 4, eos=-1), GreedyRule())
    kit = Kit(law, None, example_artefacts(law.vocab))
    decoder, _ = registry.build(name, kit, options)
    requests = [Request((i % 4, 1), 16, seed=i) for i in range(count)]
    done = run_coroutines([answer_one(decoder, r) for r in requests])
    drafted = sum(r.stats.drafted for r in done) / sum(r.stats.passes for r in done)
    return [r.token_ids for r in done], drafted


def test_drafts_are_narrower_in_company_and_texts_the_same():
    table = {"widths": "1:12,3:2,6:0"}
    plain, _ = answers("plain", {}, 8)
    texts, drafted = {}, {}
    for count in (1, 4, 8):
        texts[count], drafted[count] = answers("scylla", table, count)
        assert texts[count] == plain[:count]
    assert drafted[1] > 2 >= drafted[4] > 0 and drafted[8] == 0
    fixed, same = answers("eagle-2", {"nodes": "12", "cost_aware": "false"}, 4)
    one_width, other = answers("scylla", {"widths": "1:12"}, 4)
    assert (fixed, same) == (one_width, other)
