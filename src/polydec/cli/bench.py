"""polydec bench: methods side by side on prompts."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from polydec import api
from polydec.base import files
from polydec.base.edge import printable, sentence, whole
from polydec.base.errors import RequestError
from polydec.bench import answers, measure, parallelbench, record
from polydec.bench.certificate import digest
from polydec.bench.record import Cell
from polydec.cli import asking, bench_page, prompts
from polydec.cli.declared import shared
from polydec.cli.flags import BENT, LOADED, SAMPLED, Flags
from polydec.cli.shown import cell, emit, emit_drawn
from polydec.methods import registry
from polydec.methods.kit import family_of
from polydec.request import machine, profile
from polydec.request.fields import CHOICES

NAN = float("nan")
BASES = {"ar": "plain", "diffusion": "llada", "insertion": "insertion-language-models"}
"""By a model's family, what the other methods are held against: a token a pass."""
USUAL = {**registry.DEFAULTS, "ar": "prompt-lookup,token-recycling"}
"""By a model's family, what is held against it where nobody names methods."""


@shared
def bench(
    flags: Flags,
    methods: Annotated[
        str | None,
        typer.Option(
            help="comma-separated, options after colons (draft-model:depth=3), or `all`; default: "
            "prompt-lookup,token-recycling, or fast-dllm"
        ),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="several models, comma-separated, in place of --model")
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(help="several, comma-separated (0,0.8), in place of --temperature"),
    ] = None,
    batch: Annotated[str, typer.Option(help="requests at once; several: 1,4")] = "1",
    suite: Annotated[
        str | None,
        typer.Option(
            help="instead of timing, count right answers at each degree of "
            "parallelism: parallelbench, parallelbench-digits"
        ),
    ] = None,
    each: Annotated[int, typer.Option(help="of a suite: problems of each task")] = 25,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="prompts: JSON lines, or one a line (repeatable; default: built-in ones)"
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="of running text: tokens of a prompt")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="use the first prompts of a file only")] = None,
    repeat: Annotated[int, typer.Option(help="interleaved repetitions")] = 3,
    record_: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="write every run to this file as it is measured; the same command goes on where it stopped",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="write a report to this file: one page that needs no network"),
    ] = None,
    csv_: Annotated[
        Path | None, typer.Option("--csv", help="write the figures to this file, a row a line")
    ] = None,
) -> None:
    """Time methods side by side: tokens/s, ratio to plain decoding (of a masked-diffusion model: to llada) with its 95 %
    interval, tokens a pass, acceptance, waiting; right answers where the prompts' rows say them (`answer`)."""
    batches = [whole("batch", n, 1, CHOICES) for n in _numbers("batch", batch, int)]
    whole("repeat", repeat, 1, 1000)
    if flags.method != "auto" or flags.set_:
        raise RequestError(
            "bench does not take --method or --set: it compares methods, with their options behind them, as in "
            "--methods plain,draft-model:depth=3"
        )
    flags.only("bench", {*LOADED, *BENT, "max_tokens", "seed", "raw", "json_"})
    if suite is not None:
        beside = (data, prompt_tokens, limit, flags.max_tokens, record_, html, csv_)
        if any(x is not None for x in (*beside, models, temperatures)):
            raise RequestError(
                "bench --suite does not take --data, --prompt-tokens, --limit, --max-tokens, --models, --temperatures, "
                "--record, --html or --csv: its problems and lengths are its own"
            )
        return compare(flags, suite, methods, whole("each", each, 1, 10_000))
    for name, path in (("html", html), ("csv", csv_)):
        _ready(name, path)
    if methods not in (None, "all"):
        parse(methods)  # what no model could honour is said before one is loaded
    heats = _temperatures(flags, temperatures)
    every = [_Side(one, methods, heats) for one in _each_model(flags, models)]
    for one in every:
        one.prepare(data, prompt_tokens, limit)
    identity = {
        "models": [one.said for one in every],
        "versions": machine.versions(),
        "settings": _settings(flags),
        "prompts": digest([[dataclasses.astuple(r) for r in one.rows] for one in every]),
    }
    if machine.busy() > 0.2:
        Console(stderr=True).print(
            f"warning: the machine is busy (load {machine.busy():.1f} of its cores): "
            "figures are doubtful",
            style="yellow",
        )
    found = Found(identity)
    try:
        with (
            record.opened(record_, identity) as kept,
            Progress(console=Console(stderr=True), transient=True) as progress,
        ):
            bar = progress.add_task("measuring", total=None)
            for one in every:
                lm = one.load()
                if html is not None and family_of(lm.checkpoint.lm) == "ar":
                    found.curves[lm.name] = profile.read(lm) or profile.measure(
                        lm, seconds=profile.QUICK
                    )
                for at, request, tasks in one.cells(batches):
                    found.rows += run(
                        lm,
                        one,
                        at,
                        request,
                        tasks,
                        repeat,
                        kept,
                        lambda label: progress.update(bar, description=escape(printable(label))),
                        found.partly,
                    )
    finally:  # also of what was measured before a failure or Ctrl-C
        found.rows += found.partly
        if found.rows:
            publish(found, flags.json_, html, csv_)


@dataclass
class Found:
    """What a bench has to tell. partly: rows of a cell that was left half-way; curves: by model what its passes cost."""

    identity: dict[str, Any]
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    partly: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    curves: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @property
    def machine(self) -> str:
        return "; ".join(dict.fromkeys(m["machine"] for m in self.identity["models"]))


class _Side:
    """One model of a bench: how it is loaded, its methods and prompts."""

    def __init__(self, flags: Flags, methods: str | None, heats: Sequence[float | None]) -> None:
        self.flags, self._named, self._heats = flags, methods, heats
        self.alone, self.base = True, "plain"
        self.chosen, self.rows = list[measure.Method](), list[prompts.Row]()
        self.said = dict[str, Any]()
        self._lm: api.LM | None = None

    def load(self) -> api.LM:
        """The model; where there are several, one that is held for nobody else."""
        lm = self._lm or self.flags.load()
        self._lm = lm if self.alone else None
        return lm

    def prepare(
        self, data: Sequence[Path] | None, prompt_tokens: int | None, limit: int | None
    ) -> None:
        """Check every prompt by every method at every temperature. Raises RequestError; nothing is decoded."""
        lm, named = self.load(), self._named
        family = family_of(lm.checkpoint.lm)
        some = (
            parse(USUAL[family])
            if named is None
            else everything(lm, family)
            if named == "all"
            else parse(named)
        )
        self.base = BASES[family]
        self.chosen = [
            measure.Method(self.base, {}),
            *(m for m in some if m.label != self.base),
        ]
        files_of = [prompts.read(path, lm, prompt_tokens) for path in data or ()]
        self.rows = [
            row for some in files_of or [prompts.BUILT_IN] for row in prompts.first(some, limit)
        ]
        for request in self._requests(lm):
            asking.check(
                lm,
                ((r.prompt, self.flags.raw or r.raw) for r in self.rows),
                ((m.name, m.options) for m in self.chosen),
                **request,
            )
        point = lm.checkpoint
        self.said = {
            "name": lm.name,
            "kernel": point.kernel,
            "dtype": point.dtype,
            "draft": None if lm.draft is None else lm.draft.name,
            "template": "chat template" if point.text.has_chat and not self.flags.raw else "raw",
            "machine": machine.describe(lm.network),
            "methods": [m.label for m in self.chosen],
        }

    def _requests(self, lm: api.LM) -> Iterator[dict[str, Any]]:
        """A request for each temperature."""
        for heat in self._heats:
            given = self.flags.bent if heat is None else {**self.flags.bent, "temperature": heat}
            yield {
                "sampling": lm.sampling(**given),
                "max_tokens": self.flags.max_tokens or 128,
                "seed": self.flags.seed,
            }

    def cells(
        self, batches: Sequence[int]
    ) -> Iterator[tuple[Cell, dict[str, Any], list[measure.Task]]]:
        """What is measured, cell by cell: temperatures within batches."""
        lm = self._lm or self.load()
        for size in batches:
            for request in self._requests(lm):
                at = Cell(lm.name, size, float(request["sampling"].temperature))
                yield at, request, self._tasks(size)

    def _tasks(self, size: int) -> list[measure.Task]:
        out = list[measure.Task]()
        for workload in dict.fromkeys(r.workload for r in self.rows):
            mine = [r for r in self.rows if r.workload == workload]
            for i in range(0, len(mine), size):
                some = mine[i : i + size]
                wanted = tuple(answers.wanted(r.answer) for r in some)
                out.append(
                    measure.Task(
                        workload,
                        tuple(r.prompt for r in some),
                        self.flags.raw or some[0].raw,
                        wanted if any(w is not None for w in wanted) else (),
                    )
                )
        return out


def run(
    lm: api.LM,
    side: _Side,
    at: Cell,
    request: dict[str, Any],
    tasks: list[measure.Task],
    repeat: int,
    kept: record.Record,
    tick: Callable[[str], None],
    partly: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of a cell; where it is left half-way, those of what was measured stand in `partly`."""
    runs = kept.runs(at, [m.label for m in side.chosen])

    def rows() -> list[dict[str, Any]]:
        return [
            {**row, "batch": at.batch, "temperature": at.temperature}
            for row in measure.table(lm, runs, tasks, side.base)
        ]

    try:
        measure.measure(
            lm,
            side.chosen,
            tasks,
            **request,
            repeats=repeat,
            into=runs,
            tick=tick,
            keep=lambda label, one: kept.keep(at, label, one),
        )
    except BaseException:
        partly += rows() if any(runs.values()) else []
        raise
    return rows()


def _each_model(flags: Flags, models: str | None) -> list[Flags]:
    """The flags for each model. Raises RequestError where they are named twice."""
    if models is None:
        return [flags]
    names = [name for name in map(str.strip, models.split(",")) if name]
    if flags.beside({*LOADED, *BENT, "max_tokens", "seed", "raw", "json_"} - {"model"}):
        raise RequestError("model is given twice: by --model and by --models")
    if not names or len(set(names)) < len(names):
        raise RequestError(f"models is {models!r}: it must name models, each of them once")
    return [dataclasses.replace(flags, model=name) for name in names]


def _temperatures(flags: Flags, given: str | None) -> list[float | None]:
    """What is asked for; None: as --temperature or the checkpoint says."""
    if given is None:
        return [None]
    if flags.temperature is not None:
        raise RequestError("temperature is given twice: by --temperature and by --temperatures")
    return [SAMPLED["temperature"].convert(t) for t in _numbers("temperatures", given, float)]


def _numbers(name: str, text: str, kind: type[Any]) -> list[Any]:
    """Numbers with commas between them, each of them once. Raises RequestError."""
    try:
        out = [kind(x) for x in text.split(",")]
    except ValueError:
        said = "whole numbers" if kind is int else "numbers"
        raise RequestError(
            f"{name} is {text!r}: it must be {said} with commas between them"
        ) from None
    if len(set(out)) < len(out):
        raise RequestError(f"{name} is {text!r}: each number may stand there once")
    return out


def _ready(name: str, path: Path | None) -> None:
    """Raise RequestError where a file could not be written there: said before what takes hours."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            folder = path.is_dir()
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        raise RequestError(
            sentence(
                f"--{name} {str(path)!r} cannot be written: {getattr(error, 'strerror', error)}"
            )
        ) from None
    if folder:
        raise RequestError(sentence(f"--{name} {str(path)!r} cannot be written: it is a folder"))


def _settings(flags: Flags) -> dict[str, Any]:
    """What decides a run beside its cell."""
    names = {*LOADED, *BENT, "max_tokens", "seed", "raw"} - {"model", "temperature"}
    return {
        f.name: value
        for f in dataclasses.fields(flags)
        if f.name in names and (value := getattr(flags, f.name)) != f.default
    }


def compare(flags: Flags, suite: str, methods: str | None, each: int) -> None:
    """A suite's tasks by several methods: how often the answer is right, passes, closed forms."""
    some = list(parallelbench.problems(suite, each, flags.seed))
    lm = flags.load()
    chosen = parse(methods) if methods else parallelbench.default(lm)
    sampling = flags.sampling(lm)
    for m in chosen:
        lm.check(m.name, m.options)
    scores = list[dict[str, Any]]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        tasks = list(dict.fromkeys(p.task for p in some))
        bar = progress.add_task("answering", total=len(tasks) * len(chosen))
        for task in tasks:
            for m in chosen:
                mine = [p for p in some if p.task == task]
                scores.append(parallelbench.score(lm, m, mine, sampling, flags.seed).row())
                progress.update(bar, advance=1, description=escape(f"{task}, {printable(m.label)}"))
    if flags.json_:
        emit(
            json.dumps(
                {
                    "model": lm.name,
                    "suite": suite,
                    "temperature": sampling.temperature,
                    "rows": scores,
                }
            )
        )
        return
    emit_drawn(lambda out: show_scores(scores, out))


def show_scores(rows: list[dict[str, Any]], out: Console) -> None:
    """A line for each task and method."""
    table = Table(box=None, pad_edge=False)
    for column in (
        "task",
        "method",
        "right",
        "95 %",
        "closed form",
        "as asked",
        "passes",
        "tokens/pass",
    ):
        table.add_column(
            column, no_wrap=True, justify="left" if column in ("task", "method") else "right"
        )
    for r in rows:
        exact = r["closed_form"]
        table.add_row(
            cell(r["task"]),
            cell(r["method"]),
            f"{r['right']:.1%}",
            f"{r['low']:.1%}-{r['high']:.1%}",
            "-" if exact is None else f"{exact:.1%}",
            f"{r['strict']:.1%}",
            f"{r['passes']:.2f}",
            f"{r['tokens_per_pass'] or NAN:.2f}",
        )
    out.print(table)
    known = {r["task"]: (r["in_training"], r["n"]) for r in rows if r["in_training"]}
    for task, (some, n) in known.items():
        out.print(
            f"{task}: {some} of {n} questions were in the training of the embedded models: it has too few others",
            style="dim",
            soft_wrap=True,
            markup=False,
        )


def publish(found: Found, as_json: bool, html: Path | None, table: Path | None) -> None:
    """The table, or its JSON, on standard output; a page and a file of figures where they are asked for."""
    command = f"polydec {shlex.join(sys.argv[1:])}"
    told = {
        "machine": found.machine,
        "kernel": "; ".join(dict.fromkeys(m["kernel"] for m in found.identity["models"])),
        "versions": found.identity["versions"],
        "command": command,
        "rows": found.rows,
    }
    if html is not None:
        text = bench_page.page(found.identity, found.rows, found.curves, command)
        files.replace(html, lambda at: Path(at).write_text(text, encoding="utf-8"))
    if table is not None:
        sheet = as_csv(found.rows)
        files.replace(table, lambda at: Path(at).write_text(sheet, encoding="utf-8"))
    if as_json:
        emit(json.dumps(told))
        return

    def draw(out: Console) -> None:
        show(found.rows, out)
        for m in found.identity["models"]:
            base = m["methods"][0]
            out.print(
                f"{printable(m['name'])}, {m['kernel']}, {m['template']}, decoding only (the prompt left out), "
                f"ratio to {base}; {m['machine']}",
                style="dim",
                soft_wrap=True,
                markup=False,
            )

    emit_drawn(draw, 160)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A line a row; what holds several figures has spaces between them."""

    def flat(value: Any) -> Any:
        return " ".join(map(str, value)) if isinstance(value, list) else value  # pyright: ignore

    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(k for r in rows for k in r)))
    writer.writeheader()
    writer.writerows({k: flat(v) for k, v in r.items()} for r in rows)
    return out.getvalue()


def parse(methods: str) -> list[measure.Method]:
    """`a,b:k=v:k=2,1,1`. Raises RequestError for an unknown method or option."""
    out = list[measure.Method]()
    for item in re.split(r",(?!\s*\d)", methods):
        name, *pairs = item.strip().split(":")
        registry.get(name)
        options: dict[str, str] = {}
        for pair in pairs:
            key, eq, value = pair.partition("=")
            if not eq:
                raise RequestError(
                    f"methods holds {item!r}: options are written as {name}:option=value"
                )
            options[key] = value
        out.append(measure.Method(name, options))
    return out


def everything(lm: api.LM, family: str) -> list[measure.Method]:
    """All methods that can decode this model."""
    kit = lm.kit()
    return [
        measure.Method(name, {})
        for name in sorted(registry.of_family(family))
        if registry.can(name, kit)
    ]


def _end(name: str, longest: int = 40) -> str:
    """A model's name; of the path of a folder its end."""
    return name if len(name) <= longest else f"…{name[-longest:]}"


def show(rows: list[dict[str, Any]], out: Console) -> None:
    """A line for each method and workload; model, batch and temperature stand there where there are several."""
    apart = [k for k in ("model", "batch", "temperature") if len({r.get(k) for r in rows}) > 1]
    judged = any(r["judged"] for r in rows)
    figures: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("tokens/s", lambda r: f"{r['tokens_per_second']:.1f}"),
        ("ratio", lambda r: f"{r['ratio_to_plain'] or NAN:.2f}"),
        ("95 %", lambda r: "{:.2f}-{:.2f}".format(*(r["ratio_interval"] or (NAN, NAN)))),
        ("tokens/pass", lambda r: f"{r['tokens_per_pass'] or NAN:.2f}"),
        ("acceptance", lambda r: f"{r['mean_acceptance_length']:.2f}"),
        ("first ms", lambda r: f"{1000 * (r['time_to_first_token'] or NAN):.0f}"),
        ("gap 99 % ms", lambda r: f"{1000 * (r['gap_99'] or NAN):.0f}"),
        ("identical", lambda r: "yes" if r["identical"] else "no"),
        ("4-grams", lambda r: f"{r['distinct_4grams']:.2f}"),
        *([("right", lambda r: "-" if r["right"] is None else f"{r['right']:.0%}")] * judged),
    ]
    table = Table(box=None, pad_edge=False)
    for column in (*apart, "workload", "method"):
        table.add_column(column, no_wrap=True)
    for column, _ in figures:
        table.add_column(column, no_wrap=True, justify="right")
    order = {
        name: i
        for i, name in enumerate(
            dict.fromkeys((r["model"], r["batch"], r["temperature"]) for r in rows)
        )
    }

    def place(r: dict[str, Any]) -> tuple[Any, ...]:
        at = order[r["model"], r["batch"], r["temperature"]]
        return at, r["workload"] == "all", r["workload"]

    for r in sorted(rows, key=place):
        table.add_row(
            *(cell(_end(str(r[k]))) for k in apart),
            cell(r["workload"]),
            cell(r["method"]),
            *(said(r) for _, said in figures),
        )
    out.print(table)
