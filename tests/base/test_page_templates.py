"""Templates of pages: whatever a text says, it stays text; what was filled in before stays HTML."""

import html
import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import polydec
from polydec.base.page_templates import render_page_template

PACKAGE = Path(polydec.__file__).parent
TEMPLATES = sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.jinja"))


@pytest.mark.parametrize(
    "text",
    ["</title><script>alert(1)</script>", "\"'><img src=x>", "{{ 7 * 7 }}{% raw %}", "a &amp; b"],
)
def test_a_text_stays_text(text):
    page = render_page_template("cli/page.html.jinja", title=text)
    assert "<script" not in page and "<img" not in page
    assert html.unescape(re.search("<h1>(.*)</h1>", page)[1]) == text


def test_control_characters_are_written_as_their_escapes():
    page = render_page_template("cli/page.html.jinja", title="a\x1b[31m\x00\u202e\ud800")
    assert r"<h1>a\x1b[31m\x00\u202e\ud800</h1>" in page
    page.encode("utf-8")


def test_a_long_text_is_cut_before_it_is_escaped():
    page = render_page_template("cli/page.html.jinja", title="<" * 10_000)
    assert page.count("&lt;") == 2 * 400


def test_what_was_filled_in_before_is_not_escaped_again():
    note = render_page_template("cli/chart.html.jinja", lines=())
    assert "<p" in note
    assert f"<h1>{note}</h1>" in render_page_template(
        "cli/canvas.html.jinja", title=note, choices=()
    )


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(UndefinedError, match="title"):
        render_page_template("cli/page.html.jinja")


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_lets_html_through_or_needs_anything_from_elsewhere(name):
    source = (PACKAGE / name).read_text("utf-8")
    assert not re.search(r"\|\s*safe|autoescape|https?:|<script|@import|url\(", source)
