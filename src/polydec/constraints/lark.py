"""A context-free grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polydec.constraints import guidance
from polydec.core.types import Vocab
from polydec.edge import sentence
from polydec.options import shown

LONGEST = 1_000_000
"""Characters of a grammar."""


@dataclass(frozen=True)
class Lark:
    """The whole answer is derived from the rule `start` of a grammar in Lark's form (as llguidance reads it: terminals in
    capitals or quotes, /regular expressions/, %json {a schema}, %ignore).

    A rule that only ever leads to itself has no text. Where `start` is such a rule the grammar is refused.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not 1 <= len(self.text) <= LONGEST:  # pyright: ignore
            raise ValueError(
                f"grammar is {shown(self.text)}: it must be a text of 1 to {LONGEST} characters"
            )

    def language(self, vocab: Vocab, ends: frozenset[int]) -> guidance.Grammar:
        try:
            found = guidance.grammar(self.text, vocab, ends)
        except guidance.Malformed as error:
            raise ValueError(sentence(f"grammar: {_placed(str(error))}")) from None
        if "start" in endless(self.text):
            raise ValueError(
                "grammar: rule start derives no text that ends, as it always needs itself again"
            )
        return found


def _placed(problem: str) -> str:
    """The library's complaint, with the line of the grammar as it was given."""
    line = re.match(r"(?:at )?(\d+)\((\d+)\): ", problem)
    said = guidance.first_line(problem[line.end() :] if line else problem)
    drawn = len(guidance.PLAIN.splitlines())
    return f"line {max(1, int(line[1]) - drawn)}, column {line[2]}: {said}" if line else said


_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|%[a-z]+|[A-Za-z_][\w-]*|//[^\n]*|#[^\n]*|[(\[]|[)\]]'
    r"|[?*+~|:\n]|\d+(?:\s*\.\.\s*\d+)?|.",
    re.DOTALL,
)


def endless(text: str) -> frozenset[str]:
    """The rules of which every alternative needs a rule that has no text. Where a grammar has parts that are not understood
    here, they count as having one, so none is named wrongly."""
    rules = {name: _alternatives(body) for name, body in _rules(text).items()}
    fruitful = set[str]()
    while True:
        more = {
            name
            for name, options in rules.items()
            if name not in fruitful
            and any(all(x in fruitful or x not in rules for x in needs) for needs in options)
        }
        if not more:
            return frozenset(rules) - fruitful
        fruitful |= more


def _rules(text: str) -> dict[str, list[str]]:
    """Of each rule what stands behind its colon."""
    words = [
        w
        for w in _TOKEN.findall(text)
        if w == "\n" or (not w.isspace() and not w.startswith(("//", "#")))
    ]
    out, body = dict[str, list[str]](), list[str]()
    for i, word in enumerate(words):
        begins = i == 0 or words[i - 1] == "\n"
        if begins and word.startswith("%"):
            body = []  # a directive: not a rule's
        elif (
            word == ":"
            and i
            and re.match(r"[A-Za-z_]", words[i - 1])
            and (i == 1 or words[i - 2] in ("\n", "?", "!"))
        ):
            del body[len(body) - 1 :]
            body = out.setdefault(words[i - 1], [])
        else:
            body.append(word)
    return out


def _alternatives(body: list[str]) -> list[set[str]]:
    """Of each alternative the names that it cannot do without; what stands in brackets, or may be left out, is passed over."""
    out, depth = [set[str]()], 0
    for i, word in enumerate(body):
        depth += (word in "([") - (word in ")]")
        following = body[i + 1] if i + 1 < len(body) else ""
        if depth == 0 and word == "|":
            out.append(set())
        elif (
            depth == 0
            and re.match(r"[A-Za-z_]", word)
            and following not in ("?", "*", "~", ":")
            and following[:1] != "%"
        ):
            out[-1].add(word)
    return out
