"""Training a masked-diffusion model, small; and what was trained, through the command line."""

import copy
import json
import math
import shutil
import sys
from dataclasses import replace

import pytest
import torch

import micro
from polydec import Engine, load
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.lab.train import dparallel
from polydec.lab.train.diffusion import (
    DiffusionSpec,
    DiffusionTaskRows,
    apply_prompt_dropout,
    block_loss,
    block_sight,
    masked_loss,
    next_token_loss,
    start_diffusion_student,
    train_diffusion,
)
from polydec.lab.train.dparallel import (
    DParallelSpec,
    certain_loss,
    split_answer_blocks,
    train_dparallel,
)
from polydec.lab.train.lora import add_lora_adapters, merge_lora_adapters
from polydec.lab.train.network import LlamaShape, TrainableLlama, make_bidirectional
from polydec.lab.train.probe import train_probe
from polydec.lab.train.probes.filter import FilterSpec, _pairs
from polydec.lab.train.tasks import LONG, TASKS, draw_task, is_right_task_answer
from polydec.methods.diffusion.loop.types import row_entropy
from polydec.models.learned.kinds import filter as filters


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("diffusion") / "model"
    result = train_diffusion(
        DiffusionSpec(str(out), ("copy",), steps=60, rows=16, width=64, layers=2, rate=3e-3)
    )
    return out, result


def test_the_loss_falls_and_the_directory_loads(trained):
    out, result = trained
    first, last = result["curve"][0][1], result["curve"][-1][1]
    assert last < 0.5 * first
    lm = load(str(out))
    assert (
        lm.checkpoint.lm.family == "diffusion"
        and lm.checkpoint.lm.mask == lm.checkpoint.lm.vocab.size - 1
    )
    answers = []
    for method in ("fast-dllm", "llada", "mdlm", "prophet", "creditdecoding", "localleap"):
        engine = Engine(lm)
        done = engine.run([engine.submit("copy: 123123", method=method, max_tokens=12)])[0]
        answers.append(done)
        assert done.usage["completion_tokens"] <= 12 and done.metrics["target_passes"] <= 12
        assert (
            done.metrics["unmasked_per_pass"] >= 1
            and done.metrics["models"][0]["passes"] == done.metrics["target_passes"]
        )
    assert all(a.method["name"] != "plain" for a in answers)


def test_the_network_sees_both_ways_and_ours_agrees(trained):
    """The trained network's own logits are those of the loaded one."""
    from safetensors.torch import load_file

    from polydec.lab.train.network import from_weights

    out, _ = trained
    model = load(str(out), dtype="float32").checkpoint.lm
    config = json.loads((out / "config.json").read_text())
    network = make_bidirectional(from_weights(config, load_file(str(out / "model.safetensors"))))
    canvas = (5, 9, None, 11, None, 30)
    want = (
        network(torch.tensor([[model.mask if x is None else x for x in canvas]]))[0][[2, 4]]
        .detach()
        .double()
    )

    async def go():
        return await model.open_canvas(6).score_canvas(canvas, (2, 4), range(6))

    got = run_coroutines([go()])[0]
    assert float((got - want)[:, : model.mask].abs().max()) < 1e-3


def test_generate_from_the_command_line(trained, capfd, monkeypatch):
    from polydec.cli.main import main as command

    out, _ = trained

    def main(args):
        monkeypatch.setattr(sys, "argv", ["polydec", *args])
        with pytest.raises(SystemExit) as stop:
            command()
        return stop.value.code or 0

    for more in (
        [],
        ["--set", "cache=2", "--set", "block=4"],
        ["--temperature", "0.7", "--n", "2"],
    ):
        assert (
            main(
                [
                    "generate",
                    "--model",
                    str(out),
                    "--method",
                    "fast-dllm",
                    "--max-tokens",
                    "10",
                    "--json",
                    *more,
                    "copy: 123123",
                ]
            )
            == 0
        )
        said = json.loads(capfd.readouterr().out)
        assert said["method"]["name"] == "fast-dllm" and said["metrics"]["unmasked_per_pass"] >= 1
    assert main(["generate", "--model", str(out), "--method", "plain", "copy: 1"]) == 2
    assert "masked-diffusion" in capfd.readouterr().err


def test_eight_bits_are_read_and_begun_with(tmp_path):
    spec = {"rows": 4, "width": 32, "layers": 1, "steps": 1}
    train_diffusion(DiffusionSpec(str(tmp_path / "a"), ("copy",), int8=True, **spec))
    train_diffusion(
        DiffusionSpec(str(tmp_path / "b"), ("copy",), start=str(tmp_path / "a"), int8=True, **spec)
    )
    assert json.loads((tmp_path / "b" / "config.json").read_text())["torch_dtype"] == "int8"
    engine = Engine(load(str(tmp_path / "b")))
    assert (
        engine.run([engine.submit("copy: 123123", method="auto", max_tokens=8)])[0].usage[
            "completion_tokens"
        ]
        <= 8
    )


def test_an_interrupted_run_goes_on(tmp_path):
    spec = {"tasks": ("copy",), "rows": 4, "width": 32, "layers": 1}
    whole = train_diffusion(DiffusionSpec(str(tmp_path / "a"), steps=4, **spec))
    assert (
        train_diffusion(DiffusionSpec(str(tmp_path / "a"), steps=4, **spec))["loss"]
        == whole["loss"]
    )
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
    network = make_bidirectional(TrainableLlama(LlamaShape(40, 32, 1, 2, 2, 32, 16)))

    def forward(self, token_BT, *more):
        return seen.append(token_BT) or torch.zeros(*token_BT.shape, 40)

    monkeypatch.setattr(TrainableLlama, "forward", forward)
    token_BT, answer_BT = (
        torch.randint(0, 30, (64, 16)),
        (torch.arange(16) >= 7)[None].expand(64, -1),
    )
    masked_loss(network, token_BT, answer_BT, 39, torch.Generator().manual_seed(1))
    hidden = seen[0] == 39
    assert not hidden[:, :7].any() and 0.3 < float(hidden[:, 7:].float().mean()) < 0.7
    assert torch.equal(seen[0][~hidden], token_BT[~hidden])


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_right(name):
    for i in range(50):
        task = draw_task(name, 3, i)
        assert task == draw_task(name, 3, i) and is_right_task_answer(
            name, task.question, task.answer
        )
        assert is_right_task_answer(name, task.question, task.answer[:-1]) == (
            name in LONG
        )  # whose beginnings are right, too
        assert not is_right_task_answer(
            name, task.question, task.answer[:30] + "x"
        ) and not is_right_task_answer(name, task.question, "")
    assert {draw_task(name, 3, i) for i in range(20)} != {
        draw_task(name, 3, i, unseen=True) for i in range(20)
    }
    assert len({draw_task(name, s, 0) for s in range(20)}) > 3  # of some there are ten questions


def test_replacing_needs_exactly_one_place():
    for answer, good in (
        ("743216", True),
        ("543276", True),
        ("543216", False),
        ("773216", False),
        ("74321", False),
        ("743217", False),
        ("943216", False),
    ):
        assert is_right_task_answer("replace", "replace: 543216 7", answer) == good


def test_every_other_step_has_long_rows_of_tasks_that_go_on(tmp_path):
    spec = DiffusionSpec(str(tmp_path), ("copy", "table"), rows=8, long=120, width=32, layers=1)
    rows, lengths = DiffusionTaskRows(start_diffusion_student(spec).tokenizer, spec), []
    for step in range(12):
        token_BT, answer_BT = rows.batch_rows(step)
        ends = (token_BT == 1).sum(1)
        if step % 2:  # the end of the question alone: the answer goes on to the end of the row
            assert (
                len(token_BT) == 8 * 36 // token_BT.shape[1]
                and (ends == 1).all()
                and answer_BT[:, -1].all()
            )
            lengths.append(token_BT.shape[1])
        else:
            assert token_BT.shape[0] == 8 and 28 <= token_BT.shape[1] <= 36 and (ends > 1).all()
    assert 36 <= min(lengths) < 60 < max(lengths) <= 120
    with pytest.raises(ValueError, match="long is 120: tasks must have some of same, keep"):
        DiffusionSpec("", ("copy",), long=120)
    with pytest.raises(ValueError, match="long is 20: it must be 0, or lie in length"):
        DiffusionSpec("", ("copy", "same"), long=20)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"tasks": ("copi",)}, "tasks has 'copi': it must be one of copy, reverse, sort"),
        ({"tasks": ()}, "tasks is empty"),
        ({"steps": 0}, "steps is 0"),
        ({"length": 12}, "length is 12"),
        ({"shortest": 40}, "shortest is 40"),
        ({"causal": True, "block": 4}, "causal is on"),
        ({"width": 40}, "width is 40"),
        ({"block": -1}, "block is -1"),
    ],
)
def test_wrong_specs(fields, message):
    with pytest.raises(ValueError, match=message):
        DiffusionSpec("x", **fields)


def test_a_task_that_does_not_fit_is_said(tmp_path):
    from polydec.lab.train.tokens import train_tokenizer

    spec = DiffusionSpec("x", ("slots",), shortest=20, length=20)
    with pytest.raises(
        ValueError, match="shortest is 20: none of 50 tasks of 'slots' fits into 20"
    ):
        DiffusionTaskRows(train_tokenizer(["a"], 260), spec).batch_rows(0)


def test_a_block_sees_itself_and_what_is_clean_before_it():
    """The gradient of a noisy block's logits: its own noisy tokens, and clean ones of earlier blocks alone."""
    network = TrainableLlama(LlamaShape(12, 32, 2, 2, 2, 32, 16))
    token = torch.randint(0, 10, (1, 16))
    x = network.model.embed_tokens(token).detach().requires_grad_(True)
    network.model.embed_tokens.forward = lambda t: x
    out = network(token, torch.arange(8).repeat(2), block_sight(8, 4))
    for block in (0, 1):
        seen = (
            torch.autograd.grad(out[0, 4 * block : 4 * block + 4].sum(), x, retain_graph=True)[0][0]
            .abs()
            .sum(-1)
            > 0
        )
        assert seen.tolist() == [block == i // 4 for i in range(8)] + [
            i // 4 < block for i in range(8)
        ]
    seen = torch.autograd.grad(out[0, 12:].sum(), x)[0][0].abs().sum(-1) > 0
    assert seen.tolist() == [False] * 8 + [True] * 8


def test_one_noisy_row_is_many_passes_at_once():
    """A noisy block's logits beside the clean row are those of the block behind the clean blocks before it."""
    network = make_bidirectional(TrainableLlama(LlamaShape(12, 32, 2, 2, 2, 32, 16)))
    clean, noisy = torch.randint(0, 10, (1, 8)), torch.full((1, 8), 11)
    both = network(torch.cat([noisy, clean], 1), torch.arange(8).repeat(2), block_sight(8, 4))[
        0, 4:8
    ]
    at = torch.arange(8) // 4
    alone = network(torch.cat([clean[:, :4], noisy[:, 4:]], 1), None, at[:, None] >= at)[0, 4:]
    assert torch.allclose(both, alone, atol=1e-5)


def test_complementary_masks_ask_for_each_token_once(monkeypatch):
    asked = []

    def forward(self, token_BT, *more):
        asked.append(token_BT[:, :16] == 39)
        return torch.zeros(*token_BT.shape, 40)

    monkeypatch.setattr(TrainableLlama, "forward", forward)
    network = TrainableLlama(LlamaShape(40, 32, 1, 2, 2, 32, 16))
    token_BT, answer_BT = torch.randint(0, 30, (8, 16)), (torch.arange(16) >= 7)[None].expand(8, -1)
    loss = block_loss(network, token_BT, answer_BT, 39, torch.Generator().manual_seed(1), 4)
    assert (
        torch.equal(asked[0][:8] ^ asked[0][8:], answer_BT)
        and abs(float(loss) - math.log(39)) < 1e-5
    )


@pytest.mark.parametrize(
    "more", [{"block": 4}, {"shifted": True}, {"block": 4, "shifted": True}, {"causal": True}]
)
def test_other_kinds_learn_and_load(tmp_path, trained, more):
    spec = DiffusionSpec(str(tmp_path), ("copy",), steps=12, rows=8, start=str(trained[0]), **more)
    result = train_diffusion(spec)
    assert result["curve"][-1][1] < 8
    model = load(str(tmp_path)).checkpoint.lm
    if more.get("causal"):
        assert not hasattr(model, "mask") and model.vocab.same_tokens(
            load(str(trained[0])).checkpoint.lm.vocab
        )
    else:
        assert (model.block, model.shifted) == (more.get("block", 0), more.get("shifted", False))


def test_an_autoregressive_start_gets_a_mask(tmp_path, trained):
    first = train_diffusion(
        DiffusionSpec(
            str(tmp_path / "ar"), ("copy",), steps=2, rows=4, causal=True, width=32, layers=1
        )
    )
    train_diffusion(
        DiffusionSpec(
            str(tmp_path / "d"), ("copy",), steps=4, rows=4, start=str(tmp_path / "ar"), anneal=3
        )
    )
    ar = load(str(tmp_path / "ar")).checkpoint.lm
    assert first["parameters"] and load(str(tmp_path / "d")).checkpoint.lm.mask == ar.vocab.size - 1
    with pytest.raises(ValueError, match="start is"):
        train_diffusion(DiffusionSpec(str(tmp_path / "e"), start=str(tmp_path / "nothing")))


@pytest.mark.parametrize("mask", (1 << 30, -1, "7"))
def test_a_mask_beyond_the_vocabulary_makes_no_rows(tmp_path, trained, mask):
    shutil.copytree(trained[0], tmp_path / "far")
    config = json.loads((tmp_path / "far/config.json").read_text())
    (tmp_path / "far/config.json").write_text(json.dumps({**config, "polydec_mask": mask}))
    with pytest.raises(FileError, match="polydec_mask is"):
        start_diffusion_student(DiffusionSpec("", ("copy",), start=str(tmp_path / "far")))


def test_an_autoregressive_model_learns_all_of_an_answer_that_goes_on():
    """Whatever its last token is; of the ends that fill a row it learns the first."""

    class Says(torch.nn.Module):
        def forward(self, token_BT):
            return torch.zeros(*token_BT.shape, 6).index_fill(-1, torch.tensor([5]), 1.0)

    answer_BT, every = torch.arange(8)[None] >= 2, math.log(math.exp(1.0) + 5)
    for row in ([1, 2, 5, 5, 3, 5, 3, 3], [1, 2, 5, 0, 0, 0, 0, 0]):
        assert float(next_token_loss(Says(), torch.tensor([row]), answer_BT, 0)) == pytest.approx(
            every - 0.5
        )


@pytest.mark.parametrize("written", [False, True])
def test_a_filter_learns_from_what_was_right_when(written):
    """Pass by pass over a toy: the greatest probabilities, which of their tokens the answer has, and which are gaps."""
    chain = MarkovChainNetwork(3, 5, sharp=2.0)
    spec = FilterSpec("x", max_tokens=7, block=4, written=written)
    final = (0, 1, 2, 0, 3, 1, 2, 0, 4, 1)
    (got,) = run_coroutines([_pairs(ToyDenoiser(chain), (0, 1, 2), final, spec)])
    canvas, rows = [0, 1, 2, *(None,) * 7], []
    for block in (range(3, 7), range(7, 10)):
        while gap := [i for i in block if canvas[i] is None]:
            law = {i: chain.position_law(tuple(canvas), i)[:-1].softmax(-1) for i in block}
            seen = block if written else gap
            sure = [float(law[i].max()) if i in seen else 1.0 for i in block]
            right = [float(i not in seen or int(law[i].argmax()) == final[i]) for i in block]
            pad = 4 - len(block)
            rows.append(
                (
                    [*sure, *[1.0] * pad],
                    [*right, *[1.0] * pad],
                    [*(float(i in gap) for i in block), *[0.0] * pad],
                )
            )
            for i in [i for i in gap if int(law[i].argmax()) == final[i]] or gap:
                canvas[i] = final[i]
    for mine, theirs in zip(got, zip(*rows, strict=True), strict=True):
        assert torch.allclose(mine, torch.tensor(theirs))


@pytest.mark.parametrize("written", [False, True])
def test_a_filter_is_trained_from_the_models_own_runs(tmp_path, trained, written):
    """The more steps, the nearer to which tokens were right; what it reads is kept with it."""
    losses = []
    for steps in (1, 60):
        spec = FilterSpec(
            str(tmp_path / str(steps)),
            str(trained[0]),
            ("copy",),
            each=6,
            max_tokens=10,
            block=5,
            steps=steps,
            written=written,
        )
        losses.append(train_probe(spec)["loss"])
    assert losses[1] < 0.9 * losses[0] and filters.load(tmp_path / "60").written == written
    lm = load(str(trained[0]), trained=[str(tmp_path / "60")])
    engine = Engine(lm)
    done = engine.run([engine.submit("copy: 123123", method="learn2pd", max_tokens=12)])[0]
    assert done.method["name"] == "learn2pd"
    with pytest.raises(ValueError, match="needs a filter of confidences"):
        Engine(load(str(trained[0]))).submit("copy: 1", method="learn2pd")


def test_a_filter_of_before_its_layer_had_a_width_of_its_own_is_read(tmp_path):
    one = filters.new_confidence_filter(5, 5, 0)
    filters.save(tmp_path, one, {})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k != "hidden"})
    )
    sure_NB = torch.rand(3, 5, generator=torch.Generator().manual_seed(1))
    assert filters.load(tmp_path).size == 5 and torch.equal(
        filters.load(tmp_path).filter_logits(sure_NB), one.filter_logits(sure_NB)
    )


def test_certainty_is_forced_on_right_tokens_only():
    """A confident wrong token has no entropy term, a right one has."""

    class Says(torch.nn.Module):
        def forward(self, token_BT, position_T, see_TT):
            return self.logit.expand(*token_BT.shape, -1)

    says = Says()
    token_BT, answer_BT = torch.zeros(4, 6, dtype=torch.long), torch.ones(4, 6, dtype=torch.bool)
    for likeliest, differs in ((0, True), (1, False)):
        says.logit = torch.zeros(5)
        says.logit[likeliest] = 2.0
        losses = [
            float(
                certain_loss(
                    says, token_BT, answer_BT, answer_BT, 4, torch.Generator().manual_seed(0), b
                )
            )
            for b in (0.0, 2.0)
        ]
        assert (losses[1] - losses[0] > 0.1) == differs


def test_a_batch_without_answers_can_be_trained_on():
    network = TrainableLlama(LlamaShape(5, 8, 1, 1, 1, 16, 8))
    token_BT, none_BT = torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.bool)
    loss = certain_loss(
        network, token_BT, ~none_BT, none_BT, 4, torch.Generator().manual_seed(0), 1.0
    )
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in network.parameters())


def test_questions_are_left_out_as_guidance_leaves_them_out():
    """Rows of gaps before the answer, as many as asked for; of a causal model the chat template around nothing."""
    token_BT = torch.arange(200 * 12).view(200, 12)
    answer_BT = torch.arange(12)[None].expand(200, -1) >= 5
    out_BT = apply_prompt_dropout(token_BT, answer_BT, -7, 0.3, torch.Generator().manual_seed(1))
    rows = [(r[:5] == -7).all().item() for r in out_BT]
    assert 40 < sum(rows) < 80 and torch.equal(out_BT[:, 5:], token_BT[:, 5:])
    assert all(
        torch.equal(a[:5], b[:5]) or x for a, b, x in zip(out_BT, token_BT, rows, strict=True)
    )
    assert torch.equal(
        apply_prompt_dropout(token_BT, answer_BT, -7, 0.0, torch.Generator()), token_BT
    )

    spec = DiffusionSpec("", ("copy",), start="zoo:diffusion", causal=True, drop=0.4, rows=40)
    tokenizer = start_diffusion_student(spec).tokenizer
    token_BT, answer_BT = DiffusionTaskRows(tokenizer, spec).batch_rows(0)
    whole_BT, all_BT = DiffusionTaskRows(tokenizer, replace(spec, drop=0.0)).batch_rows(0)
    short = [i for i in range(40) if int(answer_BT[i].sum()) > int(all_BT[i].sum())]
    assert 6 < len(short) < 30
    for i in range(40):
        if i not in short:
            assert torch.equal(token_BT[i], whole_BT[i])
        else:  # the same answer behind an empty question
            n, m = int((~answer_BT[i]).sum()), int((~all_BT[i]).sum())
            left = token_BT.shape[1] - m
            assert n < m and torch.equal(token_BT[i, n : n + left], whole_BT[i, m:])
    assert len({tuple(token_BT[i, : int((~answer_BT[i]).sum())].tolist()) for i in short}) == 1
    with pytest.raises(ValueError, match=r"drop is 1\.5"):
        replace(spec, drop=1.5)


def test_a_block_is_learned_between_what_stands_and_what_is_hidden():
    """Every block of every answer is drawn, each position before, in or behind it; half of it is masked, and its later blocks
    are gaps in both copies, of which nothing is learned."""
    answer_BT = torch.tensor([[0] * 3 + [1] * 10 + [0], [0] * 6 + [1] * 8]).bool()
    seen = set()
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        part_BT, later_BT = split_answer_blocks(answer_BT, 4, g)
        assert not (part_BT & later_BT).any() and not ((part_BT | later_BT) & ~answer_BT).any()
        for begin, length, part_T, later_T in (
            (3, 10, part_BT[0], later_BT[0]),
            (6, 8, part_BT[1], later_BT[1]),
        ):
            where = [i for i in range(14) if part_T[i]]
            block = (where[0] - begin) // 4
            stop = min(begin + 4 * block + 4, begin + length)
            assert where == [*range(begin + 4 * block, stop)]
            assert [i for i in range(14) if later_T[i]] == [*range(stop, begin + length)]
            seen.add((begin, block))
    assert seen == {(3, 0), (3, 1), (3, 2), (6, 0), (6, 1)}
    whole, none = split_answer_blocks(answer_BT, 0, g)
    assert torch.equal(whole, answer_BT) and not none.any()

    fed, shares = [], []

    def network(token_BT, *_):
        fed.append(token_BT)
        return (bias + torch.zeros(*token_BT.shape, 5)).requires_grad_()

    token_BT, bias = torch.zeros(2, 14, dtype=torch.long), torch.zeros(5)
    for seed in range(60):
        fed.clear()
        g = torch.Generator().manual_seed(seed)
        part_BT, later_BT = split_answer_blocks(answer_BT, 4, g)
        certain_loss(network, token_BT, answer_BT, part_BT, 4, g, 1.0, later_BT, True)
        gaps_BT = [x == 4 for x in fed]
        assert all((x & ~part_BT == later_BT).all() for x in gaps_BT)
        if len(fed) == 2:
            assert torch.equal((gaps_BT[0] ^ gaps_BT[1]), part_BT)
        shares.append(float((gaps_BT[0] & part_BT).sum() / part_BT.sum()))
    assert abs(sum(shares) / 60 - 0.5) < 0.08


def test_adapters_begin_as_nothing_and_become_part_of_the_weights(trained):
    student = start_diffusion_student(
        DiffusionSpec("", ("copy",), start=str(trained[0]), shortest=16, length=40)
    )
    network, token_BT = student.network, torch.arange(12)[None]
    see = torch.ones(1, 1, 12, 12, dtype=torch.bool)
    names, before = list(network.state_dict()), network(token_BT, None, see)
    add_lora_adapters(network, 2, 0)
    assert torch.equal(network(token_BT, None, see), before)
    learned = {n for n, p in network.named_parameters() if p.requires_grad}
    assert learned and all(n.endswith((".up", ".down")) for n in learned)
    with torch.no_grad():
        for n, p in network.named_parameters():
            if n.endswith(".up"):
                p.add_(0.1)
    after = network(token_BT, None, see)
    assert not torch.allclose(after, before)
    merge_lora_adapters(network)
    assert list(network.state_dict()) == names or set(network.state_dict()) == set(names)
    assert torch.allclose(network(token_BT, None, see), after, atol=1e-5)


def test_adapters_are_trained_and_saved_as_one_model(tmp_path, trained):
    spec = DParallelSpec(
        str(tmp_path / "low"),
        str(trained[0]),
        ("copy",),
        each=4,
        max_tokens=10,
        block=4,
        half=True,
        lora=2,
        rows=4,
        steps=6,
        rate=1e-2,
    )
    assert train_dparallel(spec)["answers"] == 4
    made, old = (load(name, draft=None).checkpoint.lm for name in (spec.out, str(trained[0])))
    canvas, rows = (*load(spec.out).encode_prompt("copy: 1"), *(None,) * 6), None
    rows = [i for i, x in enumerate(canvas) if x is None]
    a, b = (
        run_coroutines([m.open_canvas(len(canvas)).score_canvas(canvas, rows, range(len(canvas)))])[
            0
        ]
        for m in (made, old)
    )
    finite = a > float("-inf")
    assert not torch.allclose(a[finite], b[finite], atol=1e-3)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A masked-diffusion checkpoint that no training of ours wrote, and text of one's own with prompts for it."""
    path = tmp_path_factory.mktemp("elsewhere")
    model = micro.masked(path / "masked", str(micro.write(path / "causal")))
    data = path / "own.jsonl"
    data.write_text("".join(f'{{"prompt": "Where is fox {i}?"}}\n' for i in range(20)))
    return model, data


def test_any_checkpoint_learns_from_any_text(elsewhere, tmp_path):
    """Its own answers to one's own prompts; tokenizer and chat template go along."""
    model, data = elsewhere
    more = {"each": 20, "max_tokens": 6, "steps": 4, "rows": 4, "rate": 1e-2}
    spec = DParallelSpec(str(tmp_path / "out"), model, data=str(data), **more)
    result = train_dparallel(spec)
    assert 8 <= result["answers"] <= 18  # of ten prompts seven are learned from
    made, old = (load(name, draft=None) for name in (spec.out, model))
    assert made.encode_prompt("Where is fox 3?") == old.encode_prompt("Where is fox 3?")
    assert made.checkpoint.lm.mask == old.checkpoint.lm.mask
    canvas = (*made.encode_prompt("Where is fox 3?"), *(None,) * 6)
    rows = [i for i, x in enumerate(canvas) if x is None]
    after, before = (
        run_coroutines(
            [
                lm.checkpoint.lm.open_canvas(len(canvas)).score_canvas(
                    canvas, rows, range(len(canvas))
                )
            ]
        )[0]
        for lm in (made, old)
    )
    finite = after > float("-inf")
    assert not torch.allclose(after[finite], before[finite], atol=1e-2)
    with pytest.raises(RequestError, match="leaves room for 250 tokens"):
        train_dparallel(replace(spec, out=str(tmp_path / "no"), max_tokens=250))


def test_a_filter_learns_from_any_text(elsewhere, tmp_path):
    model, data = elsewhere
    spec = FilterSpec(
        str(tmp_path / "f"),
        model,
        each=20,
        max_tokens=4,
        block=4,
        hidden=4,
        steps=4,
        data=str(data),
    )
    assert train_probe(spec)["pairs"] > 0


def test_what_stands_behind_a_canvas_changes_nothing_in_its_loss(trained):
    """A row's loss is that of the row alone, without the padding that a longer neighbour makes."""
    student = start_diffusion_student(
        DiffusionSpec("", ("copy",), start=str(trained[0]), shortest=16, length=40)
    )
    token_BT = torch.randint(0, 20, (1, 24), generator=torch.Generator().manual_seed(1))
    canvas_BT, losses = torch.arange(24)[None] < 18, []
    for behind in (3, 7):
        row_BT = token_BT.masked_fill(~canvas_BT, behind)
        losses.append(
            float(
                certain_loss(
                    student.network,
                    row_BT,
                    canvas_BT,
                    canvas_BT & (torch.arange(24) >= 9),
                    student.mask,
                    torch.Generator().manual_seed(2),
                    2.0,
                )
            )
        )
    assert losses[0] == losses[1]


def test_certainty_has_a_weight(tmp_path, trained):
    """Another model is learned where certainty is asked for than where it only learns its answers."""
    nats = {}
    for beta in (0.0, 4.0):
        spec = DParallelSpec(
            str(tmp_path / str(beta)),
            str(trained[0]),
            ("copy",),
            each=6,
            max_tokens=10,
            beta=beta,
            rows=8,
            steps=40,
            rate=3e-3,
        )
        assert train_dparallel(spec)["answers"] == 6
        lm = load(spec.out)
        model = lm.checkpoint.lm
        assert model.mask == load(str(trained[0])).checkpoint.lm.mask
        each = list[float]()
        for digits in range(100_000, 1_000_000, 37_037):
            prompt = lm.encode_prompt(f"copy: {digits}")
            canvas, rows = (*prompt, *(None,) * 10), range(len(prompt), len(prompt) + 10)
            (logw_RV,) = run_coroutines(
                [model.open_canvas(len(canvas)).score_canvas(canvas, rows, range(len(canvas)))]
            )
            each.append(float(row_entropy(logw_RV.log_softmax(-1)).mean()))
        nats[beta] = sum(each) / len(each)
    assert (
        nats[4.0] != nats[0.0]
    )  # which way, the next test says: here six answers are learned by heart


def test_certainty_is_what_its_weight_presses(trained):
    """From one model, on one batch: a few steps with the weight leave less entropy at right tokens than as many without."""
    student = start_diffusion_student(
        DiffusionSpec("", ("copy",), start=str(trained[0]), shortest=16, length=40)
    )
    token_BT = torch.randint(0, 20, (8, 24), generator=torch.Generator().manual_seed(1))
    canvas_BT = torch.ones(8, 24, dtype=torch.bool)
    answer_BT = canvas_BT & (torch.arange(24) >= 9)

    def loss(network, beta):
        dice = torch.Generator().manual_seed(2)
        return certain_loss(network, token_BT, canvas_BT, answer_BT, student.mask, dice, beta)

    left = {}
    for beta in (0.0, 4.0):
        network = copy.deepcopy(student.network)
        steps = torch.optim.SGD(network.parameters(), 0.01)
        for _ in range(10):
            steps.zero_grad()
            loss(network, beta).backward()
            steps.step()
        with torch.no_grad():
            left[beta] = float(loss(network, 1.0) - loss(network, 0.0))
    assert left[4.0] < left[0.0] - 0.05


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_masks_half_and_trains_adapters_where_told_so(elsewhere, monkeypatch, half, rank):
    """What the options of the published way name arrives in the loss and in what is trained."""
    model, data = elsewhere
    told = []

    def noted(*args):
        told.append(args)
        return torch.zeros(())

    monkeypatch.setattr(dparallel, "certain_loss", noted)
    small = {"data": str(data), "each": 4, "max_tokens": 6, "rows": 4}
    course = dparallel._course(
        DParallelSpec("", model, block=3, half=half, lora=rank, beta=1.5, **small)
    )
    course.loss(0)
    (network, _, _, part_BT, _, _, beta, later_BT, halved) = told[0]
    assert network is course.network and beta == 1.5 and halved is half
    assert part_BT.sum(-1).max() <= 3 and later_BT.any()
    learned = [name for name, p in network.named_parameters() if p.requires_grad]
    adapters = [name for name in learned if name.endswith((".up", ".down"))]
    assert learned and (adapters == learned if rank else not adapters)


def test_half_of_a_block_is_masked_in_every_row():
    """As published: rows of one batch differ by chance alone, where shares of all sizes lie evenly."""
    fed = []

    def network(token_BT, *_):
        fed.append(token_BT)
        return torch.zeros(*token_BT.shape, 5).requires_grad_()

    token_BT, answer_BT = torch.zeros(8, 400, dtype=torch.long), torch.ones(8, 400).bool()
    spread = []
    for half in (False, True):
        fed.clear()
        dice = torch.Generator().manual_seed(0)
        certain_loss(network, token_BT, answer_BT, answer_BT, 4, dice, 1.0, None, half)
        spread.append((fed[0] == 4).float().mean(-1))
    assert float(spread[0].max() - spread[0].min()) > 0.7
    assert float((spread[1] - 0.5).abs().max()) < 0.12
