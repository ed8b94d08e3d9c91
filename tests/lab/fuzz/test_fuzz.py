"""As many random inputs as fit into a quarter of a minute, with a fixed seed; and the fuzzer sees what it should see."""

import random

import pytest

from polydec.lab.fuzz import fuzz, fuzz_files

COUNT = {"command": 200, "request": 125, "files": 150, "constraint": 300}


@pytest.mark.parametrize("edge", sorted(COUNT.keys() & fuzz.EDGES.keys()))
def test_inputs(edge):
    found = fuzz.run_cases(0, COUNT[edge], [edge])
    assert not found, "\n".join(map(str, found))


def test_a_case_is_the_same_each_time(tmp_path):
    for edge in ("command", "request"):
        first, second = (fuzz.EDGES[edge](random.Random("x"), tmp_path) for _ in range(2))
        assert first.described == second.described


def test_files_that_nobody_changed_are_read(tmp_path):
    """Else every changed one is refused for the same reason, and nothing behind it is tried."""
    fuzz_files.load_undamaged_files(tmp_path)


def test_a_name_of_files_is_read_anew_each_time(tmp_path):
    with fuzz._place():
        fuzz_files.load_undamaged_files(tmp_path)
        (tmp_path / "directory" / "model.safetensors").write_bytes(b"")
        with pytest.raises(ValueError, match="safetensors"):
            fuzz_files._use(str(tmp_path / "directory"))


def test_most_requests_are_answered():
    """Who is refused has been looked at no further."""
    answered = []
    with fuzz._place() as where, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz, "require_promises", lambda *a: answered.append(1))
        for number in range(60):
            answered.append(0)
            fuzz.run_case("request", 1, number, where)
    assert sum(answered) > 30


def test_faults_are_found(monkeypatch):
    real = fuzz.Sampling

    def forgets(**fields):
        return real(
            **{
                k: v
                for k, v in fields.items()
                if k not in ("allowed_token_ids", "bad_token_ids", "min_tokens")
            }
        )

    monkeypatch.setattr(fuzz, "Sampling", forgets)
    assert any("forbidden" in f.wrong for f in fuzz.run_cases(0, 30, ["request"]))
    monkeypatch.undo()

    from polydec.cli import methods

    monkeypatch.setattr(methods.registry, "describe_method", lambda name: {}["nothing"])
    assert any("KeyError" in f.wrong for f in fuzz.run_cases(0, 120, ["command"]))


def test_memory_above_twice_that_of_whole_inputs_is_a_fault(monkeypatch):
    monkeypatch.setattr(fuzz, "run_clean_inputs", lambda where: 1000)
    peaks = iter((2000, 2001, 2001, 3000))
    monkeypatch.setattr(fuzz, "peak_bytes", lambda: next(peaks))
    assert [f.number for f in fuzz.run_cases(0, 4, ["command"], memory=True)] == [1, 3]
