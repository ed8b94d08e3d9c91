"""The cache's verbs over a real network: whatever was staged, committed, forked and cut, it is what a fresh prefill gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from polydec.core.types import ScoreRequest
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

ROW = ScoreRequest()


def network(seed=0, dtype="float32", **more):
    torch.manual_seed(seed)
    config = LlamaConfig(
        **{
            "vocab_size": 50,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "max_position_embeddings": 600,
            "initializer_range": 0.2,
            **more,
        }
    )
    return LlamaTransformer.build(
        config.to_dict(), LlamaForCausalLM(config).state_dict(), dtype=dtype
    )


NET = network()


def prefilled(tokens):
    cache = NET.new_cache()
    if tokens:
        append(cache, tokens)
    return cache


def append(cache, tokens):
    first = cache.stage_slots(range(-1, len(tokens) - 1))
    cache.commit_path(range(len(tokens)))
    return NET.forward([NetworkQuery(cache, first, tuple(tokens), range(len(tokens)), ROW)])[
        0
    ].logits_RV


def stage(cache, tokens, parent):
    first = cache.stage_slots(parent)
    return NET.forward([NetworkQuery(cache, first, tuple(tokens), range(len(tokens)), ROW)])[
        0
    ].logits_RV


def same(a, b, tolerance=1e-5):
    """Equal contents, compared through the entries and through the next answer."""
    assert a.length == b.length
    torch.testing.assert_close(
        a.all_entries()[..., : a.length, :],
        b.all_entries()[..., : b.length, :],
        atol=tolerance,
        rtol=0.0,
    )
    x, y = a.fork(), b.fork()
    x_V, y_V = (stage(c, [7], [-1]).log_softmax(-1) for c in (x, y))
    torch.testing.assert_close(x_V, y_V, atol=tolerance, rtol=0.0)


@st.composite
def trees(draw, most=9):
    n = draw(st.integers(1, most))
    parent = [-1, *(draw(st.integers(-1, i - 1)) for i in range(1, n))]
    tokens = draw(st.lists(st.integers(0, 49), min_size=n, max_size=n))
    path, at = [], draw(st.integers(-1, n - 1))
    while at >= 0:
        path.append(at)
        at = parent[at]
    return tokens, parent, path[::-1]


texts = st.lists(st.integers(0, 49), max_size=20)


@settings(max_examples=40)
@given(texts, trees(), trees())
def test_commit_of_a_path_equals_a_fresh_prefill(text, first, second):
    cache, done = prefilled(text), list(text)
    for tokens, parent, path in (first, second):
        stage(cache, tokens, parent)
        cache.commit_path(path)
        done += [tokens[i] for i in path]
        same(cache, prefilled(done))


@settings(max_examples=25)
@given(texts, trees(), st.booleans(), st.booleans())
def test_a_fork_is_a_copy_in_both_directions(text, tree, staged, twin_first):
    tokens, parent, path = tree
    cache = prefilled(text)
    if staged:
        stage(cache, tokens, parent)
    twin = cache.fork()
    one, other = (twin, cache) if twin_first else (cache, twin)
    if not staged:
        stage(one, tokens, parent)
    one.commit_path(path)
    append(one, [1, 2, 3])
    other.commit_path(path if staged else ())
    extra = [tokens[i] for i in path] if staged else []
    same(other, prefilled(text + extra))
    append(other, [4, 5])
    same(one, prefilled(text + [tokens[i] for i in path] + [1, 2, 3]))
    same(other, prefilled(text + extra + [4, 5]))


@settings(max_examples=25)
@given(st.lists(st.integers(0, 49), min_size=1, max_size=20), trees(), st.data())
def test_truncate_forgets_the_rest(text, tree, data):
    cache = prefilled(text)
    stage(cache, *tree[:2])
    keep = data.draw(st.integers(0, len(text)))
    cache.truncate_entries(keep)
    assert cache.parent == [] and cache.end == keep
    append(cache, [9])
    same(cache, prefilled([*text[:keep], 9]))


def test_growth_keeps_what_is_there():
    text = torch.randint(0, 50, (500,)).tolist()
    cache = NET.new_cache()
    before = cache.nbytes
    for a in range(0, 500, 50):
        append(cache, text[a : a + 50])
    assert cache.capacity >= 500 and cache.nbytes > before
    same(cache, prefilled(text))


def test_truncate_refuses_what_is_not_there():
    cache = KVCache(torch.zeros(1, 2, 1, 4, 2))
    for length in (1, -1):
        with pytest.raises(ValueError, match=f"length is {length}"):
            cache.truncate_entries(length)
