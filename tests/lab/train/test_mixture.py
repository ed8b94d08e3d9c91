"""A trained mixture of experts: what it says while it learns is what decodes, and its balance is the published one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from polydec.core.types import ScoreRequest
from polydec.lab.train.network import LlamaShape, MixtralMoeBlock, TrainableLlama, load_balance_loss
from polydec.lab.train.specs.reasoner import ReasonerSpec
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

SHAPE = LlamaShape(40, width=32, layers=2, heads=2, kv_heads=1, inner=24, context=64, experts=5)


def test_what_is_trained_is_what_decodes():
    network, tokens = TrainableLlama(SHAPE, seed=3), tuple(range(2, 20))
    config = SHAPE.config_content()
    assert config["model_type"] == "mixtral" and config["num_local_experts"] == 5
    decoding = LlamaTransformer.build(config, dict(network.state_dict()), dtype="float64")
    cache = decoding.new_cache()
    cache.stage_slots(range(-1, len(tokens) - 1))
    query = NetworkQuery(cache, 0, tokens, range(len(tokens)), ScoreRequest())
    decoded = decoding.forward([query])[0].logits_RV
    with torch.no_grad():
        trained = network(torch.tensor([tokens]))[0]
    assert torch.allclose(decoded.float(), trained, atol=1e-5)


def test_a_row_is_the_sum_of_its_two_likeliest_experts():
    part, x_NH = MixtralMoeBlock(SHAPE), torch.randn(7, 32)
    with torch.no_grad():
        chance_NE = torch.softmax(part.gate(x_NH), -1)
        for row, chance_E, got in zip(x_NH, chance_NE, part(x_NH), strict=True):
            best = sorted(range(5), key=lambda e: -float(chance_E[e]))[:2]
            total = sum(float(chance_E[e]) for e in best)
            want = sum(
                float(chance_E[e])
                / total
                * part.experts[e].w2(F.silu(part.experts[e].w1(row)) * part.experts[e].w3(row))
                for e in best
            )
            assert torch.allclose(got, want, atol=1e-6)


def test_the_balance_is_one_where_all_are_used_alike_and_grows_where_they_are_not():
    torch.manual_seed(0)
    part, x_NH = MixtralMoeBlock(SHAPE), torch.randn(400, 32)
    with torch.no_grad():
        part.gate.weight.zero_()
        part.gate.weight[0, 0] = 1e-6
        part(x_NH)
        assert float(part.balance) == pytest.approx(
            1.0, abs=1e-4
        )  # equal chances, whoever is taken
        part.gate.weight.normal_(std=1.0)
        part(x_NH)
        spread = float(part.balance)
        part(torch.ones(400, 32) * 9)  # all rows go the same way
        assert 0.9 < spread < 1.5 < float(part.balance) <= 2.51
    network = TrainableLlama(SHAPE, seed=1)
    network(torch.arange(12)[None])
    found = [p.balance for p in network.modules() if isinstance(p, MixtralMoeBlock)]
    assert torch.allclose(load_balance_loss(network), sum(found) / len(found))
    load_balance_loss(network).backward()
    gate = network.get_submodule("model.layers.0.block_sparse_moe.gate")
    assert float(gate.weight.grad.abs().sum()) > 0
    dense = TrainableLlama(replace(SHAPE, experts=0))
    assert float(load_balance_loss(dense)) == 1.0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="experts is 1: it must be 0 or at least 2"):
        replace(SHAPE, experts=1)
    for wrong in ({"experts": 1}, {"experts": 4, "start": "zoo:reasoner"}):
        with pytest.raises(ValueError, match="experts is"):
            ReasonerSpec("out", **wrong)
