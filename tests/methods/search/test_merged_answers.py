"""Answers in merged tokens: units of several tokens that are written in one pass and read as one vector."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import micro
from polydec import Ask, Engine, Sampling
from polydec.base.errors import FileError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.train import hypernetwork as training
from polydec.lab.train.hypernetwork import HypernetworkModel
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.models.learned.kinds import hypernetwork
from polydec.models.learned.kinds.hypernetwork import HypernetworkSizes, examples, pad_units
from polydec.models.learned.reader import BidirectionalEncoder
from polydec.models.sessions.soft import make_soft_tokens
from polydec.models.text.token_merges import frequent_units, split_by_longest
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel

PROMPT = (5, 9, 30, 31, 8)
UNITS = ((20, 21), (22, 23, 24), (20, 25))


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    lm = micro.trained(tmp_path_factory.mktemp("answers"), examples=examples)
    made = lm.artefacts[0]
    tensors = {**made.tensors, "units": pad_units(UNITS, 4), "lift": torch.full((1,), 2.0)}
    lm = LoadedModel(lm.checkpoint, lm.draft, (replace(made, tensors=tensors),))
    return lm


def ask(options=None, **fields):
    asked = {"method": "merged-answers", "options": options or {}, "max_tokens": 16}
    return Ask(PROMPT, **{"raw": True, "ignore_eos": True, **asked, **fields})


def texts(lm, asks, **limits):
    return micro.completed_ids(Engine(lm, **limits), asks)


def extended_law(lm, read):
    """Log-weights of tokens and units behind what was read, by hand; and the vectors of units."""
    law, made = lm.checkpoint.lm, lm.artefacts[0]
    # The last one may be a vector, which stands in the place of another root.
    session = law.open_session((*read[:-1], 0))
    asked = session.score_draft(Draft.chain_draft(read[-1]), ScoreRequest(hidden=True))
    scores = run_coroutines([asked])[0]
    logp_V = scores.logprob_row(0)
    state_H = session.normed_states(scores.hidden_NH[-1:])[0].float()
    rows, vectors = [logp_V], []
    for unit in UNITS:
        part = session.embed_tokens(unit)[None].float()
        there = torch.ones(1, len(unit), dtype=torch.bool)
        state = hypernetwork.unit_states(made.sizes, made.tensors, part, there)
        rise = hypernetwork.unit_rises(made.tensors, state, state_H[None])[0, 0]
        rows.append((logp_V[unit[0]] + rise)[None])
        vectors.append(hypernetwork.unit_vectors(made.sizes, made.tensors, part, there)[0])
    session.close()
    return torch.cat(rows), vectors


def test_the_likeliest_token_or_unit_is_written_and_read_as_one_vector(lm):
    (got,) = texts(lm, [ask()])[0]
    read, wrote, passes = list(PROMPT), [], 0
    size = lm.checkpoint.lm.vocab.size
    while len(wrote) < 16:
        weight_C, vectors = extended_law(lm, read)
        place = int(weight_C.argmax())
        unit = (place,) if place < size else UNITS[place - size]
        if place < size:
            read.append(place)
        else:
            read += make_soft_tokens(vectors[place - size][None], size, 64, "a unit")
        wrote += unit
        passes += 1
    assert tuple(wrote[:16]) == got
    assert passes < 16 and any(got[i : i + len(u)] == u for u in UNITS for i in range(len(got))), (
        "some units were written"
    )
    answer = Engine(lm)
    ticket = answer.submit(ask())
    while answer.step():
        pass
    # One pass for each token or unit.
    assert ticket.completion().metrics["target_passes"] == passes


def test_without_units_it_is_greedy_decoding(lm):
    plain = texts(lm, [ask(method="plain", sampling=Sampling(temperature=0.0))])
    assert texts(lm, [ask({"units": 0})]) == plain
    assert texts(lm, [ask()]) != plain
    # The first units alone.
    (one,) = texts(lm, [ask({"units": 1})])[0]
    assert not any(one[i : i + 3] == UNITS[1] for i in range(14))


def test_units_keep_to_the_request_s_rules(lm):
    """A unit with a forbidden token behind its first one is left out, by a ban and by a constraint."""
    for second in (21, 23):
        (got,) = texts(lm, [ask(sampling=Sampling(temperature=0.0, bad_token_ids=(second,)))])[0]
        assert second not in got
        assert any(got[i : i + len(u)] == u for u in UNITS for i in range(16))
    assert {21, 23} & set(texts(lm, [ask()])[0][0])
    words = lm.checkpoint.lm.vocab.words
    letters = words.decode((20, 25))
    (kept,) = texts(lm, [ask(constraint=[letters, words.decode((22, 30))], ignore_eos=False)])[0]
    assert words.decode(kept) in (letters, words.decode((22, 30)))


def test_drawn_answers_are_their_own_in_any_company(lm):
    asks = [ask({"heat": 1.0}, seed=i, n=1 + i % 2) for i in range(4)]
    alone = [texts(lm, [a])[0] for a in asks]
    assert texts(lm, asks) == alone and len({row for rows in alone for row in rows}) == 6
    assert texts(lm, asks, max_positions=7) == alone
    # One candidate is the likeliest, whatever the heat.
    assert texts(lm, [ask({"heat": 1.0, "candidates": 1})]) == texts(lm, [ask()])


def test_choices_are_drawn_from_the_law_over_tokens_and_units(lm):
    weight_C, _ = extended_law(lm, list(PROMPT))
    size = lm.checkpoint.lm.vocab.size
    top = weight_C.topk(4).indices.tolist()
    chance = {x: float(p) for x, p in zip(top, weight_C[top].double().softmax(-1), strict=True)}
    count = dict.fromkeys(top, 0)
    tries = 400
    drawn = texts(
        lm,
        [ask({"heat": 1.0, "candidates": 4}, seed=1, n=tries, max_tokens=3)],
    )[0]
    for row in drawn:
        units = [size + i for i, u in enumerate(UNITS) if row[: len(u)] == u[:3]]
        fit = [x for x in (*units, row[0]) if x in count]
        # What begins as a unit may also be its tokens one by one; the unit is far likelier.
        count[fit[0]] += 1
    for x in top:
        assert abs(count[x] / tries - chance[x]) < 0.1


def test_log_probabilities_are_those_of_the_tokens(lm):
    engine = Engine(lm)
    ticket = engine.submit(ask(logprobs=0))
    while engine.step():
        pass
    (choice,) = ticket.completion().choices
    read = list(PROMPT)
    for note, token in zip(choice.logprobs, choice.token_ids, strict=True):
        want = float(micro.law_at_end(lm.checkpoint.lm, tuple(read))[token])
        assert note.model_logp == pytest.approx(want, abs=1e-4)
        read.append(token)


def test_what_cannot_be_is_refused(lm, tmp_path):
    made = lm.artefacts[0]
    kept = {
        n: x
        for n, x in made.tensors.items()
        if n in made.sizes.encoder.shapes or n in ("into", "out")
    }
    bare = replace(made, sizes=replace(made.sizes, answers=0), tensors=kept)
    with pytest.raises(ValueError, match="needs a hypernetwork with units for answers"):
        plan_request(LoadedModel(lm.checkpoint, lm.draft, (bare,)), ask())
    for units in ([[1, 999999]], [[1, -1]], [[1, -1, 2]]):
        wrong = replace(
            made,
            sizes=replace(made.sizes, answers=1),
            tensors={**made.tensors, "units": pad_units(units, 4)},
        )
        hypernetwork.save(tmp_path, wrong, {})
        with pytest.raises(FileError, match="units must be rows of two ids below"):
            hypernetwork.load(tmp_path)
    hypernetwork.save(tmp_path, made, {})
    assert hypernetwork.load(tmp_path).answer_units == UNITS


# training


def test_texts_are_cut_into_the_longest_known_units():
    rows = [[(1, 2), (3,), (1, 2)], [(4, 5, 6), (4, 5)]]
    assert frequent_units(rows, 2) == ((1, 2), (4, 5, 6))
    known = {(1, 2), (1, 2, 3), (4, 5)}
    assert split_by_longest([1, 2, 3, 1, 2, 4, 5, 6], known) == [(1, 2, 3), (1, 2), (4, 5), (6,)]
    assert split_by_longest([7, 8], ()) == [(7,), (8,)]


def small():
    net = TrainableLlama(LlamaShape(40, 32, 2, 2, 2, 64, 64), seed=0)
    sizes = HypernetworkSizes(4, BidirectionalEncoder(16, 1, 2, 4), 32, 3)
    network = HypernetworkModel(net, sizes, 0)
    with torch.no_grad():
        for name in ("out", "foretells", "rise"):
            shape = network.kept[name].shape
            network.kept[name].copy_(
                torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.2
            )
    return network


def test_units_are_learned_among_all_tokens_and_units():
    net, row = small(), [(3,), (4, 5), (6,), (7, 8, 9)]
    beside = [(4, 10), (7, 8, 9)]
    got = training.next_unit_nats(net, 0, [row], beside)
    states = net.unit_states(0, [row])[0, :-1]
    units = [(4, 5), (7, 8, 9), (4, 10)]
    logits = net.model.token_logits(states)
    rises = net.unit_rises(units, states)
    whole = torch.cat([logits, logits[:, [4, 7, 4]] + rises], 1)
    want = F.cross_entropy(whole, torch.tensor([3, 40, 6, 41]), reduction="none")
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    got.mean().backward()
    assert all(net.kept[n].grad.any() for n in ("out", "foretells", "rise", "lift"))
    # Before anything is learned a unit is so much rarer than its first token.
    fresh = HypernetworkModel(net.model, net.sizes, 0)
    assert torch.equal(fresh.unit_rises(units, states), torch.full((4, 3), hypernetwork.LIFT))


def test_it_is_trained_saved_and_measured(tmp_path):
    spec = training.HypernetworkSpec(
        str(tmp_path / "h"),
        "zoo:tiny-draft",
        "sample",
        texts=8,
        length=24,
        rows=4,
        steps=3,
        width=16,
        layers=1,
        tries=2,
        answers=6,
    )
    told = training.train_hypernetwork(spec)
    made = hypernetwork.load(tmp_path / "h")
    assert 0 < len(made.answer_units) <= 6 and all(len(u) > 1 for u in made.answer_units)
    assert told["units_a_token"] <= 1.0 and told["answer_nats"] > 0 and told["token_nats"] > 0
    assert not torch.equal(made.tensors["lift"], torch.full((1,), hypernetwork.LIFT))
