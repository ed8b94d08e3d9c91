"""Hyperfitting: texts are known by heart, laws are sharp, and greedy text repeats itself less."""

import json

import numpy as np
import pytest
import torch

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.lab.train import hyperfit
from polydec.lab.train.hyperfit import continue_greedily, repeated_ngram_fraction, train_hyperfit
from polydec.lab.train.loop import build_optimisers
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.specs.hyperfit import HyperfitSpec

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("hyperfit") / "texts.jsonl"
    words = ["the", "cat", "sat", "on", "a", "red", "mat", "and", "saw", "an", "old", "dog", "run"]
    texts = [" ".join(rng.choice(words, 40)) for _ in range(60)]
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts))
    return str(path)


def spec(data, out, **fields):
    more = {"texts": 8, "length": 20, "epochs": 2, "rows": 4, "rate": 3e-3, "tries": 4}
    return HyperfitSpec(str(out), "zoo:tiny", data, context=8, ahead=24, **{**more, **fields})


def test_it_knows_its_texts_by_heart_and_is_sure_of_others(data, tmp_path):
    result = train_hyperfit(spec(data, tmp_path / "out", texts=4, epochs=110))
    before, after = result["before"], result["after"]
    assert result["loss"] < 0.1 and result["steps"] == 110
    assert after["entropy"] < 0.3 * before["entropy"]
    assert after["held_out_nats"] > before["held_out_nats"]
    assert before["copied"] < after["copied"]
    answer = generate(load(str(tmp_path / "out"), ngrams=None), "the cat", max_tokens=8)
    assert len(answer.choices[0].token_ids) == 8


def test_what_is_measured_by_hand():
    assert repeated_ngram_fraction([1, 2, 3, 1, 2, 3, 1, 2], 2) == pytest.approx(4 / 7)
    assert repeated_ngram_fraction([1, 2, 3, 4], 2) == 0
    network = TrainableLlama(
        LlamaShape(20, width=16, layers=1, heads=2, kv_heads=1, inner=16, context=6)
    )
    rows = torch.tensor([[1, 2, 3], [4, 5, 6]])
    written = continue_greedily(network, rows, 5)
    for row, more in zip(rows.tolist(), written.tolist()):
        text = list(row)
        for token in more:
            assert token == int(network(torch.tensor([text[-6:]]))[0, -1].argmax())
            text.append(token)


def test_every_text_is_seen_once_an_epoch(data, tmp_path, monkeypatch):
    seen = []
    real = hyperfit.next_token_nats
    monkeypatch.setattr(
        hyperfit, "next_token_nats", lambda net, rows: seen.append(rows.tolist()) or real(net, rows)
    )
    train_hyperfit(spec(data, tmp_path / "out", epochs=2))
    steps = [s for s in seen if len(s) == 4][1:-1]  # the first and the last measure held-out texts
    epochs = [sorted(map(tuple, steps[i] + steps[i + 1])) for i in (0, 2)]
    assert epochs[0] == epochs[1] and len(set(epochs[0])) == 8
    assert steps[0] != steps[2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"texts": 2}, "texts is 2: a step takes rows \\(4\\)"),
        ({"length": 2000}, "length is 2000: zoo:tiny has a context"),
        ({"length": 500}, "data has 0 texts of 500 tokens"),
        ({"rate": 0.0}, "rate is 0"),
    ],
)
def test_bad_input_is_one_sentence(data, tmp_path, fields, said):
    with pytest.raises(RequestError, match=said):
        train_hyperfit(spec(data, tmp_path / "out", **fields))


def test_nothing_pulls_weights_to_zero_and_the_rate_stays(data, tmp_path, monkeypatch):
    """Without a gradient no weight moves, however large the rate."""
    monkeypatch.setattr(hyperfit, "measure_hyperfit", lambda *_: {})
    course = hyperfit._course(spec(data, tmp_path / "out", rate=0.5))
    assert {course.schedule.rate_factor(step) for step in range(course.schedule.steps)} == {1.0}
    matrices = [p for p in course.network.parameters() if p.ndim == 2]
    before = [p.detach().clone() for p in matrices]
    for p in course.network.parameters():
        p.grad = torch.zeros_like(p)
    for optimiser in build_optimisers(course.network, course.schedule, course.deep):
        optimiser.step()
    assert len(before) > 10
    for p, old in zip(matrices, before, strict=True):
        assert torch.equal(p, old)
