"""The demo says what rows cost on this machine, and what gain to expect of that."""

import json
import sys

import pytest

from polydec.cli.main import main
from polydec.lab.commands.demo import describe_expected_gain


def test_the_demo_says_what_rows_cost_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "p.txt").write_text("Once upon a time\n")
    flags = [
        "--model",
        "zoo:tiny",
        "--prompt-file",
        str(tmp_path / "p.txt"),
        "--max-tokens",
        "4",
        "--repeat",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["polydec", "demo", *flags, "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert not stop.value.code and "what rows cost here: a pass over two rows takes" in err
    assert said["row_costs"].keys() == {"2", "8"} and said["expect"] in err
    assert 1 <= said["row_costs"]["2"] <= said["row_costs"]["8"]


@pytest.mark.parametrize(
    ("two", "eight", "says"),
    [(1.09, 2.2, "1.4 to 2.0"), (1.3, 3.4, "1.0 to 1.6"), (1.9, 7.0, "little over plain")],
)
def test_what_to_expect_follows_from_what_rows_cost(two, eight, says):
    line = describe_expected_gain(two, eight)
    assert says in line and f"more than {round(100 * (two - 1))} %" in line and "\n" not in line
