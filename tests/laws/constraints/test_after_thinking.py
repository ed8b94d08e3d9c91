"""Answers behind thinking: masks, steps and budgets agree, and what is written is thinking and a text of the inner language."""

import random
import re

import pytest

from polydec.core.types import TokenVocabulary
from polydec.laws.constraints.after_thinking import after_thinking
from polydec.laws.constraints.regex import Regex
from polydec.models.formats.thinking_marks import FAMILIES, ThinkingReader

BY_NAME = {marks.name: marks for marks in FAMILIES}
LETTERS = [
    *"<>/thinkab \n|c",
    "</",
    "think",
    "<think",
    ">\n",
    "nk>a",
    "</think>",
    "<think>",
    "\n\n",
]
SPECIAL = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "analysis", "final", "assistant"]
END = 0


class Spelled:
    """A tokenizer of a few tokens, of which token 0 ends a text; control tokens are spelled by nothing."""

    def __init__(self, tokens, control):
        self.tokens, self.control = ["", *tokens], control
        self.pieces = tuple(None if t in control or not t else t.encode() for t in self.tokens)

    def encode(self, text, special=True):
        out = []
        while text:
            token = max((t for t in self.tokens if t and text.startswith(t)), key=len)
            out.append(self.tokens.index(token))
            text = text[len(token) :]
        return tuple(out)

    def decode(self, ids):
        return "".join(self.tokens[i] for i in ids if self.pieces[i] is not None)

    @property
    def names(self):
        return {i: t for i, t in enumerate(self.tokens) if t in self.control}


WORDS = {
    "think": Spelled(LETTERS, frozenset()),
    "gpt-oss": Spelled(
        [*"ab \ncefilmnorsty", *SPECIAL], frozenset(x for x in SPECIAL if x.startswith("<|"))
    ),
}


def language(name, opened=False, budget=None, pattern="a(b|c)*", **more):
    words = WORDS[name]
    vocab = TokenVocabulary(len(words.tokens), frozenset({END}), words=words)
    inner = None if pattern is None else Regex(pattern).token_language(vocab, frozenset({END}))
    reader = ThinkingReader(BY_NAME[name], opened)
    return after_thinking(
        inner, vocab, frozenset({END}), reader, words.names, budget=budget, **more
    ), reader


def walk(made, rng, most=60, lean=0.0):
    """A random text that the language allows, each step of which is looked at; lean: how much sooner it ends."""
    state, tokens = made.start_state(), []
    for _ in range(most):
        mask_V = made.token_mask(state)
        allowed = mask_V.nonzero()[:, 0].tolist()
        assert allowed, tokens
        for token in range(len(mask_V)):
            assert made.allows_token(state, token) == bool(mask_V[token]), (tokens, token)
        if END in allowed and rng.random() < 0.3 + lean:
            return [*tokens, END], True
        token = rng.choice([x for x in allowed if x != END] or [END])
        tokens.append(token)
        if token == END:
            return tokens, True
        state = made.next_state(state, token)
    return tokens, False


@pytest.mark.parametrize("name", ["think", "gpt-oss"])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("budget", [None, 0, 3])
def test_what_is_allowed_is_thinking_and_an_answer(name, opened, budget):
    pytest.importorskip("llguidance")
    made, reader = language(name, opened, budget)
    words, whole, thought_of = WORDS[name], 0, 0
    for seed in range(30):
        rng = random.Random(seed)
        tokens, ended = walk(made, rng)
        text = "".join(words.tokens[x] for x in tokens)
        _, said = reader.separate_text(text, cut=not ended)
        if budget is not None:
            assert made.thought_tokens(tokens) <= budget
        if ended:
            whole += 1
            assert re.fullmatch("a(b|c)*", said), (text, said)
        thought_of += bool(made.thought_tokens(tokens))
    assert whole >= 5 or budget is None
    assert thought_of or budget == 0


def test_a_budget_alone_forbids_nothing_else():
    made, _ = language("think", budget=2, pattern=None)
    close = WORDS["think"].encode("</think>")
    state = made.start_state()
    assert made.token_mask(state).all()
    for token in WORDS["think"].encode("<think>ab"):
        assert made.token_mask(state).all() and made.allows_token(state, token)
        state = made.next_state(state, token)
    for token in close:
        assert made.token_mask(state).nonzero()[:, 0].tolist() == [token]
        state = made.next_state(state, token)
    for token in (3, 5, END):
        assert made.token_mask(state).all() and made.allows_token(state, token)


def test_a_mark_that_was_begun_is_gone_on_with():
    """Where the model has begun the closing mark when the budget is used up, it is not begun again."""
    words = Spelled([*"ab", "<think>", "</", "think>"], frozenset())
    WORDS["split"], BY_NAME["split"] = words, BY_NAME["think"]
    made, _ = language("split", opened=True, budget=2, pattern=None)
    state = made.start_state()
    for token in words.encode("a</"):
        state = made.next_state(state, token)
    assert made.token_mask(state).nonzero()[:, 0].tolist() == list(words.encode("think>"))


def test_tokens_that_hold_a_mark_and_more():
    """A token that ends the thinking and begins an answer at once is not allowed where the answer is bound."""
    pytest.importorskip("llguidance")
    made, _ = language("think", opened=True)
    state = made.start_state()
    for token in WORDS["think"].encode("a</thi"):
        state = made.next_state(state, token)
    tokens = WORDS["think"].tokens
    assert not made.allows_token(state, tokens.index("nk>a"))
    assert made.allows_token(state, tokens.index("n")) and not made.allows_token(state, END)


def test_tokens_before_an_answer():
    made, _ = language("think", pattern=None)
    encode = WORDS["think"].encode
    assert made.before_answer(encode("<think>ab</think>\n\nab")) == len(
        encode("<think>ab</think>\n\n")
    )
    assert made.before_answer(encode("ab")) == 0
    assert made.thought_tokens(encode("<think>ab</think>ab")) == 2
