"""Documents that are generated say what the code says."""

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

import polydec
from polydec.base.options import read
from polydec.core.decoder import answers
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.methods.kit import Kit
from polydec.testing import check_decoder, check_drafter, toy
from polydec.testing.check_decoder import check_batch, check_choices

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("script", ["tables.py", "reference.py"])
def test_what_is_generated_is_up_to_date(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "docs" / script), run_name="__main__")
    assert stop.value.code == 0, f"README.md or a page of docs/ is old: run `python docs/{script}`"


def test_the_reference_says_something_of_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in polydec.__all__:
        assert f"\n### {name}\n" in text
        assert (getattr(polydec, name).__doc__ or "").strip().split("\n")[0][:60] in text
    assert " at 0x" not in text


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
