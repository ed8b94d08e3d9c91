"""The lab book: every report is listed, its links hold, and the guides lead to it by one link."""

import re
from pathlib import Path

import made
import pytest

REPORTS = Path(__file__).parent
PAGES = sorted(REPORTS.glob("*.md"))
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """Of every heading what a link to it is called on a git host."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    bare = [re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).lower() for heading in headings]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in bare}


def broken(page: Path) -> list[str]:
    """Links to a file or a heading that is not there."""
    out = []
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            out.append(f"{target}#{anchor}")
    return out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_report_hold(page):
    assert broken(page) == []


def test_every_report_is_listed_with_its_date():
    listed = (REPORTS / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| \[([\w-]+\.md)\]\(\1\) \| 20\d\d-\d\d-\d\d \| .+\. \|$", listed, re.M)
    assert sorted(rows) == [page.name for page in PAGES if page.name != "README.md"]


def test_the_guides_lead_here_by_one_link():
    guides = sorted((made.ROOT / "docs").glob("*.md"))
    leading = [page.name for page in guides for _ in re.findall(r"\]\([^)]*lab/", made.text(page))]
    assert leading == ["measurements.md"]


def test_a_missing_file_and_a_missing_heading_are_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Two `words`, here\n[a](#two-words-here) [b](page.md#no) [c](gone.md)\n")
    assert broken(page) == ["page.md#no", "gone.md#"]
