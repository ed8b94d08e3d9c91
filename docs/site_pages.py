"""Makes the pages of the site that nobody writes by hand, while MkDocs builds it (`make docs`): the front page from README.md,
a page for every method, every way to steer and to keep a cache from its CARD, one for every room of the package, and one for
the examples."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polydec.base.options import Option
from polydec.core.types import Exactness
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.card import Card
from polydec.methods.registry.catalogue import ModuleCatalogue

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.append(str(DOCS))  # MkDocs loads this file alone
import method_figures  # noqa: E402
import modules  # noqa: E402

PICTURES = {
    "draft-and-verify": ("draft", "verdict"),
    "unmasking": ("canvas",),
    "refresh": ("canvas", "cache"),
    "insertion": ("insertion",),
    "search": ("search",),
    "rollouts": ("search",),
    "routing": ("routing",),
    "reading": ("law",),
    "drawing": ("draft", "verdict"),
    "constraint": ("law",),
    "sampler": ("law",),
    "steering": ("law",),
    "press": ("press",),
}
"""How methods of a kind work, drawn by docs/pictures.py."""

GUIDES = {
    "draft-and-verify": "draft-and-verify",
    "unmasking": "diffusion",
    "refresh": "diffusion",
    "insertion": "insertion",
    "search": "search",
    "rollouts": "search",
    "routing": "search",
    "reading": "sources",
    "drawing": "pictures",
    "constraint": "constraints",
    "sampler": "sampling",
    "steering": "steering",
    "press": "caches",
}

PROMISES = {
    Exactness.LAW: "**Lossless**: texts follow the law that you asked for exactly, whatever guesses them.",
    Exactness.ARGMAX: "**Greedy texts only**: at temperature 0 they are those of plain decoding.",
    Exactness.APPROXIMATE: "**Approximate**: another text comes out than by plain decoding.",
    None: "It changes the law on purpose; what decodes the changed law keeps its own promise for it.",
}

FLAGS = {"steering": ("--steer", "steerings"), "press": ("--cache", "presses")}
"""Of what goes with any method: its flag, and what lists it."""


CATALOGUES = {"steering": steer.STEERINGS, "press": press.PRESSES}
"""Of what goes with any method: where its options stand."""


def page(name: str, card: Card, options: Iterable[Option]) -> str:
    """The page of one method, or of one way to steer or to keep a cache."""
    flag, list_them = FLAGS.get(card.kind, ("--method", "methods"))
    guide = GUIDES[card.kind]
    # The way back stands at the top: who came by the search has seen no list.
    back = f"[All methods](../methods.md) · [the guide](../{guide}.md)"
    out = [f"# {card.title}", "", back, "", f"`{flag} {name}`: {card.summary}", ""]
    for picture in (*PICTURES[card.kind], *(("tree",) if " tree" in card.summary else ())):
        out += [f"![How it works: {picture}](../pictures/{picture}.svg)", ""]
    out += ["## What it promises", "", PROMISES[card.guarantee], ""]
    if card.reduces_to:
        out += [f"The simpler method within it: {card.reduces_to}.", ""]
    out += ["## Paper", "", f"{card.source}.", ""]
    if card.arxiv:
        out += [f"[arXiv {card.arxiv}](https://arxiv.org/abs/{card.arxiv})", ""]
    out += [
        "## Facts",
        "",
        "| fact | value |",
        "|---|---|",
        *(f"| {k} | {v} |" for k, v in facts(name, card)),
        "",
    ]
    out += ["## Options", "", *option_table(tuple(options)), ""]
    # All that is no steering and no press is a method, whatever its kind.
    catalogue = CATALOGUES.get(card.kind, registry.RECIPES)
    out += ["## As published", "", *published_settings(catalogue, name), ""]
    out += ["## Reported and measured", "", *method_figures.section(name, card)]
    out += [
        f"More: [the guide](../{guide}.md), [all methods](../methods.md), `polydec {list_them} {name}`.",
        "",
    ]
    return "\n".join(out)


def facts(name: str, card: Card) -> list[tuple[str, str]]:
    """What a card says beside its texts."""
    needs = ", ".join(f"`{need.name}`" for need in card.needs) or "nothing but the model"
    rows = [("kind", card.kind), ("family", card.family), ("needs", needs)]
    if card.needs_training:
        rows.append(("training", "something must be [trained](../trained.md) for your model first"))
    if card.home:
        rows.append(("at home", cell(card.home)))
    if card.parent:
        known = card.parent in registry.recipe_modules()
        rows.append(
            ("must beat", f"[`{card.parent}`]({card.parent}.md)" if known else f"`{card.parent}`")
        )
    if card.aliases:
        rows.append(("other names", ", ".join(f"`{alias}`" for alias in card.aliases)))
    return rows


def option_table(options: tuple[Option, ...]) -> list[str]:
    if not options:
        return ["None."]
    rows = ["| option | type | range | default | what it does |", "|---|---|---|---|---|"]
    for option in options:
        kind = option.type.__name__ if isinstance(option.type, type) else str(option.type)
        legal = ", ".join(limit.spoken for limit in option.limits) or "any"
        text = f"{option.help} ({option.note})" if option.note else option.help
        parts = (kind.replace("collections.abc.", ""), legal, written(option.default), text)
        rows.append(f"| `{option.name}` | {' | '.join(cell(part) for part in parts)} |")
    return rows


def published_settings(catalogue: ModuleCatalogue, name: str) -> list[str]:
    """What a paper sets, in a sentence and a table."""
    found = catalogue.describe_published(name)
    out = [f"`{found['name']}`: {found['summary']}."]
    if found["settings"]:
        out += ["", "| option | ours | published | why |", "|---|---|---|---|"]
    for row in found["settings"]:
        parts = (written(row["ours"]), written(row["published"]), row["why"])
        out.append(f"| `{row['option']}` | {' | '.join(cell(part) for part in parts)} |")
    return out


def written(default: Any) -> str:
    """A default as `--set` takes it."""
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default).lower()
    return text or "empty"


def cell(text: str) -> str:
    """Text that stays in one cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def pages() -> dict[str, str]:
    """Every generated page of a method by its path in the site."""
    out = {
        f"methods/{name}.md": page(name, module.CARD, registry.method_options(name))
        for name, module in registry.recipe_modules().items()
    }
    for name, module in steer.steering_modules().items():
        out[f"methods/steering-{name}.md"] = page(name, module.CARD, steer.steering_options(name))
    for name, module in press.press_modules().items():
        out[f"methods/press-{name}.md"] = page(name, module.CARD, press.press_options(name))
    return out


def examples() -> str:
    """The scripts of examples/, each as it stands."""
    out = [
        "# Examples",
        "",
        "Scripts to start from (`examples/`); notebooks lie in `notebooks/`.",
        "",
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        out += [f"## {path.name}", "", "```python", path.read_text("utf-8").rstrip(), "```", ""]
    return "\n".join(out)


def from_root(name: str) -> str:
    """A page of the root, with its links as they are within docs/."""
    text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
    for other, own in (
        ("CONTRIBUTING", "contributing"),
        ("CHANGELOG", "changelog"),
        ("README", "index"),
    ):
        text = text.replace(f"]({other}.md", f"]({own}.md")
    return text


WEIGHTS = (
    ("reference/", 0.001),
    ("methods/", 0.3),
    ("api.md", 0.01),
    ("changelog.md", 0.001),
    ("contributing.md", 0.01),
    ("adding-a-method.md", 0.01),
    ("structure.md", 0.01),
    ("examples.md", 0.05),
    ("server-fields.md", 0.1),
    ("training-flags.md", 0.1),
    ("questions.md", 1.5),
)
"""By the beginning of a page's path, what a hit of the site's search weighs: who asks for "install" looks for a guide, and
pages that are made of the code hold every word in a title. All others weigh 1."""

ALONE = ("index.md", "methods.md", "methods/", "measurements.md", "reference/")
"""Pages that are a section of their own, and such as no list names: an empty column would only take their tables' room."""

HALVES = "\n".join(
    f'<img class="half" id="gain-{half}" alt="" src="pictures/gain.svg#{half}">'
    for half in ("bars", "answer")
)
"""The halves of the front picture one below the other, which site.css shows in its place on a telephone."""

LAB_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)?(lab/[^)]+)\)")
"""The lab book is not in the site: its path stands there in place of a link."""

CODE = re.compile(r"(<code[^>]*>)(.*?)(</code>)", re.S)
CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.S)
FLAG = re.compile(r"(<[^>]*>)|(?<![\w-])(--?[A-Za-z][\w-]*)")
"""A tag, which stays as it is, or a flag."""


def with_whole_flags(html: str) -> str:
    """Mark the flags in code, so that site.css keeps a line from ending behind their dashes."""

    def marked(code: re.Match[str]) -> str:
        return code[1] + FLAG.sub(_marked_flag, code[2]) + code[3]

    return CODE.sub(marked, html)


def _marked_flag(found: re.Match[str]) -> str:
    return found[1] or f'<span class="flag">{found[2]}</span>'


def on_files(files: Any, config: Any) -> Any:
    """MkDocs asks for further files here."""
    from mkdocs.structure.files import File

    roots = {
        "index.md": "README.md",
        "contributing.md": "CONTRIBUTING.md",
        "changelog.md": "CHANGELOG.md",
    }
    made = {own: from_root(name) for own, name in roots.items()} | pages() | modules.pages()
    made["examples.md"] = examples()
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of the written pages to what only the site has."""
    text = markdown
    weight = next((w for begin, w in WEIGHTS if page.file.src_uri.startswith(begin)), 1)
    page.meta.setdefault("search", {})["boost"] = weight
    if page.file.src_uri.startswith(ALONE) and page.file.src_uri != "reference/index.md":
        page.meta["hide"] = ["navigation"]
    roots = {"README": "index", "CONTRIBUTING": "contributing", "CHANGELOG": "changelog"}
    for other, own in roots.items():
        text = text.replace(f"](../{other}.md", f"]({own}.md")
    if page.file.src_uri == "index.md":
        text = re.sub(r"(^!\[.*\]\(pictures/gain\.svg\)$)", rf"\1\n\n{HALVES}", text, flags=re.M)
    text = LAB_LINK.sub(r"\1 (`\2`)", text)
    if page.file.src_uri == "methods.md":
        text = re.sub(r"^\| `([a-z0-9-]+)` \|", r"| [`\1`](methods/\1.md) |", text, flags=re.M)
        ways = ", ".join(
            f"[`{n}`](methods/steering-{n}.md)" for n in sorted(steer.steering_modules())
        )
        text += (
            f"\n\n## Ways to steer\n\nThey change the law, and go with any method above: {ways}.\n"
        )
        kept = ", ".join(f"[`{n}`](methods/press-{n}.md)" for n in sorted(press.press_modules()))
        text += f"\n## Ways to keep a cache\n\nThese change it, too: {kept}.\n"
    return text


def on_page_content(html: str, **_: Any) -> str:
    """What Markdown made of a page, before the theme puts it into place."""
    # A bar in a cell's code is written with a backslash before it, as GitHub wants it, and Markdown here keeps that.
    html = CELL.sub(lambda found: found[0].replace("\\|", "|"), html)
    return with_whole_flags(html)
