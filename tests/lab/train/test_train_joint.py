"""Training the layer of ADJUST, small; what it is refused for; and what decodes with it."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from polydec import Engine, load
from polydec.lab.train.joint import AnswerTrajectories, JointSpec, sample_start_steps, train_joint
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import joint

MODEL = "zoo:diffusion"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The layer for zoo:diffusion, of `pick`, whose six tokens are one digit."""
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("joint")
    return at, train_joint(JointSpec(str(at / "layer"), MODEL, ("pick",), 8, 3, 8, 2))


def test_what_is_measured(trained):
    _, result = trained
    assert len(result["adjusted"]) == len(result["stale"]) == 2 and result["answers"] == 8


@pytest.mark.slow
def test_its_laws_are_nearer_than_those_of_the_pass(tmp_path):
    torch.set_num_threads(1)
    result = train_joint(JointSpec(str(tmp_path / "layer"), MODEL, ("pick",), 64, 3, 16, 180))
    assert sum(result["adjusted"]) < 0.6 * sum(result["stale"])
    assert result["stale"][1] > result["stale"][0] > 0


def test_what_is_saved_is_read(trained):
    at, _ = trained
    one = artefacts.load_artefact(str(at / "layer"))
    assert isinstance(one, joint.JointSamplerLayer) and one.layer.width == 128
    embed, state = torch.randn(1, 5, 128), torch.randn(1, 5, 128)
    joint.save(at / "again", one, {})
    assert torch.equal(one(embed, state), joint.load(at / "again")(embed, state))
    config = json.loads((at / "again" / "config.json").read_text())
    (at / "again" / "config.json").write_text(json.dumps({**config, "width": 64}))
    with pytest.raises(ValueError, match="it is damaged"):
        joint.load(at / "again")


def test_one_gap_a_pass_is_the_model_itself(trained):
    at, _ = trained
    lm = load(MODEL, trained=(str(at / "layer"),), dtype="float32")
    engine, hot = Engine(lm), lm.sampling_with(temperature=1.0)
    asked = [
        engine.submit(f"pick: {i}4{i}150", method=m, options=o, max_tokens=9, seed=i, sampling=hot)
        for i in range(4)
        for m, o in (("dream", {}), ("adjust", {"count": 1}), ("adjust", {"count": 3, "block": 3}))
    ]
    done = engine.run(asked)
    for plain, same, other in zip(done[::3], done[1::3], done[2::3]):
        assert (
            plain.token_ids == same.token_ids
            and plain.metrics["target_passes"] == same.metrics["target_passes"]
        )
        assert other.metrics["target_passes"] <= 4 and other.metrics["unmasked_most"] <= 3


def test_a_layer_that_changes_nothing_leaves_the_laws_of_the_pass(trained):
    """Then it is entropy order with as many gaps a pass: without chance the same text."""
    at, _ = trained
    lm = load(MODEL, dtype="float32")
    none = replace(
        joint.new_joint_layer(128, 4, 384, 1e4, lm.checkpoint.lm.vocab, 0), out_H=torch.zeros(128)
    )
    joint.save(at / "none", none, {})
    engine = Engine(load(MODEL, trained=(str(at / "none"),), dtype="float32"))
    for i in range(4):
        adjusted, stale = engine.run(
            [
                engine.submit(f"pick: 7{i}3150", method=m, options=o, max_tokens=8, ignore_eos=True)
                for m, o in (("adjust", {"count": 4}), ("dream", {"steps": 2}))
            ]
        )
        assert adjusted.token_ids == stale.token_ids and adjusted.metrics["target_passes"] == 2


def test_a_canvas_as_it_was():
    some = AnswerTrajectories(
        torch.tensor([[5, 6, 7, 8]]), torch.tensor([[-1, 2, 0, 1]]), torch.zeros(1, 3)
    )
    assert [some.canvas_before(torch.tensor([k]), 9).tolist()[0] for k in range(4)] == [
        [5, 9, 9, 9],
        [5, 9, 7, 9],
        [5, 9, 7, 8],
        [5, 6, 7, 8],
    ]


def test_what_is_learned_from_begins_where_a_token_was_not_known():
    """In proportion to entropy, and never where too few tokens follow."""
    some = AnswerTrajectories(
        torch.zeros(2000, 5, dtype=torch.long),
        torch.tensor([[-1, 0, 1, 2, 3]]).expand(2000, -1),
        torch.tensor([[0.0, 1.0, 3.0, 9.0]]).expand(2000, -1),
    )
    share_S = (
        sample_start_steps(some, 1, torch.Generator().manual_seed(0)).bincount(minlength=4) / 2000
    )
    assert (
        share_S[0] < 0.01
        and abs(share_S[1] - 0.25) < 0.05
        and abs(share_S[2] - 0.75) < 0.05
        and share_S[3] == 0
    )


def test_refusals(trained, tmp_path, monkeypatch, capfd):
    import micro
    from polydec.cli.main import main

    at, _ = trained
    narrow = joint.new_joint_layer(64, 2, 64, 1e4, load(MODEL).checkpoint.lm.vocab, 0)
    joint.save(at / "narrow", narrow, {})
    with pytest.raises(ValueError, match="trained for states of width 64: this target's have 128"):
        load(MODEL, trained=(str(at / "narrow"),))
    with pytest.raises(ValueError, match="was trained for a masked-diffusion model"):
        load(str(micro.write(tmp_path)), trained=(str(at / "layer"),))
    with pytest.raises(ValueError, match="method adjust needs a joint sampler's layer: name one"):
        Engine(load(MODEL)).submit("pick: 123456", method="adjust")
    monkeypatch.setattr(
        sys, "argv", ["polydec", "train", "joint", "--out", str(tmp_path / "x"), "--count", "1"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and "count is 1: it must be at least 2" in capfd.readouterr().err
