"""One thread for torch: toys are tiny, and threads only wait for each other. One tree of commands: it is always the same.
Benchmarks can be imported, as some tests read them. What a toy is given as trained is made once for each vocabulary."""

import os
import signal
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings

from polydec.cli.main import main as polydec_main
from polydec.lab.testing import examples
from polydec.lab.testing.toy import ToyWords
from polydec.lab.train import loop as training_loop
from polydec.models.nets import linear
from polydec.request import profile
from project_paths import PROJECT_ROOT, TESTS_FOLDER
from training_seeds import use_training_seed

for folder in ("benchmarks", "docs"):
    sys.path.append(str(PROJECT_ROOT / folder))
# a test may read what stands beside a test of another room
sys.path += sorted(str(path) for path in TESTS_FOLDER.rglob("*") if any(path.glob("*.py")))
pytest_plugins = ("contract_counts",)
torch.set_num_threads(1)
# a shell that starts tests behind `&` lets them and all their programs ignore Ctrl-C, which some of them test
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# the same examples on every run; and a busy machine is no fault (`make fuzz` is what looks for new ones)
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
typer.main.get_command = cache(typer.main.get_command)  # 50 ms for each call of the command line

_make, _made = examples.example_artefacts, {}


def artefacts(vocab, width=4, draft_width=None):
    """Some of each kind of artefact: nothing changes them, and a contract asks for them a hundred times."""
    if not isinstance(vocab.words, ToyWords | None):
        return _make(vocab, width, draft_width)
    key = vocab, vocab.words, width, draft_width
    if key not in _made:
        _made[key] = _make(vocab, width, draft_width)
    return _made[key]


examples.example_artefacts = artefacts  # before any test has imported it


@pytest.fixture(autouse=True, scope="session")
def recorded_costs_and_own_cache(tmp_path_factory):
    """No test depends on what passes cost on its machine, nor on what its user keeps in a cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user-cache")))
        patch.setenv("POLYDEC_PROFILE", str(Path(__file__).with_name("recorded_profile.json")))
        patch.setattr(linear, "measure_kernels", first_kernel_is_fastest)
        patch.setattr(training_loop, "has_bf16", lambda: False)
        yield


def first_kernel_is_fastest(kernels, shapes):
    """In place of timing kernels: each takes as many milliseconds as its place in the list, so the choice is the same
    wherever the same kernels run."""
    return {kernel.name: [float(place)] for place, kernel in enumerate(kernels)}


@pytest.fixture
def measured_costs(monkeypatch):
    """For a test of measuring itself: passes are timed, briefly."""
    monkeypatch.delenv("POLYDEC_PROFILE")
    measure = profile.measure_pass_profile
    monkeypatch.setattr(
        profile,
        "measure_pass_profile",
        lambda lm, *, seconds: measure(lm, seconds=min(seconds, 0.1)),
    )


class CommandResult(NamedTuple):
    """What a command of the command line left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def polydec_command(monkeypatch, capfd):
    """The command line in this process: words, whatever they are, become its arguments."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["polydec", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            polydec_main()
        return CommandResult(int(stop.value.code or 0), *capfd.readouterr())

    return call


@pytest.fixture(autouse=True, scope="session")
def training_seed():
    """`POLYDEC_TEST_SEED`: the seed of every training that names none. A threshold on a trained model must hold for all."""
    seed = int(os.environ.get("POLYDEC_TEST_SEED", "0"))
    if seed:
        use_training_seed(seed)
