"""Slots behind a text: they see it and one another, in one pass, and leave nothing behind."""

from dataclasses import replace

import pytest
import torch

import micro
from polydec import Image, load
from polydec.base.errors import RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.toy import OrderTwoNetwork, toy_law
from polydec.lab.train.network import from_weights
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import press
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions import slots, sources
from polydec.models.sessions.soft import make_soft_tokens
from polydec.request.ask import plan_request
from polydec.request.fields import Ask
from vision_checkpoints import file_of, picture, write_qwen2_vl

TEXT = (5, 6, 9, 7, 8)
TIP = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    # Heads of 16, which the compiled step serves.
    return micro.write(tmp_path_factory.mktemp("m") / "a", hidden=64)


@pytest.fixture(scope="module", params=["float32", "auto"])
def lm(folder, request):
    """On the torch path, and in the compiled step where it runs here."""
    return load(str(folder), draft=None, dtype=request.param).checkpoint.lm


def vectors(count, seed=1, width=64):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def behind(law, text=TEXT, tip=TIP):
    """A session behind a text, all of which is committed."""
    session = law.open_session((*text, tip))
    session.commit_tokens((tip,))
    return session


def read(session, vectors_NH, **more):
    return run_coroutines([session.read_slots(vectors_NH, **more)])[0]


def computed_anew(folder, text, vectors_NH, causal):
    """The same states by another network, which has no cache: all positions at once."""
    source = sources.open_source(str(folder))
    trunk = from_weights(source.config, source.weights).model
    x = torch.cat([trunk.embed_tokens(torch.tensor(text)), vectors_NH])[None]
    T = x.shape[1]
    see_TT = torch.ones(T, T).tril().bool()
    if not causal:
        see_TT[len(text) :] = True
    for layer in trunk.layers:
        x = layer(x, trunk.cos[:T], trunk.sin[:T], see_TT)
    return x[0, len(text) :]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fed", [False, True])
def test_they_are_what_a_network_without_a_cache_computes(folder, lm, causal, fed):
    session = behind(lm)
    if fed:
        # All but the last token lie in the cache already.
        run_coroutines([session.score_draft(Draft.chain_draft(4), ScoreRequest())])
    got = read(session, vectors(7), causal=causal)
    want = computed_anew(folder, (*TEXT, TIP), vectors(7), causal)
    torch.testing.assert_close(got.float(), want, atol=2e-4, rtol=2e-4)


def test_the_first_sees_the_last_unless_it_is_causal(lm):
    some = vectors(6)
    other = some.clone()
    other[-1] += 1.0
    session = behind(lm)
    for causal in (False, True):
        before, after = (read(session, rows, causal=causal) for rows in (some, other))
        assert torch.allclose(before[0], after[0], atol=1e-5) == causal
        assert not torch.allclose(before[-1], after[-1], atol=1e-3)


def test_nothing_of_them_stays(lm):
    want = ScoreRequest()
    draft = Draft.chain_draft(4, (3, 2))

    def laws(session):
        scores = run_coroutines([session.score_draft(draft, want)])[0]
        return torch.stack([scores.logprob_row(i) for i in range(3)])

    plain = laws(behind(lm))
    session = behind(lm)
    read(session, vectors(9))
    assert list(session.ledger.text) == [*TEXT, TIP] and session.ledger.cache.end <= len(TEXT) + 1
    torch.testing.assert_close(laws(session), plain)
    # Nor do they see a draft that was scored before: its nodes are no part of the text.
    torch.testing.assert_close(
        read(session, vectors(9)), read(behind(lm), vectors(9)), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(laws(session), plain)


def test_each_group_is_one_query_and_groups_share_a_pass(lm, monkeypatch):
    network = lm.network
    passes = []
    forward = network.forward

    def noted(queries):
        passes.append([len(q) for q in queries])
        return forward(queries)

    monkeypatch.setattr(network, "forward", noted)
    for count in (4, 40):
        passes.clear()
        read(behind(lm, TEXT[:2]), vectors(count))
        # What the cache lacks of the text goes along.
        assert len(passes) == 1 and len(passes[0]) == 1 and count < passes[0][0] <= count + 3
    passes.clear()
    sessions = [behind(lm, TEXT[:n]) for n in (2, 3, 4)]
    both = run_coroutines([session.read_slots(vectors(5)) for session in sessions])
    assert len(passes) == 1 and len(passes[0]) == 3
    for session, states in zip(sessions, both, strict=True):
        torch.testing.assert_close(states, read(session, vectors(5)), atol=1e-4, rtol=1e-4)


def test_a_query_is_never_cut_among_them():
    query = NetworkQuery(None, 0, tuple(range(20)), range(12, 20), slots.STATES, mutual=8)
    assert query.part_edges(5) == [0, 5, 10, 12, 20]
    assert query.part_edges(3)[-2:] == [12, 20]
    assert replace(query, mutual=0).part_edges(5) == [0, 5, 10, 15, 20]
    assert query.cut_query(12, 20).mutual == 8 and query.cut_query(0, 12).mutual == 0
    assert list(query.cut_query(12, 20).rows) == list(range(8))


def test_more_of_them_than_a_part_of_a_pass_see_one_another(lm, monkeypatch):
    """A network takes long queries in parts; those that see one another go together."""
    session = behind(lm)
    want = read(session, vectors(30))
    if hasattr(lm.network, "limit"):
        monkeypatch.setattr(lm.network, "limit", 8)
    else:
        monkeypatch.setattr("polydec.models.native.network.LIMIT", 8)
    torch.testing.assert_close(read(behind(lm), vectors(30)), want, atol=1e-5, rtol=1e-5)


def test_a_padded_pass_shows_them_one_another(folder):
    """Passes that are laid out as one tensor have masks of their own."""
    lm = load(str(folder), draft=None, dtype="float32").checkpoint.lm
    padded = lm.network.padded_model()
    sessions = [behind(lm, TEXT[:n]) for n in (2, 4)]
    want = [read(session, vectors(5)) for session in sessions]
    asked = [behind(lm, TEXT[:n]) for n in (2, 4)]
    for session in asked:
        session.ledger.network = padded
    got = run_coroutines([session.read_slots(vectors(5)) for session in asked])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_they_stand_where_an_image_of_their_grid_would(tmp_path):
    """Of a model that tells rows and columns, behind a text that has an image already: as one more image after it."""
    write_qwen2_vl(tmp_path / "m")
    lm = load(str(tmp_path / "m"), draft=None, dtype="float32")
    law = lm.checkpoint.lm
    given = Ask("Who followed?", source=Image(file_of(picture(40, 30))), method="plain")
    plan = plan_request(lm, given)
    target = plan.encoded.vectors.prompted_law(law)
    prompt = plan.request.prompt
    grid = (2, 3)
    some = vectors(6, width=32)
    session = target.open_session((*prompt, TIP))
    session.commit_tokens((TIP,))
    got = read(session, some, grid=grid, causal=True)
    # The text that is read, with an image in the place of the slots, and one more token as its root.
    own = tuple(session._inner.ledger.text)
    image = make_soft_tokens(some, law.vocab.size, 32, "a test", grid)
    whole = law.open_session((*own, *image, TIP))
    want = ScoreRequest(hidden=True, prompt=True)
    states = run_coroutines([whole.prefill_prompt(want)])[0].hidden_NH
    torch.testing.assert_close(got, states[len(own) :], atol=1e-4, rtol=1e-4)
    # In a row, as words stand, they are others.
    assert not torch.allclose(read(session, some, causal=True), got, atol=1e-3)
    # Among themselves each sees all, at the same places.
    assert not torch.allclose(read(session, some, grid=grid), got, atol=1e-3)


def test_a_shaped_law_reads_those_of_its_model(lm):
    shaped = ShapedTarget(lm, GreedyRule())
    torch.testing.assert_close(read(behind(shaped), vectors(4)), read(behind(lm), vectors(4)))


def test_several_of_one_request_are_read_together():
    law = toy_law(3)

    async def both():
        return await gather_coroutines(
            *(behind(law, (0, 1), 2).read_slots(torch.zeros(n, 4)) for n in (1, 2))
        )

    calls = law.network.calls
    states = run_coroutines([both()])[0]
    assert [len(x) for x in states] == [1, 2] and law.network.calls == calls + 1


def test_what_cannot_be_read_is_refused_at_the_call(lm, monkeypatch):
    session = behind(lm)
    with pytest.raises(RequestError, match=r"slots have shape \(3, 9\): they must be \(N, 64\)"):
        session.read_slots(vectors(3, width=9))
    with pytest.raises(RequestError, match="251 slots stand behind 6 tokens: the model's context"):
        session.read_slots(vectors(251))
    read(session, vectors(250))
    monkeypatch.setattr(OrderTwoNetwork, "sees_ahead", False)
    with pytest.raises(RequestError, match="lets no token see what follows it"):
        behind(toy_law(1), (0, 1), 2).read_slots(torch.zeros(1, 4))


def test_a_packed_cache_is_refused(folder):
    lm = load(str(folder), draft=None, dtype="float32").checkpoint.lm
    made = press.build("quantised")[0]
    with pytest.raises(RequestError, match="slots behind a text are read over whole caches"):
        behind(lm.pressed_law(made)).read_slots(vectors(2))
