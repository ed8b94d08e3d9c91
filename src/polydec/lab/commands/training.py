"""Commands of `polydec train`, made of what each training declares (polydec/lab/train/specs)."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from polydec.base import plugins
from polydec.base.errors import RequestError
from polydec.base.interrupts import said_when_stopped
from polydec.base.options import REQUIRED, Option, as_text
from polydec.lab.train import specs
from polydec.lab.train.specs.command import TrainingCommand

PATHS = {"out", "data", "text", "corpus", "tokenizer", "teacher", "good", "bad"}
"""Fields whose value is a file or a folder."""

OTHER_NAMES = {"--target": ("--model",)}
"""Further names of flags: all other commands call the model that they read `--model`."""
JSON = Annotated[bool, typer.Option("--json", help="what was measured, as one JSON object")]


BESIDE = ("command", "fields", "image_drafter", "states")
"""Modules of polydec/lab/train/specs that are no kind of training."""


def training_commands() -> tuple[TrainingCommand, ...]:
    """Commands and recipes of polydec/lab/train/specs and of other packages (`plugins.py`)."""
    own = {command.name: command for name in _names() for command in _own(name)}
    # Packages cannot replace our own commands: taken names are refused.
    every = own | _brought()
    return tuple(every[name] for name in sorted(every))


def _names() -> list[str]:
    """Of our own commands: a file's name, with hyphens."""
    files = (m.name for m in iter_modules(specs.__path__))
    return [name.replace("_", "-") for name in files if name not in BESIDE]


def _own(name: str) -> tuple[TrainingCommand, ...]:
    """The command of one of our files, or those of its recipes."""
    module = import_module(f"{specs.__name__}.{name.replace('-', '_')}")
    if hasattr(module, "RECIPES"):
        return module.RECIPES
    return (module.COMMAND,)


def _brought(only: str | None = None) -> dict[str, TrainingCommand]:
    """What other packages bring: all of it, or what has the name `only`."""
    taken = _names()
    what = "COMMAND of that name"
    return plugins.load_plugins("training", taken, plugins.with_command, what, only)


class TrainingCommandGroup(TyperGroup):
    """A group of all training commands.

    A command is built when somebody asks for it. One of another package is not even imported for
    the list, which shows its name and package.
    """

    def __init__(self, **settings: Any) -> None:
        # Empty commands, for the list alone: the real one is made in `get_command`.
        own = {name: TyperCommand(name) for name in _names()}
        self._others = plugins.plugin_packages("training", list(own))
        others = {
            name: TyperCommand(name, help=f"Of the package {package}.")
            for name, package in self._others.items()
        }
        listed = dict(sorted((own | others).items()))
        super().__init__(**{**settings, "commands": {**settings["commands"], **listed}})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, with its flags.

        Args:
            ctx: The context of the command line.
            cmd_name: The name as it is typed.

        Returns:
            The command; None where there is none.
        """
        known = super().get_command(ctx, cmd_name)
        if cmd_name in _names():
            own = _own(cmd_name)
            if len(own) == 1:
                return _typed(own[0])
            return TyperCommand(cmd_name, help=recipe_list(own))
        return known

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a command line means; one of another package is imported here.

        Args:
            ctx: The context of the command line.
            args: The words after the group's name.

        Returns:
            Its name, the command, and the words after it.

        Raises:
            RequestError: The package that brings the command cannot be used, or the name is that of
                a recipe.
        """
        # Each recipe was a command of its own once: who types that is told how it is typed now.
        if args[0] not in self.commands and (recipe := _find_recipe(args[0])) is not None:
            raise RequestError(
                f"command is {args[0]!r}: that is a recipe, typed as polydec train {recipe.name}"
            )
        name, known, rest = super().resolve_command(ctx, args)
        # Only now is code of another package imported: the user has asked for it.
        if name in self._others:
            brought = _brought(name)
            if name not in brought:
                raise RequestError(
                    f"the package {self._others[name]} brings the training {name}, which cannot be used"
                )
            known = _typed(brought[name])
        elif name in _names() and len(own := _own(name)) > 1 and list(rest) != ["--help"]:
            command, rest = split_recipe(own, rest)
            return command.name, _typed(command), rest
        return name, known, rest


def _find_recipe(name: str) -> TrainingCommand | None:
    """The command of the recipe of that name; None where no command has one."""
    every = (command for group in _names() for command in _own(group))
    return next((x for x in every if x.name.endswith(f" --recipe {name}")), None)


def recipe_list(recipes: Sequence[TrainingCommand]) -> str:
    """The help of a command that has recipes.

    Args:
        recipes: All recipes of one command.

    Returns:
        A sentence, and a line for each recipe with its flag and what it trains.
    """
    lines = "\n\n".join(f"{r.name.partition(' ')[2]}: {r.summary}" for r in recipes)
    names = ", ".join(r.name.rpartition(" ")[2] for r in recipes)
    return f"Train one of {names}; `--recipe NAME --help` lists its flags.\n\n{lines}"


def split_recipe(
    recipes: Sequence[TrainingCommand], args: Sequence[str]
) -> tuple[TrainingCommand, list[str]]:
    """Find the recipe that a command line names.

    Args:
        recipes: All recipes of one command.
        args: What was typed behind the command.

    Returns:
        The recipe's command, and the arguments without `--recipe` and its value.

    Raises:
        RequestError: No recipe is named, or one that there is not.
    """
    # Each recipe has flags and defaults of its own, so it must be known before they are read.
    reader = ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("--recipe", nargs="?")
    named, rest = reader.parse_known_args(list(args))
    known = {command.name.rpartition(" ")[2]: command for command in recipes}
    if named.recipe not in known:
        raise RequestError(
            f"recipe is {named.recipe or 'none'!r}: it must be one of {', '.join(known)}"
        )
    return known[named.recipe], rest


def _typed(command: TrainingCommand) -> Any:
    """A command with a flag for every field."""
    alone = typer.Typer(add_completion=False)
    alone.command(command.name)(make_training_function(command))
    return typer.main.get_command(alone)


def training_flag_tables() -> str:
    """What each command does and its flags, as Markdown for the docs."""
    return "\n\n".join(_table(command) for command in training_commands())


def _table(command: TrainingCommand) -> str:
    rows = ["| flag | default | what it is |", "|---|---|---|"]
    for option in command.flag_options():
        default = command.option_default(option)
        if default is REQUIRED:
            shown = "must be given"
        else:
            shown = f"`{as_text(default) or 'none'}`"
        rows.append(
            f"| `{command.option_flag(option)}` | {shown} | {command.option_help(option)} |"
        )
    table = "\n".join(rows)
    return f"### polydec train {command.name}\n\n{command.summary}\n\n{table}"


def make_training_function(command: TrainingCommand) -> Callable[..., None]:
    """Make the function that typer turns into a command: one keyword parameter for each field of
    the training.
    """
    options = command.flag_options()
    parameters = [_parameter(option, command) for option in options]
    if command.sentence is not None:
        parameters.append(
            Parameter("json_", Parameter.KEYWORD_ONLY, default=False, annotation=JSON)
        )

    def run_training(*, json_: bool = True, **flags: Any) -> None:
        """Train, and print what was measured.

        Args:
            json_: Whether to print one JSON object in place of a sentence.
            flags: Values of the training's fields by name.
        """
        # Typer gives text for tuples and paths; the training wants the field's own type.
        values = {option.name: _value(option, flags[option.name], command) for option in options}
        with said_when_stopped(lambda: _stopped(values.get("out"))):
            result = command.train_with(values)
        if json_ or command.sentence is None:
            # The curve of losses stands in the training's own files.
            print(json.dumps({k: v for k, v in result.items() if k != "curve"}))
        else:
            print(command.sentence({**result, "out": values["out"]}))

    # Typer reads name, help and flags from the function's own attributes.
    run_training.__name__ = command.name
    run_training.__doc__ = command.summary
    run_training.__signature__ = Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run_training.__annotations__ = {p.name: p.annotation for p in parameters}
    return run_training


def _stopped(out: Any) -> str:
    """What is said where a training was stopped outside of its steps: while it gathers, measures or
    saves."""
    where = None if out is None else Path(out)
    if where is not None and where.is_dir() and any(where.iterdir()):
        return f"stopped: {str(where)!r} keeps what was made until then, and the same command goes on from there"
    return "stopped before anything was kept: the same command begins anew"


def _parameter(option: Option, command: TrainingCommand) -> Parameter:
    default = command.option_default(option)
    flag = command.option_flag(option)
    # A switch that is on by default needs a way to turn it off.
    if default is True:
        names = [f"{flag}/--no-{option.name}"]
    else:
        names = [flag, *OTHER_NAMES.get(flag, ())]
    # Without a default typer demands the flag.
    if default is REQUIRED:
        shown = Parameter.empty
        kind = _type(option)
    else:
        # A default of several values is shown, and typed, as text with commas.
        if option.kind is tuple:
            shown = as_text(default)
        else:
            shown = default
        kind = _type(option)
    return Parameter(
        option.name,
        Parameter.KEYWORD_ONLY,
        default=shown,
        annotation=Annotated[kind, typer.Option(*names, help=command.option_help(option))],
    )


def _type(option: Option) -> Any:
    """What typer reads: a tuple comes as text."""
    if option.kind is tuple:
        return str
    kind: Any = Path if option.name in PATHS else option.kind
    if option.optional:
        return kind | None
    return kind


def _value(option: Option, value: Any, command: TrainingCommand) -> Any:
    """The value of the field. Raises RequestError for a text that is no tuple of its type."""
    if option.name in command.reads:
        return command.reads[option.name](value)
    if option.kind is tuple:
        return option.convert_value(value)
    if isinstance(value, Path):
        return str(value)
    return value
