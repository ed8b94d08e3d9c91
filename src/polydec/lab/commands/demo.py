"""polydec demo: real prompts by plain and fast methods, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from polydec import api
from polydec.base.edge import escape_control_characters, require_integer
from polydec.cli import asking, prompts
from polydec.cli.flags import ASK
from polydec.cli.terminal_output import print_result, table_cell_text
from polydec.request import machine

METHODS = ("plain", "auto", "suffix-automaton", "prompt-lookup", "token-recycling", "draft-model")


def demo(
    model: Annotated[str, typer.Option(help="model to decode with")] = "zoo:smollm2",
    prompt_file: Annotated[
        Path | None, typer.Option(help="prompts: JSON lines, or one a line")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="tokens of each answer")] = 128,
    repeat: Annotated[
        int | None, typer.Option(help="repetitions in turn (default: 3 up to 8 prompts, then 1)")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="the table as one JSON object")] = False,
) -> None:
    """Decode real prompts greedily by every method; print texts, speeds, and whether the texts are identical.\f

    Args:
        model: Name of the model. Default "zoo:smollm2".
        prompt_file: File of prompts. Default None: built-in ones.
        max_tokens: Tokens of each answer. Default 128.
        repeat: Repetitions in turn. Default None: 3 up to 8 prompts, else 1.
        json_: Whether the table is printed as one JSON object. Default False.
    """
    ASK["max_tokens"].convert_value(max_tokens)
    if repeat is not None:
        require_integer("repeat", repeat, 1, 1000)
    # After the checks, as it imports torch.
    from polydec.lab.bench import measure

    if prompt_file:
        rows = prompts.read_prompt_rows(prompt_file)
    else:
        rows = list(prompts.BUILT_IN)
    lm = api.load(model)
    # Without a draft model there is nothing to draft with.
    methods = [
        measure.MethodSetting(m, {}) for m in METHODS if m != "draft-model" or lm.draft is not None
    ]
    request: dict[str, Any] = {
        "sampling": lm.sampling_with(temperature=0.0),
        "max_tokens": max_tokens,
    }
    # Every prompt and method is checked before the first answer.
    asking.check_requests(
        lm, ((r.prompt, r.raw) for r in rows), ((m.name, m.options) for m in methods), **request
    )
    tasks = [measure.BenchTask(r.workload, (r.prompt,), r.raw) for r in rows]
    # With --json standard output holds the JSON object alone.
    out = Console(stderr=json_, highlight=False, soft_wrap=True)
    out.print(
        f"{escape_control_characters(model)}, {lm.checkpoint.kernel}; {machine.describe_machine(lm.network)}",
        style="dim",
        markup=False,
    )
    with out.status("decoding") as status:
        runs = measure.measure_methods(
            lm,
            methods,
            tasks,
            **request,
            repeats=repeat or (3 if len(rows) <= 8 else 1),
            tick=lambda label: status.update(escape(escape_control_characters(label))),
        )
    # First each prompt with its text and speeds, then all prompts together.
    for at, r in enumerate(rows):
        base = [x for x in runs["plain"] if x.task == at]
        out.print(f"\n[bold]{escape(escape_control_characters(r.workload))}[/bold]", end=" ")
        out.print(table_cell_text(r.key, 100), style="italic")
        text = lm.checkpoint.text.decode(base[0].ids[0]).strip()
        # A pipe gets the text as it is; a terminal must not obey what a model writes.
        out.print(escape_control_characters(text) if out.is_terminal else text, markup=False)
        for m in methods:
            mine = [x for x in runs[m.label] if x.task == at]
            per_pass = sum(x.generated for x in mine) / sum(x.passes for x in mine)
            if measure.median_speed(base):
                ratio = measure.median_speed(mine) / measure.median_speed(base)
            else:
                ratio = float("nan")
            # The same ids, not only the same text: other tokens may spell alike.
            if all(x.ids == y.ids for x, y in zip(mine, base, strict=True)):
                same = "yes"
            else:
                same = "no"
            out.print(
                f"  {m.label:16} {measure.median_speed(mine):7.1f} tokens/s  {per_pass:5.2f} tokens/pass  identical: {same:3}  "
                f"{ratio:5.2f}x",
                style="dim" if m.name == "plain" else "",
            )
    out.print("\n[bold]over all prompts[/bold]")
    # One workload for all prompts: their rows are summed up.
    table = measure.bench_table_rows(
        lm, runs, [measure.BenchTask("all", t.prompts, t.raw) for t in tasks]
    )
    for r in table:
        low, high = r["ratio_interval"]
        out.print(
            f"  {r['method']:16} {r['tokens_per_second']:7.1f} tokens/s  {r['tokens_per_pass']:5.2f} tokens/pass  "
            f"identical: {'yes' if r['identical'] else 'no':3}  {r['ratio_to_plain']:5.2f}x ({low:.2f} to {high:.2f})"
        )
    # How much dearer more rows are decides what drafting can bring on this machine.
    two, eight = (lm.costs.pass_ms(n) / lm.costs.pass_ms(1) for n in (2, 8))
    expect = describe_expected_gain(two, eight)
    out.print(f"what rows cost here: {expect}")
    best = max((r for r in table if r["method"] != "plain"), key=lambda r: r["ratio_to_plain"])
    if json_:
        print_result(
            json.dumps(
                {
                    "machine": machine.describe_machine(lm.network),
                    "kernel": lm.checkpoint.kernel,
                    "rows": table,
                    "row_costs": {"2": two, "8": eight},
                    "expect": expect,
                }
            )
        )
    out.print(
        f"best: {best['method']} {best['ratio_to_plain']:.2f}x over all prompts, "
        f"identical: {'yes' if best['identical'] else 'no'}"
    )


def describe_expected_gain(two: float, eight: float) -> str:
    """Say what drafting can bring at the cost of rows on this machine.

    The gains are those measured at such costs with zoo:smollm2 (README.md has the table).

    Args:
        two: Cost of a pass over two rows, in passes over one row.
        eight: Cost of a pass over eight rows, in passes over one row.

    Returns:
        A sentence.
    """
    gain = next(gain for most, gain in GAINS if eight <= most)
    return (
        f"a pass over two rows takes {two:.2f} times one over one row, over eight {eight:.1f} times; "
        f"so a drafted token pays where it is right in more than {100 * max(0.0, two - 1):.0f} % of cases, "
        f"and of auto expect {gain}"
    )


GAINS = (
    (2.5, "1.4 to 2.0 times plain, most where the text repeats itself or its prompt"),
    (4.0, "1.0 to 1.6 times plain, most where the text repeats itself or its prompt"),
    (float("inf"), "little over plain, but where the text copies its prompt"),
)
"""Of the cost of eight rows the upper end, and what was measured there."""
