"""The engine runs where the lab is absent: nothing of it imports the lab, and its commands say what is missing."""

import json

import pytest

from forked import run
from polydec.cli import lab_commands

ABSENT = "import sys; sys.modules['polydec.lab'] = None\n"  # as if there were no such folder
COMMAND = ABSENT + "sys.argv = ['polydec', *{!r}]\nfrom polydec.cli.main import main\nmain()\n"


def command_without_lab(*args):
    return run("-c", COMMAND.format(list(args)))


def test_answers_and_lists_need_nothing_of_the_lab():
    answer = command_without_lab(
        *("generate", "--model", "zoo:tiny", "--max-tokens", "4", "--json", "The old mill")
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["text"]
    listed = command_without_lab("--help")
    assert "generate" in listed.stdout and "bench" not in listed.stdout
    assert command_without_lab("methods").returncode == 0


def test_a_program_imports_nothing_of_the_lab():
    code = (
        "import sys, polydec\n"
        "lm = polydec.load('zoo:tiny')\n"
        "polydec.generate(lm, 'The old mill', max_tokens=4)\n"
        "print([m for m in sys.modules if m.startswith('polydec.lab')])\n"
    )
    assert run("-c", code).stdout.splitlines()[-1] == "[]"


def test_a_command_of_the_engine_imports_nothing_of_the_lab():
    args = ["generate", "--model", "zoo:tiny", "--max-tokens", "4", "The old mill"]
    code = (
        f"import sys; sys.argv = ['polydec', *{args!r}]\n"
        "from polydec.cli.main import main\n"
        "try: main()\n"
        "finally: print([m for m in sys.modules if m.startswith('polydec.lab')])\n"
    )
    assert run("-c", code).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "args, asker",
    [
        (("trace", "replay", "FILE"), "polydec trace replay"),
        (("tune", "--on", "FILE", "--seconds", "1"), "polydec tune --on"),
        (("doctor", "--bench"), "polydec doctor --bench"),
        (("train", "--help"), "polydec train"),
        (("verify",), "polydec verify"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_needs_the_lab_says_so(args, asker, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("The old mill\n")
    refused = command_without_lab(*(str(file) if x == "FILE" else x for x in args))
    assert refused.returncode == 2
    assert refused.stderr.strip().endswith(
        f"{asker} needs the lab, which is not here: pip install 'polydec[lab]'"
    ), refused.stderr


def test_the_engine_knows_by_name_what_the_lab_brings():
    assert sorted(lab_commands.lab_commands()) == sorted(lab_commands.LAB_COMMANDS)


def test_the_lab_is_found_where_it_is():
    listed = run("-m", "polydec", "--help")
    assert all(name in listed.stdout for name in ("bench", "verify", "train", "demo", "harness"))
