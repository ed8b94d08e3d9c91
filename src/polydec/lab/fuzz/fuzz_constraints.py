"""Random constraints: hostile schemas, grammars, expressions, choices and spans, for
`polydec.lab.fuzz.fuzz`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polydec.base.edge import error_sentence
from polydec.base.errors import PolydecError
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import constraint_kinds

Kind = Callable[[random.Random], Any]

VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 3, 200, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, -(2**63), 10**20, 10**400),
    *(0.1, 1.5, -0.0, 1e-7, 1e22, 1e300, 123456789012345678.0, float("inf"), float("nan")),
    *(
        "",
        "a",
        "[",
        "(a+)+$",
        "^[a-z]{1,9}$",
        "\ud800",
        "é🙂",
        "a" * 300,
        "date",
        "#",
        "#/$defs/a",
        "#/x",
        "#t",
        "u.json#/$defs/a~1b%25",
        "uuid4",
        '^[^"]*$',
        "\\u0061",
    ),
    *(None, True, False, [], {}, [1], ["a"], [["x"], "b"], {"a": 5}, "object", "integer", "x"),
)
KEYS = (
    *("type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *(
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "required",
        "minItems",
        "maxItems",
    ),
    *("uniqueItems", "minProperties", "maxProperties", "$ref", "$id", "default", "x-guidance", "x"),
    *(
        "dependentRequired",
        "minContains",
        "maxContains",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
    ),
    *("$recursiveRef", "unevaluatedProperties", "unevaluatedItems", "additionalItems"),
)
ONE = ("items", "not", "if", "then", "else", "contains", "additionalProperties", "propertyNames")
LIST = ("anyOf", "oneOf", "allOf", "prefixItems", "enum")
EACH = ("properties", "patternProperties", "$defs", "dependentSchemas", "dependencies")


def _some_schema(r: random.Random, depth: int = 0) -> Any:
    """Mostly keywords of the standard, with values that they may have and others."""
    # A value of any kind in the place of a schema, and an end to the nesting.
    if depth > 3 or r.random() < 0.05:
        return r.choice(VALUES)
    out = dict[str, Any]()
    if r.random() < 0.6:
        out["type"] = r.choice(("object", "array", "string", "integer", "number", "boolean"))
    for _ in range(r.choice((0, 1, 1, 2, 3))):
        match r.randrange(5):
            case 0 | 1:
                out[r.choice(KEYS)] = r.choice(VALUES)
            case 2:
                out[r.choice(ONE)] = _some_schema(r, depth + 1)
            case 3:
                out[r.choice(LIST)] = [_some_schema(r, depth + 1) for _ in range(r.randint(0, 3))]
            case _:
                # Names that are keywords elsewhere, and one that is empty.
                names = ("a", "b", "const", "é", "")
                out[r.choice(EACH)] = {
                    r.choice(names): _some_schema(r, depth + 1) for _ in range(r.randint(0, 3))
                }
    return out


def _schema(r: random.Random) -> Any:
    # A schema may come as an object or as JSON text.
    schema = _some_schema(r)
    if r.random() < 0.5:
        return schema
    return json.dumps(schema)


WORDS: Sequence[str] = (
    *(
        "start",
        "a",
        "b",
        "A",
        "B",
        ":",
        ":",
        "|",
        "\n",
        "\n",
        "(",
        ")",
        "[",
        "]",
        "?",
        "*",
        "+",
        "~",
        "3",
    ),
    *(
        '"x"',
        '"é"',
        '"',
        "'",
        "/a|b/",
        "/(a|b)*/",
        "/",
        "/[^a]{3}/",
        "&",
        "~ 0..3",
        "{3}",
        "{1,99999}",
    ),
    *(
        "<[10]>",
        "<|end|>",
        "<",
        "%json",
        '%json {"type": "integer"}',
        "%ignore",
        "%llguidance {}",
        "//",
    ),
    *("#", "\\", "\x00", "\ud800", "start: ", "start[lazy]: ", "%regex {}", "@", "$", ","),
)


def _grammar(r: random.Random) -> str:
    whole = 'start: a B? | "x" a\na: "(" a ")" | /[0-9]{1,3}/\nB: /a+/ & /[^b]*/\n'
    # A right grammar with one word changed comes far before it is found wrong.
    if r.random() < 0.4:  # a whole one with a word changed
        words = [*WORDS[:0], *whole.split(" ")]
        words[r.randrange(len(words))] = r.choice(WORDS)
        return " ".join(words)
    if r.random() < 0.1:  # rules, terminals or brackets inside one another
        n = r.choice((10, 500, 3000))
        form = r.choice(("r{}: r{}\n", 'R{}: "b" R{}\n'))
        return "start: " + form[:1] + "0\n" + "".join(form.format(i, i + 1) for i in range(n))
    return "start: " + " ".join(r.choice(WORDS) for _ in range(r.randint(0, 12)))


def _regex(r: random.Random) -> str:
    # Pieces of expressions that compile, and pieces that many dialects treat in different ways.
    parts = (
        "a",
        "b",
        ".",
        "é",
        "[a-z]",
        "[^a]",
        "(",
        ")",
        "|",
        "*",
        "+",
        "?",
        "{3}",
        "{9999}",
        "{1,",
        "\\",
    )
    more = (
        "\\d",
        "\\b",
        "(?i)",
        "(?=a)",
        "^",
        "$",
        "/",
        "\n",
        '"',
        "\x00",
        "\ud800",
        "(a|b)*",
        "\\p{L}",
    )
    # Parts are joined blindly: most expressions are broken, which is what is tested.
    return "".join(r.choice((*parts, *more)) for _ in range(r.randint(0, 12)))


def _choice(r: random.Random) -> Any:
    strings = ("a", "ab", "é🙂", "", "\ud800", "\x00", 5, None, "a" * 5000)
    if r.random() < 0.9:
        return [r.choice(strings) for _ in range(r.randint(0, 4))]
    return r.choice(VALUES)


def _span(r: random.Random) -> Any:
    return r.choice(("The old river", "é🙂 naïve", "\ud800", "", "\x00", "a" * 5000, 5))


def _triplets(r: random.Random) -> Any:
    return r.choice(
        ("box", "box,mask", " depth ,", "boxes", "", ["point"], ["box", 5], 5, "\ud800")
    )


KINDS: Mapping[str, Kind] = {
    "json_schema": _schema,
    "grammar": _grammar,
    "regex": _regex,
    "choice": _choice,
    "span_of": _span,
    "triplets": _triplets,
}


def random_constraint_case(
    r: random.Random, vocab: TokenVocabulary
) -> tuple[str, Callable[[], str]]:
    """Draw a constraint of any kind, right or hostile.

    Args:
        r: Draws the constraint.
        vocab: Vocabulary of its language.

    Returns:
        The constraint, as text; and a function that compiles it, walks some steps of its language,
        and says what is wrong, if anything.
    """
    kind = r.choice(tuple(KINDS))
    value, seed = KINDS[kind](r), r.random()

    def check_case() -> str:
        try:
            constraint = constraint_kinds.constraint_of({kind: value})
            if constraint is None:
                language = None
            else:
                language = constraint.token_language(vocab, vocab.eos)
            if language is None:
                return ""
            return _walked(language, vocab, random.Random(seed))
        except PolydecError as error:
            # A refusal is fine, if it is one clean sentence.
            if error_sentence(error) == str(error):
                return ""
            return f"no sentence: {error!r}"

    return f"{kind} {value!r}", check_case


def _walked(language: Any, vocab: TokenVocabulary, r: random.Random) -> str:
    """A few steps along what is allowed: one look is the mask, at some tokens."""
    state = language.start_state()
    for _ in range(6):
        allowed = language.token_mask(state).nonzero()[:, 0].tolist()
        # Some tokens at random, some of the allowed ones, and the ends: the two ways to ask must
        # agree.
        for x in (*r.sample(range(vocab.size), 20), *allowed[:20], *vocab.eos):
            if language.allows_token(state, x) != (x in allowed):
                return f"the mask {'allows' if x in allowed else 'refuses'} token {x}, and one look does not"
        on = [x for x in allowed if x not in vocab.eos]
        if not on:
            return ""
        # It must come to an end without an error; what it gives is not compared.
        language.forced_bytes(state)
        state = language.next_state(state, r.choice(on))
    return ""
