"""Languages of tokens: what they allow is what the constraint says, whatever the tokens."""

import itertools
import json
import re

import pytest
import torch

from polydec.base.errors import RequestError
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords
from polydec.laws.constraints import constraint_kinds
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.endless import unproductive_rules
from polydec.laws.constraints.everything import UnrestrictedLanguage
from polydec.laws.constraints.json_schema import JsonSchema
from polydec.laws.constraints.lark import LarkGrammar
from polydec.laws.constraints.regex import Regex
from polydec.laws.constraints.span_of import SpanOf
from polydec.methods.speculative.drafters.first_of import FirstOfDrafter
from polydec.methods.speculative.drafters.forced import JumpForwardDrafter
from polydec.methods.speculative.drafters.nothing import NothingGuess
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.loop.walk import Walk
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw

END = frozenset({5})


def vocab(*words: str) -> TokenVocabulary:
    return TokenVocabulary(
        len(words) + 1,
        frozenset({len(words)}),
        words=ToyWords((*words, "$"), frozenset({len(words)})),
    )


V = vocab("a", "b", "ab", "ba", "c")


def texts(language, words, most):
    """Every text of so many tokens at most that the masks lead to, as strings; and the number of spellings."""
    out, open_ = [], [((), language.start_state())]
    while open_:
        tokens, state = open_.pop()
        for x in language.token_mask(state).nonzero()[:, 0].tolist():
            if x == len(words.of) - 1:
                out.append(words.decode(tokens))
            elif len(tokens) < most:
                open_.append(((*tokens, x), language.next_state(state, x)))
    return out


LANGUAGES = {
    "choice": (AnyOf(("ab", "aba", "c", "abab")), {"ab", "aba", "c", "abab"}),
    "regex": (Regex("(ab)+|c?"), {"", "ab", "abab", "ababab", "c"}),
    "lark": (LarkGrammar('start: "a" start "b" | "c"'), {"c", "acb", "aacbb"}),
    "lark with a regex": (LarkGrammar('start: A B?\nA: /ab*/\nB: "c"'), None),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_masks_lead_to_the_texts_and_to_no_others(name):
    constraint, want = LANGUAGES[name]
    found = texts(constraint.token_language(V, END), V.words, 5)
    if want is None:
        assert found and all(re.fullmatch("ab*c?", x) for x in found)
    else:
        assert {x for x in found if len(x) <= 6} == {x for x in want if len(x) <= 6}


def test_every_spelling_is_allowed():
    found = texts(AnyOf(("abab",)).token_language(V, END), V.words, 5)
    every = (
        s for n in range(1, 5) for s in itertools.product(("a", "b", "ab", "ba", "c"), repeat=n)
    )
    spellings = [s for s in every if "".join(s) == "abab"]
    assert (
        len(found)
        == len(spellings)
        == len(texts(Regex("abab").token_language(V, END), V.words, 5))
        == 5
    )


@pytest.mark.parametrize(
    "constraint", [c for c, _ in LANGUAGES.values()] + [SpanOf("abcab")], ids=str
)
def test_one_look_is_the_mask_and_steps_change_nothing(constraint):
    language = constraint.token_language(V, END)
    seen = [language.start_state()]
    for state in seen[:40]:
        mask = language.token_mask(state).clone()
        assert mask.dtype is torch.bool and mask.shape == (V.size,)
        assert [language.allows_token(state, x) for x in range(V.size)] == mask.tolist()
        for x in range(V.size):
            after = language.next_state(state, x)
            if not mask[x] or x in END:
                assert not language.token_mask(after).any(), (
                    "something is allowed behind what is not, or behind an end"
                )
            elif len(seen) < 40:
                seen.append(after)
        assert torch.equal(language.token_mask(state), mask)


def test_spans_are_runs_of_the_tokens():
    words = vocab("a", " a", " b", "c")
    tokens = (0, 2, 1)
    language = SpanOf("a b a").token_language(words, frozenset({4}))
    runs = {
        "".join(words.words.of[x] for x in tokens[i:j]) for i in range(3) for j in range(i + 1, 4)
    }
    assert set(texts(language, words.words, 5)) == runs | {
        x[1:] for x in runs if x.startswith(" a")
    }


@pytest.mark.parametrize(
    "call, says",
    [
        (
            lambda: Regex("ab(c").token_language(V, END),
            "regex is 'ab(c': unclosed group at character 2",
        ),
        (lambda: Regex("a{3,1}").token_language(V, END), "at character 1"),
        (lambda: Regex("x").token_language(V, END), "no text that this model's tokens can spell"),
        (lambda: Regex(""), "regex is ''"),
        (
            lambda: LarkGrammar('start: "a" b').token_language(V, END),
            'grammar: line 1, column 8: unknown name: "b"',
        ),
        (
            lambda: LarkGrammar('start: "a"\nb: (').token_language(V, END),
            "grammar: line 2, column 5",
        ),
        (
            lambda: LarkGrammar('start: "a" start').token_language(V, END),
            "derives no text that ends",
        ),
        (
            lambda: JsonSchema('{"type": '),
            "json_schema is not a JSON object: Expecting value: line 1 column 10",
        ),
        (lambda: JsonSchema("[1]"), "json_schema is not a JSON object: it is a list"),
        (
            lambda: JsonSchema('{"properties": {"a": {"type": 5}}}').token_language(V, END),
            "json_schema at #/properties/a: type must",
        ),
        (
            lambda: JsonSchema(
                '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'
            ).token_language(V, END),
            "no finite value",
        ),
        (
            lambda: JsonSchema('{"items": ' * 300 + "{}" + "}" * 300).token_language(V, END),
            "nested more than 200 deep",
        ),
        (lambda: AnyOf(()), "choice is "),
        (lambda: AnyOf(("a", "")), "choice[1] is ''"),
        (
            lambda: AnyOf(("ab", "az")).token_language(V, END),
            "choice[1] is 'az': no tokens of this model spell it",
        ),
        (
            lambda: constraint_kinds.constraint_of({"regex": "a", "choice": ["b"]}),
            "regex and choice are both given",
        ),
        (
            lambda: constraint_kinds.constraint_of({"choice": "ab"}),
            "choice is 'ab': it must be a list of texts",
        ),
        (lambda: constraint_kinds.constraint_of({"json_schema": 3}), "json_schema is 3"),
        (
            lambda: Regex("a").token_language(TokenVocabulary(3, frozenset({2})), frozenset({2})),
            "constraint cannot be kept",
        ),
    ],
)
def test_one_clear_sentence(call, says):
    with pytest.raises(ValueError) as error:
        call()
    assert (
        says in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) <= 300
    ), error.value


@pytest.mark.parametrize(
    "grammar, lost",
    [
        ('start: "a" start | "b"', set()),
        ('start: x\nx: "a" y\ny: x', {"start", "x", "y"}),
        ('start: "a" (start | "x")', set()),
        ("start: x*\nx: x x", {"x"}),
        ("start: x?\nx: x // no\n", {"x"}),
        ('start: a | b\na: "(" a ")"\nb: "c"\n  | b a', {"a"}),
        ('?start: e\ne: N | e "+" e\nN: /[0-9]+/', set()),
        ('start: "\\"" start', {"start"}),
        ("start: x~0..3\nx: x", {"x"}),
    ],
)
def test_rules_without_a_finite_text(grammar, lost):
    assert unproductive_rules(grammar) == lost


def test_schemas_of_which_a_value_is_finite():
    tree = {
        "type": "object",
        "properties": {"left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["left"],
    }
    letters = vocab(*'{}[]":, eflnrtiu\n')
    found = JsonSchema.of_schema(tree).token_language(
        letters, frozenset({len(letters.words.of) - 1})
    )
    state = found.start_state()
    for x in letters.words.encode('{"left": {"left": null}}', special=False):
        assert found.allows_token(state, x)
        state = found.next_state(state, x)
    assert found.allows_token(state, len(letters.words.of) - 1)


def test_what_is_forced_is_proposed_and_no_boundary_is_moved():
    plain = JumpForwardDrafter(V, AnyOf(("abab", "abac")).token_language(V, END))
    assert plain.forced_tokens(plain.language.start_state(), 9) == [
        2
    ]  # then "ba" would reach beyond "aba"
    template = JumpForwardDrafter(V, Regex("cc(a|b)").token_language(V, END))
    assert template.forced_tokens(template.language.start_state(), 9) == [4, 4]
    done = template.language
    state = done.next_state(done.next_state(done.next_state(done.start_state(), 4), 4), 0)
    assert template.forced_tokens(state, 9) == [5]  # nothing may follow: the end is forced
    assert template.forced_tokens(template.language.start_state(), 1) == [4]
    assert (
        JumpForwardDrafter(V, UnrestrictedLanguage(V.size)).forced_tokens(None, 9) == []
        and JumpForwardDrafter(V).forced_tokens(None, 9) == []
    )


@pytest.mark.parametrize("count, forced", [(3, 6), (64, 1), (65, 0), (90, 0)])
def test_where_very_many_tokens_may_come_none_is_forced(count, forced):
    """Of letters that must come all beginnings are allowed: the tokenizer's own spelling of them is proposed, up to 64."""
    letters = vocab(*("a" * n for n in range(1, count + 1)))
    language = Regex("a{" + str(count * 2 if count > 3 else 20) + "}b?").token_language
    drafter = JumpForwardDrafter(letters, language(letters, letters.eos))
    got = drafter.forced_tokens(drafter.language.start_state(), 9)
    assert (len(got) >= 1) == (forced > 0) and all(x == count - 1 for x in got[:forced])


class Spelled:
    """Words of these bytes, of which the longest that fits comes first; before: what it writes before every text."""

    def __init__(self, *pieces, before=()):
        self.pieces, self.before = (*pieces, None), before

    def encode(self, text, special=True):
        out, rest = list(self.before), text.encode()
        while rest:
            fits = [i for i, p in enumerate(self.pieces) if p and rest.startswith(p)]
            if not fits:
                raise RequestError("it cannot be spelled")
            out.append(max(fits, key=lambda i: len(self.pieces[i])))
            rest = rest[len(self.pieces[out[-1]]) :]
        return tuple(out)

    def decode(self, ids):
        return b"".join(self.pieces[i] or b"" for i in ids).decode(errors="replace")


def forced_by(words, language):
    size = len(words.pieces)
    known = TokenVocabulary(size, frozenset({size - 1}), words=words)
    found = language.token_language(known, known.eos)
    return JumpForwardDrafter(known, found).forced_tokens(found.start_state(), 9)


def test_bytes_that_end_inside_of_a_character_are_spelled_as_far_as_they_are_text():
    """Both answers begin with C3 A9 C3: the character is forced, its neighbour's first byte may be part of another token."""
    words = Spelled(b"\xc3\xa9", b"\xc3", b"\xa9", b"\xa8", b"x")
    assert forced_by(words, AnyOf(("\u00e9\u00e9", "\u00e9\u00e8"))) == [0]
    assert forced_by(words, AnyOf(("x\u00e9\u00e9", "x\u00e9\u00e8"))) == [4, 0]


def test_what_a_tokenizer_writes_before_a_text_is_never_forced():
    """Its spelling is taken where the language allows it, and begun anew behind a token that it would not have written."""
    pieces = (b"a", b"b", b"bb", b"c")
    assert forced_by(Spelled(*pieces), Regex("abbb(a|c)")) == [0, 2, 1]
    assert forced_by(Spelled(*pieces, before=(3,)), Regex("abbb(a|c)")) == [0]
    assert forced_by(Spelled(*pieces, before=(3, 1)), Regex("abbb(a|c)")) == [0]
    long = Spelled(b"a", b"b", b"ab", b"abab", b"c")
    assert forced_by(long, Regex("(ab){4}(a|c)")) == [3, 3]
    only = Spelled(b"aab", b"c")  # no other token begins so: it must come, whole
    assert forced_by(only, Regex("aa(b|c)")) == [0, 2]


def test_budgets_bound_what_is_forced_by_depth_and_by_nodes():
    drafter = JumpForwardDrafter(V, Regex("c{30}").token_language(V, END)).open_guess((0,), None)
    for depth, nodes, count in ((9, 3, 3), (3, 9, 3), (0, 9, 0), (9, 0, 0), (40, 40, 31)):
        draft = run_coroutines(
            [drafter.propose_draft(0, 1, DraftBudget(depth, nodes), Rng.of_choice(0))]
        )[0]
        assert draft.token[1:] == (*[4] * 30, 5)[:count]


def test_forked_guesses_go_their_own_ways():
    """Each forces what its own text leaves no choice about, whoever goes on first."""

    async def proposed(guess, root):
        return (await guess.propose_draft(root, 9, DraftBudget(9, 9), Rng.of_choice(0))).token[1:]

    def wrote(guess, *tokens):
        guess.learn_round(
            Draft.chain_draft(0, tokens[:-1]),
            None,
            Verdict(tuple(range(1, len(tokens))), tokens[-1]),
        )

    drafter = JumpForwardDrafter(V, Regex("c(a(ccc)|b(aa))").token_language(V, END))
    guess = drafter.open_guess((0,), None)
    wrote(guess, 4)
    twin = guess.fork_guess(None)
    wrote(guess, 0)
    wrote(twin, 1)
    third = twin.fork_guess(None)
    assert run_coroutines([proposed(guess, 0)])[0] == (4, 4, 4, 5)
    assert (
        run_coroutines([proposed(twin, 1)])[0]
        == run_coroutines([proposed(third, 1)])[0]
        == (0, 0, 5)
    )
    wrote(third, 0)
    assert run_coroutines([proposed(twin, 1)])[0] == (0, 0, 5) and run_coroutines(
        [proposed(third, 0)]
    )[0] == (0, 5)


def test_forced_tokens_beside_a_drafter_that_reads_the_prompt_follow_the_answer_alone():
    """The prompt is no part of what a language constrains, whoever else learns from it; without one nothing is forced."""

    class Reader(NothingGuess):
        """Learns from the prompt, and drafts nothing."""

        want = ScoreRequest(law=RowDetail.NOTHING, prompt=True)

        def open_guess(self, prompt, session):
            return self

        def learn_round(self, draft, scores, verdict):
            learned.append(verdict)

    learned, text = [], (4, 0, 4, 4, 4, 5)
    lm = CausalLaw(OrderTwoNetwork(3, V.size), V, chunk=2)
    for language, forced in (
        (Regex("c(a(ccc)|b(aa))").token_language(V, END), True),
        (None, False),
    ):
        drafter = FirstOfDrafter((JumpForwardDrafter(V, language), Reader()))
        walk = run_coroutines(
            [
                Walk.open_walk(
                    SpeculativeDecoder(lm, drafter, MatchVerifier(), FixedPolicy(4)), (4, 0, 1)
                )
            ]
        )[0]
        for at, token in enumerate(text):
            draft = run_coroutines([walk.next_round(Rng.of_choice(0), 9)])[0].draft
            assert (len(draft) > 1) == (forced and at != 1), (at, draft.token)
            walk.commit_round(run_coroutines([walk.score_given_tokens((token,))])[0])
        walk.close()
    assert [v.prompt for v in learned] == [True, *[False] * 6] * 2


def test_numbers_and_white_space_of_json_come_to_an_end():
    letters = vocab(*'{}[]":, 0123456789ab\n')
    end = len(letters.words.of) - 1
    found = JsonSchema.of_schema(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    ).token_language(letters, frozenset({end}))
    state = found.start_state()
    for x in letters.words.encode('{"a":  ', special=False)[:-1]:
        state = found.next_state(state, x)
    assert not found.allows_token(state, letters.words.of.index(" ")), (
        "white space may go on for ever"
    )
    assert json.loads('{"a": 1}') == {"a": 1}
