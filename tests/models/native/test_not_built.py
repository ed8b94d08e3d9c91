"""Where the compiled step was not built: said once, with what it costs and how to have it."""

import json
import warnings

import pytest

import micro
import polydec
from polydec.models import native
from polydec.models.native import library

SAYS = (
    r"was not built: .*no C\+\+ compiler.*about five times slower; to build it: .*--force-reinstall"
)


@pytest.fixture
def not_built(tmp_path, monkeypatch):
    """An installation without a library, in a process that has said nothing of it."""
    monkeypatch.delenv("POLYDEC_STEP", raising=False)
    monkeypatch.setattr(library, "HERE", tmp_path / "native")
    monkeypatch.setattr(library, "load_native_library", library.load_native_library.__wrapped__)
    native._warn_once.cache_clear()
    yield
    native._warn_once.cache_clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("model")))


def test_the_first_load_says_it_and_the_next_does_not(not_built, model):
    with pytest.warns(UserWarning, match=SAYS) as said:
        lm = polydec.load(model, draft=None)
    assert [w.filename for w in said] == [__file__] and lm.checkpoint.why
    assert len(str(said[0].message)) < 300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        polydec.load(model, draft=None)


@pytest.mark.parametrize("dtype", ["torch", "float32"])
def test_who_asks_for_torch_is_told_nothing(not_built, model, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        polydec.load(model, draft=None, dtype=dtype)


def test_a_command_says_it_on_standard_error_in_one_line(not_built, model, polydec_command):
    words = ("generate", "The fox", "--model", model, "--method", "plain", "--max-tokens", "2")
    done = polydec_command(*words, "--json")
    assert done.code == 0 and json.loads(done.out)
    assert done.err.count("about five times slower") == 1
    assert done.err.startswith("polydec: the native step does not run: it was not built")
    again = polydec_command(*words)
    assert "five times slower" not in again.err


def test_doctor_says_it_in_its_report_alone(not_built, model, polydec_command):
    done = polydec_command("doctor", "--model", model)
    assert "native step does not run: it was not built" in done.out
    assert "about five times slower; to build it" in done.out
    assert "five times slower" not in done.err
