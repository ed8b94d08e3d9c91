"""Superlinear attention against the published steps written out, one row at a time; its reach, its cost, its passes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from polydec.base.errors import FileError, MissingError, RequestError
from polydec.core.types import RowDetail, ScoreRequest
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.shape import LlamaShape
from polydec.methods.presses.window import build as window_press
from polydec.models.formats.superlinear import SuperlinearRule
from polydec.models.native.network import CpuStep
from polydec.models.nets.masks import NEG_INF
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.superlinear import SearchPlaces, choose_spans, superlinear_mixture
from polydec.models.nets.transformer import LlamaTransformer

ROW = ScoreRequest()
RULES = {
    "published": SuperlinearRule(),
    "window": SuperlinearRule(2, near=1),
    "wide": SuperlinearRule(2, near=3, ahead=0.5, search_scale=0.3),
    "steeper": SuperlinearRule(4, search_power=0.55),
    "longer": SuperlinearRule(2, near=2, span_power=0.6),
}
SHAPE = LlamaShape(61, width=32, layers=2, heads=4, kv_heads=2, inner=48, context=128)
TEXT = torch.randint(0, 61, (70,), generator=torch.Generator().manual_seed(3)).tolist()


def seen_spans(rule, t, search):
    """The published steps 1 to 4 and 6: of the best anchors of a row at t the positions and the gate; window positions."""
    stripes = [math.floor(i ** (1 / rule.search_power) + 1e-9) for i in range(1, t + 3)]
    anchors = [t - r + 1 for r in stripes[rule.near :] if r <= t + 1]
    width = math.floor((rule.near + 1) ** (1 / rule.search_power) + 1e-9) - 1
    window = list(range(max(0, t - width + 1), t + 1)) if width else []
    best = sorted(anchors, key=lambda a: -search[a])[: rule.spans]
    behind = math.ceil(rule.behind * (t + 1) ** rule.span_power)
    ahead = math.ceil(rule.ahead * (t + 1) ** rule.span_power)
    spans = [
        [j for j in range(max(0, a - behind), min(a + ahead, t) + 1) if j not in window]
        for a in best
    ]
    gate = np.exp([search[a] - max(search[b] for b in best) for a in best])
    if not best:
        return [[]], [1.0], window
    return spans, gate / gate.sum(), window


def by_hand(rule, query, search, keys, values):
    """What one head's queries gather, row by row."""
    rows = []
    for t in range(len(query)):
        spans, gate, window = seen_spans(rule, t, (keys @ search[t]).tolist())
        row = torch.zeros(values.shape[1], dtype=values.dtype)
        for span, g in zip(spans, gate):
            at = [*span, *window]
            row = row + g * torch.softmax(keys[at] @ query[t], 0) @ values[at]
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("name", RULES)
def test_masks_are_the_published_steps_row_by_row(name):
    parts = torch.randn(4, 90, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    query, search, keys, values = parts
    torch.testing.assert_close(
        superlinear_mixture(RULES[name], query, search, keys, values),
        by_hand(RULES[name], query, search, keys, values),
        rtol=0,
        atol=1e-9,
    )


def networks(rule):
    """A network in training with sharp random weights, and the one that decodes it, both in float64."""
    trained = TrainableLlama(replace(SHAPE, superlinear=rule), seed=5).double()
    with torch.no_grad():
        for name, p in trained.named_parameters():
            if p.ndim > 1:
                p.mul_(20.0 if "embed" in name else 1.5)
    trained.model.cos, trained.model.sin = trained.model.cos.double(), trained.model.sin.double()
    return trained.eval(), LlamaTransformer.build(
        trained.s.config_content(), trained.state_dict(), dtype="float64"
    )


def read(net, cache, tokens):
    """The logits of these tokens, committed behind those of the cache."""
    first = cache.stage_slots(range(-1, len(tokens) - 1))
    cache.commit_path(range(len(tokens)))
    return net.forward([NetworkQuery(cache, first, tuple(tokens), range(len(tokens)), ROW)])[
        0
    ].logits_RV


@pytest.mark.parametrize("name", RULES)
def test_a_network_in_training_and_one_that_decodes_agree_in_any_chunks(name):
    trained, net = networks(RULES[name])
    with torch.no_grad():
        wanted = trained(torch.tensor([TEXT]))[0]
    for cuts in ([70], [33, 1, 36], [1] * 70):
        cache, at, got = net.new_cache(), 0, []
        for n in cuts:
            got.append(read(net, cache, TEXT[at : at + n]))
            at += n
        torch.testing.assert_close(torch.cat(got), wanted, rtol=0, atol=1e-5)


def test_branches_of_a_tree_read_their_own_paths():
    _, net = networks(RULES["window"])
    cache = net.new_cache()
    read(net, cache, TEXT[:40])
    tokens, parent = (7, 8, 9, 10, 11), (-1, 0, 0, 2, 1)
    first = cache.stage_slots(parent)
    got = net.forward([NetworkQuery(cache, first, tokens, range(5), ROW)])[0].logits_RV
    for path in ((0, 1, 4), (0, 2, 3)):
        alone = read(net, net.new_cache(), [*TEXT[:40], *(tokens[i] for i in path)])
        torch.testing.assert_close(got[list(path)], alone[40:], rtol=0, atol=1e-9)


def test_a_fork_reads_what_it_shares():
    _, net = networks(RULES["published"])
    cache = net.new_cache()
    read(net, cache, TEXT[:40])
    fork = cache.fork()
    read(net, cache, TEXT[50:60])
    alone = read(net, net.new_cache(), TEXT[:50])
    torch.testing.assert_close(read(net, fork, TEXT[40:50]), alone[40:], rtol=0, atol=1e-9)


def test_a_window_over_all_is_dense_attention():
    trained, net = networks(SuperlinearRule(near=12))
    dense = TrainableLlama(SHAPE).double()
    dense.load_state_dict(trained.state_dict(), strict=False)
    dense.model.cos, dense.model.sin = trained.model.cos, trained.model.sin
    with torch.no_grad():
        wanted = dense(torch.tensor([TEXT]))[0]
        torch.testing.assert_close(trained(torch.tensor([TEXT]))[0], wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(read(net, net.new_cache(), TEXT), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "rule", [SuperlinearRule(), SuperlinearRule(search_power=0.55), SuperlinearRule(near=4)]
)
def test_every_position_can_be_read(rule):
    rule.require_coverage(3000)
    for t in range(0, 3000, 7):
        places = SearchPlaces.of_positions(rule, torch.tensor([t]))
        seen = torch.zeros(t + 1, dtype=torch.bool)
        seen[places.window_T[0] :] = True
        for a in places.anchor_TA[0].tolist():
            seen[max(0, a - int(places.behind_T[0])) : a + 1] = True
        assert seen.all(), t


@pytest.mark.parametrize(
    "rule",
    [
        SuperlinearRule(behind=1.5),
        SuperlinearRule(span_power=0.4),
        SuperlinearRule(search_power=0.4),
    ],
)
def test_spans_with_gaps_between_them_are_refused(rule):
    with pytest.raises(RequestError, match="superlinear leaves gaps"):
        rule.require_coverage(1000)
    with pytest.raises(RequestError, match="superlinear leaves gaps"):
        replace(SHAPE, context=1000, superlinear=rule)


def test_perfect_squares_are_whole_distances():
    distance = SuperlinearRule().stripe_distances(10**8)
    assert distance.tolist() == [i * i for i in range(1, 10**4 + 1)]
    assert SuperlinearRule(near=3).window_length == 15
    assert SuperlinearRule().window_length == 0


def test_keys_of_a_token_grow_with_the_root_of_the_text():
    length = 2 ** np.arange(10, 21)
    read = [SuperlinearRule(near=1).keys_read(int(n) - 1) for n in length]
    slope = np.polyfit(np.log(length), np.log(read), 1)[0]
    assert abs(slope - 0.5) < 0.05
    assert SuperlinearRule().keys_read(9_999) == 100 + 3 * 201


def test_a_token_touches_no_key_that_it_does_not_read():
    _, net = networks(SuperlinearRule(1, near=1))
    cache = net.new_cache()
    text = TEXT * 2
    read(net, cache, text[:120])
    twin = cache.fork()
    clean = read(net, twin, text[120:121])
    kept = net.new_cache()
    read(net, kept, text[:120])
    # The values of what no anchor of the row at 120 reaches with one span are of no account.
    rule, layers = net.config.superlinear, kept.kv.shape[0]
    lost = 0
    for j in range(120):
        old = kept.kv[:, 1, :, j].clone()
        kept.kv[:, 1, :, j] = math.nan
        spoilt = kept.fork()
        lost += bool(read(net, spoilt, text[120:121]).isnan().any())
        kept.kv[:, 1, :, j] = old
    assert clean.isfinite().all()
    # Of each layer and head a span of 23 keys, and a window of 3: some 120 keys are left out.
    assert 0 < lost < 120, (lost, layers, rule)


def test_anchors_alike_count_alike():
    rule = SuperlinearRule(5)
    places = SearchPlaces.of_positions(rule, torch.tensor([24]))
    spans = choose_spans(rule, places, torch.zeros(1, 5))
    torch.testing.assert_close(spans.gate, torch.full((1, 5), 0.2))
    assert sorted(spans.last[0].tolist()) == [0, 9, 16, 21, 24]


def test_slots_without_an_anchor_count_nothing():
    rule = SuperlinearRule(3)
    places = SearchPlaces.of_positions(rule, torch.tensor([0, 3]))
    spans = choose_spans(rule, places, torch.tensor([[1.0, NEG_INF], [1.0, 2.0]]))
    assert spans.gate[0].tolist() == [1.0, 0.0, 0.0]
    assert (spans.last < spans.first).tolist() == [[False, True, True], [False, False, True]]


def test_the_search_learns_through_the_gate():
    trained, _ = networks(RULES["published"])
    trained(torch.tensor([TEXT])).square().mean().backward()
    for layer in trained.model.layers:
        assert layer.self_attn.search_proj.weight.grad.abs().max() > 0


def test_what_reads_other_keys_is_refused():
    trained, net = networks(RULES["window"])
    with pytest.raises(RequestError, match="parts of the text"):
        net.new_cache(window_press())
    with pytest.raises(RequestError, match="searches its own"):
        net.padded_model()
    assert "search by their positions" in net.still
    with pytest.raises(MissingError, match="no superlinear attention"):
        CpuStep.build(trained.s.config_content(), trained.float().state_dict())
    with pytest.raises(RequestError, match="plain rows of text"):
        trained(torch.tensor([TEXT]), see_TT=torch.ones(70, 70, dtype=torch.bool))


@pytest.mark.parametrize(
    "change", [{"spans": 0}, {"near": -1}, {"search_power": 2.0}, {"behind": "x"}]
)
def test_fields_of_a_config_are_checked(change):
    trained, _ = networks(RULES["published"])
    config = trained.s.config_content()
    with pytest.raises(RequestError, match=next(iter(change))):
        LlamaTransformer.build(
            {**config, "superlinear": {**config["superlinear"], **change}}, trained.state_dict()
        )


def test_a_model_without_its_search_is_refused():
    trained, _ = networks(RULES["published"])
    weights = {k: v for k, v in trained.state_dict().items() if "search_proj" not in k}
    with pytest.raises(FileError, match="search_proj"):
        LlamaTransformer.build(trained.s.config_content(), weights)


def test_states_may_go_unread():
    _, net = networks(RULES["published"])
    cache = net.new_cache()
    first = cache.stage_slots(range(-1, 9))
    cache.commit_path(range(10))
    answer = net.forward(
        [NetworkQuery(cache, first, tuple(TEXT[:10]), [9], ScoreRequest(law=RowDetail.NOTHING))]
    )
    assert answer[0].logits_RV is None
