"""What sequences have in common is held once, and nobody can tell from a row."""

import random

import pytest
import torch
from test_kv_cache import network
from test_session import go, lm, rows

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.models.native.library import native_step_availability
from polydec.models.nets.kv_cache import BLOCK, KVCache, total_cache_bytes

ROW, SILENT = ScoreRequest(), ScoreRequest(law=RowDetail.NOTHING)
DICE = torch.Generator().manual_seed(7)
TEXT = torch.randint(0, 50, (420,), generator=DICE).tolist()


@pytest.fixture(params=["torch", "native"], scope="module")
def net(request):
    if request.param == "native":
        if not native_step_availability()[0]:
            pytest.skip(native_step_availability()[1])
        from native_checkpoints import config, weights

        from polydec.models.native.network import CpuStep

        c = config(num_hidden_layers=3, vocab_size=50, max_position_embeddings=600)
        made = CpuStep.build(c, weights(c), threads=1)
    else:
        made = network(num_hidden_layers=3)
    made.tolerance = {"torch": 1e-4, "native": 0.0}[request.param]
    made.fed, real = [], made.forward

    def forward(queries):
        made.fed += map(len, queries)
        return real(queries)

    made.forward = forward
    return made


def near(net, a, b):
    torch.testing.assert_close(a, b, atol=net.tolerance, rtol=0.0)


def truth(net, text, n):
    """The law after the last n tokens, of a session that shares nothing."""
    session = lm(net=net, chunk=64).open_session(text[: -n + 1 or None])
    return rows(
        go(session.score_draft(Draft.chain_draft(text[-n], text[len(text) - n + 1 :]), ROW)), n
    )


def test_forks_read_one_text(net):
    target = lm(net=net, chunk=64)
    session = target.open_session(TEXT[:330])
    go(session.prefill_prompt(SILENT))
    go(session.score_draft(Draft.chain_draft(TEXT[329], (1, 2)), ROW))
    alone = target.nbytes
    assert alone == session.ledger.cache.nbytes > 0
    twins = [session.fork() for _ in range(4)]
    assert target.nbytes == alone and session.peers == 5, "a fork copies nothing, and counts"
    for k, s in enumerate([session, *twins]):
        s.commit_tokens((TEXT[329], 1, 2)[: 1 + k % 3])
        text = [*TEXT[:330], 1, 2][: 330 + k % 3]
        for step in range(3):
            tree = Draft.certain_tree((k, 5, 6, step), (-1, 0, 0, 1))
            got = rows(go(s.score_draft(tree, ROW)), 4)
            near(net, got[[0, 1, 3]], truth(net, [*text, k, 5, step], 3))
            near(net, got[[0, 2]], truth(net, [*text, k, 6], 2))
            s.commit_tokens((k, 6))
            text += [k, 6]
    each = alone / session.ledger.cache.capacity * BLOCK
    assert target.nbytes <= alone + 4 * each, "a fork holds more than a block of its own"
    for s in twins:
        s.close()
    assert target.nbytes <= alone + 2 * each and session.peers == 1, "closing gives nothing back"


def test_live_sessions_lend_their_text(net):
    target = lm(net=net, chunk=64)
    first = target.open_session(TEXT[:300])
    go(first.score_draft(Draft.chain_draft(TEXT[299]), ROW))
    net.fed.clear()
    second = target.open_session([*TEXT[:200], 3, 4, 5])
    got = rows(go(second.score_draft(Draft.chain_draft(5, (6,)), ROW)), 2)
    assert sum(net.fed) == 4, "what a live session holds was computed again"
    near(net, got, truth(net, [*TEXT[:200], 3, 4, 5, 6], 2))
    first.rewind_tokens(200)  # and writes other tokens where the second one reads
    near(
        net,
        rows(go(first.score_draft(Draft.chain_draft(9, (8,)), ROW)), 2),
        truth(net, [*TEXT[:99], 9, 8], 2),
    )
    second.commit_tokens((5,))
    near(
        net,
        rows(go(second.score_draft(Draft.chain_draft(7), ROW)), 1),
        truth(net, [*TEXT[:200], 3, 4, 5, 7], 1),
    )
    first.close()
    second.commit_tokens((7,))
    near(
        net,
        rows(go(second.score_draft(Draft.chain_draft(2), ROW)), 1),
        truth(net, [*TEXT[:200], 3, 4, 5, 7, 2], 1),
    )


def test_nothing_is_lent_before_it_is_there(net):
    target = lm(net=net, chunk=64)
    first, second = target.open_session(TEXT[:100]), target.open_session(TEXT[:100])
    assert first.ledger.filled == second.ledger.filled == 0
    alone = rows(
        run_coroutines([s.score_draft(Draft.chain_draft(TEXT[99]), ROW) for s in (first, second)])[
            1
        ],
        1,
    )
    near(net, alone, truth(net, TEXT[:100], 1))


def test_the_last_row_keeps_a_prefix(net):
    target = lm(net=net, chunk=64)
    first = target.open_session(TEXT[:200])
    want = ScoreRequest(hidden=True, last=True)
    one = go(first.prefill_prompt(want))
    near(net, rows(one, 1), truth(net, TEXT[:199], 1))
    net.fed.clear()
    again = go(target.open_session(TEXT[:200]).prefill_prompt(want))
    assert sum(net.fed) == 1 and again.hidden_NH.shape == one.hidden_NH.shape == (
        1,
        len(one.hidden_NH[0]),
    )
    near(net, again.hidden_NH, one.hidden_NH)
    assert go(target.open_session([5]).prefill_prompt(want)).hidden_NH is None


def test_a_kept_text_goes_over_whole(net):
    target = lm(net=net, chunk=64, keep=1)
    session = target.open_session(TEXT[:200])
    go(session.score_draft(Draft.chain_draft(TEXT[199]), ROW))
    session.commit_tokens((TEXT[199],))
    cache = session.ledger.cache
    session.close()
    assert session.ledger.cache.nbytes == 0 and target.nbytes > 0
    more = target.open_session([*TEXT[:200], 3, 4])
    assert more.ledger.cache is cache and not target._kept
    near(
        net,
        rows(go(more.score_draft(Draft.chain_draft(4), ROW)), 1),
        truth(net, [*TEXT[:200], 3, 4], 1),
    )
    more.close()
    target.keep = 0
    target._kept.clear()
    assert target.nbytes == 0


@pytest.mark.parametrize("seed", range(6))
def test_any_family_of_caches(net, seed):
    """Random verbs on many twins: each holds what a fresh prefill of its text gives."""
    dice, family = random.Random(seed), [(net.new_cache(), list[int]())]

    def feed(cache, tokens, parent):
        from polydec.models.nets.query import NetworkQuery

        first = cache.stage_slots(parent)
        return net.forward([NetworkQuery(cache, first, tuple(tokens), range(len(tokens)), ROW)])[
            0
        ].logits_RV

    for _ in range(40):
        cache, text = family[dice.randrange(len(family))]
        verb = dice.choice(["chain", "chain", "tree", "fork", "fork", "cut", "close", "keep"])
        if verb == "chain" and len(text) < 350:
            new = [dice.randrange(50) for _ in range(dice.choice((1, 3, 60, 128)))]
            feed(cache, new, range(-1, len(new) - 1))
            cache.commit_path(range(len(new)))
            text += new
        elif verb in ("tree", "keep") and len(text) < 400:
            new, parent = [dice.randrange(50) for _ in range(6)], [-1, 0, 0, 1, 2, 4]
            feed(cache, new, parent)
            if verb == "tree":
                path = dice.choice(((), (0, 2, 4, 5), (0, 1), (0, 2)))
                twin = cache.fork() if dice.random() < 0.5 else None
                cache.commit_path(path)
                if twin is not None:
                    twin.commit_path((0, 1, 3))
                    family.append((twin, [*text, *(new[i] for i in (0, 1, 3))]))
                text += [new[i] for i in path]
            else:
                cache.keep_path((0,), (2, 4))
                feed(cache, [7], [1])
                cache.commit_path((0, 1, 2))
                text += [new[0], new[2], new[4], 7]
        elif verb == "fork" and len(family) < 8:
            n = dice.choice((None, dice.randint(0, len(text))))
            family.append((cache.fork(n), text[:n]))
        elif verb == "cut":
            cache.truncate_entries(len(text) - dice.randint(0, min(len(text), 150)))
            del text[cache.length :]
        elif verb == "close" and len(family) > 1:
            family.remove((cache, text))
    assert total_cache_bytes(c for c, _ in family) <= sum(c.nbytes for c, _ in family)
    for cache, text in family:
        fresh = net.new_cache()
        if text:
            feed(fresh, text, range(-1, len(text) - 1))
            fresh.commit_path(range(len(text)))
        assert cache.length == len(text)
        near(net, cache.all_entries(), fresh.all_entries())
        near(net, feed(cache, [1, 2, 3], (-1, 0, 0)), feed(fresh, [1, 2, 3], (-1, 0, 0)))


def test_growth_by_quarters_and_release():
    cache = KVCache(torch.zeros(2, 2, 1, 256, 16))
    for need in (256, 257, 600, 2000):
        cache.stage_slots(range(-1, need - cache.length - 1))
        cache.commit_path(range(need - cache.length))
        assert need <= cache.capacity <= max(256, 1.5 * need + 256)
    cache.truncate_entries(0)
    assert cache.nbytes == 0 and cache.capacity == 0


def test_many_prompts_go_in_bounded_passes(net, monkeypatch):
    from polydec.models.native.network import LIMIT, CpuStep

    if not isinstance(net, CpuStep):
        pytest.skip("torch's passes are tested in test_packing.py")
    sizes, real = [], net._step

    def step(queries, *more):
        sizes.append(sum(map(len, queries)))
        return real(queries, *more)

    monkeypatch.setattr(net, "_step", step)
    target = lm(net=net, chunk=256)
    prompts = [TEXT[k : k + 190] for k in range(12)]
    many = run_coroutines(
        [target.open_session(p).score_draft(Draft.chain_draft(p[-1]), ROW) for p in prompts]
    )
    assert max(sizes) <= LIMIT and sum(sizes) == 12 * 190
    sizes.clear()
    session = lm(net=net).open_session(TEXT[:1])
    long = [*TEXT, *TEXT[:150]]
    session.commit_tokens(long[:-1])  # one query of more than a pass takes
    near(
        net, rows(go(session.score_draft(Draft.chain_draft(long[-1]), ROW)), 1), truth(net, long, 1)
    )
    assert max(sizes) <= LIMIT
    for p, scores in zip(prompts[:3], many):
        near(net, rows(scores, 1), truth(net, p, 1))
    joined = go(
        lm(net=net)
        .open_session([1])
        .score_draft(
            Draft.chain_draft(1, long[:560]),
            ScoreRequest(hidden=True, law=RowDetail.ARGMAX, exits=(2,)),
        )
    )
    assert joined.hidden_NH.shape[0] == 561 and joined.exit_laws(2, (0, 560)).logprob_row(
        1
    ).shape == (50,)
    near(net, joined.logprob_row(560), truth(net, [1, *long[:560]], 1)[0])


def probing(real, state, enter=0):
    n, k = len(real), len(state)
    return Draft(
        (*real.token, *[0] * k),
        (*real.parent, *range(k)),
        (DrawKind.CERTAIN,) * (n + k),
        (None,) * (n + k),
        (False,) * n + (True,) * k,
        None,
        (None,) * n + tuple(state),
        (0,) * n + (enter if isinstance(enter, tuple) else (enter,) * k),
    )


@pytest.mark.parametrize("enter", [0, 1, 2, (0, 1, 2), (1, 1, 2)])
def test_probes_move_no_real_row(net, enter):
    width = net.embed_tokens((1,)).shape[1]
    state = torch.randn(3, width, generator=torch.Generator().manual_seed(3))
    real = Draft.certain_tree((TEXT[140], 5, 6), (-1, 0, 1))

    async def rows_of(draft, more):
        session = lm(net=net).open_session(TEXT[:141])
        scores = await session.score_draft(draft, ROW)
        got = rows(scores, len(draft))
        longer = (
            await session.score_draft(Draft.certain_tree(draft.token[:3], draft.parent[:3]), ROW)
            if more
            else None
        )
        session.commit_tokens(draft.token[:2])
        after = (await session.score_draft(Draft.chain_draft(9), ROW)).logprob_row(0)
        session.close()
        return got, after, None if longer is None else rows(longer, 3)

    got = run_coroutines(
        [
            rows_of(probing(real, state, enter), False),
            rows_of(real, True),
            rows_of(probing(real, state, enter), True),
        ]
    )
    for g, after, again in got[::2]:
        near(net, g[:3], got[1][0])
        near(net, after, got[1][1])
        assert g.isfinite().all() and (
            again is None or torch.equal(again, got[1][2]) or net.tolerance
        )


@pytest.mark.parametrize("enter", [0, 1, 2])
def test_a_probe_with_a_tokens_state_is_the_token(net, enter):
    tree = Draft.certain_tree((TEXT[140], 5, 6, 7), (-1, 0, 0, 1))
    session = lm(net=net).open_session(TEXT[:141])
    state = (
        net.embed_tokens((6, 7))
        if not enter
        else go(
            session.open_part(range(enter)).score_draft(
                tree, ScoreRequest(law=RowDetail.NOTHING, hidden=True)
            )
        ).hidden_NH[2:]
    )
    truth_ = rows(go(lm(net=net).open_session(TEXT[:141]).score_draft(tree, ROW)), 4)
    draft = Draft(
        (TEXT[140], 5, 0, 0),
        tree.parent,
        tree.draw,
        tree.law,
        (False, False, True, True),
        None,
        (None, None, *state),
        (0, 0, enter, enter),
    )
    near(net, rows(go(lm(net=net).open_session(TEXT[:141]).score_draft(draft, ROW)), 4), truth_)


def test_states_of_a_draft_scored_without_them(net):
    short, long = Draft.chain_draft(TEXT[60], (1, 0)), Draft.chain_draft(TEXT[60], (1, 0, 1))
    whole = go(lm(net=net).open_session(TEXT[:61]).score_draft(long, ScoreRequest(hidden=True)))
    session = lm(net=net).open_session(TEXT[:61])
    go(session.score_draft(short, ROW))
    got = go(session.score_draft(long, ScoreRequest(hidden=True)))
    near(net, got.hidden_NH, whole.hidden_NH)
    near(net, rows(session.score_states(got.hidden_NH), 4), rows(whole, 4))
    skip = lm(net=net).open_session(TEXT[:61])
    go(skip.score_draft(short, SILENT))
    assert (
        len(go(skip.open_part((0, 2)).score_draft(long, ScoreRequest(hidden=True))).hidden_NH) == 4
    )
    assert (
        go(session.score_draft(Draft.chain_draft(TEXT[60], (1, 0, 1, 4)), ROW)).hidden_NH is None
    ), "states of some nodes only"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"probe": None}, "state must have one entry a node, None but for probes"),
        ({"enter": (0, 3, 0)}, "enter is 3: it must lie in 0 to 2"),
        ({"enter": (0, -1, 0)}, "enter is -1"),
        ({"state": (None, torch.zeros(3), None)}, r"state 1 has shape \(3,\): it must be \("),
    ],
)
def test_states_that_cannot_be(net, change, message):
    from dataclasses import replace

    draft = Draft(
        (1, 0, 0),
        (-1, 0, 0),
        (DrawKind.CERTAIN,) * 3,
        (None,) * 3,
        (False, True, True),
        None,
        (None, net.embed_tokens((1,))[0], None),
    )
    session = lm(net=net).open_session([1])
    net.fed.clear()
    with pytest.raises(ValueError, match=message):
        go(session.score_draft(replace(draft, **change), ROW))
    with pytest.raises(
        ValueError, match="nodes that enter above the first layer must stand behind all others"
    ):
        go(session.score_draft(replace(draft, enter=(0, 1, 0)), ROW))
    assert not net.fed


def test_depths_that_are_not_there(net):
    for exits in ((0,), (4,)):
        with pytest.raises(ValueError, match=f"exits has {exits[0]}: depths must lie in 1 to 3"):
            go(
                lm(net=net)
                .open_session([1])
                .score_draft(Draft.chain_draft(1), ScoreRequest(exits=exits))
            )
