"""The command `polydec`: one application, one place where errors become a sentence and exit code 2."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from polydec.base.edge import error_sentence
from polydec.base.errors import PolydecError
from polydec.base.interrupts import sigterm_raised
from polydec.base.version import PACKAGE_VERSION
from polydec.cli.lab_commands import lab_commands, require_lab

Misuse: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""What typer raises for wrong usage. Some versions carry a click of their own, so the class is
found by its name."""

COMMANDS = {
    "generate": "Decode one prompt.",
    "chat": "Talk to a model.",
    "serve": "Serve models over HTTP: OpenAI's API under /v1, a page at /.",
    "batch": "Answer a file of requests.",
    "embed": "Print a vector of each text, a JSON object a line.",
    "classify": "Sort texts into classes, a JSON object a line.",
    "watch": "Say what a stream of images shows, where that changes.",
    "explain": "Say what `polydec generate` would do with these flags.",
    "methods": "List every method: what it is, promises, needs, options, source.",
    "steerings": "List every way to steer (`polydec generate --steer NAME`).",
    "presses": "List every way to make a cache smaller (`polydec generate --cache NAME`).",
    "tune": "Measure what a pass over 1 to 32 rows costs on this machine.",
    "detect": "Look for the watermark (`--sample watermark_bias=2`) in a text.",
    "doctor": "Machine, kernels, models: what runs, which path serves and why, what is missing.",
    "export": "Write a draft model or a drafter as vLLM and SGLang load it.",
    "zoo": "Embedded models: what is here, what each is, how to get it.",
    "pull": "Download a model.",
    "models": "List the models on this machine: name, kind, size, where.",
    "rm": "Remove a model from the cache of downloads.",
    "trace": "Read traces that --trace wrote.",
}
"""Every command of the engine and what a list says of it: its module in this folder, which holds a
function of that name or an `app`, is imported when it is called."""

_LOOK: Any = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False}


class LazyCommandGroup(TyperGroup):
    """A group whose commands are imported when one of them is called: their imports take seconds,
    and a list of them needs none.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _listed_commands(COMMANDS)})

    def list_commands(self, ctx: Any) -> list[str]:
        self._add_lab_commands()
        return super().list_commands(ctx)

    def _add_lab_commands(self) -> None:
        """Only a list, or a name that is not the engine's, asks for them: nothing else imports a
        part of the lab."""
        self.commands.update(_listed_commands(every_command()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a command line means, and import it.

        Args:
            ctx: The context of the command line.
            args: The words after `polydec`, at least one.

        Returns:
            Its name, the command, and the words after it.
        """
        # Not a command of the engine: the lab may have it, if it is installed.
        if args[0] not in COMMANDS:
            # A shell that completes a line wants no sentence.
            if not ctx.resilient_parsing:
                require_lab(args[0])
            self._add_lab_commands()
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and load_command(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            # Caught here: further out it would become an Abort without its message.
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            if str(stop):  # what is kept, and how to go on
                _fail(str(stop))
            raise typer.Exit(130) from None


def _listed_commands(sentences: Mapping[str, str]) -> dict[str, Any]:
    """What a list shows of commands that are not loaded yet, by their names."""
    return {name: TyperCommand(name, help=about) for name, about in sentences.items()}


def every_command() -> dict[str, str]:
    """All commands and what a list says of each, those of the lab behind those of the engine."""
    brought = {name: package.COMMANDS[name] for name, package in lab_commands().items()}
    return COMMANDS | brought


@cache
def load_command(name: str) -> Any:
    """Import a command or a group of commands, with all its flags."""
    if name in COMMANDS:
        package = "polydec.cli"
    else:
        # An entry point names the package that holds the command.
        package = lab_commands()[name].__name__
    # A hyphen of a command is an underscore of its module.
    within = name.replace("-", "_")
    module = import_module(f"{package}.{within}")
    alone = typer.Typer(add_completion=False, **_LOOK)
    if hasattr(module, "app"):
        alone.add_typer(module.app, name=name)
    else:
        # Only a command that hands its flags on has settings.
        settings = getattr(module, "SETTINGS", None)
        alone.command(name, context_settings=settings)(getattr(module, within))
        # Typer makes a lone command the whole application; with a callback it stays a group.
        alone.callback()(lambda: None)
    tree: Any = typer.main.get_command(alone)
    return tree.commands[name]


app = typer.Typer(
    cls=LazyCommandGroup,
    name="polydec",
    help="Decode language models by any published method.",
    no_args_is_help=True,
    add_completion=True,
    **_LOOK,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"polydec {PACKAGE_VERSION}")
        raise typer.Exit


@app.callback()
def _command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Decode language models by any published method."""


def main() -> None:
    """Entry point. Bad input: one sentence on standard error, exit code 2. A fault of the program:
    exit code 1. Ctrl-C: 130."""
    warnings.showwarning = _warn
    try:
        with sigterm_raised():
            code = app(standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Misuse as error:
        # Without any argument the help was shown, and there is nothing to say.
        message = error.format_message()
        code = _fail(message) if message else 0
    except BrokenPipeError:
        # The reader has seen enough, as in `polydec methods | head`.
        code = _unread()
    except MemoryError:
        code = _fail("there is not enough memory for this")
    except Exception as error:
        if os.environ.get("POLYDEC_TRACEBACK"):
            raise
        if isinstance(error, (PolydecError, OSError)):
            code = _fail(_reason(error))
        else:
            code = _fault(error)
    try:
        # A full disk or a closed pipe may show only when the buffer is written.
        sys.stdout.flush()
    except BrokenPipeError:
        code = _unread()
    except OSError as error:
        code = _unread(_fail(f"standard output cannot be written: {error.strerror}"))
    sys.exit(code or 0)


def _unread(code: int = 0) -> int:
    """Let what is left in standard output go nowhere, as the interpreter would try once more to
    write it when it ends."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return code


def _warn(message: Warning | str, category: type[Warning], *where: object) -> None:
    """Our own warnings as one sentence; those of libraries are not for users of a command."""
    # Libraries warn by categories of their own.
    if category is UserWarning:
        print(f"polydec: {error_sentence(message)}", file=sys.stderr)


def _reason(error: PolydecError | OSError) -> str:
    """A sentence in place of `[Errno 36] File name too long: '…'`."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"file {str(error.filename)!r} cannot be used: {error.strerror}"
    return str(error)


def _fault(error: Exception) -> int:
    """What no input should lead to: said as such, without lines of code that say nothing to a user."""
    _fail(
        f"this is a fault of the program ({type(error).__name__}: {error}); with POLYDEC_TRACEBACK=1 it says where"
    )
    return 1


def _fail(problem: str) -> int:
    print(f"polydec: {error_sentence(problem)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
