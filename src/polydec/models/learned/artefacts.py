"""What `polydec train` makes for a model beside weights: tables and heads, each in a directory that says what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from os import PathLike
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from polydec.base import plugins
from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.models.formats import edge, zoo
from polydec.models.learned import artefact
from polydec.models.learned import kinds as learned


class ArtefactModules(Mapping[str, Any]):
    """The module that reads each kind, those of other packages included (`plugins.py`). One whose file is named for its kind is
    imported alone."""

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Names of our own modules."""
        return tuple(m.name for m in iter_modules(learned.__path__))

    @cached_property
    def _all(self) -> dict[str, Any]:
        # All modules are imported only here: one asked for by its own name never gets so far.
        every = (import_module(f"{learned.__name__}.{file}") for file in self.files)
        own = {module.KIND.name: module for module in every}
        what = "KIND of that name with its class and a load"
        return own | plugins.load_plugins("learned", own, plugins.with_artefact, what)

    def __getitem__(self, kind: str) -> Any:
        # A kind is named with hyphens, its module with underscores.
        if (file := kind.replace("-", "_")) in self.files:
            module = import_module(f"{learned.__name__}.{file}")
            if module.KIND.name == kind:
                return module
        return self._all[kind]

    def likely_modules(self, where: Path) -> Iterator[Any]:
        """All of them, those first whose tensors a directory seems to hold."""
        # Sorting by false and true puts files that match first.
        for file in sorted(self.files, key=lambda f: not (where / f"{f}.safetensors").is_file()):
            yield import_module(f"{learned.__name__}.{file}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


MODULES = ArtefactModules()


def type_of(kind: str) -> Any:
    """The class of what is of this kind. Raises KeyError for a kind that nothing here makes: that is a fault of the code."""
    module = MODULES[kind]
    # A module may import other artefact classes; only one that it defines itself counts.
    return next(
        thing
        for thing in vars(module).values()
        if getattr(thing, "kind", None) == kind and thing.__module__ == module.__name__
    )


def load_artefact(name: str | PathLike[str]) -> Any:
    """The artefact in a directory (or `zoo:NAME`). Raises FileError with one sentence where there is none, or none of a known
    kind."""
    name = edge.path_text(name, "trained")
    if name.startswith("zoo:"):
        where = Path(zoo.zoo_model_path(name))
    else:
        where = edge.at_home(name)
    if not (where / artefact.CONFIG).is_file():
        raise FileError(
            edge.error_sentence(
                f"{name!r} holds no {artefact.CONFIG}: give a directory that `polydec train` made"
            )
        )
    config = edge.read_json(where / artefact.CONFIG)
    kind = config.get("polydec")
    if isinstance(kind, str) and kind in MODULES:
        return MODULES[kind].load(str(where))
    # Files of older versions name no kind: the name of the tensor file tells.
    for module in MODULES.likely_modules(where) if kind is None else ():
        if (where / module.KIND.weights).is_file():
            return module.load(str(where))
    # Imported late: published layouts are rare, and these modules load much.
    from polydec.models.learned import published, published_eagle1, published_medusa

    with edge.report_read_errors(f"{name!r} cannot be read"):
        # EAGLE-3's test comes last: it refuses published drafters of other kinds by their names.
        if kind is None and published_medusa.is_published_medusa(config):
            return published_medusa.load_published_medusa(where)
        if kind is None and published_eagle1.is_published_eagle1(config, where):
            return published_eagle1.load_published_eagle1(where)
        if kind is None and published.is_published_eagle3(config):
            return published.load_published_eagle3(where)
    raise FileError(
        edge.error_sentence(
            f"{name!r} is of the kind {kind!r}: it must be one of {', '.join(MODULES)}"
        )
    )


def bind_artefact(trained: Any, target: Target) -> Any:
    """Make an artefact ready for a target.

    A published drafter has a method `bound`, which finds out of the target what its files leave
    unsaid. Anything else stays as it is.

    Args:
        trained: The artefact, as `load_artefact` gives it.
        target: The model that it is to serve.

    Returns:
        What the artefact's own `bound` gives, or the artefact itself.

    Raises:
        FileError: It does not fit the target.
    """
    make = getattr(trained, "bound_drafter", None)
    if make is None:
        return trained
    return make(target)
