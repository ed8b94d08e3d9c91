"""LMSession: committed = cached + not yet fed + one pending root, whatever is scored, committed, rewound and forked."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kv_cache import network, trees

from polydec.core.effects import gather_coroutines
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.models.sessions.lm import CausalLaw

NET = network()
ROW, SILENT = ScoreRequest(), ScoreRequest(law=RowDetail.NOTHING)
texts = st.lists(st.integers(0, 49), min_size=1, max_size=20)


def lm(chunk=7, keep=0, net=NET):
    return CausalLaw(net, TokenVocabulary(50, frozenset({0})), chunk=chunk, keep=keep)


def go(coro):
    return run_coroutines([coro])[0]


def rows(scores, n):
    return torch.stack([scores.logprob_row(i) for i in range(n)])


def truth(text, net=NET):
    """The law after each token of a text, from one pass over an empty cache."""
    session = lm(net=net).open_session([text[0]])
    return rows(go(session.score_draft(Draft.chain_draft(text[0], text[1:]), ROW)), len(text))


def near(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=0.0)


def next_law(session, root):
    return go(session.score_draft(Draft.chain_draft(root), ROW)).logprob_row(0)


@settings(max_examples=25)
@given(texts, trees(), trees(), st.booleans())
def test_commit_equals_prefill_also_for_tokens_never_scored(prompt, one, two, extra):
    session, done = lm().open_session(prompt), list(prompt)
    go(session.prefill_prompt(SILENT))
    for tokens, parent, path in (one, two):
        draft = Draft.certain_tree((done[-1], *tokens), (-1, *(p + 1 for p in parent)))
        scores = go(session.score_draft(draft, ROW))
        if path:
            near(scores.logprob_row(path[-1] + 1), truth([*done, *(tokens[i] for i in path)])[-1])
        kept = [tokens[i] for i in path] + ([3, 1] if extra else [])
        session.commit_tokens((done[-1], *kept))
        done += [*kept, 5]  # a bonus token is the next root
        assert session.ledger.cache.length <= len(session.ledger.text) == len(done) - 1
    near(next_law(session, done[-1]), truth(done)[-1])


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_prefill_answers_every_row_of_the_prompt_in_chunks(chunk):
    prompt = torch.randint(0, 50, (30,)).tolist()
    session = lm(chunk).open_session(prompt)
    scores = go(session.prefill_prompt(ScoreRequest(prompt=True, hidden=True)))
    near(rows(scores, 29), truth(prompt)[:-1])
    assert scores.hidden_NH.shape == (29, 32)
    near(next_law(session, prompt[-1]), truth(prompt)[-1])


def test_a_draft_that_extends_the_last_feeds_its_new_nodes_only(monkeypatch):
    session = lm().open_session([1, 2, 3, 4])
    first = Draft.certain_tree((4, 7, 8), (-1, 0, 0))
    longer = Draft.certain_tree((4, 7, 8, 9, 6), (-1, 0, 0, 1, 3))
    go(session.score_draft(first, ROW))
    fed = []
    real = NET.forward

    def forward(queries):
        fed.extend(map(len, queries))
        return real(queries)

    monkeypatch.setattr(NET, "forward", forward)
    scores = go(session.score_draft(longer, ROW))
    monkeypatch.undo()
    assert fed == [2]
    near(scores.logprob_row(4), truth([1, 2, 3, 4, 7, 9, 6])[-1])
    near(scores.logprob_row(2), truth([1, 2, 3, 4, 8])[-1])
    other = go(session.score_draft(Draft.certain_tree((4, 5), (-1, 0)), ROW))
    near(other.logprob_row(1), truth([1, 2, 3, 4, 5])[-1])


def test_rewind_and_its_bounds():
    text = torch.randint(0, 50, (12,)).tolist()
    session = lm().open_session(text[:4])
    go(session.score_draft(Draft.chain_draft(text[3], text[4:9]), ROW))
    session.commit_tokens(text[3:9])
    for n, root in ((3, text[6]), (0, 8), (4, 9)):
        session.rewind_tokens(n)
        left = session.ledger.text
        near(next_law(session, root), truth([*left, root])[-1])
    with pytest.raises(ValueError, match="n is 99"):
        session.rewind_tokens(99)


@settings(max_examples=15)
@given(texts, trees(), st.booleans())
def test_forks_go_their_own_ways(prompt, tree, scored):
    tokens, parent, path = tree
    session = lm().open_session(prompt)
    draft = Draft.certain_tree((prompt[-1], *tokens), (-1, *(p + 1 for p in parent)))
    if scored:
        go(session.score_draft(draft, ROW))
    twin = session.fork()
    kept = [tokens[i] for i in path]
    session.commit_tokens((prompt[-1], *kept))
    if not scored:
        go(twin.score_draft(draft, ROW))
    twin.commit_tokens((prompt[-1],))
    near(next_law(session, 11), truth([*prompt, *kept, 11])[-1])
    near(next_law(twin, 12), truth([*prompt, 12])[-1])


def test_the_first_layers_share_the_cache_and_leave_it_clean():
    whole = network(num_hidden_layers=3)
    text = torch.randint(0, 50, (9,)).tolist()
    session = lm(net=whole).open_session(text)
    part = session.open_part(range(0, 2))
    got = go(part.score_draft(Draft.chain_draft(text[-1], [4, 6]), ROW))
    shallow = go(
        lm(net=whole)
        .open_session(text)
        .open_part(range(0, 2))
        .score_draft(Draft.chain_draft(text[-1], [4, 6]), ROW)
    )
    near(rows(got, 3), rows(shallow, 3))
    full = go(session.score_draft(Draft.chain_draft(text[-1], [4, 6]), ROW))
    near(rows(full, 3), truth([*text, 4, 6], whole)[-3:])
    assert (rows(full, 3) - rows(got, 3)).abs().max() > 1e-2
    for layers in ((1, 0), range(0, 4), range(0, 0)):
        with pytest.raises(ValueError, match="layers is"):
            session.open_part(layers)


def test_closed_sessions_lend_their_text():
    target = lm(keep=1)
    text = torch.randint(0, 50, (10,)).tolist()
    session = target.open_session(text)
    go(session.score_draft(Draft.chain_draft(text[-1]), ROW))
    session.commit_tokens((text[-1],))
    session.close()
    again = target.open_session([*text[:7], 1, 2])
    assert again.ledger.cache.length == 7
    near(next_law(again, 2), truth([*text[:7], 1, 2])[-1])


def test_rows_of_a_prompt_are_all_there_where_a_closed_session_lent_its_text():
    target, text = lm(keep=1), torch.randint(0, 50, (12,)).tolist()
    session = target.open_session(text)
    go(session.score_draft(Draft.chain_draft(text[-1]), ROW))
    session.close()
    again = target.open_session([*text, 3, 4])
    near(rows(go(again.prefill_prompt(ScoreRequest(prompt=True))), 13), truth([*text, 3]))
    near(next_law(again, 4), truth([*text, 3, 4])[-1])


def test_a_batch_of_sessions_equals_its_singles_to_the_bit():
    async def decode(session, root, steps):
        out = []
        for _ in range(steps):
            token = (
                await session.score_draft(Draft.chain_draft(root, out[-2:]), ROW)
            ).likeliest_token(0)
            session.commit_tokens((root,))
            out.append(root := token)
        return out

    async def both(jobs):
        return await gather_coroutines(*jobs)

    prompts = [
        torch.randint(0, 50, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for n in (1, 3, 9, 9, 20)
    ]

    def jobs(target):
        return [decode(target.open_session(p), p[-1], 12) for p in prompts]

    assert go(both(jobs(lm()))) == [go(j) for j in jobs(lm())]


def test_prompts_that_do_not_fit_are_refused():
    for prompt, says in (
        ([], "prompt is empty"),
        ([1] * 600, "context holds 600"),
        ([50], "token 50"),
    ):
        with pytest.raises(ValueError, match=says):
            lm().open_session(prompt)


@pytest.mark.parametrize("more", [(), (9,)], ids=["the same draft", "a longer one"])
def test_states_are_given_whatever_was_asked_before(more):
    """A draft that was scored without its states is not gone on with where they are wanted."""
    text, want = [1, 2, 3, 4], ScoreRequest(hidden=True)
    draft = Draft.chain_draft(4, (7, 8, *more))
    fresh = go(lm().open_session(text).score_draft(draft, want)).hidden_NH
    for layers in (2, 1):
        session = lm().open_session(text)
        asked = session if layers == 2 else session.open_part(range(1))
        go(asked.score_draft(Draft.chain_draft(4, (7, 8)), ROW))
        go(session.score_draft(Draft.chain_draft(4, (7, 8)), ROW))
        near(go(session.score_draft(draft, want)).hidden_NH, fresh)
