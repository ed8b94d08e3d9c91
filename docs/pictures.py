"""Draws the pictures of docs/concepts.md and of the methods' pages into docs/pictures. `--check` only says whether they are
up to date.

A picture is a white card with boxes, arrows and words, so that it reads the same on a light and on a dark page.
"""

from __future__ import annotations

import csv
import json
import shlex
import sys
import textwrap
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("pictures")
INK, FAINT = "#1f2937", "#9ca3af"
BLUE, GREEN, RED, AMBER, GREY = "#bfdbfe", "#bbf7d0", "#fecaca", "#fde68a", "#e5e7eb"
ROW = 48
"""Pixels from one row of boxes to the next."""


def box(x: float, y: float, text: str, fill: str = GREY, width: float = 74) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="30" rx="5" fill="{fill}" stroke="{INK}"/>'
        + words(x + width / 2, y + 20, text)
    )


def words(x: float, y: float, text: str, anchor: str = "middle", colour: str = INK) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{INK}" marker-end="url(#head)"/>'
    )


def card(title: str, height: int, *parts: str, width: int = 640) -> str:
    """The whole picture, with a title for those who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="14">\n'
        f"<title>{escape(title)}</title>\n"
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def law() -> str:
    bars = (("blue", 0.5), ("clear", 0.25), ("grey", 0.15), ("loud", 0.1))
    parts = [words(20, 30, "the model's law behind “The sky is”", "start")]
    for i, (token, chance) in enumerate(bars):
        y = 50 + 36 * i
        parts += [words(70, y + 18, token, "end")]
        parts += [
            f'<rect x="80" y="{y}" width="{chance * 300}" height="26" fill="{BLUE}" stroke="{INK}"/>'
        ]
        parts += [words(90 + chance * 300, y + 18, f"{chance:.2f}", "start")]
    parts += [arrow(285, 115, 355, 115), words(320, 105, "top-k 2")]
    parts += [words(380, 30, "another law, made of it", "start")]
    for i, (token, chance) in enumerate((("blue", 0.67), ("clear", 0.33))):
        y = 50 + 36 * i
        parts += [words(420, y + 18, token, "end")]
        parts += [
            f'<rect x="430" y="{y}" width="{chance * 200}" height="26" fill="{GREEN}" stroke="{INK}"/>'
        ]
        parts += [words(440 + chance * 200, y + 18, f"{chance:.2f}", "start")]
    return card(
        "A law gives every next token a chance; a rule of sampling makes another law of it",
        210,
        *parts,
    )


def draft() -> str:
    parts = [words(20, 30, "a drafter guesses three tokens …", "start")]
    parts += [
        box(20 + 84 * i, 44, t, GREY if i < 2 else BLUE)
        for i, t in enumerate(("The", "sky", "is", "blue", "today"))
    ]
    parts += [words(20, 160, "… and one pass of the", "start")]
    parts += [words(20, 180, "target reads all", "start")]
    parts += [box(188 + 84 * i, 150, f"law {i + 1}", AMBER) for i in range(3)]
    parts += [arrow(225 + 84 * i, 76, 225 + 84 * i, 146) for i in range(3)]
    return card("A draft of three tokens, read by one pass", 200, *parts)


def verdict() -> str:
    parts = [words(20, 30, "drafted", "start"), words(20, 130, "written", "start")]
    drafted = (("is", GREEN), ("blue", GREEN), ("today", RED))
    parts += [box(120 + 120 * i, 12, t, c) for i, (t, c) in enumerate(drafted)]
    parts += [
        words(157 + 120 * i, 66, t) for i, t in enumerate(("accepted", "accepted", "rejected"))
    ]
    parts += [arrow(157 + 120 * i, 74, 157 + 120 * i, 108) for i in range(3)]
    written = (("is", GREEN), ("blue", GREEN), ("and", AMBER))
    parts += [box(120 + 120 * i, 112, t, c) for i, (t, c) in enumerate(written)]
    parts += [words(480, 120, "a rejection draws from", "start")]
    parts += [words(480, 140, "what the draft left", "start")]
    return card(
        "A verifier accepts the beginning of a draft and puts its own token behind it", 165, *parts
    )


def tree() -> str:
    at = {
        "is": (20, 85),
        "blue": (170, 35),
        "clear": (170, 135),
        "today": (320, 10),
        "and": (320, 60),
        "at": (320, 135),
    }
    links = (("is", "blue"), ("is", "clear"), ("blue", "today"), ("blue", "and"), ("clear", "at"))
    good = ("is", "blue", "and")
    parts = [arrow(at[a][0] + 74, at[a][1] + 15, at[b][0] - 2, at[b][1] + 15) for a, b in links]
    parts += [box(x, y, name, GREEN if name in good else GREY) for name, (x, y) in at.items()]
    parts += [words(430, 80, "six rows in one pass;", "start")]
    parts += [words(430, 100, "the path that agrees is kept", "start")]
    return card("A tree of drafts: every node is a row of one pass", 185, *parts)


def canvas() -> str:
    rows = (
        ("▢", "▢", "▢", "▢"),
        ("▢", "sky", "▢", "blue"),
        ("The", "sky", "is", "blue"),
    )
    parts: list[str] = []
    for i, row in enumerate(rows):
        parts += [words(20, 34 + ROW * i, f"pass {i}" if i else "begins as", "start")]
        for j, text in enumerate(row):
            new = text != "▢" and text != rows[max(i - 1, 0)][j]
            fill = GREEN if new else GREY if text == "▢" else BLUE
            parts += [box(120 + 90 * j, 14 + ROW * i, text, fill)]
    parts += [
        words(500, 82, "the surest gaps", "start"),
        words(500, 102, "are filled first", "start"),
    ]
    return card("A canvas of gaps, filled in any order, several a pass", 165, *parts)


def cache() -> str:
    parts = [words(20, 30, "keys and values that are kept", "start")]
    parts += [box(20 + 80 * i, 44, t, BLUE) for i, t in enumerate(("The", "sky", "is", "blue"))]
    parts += [box(340, 44, "today", RED), box(420, 44, "and", GREEN)]
    parts += [words(377, 100, "rejected:", "middle"), words(377, 118, "forgotten")]
    parts += [words(457, 100, "fed in"), words(457, 118, "this pass")]
    parts += [words(180, 100, "never fed again, shared by answers to one prompt")]
    return card("A cache keeps what was fed; what was rejected is forgotten", 135, *parts)


def press() -> str:
    parts = [words(20, 30, "what the row of “today” sees", "start")]
    parts += [box(20 + 50 * i, 44, f"block {i + 1}", AMBER, 48) for i in range(3)]
    parts += [box(180 + 84 * i, 44, t, BLUE) for i, t in enumerate(("The", "sky", "is", "blue"))]
    parts += [box(520, 44, "today", GREEN)]
    parts += [words(94, 100, "older: packed,"), words(94, 118, "in few bits or few entries")]
    parts += [words(345, 100, "one to two blocks as they are: its position alone says which")]
    return card(
        "A pressed cache: old entries are packed, the last ones stand as they are", 135, *parts
    )


def embedding() -> str:
    parts = [words(20, 30, "states behind a layer", "start")]
    parts += [box(20 + 84 * i, 44, t, BLUE) for i, t in enumerate(("The", "sky", "is", "blue"))]
    parts += [arrow(346, 59, 428, 59), box(430, 44, "0.1 -0.7 …", GREEN, 100)]
    parts += [words(387, 48, "last"), words(20, 100, "or the mean over all tokens", "start")]
    parts += [words(430, 100, "a vector for the text", "start")]
    return card("A vector is read out of a text: the last token's state, or the mean", 120, *parts)


def search() -> str:
    parts = [box(20, 70, "prompt", GREY)]
    ends = (("… 42", GREEN), ("… 41", GREY), ("… 42", GREEN))
    for i, (text, fill) in enumerate(ends):
        parts += [arrow(94, 85, 198, 35 + ROW * i), box(200, 20 + ROW * i, text, fill)]
        parts += [arrow(274, 35 + ROW * i, 398, 85)]
    parts += [box(400, 70, "42", AMBER), words(490, 90, "a vote or a reward", "start")]
    return card("Search: several texts are written, and one answer is chosen", 170, *parts)


def insertion() -> str:
    rows = (("sky",), ("sky", "blue"), ("The", "sky", "blue"), ("The", "sky", "is", "blue"))
    parts: list[str] = []
    for i, row in enumerate(rows):
        parts += [words(20, 34 + ROW * i, f"pass {i + 1}", "start")]
        for j, text in enumerate(row):
            new = text not in rows[i - 1] if i else True
            parts += [box(120 + 90 * j, 14 + ROW * i, text, GREEN if new else BLUE)]
    return card("Insertion: a token a pass, put in anywhere", 210, *parts)


def routing() -> str:
    parts = [box(20, 20, "draft model", BLUE, 110), box(20, 90, "target", AMBER, 110)]
    parts += [arrow(130, 35, 238, 60), arrow(130, 105, 238, 80), box(240, 55, "router", GREY, 90)]
    parts += [arrow(330, 70, 408, 70), box(410, 55, "next step", GREEN, 100)]
    return card("Routing: for each step, one of two models is taken", 140, *parts)


SPEEDS = Path(__file__).parents[1] / "lab" / "reports" / "speculation-passes.csv"
BESIDE = "Beside other engines, one prompt a workload"
SCREEN, PALE, DRAFTED, BEHIND = "#111827", "#e5e7eb", "#86efac", "#14532d"
"""Of a terminal: its ground, its letters, drafted letters and what lies behind these."""
COLUMN, LINE = 7.5, 17
"""Pixels from one letter of a terminal to the next, and from one line to the next."""


WIDE, SPLIT = 800, 340
"""Width of the front picture, and where its two halves part, each of which the site shows alone on a telephone."""


def gain() -> str:
    """What a user gains: the speed beside other engines, and an answer with its drafted tokens marked."""
    answer = json.loads((FOLDER / "gain.json").read_text("utf-8"))
    lines = terminal_lines(answer)
    height = 78 + LINE * len(lines) + 44
    title = "Tokens a second of Polydec and other engines, and an answer with its drafted tokens in green"
    return card(
        title,
        height,
        f'<view id="bars" viewBox="0 0 {SPLIT} 470"/>',
        f'<view id="answer" viewBox="{SPLIT} 0 {WIDE - SPLIT} {height}"/>',
        *speed_bars(),
        *terminal(360, lines, height, answer),
        width=WIDE,
    )


def speed_bars() -> list[str]:
    """Four engines' tokens a second, as the lab book has them."""
    with SPEEDS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["section"] == BESIDE]
    speeds = {row["method"]: float(row["tokens/s"]) for row in rows}
    engines = (
        ("auto", "Polydec, --method auto", GREEN),
        ("plain", "Polydec, plain decoding", BLUE),
        ("llama.cpp", "llama.cpp", GREY),
        ("transformers", "transformers", GREY),
    )
    parts = [
        f'<text x="24" y="38" font-size="17" font-weight="bold" fill="{INK}">Tokens a second</text>'
    ]
    longest = 250 / max(speeds[name] for name, _, _ in engines)
    for i, (name, label, fill) in enumerate(engines):
        y, long = 62 + 78 * i, speeds[name] * longest
        parts += [words(24, y + 14, label, "start")]
        parts += [
            f'<rect x="24" y="{y + 22}" width="{long:.1f}" height="26" rx="3" fill="{fill}" stroke="{INK}"/>'
        ]
        parts += [words(32 + long, y + 40, f"{speeds[name]:.0f}", "start")]
    about = (
        "SmolLM2-135M in float32, 15 prompts,",
        "greedy, one request at a time, on two",
        "cores of an AMD EPYC (Zen 4). Longer is",
        "better; both of Polydec's write one text.",
    )
    return [
        *parts,
        '<g font-size="13">',
        *(words(24, 392 + 20 * i, text, "start") for i, text in enumerate(about)),
        "</g>",
    ]


def terminal_lines(answer: dict[str, Any]) -> list[list[tuple[str, bool]]]:
    """What a terminal shows of a recorded run: lines of pieces, each with whether a draft had it."""
    _, _, prompt, *options = shlex.split(answer["command"].partition(" --trace")[0])
    typed = f'$ polydec generate "{prompt}" {shlex.join(options)}'
    lines = [[(line, False)] for line in textwrap.wrap(typed, 52, subsequent_indent="  ")]
    lines += [[], []]
    for piece, drafted in written_pieces(answer):
        first, *others = piece.split("\n")
        lines[-1].append((first, drafted))
        lines += [[(text, drafted)] for text in others]
    return lines


def written_pieces(answer: dict[str, Any]) -> list[tuple[str, bool]]:
    """Every token's text, and whether it was drafted: a pass writes what it accepted and one token of its own."""
    return [
        (piece, place < passed["accepted"])
        for passed in answer["rounds"]
        for place, piece in enumerate(passed["pieces"])
    ]


def terminal(
    x: int, lines: list[list[tuple[str, bool]]], height: int, answer: dict[str, Any]
) -> list[str]:
    """A terminal with those lines, and below them what its green means."""
    width = 800 - 24 - x
    parts = [
        f'<rect x="{x}" y="20" width="{width}" height="{height - 40}" rx="8" fill="{SCREEN}"/>',
        f'<g font-family="monospace" font-size="12.5" fill="{PALE}">',
    ]
    for i, line in enumerate(lines):
        at = 0
        for text, drafted in line:
            parts += letters(x + 16 + at * COLUMN, 48 + LINE * i, text, drafted)
            at += len(text)
    parts += ["</g>"]
    count = answer["tokens"]
    passes = f"{count} tokens in {len(answer['rounds'])} passes; plain decoding takes {count}"
    return [
        *parts,
        words(x + 16, height - 54, "green: drafted and accepted in one pass", "start", DRAFTED),
        words(x + 16, height - 34, passes, "start", PALE),
    ]


def letters(x: float, y: float, text: str, drafted: bool) -> list[str]:
    """A piece of a terminal's line, as wide as its columns in any font."""
    shown = text.lstrip(" ")
    if not shown:
        return []
    left, wide = x + (len(text) - len(shown)) * COLUMN, len(shown) * COLUMN
    fill = f' fill="{DRAFTED}"' if drafted else ""
    behind = f'<rect x="{left}" y="{y - 12}" width="{wide}" height="16" fill="{BEHIND}"/>'
    word = f'<text x="{left}" y="{y}" textLength="{wide}"{fill}>{escape(shown)}</text>'
    return [behind, word] if drafted else [word]


PICTURES: tuple[Callable[[], str], ...] = (
    law,
    draft,
    verdict,
    tree,
    canvas,
    cache,
    press,
    embedding,
    search,
    insertion,
    routing,
    gain,
)

if __name__ == "__main__":
    old = False
    for draw in PICTURES:
        path, drawn = FOLDER / f"{draw.__name__}.svg", draw()
        old |= not path.exists() or path.read_text("utf-8") != drawn
        if "--check" not in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(drawn, "utf-8")
    sys.exit(1 if old and "--check" in sys.argv else 0)
