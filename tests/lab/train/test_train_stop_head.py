"""SpecDec++: the head, its labels, and drafts that end where it says."""

import json
import math
from pathlib import Path

import pytest
import torch

from polydec.cli.main import app
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.enumerate import total_variation
from polydec.lab.testing.examples import example_stop_head
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.loop import fit_network
from polydec.lab.train.probe import ProbeExamples, train_probe
from polydec.lab.train.probes import stop_head as training
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.probe.stop_head import StopHeadSpec
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.learned_stop import LearnedStopTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import stop_head


class Sure:
    """A head that gives every token the same chance."""

    def __init__(self, a):
        self.a = a

    def success_chance(self, hidden_H):
        assert hidden_H.shape == (4,)
        return self.a


def grow(tree, target, depth, seed=0):
    return run_coroutines(
        [
            tree.grow_tree(
                target.open_session((0, 1)), 1, 2, DraftBudget(depth, depth), Rng.of_choice(seed)
            )
        ]
    )[0]


@pytest.mark.parametrize(
    "target", [toy_law(3, 6), ShapedTarget(toy_law(3, 6), GreedyRule())], ids=["law", "greedy"]
)
def test_threshold_1_is_a_chain_and_0_two_tokens(target):
    for seed in range(5):
        a, b = (
            grow(t, target, 5, seed)
            for t in (LearnedStopTree(example_stop_head(), 1.0), ChainTree())
        )
        assert (a.token, a.parent, a.draw, a.chance) == (b.token, b.parent, b.draw, b.chance)
        assert grow(LearnedStopTree(example_stop_head(), 0.0), target, 5, seed).token == b.token[:3]
        assert len(grow(LearnedStopTree(example_stop_head(), 0.0, least=4), target, 5, seed)) == 5


@pytest.mark.parametrize(
    "a, threshold", [(0.9, 0.3), (0.9, 0.5), (0.7, 0.7), (0.5, 0.9), (0.2, 0.1)]
)
def test_it_stops_once_some_rejection_is_likely(a, threshold):
    want = next(k for k in range(1, 99) if 1 - a ** (k - 1) > threshold)
    draft = grow(LearnedStopTree(Sure(a), threshold), toy_law(3, 6), 30)
    assert len(draft) - 1 == want and draft.chance[1:-1] == (a,) * (want - 1)


def test_it_reads_the_state_of_the_token_that_was_fed():
    """The state of a toy begins with the token."""

    class Reads(Sure):
        def success_chance(self, hidden_H):
            seen.append(int(hidden_H[0]))
            return 1.0

    seen = []
    draft = grow(LearnedStopTree(Reads(1.0), 0.5), toy_law(3, 6), 6)
    assert seen == list(draft.token[1:-1])


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
def test_the_law_stays(record_counts, threshold):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t,
                ModelDrafter(d, LearnedStopTree(example_stop_head(), threshold)),
                ExactVerifier(),
                FixedPolicy(3),
            ),
            laws=3,
            length=2,
        )
    )


def test_the_best_threshold_is_as_good_as_the_best_stopping_rule():
    """Where every token is accepted with the same chance, the optimum is a fixed length, and some threshold gives it."""
    for a, drafted, scored in ((0.8, 1.0, 10.0), (0.5, 1.0, 4.0), (0.9, 1.0, 30.0)):

        def price(k, a=a, drafted=drafted, scored=scored):
            return (drafted * k + scored) / ((1 - a ** (k + 1)) / (1 - a))

        best = min(range(1, 31), key=price)
        lengths = {
            len(grow(LearnedStopTree(Sure(a), t / 200), toy_law(3, 6), 30)) - 1 for t in range(200)
        }
        assert min(map(price, lengths)) == pytest.approx(price(max(best, 2)), rel=0.02)


def test_labels_are_acceptance_probabilities():
    """Their mean over the draft's draws is 1 - TV at each position; mixed-in tokens of the target carry none."""
    target, draft, text = toy_law(1, 5, eos=-1), toy_law(2, 5, eos=-1), (2, 0, 3)
    sample = TrainingSample((0, 1), text)
    spec = StopHeadSpec("x", rounds=4000, mixing=0.25)
    lessons = training.label_drafted_tokens(target, draft, [sample], spec, 0)
    want = 0.0
    for i in range(3):
        p, q = (
            run_coroutines(
                [m.open_session((0, 1)).score_draft(Draft.chain_draft(1, text[:i]), ScoreRequest())]
            )[0]
            .logprob_row(i)
            .exp()
            for m in (target, draft)
        )
        want += (1 - total_variation(p, q)) / 3
    assert float(lessons.label_N.mean()) == pytest.approx(want, abs=0.01)
    assert len(lessons.label_N) == pytest.approx(3 * 4000 * 0.75, rel=0.02)
    assert lessons.input_NX.shape == (len(lessons.label_N), 4)


def test_greedy_labels_say_whether_the_choices_agree():
    target, draft, text = toy_law(1, 5, eos=-1), toy_law(2, 5, eos=-1), (2, 0, 3)
    lessons = training.label_drafted_tokens(
        target,
        draft,
        [TrainingSample((0, 1), text)],
        StopHeadSpec("x", temperature=0.0, mixing=0.0),
        0,
    )
    want = []
    for i in range(3):
        p, q = (
            run_coroutines(
                [m.open_session((0, 1)).score_draft(Draft.chain_draft(1, text[:i]), ScoreRequest())]
            )[0].likeliest_token(i)
            for m in (target, draft)
        )
        want.append(float(p == q))
    assert lessons.label_N.tolist() == want


def test_the_loss_is_least_at_the_weighted_label():
    y = torch.full((4,), 0.6)
    best = min(
        range(1, 100),
        key=lambda c: float(
            training.weighted_bce(
                torch.tensor([[math.log(1 - c / 100), math.log(c / 100)]]).expand(4, 2), y, 6.0
            )
        ),
    )
    assert best / 100 == pytest.approx(0.6 / (6 * 0.4 + 0.6), abs=0.01)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_comes_back_as_it_was(tmp_path, tied):
    one = stop_head.new_stop_head(8, 3, tied, 1)
    one = stop_head.StopHead(one.blocks, (torch.randn(2, 8), torch.randn(2)))
    stop_head.save(tmp_path, one, {"target": "x"})
    two, x = stop_head.load(tmp_path), torch.randn(5, 8)
    assert two.stop_logits(x).equal(one.stop_logits(x)) and len(two.blocks) == 3
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"polydec": "stop-head", "target": "x", "width": 8, "depth": 3, "tied": tied}
    assert (tmp_path / stop_head.KIND.weights).stat().st_mode & 0o444 == 0o444, (
        "others cannot read it"
    )
    assert two.stop_logits(3 * x).allclose(two.stop_logits(x), atol=1e-5)


def test_training_tells_tokens_apart(tmp_path):
    """On states that say what will happen the head learns it; the constant cannot."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 6, generator=g)
    y = torch.sigmoid(3 * x[:, 0])
    for tied in (False, True):
        network = training.trainable_stop_head(stop_head.new_stop_head(6, 2, tied, 0), tied)
        fit_network(
            network,
            lambda step: (
                training.weighted_bce(network.current_probe().stop_logits(x), y, 6.0),  # noqa: B023
                4000,
            ),
            TrainingSchedule(150, 1e-2, decay=1.0),
        )
        found = training.measure_stop_head(network.current_probe(), ProbeExamples(x, y), 6.0)
        assert found["loss"] < 0.8 * found["loss_of_constant"] and found["ranked"] > 0.9
        assert sum(p.numel() for p in network.parameters()) == (1 if tied else 2) * 42 + 14


def test_memorising_does_not_spoil_the_head(tmp_path, monkeypatch):
    """Labels that nothing foretells: many steps on few positions learn them by heart, and the head that is saved is as good
    as a constant on others all the same."""

    def noise(target, draft, samples, spec, seed):
        g = torch.Generator().manual_seed(seed)
        return ProbeExamples(
            torch.randn(300, 48, generator=g), (torch.rand(300, generator=g) < 0.5).float()
        )

    monkeypatch.setattr(training, "label_drafted_tokens", noise)
    for name in ("text.jsonl", "held.jsonl"):
        (tmp_path / name).write_text(
            "".join(json.dumps(vars(TrainingSample((5, 6), (7, 8)))) + "\n" for _ in range(9))
        )
    result = train_probe(StopHeadSpec(str(tmp_path), target="zoo:tiny", steps=150, rate=1e-2))
    assert result["loss"] < 0.05, "it did not learn them by heart: the test shows nothing"
    assert result["held_out"]["loss"] < 1.05 * result["held_out"]["loss_of_constant"]


def test_wrong_heads_and_specs_are_told_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="method specdec-plus-plus needs a stop head: name one"):
        build("specdec-plus-plus", toy_law(1), toy_law(2))
    with pytest.raises(
        ValueError, match=r"holds no config\.json: give a directory that `polydec train` made"
    ):
        artefacts.load_artefact(str(tmp_path))
    stop_head.save(tmp_path, stop_head.new_stop_head(8, 1, False, 0), {})
    with pytest.raises(
        ValueError, match="heads were trained for states of width 8: this draft's have 4"
    ):
        build(
            "specdec-plus-plus",
            toy_law(1),
            toy_law(2),
            artefacts=(artefacts.load_artefact(str(tmp_path)),),
        )
    with pytest.raises(
        ValueError, match="head was trained for states of width 8: this draft's have 4"
    ):
        stop_head.new_stop_head(8, 1, False, 0).stop_logits(torch.zeros(1, 4))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "depth": 2}))
    with pytest.raises(
        ValueError, match=r"head.safetensors lacks 'blocks.1.weight', which config.json speaks of"
    ):
        stop_head.load(tmp_path)
    for field, value in (
        ("mixing", 1.0),
        ("depth", 17),
        ("temperature", -1.0),
        ("weight", 0.0),
        ("steps", 0),
    ):
        with pytest.raises(ValueError, match=f"{field} is {value}: it must"):
            StopHeadSpec("x", **{field: value})
    for field, value in (("threshold", 1.5), ("least", 0)):
        with pytest.raises(ValueError, match=f"{field} is {value}: it must lie in"):
            LearnedStopTree(example_stop_head(), **{field: value})


def test_a_small_head_for_the_embedded_pair(tmp_path, capsys):
    """End to end, from samples to a decoder that uses it; going on with a finished run changes nothing."""
    text = tmp_path / "text.jsonl"
    sample = TrainingSample(tuple(range(4, 24)), tuple(range(30, 60)))
    for name in ("text.jsonl", "held.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(vars(sample)) + "\n" for _ in range(4)))
    spec = StopHeadSpec(
        str(tmp_path), target="zoo:tiny", text=str(text), steps=20, rows=32, depth=1
    )
    result = train_probe(spec)
    assert result["positions"] > 100 and 0 < result["held_out"]["acceptance"] < 1
    before = Path(tmp_path / "head.safetensors").read_bytes()
    assert train_probe(spec)["held_out"] == result["held_out"]
    assert (tmp_path / "head.safetensors").read_bytes() == before
    from polydec import Engine, load

    lm = load("zoo:tiny", draft="zoo:tiny-draft", dtype="float32", trained=[str(tmp_path)])
    engine = Engine(lm)
    ask = {"sampling": lm.sampling_with(temperature=0.0), "max_tokens": 12}
    plain, ours = engine.run(
        [
            engine.submit("Once upon a time", **ask),
            engine.submit("Once upon a time", method="specdec-plus-plus", **ask),
        ]
    )
    assert plain.token_ids == ours.token_ids


def test_the_command_line_knows_it():
    from typer.testing import CliRunner

    out = CliRunner().invoke(app, ["train", "probe", "--recipe", "stop-head", "--help"])
    assert out.exit_code == 0 and "--mixing" in out.output
