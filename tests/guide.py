"""The code of docs/adding-a-method.md: every block with the file that it is, and a package that has these files."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from polydec.methods.registry import catalogue, registry
from polydec.models.learned import artefacts

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-method.md"
(BUILD,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
"""The pyproject.toml of a package with the drafter and the recipe of the page in one file."""
FILES: dict[str, str] = dict(
    re.findall(r'^```python title="(\S+)"\n(.*?)^```', PAGE.read_text("utf-8"), re.S | re.M)
)
"""The code of each block by the file that it is, in the order of the page: "methods/speculative/drafters/echo.py"
and so on."""

CACHES = (catalogue._modules, catalogue._names, catalogue._options, registry.mechanism_classes)


def forget_files() -> None:
    """Forget which files there are: who asks next looks."""
    for cache in CACHES:
        cache.cache_clear()
    vars(artefacts.MODULES).clear()


@contextmanager
def beside(folder: Path) -> Iterator[dict[str, ModuleType]]:
    """The package with the files of the page beside its own, none of which changes: the modules by their files' names.

    folder: where the files are written; the rooms of the package look there as well while this lasts.
    """
    looking, modules = list[list[str]](), dict[str, ModuleType]()
    try:
        for file, code in FILES.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
            room = importlib.import_module(f"polydec.{'.'.join(Path(file).parent.parts)}")
            assert not list(Path(room.__path__[0]).glob(path.name)), f"{file} is there already"
            if str(path.parent) not in room.__path__:
                room.__path__.append(str(path.parent))
                looking.append(room.__path__)
        importlib.invalidate_caches()
        forget_files()
        for file in FILES:
            name = f"polydec.{file.removesuffix('.py').replace('/', '.')}"
            modules[file] = importlib.import_module(name)
        yield modules
    finally:
        for paths in looking:
            paths.pop()
        for module in modules.values():
            sys.modules.pop(module.__name__)
        forget_files()
