"""How values show themselves: short in a terminal, in colour in a notebook; warnings name the user's own line."""

import sys
import warnings
from dataclasses import fields
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import get_type_hints

import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling, generate, load, stream
from polydec.base import notebook
from polydec.base.caller_warnings import warn_caller
from polydec.methods.economics.costs import PassCosts
from polydec.models.sessions.soft import Soft
from polydec.request.fields import AskFields, ask_from_fields

TEXT = "the fox <b>and</b> the fox <b>and</b> the"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    lm = load(str(micro.write(tmp_path_factory.mktemp("shown") / "a", hidden=64)))
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


class Spans(HTMLParser):
    """The text of a page, and what of it stands in coloured spans."""

    def __init__(self, page):
        super().__init__()
        self.all, self.coloured, self.inside, self.tags = "", "", 0, set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.inside += tag == "span"

    def handle_endtag(self, tag):
        self.inside -= tag == "span"

    def handle_data(self, data):
        self.all += data
        self.coloured += data if self.inside else ""


@pytest.mark.parametrize("n", [1, 3])
def test_an_answer_shows_drafted_tokens_in_colour(lm, n):
    ask = Ask(
        TEXT, method="prompt-lookup", options={"cost_aware": False}, raw=True, max_tokens=40, n=n
    )
    answer = generate(lm, ask)
    for at, choice in enumerate(answer.choices):
        assert "".join(p.text for p in answer.pieces if p.choice == at) == choice.text
    page = Spans(answer._repr_html_())
    assert page.tags <= {"div", "span", "hr"}  # whatever the text says, it is no markup
    drafted = "".join(p.text for p in answer.pieces if p.drafted)
    assert page.coloured == drafted + ("drafted and accepted" if drafted else "")
    assert all(choice.text in page.all for choice in answer.choices)
    assert drafted, "nothing was drafted: the test shows nothing"


def test_reprs_are_short_and_say_what_matters(lm):
    answer = generate(lm, "x" * 200, method="plain", raw=True, max_tokens=3)
    said = repr(answer)
    assert said.startswith("Completion(") and len(said) < 250
    assert "3 tokens" in said and "method plain" in said and "token_ids" not in said
    assert repr(lm).startswith("LoadedModel(name=") and len(repr(lm)) < 250
    assert "<table>" in lm._repr_html_()
    assert repr(Ask("Why?", seed=3)) == "Ask('Why?', seed=3)"
    assert len(repr(Ask([1] * 10_000, options={str(i): i for i in range(1000)}))) < 300


def test_keywords_that_editors_know_are_those_of_a_request():
    names = {"Sampling": Sampling, "Soft": Soft}  # what computes is not loaded for a list of fields
    own = get_type_hints(Ask, localns=names)
    own.pop("prompt")
    assert get_type_hints(AskFields, localns=names) == own
    assert list(AskFields.__annotations__) == [f.name for f in fields(Ask)][1:]


def test_a_wrong_keyword_is_answered_with_the_nearest(lm):
    for call in (
        generate,
        lambda *a, **b: list(stream(*a, **b)),
        lambda m, *a, **b: Engine(m).submit(*a, **b),
    ):
        with pytest.raises(
            TypeError, match="a request has no field 'max_token': did you mean max_tokens"
        ):
            call(lm, "Why?", max_token=3)
        with pytest.raises(TypeError, match="max_tokens is given beside an Ask: set it there"):
            call(lm, Ask("Why?"), max_tokens=3)
    with pytest.raises(TypeError, match=r"its fields are those of polydec.Ask"):
        ask_from_fields("Why?", {"zzzz": 3})


def test_a_warning_names_the_line_that_called():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warn_caller("something is missing")
    assert heard[0].filename == __file__


def test_a_model_without_a_profile_warns_in_the_name_of_its_caller(lm, monkeypatch):
    from polydec.request import profile

    monkeypatch.setattr(profile, "read_pass_profile", lambda model: None)
    monkeypatch.setattr(
        profile,
        "measure_pass_profile",
        lambda model, seconds: type("P", (), {"costs": PassCosts()})(),
    )
    monkeypatch.setattr(profile, "save_pass_profile", lambda model, found: None)
    vars(lm).pop("costs")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert lm.costs == PassCosts()
    assert {w.filename for w in heard} == {__file__}


class Cell:
    """What stands below a notebook's cell, one page after the other."""

    def __init__(self, kernel):
        self.pages = []
        shell = SimpleNamespace(kernel=kernel)
        self.get_ipython, self.display = lambda: shell, SimpleNamespace(display=self.show)

    def show(self, page, **how):
        assert how == {"raw": True, "display_id": True} and not self.pages
        return self.update(page)

    def update(self, page, raw=True):
        self.pages.append(page)
        return self


def test_a_notebook_shows_how_far_an_answer_is_and_clears_it(lm, monkeypatch):
    monkeypatch.setattr(notebook, "AFTER", 0)
    monkeypatch.setattr(notebook, "EVERY", 0)
    monkeypatch.setitem(sys.modules, "IPython", cell := Cell(kernel=object()))
    generate(lm, TEXT, method="plain", raw=True, max_tokens=6, n=2, ignore_eos=True)
    *moving, last = [page["text/plain"] for page in cell.pages]
    counts = [int(text.removesuffix(" of 12 tokens")) for text in moving]
    assert counts == sorted(counts) and len(set(counts)) > 3 and counts[-1] == 12
    assert all("<progress" in page["text/html"] for page in cell.pages[:-1]) and last == ""


@pytest.mark.parametrize("kernel, after", [(None, 0), (object(), 60)])
def test_outside_a_notebook_or_for_a_moment_nothing_is_shown(lm, monkeypatch, kernel, after):
    monkeypatch.setattr(notebook, "AFTER", after)
    monkeypatch.setitem(sys.modules, "IPython", cell := Cell(kernel))
    generate(lm, TEXT, method="plain", raw=True, max_tokens=4)
    assert not cell.pages
