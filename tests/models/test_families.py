"""Every family next to transformers, from safetensors and GGUF, by torch and by the compiled step; trees as single steps."""
from __future__ import annotations

import pytest
import torch
from family_checkpoints import FAMILIES, laws_of, model_of, write

from polydec.core.types import Want
from polydec.models.cpu.library import available
from polydec.models.cpu.network import CpuStep
from polydec.models.gguf import GGUF
from polydec.models.lm import Query
from polydec.models.transformer import Transformer

ROW = Want()
TREE = (-1, 0, 0, 1, 1, 2, 5, 3, 0)               # several branches, depth 3
TEXT = torch.randint(0, 97, (48,), generator=torch.Generator().manual_seed(5)).tolist()
native = pytest.mark.skipif(not available()[0], reason=available()[1])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """Name, transformers' model, its logits of TEXT, and a GGUF file of it."""
    model = model_of(request.param)
    path = tmp_path_factory.mktemp("families") / "m.gguf"
    return request.param, model, laws_of(model, request.param, TEXT), write(path, model)


def feed(net, cache, tokens):
    first = cache.stage(range(-1, len(tokens) - 1))
    cache.commit(range(len(tokens)))
    return net.forward([Query(cache, first, tuple(tokens), range(len(tokens)), ROW)])[0].logits_RV


def tree(net, context):
    """Logits of the last token of a text and of a tree behind it, scored in one pass."""
    cache = net.new_cache()
    feed(net, cache, TEXT[:context - 1])
    first = cache.stage([-1])
    cache.commit([0])
    cache.stage(TREE)
    query = Query(cache, first, tuple(TEXT[context - 1:context + len(TREE)]), range(1 + len(TREE)), ROW)
    return net.forward([query])[0].logits_RV


def steps(net, context):
    """The same, each node by a text of its own, token by token."""
    out = []
    for i in range(-1, len(TREE)):
        path = []
        while i >= 0:
            path.append(TEXT[context + i])
            i = TREE[i]
        cache = net.new_cache()
        feed(net, cache, TEXT[:context])
        for x in [*TEXT[context - 1:context], *path[::-1]][1:] or ():
            rows = feed(net, cache, [x])
        out.append(rows[-1] if path else feed(net, net.new_cache(), TEXT[:context])[-1])
    return torch.stack(out)


def near(got, want, tolerance=1e-5):
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=0.0)


@torch.inference_mode()
def test_torch_equals_transformers(family):
    _, model, want, path = family
    assert want.std() > 0.3
    net = Transformer.build(model.config.to_dict(), model.state_dict(), dtype="float32")
    near(feed(net, net.new_cache(), TEXT), want)
    file = GGUF(path)
    near(feed(net := Transformer.build(file.config, file, dtype="float32"), net.new_cache(), TEXT), want)
    near(tree(net, 26), steps(net, 26))


@native
@torch.inference_mode()
def test_the_compiled_step_equals_transformers_and_trees_its_steps_to_the_bit(family):
    _, model, want, path = family
    net = CpuStep.build(model.config.to_dict(), model.state_dict(), threads=2)
    near(feed(net, net.new_cache(), TEXT), want)
    file = GGUF(path)
    net = CpuStep.build(file.config, file, threads=1)
    whole = feed(net, net.new_cache(), TEXT)
    near(whole, want)
    cache = net.new_cache()
    assert torch.equal(torch.cat([feed(net, cache, [x]) for x in TEXT]), whole)
    assert torch.equal(tree(net, 26), steps(net, 26))
    portable = CpuStep.build(file.config, file, threads=2, isa="portable")
    assert torch.equal(feed(portable, portable.new_cache(), TEXT[:20]), whole[:20])
