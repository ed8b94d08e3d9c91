"""The command `polydec`: one application, one place where errors become a sentence and exit code 2."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from polydec import __version__
from polydec.cli import (
    batch,
    bench,
    chat,
    demo,
    detect,
    doctor,
    explain,
    export,
    generate,
    methods,
    serve,
    steerings,
    trace,
    train,
    tune,
    verify,
    zoo,
)
from polydec.edge import sentence

Misuse: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""What typer raises for wrong usage. Some versions carry a click of their own, so the class is found by its name."""

app = typer.Typer(
    name="polydec",
    help="Decode language models by any published method.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(serve.serve)
app.command()(batch.batch)
app.command()(explain.explain)
app.command()(methods.methods)
app.command()(steerings.steerings)
app.command()(verify.verify)
app.command()(bench.bench)
app.command()(demo.demo)
app.command()(tune.tune)
app.command()(detect.detect)
app.command()(doctor.doctor)
app.command()(export.export)
app.add_typer(train.app, name="train")
app.add_typer(zoo.app, name="zoo")
app.add_typer(trace.app, name="trace")


def _version(asked: bool) -> None:
    if asked:
        print(f"polydec {__version__}")
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
    pass


def main() -> None:
    """Entry point. Bad input: one sentence on standard error, exit code 2. Ctrl-C: exit code 130."""
    warnings.showwarning = _warn
    try:
        code = app(standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Misuse as error:
        code = _fail(error.format_message())
    except BrokenPipeError:  # who reads has seen enough, as in `polydec methods | head`
        code = _unread()
    except (ValueError, OSError) as error:
        if os.environ.get("POLYDEC_TRACEBACK"):
            raise
        code = _fail(_reason(error))
    except MemoryError:
        code = _fail("there is not enough memory for this")
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _unread()
    except OSError as error:
        code = _unread(_fail(f"standard output cannot be written: {error.strerror}"))
    sys.exit(code or 0)


def _unread(code: int = 0) -> int:
    """Let what is left in standard output go nowhere, as the interpreter would try once more to write it when it ends."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return code


def _warn(message: Warning | str, category: type[Warning], *where: object) -> None:
    """Our own warnings as one sentence; those of libraries are not for users of a command."""
    if category is UserWarning:
        print(f"polydec: {sentence(message)}", file=sys.stderr)


def _reason(error: ValueError | OSError) -> str:
    """A sentence in place of `[Errno 36] File name too long: '…'`."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"file {str(error.filename)!r} cannot be used: {error.strerror}"
    return str(error)


def _fail(problem: str) -> int:
    print(f"polydec: {sentence(problem)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
