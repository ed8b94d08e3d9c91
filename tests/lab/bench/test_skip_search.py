"""The search for attentions and MLPs that can be left out."""

from itertools import combinations

import pytest
import torch
from studies.skip_search import Price, search
from studies.surrogate import expected_gain, minimise

from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import OrderTwoNetwork, toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.depth import parse_layer_halves
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw

PRICE = Price(0.04, 0.08)


def model(idle):
    """A network whose halves in `idle` add nothing."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=200,
        initializer_range=0.3,
    )
    weights = LlamaForCausalLM(config).state_dict()
    for h in idle:
        weights[
            f"model.layers.{h // 2}.{('self_attn.o_proj', 'mlp.down_proj')[h % 2]}.weight"
        ].zero_()
    net = LlamaTransformer.build(config.to_dict(), weights, dtype="float64")
    return ShapedTarget(CausalLaw(net, TokenVocabulary(50, frozenset())), GreedyRule()), net


@pytest.mark.parametrize("skip", ["2a,4m,5", "1m,3a,4a"])
def test_idle_halves_are_found(skip):
    target, net = model(parse_layer_halves(skip, 7))
    feeds, said, real = [], [], net.forward

    def forward(queries):
        feeds.extend(q for q in queries if q.without or q.layers is not None)
        return real(queries)

    net.forward = forward
    found = search(target, [(3, 8, 20), (7, 9)], PRICE, tokens=12, tries=70, watch=said.append)
    assert (
        parse_layer_halves(found.skip, 7) == parse_layer_halves(skip, 7)
        and found.agreement == 1.0
        and found.length == 11
    )
    assert found.price == pytest.approx((1 + 11 * PRICE.draft(parse_layer_halves(skip, 7))) / 12)
    assert len(found.tried) == len(said) == 70 and min(p for _, p in found.tried) == found.price
    assert all(
        0 not in (out := parse_layer_halves(s, 7)) and 13 not in out and 1 <= len(out) <= 5
        for s, _ in found.tried
    )
    assert len(feeds) == 2 * 70 and {len(q) for q in feeds} <= {12, 14}, (
        "a set is one query a prompt"
    )
    again = search(target, [(3, 8, 20), (7, 9)], PRICE, tokens=12, tries=25, least=4, most=4)
    assert all(len(parse_layer_halves(s, 7)) == 4 for s, _ in again.tried)
    assert (
        search(target, [(3, 8, 20), (7, 9)], PRICE, tokens=12, tries=25, least=4, most=4) == again
    )


def test_prices():
    hits = [[True, True, False, True, True], [False, True]]
    assert PRICE.draft(frozenset()) == 1.0 and PRICE.draft({4, 5, 8}) == pytest.approx(1 - 0.16)
    for length, rounds, drafts in ((1, 5, 4), (2, 4, 4), (9, 4, 6)):
        for row in (0.0, 0.3):
            price = Price(0.04, 0.08, row)
            assert price.token({4}, hits, length) == pytest.approx(
                (rounds + drafts * (0.96 + row)) / 7
            ), length
    net = model(())[1]
    attention, mlp, head = 32 * 8 * 2 * (4 + 2) + 2 * 2 * 8 * 10, 3 * 32 * 48, 50 * 32
    assert Price.by_size(net, 10) == Price(
        *(x / (7 * (attention + mlp) + head) for x in (attention, mlp))
    )
    with pytest.raises(ValueError, match="attention, mlp and row are 0, 1 and 0"):
        Price(0, 1, 0)


def test_the_surrogate_finds_what_few_tries_at_random_do_not():
    """Values that are parts of members and of two pairs; 924 sets, 40 tries."""
    part = [0.1 * (i * 7 % 12) for i in range(12)]

    def f(m):
        calls.append(m)
        return sum(part[i] for i in m) - 0.8 * ({9, 11} <= m) - 0.5 * ({4, 6} <= m)

    calls, every = [], [frozenset(c) for c in combinations(range(12), 6)]
    best = min(map(f, every))
    for seed in range(3):
        calls.clear()
        known = minimise(f, range(12), least=6, most=6, tries=40, seed=seed)
        assert (
            list(known) == calls
            and len(set(calls)) == 40
            and min(known.values()) == pytest.approx(best)
        )
    assert len(minimise(f, range(4), least=1, most=2, tries=60)) == 10, "there are no others"
    known = {m: f(m) for m in every[::40]}
    assert (expected_gain(known, every, range(12), best) >= 0).all()
    assert (
        expected_gain(
            known, [min(known, key=known.get), max(known, key=known.get)], range(12), best
        ).argmax()
        == 0
    )
    near = minimise(f, range(12), least=2, most=6, tries=30, given={frozenset(): 0.0})
    assert frozenset() not in near and min(near.values()) < 0.2, (
        "what is given counts for the surrogate, and is no answer"
    )


@pytest.mark.parametrize(
    "given, words",
    [
        ({"prompts": []}, "prompts, tokens, longest and tries are 0, 32, 12 and 100"),
        ({"tokens": 1}, "are 1, 1, 12"),
        ({"least": 0}, "least and most are 0 and 1: they must lie in 1 to 2"),
        ({"least": 2, "most": 1}, "are 2 and 1"),
        ({"most": 3}, "are 1 and 3"),
    ],
)
def test_bad_input(given, words):
    with pytest.raises(ValueError, match=words):
        search(toy_law(1), **{"prompts": [(0, 1)], "price": PRICE, **given})
    with pytest.raises(ValueError, match="at least 3 layers"):
        search(CausalLaw(OrderTwoNetwork(1, tree=False), toy_law(1).vocab), [(0, 1)], PRICE)
