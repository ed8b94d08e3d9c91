"""A training that is killed (SIGKILL: nothing is tidied up) while it gathers text and again in the middle of its steps, and
started again each time, ends with the weights of one that was left alone."""

import json
import os
import signal

import pytest

import forked
from polydec.lab.train.data import held_out
from polydec.lab.train.kinds import KINDS
from polydec.models.native.library import native_step_availability

DIES = """
import os, signal, sys
import torch
from polydec.lab.train import selfplay, step_pairs
from polydec.__main__ import main

def dying(inner, left):
    def outer(*given, **named):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*given, **named)
    return outer

where, count, *sys.argv[1:] = sys.argv[1:]
torch.set_num_threads(1)
if where == "text":
    selfplay.asdict = dying(selfplay.asdict, int(count))
elif where == "problems":
    step_pairs.answer_one = dying(step_pairs.answer_one, int(count))
elif where == "steps":
    torch.nn.utils.clip_grad_norm_ = dying(torch.nn.utils.clip_grad_norm_, int(count))
main()
"""
SMALL = ("--target", "zoo:tiny", "--each", "9", "--max-tokens", "24")
PIECES = ("--length", "8")

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="SIGKILL"),
    pytest.mark.skipif(
        not native_step_availability()[0],
        reason="the torch path's sums depend on who shares a pass",
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Twenty prompts to learn from and ten held-out ones."""
    root = tmp_path_factory.mktemp("data")
    texts = [
        f"Tell me about the {a} and {b} {c}."
        for a in ("grey", "old", "tall", "young")
        for b in ("small", "quiet")
        for c in ("fox", "boat", "river", "baker", "train", "teacher")
    ]
    parts = [[t for t in texts if held_out(t) == held][:n] for held, n in ((False, 20), (True, 10))]
    assert [len(p) for p in parts] == [20, 10]
    (root / "spec_bench").mkdir()
    (root / "spec_bench" / "question.jsonl").write_text(
        "".join(json.dumps({"turns": [t]}) + "\n" for p in parts for t in p)
    )
    return root


def train(out, *args, dies=("", 0)):
    """`polydec train`; dies: where and after how many times."""
    done = forked.run("-c", DIES, dies[0], str(dies[1]), "train", *args, "--out", str(out))
    assert done.returncode == (-signal.SIGKILL if dies[0] else 0), done.stderr[-2000:]


def made(out):
    """All that was learned and learned from."""
    kept = {
        p.name: p.read_bytes()
        for p in out.iterdir()
        if p.suffix in (".jsonl", ".safetensors") or ".states-" in p.name
    }
    assert any(name.endswith(".safetensors") for name in kept)
    return kept


def twice_killed(tmp_path, args, steps, text=("text", 4)):
    train(tmp_path / "whole", *args)
    if text[0]:
        train(tmp_path / "cut", *args, dies=text)
        assert not any(p.name in ("state.pt", "config.json") for p in (tmp_path / "cut").iterdir())
    if steps:
        train(tmp_path / "cut", *args, dies=("steps", steps))
        assert (tmp_path / "cut" / "state.pt").exists() and not (
            tmp_path / "cut" / "config.json"
        ).exists()
    train(tmp_path / "cut", *args)
    whole, cut = made(tmp_path / "whole"), made(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    assert [name for name in whole if whole[name] != cut[name]] == []


def test_killed_while_it_gathers_and_in_its_steps(data, tmp_path):
    twice_killed(
        tmp_path,
        (
            "eagle",
            *SMALL,
            *PIECES,
            "--data",
            str(data),
            "--mixed",
            "--rows",
            "2",
            "--steps",
            "6",
            "--save-every",
            "2",
        ),
        3,
    )


COMMANDS = {
    kind: "heads"
    if kind in ("medusa", "hydra", "hydra++", "hydra++-deep", "clover")
    else "probes"
    if kind in ("ppd", "lud", "hidden-transfer", "mtp")
    else "eagle"
    for kind in KINDS
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind, data, tmp_path):
    """Checkpoints are a hundred steps apart."""
    twice_killed(
        tmp_path,
        (COMMANDS[kind], "--kind", kind, *SMALL, *PIECES, "--data", str(data), "--steps", "104"),
        102,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, more, steps",
    [
        ("probe", ("--recipe", "judge", "--steps", "104"), 102),
        ("probe", ("--recipe", "stop-head", "--steps", "504", "--depth", "1"), 502),
        ("draft", ("--steps", "104", "--tokens", "200", "--width", "32"), 102),
        ("ngrams", (), 0),
    ],
)
def test_what_else_learns_from_the_target_s_text(command, more, steps, data, tmp_path):
    twice_killed(tmp_path, (command, *SMALL, "--data", str(data), *more), steps)


@pytest.mark.slow
def test_a_router(tmp_path):
    """Its problems are few and solved anew."""
    twice_killed(
        tmp_path,
        (
            "probe",
            "--recipe",
            "router",
            "--draft",
            "zoo:reasoner",
            "--kinds",
            "chain",
            "--each",
            "6",
            "--steps",
            "54",
        ),
        52,
        ("problems", 3),
    )
