"""Every field of every kind of training that is declared in polydec/lab/train/specs has its flag, with its default and help."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from polydec.base.options import (
    REQUIRED,
    AtLeast,
    CommaList,
    NoFlag,
    ParseAs,
    as_text,
    dataclass_options,
    keep_ranges,
)
from polydec.base.plugins import has_plugins
from polydec.cli.main import Misuse
from polydec.lab.commands import train
from polydec.lab.commands.training import (
    OTHER_NAMES,
    make_training_function,
    training_commands,
)
from polydec.lab.train import probes
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.specs import probe
from polydec.lab.train.specs.command import TrainingCommand
from polydec.models.learned import artefacts
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
COMMANDS = {command.name: command for command in training_commands()}
GROUP = get_command(train.app)
FLAGS = {name: GROUP.resolve_command(None, name.split())[1] for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_field_has_its_flag(name):
    command = COMMANDS[name]
    declared = {o.name: o for o in dataclass_options(command.spec)}
    flags = {p.name: p for p in FLAGS[name].params if p.name not in ("help", "json_")}
    assert FLAGS[name].help == command.summary
    left = {o.name for o in declared.values() if o.python_only} | set(command.without)
    assert set(declared) == {f.name for f in dataclasses.fields(command.spec)}
    assert set(flags) == set(declared) - left and not set(command.without) - set(declared)
    for field, flag in flags.items():
        option = declared[field]
        default = command.option_default(option)
        first = command.option_flag(option)
        assert flag.opts == [first, *OTHER_NAMES.get(first, ())] and option.range in flag.help
        assert flag.help.startswith(command.helps.get(field, option.help).removesuffix(")"))
        if default is option.default and flag.required:
            assert not hasattr(command.spec, field), f"{field} has a default: no need to require it"
            continue
        assert flag.default == (as_text(default) if option.kind is tuple else default)
        assert flag.is_flag == (option.kind is bool)
        assert bool(flag.secondary_opts) == (default is True)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_field_stands_on_the_page_of_training(name):
    command = COMMANDS[name]
    page = (ROOT / "docs" / "training-flags.md").read_text("utf-8")
    _, _, section = page.partition(f"### polydec train {name}\n")
    section = section.split("\n#")[0]
    mend = f"docs/training-flags.md is older than {name}: run `python docs/tables.py`"
    assert command.summary in section, mend
    rows = dict(re.findall(r"^\| `(--[a-z0-9-]+)` \| (.+) \|$", section, re.M))
    assert rows.keys() == {command.option_flag(o) for o in command.flag_options()}, mend
    for option in command.flag_options():
        default, said = rows[command.option_flag(option)].split(" | ", 1)
        wanted = command.option_default(option)
        text = "must be given" if wanted is REQUIRED else f"`{as_text(wanted) or 'none'}`"
        assert default == text, f"{option.name}: {mend}"
        told = command.option_help(option)
        # The page is of this package: kinds that plug-ins bring stand in help alone, at its end.
        assert told == said or (has_plugins("students") and told.startswith(f"{said}; ")), (
            f"{option.name}: {mend}"
        )


def test_no_command_of_training_is_written_by_hand():
    assert GROUP.commands.keys() == {name.partition(" ")[0] for name in COMMANDS}


@pytest.mark.parametrize(
    "words", [("--recipe", "prm"), ("--recipe=prm",), ("--recipe=value", "--recipe", "prm")]
)
def test_a_recipe_has_flags_of_its_own(words):
    name, command, rest = GROUP.resolve_command(
        None, ["probe", "--out", "x", *words, "--each", "3"]
    )
    assert (name, rest) == ("probe --recipe prm", ["--out", "x", "--each", "3"])
    assert {"temperature", "kinds"} < {p.name for p in command.params}
    assert "mixing" not in {p.name for p in command.params}


@pytest.mark.parametrize("file", [file.name for file in iter_modules(probe.__path__)])
def test_a_recipe_is_two_files_of_its_name(file):
    name = file.replace("_", "-")
    command = COMMANDS[f"probe --recipe {name}"]
    assert command.spec.recipe == name, f"recipe in specs/probe/{file}.py must be {name!r}"
    assert (Path(probes.__path__[0]) / f"{file}.py").exists(), f"probes/{file}.py is not there"


@pytest.mark.parametrize("kind", sorted(artefacts.MODULES))
def test_whoever_lacks_an_artefact_is_told_a_command_that_there_is(kind, tmp_path):
    module = artefacts.MODULES[kind]
    with pytest.raises(ValueError, match=f"`polydec train {re.escape(module.KIND.maker)}`"):
        module.load(str(tmp_path))
    assert (
        getattr(artefacts.type_of(kind), "made_by", module.KIND.training_command)
        == module.KIND.training_command
    )
    name, command, rest = GROUP.resolve_command(None, module.KIND.maker.split())
    flags = {flag for p in command.params for flag in p.opts}
    assert name in COMMANDS and flags >= set(rest[::2])
    assert not rest[1:] or rest[1] in KINDS


@pytest.mark.parametrize("words", [(), ("--recipe",), ("--recipe", "prn")])
def test_a_recipe_that_there_is_not_is_refused_with_those_that_there_are(words):
    every = ", ".join(file.name.replace("_", "-") for file in iter_modules(probe.__path__))
    says = f"recipe is {'none' if len(words) < 2 else 'prn'!r}: it must be one of {every}$"
    with pytest.raises(ValueError, match=says):
        GROUP.resolve_command(None, ["probe", "--out", "x", *words])


@pytest.mark.parametrize(
    "recipe",
    ("filter", "judge", "prm", "reward", "router", "stop-head", "text-router", "value"),
)
def test_a_recipe_that_was_a_command_says_how_it_is_typed_now(recipe):
    says = (
        f"command is '{recipe}': that is a recipe, typed as polydec train probe --recipe {recipe}$"
    )
    with pytest.raises(ValueError, match=says):
        GROUP.resolve_command(GROUP.make_context("train", ["lm"]), [recipe, "--out", "x"])


def test_a_name_that_is_no_recipe_is_no_command():
    with pytest.raises(Misuse, match="No such command 'router-of-text'"):
        GROUP.resolve_command(GROUP.make_context("train", ["lm"]), ["router-of-text"])


def test_without_a_recipe_the_help_lists_all_of_them():
    name, command, rest = GROUP.resolve_command(None, ["probe", "--help"])
    assert (name, rest) == ("probe", ["--help"])
    for recipe in COMMANDS.values():
        if recipe.name.startswith("probe "):
            assert f"{recipe.name.partition(' ')[2]}: {recipe.summary}" in command.help


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_changes_is_there_to_change(name):
    command = COMMANDS[name]
    names = {o.name for o in command.flag_options()}
    assert {*command.spelled, *command.defaults, *command.helps, *command.reads} <= names


def test_only_the_envelope_fits_and_writes_down_what_was_measured():
    train = ROOT / "src" / "polydec" / "lab" / "train"
    sources = {p.relative_to(train): p.read_text("utf-8") for p in train.rglob("*.py")}
    takes_it = re.compile(r"from polydec\.lab\.train\.loop import (\([^)]*|.*)\bfit_network\b")
    fitting = {str(p) for p, text in sources.items() if takes_it.search(text)}
    assert fitting == {"envelope.py"}
    assert [str(p) for p, text in sources.items() if '"training.json"' in text] == ["envelope.py"]


def test_flags_are_listed_without_torch():
    script = (
        "import sys\nfrom typer.main import get_command\nfrom polydec.lab.commands import train\n"
        "group = get_command(train.app)\n"
        "[group.get_command(None, name) for name in group.commands]\n"
        "group.resolve_command(None, ['probe', '--recipe', 'prm'])\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@dataclass(frozen=True)
class Spec:
    """What the next test trains."""

    out: Annotated[str, "directory to write"]
    names: Annotated[tuple[str, ...], ParseAs(CommaList), "of whom"] = ("a",)
    parts: Annotated[tuple[float, ...], AtLeast(0), "of each"] = (1.0, 2.0)
    steps: Annotated[int, AtLeast(1), "optimiser steps"] = 3
    keep: Annotated[bool, "the text"] = True
    more: Annotated[dict[str, int] | None, NoFlag(), "for tests"] = None

    def __post_init__(self) -> None:
        keep_ranges(self)


def measured(spec: Spec) -> dict:
    """What `train` would say."""
    return {**dataclasses.asdict(spec), "curve": [1]}


@pytest.mark.parametrize(
    "given, said",
    [
        ((), '"names": ["a"], "parts": [1.0, 2.0], "steps": 3, "keep": true'),
        (("--names", " b, c,", "--no-keep"), '"names": ["b", "c"]'),
        (("--parts", "3,4.5", "--steps", "9"), '"parts": [3.0, 4.5], "steps": 9'),
        (("--steps", "0"), "steps is 0: it must be at least 1"),
        (("--parts", "3,x"), "parts is '3,x': it must be numbers such as 10,8,6, each at least 0"),
        (("--parts", "-1"), "parts is (-1.0,): it must"),
    ],
)
def test_flags_become_fields(given, said, tmp_path, capsys):
    app = typer.Typer()
    app.command("it")(
        make_training_function(TrainingCommand("it", "Train it.", Spec, f"{__name__}:measured"))
    )
    try:
        get_command(app)(["--out", str(tmp_path), *given], standalone_mode=False)
        text = capsys.readouterr().out
        assert '"curve"' not in text and f'"out": "{tmp_path}"' in text
    except ValueError as error:
        text = str(error)
    assert said in text


def test_a_field_without_help_is_a_fault_of_the_code():
    @dataclass(frozen=True)
    class Bare:
        steps: int = 3

    with pytest.raises(
        TypeError, match=r"field steps needs a line of help: Annotated\[int, InRange\("
    ):
        dataclass_options(Bare)


BROUGHT = """
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

from polydec.base import plugins
from polydec.cli.main import main

brought = (EntryPoint("theirs", "theirs_module", "polydec.training"), EntryPoint("lm", "theirs_module", "polydec.training"))
plugins._points = lambda room: brought if room == "training" else ()
sys.argv = ["polydec", "train", *{!r}]
try:
    main()
finally:
    print("theirs_module" in sys.modules)
"""
THEIRS = """
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

from polydec.lab.train import probes
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.specs import probe
from polydec.lab.train.specs.command import TrainingCommand
from polydec.models.learned import artefacts


@dataclass(frozen=True)
class Spec:
    steps: Annotated[int, "how many"] = 3


COMMAND = TrainingCommand("theirs", "Train theirs.", Spec, "theirs_module:measured")


def measured(spec):
    return {"steps": spec.steps}
"""


@pytest.mark.parametrize(
    "args, said, imported",
    [
        (["--help"], "Of the package a package.", False),
        (["lm", "--help"], "--steps", False),
        (["theirs", "--help"], "Train theirs.", True),
        (["theirs", "--steps", "5"], '{"steps": 5}', True),
    ],
    ids=["list", "own", "help", "theirs"],
)
def test_a_training_of_another_package_is_imported_when_it_is_asked_for(
    args, said, imported, tmp_path, monkeypatch
):
    (tmp_path / "theirs_module.py").write_text(THEIRS, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    out = subprocess.run(
        [sys.executable, "-c", BROUGHT.format(args)], capture_output=True, text=True, check=False
    )
    assert said in out.stdout and out.stdout.splitlines()[-1] == str(imported), out.stderr
    assert "theirs_module" not in out.stderr


def test_a_training_of_another_package_that_cannot_be_used_is_refused_by_its_name(
    tmp_path, monkeypatch
):
    (tmp_path / "theirs_module.py").write_text("raise OSError\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    out = subprocess.run(
        [sys.executable, "-c", BROUGHT.format(["theirs"])], capture_output=True, text=True
    )
    assert out.returncode == 2 and "brings the training theirs, which cannot be used" in out.stderr


def test_the_target_may_be_called_the_model_as_in_other_commands():
    context = FLAGS["eagle"].make_context(
        "eagle", ["--out", "somewhere", "--model", "zoo:reasoner"]
    )
    assert context.params["target"] == "zoo:reasoner"
