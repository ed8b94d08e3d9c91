"""Documents that are generated say what the code says."""

import csv
import json
import os
import re
import runpy
import sys
from html import unescape
from itertools import chain
from pathlib import Path

import pytest

import forked
import polydec
from polydec.methods.registry import press, registry, steer
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT


@pytest.mark.parametrize("script", ["tables.py", "reference.py", "pictures.py"])
def test_what_is_generated_is_up_to_date(script):
    # The pages are of this package: plug-ins that are installed here stand in none of them.
    run = f"import runpy; runpy.run_path({str(ROOT / 'docs' / script)!r}, run_name='__main__')"
    paths = os.pathsep.join(filter(None, [str(ROOT / "docs"), os.environ.get("PYTHONPATH")]))
    checked = forked.run(
        "-c", run, "--check", env={**os.environ, "PYTHONPATH": paths, "POLYDEC_PLUGINS": "off"}
    )
    assert checked.returncode == 0, (
        f"a page of docs/ is old: run `POLYDEC_PLUGINS=off python docs/{script}`\n{checked.stderr}"
    )


def test_the_reference_says_something_of_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in polydec.__all__:
        assert f"\n### {name}\n" in text
        assert (getattr(polydec, name).__doc__ or "").strip().split("\n")[0][:60] in text
    assert " at 0x" not in text


def test_code_on_the_site_keeps_flags_whole_and_bars_bare():
    pages = runpy.run_path(str(ROOT / "docs" / "site_pages.py"))
    html = '<p>-- by <code>-e x --method auto</code> and <code><a href="--b">a-b</a> --out=<b>c</b></code></p>'
    assert pages["on_page_content"](html) == (
        '<p>-- by <code><span class="flag">-e</span> x <span class="flag">--method</span> auto</code> and '
        '<code><a href="--b">a-b</a> <span class="flag">--out</span>=<b>c</b></code></p>'
    )
    bars = "<table><td><code>&lt;\\|mask\\|&gt;</code></td></table><code>a\\|b</code>"
    assert pages["on_page_content"](bars) == (
        "<table><td><code>&lt;|mask|&gt;</code></td></table><code>a\\|b</code>"
    )
    css = (ROOT / "docs" / "site.css").read_text("utf-8")
    assert re.search(r"code \.flag \{[^}]*white-space: nowrap", css)


def test_the_site_follows_the_system_and_its_hits_can_be_read():
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    media = re.findall(r'media: "\(prefers-color-scheme(.*)\)"', settings)
    assert media == ["", ": light", ": dark"]  # a first visit stores the first that fits
    css = (ROOT / "docs" / "site.css").read_text("utf-8")
    assert re.search(r"\.md-tabs__link \{ opacity: 0\.85; \}", css)
    assert re.search(r"slate.*indigo.* \{ --md-typeset-a-color: #84a9ff", css)  # 6.2 to 1 on code
    # words of programs: comments and signs by day, numbers and constants at night
    assert re.search(r"default.*--md-default-fg-color--light: #000000a3", css)
    assert re.search(r"number-color: #f08a7e; --md-code-hl-constant-color: #ab9ef0", css)
    assert re.search(r"search-result mark \{ color: var\(--md-typeset-a-color\)", css)
    assert re.search(r"search-result \.md-typeset pre > code \{ white-space: pre-wrap", css)


def test_what_belongs_to_a_member_stays_in_its_entry_on_the_site():
    markdown = pytest.importorskip("markdown", reason="MkDocs is not installed: polydec[docs]")
    reference = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    described = reference["described"]("AnyOf", polydec.AnyOf)
    shown = markdown.markdown("\n".join(described[described.index("```", 3) + 1 :]))
    entry = shown.partition("language(vocab")[2]
    assert entry and entry.index("<strong>Raises:</strong>") < entry.rindex("</ul>\n</li>\n</ul>")


def usual_tasks(block):
    """Lines of code of each task by its number; a task begins with a comment `# NUMBER …`."""
    parts = re.split(r"^# (\d+) .*\n", block, flags=re.M)
    return {
        int(number): [line for line in lines.splitlines() if line.strip()]
        for number, lines in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_no_usual_task_is_longer_here_than_elsewhere():
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    _, _, section = text.partition("## From transformers or vLLM")
    blocks = re.findall(r"^```(?:python|text)[^\n]*\n(.*?)^```", section, re.M | re.S)[:3]
    ours, *others = (usual_tasks(block) for block in blocks)
    assert list(ours) == list(range(1, 11)) and all(list(ours) == list(theirs) for theirs in others)
    for theirs in others:
        assert [number for number in ours if len(ours[number]) > len(theirs[number])] == []
        assert len("".join(chain(*ours.values()))) < len("".join(chain(*theirs.values())))


def test_the_front_page_is_short_and_says_which_method_when():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) < 150
    assert "make demo" in text and "make test" in text
    _, _, rows = text.partition("## Which method when")
    rows = re.findall(r"^\| .*\|$", rows.split("\n## ")[0], re.M)[1:]
    assert len(rows) == 8
    named = {n for row in rows for n in re.findall(r"`([a-z][a-z0-9-]+)`", row)}
    assert named - set(registry.recipe_modules()) == set()
    linked = re.findall(r"\]\(([^)#:]+)[^)]*\)", text)
    assert [path for path in linked if not (ROOT / path).exists()] == []


def test_the_front_picture_shows_the_recorded_answer_and_the_measured_speeds(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pictures

    answer = json.loads((ROOT / "docs" / "pictures" / "gain.json").read_text("utf-8"))
    pieces = pictures.written_pieces(answer)
    assert len(pieces) == answer["tokens"]
    for passed in answer["rounds"]:
        assert passed["accepted"] <= passed["drafted"]
        assert len(passed["pieces"]) == passed["accepted"] + 1
    drawn = pictures.gain()
    green = re.findall(f'fill="{pictures.DRAFTED}">([^<]*)</text>', drawn)
    visible = [unescape(text) for text in green[:-1]]  # the last one says what green means
    assert visible == [piece.strip() for piece, drafted in pieces if drafted and piece.strip()]
    bars = re.findall(r'text-anchor="start"[^>]*>(\d+)</text>', drawn)
    table = (ROOT / "lab" / "reports" / "speculation-passes.csv").open(encoding="utf-8", newline="")
    with table:
        rows = [row for row in csv.DictReader(table) if "other engines" in row["section"]]
    shown = ("auto", "plain", "llama.cpp", "transformers")
    measured = {row["method"]: row["tokens/s"] for row in rows}
    assert [round(float(measured[name])) for name in shown] == [int(bar) for bar in bars]
    alt = re.search(r"!\[(.*)\]\(docs/pictures/gain.svg\)", (ROOT / "README.md").read_text("utf-8"))
    assert alt and re.findall(r"\d+", alt[1]) == bars


@pytest.fixture(scope="module")
def method_pages():
    return runpy.run_path(str(ROOT / "docs" / "site_pages.py"))["pages"]()


def test_every_method_has_a_page_with_its_paper_its_options_and_its_promise(method_pages):
    cards = {
        f"methods/{n}.md": (m, registry.method_options(n))
        for n, m in registry.recipe_modules().items()
    }
    for name, module in steer.steering_modules().items():
        cards[f"methods/steering-{name}.md"] = module, steer.steering_options(name)
    for name, module in press.press_modules().items():
        cards[f"methods/press-{name}.md"] = module, press.press_options(name)
    assert method_pages.keys() == cards.keys()
    for path, (module, options) in cards.items():
        text, card = method_pages[path], module.CARD
        assert f"# {card.title}\n" in text and card.summary in text and card.source in text, path
        assert not card.arxiv or f"https://arxiv.org/abs/{card.arxiv}" in text, path
        promise = text.partition("## What it promises")[2].partition("##")[0].strip()
        assert promise and (card.guarantee is None or promise.startswith("**")), path
        assert [o.name for o in options if f"| `{o.name}` |" not in text] == [], path
        pictures = re.findall(r"\.\./(pictures/\w+\.svg)", text)
        assert pictures and all((ROOT / "docs" / p).exists() for p in pictures), path


def test_a_page_has_the_measured_speed_and_the_command_that_made_it(method_pages):
    text = method_pages["methods/prompt-lookup.md"]
    assert "| greedy, batch 1 | 1.19 (1.09 to 1.31) |" in text
    assert "python benchmarks/speculation.py --each 1 --seed 45 --methods all" in text
    assert (
        "| greedy, batch 1 |" in method_pages["methods/layerskip.md"]
    )  # "early-exit" in the table


def test_a_page_holds_what_the_paper_reports_beside_what_was_measured(method_pages):
    text = method_pages["methods/token-recycling.md"]
    part = text.partition("## Reported and measured")[2]
    assert "**The paper reports** 2.09 times plain decoding (Vicuna-7B)" in part
    assert part.index("The paper reports") < part.index("| greedy, batch 1 |")
    assert "2.718 (2.443 to 3.043)" in method_pages["methods/eagle.md"]  # lab/reports/trained.csv
    assert "| freedave 4 | 99.7 % (99.0 to 99.9)" in method_pages["methods/freedave.md"]
    assert (
        "| HyPER from 4 | 62.7 |" in method_pages["methods/pool-with-forks.md"]
    )  # lab/reports/search.csv
    for name, module in {**registry.recipe_modules(), **steer.steering_modules()}.items():
        reported = module.CARD.published
        assert not reported or (re.search(r"\d", reported) and reported[-1] != "."), name
        path = f"methods/{'steering-' if module.CARD.kind == 'steering' else ''}{name}.md"
        assert reported in method_pages[path] and "**Here**" in method_pages[path], path


def test_the_tables_of_measurements_hold_what_is_looked_for(monkeypatch):
    """A name that no row has would leave a page without its figures, and nobody would see it."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import method_figures as figures

    known = {
        row["kind"]
        for m in (figures.SHORT, figures.LONG, figures.BLOCKS)
        for row in figures.table(m.file)
    }
    named = {re.sub(r" [0-9.]+$", "", kind) for kind in known}
    assert {kind for kinds in figures.KINDS.values() for kind in kinds} <= named
    rows = [row["method"] for row in figures.table(figures.SEARCHED.file)]
    assert all(any(r.startswith(begin) for r in rows) for begin in figures.SEARCHES.values())
    for name in (*figures.KINDS, *figures.SEARCHES, *figures.OLD_NAMES):
        assert registry.find_method(name) == name


def test_the_reference_by_module_names_every_public_module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import modules

    made = modules.pages()
    source = Path(polydec.__file__).parent
    for path in source.glob("*/**/*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        if not any(part.startswith("_") for part in parts):
            heading = ".".join(parts)
            room = next(r for r in modules.rooms() if heading.startswith(f"{r}."))
            assert f"\n## {heading}\n" in made[f"reference/{room}.md"], heading
    assert (
        "### ModelDrafter\n\n```python\nModelDrafter("
        in made["reference/methods.speculative.drafters.md"]
    )
    assert made["reference/index.md"].count("\n| [") == len(made) - 1
    assert " at 0x" not in "".join(made.values())


def test_every_room_is_in_the_tree():
    text = (ROOT / "docs" / "structure.md").read_text("utf-8")
    rooms = [
        p.name
        for p in (ROOT / "src" / "polydec").iterdir()
        if p.is_dir() and p.name not in ("__pycache__", "zoo")
    ]
    assert [r for r in rooms if f"{r}/" not in text] == []


def test_long_tables_move_to_files_beside_the_page(monkeypatch, tmp_path):
    long = (
        "## Here\n\n### greedy, batch 1\n\n| method | all (95 %) | code | prose |\n|---|--:|--:|--:|\n"
        "| calm \\* | 1.29 (1.21 to 1.39) | 1.83 | - |\n| plain | 1.00 (one task) | 1.00 | 1.00 |\n\nEnd.\n"
    )
    page = tmp_path / "page.md"
    page.write_text(long)
    monkeypatch.setattr(sys, "argv", ["short_tables.py", str(page)])
    for _ in range(2):  # a short table stays as it is
        runpy.run_path(str(ROOT / "benchmarks" / "short_tables.py"), run_name="__main__")
    assert (
        "| calm \\* | 1.29 (1.21 to 1.39) | code 1.83 | code 1.83 |" in page.read_text()
        and "End." in page.read_text()
    )
    assert (tmp_path / "page-speed.csv").read_text().splitlines() == [
        "section,setting,method,approximate,all,all low,all high,code,prose",
        'Here,"greedy, batch 1",calm,yes,1.29,1.21,1.39,1.83,-',
        'Here,"greedy, batch 1",plain,,1.00,,,1.00,1.00',
    ]
