"""Classes behind a prompt of examples whose keys and values were changed: what is scored, and what changes."""

import json

import pytest
import torch

import micro
from polydec.base.errors import RequestError
from polydec.cli.main import main
from polydec.lab.bench.hidden_states import StateSteps
from polydec.lab.bench.state_classification import (
    class_logprobs,
    draw_classification_task,
    rate_steps,
    read_examples,
)
from polydec.lab.train.network import LlamaShape, TrainableLlama

SHAPE = LlamaShape(40, width=32, layers=2, heads=4, kv_heads=2, inner=48, context=96)
TEXT = torch.randint(0, 40, (49,), generator=torch.Generator().manual_seed(1))
QUESTION = torch.tensor([3, 9, 7])
LABELS = [torch.tensor([5]), torch.tensor([8, 11, 2])]


@pytest.fixture
def network():
    net = TrainableLlama(SHAPE, seed=2).requires_grad_(False).eval()
    with torch.no_grad():
        net.model.embed_tokens.weight.mul_(20.0)
    return net


def whole_logprobs(network, label):
    ids = torch.cat([TEXT, QUESTION, label])
    logp = network(ids[None, :-1])[0].float().log_softmax(-1)
    first = len(TEXT) + len(QUESTION) - 1
    return float(sum(logp[first + i, x] for i, x in enumerate(label)))


def test_without_steps_classes_are_as_likely_as_the_model_has_them(network):
    past = read_examples(network, TEXT, StateSteps(0.0, 16))
    got = class_logprobs(network, past, torch.cat([TEXT[-1:], QUESTION]), LABELS)
    assert got.tolist() == pytest.approx([whole_logprobs(network, x) for x in LABELS], abs=1e-3)


def test_steps_change_what_classes_are_read_behind_and_questions_change_nothing(network):
    asked = torch.cat([TEXT[-1:], QUESTION])
    plain = class_logprobs(
        network, read_examples(network, TEXT, StateSteps(0.0, 16)), asked, LABELS
    )
    past = read_examples(network, TEXT, StateSteps(0.01, 16))
    before = [(k.clone(), v.clone()) for k, v in past]
    moved = class_logprobs(network, past, asked, LABELS)
    assert not torch.allclose(moved, plain, atol=1e-3)
    assert torch.equal(class_logprobs(network, past, asked, LABELS), moved)
    for (a, b), (c, d) in zip(before, past, strict=True):
        assert torch.equal(a, c) and torch.equal(b, d)


ROWS = [(f"text {i} of {'ab'[i % 2]}", "ab"[i % 2]) for i in range(40)]


def test_examples_and_questions_are_apart_and_each_class_is_shown():
    task = draw_classification_task(ROWS, 3, 10, 0)
    assert task.classes == ("a", "b") and len(task.asked) == 10
    assert [sum(label == c for _, label in task.shown) for c in "ab"] == [3, 3]
    assert not set(task.shown) & set(task.asked)
    assert draw_classification_task(ROWS, 3, 10, 1) != task
    with pytest.raises(RequestError, match="one more must be left"):
        draw_classification_task(ROWS, 20, 10, 0)
    with pytest.raises(RequestError, match="1 class"):
        draw_classification_task([("x", "a")], 1, 1, 0)


def encode(text, marks):
    return [0] * marks + [1 + ord(c) % 39 for c in text]


def test_shares_are_of_the_questions(network):
    task = draw_classification_task([(t[:6], c) for t, c in ROWS], 1, 6, 0)
    rows = list(rate_steps(network, task, encode, (0.0, 0.01), 16))
    past = read_examples(
        network, torch.tensor(encode(task.shown_prompt, True)), StateSteps(0.0, 16)
    )
    hits = 0
    for text, label in task.asked:
        ids = torch.tensor(
            [encode(task.shown_prompt, True)[-1], *encode(f"Text: {text}\nClass:", False)]
        )
        labels = [torch.tensor(encode(f" {c}", False)) for c in task.classes]
        scores = class_logprobs(network, past, ids, labels)
        hits += task.classes[int(scores.argmax())] == label
    assert rows[0]["right"] == pytest.approx(hits / 6, abs=1e-4) and rows[0]["change"] == 0.0
    assert rows[1]["nats"] != rows[0]["nats"]
    with pytest.raises(RequestError, match="the model reads 96"):
        list(rate_steps(network, draw_classification_task(ROWS, 4, 6, 0), encode, (0.0,), 16))


def test_the_command_sorts_a_file(tmp_path, capsys, monkeypatch):
    def run_suite(*more):
        line = ["polydec", "bench", "--suite", "state-classification", "--model", model, *more]
        monkeypatch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code

    model = str(micro.write(tmp_path / "m", context=512))
    path = tmp_path / "labelled.jsonl"
    path.write_text("\n".join(json.dumps({"text": t, "label": c}) for t, c in ROWS))
    assert run_suite("--from", str(path), "--each", "4", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [r["rate"] for r in rows] == [0.0, 3e-4, 1e-3, 3e-3, 1e-2]
    assert run_suite("--from", str(path), "--each", "4", "--seed", "1") == 0
    assert run_suite() != 0
    assert "from is none" in capsys.readouterr().err
