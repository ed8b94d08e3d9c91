"""A router of a few steps: what it learns from is kept, and the same weights come of it; planted steps are told."""

import json

import pytest
import torch

from polydec.lab.train.probe import train_probe
from polydec.lab.train.probes import router as train
from polydec.lab.train.probes.router import RouterExamples, RouterSpec, measure_router
from polydec.models.learned.kinds import router


def test_it_is_trained_and_what_it_learns_from_is_kept(tmp_path):
    def spec(out, steps=6, **more):
        return RouterSpec(
            str(tmp_path / out),
            "zoo:reasoner",
            kinds=("chain",),
            each=2,
            steps=steps,
            rows=8,
            **more,
        )

    found = train_probe(spec("a"))
    assert found["steps_seen"] > 4 and 0 <= found["held_out"]["better"] <= 1
    assert json.loads((tmp_path / "a" / "training.json").read_text())["steps"] == 6
    (tmp_path / "b").mkdir()
    for file in ("lessons.json", "lessons.safetensors", "held.safetensors"):
        (tmp_path / "b" / file).write_bytes((tmp_path / "a" / file).read_bytes())
    train_probe(spec("b"))
    for a, b in zip(*(router.load(tmp_path / x).head.inner for x in "ab"), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="gathered for another training"):
        train_probe(spec("a", temperature=0.9))
    with pytest.raises(ValueError, match="each is 0"):
        RouterSpec("x", "y", each=0)


def test_killed_once_and_resumed_to_the_same_weights(tmp_path, monkeypatch):
    g, loss, calls = torch.Generator().manual_seed(1), train.binary_cross_entropy_with_logits, []
    some = RouterExamples(
        torch.randn(80, 192, generator=g), torch.rand(80, generator=g), torch.randn(80, generator=g)
    )
    monkeypatch.setattr(train, "gather_router_examples", lambda *_: some)

    def counting(most):
        def counted(*given):
            calls.append(1)
            if len(calls) > most:
                raise KeyboardInterrupt
            return loss(*given)

        calls.clear()
        monkeypatch.setattr(train, "binary_cross_entropy_with_logits", counted)

    def spec(out):
        return RouterSpec(
            str(tmp_path / out), "zoo:reasoner", kinds=("chain",), each=2, steps=120, rows=8
        )

    counting(10**6)
    whole, calls_of_whole = train_probe(spec("a")), len(calls)
    counting(80)
    with pytest.raises(KeyboardInterrupt):
        train_probe(spec("b"))
    counting(10**6)
    again = train_probe(spec("b"))
    assert (
        whole["held_out"] == again["held_out"] and len(calls) < calls_of_whole - 40
    )  # it did not begin anew
    assert (tmp_path / "a" / "router.safetensors").read_bytes() == (
        tmp_path / "b" / "router.safetensors"
    ).read_bytes()


def test_it_tells_planted_steps():
    g = torch.Generator().manual_seed(0)
    state, advantage = torch.randn(200, 4, generator=g), torch.randn(200, generator=g)
    state[:, 0] += 8.0 * (advantage > 0)
    one = router.DraftStateRouter(
        router.StepReward(
            (torch.eye(4), torch.zeros(4)), (torch.tensor([[1.0, 0, 0, 0]]), torch.zeros(1)), None
        )
    )
    said = measure_router(one, RouterExamples(state, -advantage, advantage))
    assert said["auc"] > 0.9 and said["of_value"] == 1.0
    mutant = measure_router(
        one, RouterExamples(state, -advantage, -advantage)
    )  # labels the wrong way round, a known bug
    assert mutant["auc"] < 0.1 and mutant["of_value"] == 0.0
