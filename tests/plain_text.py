"""What a reader finds beside the code: `python tests/plain_text.py`, a part of `make lint`.

A public function or method of two parameters or more has a docstring with `Args:`, which names each of its parameters and no
other. Comments and conditional expressions are counted against the lines of the package.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from math import ceil

from plain_words import PACKAGE, modules

MOST_FUNCTIONS_WITHOUT_A_LIST = 0
"""How many public functions of two parameters or more have no `Args:` yet. Whoever mends some lowers this."""
MOST_CONDITIONAL_EXPRESSIONS = 7.3
"""A thousand lines. Where the value of a whole statement depends on a condition, `if` and `else` say so."""
LEAST_COMMENTS = 4.0
"""A hundred lines."""
BUILDERS = frozenset(("build",))
"""Each recipe has one; its card and its options say what it takes."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if not isinstance(node, Function) or node.name.startswith("_"):
            continue
        # A second signature of a function that has its docstring itself.
        if any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list):
            continue
        if node.name not in BUILDERS:
            yield node


def parameter_names(function: Function) -> list[str]:
    """The parameters that a caller gives."""
    given = function.args
    optional = [one for one in (given.vararg, given.kwarg) if one is not None]
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *optional]
    return [one.arg for one in every if one.arg not in ("self", "cls")]


def listed_parameters(docstring: str) -> list[str] | None:
    """The names that `Args:` has an entry for; None where there is no `Args:`."""
    section = re.search(r"^Args:\s*\n((?: {4,}.*\n?|\s*\n)*)", docstring, re.M)
    if section is None:
        return None
    entries = re.findall(r"^ {4}(\S[^:\n]*):", section.group(1), re.M)
    return [name.strip(" *`") for entry in entries for name in entry.split(",")]


def comment_count(text: str) -> int:
    """Lines with a comment, on a line of its own or behind a statement."""
    return sum(
        1
        for row in text.split("\n")
        if re.search(r"(^|\s)#\s", row) and not re.match(r"^\s*[\"']", row)
    )


def faults() -> list[str]:
    """One sentence for each list that does not fit its function, and for each count that is missed."""
    found = list[str]()
    unlisted = list[str]()
    lines = 0
    comments = 0
    conditionals = 0
    for path, tree in modules():
        text = (PACKAGE / path).read_text("utf-8")
        lines += text.count("\n")
        comments += comment_count(text)
        conditionals += sum(isinstance(node, ast.IfExp) for node in ast.walk(tree))
        for function in public_functions(tree):
            place = f"{path}:{function.lineno}: {function.name}"
            names = parameter_names(function)
            listed = listed_parameters(ast.get_docstring(function) or "")
            if listed is None:
                if len(names) > 1:
                    unlisted.append(place)
                continue
            if strange := sorted(set(listed) - set(names)):
                found.append(f"{place}: Args lists {', '.join(strange)}, which it does not take")
            if missing := [name for name in names if name not in listed]:
                found.append(f"{place}: Args does not list {', '.join(missing)}")
    if len(unlisted) > MOST_FUNCTIONS_WITHOUT_A_LIST:
        found += [f"{place}: no Args" for place in unlisted]
        found.append(
            f"{len(unlisted)} functions without Args, where {MOST_FUNCTIONS_WITHOUT_A_LIST} are allowed"
        )
    allowed = int(MOST_CONDITIONAL_EXPRESSIONS * lines / 1000)
    if conditionals > allowed:
        found.append(
            f"{conditionals} conditional expressions in {lines} lines, where {allowed} are allowed: "
            "write new ones as statements with if and else"
        )
    wanted = ceil(LEAST_COMMENTS * lines / 100)
    if comments < wanted:
        found.append(
            f"{comments} comments in {lines} lines, where {wanted} are wanted: "
            "say of new lines that are not plain why they are there"
        )
    return found


def main() -> int:
    found = faults()
    print("\n".join(found) or "functions list their parameters")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
