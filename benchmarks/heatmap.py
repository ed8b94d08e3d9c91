"""Methods × settings as a picture: blue is faster than plain decoding, red slower."""

from __future__ import annotations

import math
from html import escape

from speculation_tables import Overview, Ratio

ROW, COLUMN, LABEL, HEAD, FOOT = 18, 104, 196, 62, 54
FASTER, SLOWER = (33, 102, 172), (178, 24, 43)


def svg(seen: Overview) -> str:
    """Each cell: the ratio by the clock over all tasks; bold where its 95 % interval leaves out 1."""
    width, height = LABEL + COLUMN * len(seen.tasks) + 8, HEAD + ROW * len(seen.ratios) + FOOT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(
            8,
            18,
            "Tokens a second over plain decoding's",
            "start",
            "font-weight='bold' font-size='14'",
        ),
    ]
    for x, (sampling, batch) in enumerate(seen.tasks):
        middle = LABEL + COLUMN * x + COLUMN / 2
        out += [_text(middle, 38, sampling), _text(middle, 54, f"batch {batch}")]
    for y, (method, of) in enumerate(seen.ratios.items()):
        top = HEAD + ROW * y
        out.append(
            _text(LABEL - 8, top + 13, method + (" *" if method in seen.starred else ""), "end")
        )
        out += [
            _cell(LABEL + COLUMN * x, top, of.get(setting)) for x, setting in enumerate(seen.tasks)
        ]
    counts = ", ".join(map(str, seen.tasks.values()))
    foot = (
        f"Blue is faster than plain, red slower; bold: the 95 % interval over tasks leaves out 1. Tasks: {counts}.",
        "* approximate: the text may not be the model's.",
        seen.where,
    )
    out += [
        _text(8, height - 36 + 14 * i, line, "start", "font-size='10'")
        for i, line in enumerate(foot)
    ]
    return "\n".join([*out, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _cell(x: int, y: int, r: Ratio | None) -> str:
    if r is None:
        return _text(x + COLUMN / 2, y + 13, "-")
    strength = min(
        abs(math.log2(max(r.value, 1e-3))) / 2.0, 1.0
    )  # full colour at a quarter or at four times
    end = FASTER if r.value > 1.0 else SLOWER
    red, green, blue = (round(255 + (c - 255) * strength) for c in end)
    clear = r.interval is not None and not r.interval[0] <= 1.0 <= r.interval[1]
    more = f"fill='{'white' if strength > 0.6 else 'black'}'" + " font-weight='bold'" * clear
    return (
        f'<rect x="{x}" y="{y}" width="{COLUMN - 2}" height="{ROW - 2}" fill="rgb({red},{green},{blue})"/>'
        + _text(x + COLUMN / 2 - 1, y + 12, f"{r.value:.2f}", more=more)
    )
