"""Any mix of methods in one batch: every request says what it says alone."""
import random

import pytest
import torch

import micro
from polydec import api, registry
from polydec.core.costs import Costs
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.shapers.greedy import Greedy
from polydec.shapers.temperature import Temperature
from polydec.targets.shaped import Shaped
from polydec.testing.examples import decoder
from polydec.testing.toy import toy

PROMPTS = ((0, 1, 0, 2, 0, 1), (3,), (4, 4, 1), (2, 1, 3, 0, 5, 1, 3, 0))


def mixed(law, small, names, seed, most=24):
    jobs = []
    for i, name in enumerate(names):
        jobs.append((decoder(name, law, small), Request(PROMPTS[(seed + i) % 4], most - i, seed=seed, choice=i)))
    alone = [run([d.run(r)])[0].token_ids for d, r in jobs]
    together = [r.token_ids for r in run([d.run(r) for d, r in jobs])]
    return alone, together


@pytest.mark.parametrize("shaper", [Greedy(), Temperature(0.7)], ids=["greedy", "T = 0.7"])
@pytest.mark.parametrize("seed", range(20))
def test_eight_methods_drawn_at_random(seed, shaper):
    names = random.Random(seed).sample(sorted(registry.recipes()), 8)
    law, small = (Shaped(toy(seed + s, 6, cost=c), shaper) for s, c in ((7, 1.0), (8, 0.1)))
    alone, together = mixed(law, small, names, seed)
    assert together == alone


def test_every_method_at_once():
    law, small = (Shaped(toy(s, 6, cost=c), Temperature(0.7)) for s, c in ((7, 1.0), (8, 0.1)))
    alone, together = mixed(law, small, sorted(registry.recipes()), 0, 64)
    assert together == alone and len(set(alone)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_on_a_network(tmp_path, dtype, temperature):
    """Twenty batches of eight on a random Llama, in fp32 and on the path that `auto` takes."""
    torch.set_num_threads(1)
    lm = api.load(str(micro.write(tmp_path / "a")), draft=str(micro.write(tmp_path / "b", seed=1)), dtype=dtype)
    vars(lm)["costs"] = Costs()                   # instead of measuring
    names = [n for n in sorted(registry.recipes()) if "head" not in registry.get(n).CARD.needs]
    for seed in range(20):
        drawn = random.Random(seed).sample(names, 8)
        def submit(engine, i, seed=seed, drawn=drawn):
            return engine.submit(f"The grey fox {i} the fox and the grey", method=drawn[i], seed=seed, max_tokens=20,
                                 sampling=lm.sampling(temperature=temperature))
        alone = []
        for i in range(8):
            engine = api.Engine(lm)
            alone.append(engine.run([submit(engine, i)])[0].token_ids)
        engine = api.Engine(lm)
        together = [c.token_ids for c in engine.run([submit(engine, i) for i in range(8)])]
        assert together == alone, drawn
