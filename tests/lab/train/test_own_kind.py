"""A package of one file outside the tree brings a trained head: what it keeps, the method that drafts with it, and the command
that trains it. The command line finds all three."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import forked
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.specs import states
from polydec.lab.train.specs.states import KIND_HELPS, KIND_NAMES, OWN_KINDS, kind_help, other_kinds

PACKAGE = '''
"""Guess: a matrix on the target's state before a token guesses the token behind it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from polydec.base.options import AtLeast, keep_ranges
from polydec.core.types import Exactness, TokenVocabulary
from polydec.models.learned import artefact
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.envelope import TrainingRun, run_training, run_identity
from polydec.lab.train.own_text import TargetTextStates, gather_target_text
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import samples_fingerprint
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, Each, Kept, Longest, Seed, Steps, Target
from polydec.lab.train.target import load_autoregressive_model

KIND = artefact.ArtefactKind("guess", "guess", "guess.safetensors", "guess")


@dataclass(frozen=True, eq=False)
class Guess:
    """weight_VH: gives the logits of the token behind the next one."""

    called: ClassVar[str] = "a guess"
    kind: ClassVar[str] = "guess"
    made_by: ClassVar[str] = "polydec train guess"
    window: ClassVar[int] = 1
    depth: ClassVar[int] = 1
    normed: ClassVar[bool] = False
    reads: ClassVar[bool] = False
    network: ClassVar[None] = None

    vocab: TokenVocabulary
    weight_VH: torch.Tensor

    def check_fit(self, target, draft):
        target.vocab.require_same(self.vocab, "the guess")
        artefact.require_width(target, self.weight_VH.shape[1], "guesses", "target")

    @property
    def cost(self):
        return float(self.weight_VH.numel())

    def start_levels(self, state_NH):
        return nn.functional.rms_norm(state_NH.float(), state_NH.shape[-1:])

    def level_head(self, k):
        return self.weight_VH

    def forward(self, queries):
        return [(carry_NH, carry_NH) for _, carry_NH, _ in queries]


def load(path):
    config, tensors = artefact.read_artefact_files(path, KIND)
    vocab = TokenVocabulary(config["vocab_size"], frozenset(), config["tokenizer"])
    return Guess(vocab, tensors["weight"])


def examples(vocab, width, draft_width):
    return (Guess(vocab, torch.zeros(vocab.size, width)),)


NEED = ArtefactNeed("guess")
CARD = Card(
    name="guess",
    title="Guess",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="A matrix on the target's state guesses one token further on.",
    source="this test",
    reduces_to="plain behind a prompt of one token, in the first round",
    parent="plain",
    home="tests",
    needs=(NEED,),
    needs_training=True,
)


def build(kit):
    from polydec.methods.speculative.drafters.heads import HeadsDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    drafter = HeadsDrafter(kit.needed_artefact(Guess), ChainTree(), prompt=False)
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(1))


@dataclass(frozen=True)
class GuessSpec:
    """What `polydec train guess` makes."""

    out: Kept
    target: Target = "zoo:tiny"
    data: Data = None
    each: Each = 4
    max_tokens: Longest = 24
    steps: Steps = 30
    rows: Annotated[int, AtLeast(1), "states a step"] = 64
    seed: Seed = 0

    text: ClassVar[None] = None
    temperature: ClassVar[float] = 0.0

    def __post_init__(self):
        keep_ranges(self)


def train(spec):
    return run_training("guess", spec, course)


def course(spec):
    point = load_autoregressive_model(spec.target)
    samples = gather_target_text(spec, point.lm, point.text, unseen=False)
    lessons = TargetTextStates.of_samples(point.lm, samples)
    here = torch.arange(len(lessons.token_N))
    at_N = here[here + 1 < lessons.end_N]
    state_NH, aim_N = lessons.state_NH[at_N], lessons.token_N[at_N + 1]
    net = nn.Linear(state_NH.shape[1], point.lm.vocab.size, bias=False)
    nn.init.zeros_(net.weight)
    made = lambda: Guess(point.lm.vocab, net.weight)

    def loss(step):
        g = generator_for(spec.seed, step, "rows")
        some = torch.randint(len(at_N), (spec.rows,), generator=g)
        return cross_entropy(linear(made().start_levels(state_NH[some]), net.weight), aim_N[some]), spec.rows

    def save_artefact(out, result):
        about = {"vocab_size": point.lm.vocab.size, "tokenizer": point.lm.vocab.tokenizer}
        artefact.save_artefact(out, KIND, {"weight": net.weight}, about)

    known_as = run_identity(spec, samples=samples_fingerprint(samples))
    measure = lambda: {"states": len(at_N)}
    schedule = TrainingSchedule(spec.steps, 1e-2, decay=1.0, save_every=10, log_every=10)
    return TrainingRun(net, loss, schedule, known_as, save_artefact, measure)


COMMAND = TrainingCommand("guess", "Train a guess; prints JSON.", GuessSpec, __name__ + ":train")
'''
STUDENT = """
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.models.learned.kinds import eagle
from polydec.lab.train.kinds.eagle import make_eagle
from polydec.lab.train.students import DrafterKind

KINDS = {"own-eagle": DrafterKind(make_eagle(False), EagleDrafter, eagle.save, 1, 1.0)}
"""
POINTS = """
[polydec.methods]
guess = polydec_guess

[polydec.learned]
guess = polydec_guess
absent = polydec_guess:KIND

[polydec.training]
guess = polydec_guess
lm = polydec_guess

[polydec.students]
own-eagle = polydec_student
"""

IN_TURN = """
import contextlib, io, json, sys
from polydec.__main__ import main

ended = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["polydec", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    ended.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
print(json.dumps(ended))
"""
"""Several commands in one process, which imports the package once."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that looks as pip leaves one into which it has installed the package."""
    folder = tmp_path_factory.mktemp("installed")
    about = folder / "polydec_guess-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: polydec-guess\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    (folder / "polydec_guess.py").write_text(PACKAGE)
    (folder / "polydec_student.py").write_text(STUDENT)
    return folder


def ran(installed: Path, *command: object, **more: str) -> subprocess.CompletedProcess[str]:
    return forked_with(installed, "-m", "polydec", *map(str, command), **more)


def forked_with(installed: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **more}
    return forked.run(*command, env=env)


def test_a_kind_in_one_file_is_trained_and_used_from_the_command_line(installed, tmp_path):
    how = ("train", "guess", "--data", "sample", "--steps", "20", "--out")
    done = ran(installed, *how, tmp_path / "a")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 20 and result["states"] > 0 and result["loss"] < 8
    kept = json.loads((tmp_path / "a" / "training.json").read_text())
    assert kept == {**result, "curve": kept["curve"]}
    assert [at for at, _ in kept["curve"]] == [10, 20]

    again = ran(installed, *how, tmp_path / "b")
    weights = [(tmp_path / x / "guess.safetensors").read_bytes() for x in "ab"]
    assert again.returncode == 0 and weights[0] == weights[1]
    other = ran(installed, *how, tmp_path / "a", "--seed", "1")
    assert other.returncode == 2 and "belongs to another run (seed differ)" in other.stderr

    ask = ("generate", "The old mill", "--model", "zoo:tiny", "--max-tokens", "12", "--method")
    methods = (("plain",), ("guess", "--with", str(tmp_path / "a")), ("guess",))
    done = forked_with(installed, "-c", IN_TURN, json.dumps([[*ask, *words] for words in methods]))
    plain, guess, none = json.loads(done.stdout)
    assert guess["code"] == 0, guess["err"]
    assert guess["out"].split("\n")[0] == plain["out"].split("\n")[0] != ""
    assert none["code"] == 2 and "`polydec train guess` makes one" in none["err"]


def test_its_flags_come_from_its_spec(installed, tmp_path):
    shown = ran(installed, "train", "guess", "--help")
    assert "states a step (at least 1)" in shown.stdout
    refused = ran(installed, "train", "guess", "--rows", "0", "--out", tmp_path)
    assert refused.returncode == 2 and "rows is 0: it must be at least 1" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_name_of_ours_stays_ours_and_plug_ins_can_be_left_out(installed):
    shown = ran(installed, "train", "--help")
    assert shown.stdout.count("Of the package polydec-guess.") == 1  # guess, not lm
    assert "Train a small language model" in shown.stdout
    every = forked_with(
        installed,
        "-c",
        "from polydec.lab.commands import training; training.training_commands()",
    )
    assert "its plug-in 'lm' of polydec.training is left out: the name lm is taken" in every.stderr
    without = ran(installed, "train", "--help", POLYDEC_PLUGINS="off")
    assert "Train a small language model" in without.stdout
    assert "Of the package" not in without.stdout


def test_a_drafter_on_states_is_one_more_kind(installed, tmp_path):
    how = ("train", "eagle", "--out", tmp_path, "--kind")
    done = ran(installed, *how, "own-eagle", "--every", "2")
    assert done.returncode == 2 and "kind own-eagle does nothing with it" in done.stderr
    done = ran(installed, *how, "other")
    assert done.returncode == 2 and "kind is 'other': it must be one of " in done.stderr
    assert "own-eagle" in done.stderr
    assert "longspec" in (helped := ran(installed, "train", "eagle", "--help").stdout)
    assert "own-eagle" in helped


def test_flags_name_every_kind_without_loading_one():
    known = {*OWN_KINDS, *other_kinds()}
    assert known >= KINDS.keys(), (
        f"flags do not know {sorted(KINDS.keys() - known)}: a file of lab/train/kinds has the name of its kind"
    )
    assert KINDS.keys() >= known, f"no file of lab/train/kinds makes {sorted(known - KINDS.keys())}"
    for command, names in KIND_NAMES.items():
        said = set(re.findall(r"[\w+-]+", KIND_HELPS[command]))
        assert said >= set(names), f"{command} --help names the kinds that suit it"


def test_a_further_file_is_listed_by_its_name(monkeypatch, tmp_path):
    (tmp_path / "recurrent_head.py").write_text("raise ImportError('a list of flags loads none')")
    monkeypatch.setattr(states, "KIND_FOLDER", str(tmp_path))
    monkeypatch.setattr(states.plugins, "plugin_packages", lambda room, taken: {})
    for command in KIND_NAMES:
        assert kind_help(command) == f"{KIND_HELPS[command]}; recurrent-head"
