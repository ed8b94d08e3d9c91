"""The reference schedulers of benchmarks/batch.py: the greedy tokens of one row at a time, and caches that are a prefill's."""

import importlib.util
import random
import sys
from functools import cache

import pytest
import torch

from polydec.methods.speculative.drafters.lookup import LookupDrafter
from project_paths import PROJECT_ROOT

transformers = pytest.importorskip("transformers")
HERE = PROJECT_ROOT / "benchmarks" / "batch.py"
SPEC = importlib.util.spec_from_file_location("batch_reference", HERE)
batch = importlib.util.module_from_spec(SPEC)
sys.modules["batch_reference"] = batch
SPEC.loader.exec_module(batch)

ENDS = frozenset({1})


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=13,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.6,
    )
    return batch.Padded(transformers.LlamaForCausalLM(config).double())


def rows(seed):
    dice = random.Random(seed)
    prompts = [
        [dice.randrange(2, 13) for _ in range(dice.choice((1, 2, 5, 5, 9, 30)))] for _ in range(7)
    ]
    limits = [dice.choice((1, 4, 12, 12)) for _ in prompts]
    return [
        batch.Row(len(p), list(p), n, LookupDrafter(3).open_guess(p, None))
        for p, n in zip(prompts, limits, strict=True)
    ]


@cache
def alone(net, prompt, limit):
    """Greedy tokens of one row without cache or draft."""
    text = list(prompt)
    while len(text) - len(prompt) < limit:
        text.append(int(net.net(torch.tensor([text])).logits[0, -1].argmax()))
        if text[-1] in ENDS:
            break
    return text


SCHEDULERS = {
    "eqspec": lambda net, made, n: batch.eqspec(net, made, n, 4, ENDS),
    "exspec": lambda net, made, n: batch.exspec(net, made, n, 4, ENDS, 5),
}


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_batches_equal_singles(net, name, size):
    for seed in range(3):
        made = rows(seed)
        want = [alone(net, tuple(r.tokens), r.limit) for r in made]
        account = SCHEDULERS[name](net, made, size)
        assert [r.tokens for r in made] == want
        assert account.rows <= sum(len(r.tokens) - r.prompt for r in made), (
            "a row that has ended takes part"
        )
        backwards = rows(seed)
        SCHEDULERS[name](net, backwards[::-1], size)
        assert [r.tokens for r in backwards] == want


def test_a_whole_draft_and_the_token_behind_it_are_taken():
    row = batch.Row(2, [5, 6], 20, LookupDrafter(3).open_guess((5, 6), None))
    assert row.take([7, 8], [7, 8, 9], ENDS) == (2, False) and row.tokens == [5, 6, 7, 8, 9]
    assert row.take([7, 1, 8], [7, 1, 8, 9], ENDS) == (1, True) and row.tokens[5:] == [7, 1]


def test_caches_are_those_of_a_prefill(net, monkeypatch):
    """After every pass, row by row; and slots that hold padding are never seen."""
    seen = []
    before = batch.check

    def look(pads, live, kv):
        before(pads, live, kv)
        for b, (pad, row) in enumerate(zip(pads, live, strict=True)):
            if len(row.tokens) > 1:
                fresh = batch.Row(row.prompt, list(row.tokens), row.limit, None)
                net.prefill(fresh)
                for (k, v), (fresh_k, fresh_v) in zip(kv, fresh.kv, strict=True):
                    assert torch.allclose(k[b, :, pad:], fresh_k, atol=1e-10)
                    assert torch.allclose(v[b, :, pad:], fresh_v, atol=1e-10)
                seen.append(pad)

    monkeypatch.setattr(batch, "check", look)
    for run in SCHEDULERS.values():
        run(net, rows(5), 4)
    assert max(seen) > 0


def test_a_batch_that_is_not_realigned_shows(net, monkeypatch):
    right = batch.align
    monkeypatch.setattr(
        batch,
        "align",
        lambda parts, account: [
            (k.roll(1, 2), v.roll(1, 2)) if len(parts) > 1 else (k, v)
            for k, v in right(parts, account)
        ],
    )
    with pytest.raises(AssertionError):
        test_batches_equal_singles(net, "eqspec", 3)


def test_positions_that_count_padding_show(net, monkeypatch):
    step = net.step
    monkeypatch.setattr(
        net,
        "step",
        lambda kv, pads, lengths, ids: step(
            kv, pads, [n + p for n, p in zip(lengths, pads, strict=True)], ids
        ),
    )
    with pytest.raises(AssertionError):
        test_batches_equal_singles(net, "eqspec", 3)
