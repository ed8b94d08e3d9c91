"""Any mix of methods in one batch: every request says what it says alone."""

import random
from dataclasses import replace

import pytest
import torch

import micro
from polydec import api
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.examples import example_artefacts, example_decoder
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import IMAGE, MASKED_DRAFT, PROMPT_IMAGE

PROMPTS = ((0, 1, 0, 2, 0, 1), (3,), (4, 4, 1), (2, 1, 3, 0, 5, 1, 3, 0))


def methods_of_texts():
    """Methods whose prompts need no image, by name."""
    names = sorted(registry.of_family("ar"))
    return [n for n in names if PROMPT_IMAGE not in registry.get_recipe_module(n).CARD.needs]


def mixed(law, small, names, seed, most=24):
    jobs = []
    for i, name in enumerate(names):
        choice = (
            0 if registry.get_recipe_module(name).CARD.kind == "search" else i
        )  # of a search it is a rank, which has an end
        request = Request(PROMPTS[(seed + i) % 4], most - i % (most - 4), seed=seed, choice=choice)
        jobs.append((example_decoder(name, law, small), request))
    alone = [run_coroutines([answer_one(d, r)])[0].token_ids for d, r in jobs]
    together = [r.token_ids for r in run_coroutines([answer_one(d, r) for d, r in jobs])]
    return alone, together


@pytest.mark.parametrize("shaper", [GreedyRule(), TemperatureRule(0.7)], ids=["greedy", "T = 0.7"])
@pytest.mark.parametrize("seed", range(20))
def test_eight_methods_drawn_at_random(seed, shaper):
    names = random.Random(seed).sample(methods_of_texts(), 8)
    law, small = (
        ShapedTarget(toy_law(seed + s, 6, cost=c), shaper) for s, c in ((7, 1.0), (8, 0.1))
    )
    alone, together = mixed(law, small, names, seed)
    assert together == alone


def test_every_method_at_once():
    law, small = (
        ShapedTarget(toy_law(s, 6, cost=c), TemperatureRule(0.7)) for s, c in ((7, 1.0), (8, 0.1))
    )
    alone, together = mixed(law, small, methods_of_texts(), 0, 64)
    assert together == alone and len(set(alone)) > 10


def on_a_network(tmp_path, dtype, temperature, draws):
    """Batches of eight methods drawn at random, on a random Llama."""
    torch.set_num_threads(1)
    lm = api.load(
        str(micro.write(tmp_path / "a")),
        draft=str(micro.write(tmp_path / "b", seed=1)),
        dtype=dtype,
    )
    lm = replace(
        lm, artefacts=example_artefacts(lm.checkpoint.lm.vocab, lm.draft.lm.network.config.width)
    )
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    names = registry.of_family("ar")
    needs = {n: registry.get_recipe_module(n).CARD.needs for n in names}
    fit = sorted(n for n in names if not {MASKED_DRAFT, IMAGE, PROMPT_IMAGE} & {*needs[n]})
    for seed in draws:
        drawn = random.Random(seed).sample(fit, 8)

        def submit(engine, i, seed=seed, drawn=drawn):
            return engine.submit(
                f"The grey fox {i} the fox and the grey",
                method=drawn[i],
                seed=seed,
                max_tokens=20,
                sampling=lm.sampling_with(temperature=temperature),
            )

        alone = []
        for i in range(8):
            engine = api.Engine(lm)
            alone.append(engine.run([submit(engine, i)])[0].token_ids)
        engine = api.Engine(lm)
        together = [c.token_ids for c in engine.run([submit(engine, i) for i in range(8)])]
        assert together == alone, drawn


def test_on_a_network_three_times(tmp_path):
    on_a_network(tmp_path, "auto", 0.7, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_on_a_network(tmp_path, dtype, temperature):
    """Twenty of them, in fp32 and on the path that `auto` takes."""
    on_a_network(tmp_path, dtype, temperature, range(20))
