"""Batch sizes that are searched, and pairs that are left out for their lengths."""

import json
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from polydec.base.errors import RequestError
from polydec.lab.train import batch_search, pairs, seq2seq
from polydec.lab.train.batch_search import (
    largest_fitting_batch,
    pass_fits,
    searched_batch_rows,
)
from polydec.lab.train.seq2seq import train_seq2seq
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec


@pytest.mark.parametrize("first", [1, 7, 32, 1000])
def test_a_search_ends_close_below_the_limit(first):
    for limit in (1, 2, 3, 5, 19, 20, 31, 32, 33, 100, 777, 4097):
        tried = []

        def fits(rows, limit=limit, tried=tried):
            tried.append(rows)
            return rows <= limit

        found = largest_fitting_batch(fits, first)
        assert found in tried and found <= limit
        assert limit - found <= batch_search.CLOSE * (limit + 1), (limit, found)
        assert len(tried) == len(set(tried)) <= 24


def test_nothing_fits_and_all_fits():
    assert largest_fitting_batch(lambda rows: False) == 0
    assert largest_fitting_batch(lambda rows: True) == batch_search.MOST


def test_bytes_are_those_that_gradients_need():
    """Of x @ w the pass keeps x, once, and not the weights."""
    weight = nn.Parameter(torch.ones(10, 10))

    def run_pass(rows=25):
        x = torch.ones(rows, 10, requires_grad=True)
        return (x @ weight + x @ weight).sum()

    assert pass_fits(run_pass, [weight], 1000)
    assert not pass_fits(run_pass, [weight], 999)
    assert not pass_fits(lambda: run_pass(26), [weight], 1000)
    # What needs no gradients keeps nothing.
    with torch.no_grad():
        assert pass_fits(run_pass, [weight], 0)


def test_rows_of_each_bucket_are_searched_from_the_one_before():
    asked = []
    weight = nn.Parameter(torch.ones(1))

    def run_pass(rows, source, target):
        asked.append((rows, source, target))
        # Keeps four bytes for each position.
        x = torch.ones(rows * (source + target), requires_grad=True)
        return (x * x).sum()

    longest = [(40, 10), (5, 5), (10, 10)]
    found = searched_batch_rows(longest, run_pass, [weight], memory=0.004)
    bound = 0.9 * 4000 / 4
    for rows, (source, target) in zip(found, longest, strict=True):
        limit = bound // (source + target)
        assert limit - batch_search.CLOSE * (limit + 1) <= rows <= limit
    # Ascending by size, each from the answer before.
    sizes = [s + t for _, s, t in asked]
    assert sizes == sorted(sizes) and asked[0][0] == batch_search.FIRST
    second = next(rows for rows, s, t in asked if s + t == 20)
    assert second == found[1]
    with pytest.raises(RequestError, match="memory is 1e-05: not even one pair of 5 and 5 tokens"):
        searched_batch_rows(longest, run_pass, [weight], memory=1e-5)


def test_steps_take_as_many_pairs_as_were_searched():
    lengths = [(4, 4)] * 100 + [(20, 20)] * 20
    steps = pairs.BucketBatchSampler(lengths, 64, 2, 1, rows=(7, 3))
    counts = {lengths[chosen[0]]: len(chosen) for chosen in map(steps.indices_of_step, range(20))}
    assert counts == {(4, 4): 7, (20, 20): 3}


def test_targets_that_are_too_long_for_their_sources_are_left_out():
    """By the median of sources of like length: short sources may have longer targets, in shares."""
    lengths = [(4, 8)] * 20 + [(40, 20)] * 20 + [(4, 20), (40, 61), (40, 60), (4, 24)]
    stay = pairs.drop_length_outliers(lengths, 2, 3.0)
    assert stay == [*range(41), 42, 43]
    assert pairs.drop_length_outliers(lengths, 2, 100.0) == [*range(44)]


LINES = [
    {"source": "ab" * (1 + i % 9), "target": "cd" * (1 + i % 9 + (12 if i == 5 else 0))}
    for i in range(200)
]


@pytest.fixture
def spec(tmp_path):
    draw = random.Random(0)
    rows = [
        {**r, "source": r["source"] + draw.choice("xyzuvw") * (1 + i % 3)}
        for i, r in enumerate(LINES)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    return Seq2SeqSpec(
        str(tmp_path / "out"), str(path), steps=2, tokens=64, encoder=1, decoder=1, width=32,
        vocab=261, parts=(3, 2), longest=64,
    )  # fmt: skip


def test_the_command_searches_and_says_what_it_found(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(seq2seq, "measure_seq2seq", lambda *_: {"held_out_nats": None})
    made = {}
    for memory in (1.0, 4.0):
        run = replace(spec, out=str(tmp_path / str(memory)), memory=memory)
        made[memory] = train_seq2seq(run)["batch_rows"]
    # Four times the memory holds about four times the rows, of every bucket.
    for small, large in zip(made[1.0], made[4.0], strict=True):
        assert 3 < large / small < 5.5
    assert len(set(made[4.0])) > 1
    assert "batch_rows" not in train_seq2seq(spec)
    with pytest.raises(RequestError, match="not even one pair"):
        train_seq2seq(replace(spec, out=str(tmp_path / "x"), memory=0.001))


def test_the_command_leaves_outliers_out(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(seq2seq, "measure_seq2seq", lambda *_: {"held_out_nats": None})
    whole = train_seq2seq(spec)
    less = train_seq2seq(replace(spec, out=str(tmp_path / "less"), outliers=2.5))
    assert less["outliers_left"] >= 1
    assert less["pairs"] == whole["pairs"] - less["outliers_left"]
    with pytest.raises(RequestError, match=r"outliers is 0\.5: it must be at least 1"):
        replace(spec, outliers=0.5)
