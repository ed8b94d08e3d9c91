"""Writes the table of methods into README.md from the CARDs; `--check` only says whether it is up to date."""
import sys
from pathlib import Path

from polydec import registry

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- methods: made by docs/tables.py from the CARDs -->", "<!-- end -->"


def table() -> str:
    rows = ["| method | what it is | guarantee | needs | source |", "|---|---|---|---|---|"]
    for name, module in sorted(registry.recipes().items()):
        c = module.CARD
        needs = ", ".join(c.needs) or "-"
        rows.append(f"| `{name}` | {c.title} | {c.guarantee.value if c.guarantee else '-'} | {needs} | {c.source} |")
    return "\n".join(rows)


def rendered() -> str:
    text = README.read_text("utf-8")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if rendered() == README.read_text("utf-8") else 1)
    README.write_text(rendered(), "utf-8")
