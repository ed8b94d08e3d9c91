"""Calls of functions as a language: what is a call, what may stand around it, and that arguments obey their schemas."""

import pytest

pytest.importorskip("llguidance", reason="polydec[grammar] is not installed")

from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import ToyWords
from polydec.laws.constraints.json_schema import ANY_OBJECT, JsonSchema
from polydec.laws.constraints.tool_calls import ToolCallForm, ToolCalls, ToolFunction

PIECES = (*map(chr, range(127)), "é", "<tool_call>", '>\n{"', "$")
EOS = len(PIECES) - 1
VOCAB = TokenVocabulary(len(PIECES), frozenset({EOS}), words=ToyWords(PIECES, frozenset({EOS})))
LOOK = JsonSchema.of_schema(
    {"type": "object", "properties": {"at": {"enum": [3, "<tool_call>"]}}, "required": ["at"]}
)
FUNCTIONS = (ToolFunction("look", LOOK), ToolFunction('g"é\\', ANY_OBJECT))
SAID = JsonSchema.of_schema(
    {"type": "object", "properties": {"name": {"type": "boolean"}}, "required": ["name"]}
)
BODY = '{"name": "look", "arguments": {"at": 3}}'
WRONG = '{"name": "look", "arguments": {"at": 4}}'
OTHER = '{"name": "g\\"é\\\\", "arguments": {"x": [1]}}'


def tagged(body):
    return f"<tool_call>\n{body}\n</tool_call>"


TAGS = {
    tagged(BODY): "required one text one-or-text said",
    tagged(OTHER): "required one text one-or-text said",
    tagged(BODY.replace("3", '"<tool_call>"')): "required one text one-or-text said",
    f"{tagged(BODY)}\n{tagged(OTHER)}": "required text said",
    f"Well, <tool.\n{tagged(BODY)}": "text one-or-text",
    f"{tagged(BODY)} Done.": "text",
    "": "text one-or-text",
    "No <tool_call": "text one-or-text",
    '{"name": true}': "text said one-or-text",
    BODY: "text one-or-text",
    tagged(WRONG): "",
    f"x {tagged(WRONG)}": "",
    tagged('{"name": "other", "arguments": {}}'): "",
    "<tool_call>": "",
    tagged(BODY)[:-1]: "",
}
ALONE = {
    BODY: "required one text one-or-text",
    OTHER: "required one text one-or-text",
    f"[{BODY}, {OTHER}]": "required text",
    "": "text one-or-text",
    "No [call]": "text one-or-text",
    f"No {BODY}": "text one-or-text",
    tagged(BODY): "text one-or-text",
    WRONG: "",
    "[1]": "",
    " {}": "",
    f"{BODY} x": "",
}
KINDS = {
    "required": {},
    "one": {"many": False},
    "text": {"text": True},
    "one-or-text": {"many": False, "text": True},
    "said": {"said": SAID},
}


def holds(language, text):
    """Whether a text belongs, character by character, and whether every step agrees with its mask."""
    state = language.start_state()
    for token in map(PIECES.index, text):
        assert bool(language.token_mask(state)[token]) == language.allows_token(state, token)
        if not language.allows_token(state, token):
            return False
        state = language.next_state(state, token)
    return language.allows_token(state, EOS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [ToolCallForm(), ToolCallForm(tags=False)], ids=["tags", "alone"])
def test_what_belongs(form, kind):
    if kind == "said" and not form.tags:
        pytest.skip("only tags tell a call from such an answer")
    language = ToolCalls(FUNCTIONS, form, **KINDS[kind]).token_language(VOCAB, VOCAB.eos)
    for text, kinds in (TAGS if form.tags else ALONE).items():
        assert holds(language, text) == (kind in kinds.split()), text


def test_tokens_that_reach_over_the_opening_tag():
    language = ToolCalls(FUNCTIONS, text=True).token_language(VOCAB, VOCAB.eos)
    state, over = language.start_state(), PIECES.index('>\n{"')
    assert language.allows_token(state, PIECES.index("<tool_call>"))
    for token in map(PIECES.index, "a<tool_call"):
        state = language.next_state(state, token)
    assert language.allows_token(state, over) and language.allows_token(state, PIECES.index("x"))
    state = language.next_state(state, over)
    assert language.allows_token(state, PIECES.index("n")) and not language.allows_token(
        state, PIECES.index("x")
    )


def test_what_is_shown_is_forced():
    language = ToolCalls(FUNCTIONS[:1]).token_language(VOCAB, VOCAB.eos)
    assert language.forced_bytes(language.start_state()).startswith(
        b'<tool_call>\n{"name": "look", "argu'
    )


def test_a_schema_that_cannot_be_kept_is_named():
    wrong = ToolFunction(
        "go", JsonSchema.of_schema({"type": "object", "properties": {"a": {"type": "x"}}})
    )
    with pytest.raises(ValueError, match=r"function 'go': json_schema at #/properties/a"):
        ToolCalls((*FUNCTIONS, wrong)).token_language(VOCAB, VOCAB.eos)
