"""Documents that are generated say what the code says."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import polydec
from polydec.base.options import read
from polydec.core.decoder import answers
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.methods import press, registry, steer
from polydec.methods.kit import Kit
from polydec.testing import check_decoder, check_drafter, toy
from polydec.testing.check_decoder import check_batch, check_choices

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("script", ["tables.py", "reference.py", "pictures.py"])
def test_what_is_generated_is_up_to_date(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "docs" / script), run_name="__main__")
    assert stop.value.code == 0, f"a page of docs/ is old: run `python docs/{script}`"


def test_the_reference_says_something_of_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in polydec.__all__:
        assert f"\n### {name}\n" in text
        assert (getattr(polydec, name).__doc__ or "").strip().split("\n")[0][:60] in text
    assert " at 0x" not in text


def test_the_front_page_is_short_and_says_which_method_when():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) < 150
    assert "make demo" in text and "make test" in text
    _, _, rows = text.partition("## Which method when")
    rows = re.findall(r"^\| .*\|$", rows.split("\n## ")[0], re.M)[1:]
    assert len(rows) == 8
    named = {n for row in rows for n in re.findall(r"`([a-z][a-z0-9-]+)`", row)}
    assert named - set(registry.recipes()) == set()
    linked = re.findall(r"\]\(([^)#:]+)[^)]*\)", text)
    assert [path for path in linked if not (ROOT / path).exists()] == []


@pytest.fixture(scope="module")
def method_pages():
    return runpy.run_path(str(ROOT / "docs" / "site_pages.py"))["pages"]()


def test_every_method_has_a_page_with_its_paper_its_options_and_its_promise(method_pages):
    cards = {f"methods/{n}.md": (m, registry.options(n)) for n, m in registry.recipes().items()}
    for name, module in steer.steerings().items():
        cards[f"methods/steering-{name}.md"] = module, steer.options(name)
    for name, module in press.presses().items():
        cards[f"methods/press-{name}.md"] = module, press.options(name)
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


def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("material", reason="MkDocs Material is not installed: polydec[docs]")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "methods" / "auto.html").exists()
    outside = r"""<(?:script[^>]*src|link[^>]*rel="stylesheet"[^>]*href)="?https?:"""
    assert not re.search(outside, (tmp_path / "index.html").read_text("utf-8"))


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


@pytest.fixture(scope="module")
def examples():
    """The code of docs/adding-a-method.md, run from top to bottom; its drafter stands where the page puts it."""
    text = (ROOT / "docs" / "adding-a-method.md").read_text("utf-8")
    with pytest.MonkeyPatch.context() as patch:
        names = {}
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.S)):
            module = ModuleType("polydec.drafters.echo" if number == 0 else f"page_{number}")
            patch.setitem(sys.modules, module.__name__, module)
            exec(compile(code, f"adding-a-method.md, block {number}", "exec"), vars(module))
            names |= vars(module)
        yield names


def test_the_drafter_of_the_guide_keeps_the_contract(examples):
    check_drafter(examples["Echo"]())
    with pytest.raises(ValueError, match="most is 0: it must lie in 1 to 64"):
        examples["Echo"](0)


def test_the_recipe_of_the_guide_keeps_the_contract(examples):
    check_decoder(
        lambda target, draft: examples["build"](Kit(target, draft), depth=2), laws=2, length=2
    )
    assert [(o.name, o.default) for o in read(examples["build"])] == [("depth", 4)]


def test_the_loop_of_the_guide_keeps_the_contract(examples):
    for check in (check_batch, check_choices):
        check(lambda target, draft: examples["BestOf"](target, 3))
    (one,) = run(
        [answers(examples["BestOf"](toy(1), 8), Request((0, 1), max_tokens=4, logprobs=0))]
    )
    assert one[0].score == pytest.approx(sum(t.logp for t in one[0].logprobs))
    (alone,) = run([answers(examples["BestOf"](toy(1), 1), Request((0, 1), max_tokens=4))])
    assert one[0].score >= alone[0].score


def test_the_table_of_the_guide_is_read_back_and_fits_its_model_only(examples, tmp_path):
    vocab = toy(1).vocab
    examples["save"](tmp_path, examples["examples"](vocab, 4, 4)[0], {})
    table = examples["load"](tmp_path)
    assert Kit(toy(1), artefacts=(table,)).need(examples["Unigrams"]) is table
    with pytest.raises(ValueError, match="vocabulary of 3 tokens"):
        Kit(toy(1, 4), artefacts=(table,)).need(examples["Unigrams"])
    with pytest.raises(ValueError, match="name one"):
        Kit(toy(1)).need(examples["Unigrams"])
