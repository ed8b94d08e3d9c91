"""What a command loads before it has to: a list of names must not wait for libraries that compute."""

import gc
import os
import subprocess
import sys

import pytest

from polydec.cli.garbage import pause_garbage_collection
from polydec.cli.main import every_command, load_command

HEAVY = ("torch", "transformers", "llguidance", "numpy", "jinja2")
# What packages of others import at their beginning is theirs: a plug-in may be installed where these tests run.
OWN_ONLY = {**os.environ, "POLYDEC_PLUGINS": "off"}
ASK = "import sys; {}; print([m for m in {!r} if m in sys.modules])"


def loaded(code: str) -> str:
    """Which of the heavy libraries are there after this code, in a process of its own."""
    out = subprocess.run(
        [sys.executable, "-c", ASK.format(code, HEAVY)],
        env=OWN_ONLY,
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "from polydec.methods.registry import registry; [registry.describe_method(n) for n in registry.recipe_modules()]",
        "from polydec.methods.registry import steer; [steer.describe_steering(n) for n in steer.steering_modules()]",
        "from polydec.methods.registry import registry; registry.method_option_values('auto', {'depth': 3})",
    ],
)
def test_what_is_known_of_methods_needs_nothing_that_computes(code):
    assert loaded(code) == "[]"


def test_the_name_of_an_image_loads_nothing_that_decodes_one():
    code = "import polydec; polydec.Image; from polydec.request import ask"
    asked = f"import sys; {code}; print('polydec.models.formats.image_decoding' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", asked], env=OWN_ONLY, capture_output=True, text=True, check=True
    )
    assert out.stdout.splitlines()[-1] == "False"


RUN = "import sys; sys.argv = ['polydec', *{!r}]\nfrom polydec.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["methods"],
        ["methods", "auto"],
        ["methods", "--json"],
        ["steerings"],
        ["steerings", "cfg"],
        ["generate", "--help"],
        ["explain", "--help"],
        ["zoo"],
        ["generate", "--method", "plian", "x"],
        ["generate", "--method", "plain", "--set", "depth=3", "x"],
        ["generate", "--steer", "cgf", "x"],
        ["generate", "--sample", "nonsense=1", "x"],
        ["generate", "--sample", "dry_base=-1", "x"],
        ["generate", "--order", "nonsense", "x"],
        ["chat", "--method", "plian"],
        ["serve", "--help"],
        ["serve", "--method", "plian"],
        ["serve", "--port", "99999"],
        ["detect", "--help"],
        ["export", "--help"],
        ["bench", "--help"],
        ["bench", "--batch", "0"],
        ["verify", "--help"],
        ["verify", "--method", "plian"],
        ["demo", "--help"],
        ["tune", "--help"],
        ["tune", "--seconds", "0"],
        ["doctor", "--help"],
        ["embed", "--help"],
        ["embed", "--pool", "most", "x"],
        ["classify", "--help"],
        ["classify", "x", "--label", "a", "--label", "b", "--set", "width=0"],
        ["trace", "--help"],
        ["trace", "show", "--help"],
    ],
    ids=" ".join,
)
def test_names_are_said_and_checked_without_what_computes(args):
    run = RUN.format(args) + f"print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", run], env=OWN_ONLY, capture_output=True, text=True, check=True
    )
    assert out.stdout.splitlines()[-1] == "[]", out.stderr


@pytest.mark.parametrize("name", every_command())
def test_a_list_says_how_a_commands_own_help_begins(name):
    said = " ".join((load_command(name).help or "").split())
    assert said.startswith(every_command()[name].removesuffix(".")), said


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("polydec gener", ["generate"]),
        ("polydec generate --temp", ["--temperature"]),
        ("polydec generate --method prompt-", ["prompt-lookup"]),
        ("polydec generate --steer do", ["dola"]),
        ("polydec trace sh", ["show"]),
        ("polydec nonsense --temp", []),
    ],
)
def test_a_shell_completes_a_line_without_what_computes(line, completed):
    run = RUN.format([]) + f"print([m for m in {HEAVY!r} if m in sys.modules])"
    asked = {
        "_POLYDEC_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    out = subprocess.run(
        [sys.executable, "-c", run],
        env={**OWN_ONLY, **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = out.stdout.split("\n")[:-1]
    assert [x for x in lines[:-1] if x] == completed and lines[-1] == "[]", out.stderr
    assert out.stderr == ""


def test_no_garbage_is_looked_for_while_a_command_loads_and_none_among_what_it_loaded():
    try:
        with pytest.raises(ValueError), pause_garbage_collection():
            assert not gc.isenabled()
            made = [[]]
            raise ValueError
        assert gc.isenabled() and gc.get_freeze_count() > 0
        assert not any(x is made for x in gc.get_objects())
    finally:
        gc.unfreeze()
