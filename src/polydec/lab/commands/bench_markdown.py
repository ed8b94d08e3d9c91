"""A bench as Markdown, in the form of docs/measurements.md: for the collection of reports by model
and machine (docs/reports.md)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import polydec
from polydec.request.profile import PassProfile

Row = Mapping[str, Any]

WEIGHTS = ("*.gguf", "*.safetensors")
"""Files whose sizes are those of a model."""


def render_bench_markdown(
    identity: Mapping[str, Any],
    rows: Sequence[Row],
    curves: Mapping[str, PassProfile],
    command: str,
    doubts: Sequence[str] = (),
) -> str:
    """Make the report of a bench as Markdown, with a line for the table of docs/reports.md.

    Args:
        identity: What all runs have in common: models, machine, versions.
        rows: Rows of the table.
        curves: By model's name what its passes cost; models without one have no such figure.
        command: The command line that measured it.
        doubts: Why its figures are to be read with care.

    Returns:
        The report. Of paths it holds the last part alone.
    """
    versions = identity["versions"]
    # Asked once: it starts git.
    commit = source_commit()
    out = [f"# Polydec {versions['polydec']}, measured", ""]
    out += [f"**Mind:** {doubt}." for doubt in doubts]
    for about in identity["models"]:
        # Reports are published: in which folder somebody keeps a model is nobody else's business.
        command = command.replace(about["name"], model_file_name(about["name"]))
    out += [
        *([""] if doubts else []),
        "| what | value |",
        "|---|---|",
        *(f"| model | {_model(about)} |" for about in identity["models"]),
        *(f"| machine | {m} |" for m in dict.fromkeys(a["machine"] for a in identity["models"])),
        f"| system | {versions['system']} |",
        f"| version | Polydec {versions['polydec']}, commit {commit or 'not known'} |",
        f"| date | {time.strftime('%Y-%m-%d')} |",
        f"| command | `{command}` |",
        "",
    ]
    lines = list[str]()
    # One part for each model, batch and temperature, as on the page of results.
    for at in dict.fromkeys((r["model"], r["batch"], r["temperature"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["batch"], r["temperature"]) == at]
        about = next(m for m in identity["models"] if m["name"] == at[0])
        out += [*_cell_part(about, mine, curves.get(at[0])), ""]
        built = f"{versions['polydec']}, {commit or 'commit not known'}"
        lines.append(collection_line(about, mine, built))
    out += [
        "Tokens a second are medians of decoding alone; behind ratios stand 95 % intervals, drawn from turns that both ran in.",
        "",
        "Lines for the table of docs/reports.md:",
        "",
        "```text",
        *lines,
        "```",
        "",
    ]
    return "\n".join(out)


def model_file_name(name: str) -> str:
    """A model's name without the folders of whoever measured; names that are no paths stay."""
    if Path(name).exists():
        return Path(name).resolve().name
    return name


def model_bytes(name: str) -> int | None:
    """Size of the weights of a model that is a file or a folder; None: neither, or no weights."""
    at = Path(name)
    if at.is_file():
        return at.stat().st_size
    if not at.is_dir():
        return None
    # A folder without weights has no size to tell, which is not a size of zero.
    return sum(file.stat().st_size for form in WEIGHTS for file in at.glob(form)) or None


def source_commit() -> str | None:
    """The commit that this package is of, with a mark where files were changed; None: not known."""
    try:
        told = json.loads(metadata.distribution("polydec").read_text("direct_url.json") or "{}")
    # It is not installed, or its note is no JSON.
    except (metadata.PackageNotFoundError, ValueError):
        told = {}
    # pip notes it where it installed from a repository.
    if isinstance(told, dict) and (noted := told.get("vcs_info", {}).get("commit_id")):
        return str(noted)[:8]
    here = Path(polydec.__file__).parent
    # Of a folder that lies in somebody else's repository the commit says nothing.
    if here.parent.name != "src" or not (here.parents[1] / "pyproject.toml").exists():
        return None
    found = _git(here, "rev-parse", "--short=8", "HEAD")
    if not found:
        return None
    # With changed files the commit alone does not give the same program.
    return f"{found}, changed" if _git(here, "status", "--porcelain", "-uno", ".") else found


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10
        )
    # Without git, or with one that hangs, the report is made all the same.
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _model(about: Mapping[str, Any]) -> str:
    size = model_bytes(about["name"])
    parts = [about["kernel"], about["dtype"], about["template"]]
    if size is not None:
        parts.append(f"{size / 1e6:,.1f} MB of weights")
    if about["draft"] is not None:
        parts.append(f"draft {model_file_name(about['draft'])}")
    return f"{model_file_name(about['name'])} ({', '.join(parts)})"


def _setting(rows: Sequence[Row]) -> str:
    """How requests were asked."""
    batch = rows[0]["batch"]
    heat = rows[0]["temperature"]
    at_once = "one request" if batch == 1 else f"{batch} requests at once"
    return f"{at_once}, {'greedy' if heat == 0 else f'temperature {heat:g}'}"


def _overall(rows: Sequence[Row]) -> list[Row]:
    """A row for each method, over all workloads."""
    whole = [r for r in rows if r["workload"] == "all"]
    # A single workload has no sum of its own.
    return whole or list(rows)


def _ratio(row: Row) -> str:
    """Speed over plain decoding's, with its interval."""
    if row["ratio_to_plain"] is None:
        return "-"
    low, high = row["ratio_interval"]
    return f"**{row['ratio_to_plain']:.2f}** ({low:.2f} to {high:.2f})"


def _by_workload(rows: Sequence[Row], method: str) -> str:
    """The lowest and the highest ratio among workloads."""
    ratios = [
        r["ratio_to_plain"]
        for r in rows
        if r["method"] == method and r["workload"] != "all" and r["ratio_to_plain"] is not None
    ]
    if not ratios:
        return "-"
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _shown_method(rows: Sequence[Row]) -> Row:
    """`auto`'s row, and where it was not measured that of the fastest method."""
    whole = _overall(rows)
    # Options of a method stand behind its name.
    auto = [r for r in whole if r["method"].partition(" ")[0] == "auto"]
    return auto[0] if auto else fastest_method(rows)


def fastest_method(rows: Sequence[Row]) -> Row:
    """The row of the method with the highest ratio in hindsight, the method of comparison included."""
    return max(_overall(rows), key=lambda r: r["ratio_to_plain"] or 0.0)


def _rows_cost(curve: PassProfile | None) -> str:
    """What a pass over eight rows costs."""
    if curve is None:
        return "-"
    return f"{curve.costs.pass_ms(8) / curve.costs.pass_ms(1):.1f} passes of one row"


def _cell_part(
    about: Mapping[str, Any], rows: Sequence[Row], curve: PassProfile | None
) -> list[str]:
    """The two tables of one model, batch and temperature."""
    base = about["methods"][0]
    shown = _shown_method(rows)
    named = model_file_name(about["name"])
    processor = about["machine"].partition(",")[0]
    out = [
        f"## {named}, {_setting(rows)}",
        "",
        f"| {_setting(rows)}, {about['dtype']} | a pass over eight rows | `{shown['method']}` over {base}, all together "
        "| by workload |",
        "|---|---|---|---|",
        f"| {processor}, {named} | {_rows_cost(curve)} | {_ratio(shown)} | {_by_workload(rows, shown['method'])} |",
        "",
        f"| method | tokens a second | over {base} | by workload | tokens a pass | {base}'s text |",
        "|---|--:|---|---|--:|---|",
    ]
    for r in sorted(_overall(rows), key=lambda r: -(r["ratio_to_plain"] or 0.0)):
        passes = "-" if r["tokens_per_pass"] is None else f"{r['tokens_per_pass']:.2f}"
        out.append(
            f"| `{r['method']}` | {r['tokens_per_second']:.1f} | {_ratio(r)} | {_by_workload(rows, r['method'])} "
            f"| {passes} | {'yes' if r['identical'] else 'no'} |"
        )
    return [*out, "", f"Fastest in hindsight: {_fastest_sentence(rows, base)}."]


def _fastest_sentence(rows: Sequence[Row], base: str) -> str:
    best = fastest_method(rows)
    if best["method"] == base:
        return f"`{base}`, which nothing was faster than"
    # An interval that reaches below 1 says that nothing was won.
    if best["ratio_interval"][0] <= 1:
        return f"`{best['method']}`, by no more than chance"
    return f"`{best['method']}`, {best['ratio_to_plain']:.2f} times {base}"


def collection_line(about: Mapping[str, Any], rows: Sequence[Row], built: str) -> str:
    """Make the line of one model, batch and temperature for the table of docs/reports.md.

    Args:
        about: What is known of the model.
        rows: Its rows.
        built: Version and commit of the package.

    Returns:
        One row of a Markdown table.
    """
    whole = _overall(rows)
    base = next((r for r in whole if r["method"] == about["methods"][0]), None)
    shown = _shown_method(rows)
    best = fastest_method(rows)
    cells = (
        model_file_name(about["name"]),
        # Without the versions of Python and torch: this column is about the machine.
        about["machine"].rpartition(", Python")[0] or about["machine"],
        f"{_setting(rows)}, {about['dtype']}",
        "-" if base is None else f"{base['tokens_per_second']:.1f}",
        f"`{shown['method']}` {_ratio(shown)}",
        f"`{best['method']}` {_ratio(best)}",
        built,
        time.strftime("%Y-%m-%d"),
    )
    return f"| {' | '.join(cells)} |"
