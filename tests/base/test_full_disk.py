"""A disk that is full under whatever writes: one sentence that names the file, exit code 2, and what was there is as it was.

`/dev/full` takes no byte; a limit on the size of files makes torch and safetensors meet the same."""

import json
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from polydec import api
from polydec.base import files
from polydec.base.errors import PolydecError, UnwritableError
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.envelope import write_down
from polydec.lab.train.loop import fit_network
from polydec.lab.train.schedule import TrainingSchedule
from polydec.models.learned import artefacts
from polydec.models.sessions import sources
from polydec.request import profile

FULL = "/dev/full"
pytestmark = pytest.mark.skipif(not Path(FULL).exists(), reason="no /dev/full here")
BIG = torch.zeros(1 << 15)
WRITERS = {
    "torch": lambda at: torch.save({"a": BIG}, at),
    "safetensors": lambda at: save_file({"a": BIG}, at),
    "text": lambda at: at.write_text("x" * (1 << 17), "utf-8"),
    "bytes": lambda at: at.write_bytes(bytes(1 << 17)),
}


@pytest.fixture
def small_disk():
    """No file may grow beyond 16 KB."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    told = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, told)


def refused(work, where):
    """Work that cannot write there says so in one sentence, and leaves no piece of a file."""
    with pytest.raises(UnwritableError) as error:
        work()
    said = str(error.value)
    assert "cannot be written: " in said and "\n" not in said and error.value.strerror
    assert where.name in said
    assert not list(where.parent.glob(".*.part"))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_is_replaced_stays_as_it_was(writer, tmp_path, small_disk):
    at = tmp_path / "kept.bin"
    at.write_bytes(b"before")
    refused(lambda: files.replace_file_atomically(at, WRITERS[writer]), at)
    assert at.read_bytes() == b"before"


def test_what_is_no_fault_of_the_disk_passes_through(tmp_path):
    def broken(at):
        raise ZeroDivisionError("a fault of the program")

    with pytest.raises(ZeroDivisionError):
        files.replace_file_atomically(tmp_path / "a", broken)
    assert not list(tmp_path.iterdir())


def _state(out):
    network = torch.nn.Linear(80, 80)
    fit_network(
        network,
        lambda step: (network(torch.ones(1, 80)).sum(), 1),
        TrainingSchedule(1),
        state=out / "state.pt",
    )


def _artefact(out):
    module = artefacts.MODULES["eagle"]
    module.save(out, module.examples(toy_law(1, 64).vocab, 64, 64)[0], {})


OUTPUTS = {
    "state.pt": _state,
    "training.json": lambda out: write_down(out, {"curve": [0.125] * 9000}),
    "eagle.safetensors": _artefact,
    "model.safetensors": lambda out: sources.save_checkpoint(
        out, {"polydec_base": "x"}, {"a.weight": BIG}, None
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_a_training_writes(name, tmp_path, small_disk):
    refused(lambda: OUTPUTS[name](tmp_path), tmp_path / name)


def one_sentence(done):
    code, _, err = done
    last = err.rstrip("\n").split("\n")[-1]
    assert code == 2 and "Traceback" not in err, err
    assert last.startswith("polydec: ") and "cannot be written: " in last, err
    return last


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    at = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    at.write_text(json.dumps({"prompt": "The old river"}) + "\n")
    return at


MODEL = ("--model", "zoo:tiny", "--max-tokens", "3")


@pytest.mark.filterwarnings("ignore")
def test_a_trace(polydec_command, prompts, tmp_path):
    said = one_sentence(polydec_command("generate", "The old river", *MODEL, "--trace", FULL))
    assert "trace '/dev/full'" in said
    out = tmp_path / "out.jsonl"
    said = one_sentence(polydec_command("batch", prompts, out, *MODEL, "--trace", FULL))
    assert "trace '/dev/full'" in said, "and not the file of rows, which can be written"


@pytest.mark.filterwarnings("ignore")
def test_a_page(polydec_command, tmp_path, small_disk, monkeypatch):
    code, _, err = polydec_command("generate", "a b", *MODEL, "--trace", tmp_path / "t.jsonl")
    assert code == 0, err
    long = tmp_path / ("no" * 200)
    one_sentence(polydec_command("trace", "html", tmp_path / "t.jsonl", "--out", long))
    monkeypatch.setattr("polydec.cli.trace_page.trace_page_html", lambda *args: "x" * (1 << 17))
    page = tmp_path / "t.html"
    assert str(page) in one_sentence(
        polydec_command("trace", "html", tmp_path / "t.jsonl", "--out", page)
    )
    assert not page.exists()


@pytest.mark.filterwarnings("ignore")
def test_a_profile_that_is_asked_for_is_kept_or_it_is_said(small_disk, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lm = api.load("zoo:tiny", draft=None, ngrams=None)
    measured = profile.measure_pass_profile(lm, seconds=0.05)
    profile.pass_profiles_path().parent.mkdir(parents=True, exist_ok=True)
    profile.pass_profiles_path().write_text(json.dumps({"other": "x" * 9000}))
    before = profile.pass_profiles_path().read_bytes()
    monkeypatch.setattr(profile, "pass_profile_key", lambda lm: "k" * 9000)
    profile.save_pass_profile(lm, measured)  # nobody asked for it: it lasts as long as the process
    with pytest.raises(PolydecError, match="cannot be written"):
        profile.keep_surely(lm, measured)
    assert profile.pass_profiles_path().read_bytes() == before
