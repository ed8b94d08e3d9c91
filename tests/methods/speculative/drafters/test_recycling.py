"""Token Recycling: the template, the table, hot starts."""

import pytest

from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters._tree_shapes import template_child_counts
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter, RecyclingTable
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier

AFTER = {0: (1, 2), 1: (0, 3), 2: (0,), 3: (2, 2)}


def propose(guess, root, budget=None):
    return run_coroutines(
        [guess.propose_draft(root, 5, budget or DraftBudget(8, 64), Rng.of_choice(0))]
    )[0]


def paths(how):
    out = [()]
    for above, rank in how.template:
        out.append((*out[above], rank))
    return out[1:]


@pytest.mark.parametrize("nodes", [1, 5, 12, 40, 80])
def test_template_holds_the_likeliest_paths_and_their_beginnings(nodes):
    how = RecyclingDrafter(nodes=nodes)
    got = paths(how)
    assert len(set(got)) == nodes
    assert got == sorted(got, key=lambda p: (len(p), p))
    assert all(p[:-1] in {(), *got} for p in got)

    def value(path):
        out = 1.0
        for rank in path:
            out *= how.rates[rank]
        return out

    worst = min(map(value, got))
    below = {(*p, r) for p in ((), *got) for r in range(how.k)} - set(got)
    assert max(map(value, below)) <= worst + 1e-12


def test_ranks_end_at_k():
    assert max(r for p in paths(RecyclingDrafter(k=2, nodes=40)) for r in p) == 1
    assert set(paths(RecyclingDrafter(k=1, nodes=3))) == {(0,), (0, 0), (0, 0, 0)}


def test_unfolds_the_table():
    how = RecyclingDrafter(k=2, nodes=6, rates=(0.6, 0.3), memory=RecyclingTable(dict(AFTER)))
    draft = propose(how.open_guess((0,), None), 0)
    got = {tuple(draft.token[i] for i in draft.path_to(n)) for n in range(1, len(draft))}
    assert got == {(1,), (2,), (1, 0), (1, 3), (2, 0), (1, 0, 1)}
    assert [draft.token[i] for i in draft.children[0]] == [1, 2]  # siblings stand by rank
    assert [draft.chance[i] for i in draft.children[0]] == [0.6, 0.3]


def test_a_token_without_a_row_has_no_children():
    how = RecyclingDrafter(k=2, nodes=6)
    assert len(propose(how.open_guess((0,), None), 0)) == 1
    guess = how.open_guess((0,), None)
    guess.memory.after[0] = (1,)
    assert propose(guess, 0).token == (0, 1)


def test_stays_in_the_budget():
    how = RecyclingDrafter(k=2, nodes=12, memory=RecyclingTable(dict(AFTER)))
    for budget in (DraftBudget(0, 0), DraftBudget(1, 9), DraftBudget(2, 3), DraftBudget(9, 5)):
        draft = propose(how.open_guess((0,), None), 0, budget)
        assert max(draft.depth) <= budget.depth and len(draft) - 1 <= budget.nodes


def test_every_scored_node_writes_its_row_and_the_accepted_ones_last():
    target = toy_law(4, 5, eos=-1)
    guess = RecyclingDrafter(
        k=3, nodes=6, rates=(0.6, 0.3), memory=RecyclingTable({0: (1, 2), 1: (0, 3), 2: (0,)})
    ).open_guess((3, 0), None)
    draft = propose(guess, 0)
    session = target.open_session((3, 0))
    scores = run_coroutines([session.score_draft(draft, ScoreRequest())])[0]
    path = draft.path_to(
        next(i for i in range(len(draft)) if draft.depth[i] == 2 and draft.token[i] == 0)
    )
    guess.learn_round(draft, scores, Verdict(path, 4))
    last = {
        draft.token[i]: i
        for i in (*(i for i in range(len(draft)) if i not in path and i), 0, *path)
    }
    for token, node in last.items():
        assert guess.memory.after[token] == scores.likeliest_tokens(node, 3)[0]


def test_a_cycle_gives_depth_plus_one_tokens_a_pass():
    target = toy_law(3, 4, eos=-1)
    target.network.weight[:] = -50.0
    for a in range(4):
        target.network.weight[:, a, (a + 1) % 4] = 50.0
    decoder = SpeculativeDecoder(
        target, RecyclingDrafter(k=1, nodes=3), MatchVerifier(), FixedPolicy(3, 3)
    )
    out = run_coroutines([answer_one(decoder, Request((0, 1), max_tokens=44))])[0]
    assert out.stats.passes == 4 + 10  # four passes to see every token once, then four tokens each


@pytest.mark.parametrize("memory", [None, RecyclingTable()], ids=["cold", "hot"])
def test_a_memory_outlives_a_request_and_nothing_else_does(memory):
    target, request = toy_law(4, 5, eos=-1), Request((0, 1), max_tokens=20)
    decoder = SpeculativeDecoder(
        target, RecyclingDrafter(k=2, nodes=6, memory=memory), MatchVerifier(), FixedPolicy(3, 6)
    )
    runs = [run_coroutines([answer_one(decoder, request)])[0] for _ in range(2)]
    assert runs[0].token_ids == runs[1].token_ids
    assert (runs[0].stats.passes > runs[1].stats.passes) == (memory is not None)
    if memory is not None:  # a copy of the table makes the same drafts
        again = SpeculativeDecoder(
            target,
            RecyclingDrafter(k=2, nodes=6, memory=RecyclingTable(dict(memory.after))),
            MatchVerifier(),
            FixedPolicy(3, 6),
        )
        assert (
            run_coroutines([answer_one(again, request)])[0].stats
            == run_coroutines([answer_one(decoder, request)])[0].stats
        )


def test_prompt_rows_fill_the_table():
    target, request = toy_law(4, 5, eos=-1), Request((0, 1, 2, 3, 0, 1), max_tokens=8)
    cold, warm = (
        SpeculativeDecoder(
            target,
            RecyclingDrafter(k=2, nodes=6, recycle_prefill=p),
            MatchVerifier(),
            FixedPolicy(3, 6),
        )
        for p in (False, True)
    )
    a, b = (run_coroutines([answer_one(d, request)])[0] for d in (cold, warm))
    assert a.token_ids == b.token_ids and a.stats.drafts < b.stats.drafts
    assert b.stats.drafts == b.stats.passes or b.stats.drafts == b.stats.passes - 1


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"k": 65}, "k is 65: it must lie in 1 to 64"),
        ({"nodes": 0}, "nodes is 0: it must lie in 1 to 256"),
        ({"rates": (0.2, 0.3)}, "never rise"),
        ({"rates": ()}, "rates is"),
        ({"rates": (1.0,)}, "between 0 and 1"),
    ],
)
def test_bad_options(fields, message):
    with pytest.raises(ValueError, match=message):
        RecyclingDrafter(**fields)


def test_a_shape_in_place_of_rates():
    how = RecyclingDrafter(k=4, shape=(2, 1, 0, 1))
    assert how.template == ((0, 0), (0, 1), (1, 0), (3, 0)) and paths(how) == [
        (0,),
        (1,),
        (0, 0),
        (0, 0, 0),
    ]
    assert (
        template_child_counts(paths(RecyclingDrafter(nodes=12)))
        and RecyclingDrafter(
            shape=template_child_counts(paths(RecyclingDrafter(nodes=12)))
        ).template
        == RecyclingDrafter(nodes=12).template
    )
    assert propose(
        RecyclingDrafter(k=1, shape=(3,), memory=RecyclingTable({0: (1, 2)})).open_guess(
            (0,), None
        ),
        0,
    ).token == (0, 1, 2)
    with pytest.raises(ValueError, match="shape is 2,0,0,0,1"):
        RecyclingDrafter(shape=(2, 0, 0, 0, 1))


def test_bytes():
    assert RecyclingTable({0: (1, 2), 5: (1,)}).nbytes == 12 + 8


def test_choices_learn_for_themselves():
    """A choice among others drafts what it drafts alone: nothing of what its siblings saw stands in its table."""
    target = toy_law(4, 6, eos=-1)
    decoder = SpeculativeDecoder(
        target, RecyclingDrafter(k=2, nodes=6), MatchVerifier(), FixedPolicy(3, 6)
    )
    several = run_coroutines([run_decoder(decoder, Request((0, 1), max_tokens=24, n=4))])[0]
    single = [
        run_coroutines([answer_one(decoder, Request((0, 1), max_tokens=24, choice=c))])[0]
        for c in range(4)
    ]
    assert [r.token_ids for r in several] == [r.token_ids for r in single]
    assert [r.stats.accepted_at for r in several] == [r.stats.accepted_at for r in single]
    assert [r.stats.tried_at for r in several] == [r.stats.tried_at for r in single]


def test_one_memory_serves_all_choices():
    """It was handed in to be shared: what one choice saw the others draft from."""
    guess = RecyclingDrafter(k=2, memory=RecyclingTable()).open_guess((0,), None)
    guess.fork_guess(None).memory.after[0] = (1, 2)
    assert propose(guess, 0).token == (0, 1, 2)
