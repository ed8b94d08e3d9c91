"""Different prompts give different texts, with every method and cache that decodes the embedded masked-diffusion models."""

import json
import shutil

import pytest
import torch

from polydec import Engine, load
from polydec.lab.train.tasks import draw_task
from polydec.methods.registry import registry
from polydec.methods.registry.kit import DRAFT
from polydec.models.formats import zoo
from polydec.models.learned.kinds import filter as filters
from polydec.models.learned.kinds import joint

MODELS = [
    name for name in ("zoo:diffusion", "zoo:block-diffusion") if name in zoo.zoo_model_names()
]
CACHED = [
    (name, cache)
    for name in registry.of_family("diffusion")
    for cache in (
        (0, 1, 2)
        if "cache" in {o.name for o in registry.method_options(name) if o.type is int}
        else (None,)
    )
]


def extras(lm, tmp_path):
    """A filter and a joint sampler's layer that were not trained: what they choose may be wrong, never the same for all."""
    width = lm.network.config.width
    one = joint.new_joint_layer(width, 4, width, 1e4, lm.checkpoint.lm.vocab, 0)
    joint.save(tmp_path / "joint", one, {})
    filters.save(tmp_path / "filter", filters.new_confidence_filter(13, 13, 0), {})
    return str(tmp_path / "joint"), str(tmp_path / "filter")


def autoregressive(model, path):
    """The same weights, run causally: as a guide or a judge it says nothing of use, but it reads the same tokens."""
    shutil.copytree(zoo.zoo_model_path(model), path, ignore=shutil.ignore_patterns("README.md"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if not k.startswith("polydec_")})
    )
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method, cache", CACHED)
def test_fifty_prompts(model, method, cache, tmp_path):
    torch.set_num_threads(1)
    lm = load(model, threads=1)
    needs = registry.get_recipe_module(method).CARD.needs
    if DRAFT in needs:
        lm = load(model, threads=1, draft=autoregressive(model, tmp_path / "ar"))
    elif needs:
        lm = load(model, threads=1, trained=extras(lm, tmp_path))
    if not registry.can_use_method(method, lm.recipe_kit()):
        pytest.skip("it needs another kind of model")
    tasks = [draw_task("slots" if i % 2 else "copy", 99, i) for i in range(50)]
    assert len({t.question for t in tasks}) == 50
    engine = Engine(lm)
    options = {} if cache is None else {"cache": cache}
    done = engine.run(
        [engine.submit(t.question, method=method, options=options, max_tokens=13) for t in tasks]
    )
    assert len({d.text for d in done}) >= 45
