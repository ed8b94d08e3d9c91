"""Random JSON schemas with random values, judged by `jsonschema`: `python -m
polydec.lab.fuzz.judged_schemas --count 1000`.

A schema is refused with a sentence, or what its grammar allows is valid and what is valid is
allowed: values of a pool in any order of their names, texts that are drawn from the grammar itself,
names spelled by numbers, names that stand twice. What an object that names its properties leaves
out besides (see `closed`) need not be allowed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations, product
from typing import Any

from polydec.base.edge import error_sentence
from polydec.base.errors import PolydecError
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints.anchors import ReferenceResolver
from polydec.laws.constraints.bounded import restrict_number_bounds
from polydec.laws.constraints.closed import close_schema_objects
from polydec.laws.constraints.json_schema import JsonSchema

NAMES = ("a", "b", "ab", "c", "a b", "é", 'q"', "back\\slash", "p/q~r%")
TEXTS = (*NAMES, "", "aa", "2024-02-29", "2023-02-29", "1.2.3.4", "::1", "aab", "ba")
NUMBERS = (0, 1, 2, 3, -1, 4, 6, 10, 2.5, 0.5, 1.5, -3)
PATTERNS = ("^a", "b$", "^[ab]*$", "a|c", "^.{2}$", "^x-", "^[^a]+$")
FORMATS = ("date", "ipv4", "ipv6", "uuid", "of-no-standard")
"""Those that the judge knows."""
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
DRAWN = 4
"""Texts that are drawn from each grammar."""


def some_value(r: random.Random, depth: int = 0) -> Any:
    """Draw a value that some schema may allow.

    Args:
        r: Draws it.
        depth: Lists and objects around it. From 2 on it is a plain value.

    Returns:
        A JSON value.
    """
    kind = r.randrange(7 if depth < 2 else 5)
    if kind == 0:
        return r.choice((None, True, False))
    if kind <= 2:
        return r.choice(NUMBERS)
    if kind <= 4:
        return r.choice(TEXTS)
    if kind == 5:
        return [some_value(r, depth + 1) for _ in range(r.randrange(4))]
    return {r.choice(NAMES): some_value(r, depth + 1) for _ in range(r.randrange(4))}


def some_schema(r: random.Random) -> dict[str, Any]:
    """A schema that keeps to the standard, with definitions that are referred to in several ways."""
    out = _part(r, 0)
    if isinstance(out, dict):
        schema = out
    else:
        schema = {"allOf": [out]}
    return {
        **schema,
        "$defs": {
            "t": {"$anchor": "t", **_mapping(_part(r, 2))},
            "p/q~r%": _part(r, 2),
            "u": {"$id": "u.json", **_mapping(_part(r, 2)), "$defs": {"in": _part(r, 3)}},
            "d": {"$dynamicAnchor": "d", **_mapping(_part(r, 2))},
        },
    }


REFERENCES = (
    *({"$ref": "#t"}, {"$ref": "#/$defs/t"}, {"$ref": "#/$defs/p~1q~0r%25"}, {"$ref": "u.json"}),
    *({"$ref": "u.json#/$defs/in"}, {"$dynamicRef": "#d"}, {"$ref": "#d"}),
)


def _mapping(schema: Any) -> dict[str, Any]:
    if isinstance(schema, dict):
        return schema
    return {}


def _part(r: random.Random, depth: int) -> Any:
    if depth > 3 or r.random() < 0.04:
        return r.choice((True, False, {}, {"type": r.choice(TYPES)}))
    # References only near the top: deeper ones would make most schemas endless.
    if r.random() < 0.08 and depth < 2:
        return dict(r.choice(REFERENCES))
    out = dict[str, Any]()
    # Groups of keywords of one kind, so that most schemas can be met by some value.
    for _ in range(r.choice((1, 1, 1, 2, 2, 3))):
        out |= r.choice(_GROUPS)(r, depth + 1)
    return out


def _typed(r: random.Random, depth: int) -> dict[str, Any]:
    return {"type": r.choice(TYPES) if r.random() < 0.7 else r.sample(TYPES, 2)}


def _listed(r: random.Random, depth: int) -> dict[str, Any]:
    if r.random() < 0.4:
        return {"const": some_value(r, 1)}
    if r.random() < 0.3:
        return {"enum": [True, False]}
    return {"enum": [some_value(r, 1) for _ in range(r.randint(1, 4))]}


def _numbers(r: random.Random, depth: int) -> dict[str, Any]:
    out = {
        r.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")): r.choice(NUMBERS)
    }
    return out | ({"multipleOf": r.choice((2, 3, 0.5))} if r.random() < 0.3 else {})


def _texts(r: random.Random, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "string"} if r.random() < 0.5 else {}
    match r.randrange(4):
        case 0:
            return {**out, "minLength": r.randrange(3)}
        case 1:
            return {**out, "maxLength": r.randrange(4)}
        case 2:
            return {**out, "pattern": r.choice(PATTERNS)}
        case _:
            return {**out, "format": r.choice(FORMATS)}


def _arrays(r: random.Random, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "array"} if r.random() < 0.6 else {}
    if r.random() < 0.6:
        out["items"] = _part(r, depth)
    if r.random() < 0.25:
        out["prefixItems"] = [_part(r, depth) for _ in range(r.randint(1, 2))]
    if r.random() < 0.25:
        out["uniqueItems"] = True
    if r.random() < 0.2:
        out["contains"] = _part(r, depth)
        out |= {x: r.randrange(3) for x in ("minContains", "maxContains") if r.random() < 0.3}
    return out | {x: r.randrange(4) for x in ("minItems", "maxItems") if r.random() < 0.3}


def _objects(r: random.Random, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "object"} if r.random() < 0.6 else {}
    if r.random() < 0.7:
        out["properties"] = {x: _part(r, depth) for x in r.sample(NAMES, r.randint(1, 3))}
    if r.random() < 0.4:
        out["required"] = r.sample(NAMES, r.randint(1, 2))
    if r.random() < 0.5:
        out["additionalProperties"] = r.choice((True, False, _part(r, depth)))
    if r.random() < 0.2:
        out["patternProperties"] = {r.choice(PATTERNS): _part(r, depth)}
    if r.random() < 0.2:
        out["propertyNames"] = r.choice(
            (
                {"type": "string"},
                {"enum": r.sample(NAMES, 2)},
                {"pattern": r.choice(PATTERNS)},
                {"maxLength": 2},
                {"not": {"const": r.choice(NAMES)}},
                _part(r, depth),
            )
        )
    return out | {
        x: r.randrange(3) for x in ("minProperties", "maxProperties") if r.random() < 0.12
    }


def _joined(r: random.Random, depth: int) -> dict[str, Any]:
    key = r.choice(("anyOf", "oneOf", "allOf", "oneOf"))
    return {key: [_part(r, depth) for _ in range(r.randint(1, 3))]}


def _turned(r: random.Random, depth: int) -> dict[str, Any]:
    return {"not": _part(r, depth)}


def _chosen(r: random.Random, depth: int) -> dict[str, Any]:
    return {
        "if": r.choice(
            (
                {"properties": {r.choice(NAMES): {"const": r.choice((True, "a", 1))}}},
                {"properties": {"a": {"enum": ["a", "b"]}}, "required": ["a"]},
                _part(r, depth),
            )
        ),
        **{x: _part(r, depth) for x in ("then", "else") if r.random() < 0.7},
    }


def _dependent(r: random.Random, depth: int) -> dict[str, Any]:
    if r.random() < 0.5:
        return {"dependentRequired": {r.choice(NAMES): r.sample(NAMES, r.randint(1, 2))}}
    return {"dependentSchemas": {r.choice(NAMES): _part(r, depth)}}


_GROUPS: Sequence[Callable[[random.Random, int], dict[str, Any]]] = (
    *(_typed, _typed, _listed, _listed, _numbers, _texts, _arrays, _objects, _objects),
    *(_joined, _turned, _chosen, _dependent),
)


@dataclass
class SchemaVerdict:
    """What was found of one schema.

    Attributes:
        refused: What was said of the schema; empty: it was not refused.
        wrong: What is allowed or missing against the judge, each in words.
        valid: Values of the pool that the judge allows.
        invalid: Values of the pool that it does not allow.
    """

    refused: str = ""
    wrong: list[str] = field(default_factory=list[str])
    valid: int = 0
    invalid: int = 0


def judge_schema(
    schema: Mapping[str, Any], r: random.Random, vocab: TokenVocabulary, looks: int = 12
) -> SchemaVerdict:
    """Compare the grammar of a schema with the judge, value by value.

    Args:
        schema: A JSON schema.
        r: Draws values and texts.
        vocab: Vocabulary in which each single byte is a token.
        looks: Values of the pool. Default 12.

    Returns:
        The verdict.
    """
    from jsonschema import Draft202012Validator

    out = SchemaVerdict()
    try:
        language = JsonSchema.of_schema(schema).token_language(vocab, vocab.eos)
    except PolydecError as error:
        out.refused = str(error)
        if error_sentence(error) != str(error):
            out.wrong.append(f"no sentence: {error!r}")
        return out
    checker = Draft202012Validator.FORMAT_CHECKER
    # The judge of what must not be allowed: the schema as it stands.
    valid = Draft202012Validator(schema, format_checker=checker).is_valid
    # What must be allowed: the schema without what the grammar leaves out on purpose, namely
    # numbers out of bounds and names that an object does not list.
    within = restrict_number_bounds(schema)
    shut = close_schema_objects(within, ReferenceResolver(within).follow_reference)
    expected = Draft202012Validator(shut, format_checker=checker).is_valid
    reader = _LanguageByteReader(language, vocab)
    for value in _pool(schema, r, looks):
        ok = valid(value)
        out.valid = out.valid + ok
        out.invalid = out.invalid + (not ok)
        # A grammar may ask for names in one order: the value counts as allowed if any order is.
        texts = list(islice(spelled_orders(value), 400))
        allowed = any(map(reader.reads_text, texts))
        if allowed and not ok:
            out.wrong.append(f"allows {value!r}")
        if ok and not allowed and expected(value):
            out.wrong.append(f"misses {value!r}")
        # Other spellings of a name may get around what a schema says of it.
        for text in _spelled(texts[0], value):
            if reader.reads_text(text) and not valid(json.loads(text)):
                out.wrong.append(f"allows the text {text}")
    # From the other side: what the grammar itself writes must be valid.
    for _ in range(DRAWN):
        text = reader.draw_text(r)
        if text and "Infinity" not in json.dumps(json.loads(text)) and not valid(json.loads(text)):
            out.wrong.append(f"draws {text}")
    return out


def _pool(schema: Any, r: random.Random, count: int) -> Iterator[Any]:
    """Values, some of them made of what a schema lists."""
    listed = list(_constants(schema))
    for _ in range(count):
        value = some_value(r)
        if listed and r.random() < 0.3:
            value = r.choice(listed)
        if isinstance(value, dict) and listed and r.random() < 0.5:
            value = {**value, r.choice(NAMES): r.choice(listed)}
        yield value


def _constants(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for x in value:
            yield from _constants(x)
    elif isinstance(value, Mapping):
        for key, x in value.items():
            if key == "const":
                yield x
            elif key == "enum":
                yield from x
            else:
                yield from _constants(x)


def spelled_orders(value: Any) -> Iterator[str]:
    """Write a value as JSON, its names in all orders.

    Args:
        value: A JSON value.

    Yields:
        Texts; of the parts of a list or an object up to six of each.
    """
    if isinstance(value, list):
        for parts in product(*(list(islice(spelled_orders(x), 6)) for x in value)):
            yield f"[{','.join(parts)}]"
    elif isinstance(value, dict):
        for names in permutations(value):
            for parts in product(*(list(islice(spelled_orders(value[x]), 6)) for x in names)):
                pairs = zip(names, parts, strict=True)
                yield "{" + ",".join(f"{_dumped(name)}:{part}" for name, part in pairs) + "}"
    else:
        yield _dumped(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _spelled(text: str, value: Any) -> Iterator[str]:
    """Texts in which a name is spelled by numbers, or stands twice."""
    if isinstance(value, dict):
        for name in value:
            numbers = "".join(f"\\u{ord(sign):04x}" for sign in name)
            yield text.replace(f"{_dumped(name)}:", f'"{numbers}":', 1)
            yield f'{text[:-1]},{_dumped(name)}:"x"}}'
            yield f'{text[:-1]},"{numbers}":"x"}}'


@dataclass
class _LanguageByteReader:
    """A language byte by byte."""

    language: Any
    vocab: TokenVocabulary

    def __post_init__(self) -> None:
        words = self.vocab.words
        assert words is not None, "the bytes of its tokens are known"
        self._token = {x: i for i, x in enumerate(words.pieces) if x is not None and len(x) == 1}

    def reads_text(self, text: str) -> bool:
        """Say whether a text belongs to the language, byte by byte.

        Args:
            text: The text.

        Returns:
            Whether all of its bytes are allowed and it may end there.
        """
        state = self.language.start_state()
        for byte in text.encode():
            token = self._token[bytes((byte,))]
            if not self.language.allows_token(state, token):
                return False
            state = self.language.next_state(state, token)
        return any(self.language.allows_token(state, x) for x in self.vocab.eos)

    def draw_text(self, r: random.Random, longest: int = 80) -> str:
        """Draw a text of the language.

        Args:
            r: Draws its bytes.
            longest: The most bytes. Default 80.

        Returns:
            The text; empty where none has come to its end by then.
        """
        state = self.language.start_state()
        out = bytearray()
        for _ in range(longest):
            allowed = self.language.token_mask(state).nonzero()[:, 0].tolist()
            ends = [x for x in allowed if x in self.vocab.eos]
            # Texts that can end mostly do: short ones are as telling as long ones.
            if ends and r.random() < 0.7:
                return out.decode("utf-8", "replace")
            on = [x for x in allowed if x not in self.vocab.eos]
            # Printable ASCII is preferred, and closing signs, or texts would rarely come to an end.
            near = [x for x in on if 32 <= self._byte(x) < 127]
            closing = [x for x in near if self._byte(x) in b'"]}']
            if not on:
                if ends:
                    return out.decode("utf-8", "replace")
                return ""
            if closing and r.random() < 0.4:
                pick = closing
            else:
                pick = near or on
            token = r.choice(pick)
            out.append(self._byte(token))
            state = self.language.next_state(state, token)
        return ""

    def _byte(self, token: int) -> int:
        words = self.vocab.words
        if words is None:
            piece = None
        else:
            piece = words.pieces[token]
        if piece:
            return piece[0]
        return 0


class _ByteWords:
    """256 tokens of a byte each, and one that ends a text."""

    pieces = (*(bytes((i,)) for i in range(256)), None)


def byte_vocab() -> TokenVocabulary:
    """A vocabulary of bytes."""
    return TokenVocabulary(257, frozenset({256}), words=_ByteWords())  # pyright: ignore[reportArgumentType]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--refusals", action="store_true", help="print them")
    given = parser.parse_args()
    vocab = byte_vocab()
    kept = 0
    values = [0, 0]
    wrong = 0
    for i in range(given.count):
        r = random.Random(f"{given.seed}/{i}")
        schema = some_schema(r)
        verdict = judge_schema(schema, r, vocab)
        kept += not verdict.refused
        if given.refusals and verdict.refused:
            print(f"{i}: {verdict.refused}")
        values[0] += verdict.valid
        values[1] += verdict.invalid
        wrong += bool(verdict.wrong)
        for what in verdict.wrong[:3]:
            print(f"{i}: {what}: {json.dumps(schema)}")
    refused = given.count - kept
    print(f"{given.count} schemas: {kept} kept to, {refused} refused by name; {wrong} wrong")
    print(f"{values[0]} valid and {values[1]} invalid values")
    if wrong:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
