"""Constraints come from strangers: none brings this process down, and one sentence says what is wrong with it."""

import json
import os
import random
import re
import signal
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polydec.base.subprocess_worker import SubprocessLimits, SubprocessWorker
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import ToyWords
from polydec.laws.constraints import constraint_kinds, guidance, pieces
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.bounded import WIDEST, restrict_number_bounds
from polydec.laws.constraints.endless import unproductive_rules
from polydec.laws.constraints.json_schema import JsonSchema
from polydec.laws.constraints.lark import LarkGrammar
from polydec.laws.constraints.regex import Regex
from polydec.laws.constraints.span_of import SpanOf

SIGNS = (*'{}[]":,-+.$ \n0123456789', *"abcdefghijklmnopqrstuvwxyz")
VOCAB = TokenVocabulary(
    len(SIGNS) + 1, frozenset({len(SIGNS)}), words=ToyWords((*SIGNS, "$"), frozenset({len(SIGNS)}))
)
END = len(SIGNS)


def accepts(language, text):
    state = language.start_state()
    for sign in text:
        if not language.allows_token(state, SIGNS.index(sign)):
            return False
        state = language.next_state(state, SIGNS.index(sign))
    return language.allows_token(state, END)


def refusal(**given):
    """What is said of a constraint that must be refused, which must be a sentence."""
    with pytest.raises(ValueError) as error:
        constraint_kinds.constraint_of(given).token_language(VOCAB, VOCAB.eos)
    said = str(error.value)
    assert said.isprintable() and len(said) <= 300
    return said


def chain(rules, form="r{}: r{}\n"):
    letter = form[0]
    body = "".join(form.format(i, i + 1) for i in range(rules))
    return f'start: {letter}0\n{body}{letter}{rules}: "a"'


def worker(seconds=5.0, memory=guidance.MEMORY):
    script = Path(guidance.__file__).with_name("trial.py")
    return SubprocessWorker(
        script, SubprocessLimits(memory, seconds, guidance.STACK), "a constraint"
    )


@pytest.fixture
def quick(monkeypatch):
    """A worker that computes for a second at most."""
    made = worker(1.0)
    monkeypatch.setattr(guidance, "_WORKER", made)
    monkeypatch.setattr(guidance, "_COMPILED", guidance._CompiledConstraintCache())
    yield made
    made.stop()


@pytest.mark.parametrize(
    "schema",
    [
        {"const": -(2**63)},
        {"enum": [1, -(2**63)]},
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
        {"const": 2**53 + 1},
        {"const": 2**63},
        {"type": "integer", "minimum": 10**20},
        {"type": "integer", "exclusiveMinimum": 2**53 + 1},
        {"type": "integer", "maximum": -(2**53) - 1},
        {"not": {"maximum": 2**53 + 1}},
        {"multipleOf": 2**53 + 1},
        {"$defs": {"x": {"const": [{"y": 2**53 + 1}]}}, "$ref": "#/$defs/x"},
        {"x": {"y": {"enum": [2**53 + 1]}}, "$ref": "#/x/y"},
        {"properties": {"const": {"const": 2**53 + 1}}},
        {"const": 0.30000000000000004},
        {"const": 10**400},
    ],
    ids=lambda x: json.dumps(x)[:60],
)
def test_numbers_that_would_be_rounded_are_refused(schema):
    assert re.search(
        r"json_schema at #.*: \w+ holds -?[0-9.e]+: numbers are kept to exactly",
        refusal(json_schema=schema),
    )


@pytest.mark.parametrize(
    "value",
    [0, 2**53, -(2**53), 2**53 - 1, 10**17, 10**20, 0.1, 1e-7, 9007199254740991.0, 123456789.125],
)
def test_numbers_that_are_taken_come_out_as_they_are(value):
    language = JsonSchema.of_schema({"const": value}).token_language(VOCAB, VOCAB.eos)
    written = language.forced_bytes(language.start_state()).decode()
    assert json.loads(written) == value and accepts(language, written)


def test_what_stands_for_any_integer_of_64_bits_is_drawn_in():
    wide = {"type": "integer", "minimum": -(2**63), "maximum": 2**64, "default": 2**64}
    assert restrict_number_bounds(wide) == {**wide, "minimum": -WIDEST, "maximum": WIDEST}
    assert restrict_number_bounds({"exclusiveMaximum": 10**17})["exclusiveMaximum"] == 10**17 - 400
    language = JsonSchema.of_schema(wide).token_language(VOCAB, VOCAB.eos)
    assert accepts(language, str(WIDEST)) and not accepts(language, str(2**63))


def test_drawn_in_bounds_are_exact_and_close():
    r = random.Random(0)
    for _ in range(2000):
        value = r.randint(2**53 + 1, WIDEST)
        for key, sign in (("maximum", 1), ("minimum", -1), ("exclusiveMaximum", 1)):
            found = sign * restrict_number_bounds({key: sign * value})[key]
            assert found <= value - key.startswith("exclusive") and value - found <= 2 * 10**6
            digits = repr(float(found)).partition("e")[0].replace(".", "").rstrip("0")
            assert float(found) == found and digits == str(found).rstrip("0")


@pytest.mark.parametrize(
    "schema, says",
    [
        (
            {"type": "array", "items": {"not": {"required": [["x"], "b"]}}},
            "#/items/not: required holds ['x']",
        ),
        ({"properties": {"k": 5}, "required": [[-1]]}, "#: required holds [-1]"),
        ({"properties": {"k": 5}}, "schema must be an object or boolean"),
        ({"const": 1, "contains": {}, "minItems": "x", "type": "array"}, "json_schema at #"),
        ({"uniqueItems": True, "maxItems": "x"}, "json_schema at #"),
        ({"type": [["a"]], "not": {"type": [["b"]]}}, "json_schema at #"),
        ({"propertyNames": {"pattern": ["x"]}}, "json_schema at #"),
    ],
    ids=lambda x: json.dumps(x)[:50],
)
def test_schemas_of_wrong_types(schema, says):
    assert says in refusal(json_schema=schema)


CHAINED = {
    "$ref": "#/$defs/0",
    "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(9000)},
}
BOTH = "start: T\nT: " + " & ".join(f"/([^a]{{{i + 2}}})*/" for i in range(39))


@pytest.mark.parametrize(
    "given, says",
    [
        ({"grammar": chain(3000)}, "nested too deeply"),
        ({"grammar": chain(10_000, 'R{}: "b" R{}\n')}, "nested too deeply"),
        ({"json_schema": CHAINED}, "nested too deeply"),
        ({"grammar": BOTH}, "line 2: more than 8 expressions"),
        ({"grammar": 'start: "a" <[10]>'}, "line 1: a token is named"),
        ({"grammar": 'start: x\nx: <|end|>'}, "line 2: a token is named"),
        ({"grammar": 'start: "\ud800"'}, "half a character"),
        ({"regex": "a\ud800"}, "half a character"),
        ({"choice": ["a", "\ud800"]}, r"choice\[1\] holds half a character"),
        ({"span_of": "a\ud800"}, "half a character"),
        ({"json_schema": '{"const": "\ud800"}'}, "half a character"),
        ({"json_schema": {"const": "\ud800"}}, "json_schema"),
    ],
    ids=lambda x: str(x)[:40],
)  # fmt: skip
def test_what_would_crash_or_answer_something_else(given, says):
    assert re.search(says, refusal(**given))
    assert accepts(Regex("a+").token_language(VOCAB, VOCAB.eos), "aa"), "the next one is compiled"


def test_what_looks_like_a_name_of_a_token_is_text_in_quotes():
    words = ToyWords(("<", "[", "1", "]", "$"), frozenset({4}))
    vocab = TokenVocabulary(5, frozenset({4}), words=words)
    language = LarkGrammar('start: "<[1]" />/? // <[1]>\n').token_language(vocab, vocab.eos)
    assert language.forced_bytes(language.start_state()) == b"<[1]"


LOOPS = {
    "an expression over values": {
        "json_schema": {"enum": ["a" * 40 + "!"], "pattern": "^(a+)+$", "minLength": 1}
    },
    "references that branch": {
        "json_schema": {
            "not": {"$ref": "#/$defs/0"},
            "$defs": {
                "25": {"minimum": 1},
                **{
                    str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}, {"$ref": f"#/$defs/{i + 1}"}]}
                    for i in range(25)
                },
            },
        }
    },
    "intersected expressions": {
        "grammar": "start: C\nA: /([^a]{2})*/ & /([^b]{3})*/ & /([^c]{4})*/ & /([^d]{5})*/ & /([^e]{6})*/ & /([^f]{7})*/\n"
        "B: /([^g]{8})*/ & /([^h]{9})*/ & /([^i]{10})*/ & /([^j]{11})*/ & /([^k]{13})*/ & /([^l]{17})*/\nC: A & B"
    },
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_computes_for_hours_is_given_up(quick, name):
    assert "more than 1 seconds" in refusal(**LOOPS[name]), name
    assert accepts(Regex("a+").token_language(VOCAB, VOCAB.eos), "aa")


def test_what_takes_gigabytes_is_given_up(monkeypatch):
    small = worker(memory=64 << 20)
    monkeypatch.setattr(guidance, "_WORKER", small)
    monkeypatch.setattr(guidance, "_COMPILED", guidance._CompiledConstraintCache())
    try:
        assert "memory" in refusal(**LOOPS["intersected expressions"])
    finally:
        small.stop()


def test_a_worker_starts_with_the_first_constraint_that_needs_it_and_anew_where_it_was_killed(
    quick,
):
    AnyOf(("ab",)).token_language(VOCAB, VOCAB.eos)
    SpanOf("ab").token_language(VOCAB, VOCAB.eos)
    assert quick._process is None
    Regex("b+").token_language(VOCAB, VOCAB.eos)
    first = quick._process
    os.kill(first.pid, signal.SIGTERM)
    first.wait()
    assert (
        accepts(Regex("c+").token_language(VOCAB, VOCAB.eos), "cc")
        and quick._process.pid != first.pid
    )


def test_what_became_of_a_constraint_is_remembered(quick, monkeypatch):
    asked_for = []
    real = quick.ask_worker
    monkeypatch.setattr(quick, "ask_worker", lambda line: asked_for.append(line) or real(line))
    for _ in range(3):
        Regex("d+").token_language(VOCAB, VOCAB.eos)
        refusal(grammar=chain(3000))
        refusal(regex="(")
    assert (
        len([line for line in asked_for if b'"kind"' in line]) <= 5
    )  # two of them before the tokens are known


def test_the_text_of_a_constraint_is_not_kept(quick):
    refusal(regex="(" * 60_000)
    ((key, found),) = guidance._COMPILED._known.items()
    assert guidance._digest("\ud800"), "half a character is refused later, by what holds it"
    assert found.wrong and sum(len(x) for x in key if isinstance(x, (str, bytes))) < 500


def test_what_is_remembered_is_bounded(monkeypatch):
    kept = guidance._CompiledConstraintCache()
    for i in range(guidance.KEPT + 9):
        kept.find_or_compile(i, lambda: guidance._CompiledConstraint(held=1))
    assert len(kept._known) == guidance.KEPT
    kept.find_or_compile("large", lambda: guidance._CompiledConstraint(held=guidance.HELD))
    assert list(kept._known) == ["large"]


def test_the_worker_knows_how_much_a_grammar_holds():
    few, many = (
        guidance._compiled("grammar", text, "grammar", guidance._vocabulary(*_spelled())).held
        for text in (chain(2), chain(300))
    )
    assert few < many or few == many == 0  # 0: this C library does not tell


def _spelled():
    from polydec.laws.constraints import pieces

    return pieces.token_byte_pieces(VOCAB, VOCAB.eos), tuple(VOCAB.eos)


def test_rules_without_text_are_found_in_one_look_at_each():
    """The order in which going round all rules again and again takes longest."""
    n = 20_000
    rules = "".join(f'r{i}: r{i + 1} | "x" lost\n' for i in range(n))
    assert unproductive_rules(f'start: r0\n{rules}r{n}: "a"\nlost: lost') == {"lost"}
    assert unproductive_rules('start: "' + '\\"' * 200_000) == {"start"} - {"start"}


def test_spans_of_a_long_text_take_a_few_bytes_a_token():
    """Three hundred for each of 300,000 tokens were 90 MB."""
    text = "abcde " * 10_000
    tracemalloc.start()
    try:
        language = SpanOf(text).token_language(VOCAB, VOCAB.eos)
        before, state = tracemalloc.get_traced_memory()[0], language.start_state()
        for sign in "abc":
            assert language.token_mask(state)[SIGNS.index(sign)]
            state = language.next_state(state, SIGNS.index(sign))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert before < 40 * len(text) and peak < 100 * len(text)
    assert language.allowed_followers(state) == [SIGNS.index("d")]


def test_a_span_begins_and_ends_between_characters():
    halves = ("a", b"\xc3", b"\xa9", "b", "$")
    words = _Bytes(tuple(x.encode() if isinstance(x, str) else x for x in halves[:-1]))
    vocab = TokenVocabulary(5, frozenset({4}), words=words)
    language = SpanOf("aéb").token_language(vocab, vocab.eos)
    found, open_ = set(), [((), language.start_state())]
    while open_:
        tokens, state = open_.pop()
        for x in language.token_mask(state).nonzero()[:, 0].tolist():
            assert language.allows_token(state, x)
            if x == 4:
                found.add(b"".join(words.pieces[t] for t in tokens).decode())
            else:
                open_.append(((*tokens, x), language.next_state(state, x)))
    assert found == {"a", "aé", "aéb", "é", "éb", "b"}


class _Bytes:
    """Tokens of one byte each, as far as they are known."""

    def __init__(self, known):
        self.pieces = (*known, None)

    def encode(self, text, special=True):
        return tuple(self.pieces.index(bytes((x,))) for x in text.encode())

    def decode(self, ids):
        return b"".join(self.pieces[x] or b"" for x in ids).decode("utf-8", "replace")


def test_long_choices_are_bounded_and_looked_through_once(monkeypatch):
    """To find all pieces again takes as long as there are pieces."""
    with pytest.raises(ValueError, match="all texts together may have 200000"):
        AnyOf(("a" * 200_001,))
    asked, by_bytes = [], pieces.by_bytes
    monkeypatch.setattr(pieces, "by_bytes", lambda given: asked.append(1) or by_bytes(given))
    found = AnyOf(tuple("ab" * (1 + i) for i in range(50))).token_language(VOCAB, VOCAB.eos)
    assert len(asked) == 1
    assert next(found._walk(found.start_state()))[0] == (
        SIGNS.index("a"),
    )  # the shortest first: who needs one looks no further


@pytest.mark.parametrize("words", [("a", "b"), ("ab", "abab")], ids=["bytes", "no single bytes"])
def test_a_long_choice_takes_about_its_own_bytes(words):
    """A node for each byte took 250 of them, and looking through 200,000 took four seconds."""
    vocab = TokenVocabulary(3, frozenset({2}), words=_Bytes(tuple(x.encode() for x in words)))
    text = "ab" * 10_000
    tracemalloc.start()
    try:
        language = AnyOf((text,)).token_language(vocab, vocab.eos)
        state = language.start_state()
        for _ in range(100):
            state = language.next_state(state, int(language.token_mask(state).nonzero()[0]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(text)
    assert len(text) // 2 < len(language.forced_bytes(state)) < len(text)


def test_choices_are_what_they_are_by_definition():
    r = random.Random(3)
    for _ in range(60):
        known = {"".join(r.choices("abc", k=r.randint(1, 3))) for _ in range(r.randint(2, 6))}
        words = (*(x.encode() for x in sorted(known)), b"ab")  # one of them perhaps twice
        size = len(words) + 1
        vocab = TokenVocabulary(size, frozenset({size - 1}), words=_Bytes(words))
        texts = {"".join(r.choices("abc", k=r.randint(1, 7))) for _ in range(r.randint(1, 5))}
        texts = {x.encode() for x in texts if spells(words, x.encode())}
        if not texts:
            continue
        language = AnyOf(tuple(x.decode() for x in texts)).token_language(vocab, vocab.eos)
        open_ = [(b"", language.start_state())]
        while open_:
            text, state = open_.pop()
            allowed = [
                any(t.startswith(text + w) and spells(words, t[len(text + w) :]) for t in texts)
                for w in words
            ]
            assert language.token_mask(state).tolist() == [*allowed, text in texts]
            behind = [t[len(text) :] for t in texts if t.startswith(text)]
            shared = language.forced_bytes(state)
            assert all(x.startswith(shared) for x in behind)
            assert shared in behind or len({x[: len(shared) + 1] for x in behind}) > 1
            open_ += [
                (text + w, language.next_state(state, x)) for x, w in enumerate(words) if allowed[x]
            ]


def spells(words, text):
    return not text or any(text.startswith(w) and spells(words, text[len(w) :]) for w in words)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_worker_gives_back_what_a_request_took(tmp_path):
    script = tmp_path / "grows.py"
    script.write_text("""
from pathlib import Path
kept = []
def answer(request):
    pieces = [bytearray(2000) for _ in range(request["pieces"])]
    kept.extend(pieces[::1000])
    return {"pages": int(Path("/proc/self/statm").read_text().split()[1])}
""")
    worker = SubprocessWorker(script, SubprocessLimits(1 << 30, 20.0), "a test")
    try:
        began, grown, after = (
            worker.ask_worker(b'{"pieces": %d}\n' % n)["pages"] for n in (0, 50_000, 0)
        )
    finally:
        worker.stop()
    assert grown - began > 20_000 and after - began < 5_000


class OneAtATime:
    """Refuses a second caller while a first is inside, as the library does."""

    def __init__(self):
        self.inside = False

    def _answer(self, answer):
        if self.inside:
            raise RuntimeError("Already borrowed")
        self.inside = True
        time.sleep(0.002)  # other threads run meanwhile
        self.inside = False
        return answer

    def is_accepting(self):
        return self._answer(False)

    def validate_tokens(self, tokens):
        return self._answer(len(tokens))

    def compute_ff_bytes(self):
        return self._answer(b"a")

    def compute_bitmask(self):
        return self._answer(bytes([1]))

    def get_error(self):
        return ""

    def consume_token(self, token):
        return self._answer(True)

    def deep_copy(self):
        return self._answer(OneAtATime())


def test_requests_that_share_a_grammar_wait_for_each_other():
    """One grammar is remembered for all: planning one request while another decodes raised "Already borrowed"."""
    root = guidance.GrammarState(OneAtATime())
    asks = [
        lambda: root.forced_bytes() == b"a",
        lambda: root.token_mask((1,), 2).tolist() == [True, False],
        lambda: root.allows_token(0),
        lambda: not root.state_after(0).dead,
        lambda: not root.may_end(),
    ]
    with ThreadPoolExecutor(5) as pool:
        for _ in range(10):
            assert all(pool.map(lambda ask: ask(), asks))
