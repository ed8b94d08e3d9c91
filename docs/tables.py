"""Writes tables into the docs from the code: methods (docs/methods.md) from the CARDs, published systems
(docs/systems.md) from their file, sampling fields (docs/sampling.md) from
the rules, kinds of constraints (docs/constraints.md), flags of training (docs/training-flags.md), fields of
other servers (docs/server-fields.md). `--check` only says whether they are up to date."""

import sys
from pathlib import Path

from polydec.lab.commands import training
from polydec.laws.constraints import constraint_kinds
from polydec.laws.shapers import sampling
from polydec.methods.registry import published_systems, registry
from polydec.serve import field_table

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- {what}: made by docs/tables.py from the {source} -->", "<!-- end -->"


def table() -> str:
    rows = ["| method | what it is | guarantee | needs | source |", "|---|---|---|---|---|"]
    for name, module in sorted(registry.recipe_modules().items()):
        c = module.CARD
        needs = ", ".join(n.name for n in c.needs) or "-"
        rows.append(
            f"| `{name}` | {c.title} | {c.guarantee.value if c.guarantee else '-'} | {needs} | {c.source} |"
        )
    return "\n".join(rows)


def systems_table() -> str:
    """How many systems are what, and a row for each."""
    systems = [
        one
        for one in published_systems.all_published_systems()
        if one.area != published_systems.BASELINE_AREA
    ]
    rows = ["| what it is here | systems |", "|---|--:|"]
    for kind in published_systems.KINDS:
        rows.append(f"| {kind} | {sum(1 for one in systems if one.kind == kind)} |")
    rows += [f"| **all** | **{len(systems)}** |", ""]
    here = [one for one in systems if one.kind != published_systems.MISSING_KIND]
    # What is not here at all has its kind to say so, and no further sentence.
    lacking = sum(1 for one in here if one.lacks)
    rows += [
        f"Of {len(here)} that are here **{len(here) - lacking}** have every mechanism that their paper names; {lacking} lack",
        "something, which the last column says.",
        "",
    ]
    rows += ["| system | paper | area | here | reached by | lacks |", "|---|---|---|---|---|---|"]
    for one in systems:
        names = ", ".join((one.system, *one.also))
        paper = one.paper
        if one.arxiv:
            paper = f"{paper} ([{one.arxiv}](https://arxiv.org/abs/{one.arxiv}))"
        reached = ", ".join(reached_markdown(place) for place in one.reached_by) or "-"
        lacks = one.lacks or "-"
        rows.append(f"| {names} | {paper} | {one.area} | {one.kind} | {reached} | {lacks} |")
    return "\n".join(rows)


def reached_markdown(place: str) -> str:
    """A command as code, a page as a link; words before a command stay words."""
    if place.startswith("docs/"):
        page = place.removeprefix("docs/")
        return f"[{page.removesuffix('.md')}]({page})"
    words, _, command = place.rpartition(": ")
    return f"{words}: `{command}`".removeprefix(": ")


PLACES = (
    (ROOT / "docs" / "methods.md", BEGIN.format(what="methods", source="CARDs"), table),
    (ROOT / "docs" / "systems.md", BEGIN.format(what="systems", source="file"), systems_table),
    (
        ROOT / "docs" / "sampling.md",
        BEGIN.format(what="fields", source="rules"),
        sampling.sampling_fields_table,
    ),
    (
        ROOT / "docs" / "sampling.md",
        BEGIN.format(what="orders", source="rules"),
        sampling.order_table,
    ),
    (
        ROOT / "docs" / "training-flags.md",
        BEGIN.format(what="flags", source="specs"),
        training.training_flag_tables,
    ),
    (
        ROOT / "docs" / "constraints.md",
        BEGIN.format(what="brought", source="kinds"),
        constraint_kinds.constraint_kinds_table,
    ),
    (
        ROOT / "docs" / "server-fields.md",
        BEGIN.format(what="other servers' fields", source="server"),
        field_table.field_table_markdown,
    ),
)


def rendered(text: str, begin: str, table: str) -> str:
    """The document with the table between its marks."""
    head, rest = text.split(begin)
    return f"{head}{begin}\n{table}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    old = False
    for path, begin, make in PLACES:
        before = path.read_text("utf-8")
        after = rendered(before, begin, make())
        old |= after != before
        if "--check" not in sys.argv:
            path.write_text(after, "utf-8")
    sys.exit(1 if old and "--check" in sys.argv else 0)
