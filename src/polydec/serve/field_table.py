"""What happens to each field of OpenAI's, vLLM's and llama.cpp's servers, read off the code that reads requests."""

from __future__ import annotations

from polydec.base.options import short_repr
from polydec.serve.body import IDLE, ONLY
from polydec.serve.described import request_body_fields
from polydec.serve.known_fields import ENGINES, PATHS, REASONS, fields_of

APPLIED = "applied"
IDLE_HERE = "no effect"
REFUSED = "refused"


def field_outcome(path: str, name: str) -> str:
    """Say what happens to a field on a route.

    Args:
        path: Path of the endpoint.
        name: Name of the field.

    Returns:
        Whether it is applied, has no effect, is taken with some values only, which are listed, or
        is refused by name.
    """
    if name in request_body_fields(path):
        return APPLIED
    if name in IDLE:
        return IDLE_HERE
    if name in ONLY:
        legal = " or ".join(map(short_repr, ONLY[name]))
        if legal:
            return f"only {legal}"
        return "only none"
    return REFUSED


def field_table_rows() -> list[tuple[str, ...]]:
    """Of each field: its name, whose it is, what happens on each route ("": nobody takes it there), and why."""
    names = sorted({n for e in ENGINES for p in PATHS for n in fields_of(e, p)})
    out = list[tuple[str, ...]]()
    for name in names:
        # A field counts only on routes on which some other engine takes it.
        whose = [e for e in ENGINES if any(name in fields_of(e, p) for p in PATHS)]
        known = [any(name in fields_of(e, p) for e in ENGINES) for p in PATHS]
        told = [
            field_outcome(p, name) if here else "" for p, here in zip(PATHS, known, strict=True)
        ]
        if REFUSED in told or any(x[:4] == "only" for x in told):
            why = REASONS.get(name, "")
        else:
            why = ""
        out.append((name, ", ".join(whose), *told, why))
    return out


def field_table_markdown() -> str:
    """The rows in Markdown, for the docs."""
    head = ["field", "whose", *(path.removeprefix("/v1/") for path in PATHS), "why"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, *cells in field_table_rows():
        lines.append(f"| `{name}` | {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines)
