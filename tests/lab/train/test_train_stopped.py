"""Ctrl-C and SIGTERM in a training: the step under way ends, the state is kept, and the run that goes on is the one that was
never stopped, to the bit. A second one, or an error, loses that step alone. It is one envelope for every kind
(lab/train/envelope.py)."""

import dataclasses
import json
import signal
from dataclasses import dataclass
from importlib import import_module

import pytest
import torch

import forked
from polydec.base.options import dataclass_options
from polydec.lab.commands import training
from polydec.lab.commands.training import training_commands
from polydec.lab.train import envelope, loop
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import fit_network
from polydec.lab.train.schedule import TrainingSchedule
from polydec.models.nets import linear

STEPS = 9


@dataclass(frozen=True)
class Spec:
    out: str
    muon: float = 0.0
    judged: bool = False
    save_every: int | None = None


def made(spec, at=-1, *signals):
    """A small run, whose loss depends on the step and the parameters alone; at: the step in which these signals come."""
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    seen = []

    def loss(step):
        seen.append(step)
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        if step == at:
            for number in signals:
                signal.raise_signal(number)
        return (network(x) - x[:, :3]).square().mean(), 6

    def aside():
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(99))
        return (network(x) - x[:, :3]).square().mean()

    def save(out, result):
        torch.save(network.state_dict(), out / "made.pt")

    deep = [p for p in network.parameters() if p.ndim == 2] if spec.muon else ()
    course = TrainingRun(
        network,
        loss,
        TrainingSchedule(STEPS, muon=spec.muon, save_every=500, log_every=4, judge_every=2),
        run_identity(spec),
        save,
        aside=aside if spec.judged else None,
        deep=deep,
    )
    return course, seen


def kept(out):
    state = torch.load(out / STATE, weights_only=True)
    return torch.load(out / "made.pt", weights_only=True), state["network"], state["curve"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [0, 3, 5, STEPS - 1])
@pytest.mark.parametrize("more", [{}, {"judged": True}, {"muon": 1e-2, "judged": True}])
def test_a_stopped_run_goes_on_to_the_bit(number, at, more, tmp_path, capfd):
    behind = "measures and saves" if at + 1 == STEPS else f"goes on with step {at + 2}"
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    whole, cut = Spec(str(tmp_path / "whole"), **more), Spec(str(tmp_path / "cut"), **more)
    run_training("test", whole, lambda spec: made(spec)[0])
    with pytest.raises(
        KeyboardInterrupt,
        match=f"stopped after {at + 1} of {STEPS} steps.*the same command {behind}",
    ):
        run_training("test", cut, lambda spec: made(spec, at, number)[0])
    assert "stopping: the step under way ends" in capfd.readouterr().err
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert not (tmp_path / "cut" / "made.pt").exists()
    course, seen = made(cut)
    run_training("test", cut, lambda spec: course)
    said = "all steps are taken" if at + 1 == STEPS else behind
    assert f"state.pt has {at + 1} of {STEPS} steps, {said}" in capfd.readouterr().err
    assert seen == list(range(at + 1, STEPS)), "no step is lost, and none is taken twice"
    for mine, theirs in zip(kept(tmp_path / "whole"), kept(tmp_path / "cut"), strict=True):
        if isinstance(mine, dict):
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        else:
            assert mine == theirs


TWICE = (signal.SIGINT, signal.SIGINT)


def test_the_second_one_ends_it_at_once(tmp_path):
    """The step under way is lost, those before it are not, though no checkpoint was due."""
    whole, cut = Spec(str(tmp_path / "whole"), muon=1e-2), Spec(str(tmp_path / "cut"), muon=1e-2)
    run_training("test", whole, lambda spec: made(spec)[0])
    with pytest.raises(KeyboardInterrupt, match=r"stopped after 3 of 9 .* goes on with step 4$"):
        run_training("test", cut, lambda s: made(s, 3, *TWICE)[0])
    course, seen = made(cut)
    run_training("test", cut, lambda spec: course)
    assert seen == list(range(3, STEPS))
    for mine, theirs in zip(kept(tmp_path / "whole")[:2], kept(tmp_path / "cut")[:2]):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_in_the_first_step_nothing_is_there_to_keep(tmp_path):
    spec = Spec(str(tmp_path / "a"))
    with pytest.raises(KeyboardInterrupt) as stop:
        run_training("test", spec, lambda s: made(s, 0, *TWICE)[0])
    assert not str(stop.value) and not (tmp_path / "a" / STATE).exists()


@pytest.mark.parametrize("where", ["weights", "checkpoint"])
def test_two_that_come_while_something_changes_leave_it_whole(where, tmp_path, monkeypatch):
    """They come while the weights change, or while a checkpoint is written: the step counts, and is kept."""
    spec = Spec(str(tmp_path / "a"))
    course, seen = made(spec)

    def struck(inner):
        def outer(*given, **named):
            if len(seen) == 4:
                for number in TWICE:
                    signal.raise_signal(number)
            return inner(*given, **named)

        return outer

    if where == "weights":
        monkeypatch.setattr(torch.optim.AdamW, "step", struck(torch.optim.AdamW.step))
    else:
        monkeypatch.setattr(loop, "replace_file_atomically", struck(loop.replace_file_atomically))
        course = dataclasses.replace(course, schedule=TrainingSchedule(STEPS, save_every=4))
    with pytest.raises(KeyboardInterrupt, match=r"stopped after 4 of 9 .* goes on with step 5$"):
        run_training("test", spec, lambda s: course)
    assert torch.load(tmp_path / "a" / STATE, weights_only=True)["step"] == 4


def test_an_error_in_a_step_keeps_the_steps_before(tmp_path):
    spec = Spec(str(tmp_path / "a"))
    course, seen = made(spec)
    inner = course.loss

    def failing(step):
        if step == 5:
            raise MemoryError("no room")
        return inner(step)

    with pytest.raises(MemoryError):
        run_training("test", spec, lambda s: dataclasses.replace(course, loss=failing))
    course, seen = made(spec)
    run_training("test", spec, lambda s: course)
    assert seen == list(range(5, STEPS))


def test_how_often_it_saves_may_change_on_the_way(tmp_path):
    """The spec's figure stands before the kind's, and a checkpoint of another one is gone on from."""
    spec = Spec(str(tmp_path / "a"), save_every=2)
    course, seen = made(spec)
    at = dict[int, int]()

    def told(step):
        if (tmp_path / "a" / STATE).exists():
            at[step] = torch.load(tmp_path / "a" / STATE, weights_only=True)["step"]
        if step == 5:
            raise MemoryError
        return course.loss(step)

    with pytest.raises(MemoryError):
        run_training("test", spec, lambda s: dataclasses.replace(course, loss=told))
    assert at == {2: 2, 3: 2, 4: 4, 5: 4}
    course, seen = made(spec)
    run_training("test", dataclasses.replace(spec, save_every=3), lambda s: course)
    assert seen == list(range(5, STEPS))


def test_every_kind_that_takes_steps_has_the_flag():
    for command in training_commands():
        fields = {option.name for option in dataclass_options(command.spec)}
        if fields & {"steps", "epochs"}:
            flags = {command.option_flag(option) for option in command.flag_options()}
            assert "--save-every" in flags, command.name


def test_a_job_in_the_background_stays_there(tmp_path):
    """Shells let such a job ignore Ctrl-C."""
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_training("test", Spec(str(tmp_path / "a")), lambda s: made(s, 2, signal.SIGINT)[0])
    finally:
        signal.signal(signal.SIGINT, old)
    assert (tmp_path / "a" / "made.pt").exists()


def test_every_training_that_takes_steps_takes_them_in_the_envelope():
    """`fit` has no other caller, and each command's module leads to it, or takes no steps of its own."""
    assert envelope.fit_network is fit_network
    counted = {c.name for c in training.training_commands() if c.name in ("ngrams",)}
    assert counted == {"ngrams"}, "it counts, in seconds, and keeps nothing between"
    leads = [c.name for c in training.training_commands() if hasattr(_module(c), "run_training")]
    assert len(leads) >= 25, leads


def _module(command):
    return import_module(command.entry.partition(":")[0])


def test_no_clock_decides_what_a_training_computes_in(tmp_path, monkeypatch):
    """Two runs of one training come to the same weights on a machine that is busier in one of them."""
    monkeypatch.setattr(loop, "has_bf16", linear.has_bf16)
    for name in ("perf_counter", "monotonic", "time"):
        monkeypatch.setattr(f"time.{name}", lambda: pytest.fail("a clock was asked"))
    assert loop.is_bf16_run(tmp_path / "none") == linear.has_bf16()
    torch.save({"identity": {"bf16": True}}, tmp_path / STATE)
    assert loop.is_bf16_run(tmp_path / STATE) and not loop.is_bf16_run(tmp_path / STATE, False)


STOPS = """
import os, signal, sys
import torch
from polydec.__main__ import main

inner, left, number = torch.nn.utils.clip_grad_norm_, int(sys.argv[1]), int(sys.argv[2])

def stopping(*given, **named):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), number)
    return inner(*given, **named)

torch.set_num_threads(1)
torch.nn.utils.clip_grad_norm_ = stopping
sys.argv[1:] = sys.argv[3:]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_how_to_go_on(number, tmp_path):
    def train(out, at):
        args = ("train", "steps", "--steps", "6", "--rows", "2", "--width", "32", "--layers", "1")
        args += ("--lengths", "4", "--longest", "4")
        return forked.run("-c", STOPS, str(at), str(int(number)), *args, "--out", str(out))

    assert (done := train(tmp_path / "whole", 0)).returncode == 0, done.stderr
    done = train(tmp_path / "cut", 3)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert "polydec: stopped after 3 of 6 steps" in done.stderr and "same command" in done.stderr
    assert (done := train(tmp_path / "cut", 0)).returncode == 0, done.stderr
    weights = [(tmp_path / x / "model.safetensors").read_bytes() for x in ("whole", "cut")]
    assert weights[0] == weights[1]
    assert json.loads((tmp_path / "cut" / "training.json").read_text())["steps"] == 6
