"""llama.cpp's form of grammars, read as the one of `LarkGrammar`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.base.options import short_repr

LONGEST = 1 << 16
"""Characters of a grammar."""
DEEPEST = 100
"""Brackets inside one another."""

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_TIMES = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
REPEATS = ("*", "+", "?", "{")
"""Signs that begin how often something stands."""
_SHORT = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}


def lark_of(grammar: str) -> str:
    """A grammar in GBNF (`root ::= …`) as Lark has it. Raises RequestError with one sentence where
    it is none.
    """
    if not isinstance(grammar, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RequestError('a grammar must be a text in GBNF, such as root ::= "yes" | "no"')
    if len(grammar) > LONGEST:
        raise RequestError(
            f"the grammar has {len(grammar)} characters: in GBNF it may have {LONGEST}"
        )
    if "::=" not in grammar:
        raise RequestError(
            "the grammar has no rule (root ::= …): it must be GBNF, as llama.cpp has it; one in Lark's form goes into "
            "structured_outputs or guided_grammar"
        )
    reader = _GbnfReader(grammar)
    # The reader stops at the first error; its place gives the line.
    try:
        rules = reader.grammar_rules()
    except _GbnfSyntaxError as error:
        line = grammar.count("\n", 0, reader.at) + 1
        raise RequestError(
            error_sentence(f"the grammar is not GBNF: line {line}: {error}")
        ) from None
    if "root" not in rules:
        raise RequestError("the grammar is not GBNF: it has no rule root, from which a text begins")
    # The library would name a missing rule by the name that it has there.
    for name, rule in rules.items():
        lost = next((x for x in rule.needs if x not in rules), None)
        if lost is not None:
            raise RequestError(
                f"the grammar is not GBNF: rule {name[:60]} needs {short_repr(lost)}, which no rule is called"
            )
    return _written(rules)


class _GbnfSyntaxError(ValueError):
    """What is wrong at the place that is read."""


@dataclass
class _GbnfRule:
    """A rule.

    Attributes:
        words: What stands in the rule in the form of Lark; names are tuples of one.
    """

    words: list[str | tuple[str]] = field(default_factory=list[str | tuple[str]])

    @property
    def needs(self) -> list[str]:
        return [x[0] for x in self.words if isinstance(x, tuple)]


@dataclass
class _GbnfReader:
    """Reads rules from left to right.

    Attributes:
        text: The grammar.
        at: The place that is read.
    """

    text: str
    at: int = 0

    def grammar_rules(self) -> dict[str, _GbnfRule]:
        out = dict[str, _GbnfRule]()
        self._skip(lines=True)
        while self.at < len(self.text):
            # name ::= alternatives, up to the end of the line.
            name = self._name("a rule's name")
            self._skip()
            self._take("::=")
            self._skip(lines=True)
            out[name] = rule = _GbnfRule()
            self._alternatives(rule, 0)
            if self.at < len(self.text) and self.text[self.at] not in "\r\n":
                raise _GbnfSyntaxError(
                    f"{short_repr(self.text[self.at])} is out of place: a line must end here"
                )
            self._skip(lines=True)
        return out

    def _skip(self, lines: bool = False) -> None:
        space = (_SPACE_AND_LINES if lines else _SPACE).match(self.text, self.at)
        if space is not None:
            self.at = space.end()

    def _take(self, sign: str) -> None:
        if not self.text.startswith(sign, self.at):
            raise _GbnfSyntaxError(f"{sign} is missing")
        self.at += len(sign)

    def _name(self, what: str) -> str:
        name = _NAME.match(self.text, self.at)
        if name is None:
            if self.at < len(self.text):
                found = short_repr(self.text[self.at : self.at + 1])
            else:
                found = "the end"
            raise _GbnfSyntaxError(f"{what} must stand where {found} is")
        self.at = name.end()
        return name[0]

    def _alternatives(self, rule: _GbnfRule, depth: int) -> None:
        if depth > DEEPEST:
            raise _GbnfSyntaxError(f"brackets stand more than {DEEPEST} deep")
        while True:
            before = len(rule.words)
            self._sequence(rule, depth)
            # An empty alternative is the empty text.
            if len(rule.words) == before:
                rule.words.append('""')
            if not self.text.startswith("|", self.at):
                return
            self.at += 1
            rule.words.append("|")
            self._skip(lines=True)

    def _sequence(self, rule: _GbnfRule, depth: int) -> None:
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == '"':
                rule.words.append(self._literal())
            elif sign == "[":
                rule.words.append(self._class())
            elif sign == ".":
                self.at += 1
                # A dot is any character, a line break included.
                rule.words.append("/(?s:.)/")
            elif sign == "(":
                self.at += 1
                self._skip(lines=True)
                rule.words.append("(")
                self._alternatives(rule, depth + 1)
                self._take(")")
                rule.words.append(")")
            elif sign in "<!":
                raise _GbnfSyntaxError(
                    "a token is named (<…>), and a constraint is about text: write its text"
                )
            elif _NAME.match(sign):
                rule.words.append((self._name("a name"),))
            else:
                return
            # Inside brackets a sequence may go on in the next line.
            self._skip(lines=depth > 0)
            self._repeated(rule)
            self._skip(lines=depth > 0)

    def _repeated(self, rule: _GbnfRule) -> None:
        """How often what was read last stands, where that is said."""
        sign = self.text[self.at : self.at + 1]
        # What nothing follows stands once.
        if sign not in REPEATS:
            return
        times = _TIMES.match(self.text, self.at)
        if sign != "{":
            self.at += 1
            rule.words.append(sign)
        elif times is None:
            raise _GbnfSyntaxError("{ must begin how often something stands: {m}, {m,} or {m,n}")
        else:
            low = int(times[1])
            # {m} says the same number twice, {m,} has no second one.
            high = int(times[3] or times[1])
            if high < low:
                raise _GbnfSyntaxError(
                    f"{times[0]} is legal where the second number is not below the first"
                )
            self.at = times.end()
            # {m,} has no upper bound; {m} is {m,m}.
            if times[2] and times[3] is None:
                end = ""
            else:
                end = str(high)
            rule.words.append(f"{{{low},{end}}}")
        self._skip()
        if self.text[self.at : self.at + 1] in REPEATS:
            raise _GbnfSyntaxError("something is repeated twice: put brackets between")

    def _sign(self, what: str) -> str:
        """One character, written as itself or behind a backslash."""
        # A text that ends inside of a sign is broken, whatever the sign is.
        if self.at >= len(self.text):
            raise _GbnfSyntaxError(f"{what} is not closed")
        sign = self.text[self.at]
        self.at += 1
        if sign != "\\":
            return sign
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in _SHORT:
            return _SHORT[kind]
        width = _WIDTHS.get(kind, 0)
        digits = self.text[self.at : self.at + width]
        if not width or not re.fullmatch(rf"[0-9a-fA-F]{{{width}}}", digits):
            raise _GbnfSyntaxError(
                rf"\{kind}{digits} is no sign: \x41, \u0041, \U00000041, \n, \r, \t, \\, \", \[ and \] are"
            )
        self.at += width
        number = int(digits, 16)
        # Halves of surrogate pairs are no characters.
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise _GbnfSyntaxError(rf"\{kind}{digits} is no character of Unicode")
        return chr(number)

    def _literal(self) -> str:
        self.at += 1
        out = ""
        while not self.text.startswith('"', self.at):
            out += self._sign("a text")
        self.at += 1
        return json.dumps(out, ensure_ascii=False)

    def _class(self) -> str:
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        parts = list[str]()
        while not self.text.startswith("]", self.at):
            low = high = self._sign("a class")
            # A hyphen before the closing bracket is itself a member.
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self._sign("a class")
            if high < low:
                raise _GbnfSyntaxError(
                    f"{short_repr(f'{low}-{high}')} is a range from a later sign to an earlier one"
                )
            parts.append(_in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}")
        self.at += 1
        if not parts:
            # A class that excludes nothing is any character.
            if negated:
                return "/(?s:.)/"
            raise _GbnfSyntaxError("a class holds nothing ([])")
        return f"/[{'^' if negated else ''}{''.join(parts)}]/"


def _in_class(sign: str) -> str:
    if sign.isascii() and sign.isalnum():
        return sign
    return f"\\x{{{ord(sign):x}}}"


def _written(rules: dict[str, _GbnfRule]) -> str:
    """The rules in Lark's form. One that needs none but such as need none is a terminal there,
    which is quicker to follow.
    """
    # Rules that only need terminals are terminals: a fixed point from below. `root` stays a rule.
    terminal = set[str]()
    looking = True
    while looking:
        found = {
            name
            for name, rule in rules.items()
            if name not in terminal and name != "root" and set(rule.needs) <= terminal
        }
        terminal |= found
        looking = bool(found)
    # The library tells terminals by capital letters, so names are changed.
    names = dict[str, str]()
    for name, called in _called(rules, terminal):
        names[name] = called
    lines = [
        f"{names[name]}: " + " ".join(_joined(rule.words, names)) for name, rule in rules.items()
    ]
    return "%llguidance {}\n\n" + "\n".join(lines) + "\n"


def _called(rules: dict[str, _GbnfRule], terminal: set[str]) -> Iterator[tuple[str, str]]:
    """What each rule is called there: no name of theirs has a meaning of its own."""
    yield "root", "start"
    for i, name in enumerate(x for x in rules if x != "root"):
        # The number distinguishes names that become equal when they are simplified.
        plain = re.sub(r"[^a-z0-9]", "_", name.lower())[:40]
        called = f"r{i}_{plain}"
        yield name, called.upper() if name in terminal else called


def _joined(words: list[str | tuple[str]], names: dict[str, str]) -> Iterator[str]:
    """Words, signs of repetition behind what they repeat."""
    # A sign of repetition must follow its word without a space.
    held = ""
    for word in words:
        if isinstance(word, tuple):
            text = names[word[0]]
        else:
            text = word
        # A repetition belongs to the word before it, without a space.
        if isinstance(word, str) and (word.startswith(REPEATS)):
            held += text
            continue
        if held:
            yield held
        held = text
    if held:
        yield held
