"""The command `polydec`: one application, one place where errors become a sentence and exit code 2."""
from __future__ import annotations

import os
import sys
import warnings

import typer

from polydec.cli import bench, chat, demo, doctor, generate, methods, train, tune, verify, zoo

Misuse = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""What typer raises for wrong usage. Some versions carry a click of their own, so the class is found by its name."""

app = typer.Typer(name="polydec", help="Decode language models by any published method.", no_args_is_help=True,
                  add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(methods.methods)
app.command()(verify.verify)
app.command()(bench.bench)
app.command()(demo.demo)
app.command()(tune.tune)
app.command()(doctor.doctor)
app.add_typer(train.app, name="train")
app.add_typer(zoo.app, name="zoo")


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
    except (ValueError, OSError) as error:
        if os.environ.get("POLYDEC_TRACEBACK"):
            raise
        code = _fail(str(error))
    sys.stdout.flush()
    sys.exit(code or 0)


def _warn(message: Warning | str, category: type[Warning], *where: object) -> None:
    """Our own warnings as one sentence; those of libraries are not for users of a command."""
    if category is UserWarning:
        print(f"polydec: {' '.join(str(message).split())}", file=sys.stderr)


def _fail(sentence: str) -> int:
    print(f"polydec: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
