"""Half a minute of fuzzing, with a fixed seed; and the fuzzer sees what it should see."""
import pytest

from polydec.testing import fuzz

SECONDS = 13.0


@pytest.mark.parametrize("edge", sorted({"command", "request"} & set(fuzz.EDGES)))
def test_half_a_minute(edge):
    found = fuzz.run(0, 10_000, [edge], seconds=SECONDS)
    assert not found, "\n".join(map(str, found))


def test_a_case_is_the_same_each_time(tmp_path):
    import random
    for edge in ("command", "request"):
        first, second = (fuzz.EDGES[edge](random.Random("x"), tmp_path) for _ in range(2))
        assert first.given == second.given


def test_faults_are_found(monkeypatch):
    real = fuzz.Sampling

    def forgets(**fields):
        return real(**{k: v for k, v in fields.items() if k not in ("allowed_token_ids", "bad_token_ids", "min_tokens")})
    monkeypatch.setattr(fuzz, "Sampling", forgets)
    found = fuzz.run(0, 60, ["request"])
    assert any("forbidden" in f.wrong for f in found)
    monkeypatch.undo()

    from polydec.cli import methods
    monkeypatch.setattr(methods.registry, "describe", lambda name: {}["nothing"])
    assert any("KeyError" in f.wrong for f in fuzz.run(0, 120, ["command"], seconds=30.0))
