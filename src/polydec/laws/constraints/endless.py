"""What a grammar's text tells before it is compiled: rules that have no text, and what it may not hold."""

from __future__ import annotations

import re
from collections import defaultdict

MOST_BOTH = 8
"""Expressions that one terminal may intersect: what they cost together is about the product of
what they cost alone.
"""

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*(?:"i?)?|/(?:\\.|[^/\\])+/?[a-z]*|%[a-z]+|[A-Za-z_][\w-]*|//[^\n]*|#[^\n]*|[(\[]|[)\]]'
    r"|[?*+~|:\n]|\d+(?:\s*\.\.\s*\d+)?|.",
    re.DOTALL,
)  # what is opened and not closed goes on to the end, so that no text is looked at twice


def grammar_refusal(text: str) -> str:
    """Why a grammar may not be compiled; empty: it may."""
    line = 1
    both = 0
    for word in _TOKEN.findall(text):
        line += word.count("\n")
        # A new rule or alternative: the count of intersections begins anew.
        if word in (":", "|"):
            both = 0
        elif word == "&":
            both += 1
            if both >= MOST_BOTH:
                return (
                    f"line {line}: more than {MOST_BOTH} expressions are intersected: a terminal may "
                    f"intersect {MOST_BOTH}"
                )
        elif word == "<":
            return (
                f"line {line}: a token is named (<…>), and a constraint is about text: write what it "
                'stands for in quotes ("<" for the sign itself)'
            )
    return ""


def unproductive_rules(text: str) -> frozenset[str]:
    """The rules of which every alternative needs a rule that has no text. Where a grammar has
    parts that are not understood here, they count as having one, so none is named wrongly.
    """
    # Which rules each alternative waits for, counted down as rules turn out to have a text.
    rules = {name: _alternatives(body) for name, body in _rules(text).items()}
    missing = dict[tuple[str, int], int]()
    waits = defaultdict[str, list[tuple[str, int]]](list)
    for name, options in rules.items():
        for i, needs in enumerate(options):
            known = [x for x in needs if x in rules]
            missing[name, i] = len(known)
            for x in known:
                waits[x].append((name, i))
    fruitful = set[str]()
    # An alternative that waits for nothing gives its rule a text.
    ready = [name for (name, _), count in missing.items() if not count]
    while ready:
        name = ready.pop()
        if name in fruitful:
            continue
        fruitful.add(name)
        # Every alternative that waited for this rule waits for one less.
        for at in waits[name]:
            missing[at] -= 1
            if not missing[at]:
                ready.append(at[0])
    return frozenset(rules) - fruitful


def _rules(text: str) -> dict[str, list[str]]:
    """Of each rule what stands behind its colon."""
    # Line ends stay: they tell where a rule begins.
    words = [
        w
        for w in _TOKEN.findall(text)
        if w == "\n" or (not w.isspace() and not w.startswith(("//", "#")))
    ]
    out = dict[str, list[str]]()
    body = list[str]()
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
            # A name and a colon begin a rule; the name has been taken for a word of the last one.
            del body[len(body) - 1 :]
            body = out.setdefault(words[i - 1], [])
        else:
            body.append(word)
    return out


def _alternatives(body: list[str]) -> list[set[str]]:
    """Of each alternative the names that it cannot do without; what stands in brackets, or may be
    left out, is passed over.
    """
    out = [set[str]()]
    depth = 0
    for i, word in enumerate(body):
        depth += (word in "([") - (word in ")]")
        # A sign of repetition behind a name may allow that it does not come at all.
        if i + 1 < len(body):
            following = body[i + 1]
        else:
            following = ""
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
