"""Constraints where llguidance is not installed."""

import sys

import pytest

from polydec.base.errors import MissingError
from polydec.lab.testing.toy import toy_law
from polydec.laws.constraints import compiler, trial
from polydec.laws.constraints.json_schema import JsonSchema
from polydec.laws.constraints.tool_calls import ToolCallForm, ToolCalls, ToolFunction


@pytest.fixture(autouse=True)
def without_llguidance(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)


def test_a_missing_package_is_no_wrong_request():
    with pytest.raises(MissingError, match=r"need llguidance: pip install 'polydec\[grammar\]'$"):
        compiler.require_llguidance()


def test_a_schema_is_not_said_to_be_wrong_where_the_package_is_missing():
    # The schema with open objects is tried where the closed one is refused, not where nothing compiles.
    tried = []

    def compiles(grammar):
        tried.append(grammar)
        compiler.require_llguidance()

    with pytest.raises(MissingError, match="need llguidance"):
        trial._grammar({"type": "object"}, dict, compiles)
    assert len(tried) == 1


def test_a_function_is_not_said_to_be_wrong_where_the_package_is_missing():
    calls = ToolCalls(
        (ToolFunction("look", JsonSchema.of_schema({"type": "object"})),), ToolCallForm()
    )
    law = toy_law(1, 4)
    with pytest.raises(MissingError, match=r"^regex, JSON schema and grammar constraints need"):
        calls.token_language(law.vocab, law.vocab.eos)
