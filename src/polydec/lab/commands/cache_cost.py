"""polydec cache-cost: what each press of a cache costs a model on a text of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from polydec import api
from polydec.base import files
from polydec.base.edge import escape_control_characters, require_integer
from polydec.base.errors import RequestError
from polydec.base.interrupts import said_when_stopped
from polydec.cli import prompts
from polydec.cli.flags import LOADING
from polydec.cli.terminal_output import as_csv, emit_drawn, print_result
from polydec.methods.registry.family import AUTOREGRESSIVE, family_of

if TYPE_CHECKING:
    from polydec.lab.bench.cache_cost import CachePressCost

LENGTHS = (1000, 2000, 4000, 8000)
"""Tokens at which figures are taken where nobody says it: those that model and text hold."""
LEAST = 2
"""Tokens of a length, at least."""
MOST = 10_000_000
"""Tokens of a length, at most."""
WRITTEN = 32
"""Tokens that are written to measure a speed."""
CHARACTERS = 64
"""Characters of a text that are read for each token that is wanted: no tokenizer takes more."""
PRESSES = (
    "quantised",
    "quantised:bits=4",
    "quantised:bits=4:group=64",
    "quantised:bits=4:group=0",
    "quantised:bits=2",
    "hadamard",
    "gear",
    "gear:bits=4:group=0:rank=2",
    "gear-l",
    "window",
    "snapkv",
    "kvzip",
    "expected-attention",
    "keydiff",
    "tova",
    "h2o",
)
"""What is measured where nobody names presses."""


def cache_cost(
    model: Annotated[str, typer.Argument(help="the model, as --model of other commands takes it")],
    file: Annotated[
        Path, typer.Argument(help="the text: a text file, or JSON lines with `text` (also .gz)")
    ],
    press: Annotated[
        list[str] | None,
        typer.Option(
            help="a press, options after colons (quantised:bits=4), repeatable; default: all that the model can read"
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="tokens of the text at which figures are taken, comma-separated; default: those of "
            "1000,2000,4000,8000 that model and text hold"
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help=f"{LOADING['dtype'].help}; torch reads every press")
    ] = "auto",
    threads: Annotated[int | None, typer.Option(help=LOADING["threads"].help)] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="also tokens a second by method auto")
    ] = False,
    speed: Annotated[
        bool, typer.Option(help="tokens a second by plain decoding (--no-speed: none)")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="write the figures to this file after each press: .csv or .json"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="the figures as one JSON object")] = False,
) -> None:
    """Measure what each way to make a cache smaller costs your model on your text: bytes a position, their share of float32's,
    perplexity and distance of laws beside the cache as it is, tokens a second.\f

    Args:
        model: Name or folder of the model.
        file: A text file, or JSON lines whose rows have `text`.
        press: Presses with their options. Default None: all that the model can read.
        lengths: Tokens at which figures are taken, comma-separated. Default None: those of
            `LENGTHS` that model and text hold, else as many as they hold.
        dtype: What the model computes in, as `polydec generate --dtype`. Default "auto".
        threads: Threads. Default None: as `polydec.load` chooses.
        auto: Whether the speed of method auto is measured. Default False.
        speed: Whether the speed of plain decoding is measured. Default True.
        out: File for the figures, .csv or .json, written anew after each press. Default None.
        json_: Whether the figures are printed as one JSON object. Default False.
    """
    # Whatever can be refused without the model is refused before it is loaded.
    if out is not None:
        if out.suffix not in (".csv", ".json"):
            raise RequestError(f"out is {str(out)!r}: its name must end in .csv or .json")
        files.require_writable_file("out", out)
    wanted = None if lengths is None else parse_lengths(lengths)
    # After the checks, as it imports torch.
    from polydec.lab.bench import cache_cost as costs

    settings = [costs.parse_press_setting(item) for item in press or PRESSES]
    # Read before the model is loaded: a wrong file is said at once.
    text = read_running_text(file, max(wanted or LENGTHS))
    lm = api.load(model, dtype=dtype, threads=threads, draft=None, ngrams=None)
    # An encoder-decoder model continues texts, too, but its memory of a source is no such cache.
    if family_of(lm.checkpoint.lm) is not AUTOREGRESSIVE or hasattr(lm.checkpoint.lm, "encoder"):
        raise RequestError(
            f"model is {model}: a cache is pressed of models that continue texts only"
        )
    good, refused = costs.usable_settings(lm, settings)
    # Who names a press is told why it cannot be read; of the usual ones it is left out.
    if press and refused:
        raise RequestError(next(iter(refused.values())))
    if not good:
        raise RequestError(f"model is {model}: {next(iter(refused.values()))}")
    methods = (["plain"] if speed else []) + (["auto"] if auto else [])
    tokens = lm.encode_prompt(text, raw=True)
    chosen = lengths_that_fit(
        wanted, len(tokens), lm.checkpoint.lm.context, WRITTEN if methods else 0, file
    )
    sheet = CostSheet(lm, file, list(refused), out)
    with (
        said_when_stopped(lambda: stopped_sentence(sheet)),
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        # One more than the presses: the cache as it is comes first, to compare with.
        task = bar.add_task("reading", total=(1 + len(good)) * chosen[-1])
        done = 0

        def advance(label: str, read: int) -> None:
            """Show how far the reading has come.

            Args:
                label: The press.
                read: Tokens that were read under it.
            """
            # Presses read the text once each, so those that are done count whole.
            bar.update(task, description=label, completed=done * chosen[-1] + read)

        for found in costs.measure_cache_costs(
            lm, tokens, good, chosen, methods=methods, written=WRITTEN, advance=advance
        ):
            done += 1
            sheet.add_costs(found)
            # A pipe or a log shows no bar, so each press says that it is done.
            if not bar.console.is_terminal:
                bar.console.print(
                    f"{done} of {1 + len(good)}: {found[0].setting.setting_label}",
                    markup=False,
                    highlight=False,
                )
    publish_costs(sheet, json_)


def parse_lengths(given: str) -> list[int]:
    """Parse lengths of a text, ascending.

    Raises:
        RequestError: One is no whole number of at least `LEAST`, or stands there twice.
    """
    parts = [part.strip() for part in given.split(",")]
    # Python refuses to read a number of thousands of digits, in an error of its own.
    if not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise RequestError(
            f"lengths is {given!r:.100}: it must be whole numbers from {LEAST} to {MOST:,} with commas "
            "between them, as 1000,2000"
        )
    numbers = [require_integer("lengths", int(part), LEAST, MOST) for part in parts]
    if len(set(numbers)) < len(numbers):
        raise RequestError(f"lengths is {given!r}: each must stand there once")
    return sorted(numbers)


def read_running_text(path: Path, tokens: int) -> str:
    """Read the text of a file, as far as it can be of use.

    Args:
        path: A text file, or JSON lines whose rows have `text`; also .gz.
        tokens: Tokens that are wanted of it at most.

    Returns:
        Its text; of JSON lines those of the rows, with blank lines between them.

    Raises:
        RequestError: It cannot be read, or holds no text.
    """
    if ".jsonl" in path.name:
        from polydec.models.formats.text_rows import read_text_rows

        text = ""
        for row in read_text_rows(path):
            if row.text:
                text += f"{row.text}\n\n"
            # The rest of a long file is never read.
            if len(text) > CHARACTERS * tokens:
                break
    else:
        text = prompts.read_text(path)
    if not text.strip():
        raise RequestError(f"file {str(path)!r} holds no running text")
    return text[: CHARACTERS * (tokens + 1)]


def lengths_that_fit(
    wanted: Sequence[int] | None, held: int, context: int, written: int, path: Path
) -> list[int]:
    """Choose lengths that the model and the text have room for.

    Args:
        wanted: Lengths that were asked for, ascending; None: those of `LENGTHS` that fit, else the
            greatest that does.
        held: Tokens of the text.
        context: Tokens of the model's context.
        written: Tokens that are written behind a length.
        path: The text's file, for messages.

    Returns:
        The lengths, ascending.

    Raises:
        RequestError: One is longer than the text or the context, or nothing fits.
    """
    # One token more of the text is read, as what the last law is held against.
    most = min(held - 1, context - written - 1)
    if most < LEAST:
        raise RequestError(
            f"file {str(path)!r} has {held} tokens, and the model's context {context}: there is no room for "
            f"{LEAST} tokens and what is written behind them"
        )
    if wanted is None:
        # A short text still has one figure, at the greatest length that it allows.
        return [n for n in LENGTHS if n <= most] or [most]
    # They ascend, so the last one tells for all.
    if wanted[-1] > most:
        raise RequestError(
            f"lengths holds {wanted[-1]}: {str(path)!r} has {held} tokens and the model's context {context}, so {most} is "
            "the most"
        )
    return list(wanted)


@dataclass
class CostSheet:
    """The figures as they come; its file holds those of every press that is done.

    Attributes:
        lm: The loaded model.
        text: The text's file.
        refused: Presses that the model cannot read here.
        out: File for the figures; None: none.
        costs: What was measured.
    """

    lm: api.LoadedModel
    text: Path
    refused: Sequence[str]
    out: Path | None
    costs: list[CachePressCost] = field(default_factory=list)

    @property
    def number_type(self) -> str:
        """What the model computes in."""
        kernel = self.lm.checkpoint.kernel
        return self.lm.checkpoint.dtype + (f" ({kernel})" if kernel else "")

    def as_record(self) -> dict[str, Any]:
        """All of it, as it is written as JSON."""
        return {
            "model": self.lm.name,
            "numbers": self.number_type,
            "text": self.text.name,
            "refused": list(self.refused),
            "rows": [cost.as_record() for cost in self.costs],
        }

    def add_costs(self, found: Sequence[CachePressCost]) -> None:
        """Take a press's figures, and write the file anew.

        Args:
            found: Its costs at each length.

        Raises:
            RequestError: The file cannot be written.
        """
        self.costs += found
        # Without a file the figures only wait for the end of the run.
        if self.out is None:
            return
        whole = self.as_record()
        sheet = json.dumps(whole) + "\n"
        if self.out.suffix == ".csv":
            rows = [{**row, "numbers": self.number_type} for row in whole["rows"]]
            # The same ends of lines on every system, as the file may be committed.
            sheet = as_csv(rows).replace("\r\n", "\n")
        files.replace_file_atomically(self.out, lambda at: Path(at).write_bytes(sheet.encode()))


def stopped_sentence(sheet: CostSheet) -> str:
    """What is said where a run was stopped."""
    if sheet.out is None:
        return "stopped: with --out FILE the figures of every press that is done are kept"
    if not sheet.costs:
        return "stopped: no press was done, so nothing was written"
    # A press has a row for each length: its name is said once, in order.
    labels = dict.fromkeys(cost.setting.setting_label for cost in sheet.costs)
    return (
        f"stopped: {str(sheet.out)!r} holds the figures of {', '.join(labels)}; "
        "--press measures others"
    )


def publish_costs(sheet: CostSheet, as_json: bool) -> None:
    """Print the costs.

    Args:
        sheet: The figures.
        as_json: Whether they are printed as JSON.

    Raises:
        RequestError: Standard output cannot be written.
    """
    whole = sheet.as_record()
    if as_json:
        print_result(json.dumps(whole))
        return
    emit_drawn(lambda console: draw_costs(console, whole))


def draw_costs(console: Console, whole: dict[str, Any]) -> None:
    """Draw the table of costs.

    Args:
        console: Where it is drawn.
        whole: What `CostSheet.as_record` has.
    """
    heading = f"{whole['model']}, {whole['numbers']}, {whole['text']}"
    # Names are from outside: no control character of theirs may reach the terminal.
    console.print(escape_control_characters(heading), markup=False)
    rows: list[dict[str, Any]] = whole["rows"]
    table = Table(box=None, pad_edge=False)
    table.add_column("press", no_wrap=True)
    names = {"length": "tokens", "bytes": "bytes a position", "share": "of float32", "kl": "KL"}
    # Speeds are there only if they were measured.
    columns = [name for name in rows[0] if name not in ("press", "options")]
    for name in columns:
        unit = " tokens/s" if name in ("plain", "auto") else ""
        table.add_column(names.get(name, name) + unit, justify="right")
    for row in rows:
        label = f"{row['press']} {row['options']}".strip()
        table.add_row(label, *(str(row[name]) for name in columns))
    console.print(table)
    if whole["refused"]:
        console.print(
            f"not read by the compiled step: {', '.join(whole['refused'])} (--dtype torch reads them)",
            markup=False,
        )
