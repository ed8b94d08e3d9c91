"""The library in plain words, one statement a line: `python tests/plain_words.py`, a part of `make lint`.

A class has a name of two words or more, unless the field uses the one word, and no two classes of the package share a name. A
function of a module has two words or more, too. What has not been brought to that yet is counted, and the count may only fall.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "polydec"
FIELD_CLASSES = frozenset(
    (
        *("Ask", "Canvas", "Card", "Choice", "Completion", "Decoder", "Denoiser", "Draft"),
        *("Drafter", "Engine", "Exactness", "Image", "Inserter", "Kit", "Law", "Option", "Piece"),
        *("Policy", "Regex", "Request", "Result", "Rng", "Sampling", "Scheduler", "Session"),
        *("Shaper", "Soft", "Target", "Ticket", "Tokenizer", "Transcript", "Unmasker", "Verdict"),
        *("Verifier", "Walk"),
    )
)
"""Words that the field uses, or that programs of ours say in every line."""
COMMANDS = frozenset(
    (
        *(
            "agenerate",
            "astream",
            "batch",
            "bench",
            "build",
            "chat",
            "classify",
            "watch",
            "demo",
            "detect",
            "doctor",
            "embed",
        ),
        *("explain", "export", "generate", "harness", "install", "load", "main", "methods"),
        *(
            "models",
            "presses",
            "pull",
            "replay",
            "rm",
            "serve",
            "show",
            "steerings",
            "stream",
            "trace",
            "train",
            "tune",
        ),
        *("verify",),
    )
)
"""Functions that are a command, or that programs call by this name."""
LOOKED_UP = frozenset(("answer", "course", "examples", "save"))
"""Functions of modules that are found by this name."""
NO_NOUNS = frozenset(
    (
        *("apart", "asked", "behind", "beside", "drawn", "given", "held", "kept", "known"),
        *("made", "noted", "over", "said", "settle", "share", "shown", "spelled", "taken"),
        *("told", "whole"),
    )
)
"""Participles and prepositions that stood for nouns. One of them may be a word of a longer name."""
MOST_METHODS_OF_ONE_WORD = 344
MOST_METHODS_OF_NO_NOUN = 14
MOST_PARALLEL_ASSIGNMENTS = 137
"""How many there are still. Whoever mends some lowers these."""


def words_of(name: str) -> list[str]:
    """The words of a name, as they are written there."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text("utf-8"))


def is_parallel_assignment(node: ast.AST) -> bool:
    """Whether a statement gives several names values that it lists side by side."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class says what others have to look like."""
    names = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(name, ast.Name) and name.id == "Protocol" for name in names)


def annotated_names(node: ast.ClassDef) -> set[str]:
    """The fields of a class."""
    fields = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
    return {target.id for target in fields if isinstance(target, ast.Name)}


def changed_files() -> set[Path]:
    """Files of the package that git says are new or changed; none where there is no git."""
    command = ["git", "-C", str(PACKAGE), "status", "--porcelain", "--untracked-files=all", "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return set()
    return {Path(line[3:].partition("polydec/")[2]) for line in done.stdout.splitlines()}


def places_to_mend(places: list[tuple[Path, int, str]]) -> str:
    """Where, of what was changed last, a name or a statement adds to a count that rose."""
    changed = changed_files()
    shown = [f"{path}:{line} {what}" for path, line, what in places if path in changed]
    if not shown:
        return "name those that the change adds otherwise"
    return f"of what is new or changed these count: {', '.join(shown)}"


def faults() -> list[str]:
    """One sentence for each name that is not plain, and for each count that rose."""
    found = list[str]()
    counted = list[tuple[Path, int, str]]()
    side_by_side = list[tuple[Path, int, str]]()
    prescribed = set[str]()
    homes = defaultdict[str, list[Path]](list)
    methods = Counter[str]()
    for path, tree in modules():
        for node in ast.walk(tree):
            if is_parallel_assignment(node):
                side_by_side.append((path, node.lineno, "names several at once"))
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
                public_methods = {
                    item.name: item.lineno
                    for item in node.body
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                    and not item.name.startswith("_")
                }
                methods.update(public_methods.keys())
                counted += [(path, line, name) for name, line in public_methods.items()]
                if is_protocol(node):
                    prescribed |= public_methods.keys() | annotated_names(node)
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            public = not node.name.startswith("_")
            if public and len(words_of(node.name)) < 2 and node.name not in COMMANDS | LOOKED_UP:
                found.append(f"{path}:{node.lineno}: the function {node.name} has one word")
    for name, paths in homes.items():
        if len(set(paths)) > 1:
            found.append(f"the class {name} stands in {', '.join(map(str, paths))}")
        if len(words_of(name)) < 2 and name not in FIELD_CLASSES:
            found.append(f"{paths[0]}: the class {name} has one word")
    # Whoever writes a mechanism by a protocol chooses no names: however many do, each counts once.
    methods.subtract({name: max(0, methods[name] - 1) for name in prescribed})
    chosen = [place for place in counted if place[2] not in prescribed]
    counts = {
        "methods of one word": (
            sum(n for name, n in methods.items() if len(words_of(name)) < 2),
            MOST_METHODS_OF_ONE_WORD,
            [place for place in chosen if len(words_of(place[2])) < 2],
        ),
        "methods that a participle or a preposition names": (
            sum(n for name, n in methods.items() if name in NO_NOUNS),
            MOST_METHODS_OF_NO_NOUN,
            [place for place in chosen if place[2] in NO_NOUNS],
        ),
        "parallel assignments": (len(side_by_side), MOST_PARALLEL_ASSIGNMENTS, side_by_side),
    }
    found += [
        f"{count} {what}, where {most} are allowed: {places_to_mend(places)}"
        for what, (count, most, places) in counts.items()
        if count > most
    ]
    return found


def main() -> int:
    found = faults()
    print("\n".join(found) or "names are plain")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
