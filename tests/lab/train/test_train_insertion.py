"""Training an insertion model, small; the model that it makes, through the engine and the command line."""

import json
import math
import sys

import pytest
import torch

from polydec import Engine, Regex, load
from polydec.core.scheduler import run_coroutines
from polydec.lab.bench import parallelbench
from polydec.lab.train.data import END
from polydec.lab.train.diffusion import start_diffusion_student
from polydec.lab.train.insertion import (
    InsertionExample,
    InsertionMarks,
    InsertionSpec,
    draw_insertion_examples,
    insertion_loss,
    marks_of,
    train_insertion,
)
from polydec.lab.train.network import from_weights, make_bidirectional
from polydec.lab.train.tokens import mark_id
from polydec.methods.insertion.loop.inserting import InsertionDecoder
from polydec.models.sessions.inserter import FRAME, BidirectionalInserter

SMALL = {
    "tasks": ("copy",),
    "steps": 40,
    "rows": 16,
    "context": 48,
    "width": 64,
    "layers": 2,
    "rate": 3e-3,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("insertion") / "model"
    return out, train_insertion(InsertionSpec(str(out), **SMALL))


@pytest.fixture(scope="module")
def engine(trained):
    return Engine(load(str(trained[0]), threads=1))


def test_the_loss_falls_and_the_directory_loads(trained, engine):
    out, result = trained
    assert result["curve"][-1][1] < 0.8 * result["curve"][0][1]
    lm = engine.model.checkpoint.lm
    assert (
        isinstance(lm, BidirectionalInserter)
        and lm.family == "insertion"
        and lm.mark == lm.vocab.size - 1
    )
    assert lm.context == SMALL["context"] - FRAME == lm.network.context - FRAME
    again = train_insertion(InsertionSpec(str(out), **SMALL))
    assert again["loss"] == result["loss"]
    assert [m.name for m in parallelbench.default_suite_methods(engine.model)] == [
        "insertion-language-models"
    ]
    with pytest.raises(ValueError, match="belongs to another run"):
        train_insertion(InsertionSpec(str(out), **{**SMALL, "steps": 41}))


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_slate_that_grew_says_what_the_network_says_of_the_text(trained, dtype):
    """Whatever stood before, the pass is that of the text as it is now: order in the cache is that of positions."""
    from safetensors.torch import load_file

    out, _ = trained
    model = load(str(out), dtype=dtype, threads=1).checkpoint.lm
    config, weights = (
        json.loads((out / "config.json").read_text()),
        load_file(str(out / "model.safetensors")),
    )
    network = make_bidirectional(from_weights(config, weights))
    slate, end = model.open_slate(8), min(model.vocab.eos)
    for text, slots in (
        ((5, 9, end), (1,)),
        ((5, 9, 11, end), (1, 2)),
        ((5, 9, 30, 11, 12, end), (2, 4)),
    ):
        offer = run_coroutines([slate.score_slots(text, slots)])[0]
        want = network(torch.tensor([[model.mark, *text]]))[0].double()
        legal = [x for x in range(model.vocab.size) if x not in model.barred]
        assert float((offer.logw_SV - want[[s + 1 for s in slots]])[:, legal].abs().max()) < 1e-3
        assert bool((offer.logw_SV[:, model.barred] == -math.inf).all()) and end in model.barred
        assert abs(offer.whole - float(want[0, [model.mark, end]].softmax(0)[1])) < 1e-3
    slate.close()
    with pytest.raises(ValueError, match=f"the text has {model.context + 1} tokens"):
        model.open_slate(model.context + 1)


def test_answers(engine):
    """Batches say what singles say; the end is a token; several tokens a pass take fewer passes."""

    def ask(i, **more):
        return engine.submit(f"copy: {100003 * i:06}", method="ilm", max_tokens=10, **more)

    together = [r.token_ids for r in engine.run([ask(i) for i in range(5)])]
    assert together == [engine.run([ask(i)])[0].token_ids for i in range(5)]
    done = engine.run(
        [
            ask(1, options={"count": 4, "share": 0}),
            ask(
                1,
                options={"draw": True},
                n=3,
                logprobs=2,
                sampling=engine.model.sampling_with(temperature=1.0),
            ),
        ]
    )
    assert (
        done[0].metrics["target_passes"] < len(done[0].token_ids) <= 10
        and done[0].metrics["inserted_per_pass"] > 1
    )
    assert len(done[1].choices) == 3 and all(
        len(n.top) == 2 for n in done[1].choices[0].logprobs[:-1]
    )


def test_gaps_of_unknown_length(engine):
    """What is given stands where it is; a gap takes up to as many tokens as stand for it."""
    drawn = {
        "method": "ilm",
        "options": {"draw": True},
        "sampling": engine.model.sampling_with(temperature=1.0),
    }
    for seed in range(4):
        text = engine.run(
            [engine.submit("copy: 123123", infill="1[[3]]31[[4]]", seed=seed, **drawn)]
        )[0].text
        assert text.startswith("1") and "31" in text[1:6] and len(text) <= 10


def test_what_cannot_be_honoured_is_said(trained, engine):
    def refused(match, **more):
        with pytest.raises(ValueError, match=match):
            engine.submit("copy: 123123", **{"method": "auto", "max_tokens": 8, **more})

    refused(
        "method plain decodes autoregressive models and this is an insertion one: take insertion-language",
        method="plain",
    )
    refused(
        "method fast-dllm decodes masked-diffusion models and this is an insertion one",
        method="fast-dllm",
    )
    refused("sampling rule repetition", sampling=engine.model.sampling_with(repetition_penalty=1.2))
    refused("sampling rule min_tokens", sampling=engine.model.sampling_with(min_tokens=2))
    refused("prompt_logprobs is 2: an insertion model", prompt_logprobs=2)
    refused(
        "constraint needs a text that is written from left to right, or a canvas whose length is known, and an "
        "insertion model writes in any order",
        constraint=Regex("[0-9]+"),
    )
    refused(
        "steer is 'cfg': an insertion model has no law of a next token", negative_prompt="copy: 1"
    )
    refused("max_tokens is 40: the prompt has", max_tokens=40)
    with pytest.raises(ValueError, match="an insertion model is decoded without one"):
        Engine(load(str(trained[0]), draft=str(trained[0]), threads=1)).submit(
            "copy: 1", method="auto", max_tokens=4
        )


def test_from_the_command_line(trained, tmp_path, capfd, monkeypatch):
    from polydec.cli.main import main as command

    def main(*args):
        monkeypatch.setattr(sys, "argv", ["polydec", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            command()
        return stop.value.code or 0

    assert (
        main("generate", "--model", trained[0], "--max-tokens", 10, "--json", "copy: 123123") == 0
    )
    said = json.loads(capfd.readouterr().out)
    assert said["method"]["name"] == "insertion-language-models"
    assert (
        said["metrics"]["target_passes"] == said["usage"]["completion_tokens"]
    )  # the last one finds nothing missing
    assert (
        main(
            "train",
            "insertion",
            "--out",
            tmp_path / "m",
            "--tasks",
            "copy",
            "--steps",
            1,
            "--rows",
            2,
            "--width",
            32,
            "--layers",
            1,
            "--start",
            trained[0],
            "--context",
            48,
        )
        == 0
    )
    assert "1 steps" in capfd.readouterr().out


def test_examples_hide_any_number_of_any_tokens():
    spec = InsertionSpec("", ("copy", "slots"), rows=40, context=96)
    student = start_diffusion_student(spec.begin_samples())
    some = [e for step in range(25) for e in draw_insertion_examples(spec, student, step)]
    assert some[:40] == draw_insertion_examples(spec, student, 0)
    lengths = {len(e.answer) for e in some}
    assert len(lengths) > 1
    for e in some:
        left, missing = list(e.kept), e.missing
        for before, token in reversed(missing):
            left.insert(before, token)
        assert tuple(left) == e.answer and len(e.kept) + len(missing) == len(e.answer)
    digits = [e for e in some if len(e.answer) == 6]
    counts = [sum(len(e.hidden) == k for e in digits) / len(digits) for k in range(7)]
    assert all(abs(c - 1 / 7) < 0.05 for c in counts)
    with pytest.raises(ValueError, match="context is 32: task"):
        draw_insertion_examples(
            InsertionSpec("", ("slots",), context=32),
            start_diffusion_student(InsertionSpec("", ("copy",)).begin_samples()),
            0,
        )


def test_the_loss_of_a_known_network():
    """A network that says the same everywhere: its loss is written down by hand."""

    class Flat(torch.nn.Module):
        def forward(self, token_BT, position_T=None, see_TT=None):
            seen.append((token_BT, see_TT))
            return logit_V.expand(*token_BT.shape, -1)

    seen, logit_V, marks = (
        [],
        torch.tensor([0.3, -1.0, 0.5, 0.7, -0.2]),
        InsertionMarks(4, 3, (3, 4)),
    )
    some = [
        InsertionExample((0, 1), (2, 0, 1), frozenset({0, 2})),
        InsertionExample((1,), (1,), frozenset()),
    ]
    got = float(insertion_loss(Flat(), some, marks))
    logp = logit_V[:3].log_softmax(0)
    token = -(logp[2] + logp[1]) / 2 + math.log(
        2
    )  # two slots: behind the prompt, and behind the 0 that is left
    missing, whole = -logit_V[[4, 3]].log_softmax(0)
    assert abs(got - (4 / 3 * (token + missing) + 2 / 3 * whole) / 2) < 1e-6
    assert seen[0][0].tolist() == [[4, 0, 1, 0, 3], [4, 1, 1, 3, 3]] and seen[0][1][
        1, 0, 0
    ].tolist() == [True] * 4 + [False]


def test_specs_are_checked():
    for wrong, match in (
        ({"context": 8}, "context is 8"),
        ({"tasks": ("copy", "on")}, "tasks has 'on'"),
        ({"tasks": ("copi",)}, "tasks has 'copi'"),
        ({"width": 33}, "width is 33"),
        ({"steps": 0}, "steps is 0"),
    ):
        with pytest.raises(ValueError, match=match):
            InsertionSpec("", **wrong)


def test_a_damaged_directory_is_refused(trained, tmp_path):
    import shutil

    config = json.loads((trained[0] / "config.json").read_text())
    for wrong, match in (
        ({"polydec_insertion": "x"}, "polydec_insertion"),
        ({"polydec_causal": True}, "polydec_causal"),
        ({"polydec_insertion": 10**6}, "the mark is token"),
    ):
        shutil.copytree(trained[0], tmp_path / "m", dirs_exist_ok=True)
        (tmp_path / "m" / "config.json").write_text(json.dumps({**config, **wrong}))
        with pytest.raises(ValueError, match=match):
            load(str(tmp_path / "m"))


def test_marks():
    student = start_diffusion_student(
        InsertionSpec("", ("copy",), width=32, layers=1).begin_samples()
    )
    marks = marks_of(student)
    assert marks.mark == student.tokenizer.get_vocab_size() and marks.end == mark_id(
        student.tokenizer, END
    )
    assert {marks.mark, marks.end} < {*marks.barred} and len(marks.barred) == 5


def test_verify_holds_insertions_against_a_fresh_pass(
    trained, polydec_command, tmp_path, monkeypatch
):
    data = tmp_path / "prompts.txt"
    data.write_text("copy: 1234\ncopy: 77\n")
    asked = ("--model", str(trained[0]), "--data", str(data), "--method", "ilm", "--json")
    drawn = ("--temperature", "1", "--set", "draw=true", "--samples", "16", "--max-tokens", "6")
    code, out, _ = polydec_command("verify", *asked, *drawn)
    said = json.loads(out)
    assert code == 0 and said["verdict"] == "keeps it" and said["promise"] == "law", said["place"]
    assert {t["name"] for t in said["law"]["tests"]} == {"surprise", "cells", "pairs", "twins"}
    assert said["law"]["tokens"] > 32 and said["enumeration"]["laws"] == 8
    # Without draws nothing is promised, and what is likeliest surprises less than the law expects.
    code, out, _ = polydec_command("verify", *asked, "--max-tokens", "6")
    far = json.loads(out)
    assert code == 0 and far["promise"] == "approximate" and far["verdict"] == "measured"
    assert far["distance"]["steps"] > 2 and not far["distance"]["excluded"]
    assert far["distance"]["surprise"] != far["distance"]["expected"]
    # A slot's token from another temperature is a fault: the toys and this model both see it.
    cold = lambda self, logw_V: (6 * logw_V).log_softmax(-1)  # noqa: E731
    monkeypatch.setattr(InsertionDecoder, "slot_law", cold)
    code, out, _ = polydec_command("verify", *asked, *drawn)
    said = json.loads(out)
    assert code == 1 and said["verdict"] == "fault" and "insertion: toy law 1" in said["place"]
    assert min(t["p"] for t in said["law"]["tests"]) < 1e-4
