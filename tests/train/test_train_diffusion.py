"""Training a masked-diffusion model, small; and what was trained, through the command line."""
import json
import sys

import pytest
import torch

from polydec import Engine, load
from polydec.train.diffusion import DiffusionSpec, Rows, masked_loss, train_diffusion
from polydec.train.network import Llama, Shape, bidirectional
from polydec.train.tasks import TASKS, make, right


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("diffusion") / "model"
    result = train_diffusion(DiffusionSpec(str(out), ("copy",), steps=60, rows=16, width=64, layers=2, rate=3e-3))
    return out, result


def test_the_loss_falls_and_the_directory_loads(trained):
    out, result = trained
    first, last = result["curve"][0][1], result["curve"][-1][1]
    assert last < 0.5 * first
    lm = load(str(out))
    assert lm.checkpoint.lm.family == "diffusion" and lm.checkpoint.lm.mask == lm.checkpoint.lm.vocab.size - 1
    answers = []
    for method in ("fast-dllm", "llada", "mdlm", "prophet", "creditdecoding", "localleap"):
        engine = Engine(lm)
        done = engine.run([engine.submit("copy: 123123", method=method, max_tokens=12)])[0]
        answers.append(done)
        assert done.usage["completion_tokens"] <= 12 and done.metrics["target_passes"] <= 12
        assert done.metrics["unmasked_per_pass"] >= 1 and done.metrics["models"][0]["passes"] == done.metrics["target_passes"]
    assert all(a.method["name"] != "plain" for a in answers)


def test_the_network_sees_both_ways_and_ours_agrees(trained):
    """The trained network's own logits are those of the loaded one."""
    from safetensors.torch import load_file

    from polydec.core.scheduler import run
    from polydec.train.network import from_weights
    out, _ = trained
    model = load(str(out), dtype="float32").checkpoint.lm
    config = json.loads((out / "config.json").read_text())
    network = bidirectional(from_weights(config, load_file(str(out / "model.safetensors"))))
    canvas = (5, 9, None, 11, None, 30)
    want = network(torch.tensor([[model.mask if x is None else x for x in canvas]]))[0][[2, 4]].detach().double()

    async def go():
        return await model.open(6).score(canvas, (2, 4), range(6))
    got = run([go()])[0]
    assert float((got - want)[:, :model.mask].abs().max()) < 1e-3


def test_generate_from_the_command_line(trained, capfd, monkeypatch):
    from polydec.cli.main import main as command
    out, _ = trained

    def main(args):
        monkeypatch.setattr(sys, "argv", ["polydec", *args])
        with pytest.raises(SystemExit) as stop:
            command()
        return stop.value.code or 0
    for more in ([], ["--set", "cache=2", "--set", "block=4"], ["--temperature", "0.7", "--n", "2"]):
        assert main(["generate", "--model", str(out), "--method", "fast-dllm", "--max-tokens", "10", "--json", *more,
                     "copy: 123123"]) == 0
        said = json.loads(capfd.readouterr().out)
        assert said["method"]["name"] == "fast-dllm" and said["metrics"]["unmasked_per_pass"] >= 1
    assert main(["generate", "--model", str(out), "--method", "plain", "copy: 1"]) == 2
    assert "masked-diffusion" in capfd.readouterr().err


def test_an_interrupted_run_goes_on(tmp_path):
    spec = {"tasks": ("copy",), "rows": 4, "width": 32, "layers": 1}
    whole = train_diffusion(DiffusionSpec(str(tmp_path / "a"), steps=4, **spec))
    assert train_diffusion(DiffusionSpec(str(tmp_path / "a"), steps=4, **spec))["loss"] == whole["loss"]
    with pytest.raises(ValueError, match="belongs to another run"):
        train_diffusion(DiffusionSpec(str(tmp_path / "a"), steps=5, **spec))


def test_the_loss_is_a_tight_bound_for_independent_tokens():
    """A network that says the same law everywhere: the expected loss is its cross-entropy a token, whatever is masked."""
    class Flat(torch.nn.Module):
        def forward(self, token_BT, position_T=None, see_TT=None):
            return self.logit.expand(*token_BT.shape, -1)
    flat = Flat()
    flat.logit = torch.tensor([0.3, -1.0, 0.5, 0.0])
    g = torch.Generator().manual_seed(0)
    token_BT = torch.randint(0, 3, (4000, 10), generator=g)
    answer_BT = torch.arange(10)[None] >= torch.randint(0, 6, (4000, 1), generator=g)
    got = masked_loss(flat, token_BT, answer_BT, 3, g)
    logp = flat.logit[:3].log_softmax(0)
    want = -((logp[token_BT] * answer_BT).sum(1) / answer_BT.sum(1)).mean()
    assert abs(float(got - want)) < 0.03


def test_questions_are_never_masked(monkeypatch):
    seen = []
    network = bidirectional(Llama(Shape(40, 32, 1, 2, 2, 32, 16)))
    monkeypatch.setattr(Llama, "forward", lambda self, token_BT, *more: seen.append(token_BT) or torch.zeros(*token_BT.shape, 40))
    token_BT, answer_BT = torch.randint(0, 30, (64, 16)), (torch.arange(16) >= 7)[None].expand(64, -1)
    masked_loss(network, token_BT, answer_BT, 39, torch.Generator().manual_seed(1))
    hidden = seen[0] == 39
    assert not hidden[:, :7].any() and 0.3 < float(hidden[:, 7:].float().mean()) < 0.7
    assert torch.equal(seen[0][~hidden], token_BT[~hidden])


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_right(name):
    for i in range(50):
        task = make(name, 3, i)
        assert task == make(name, 3, i) != make(name, 3, i, held=True) and right(name, task.question, task.answer)
        assert not right(name, task.question, task.answer[:-1]) and not right(name, task.question, task.answer + "1")
    assert len({make(name, s, 0) for s in range(20)}) > 10


@pytest.mark.parametrize("fields, message", [
    ({"tasks": ("copi",)}, "tasks has 'copi': it must be one of copy, reverse, sort, slots, fill, shuffle, sums, chain"), ({"tasks": ()}, "tasks is empty"),
    ({"steps": 0}, "steps is 0"), ({"length": 12}, "length is 12"), ({"shortest": 40}, "shortest is 40"), ({"causal": True, "block": 4}, "causal is on"), ({"width": 40}, "width is 40"),
])
def test_wrong_specs(fields, message):
    with pytest.raises(ValueError, match=message):
        DiffusionSpec("x", **fields)


def test_a_task_that_does_not_fit_is_said(tmp_path):
    from polydec.train.tokens import train_tokenizer
    spec = DiffusionSpec("x", ("slots",), shortest=20)
    with pytest.raises(ValueError, match="shortest is 20: task"):
        Rows(train_tokenizer(["a"], 260), spec).batch(0)
