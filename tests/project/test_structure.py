"""The house keeps its shape: who imports whom, what every method says of itself."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import polydec
from polydec.core.types import Exactness
from polydec.methods.registry import press, registry, steer
from project_paths import PROJECT_ROOT, TESTS_FOLDER

ROOT = Path(polydec.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py") if "__pycache__" not in p.parts)
TOP_ROOMS = {"base", "core", "models", "laws", "methods", "request", "api", "serve", "cli", "lab"}
# From the ground up. A file imports its own room and rooms of lower floors; neighbours on a floor know nothing of one another.
FLOORS = (
    {"base"},
    {"core", "models.formats"},
    {"models.nets", "models.text"},
    {"models.native"},
    {"models.sessions"},
    {"models.learned"},
    {"laws.constraints", "laws.contrasts"},
    {"laws.shapers", "laws.targets"},
    {"methods.economics"},
    {"methods.registry"},
    {"methods.diffusion", "methods.insertion", "methods.presses"},
    {"methods.speculative"},
    {"methods.search", "methods.steering"},
    {"request"},
    {"api"},
    {"serve"},
    {"cli"},
    {"__main__", "lab.testing", "lab.train"},
    {"lab.bench"},
    {"lab.commands"},
    {"lab.fuzz"},
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
# Rooms whose public classes say what they are. Recipes, steerings and presses have a card for that.
DESCRIBED = (
    "base",
    "core",
    "models",
    "laws",
    "methods/economics",
    "methods/speculative",
    "methods/diffusion",
    "lab/testing",
    "lab/fuzz",
)


def room(module: str) -> str:
    """The room of a module: the longest beginning of its name that stands on a floor."""
    parts = module.split(".")[1:]
    names = [".".join(parts[:n]) for n in (2, 1)]
    return next((name for name in names if name in FLOOR), parts[0])


def module_name(path: Path) -> str:
    parts = ("polydec", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


def imported_modules(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it; a name of a package counts as its module."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            names = {f"{node.module}.{a.name}" for a in node.names}
            out |= {n if n in MODULES else node.module for n in names}
    return {m for m in out if m in MODULES and m != "polydec"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_room_stands_on_a_floor():
    rooms = {p.name for p in ROOT.iterdir() if list(p.glob("*.py"))}
    files = {p.stem for p in ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert rooms | files == TOP_ROOMS
    standing = {room(module_name(p)) for p in FILES if p.name != "__init__.py"}
    assert standing == set(FLOOR)


def test_the_word_that_one_would_search_leads_to_the_file():
    page = (ROOT.parents[1] / "docs" / "structure.md").read_text("utf-8")
    section = page.split("## Where to look\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|.*\| `(\w+)` \| `([\w/.]+)`: `(\w+)`", section, re.M)
    assert len(rows) == 7
    for word, place, class_name in rows:
        text = (ROOT / place).read_text("utf-8")
        tree = ast.parse(text)
        named = f"{Path(place).stem} {ast.get_docstring(tree)}".lower()
        assert word in named, f"{place}: neither its name nor its first lines have {word}"
        assert class_name in {n.name for n in tree.body if isinstance(n, ast.ClassDef)}, place


def test_tests_stand_where_the_room_that_they_test_does():
    tests = [p.relative_to(TESTS_FOLDER) for p in TESTS_FOLDER.rglob("test_*.py")]
    for path in tests:
        folder = path.parent
        assert folder == Path("project") or any((ROOT / folder).glob("*.py")), (
            f"tests/{path}: src/polydec has no room {folder}"
        )


def test_scripts_that_tests_import_have_one_name_each():
    # benchmarks, docs and the tests' folders stand in one path: of two files with one name, the second is never found.
    shared = [PROJECT_ROOT / "benchmarks", PROJECT_ROOT / "docs"]
    shared += [path for path in TESTS_FOLDER.rglob("*") if path.is_dir()]
    counted = Counter(path.stem for folder in shared for path in folder.glob("*.py"))
    del counted["__init__"], counted["conftest"]
    assert len(counted) > 300
    assert [name for name, count in counted.items() if count > 1] == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_run_downwards(path):
    if path == ROOT / "__init__.py":
        return  # the names of the package are looked up when they are first used
    here = room(module_name(path))
    for module in imported_modules(path):
        there = room(module)
        assert there == here or FLOOR[there] < FLOOR[here], (
            f"{name(path)} imports {module}, which does not lie below it"
        )


@pytest.mark.parametrize("path", FILES, ids=name)
def test_rooms_below_the_names_of_the_package_do_not_look_them_up(path):
    if path == ROOT / "__init__.py" or FLOOR.get(room(module_name(path)), 0) > FLOOR["api"]:
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert "polydec" not in {a.name for a in node.names}, name(path)
        elif isinstance(node, ast.ImportFrom) and node.module == "polydec":
            assert all(f"polydec.{a.name}" in MODULES for a in node.names), name(path)


def test_the_imports_have_no_circle():
    """Of all modules, wherever in a file they import one another."""
    modules = MODULES.keys() - {"polydec"}
    graph = {m: imported_modules(MODULES[m]) - {m} for m in modules}
    order = TopologicalSorter(graph)
    order.prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("path", FILES, ids=name)
def test_public_names_say_what_they_are(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert not tree.body or ast.get_docstring(tree) or path.name == "__main__.py", (
        f"{name(path)} has no docstring"
    )
    if not name(path).startswith(DESCRIBED):
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bare = not [n for n in node.body if not isinstance(n, (ast.AnnAssign, ast.Pass))]
            assert ast.get_docstring(node) or bare, (
                f"{name(path)}: class {node.name} has no docstring"
            )


def of_this_package(named: Mapping[str, Any]) -> list[str]:
    """Names of what this package brings: a plug-in that is installed here lays out its own files as it likes."""
    origins = {key: getattr(x, "__module__", None) or x.__name__ for key, x in named.items()}
    return [key for key, origin in origins.items() if origin.startswith("polydec.")]


MECHANISMS = [
    (role, key)
    for role in registry.ROLES
    for key in of_this_package(registry.mechanism_classes(role))
]


@pytest.mark.parametrize("role, key", MECHANISMS)
def test_mechanisms(role, key):
    kind = registry.mechanism_classes(role)[key]
    assert is_dataclass(kind) and kind.__dataclass_params__.frozen, (
        f"{kind.__name__} is not a frozen dataclass"
    )
    assert kind.__mro__[1:] == (object,), f"{kind.__name__} inherits: mechanisms do not"
    promises = ("Reduces to:",) if role == "shapers" else ("Exact:", "Reduces to:")
    for promise in promises:
        assert promise in (kind.__doc__ or ""), (
            f"{kind.__name__}'s docstring has no line {promise!r}"
        )
    assert key == Path(inspect.getfile(kind)).stem, (
        f"{key}: one mechanism a file, named by the file"
    )


@pytest.mark.parametrize("key", of_this_package(registry.recipe_modules()))
def test_recipes(key):
    module = registry.recipe_modules()[key]
    card, path = module.CARD, Path(module.__file__)
    assert card.name == key == path.stem.replace("_", "-")
    assert card.kind in {
        "draft-and-verify",
        "routing",
        "reading",
        "drawing",
        "unmasking",
        "insertion",
        "sampler",
        "search",
        "rollouts",
        "constraint",
        "refresh",
    }
    assert card.family in {"ar", "diffusion", "insertion", "patches", "any"}
    assert card.guarantee is None or isinstance(card.guarantee, Exactness)
    assert all((card.title, card.summary, card.source, card.reduces_to))
    assert key == "plain" or (card.parent in registry.recipe_modules() and card.home), (
        f"{key} must name its parent and its home"
    )
    first = next(iter(inspect.signature(module.build).parameters))
    assert first == "kit" and registry.method_options(key) is not None, (
        f"{key}: build takes a kit, and options behind it"
    )
    body = [
        n
        for n in ast.parse(path.read_text("utf-8")).body
        if not isinstance(n, (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign))
    ]
    assert [n.name for n in body] == ["build"], f"{key}: a recipe is a CARD and build, nothing else"
    branches = [
        n for n in ast.walk(body[0]) if isinstance(n, (ast.If, ast.For, ast.While, ast.Try))
    ]
    assert not branches, f"{key}: a recipe composes, it decides nothing"


@pytest.mark.parametrize("key", of_this_package(steer.steering_modules()))
def test_steerings(key):
    module = steer.steering_modules()[key]
    card, path = module.CARD, Path(module.__file__)
    assert (
        card.name == key == path.stem.replace("_", "-")
        and card.kind == "steering"
        and card.family == "ar"
    )
    assert all((card.title, card.summary, card.source, card.reduces_to, card.home))
    assert next(
        iter(inspect.signature(module.build).parameters)
    ) == "kit" and steer.steering_options(key)
    body = [
        n
        for n in ast.parse(path.read_text("utf-8")).body
        if not isinstance(n, (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign))
    ]
    # What a prompt takes of the context may depend on the prompt: then a function says it.
    assert [n.name for n in body if n.name != "prompt_positions"] == ["build"], (
        f"{key}: a way to steer is a CARD and build, nothing else"
    )
    branches = [
        n
        for part in body
        for n in ast.walk(part)
        if isinstance(n, (ast.If, ast.For, ast.While, ast.Try))
    ]
    assert not branches, f"{key}: it composes, it decides nothing"


def test_names_of_steerings_belong_to_one():
    cards = [m.CARD for m in steer.steering_modules().values()]
    assert len(steer.steering_names()) == sum(
        len({c.name, *c.aliases, *filter(None, [c.arxiv])}) for c in cards
    )


@pytest.mark.parametrize("key", of_this_package(press.press_modules()))
def test_presses(key):
    module = press.press_modules()[key]
    card, path = module.CARD, Path(module.__file__)
    assert (
        card.name == key == path.stem.replace("_", "-")
        and card.kind == "press"
        and card.family == "ar"
    )
    assert all((card.title, card.summary, card.source, card.reduces_to, card.home))
    # One of images packs no blocks.
    assert ("block" in {o.name for o in press.press_options(key)}) != press.reads_images(key)
    body = [
        n
        for n in ast.parse(path.read_text("utf-8")).body
        if not isinstance(n, (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign))
    ]
    assert [n.name for n in body] == ["build"], f"{key}: a press is a CARD and build, nothing else"
    made, _ = press.build(key)
    assert is_dataclass(made) and made.__dataclass_params__.frozen and made.called == key
    for promise in ("Exact:", "Reduces to:"):
        assert promise in (type(made).__doc__ or ""), f"{key}: no line {promise!r}"


def test_names_of_presses_belong_to_one():
    cards = [m.CARD for m in press.press_modules().values()]
    assert len(press.press_names()) == sum(
        len({c.name, *c.aliases, *filter(None, [c.arxiv])}) for c in cards
    )


def test_nothing_asks_which_mechanism_it_got():
    names = {registry.mechanism_classes(role)[key].__name__ for role, key in MECHANISMS}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not asked & names, (
                    f"{name(path)} line {node.lineno}: isinstance of {asked & names}"
                )
