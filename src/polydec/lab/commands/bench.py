"""polydec bench: methods side by side on prompts."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from polydec import api
from polydec.base import files
from polydec.base.edge import escape_control_characters, require_integer
from polydec.base.errors import RequestError
from polydec.base.interrupts import said_when_stopped
from polydec.cli import prompts
from polydec.cli.declared_flags import expand_flag_parameters
from polydec.cli.flags import BENT, LOADED, SAMPLED, RequestFlags
from polydec.cli.terminal_output import as_csv, emit_drawn, print_result, table_cell_text
from polydec.lab.commands.studies import study_names as studies
from polydec.methods.registry import registry
from polydec.methods.registry.family import FAMILIES
from polydec.request import machine
from polydec.request.fields import CHOICES

if TYPE_CHECKING:
    from polydec.lab.bench import measure
    from polydec.lab.commands.bench_run import BenchFindings

NAN = float("nan")
USUAL = {name: family.default_method for name, family in FAMILIES.items()} | {
    "ar": "prompt-lookup,token-recycling"
}
"""By a model's family, what is held against it where nobody names methods."""

REPORTED = USUAL | {"ar": "auto,prompt-lookup,suffix-automaton,token-recycling"}
"""The same for a report that is compared with those of other machines."""


@expand_flag_parameters
def bench(
    flags: RequestFlags,
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
            help="questions of published suites, comma-separated, with --from: gsm8k, svamp, math500, mbpp, humaneval, "
            "spec-bench, mt-bench, json-schema-bench; or, instead of timing, right answers at each degree of "
            "parallelism: parallelbench, parallelbench-15, parallelbench-digits; scores of trust beside plain decoding's: "
            "decodingtrust; what steps and votes buy: steps, permutations"
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="the file of the suite, or a folder that holds one for each"),
    ] = None,
    each: Annotated[
        int | None,
        typer.Option(
            help="of a suite: problems of each task, questions of each suite (default: 25; steps: 100, permutations: 256)"
        ),
    ] = None,
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
            help="write every run to this file as it is measured; the same command goes on where it stopped (--suite "
            "decodingtrust: every answer, which is then judged again)",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="write a report to this file: one page that needs no network"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="write a report to this file: Markdown with machine, model, version and the table of docs/measurements.md, "
            "for docs/reports.md; without --methods auto is among them"
        ),
    ] = None,
    csv_: Annotated[
        Path | None, typer.Option("--csv", help="write the figures to this file, a row a line")
    ] = None,
) -> None:
    """Time methods side by side: tokens/s, ratio to plain decoding (of a masked-diffusion model: to llada) with its 95 %
    interval, tokens a pass, acceptance, waiting; right answers where the prompts' rows say them (`answer`).\f

    Args:
        flags: Model and sampling of all requests.
        methods: Methods with their options, comma-separated, or "all". Default None: the usual ones
            of the model's family.
        models: Models in the place of the flags' one, comma-separated. Default None.
        temperatures: Temperatures in the place of the flags' one, comma-separated. Default None.
        batch: Requests at once; several numbers, comma-separated, are measured one after another.
            Default "1".
        suite: Suites of questions, or one that takes the place of timing. Default None.
        from_: File of the suite, or a folder with one for each. Default None.
        each: Problems of each task or suite. Default None: 25; for steps 100, for permutations 256.
        data: Files of prompts. Default None: built-in ones.
        prompt_tokens: Tokens of a prompt that is cut from running text. Default None.
        limit: First prompts of a file that are used. Default None: all.
        repeat: Repetitions, interleaved. Default 3.
        record_: File that every run is written to, and from which the same command goes on; of the
            suite decodingtrust every answer. Default None.
        html: File for a report as one page. Default None.
        report: File for a report as Markdown. Default None.
        csv_: File for the figures, a row a line. Default None.
    """
    batches = [require_integer("batch", n, 1, CHOICES) for n in _numbers("batch", batch, int)]
    require_integer("repeat", repeat, 1, 1000)
    if flags.method != "auto" or flags.set_:
        raise RequestError(
            "bench does not take --method or --set: it compares methods, with their options behind them, as in "
            "--methods plain,draft-model:depth=3"
        )
    flags.refuse_others("bench", {*LOADED, *BENT, "max_tokens", "seed", "raw", "json_"})
    elsewhere = (data, prompt_tokens, limit, flags.max_tokens, models, temperatures)
    # Suites that measure something else than speed have flags of their own.
    if suite is not None and suite in studies.SUITES:
        _alone((*elsewhere, report), "--report")
        for name, path in (("html", html), ("csv", csv_)):
            files.require_writable_file(name, path)
        with said_when_stopped(lambda: NOTHING_MEASURED):
            return studies.carry_out(suite, flags, methods, from_, each, record_, html, csv_)
    # Then suites whose answers are scored at each degree of parallelism.
    each = 25 if each is None else each
    questions = _questions(suite, from_, each, (data, prompt_tokens, limit))
    if suite is not None and from_ is None:
        _alone((*elsewhere, record_, html, report, csv_), "--record, --html, --report or --csv")
        with said_when_stopped(lambda: NOTHING_MEASURED):
            return compare_on_suite(flags, suite, methods, require_integer("each", each, 1, 10_000))
    # What is left is the timing of methods: everything is checked before the first model is loaded.
    for name, path in (("html", html), ("report", report), ("csv", csv_)):
        files.require_writable_file(name, path)
    if methods not in (None, "all"):
        # What no model could honour is refused before one is loaded.
        parse_methods(methods)
    heats = _temperatures(flags, temperatures)
    each_flags = _each_model(flags, models)

    # Chosen only when a model is loaded: the usual methods depend on its family.
    def chosen_methods(lm: api.LoadedModel, family: str) -> list[measure.MethodSetting]:
        """The methods to measure on a model.

        Args:
            lm: The loaded model.
            family: Its family, a key of `USUAL`.

        Returns:
            Those of --methods, or the usual ones of the family.
        """
        if methods is None:
            return parse_methods((USUAL if report is None else REPORTED)[family])
        if methods == "all":
            return methods_for_model(lm, family)
        return parse_methods(methods)

    # After the checks, as it imports torch.
    from polydec.lab.commands import bench_run

    every = [
        bench_run.BenchModel(model_flags, chosen_methods, heats, len(each_flags) == 1)
        for model_flags in each_flags
    ]
    for side in every:
        side.prepare_prompts(data, prompt_tokens, limit, questions)
    # The identity holds all that must be alike for runs of one record.
    measured = bench_run.BenchFindings(bench_run.record_identity(every, _settings(flags)))
    # Before and after: load that comes in the middle spoils figures as well.
    if (busy := machine.relative_cpu_load()) > machine.BUSY:
        measured.doubts.append(
            f"the machine is busy (load {busy:.1f} of its cores): figures are doubtful"
        )
        Console(stderr=True).print(f"warning: {measured.doubts[0]}", style="yellow")
    # What passes cost stands in both kinds of report.
    curves = html is not None or report is not None
    try:
        with said_when_stopped(lambda: _stopped(record_)):
            bench_run.measure_all_cells(every, batches, repeat, record_, curves, measured)
    finally:
        # Also what was measured before a failure or Ctrl-C.
        measured.rows += measured.partly
        if not measured.doubts and machine.relative_cpu_load() > machine.BUSY:
            measured.doubts.append("the machine became busy meanwhile: figures are doubtful")
        if measured.partly:
            measured.doubts.append("it was stopped: only what was measured until then stands here")
        if measured.rows:
            publish_bench(measured, flags.json_, html, csv_, report)


NOTHING_MEASURED = "stopped: a suite is measured as a whole, and the same command begins anew"


def _stopped(record: Path | None) -> str:
    """What is said where a bench was stopped."""
    if record is None:
        return "stopped: with --record FILE a bench keeps every run, and the same command goes on where it stopped"
    return f"stopped: {str(record)!r} keeps every run that was measured, and the same command goes on from there"


def _alone(beside: Sequence[object], last: str) -> None:
    """Raise RequestError where a suite that has problems and lengths of its own is told of others."""
    if any(x is not None for x in beside):
        raise RequestError(
            "bench --suite does not take --data, --prompt-tokens, --limit, --max-tokens, --models, --temperatures, "
            f"{last}: its problems and lengths are its own"
        )


def _questions(
    suite: str | None, at: Path | None, each: int, beside: Sequence[object]
) -> Sequence[prompts.PromptRow]:
    """The rows of published suites; none where none is asked for. Raises RequestError."""
    from polydec.lab.commands import suites

    if at is None:
        if suite is not None and suite.split(",")[0].strip() in suites.SUITES:
            raise RequestError(f"suite is {suite!r}: say with --from where its questions are")
        return ()
    if suite is None:
        raise RequestError(f"from is {str(at)!r}: say with --suite what is there")
    if any(x is not None for x in beside):
        raise RequestError("bench --suite --from does not take --data, --prompt-tokens or --limit")
    return suites.read_suite_rows(suite, at, require_integer("each", each, 1, 10_000))


def _each_model(flags: RequestFlags, models: str | None) -> list[RequestFlags]:
    """The flags for each model. Raises RequestError where they are named twice."""
    if models is None:
        return [flags]
    # Empty names, as behind a last comma, are passed over.
    names = [name for name in map(str.strip, models.split(",")) if name]
    if flags.first_foreign_flag({*LOADED, *BENT, "max_tokens", "seed", "raw", "json_"} - {"model"}):
        raise RequestError("model is given twice: by --model and by --models")
    if not names or len(set(names)) < len(names):
        raise RequestError(f"models is {models!r}: it must name models, each of them once")
    return [dataclasses.replace(flags, model=name) for name in names]


def _temperatures(flags: RequestFlags, text: str | None) -> list[float | None]:
    """What is asked for; None: as --temperature or the checkpoint says."""
    if text is None:
        return [None]
    if flags.temperature is not None:
        raise RequestError("temperature is given twice: by --temperature and by --temperatures")
    return [SAMPLED["temperature"].convert_value(t) for t in _numbers("temperatures", text, float)]


def _numbers(name: str, text: str, kind: type[Any]) -> list[Any]:
    """Numbers with commas between them, each of them once. Raises RequestError."""
    try:
        out = [kind(x) for x in text.split(",")]
    except ValueError:
        if kind is int:
            wanted = "whole numbers"
        else:
            wanted = "numbers"
        raise RequestError(
            f"{name} is {text!r}: it must be {wanted} with commas between them"
        ) from None
    # The same number twice would measure one cell twice.
    if len(set(out)) < len(out):
        raise RequestError(f"{name} is {text!r}: each number may stand there once")
    return out


def _settings(flags: RequestFlags) -> dict[str, Any]:
    """What decides a run beside its cell."""
    # Model and temperature belong to the cell; a flag at its default does not change the identity.
    names = {*LOADED, *BENT, "max_tokens", "seed", "raw"} - {"model", "temperature"}
    return {
        f.name: value
        for f in dataclasses.fields(flags)
        if f.name in names and (value := getattr(flags, f.name)) != f.default
    }


def compare_on_suite(flags: RequestFlags, suite: str, methods: str | None, each: int) -> None:
    """Answer a suite's tasks by several methods; print how often the answer is right, passes and
    closed forms.

    Args:
        flags: The command's flags.
        suite: A suite of `parallelbench.SUITES`.
        methods: Methods as they are typed, with commas between them; None: the suite's own.
        each: Problems of every task.

    Raises:
        RequestError: The suite or a method is unknown, or the model cannot be decoded by one.
    """
    from polydec.lab.bench import parallelbench

    problems = list(parallelbench.suite_problems(suite, each, flags.seed))
    lm = flags.load()
    if methods:
        chosen = parse_methods(methods)
    else:
        chosen = parallelbench.default_suite_methods(lm)
    sampling = flags.sampling_rules(lm)
    # Every method is checked before the first answer, as answers take minutes.
    for m in chosen:
        lm.check_method(m.name, m.options)
    scores = list[dict[str, Any]]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        tasks = list(dict.fromkeys(p.task for p in problems))
        bar = progress.add_task("answering", total=len(tasks) * len(chosen))
        for task in tasks:
            for m in chosen:
                # Task by task, so that each row of the table has one task and one method.
                mine = [p for p in problems if p.task == task]
                scores.append(
                    parallelbench.score_method(lm, m, mine, sampling, flags.seed).table_row()
                )
                progress.update(
                    bar,
                    advance=1,
                    description=escape(f"{task}, {escape_control_characters(m.label)}"),
                )
    # Programs get rows alone, people a table.
    if flags.json_:
        print_result(
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
    """Print a line for each task and method.

    Args:
        rows: Rows of `ParallelBenchScore.table_row`.
        out: Where to print.
    """
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
            table_cell_text(r["task"]),
            table_cell_text(r["method"]),
            f"{r['right']:.1%}",
            f"{r['low']:.1%}-{r['high']:.1%}",
            "-" if exact is None else f"{exact:.1%}",
            f"{r['strict']:.1%}",
            f"{r['passes']:.2f}",
            f"{r['tokens_per_pass'] or NAN:.2f}",
        )
    out.print(table)
    # A small model may have seen the very questions: it is said beside the figures.
    known = {r["task"]: (r["in_training"], r["n"]) for r in rows if r["in_training"]}
    for task, (trained_on, n) in known.items():
        out.print(
            f"{task}: {trained_on} of {n} questions were in the training of the embedded models: it has too few others",
            style="dim",
            soft_wrap=True,
            markup=False,
        )


def publish_bench(
    measured: BenchFindings,
    as_json: bool,
    html: Path | None,
    table: Path | None,
    report: Path | None = None,
) -> None:
    """Print the table, or its JSON, and write a page and a file of figures where they are asked
    for.

    Args:
        measured: What was measured.
        as_json: Whether standard output gets JSON in place of the table.
        html: The page's file; None: none.
        table: The CSV file; None: none.
        report: The Markdown file. Default None: none.
    """
    command = f"polydec {shlex.join(sys.argv[1:])}"
    told = {
        "machine": measured.machine,
        "kernel": "; ".join(dict.fromkeys(m["kernel"] for m in measured.identity["models"])),
        "versions": measured.identity["versions"],
        "command": command,
        "doubts": measured.doubts,
        "rows": measured.rows,
    }
    # Files first: they are written even where standard output cannot be.
    if html is not None:
        from polydec.lab.commands import bench_page

        text = bench_page.render_bench_page(
            measured.identity, measured.rows, measured.curves, command, measured.doubts
        )
        # A page that was there stays until the new one is complete.
        files.replace_file_atomically(html, lambda at: Path(at).write_text(text, encoding="utf-8"))
    if report is not None:
        from polydec.lab.commands import bench_markdown

        told_text = bench_markdown.render_bench_markdown(
            measured.identity, measured.rows, measured.curves, command, measured.doubts
        )
        files.replace_file_atomically(
            report, lambda at: Path(at).write_text(told_text, encoding="utf-8")
        )
    if table is not None:
        sheet = as_csv(measured.rows)
        files.replace_file_atomically(
            table, lambda at: Path(at).write_text(sheet, encoding="utf-8")
        )
    if as_json:
        print_result(json.dumps(told))
        return

    def draw_figure(out: Console) -> None:
        show_bench_rows(measured.rows, out)
        for m in measured.identity["models"]:
            # The first method of a model is the one that ratios are taken to.
            base = m["methods"][0]
            out.print(
                f"{escape_control_characters(m['name'])}, {m['kernel']}, {m['template']}, decoding only (the prompt left out), "
                f"ratio to {base}; {m['machine']}",
                style="dim",
                soft_wrap=True,
                markup=False,
            )

    emit_drawn(draw_figure, 160)


def parse_methods(methods: str) -> list[measure.MethodSetting]:
    """Parse methods as they are typed, `a,b:k=v:k=2,1,1`.

    Raises:
        RequestError: A method is unknown, or its options are written in another form.
    """
    from polydec.lab.bench.measure import spelt_all

    return spelt_all(methods)


def methods_for_model(lm: api.LoadedModel, family: str) -> list[measure.MethodSetting]:
    """All methods that can decode a model.

    Args:
        lm: The loaded model.
        family: Its family.

    Returns:
        The methods by name, with their default options.
    """
    from polydec.lab.bench.measure import MethodSetting

    kit = lm.recipe_kit()
    return [
        MethodSetting(name, {})
        for name in sorted(registry.of_family(family))
        # Methods that need a draft, or something trained, which the model lacks are left out.
        if registry.can_use_method(name, kit)
    ]


def _end(name: str, longest: int = 40) -> str:
    """A model's name; of the path of a folder its end."""
    if len(name) <= longest:
        return name
    return f"…{name[-longest:]}"


def show_bench_rows(rows: list[dict[str, Any]], out: Console) -> None:
    """Print a line for each method and workload; model, batch and temperature have columns where
    there are several.

    Args:
        rows: Rows of `measure.bench_table_rows`, with batch and temperature.
        out: Where to print.
    """
    # A column whose value never changes says nothing.
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
        # Only where some prompt has a known answer.
        *([("right", lambda r: "-" if r["right"] is None else f"{r['right']:.0%}")] * judged),
    ]
    table = Table(box=None, pad_edge=False)
    for column in (*apart, "workload", "method"):
        table.add_column(column, no_wrap=True)
    for column, _ in figures:
        table.add_column(column, no_wrap=True, justify="right")
    # Cells stay in the order in which they were measured; in each cell "all" comes last.
    order = {
        name: i
        for i, name in enumerate(
            dict.fromkeys((r["model"], r["batch"], r["temperature"]) for r in rows)
        )
    }

    # Rows of one model stand together, its sum over all workloads last.
    def row_place(r: dict[str, Any]) -> tuple[Any, ...]:
        at = order[r["model"], r["batch"], r["temperature"]]
        return at, r["workload"] == "all", r["workload"]

    for r in sorted(rows, key=row_place):
        table.add_row(
            *(table_cell_text(_end(str(r[k]))) for k in apart),
            table_cell_text(r["workload"]),
            table_cell_text(r["method"]),
            *(shown(r) for _, shown in figures),
        )
    out.print(table)
