"""Lines of code by room, and how plain the words are: to look at, not to keep to."""

import ast
from collections import defaultdict
from pathlib import Path

from plain_text import comment_count, listed_parameters, parameter_names, public_functions
from plain_words import is_parallel_assignment, modules, words_of

ROOT = Path(__file__).parents[1] / "src" / "polydec"


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").split("\n")) - 1


def rooms() -> dict[str, tuple[int, int, int]]:
    """Of each folder: files, lines, the longest file."""
    out: dict[str, tuple[int, int, int]] = {}
    for folder in [
        ROOT,
        *sorted(p for p in ROOT.iterdir() if p.is_dir() and p.name not in ("__pycache__", "zoo")),
    ]:
        files = sorted(folder.glob("*.py") if folder == ROOT else folder.rglob("*.py"))
        sizes = [lines(f) for f in files]
        if sizes:
            out["." if folder == ROOT else folder.name] = (len(files), sum(sizes), max(sizes))
    return out


def words() -> dict[str, float]:
    """Figures of names, docstrings, comments and dense statements."""
    homes = defaultdict[str, list[Path]](list)
    functions = list[str]()
    lines_of_all = comments = conditionals = parallel = unlisted = 0
    for path, tree in modules():
        text = (ROOT / path).read_text("utf-8")
        lines_of_all += text.count("\n")
        comments += comment_count(text)
        for node in ast.walk(tree):
            conditionals += isinstance(node, ast.IfExp)
            parallel += is_parallel_assignment(node)
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
        for function in public_functions(tree):
            functions.append(function.name)
            listed = listed_parameters(ast.get_docstring(function) or "")
            unlisted += listed is None and len(parameter_names(function)) > 1
    classes = [(name, len(set(paths)) > 1) for name, paths in homes.items() for _ in paths]
    return {
        "classes of one word, %": 100
        * sum(len(words_of(c)) < 2 for c, _ in classes)
        / len(classes),
        "class names in two files, %": 100 * sum(twice for _, twice in classes) / len(classes),
        "public functions of one word, %": 100
        * sum(len(words_of(f)) < 2 for f in functions)
        / len(functions),
        "functions of two parameters without a list": unlisted,
        "parallel assignments in 1,000 lines": 1000 * parallel / lines_of_all,
        "conditional expressions in 1,000 lines": 1000 * conditionals / lines_of_all,
        "comments in 100 lines": 100 * comments / lines_of_all,
    }


if __name__ == "__main__":
    print(f"{'room':12} {'files':>6} {'lines':>7} {'longest':>8}")
    for name, (n, total, longest) in rooms().items():
        print(f"{name:12} {n:6} {total:7} {longest:8}")
    print(
        f"{'all':12} {sum(r[0] for r in rooms().values()):6} {sum(r[1] for r in rooms().values()):7}"
    )
    for name, figure in words().items():
        print(f"{name:44} {figure:6.1f}")
    native = sum(lines(f) for f in ROOT.rglob("*") if f.suffix in (".cpp", ".h"))
    recipes = sum(lines(f) for f in ROOT.rglob("recipes/*.py"))
    print(f"lines of C++ {native}, of recipes {recipes}")
