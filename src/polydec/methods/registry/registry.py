"""The registry of methods and mechanisms: adding a method is adding a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from polydec.base import plugins
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import Option, as_text
from polydec.core.decoder import Decoder
from polydec.methods.registry.card import Card
from polydec.methods.registry.catalogue import ModuleCatalogue
from polydec.methods.registry.kit import CALLED, Kit

RECIPES = ModuleCatalogue(
    (
        "polydec.methods.speculative.recipes",
        "polydec.methods.search.recipes",
        "polydec.methods.diffusion.recipes",
        "polydec.methods.insertion.recipes",
    ),
    "methods",
    "method",
    "method {} is unknown",
)


@dataclass(frozen=True)
class MechanismRole:
    """Where the mechanisms of one role are found.

    Attributes:
        package: The folder, one mechanism a file.
        method: Method that a class there must have to be a mechanism.
    """

    package: str
    method: str


ROLES = {
    "drafters": MechanismRole("polydec.methods.speculative.drafters", "open"),
    "trees": MechanismRole("polydec.methods.speculative.trees", "grow"),
    "verifiers": MechanismRole("polydec.methods.speculative.verifiers", "verify"),
    "policies": MechanismRole("polydec.methods.speculative.policies", "budget"),
    "shapers": MechanismRole("polydec.laws.shapers", "shape"),
    "unmaskers": MechanismRole("polydec.methods.diffusion.unmaskers", "choose"),
    "refreshes": MechanismRole("polydec.methods.diffusion.refreshes", "feed"),
    "contrasts": MechanismRole("polydec.laws.contrasts", "mix"),
}
"""By the name of a role, which is also the group of the plug-ins that bring more of it."""


def recipe_modules() -> dict[str, ModuleType]:
    """Return every recipe's module by its name (the file's, with hyphens).

    Those of other packages are included (`plugins.py`).
    """
    return RECIPES.modules()


def of_family(family: str) -> list[str]:
    """Return the names of the recipes for a family: "ar", "diffusion" or "insertion"."""
    return [
        name for name, module in recipe_modules().items() if module.CARD.family in ("any", family)
    ]


@cache
def mechanism_classes(role: str) -> dict[str, type]:
    """Return every mechanism of a role by its file's name.

    A mechanism is the public class of a file that has the role's method. Those of other packages
    are included (`plugins.py`).
    """
    # One mechanism a file: it is named by the file.
    own = dict[str, type]()
    package = import_module(ROLES[role].package)
    for m in iter_modules(package.__path__):
        # A second mechanism of a file is named by the file and its class.
        for kind in _mechanisms_in(import_module(f"{ROLES[role].package}.{m.name}"), role):
            own[m.name if m.name not in own else f"{m.name}.{kind.__name__}"] = kind
    # Plug-ins may bring the class itself, or a module that holds it.
    return own | plugins.load_plugins(
        role,
        own,
        lambda thing, _: (
            thing if isinstance(thing, type) else next(_mechanisms_in(thing, role), None)
        ),
        f"public class with a method {ROLES[role].method}",
    )


def _mechanisms_in(module: ModuleType, role: str) -> Iterator[type]:
    """The public classes of a module that have a role's method."""
    for name, thing in vars(module).items():
        # Classes that are imported into the module, private ones and protocols are no mechanisms.
        if (
            isinstance(thing, type)
            and thing.__module__ == module.__name__
            and hasattr(thing, ROLES[role].method)
            and not name.startswith("_")
            and not getattr(thing, "_is_protocol", False)
        ):
            yield thing


def method_names() -> dict[str, str]:
    """Return the own name of a method by every name that it answers to.

    The names are in lower case with hyphens.
    """
    return RECIPES.names()


def find_method(name: str) -> str:
    """Return the own name of the method that answers to a name, an alias or an arXiv number.

    Raises:
        RequestError: There is no such name; the message gives the nearest ones.
    """
    return RECIPES.find(name, "`polydec methods` lists all of them")


DEFAULTS = {"ar": "auto", "diffusion": "fast-dllm", "insertion": "insertion-language-models"}
"""By a model's family, the method that "auto" means."""


def of_model(name: str, family: str) -> str:
    """Return the method that a name means for a model.

    Args:
        name: Any name of a method; "auto" is the default of the model's family.
        family: "ar", "diffusion" or "insertion".

    Raises:
        RequestError: The name is unknown, or the method decodes other models.
    """
    method = find_method(name)
    # "auto" of the family "ar" is a recipe of its own, which chooses among others.
    if method == "auto":
        method = DEFAULTS[family]
    check_family(method, family)
    return method


def check_names(name: str, given: Mapping[str, Any] | None = None) -> None:
    """Check a method and its options before a model is known.

    "auto" may mean the default of any family, so it takes the options of each.

    Args:
        name: Any name of a method.
        given: Values by option. None: none.

    Raises:
        RequestError: No model could be decoded so: a name is unknown, or a value out of its range.
    """
    own_name = find_method(name)
    wrong: PolydecError | None = None
    for method in DEFAULTS.values() if own_name == "auto" else (own_name,):
        try:
            method_option_values(method, given)
            return
        except PolydecError as error:
            wrong = wrong or error
    # One family whose default takes the options is enough; else the first family's reason is
    # raised.
    if wrong is not None:
        raise wrong


def search_methods(words: str) -> list[str]:
    """Return the methods whose name, aliases, title, paper or summary hold all of these words.

    Those whose name holds them come first.
    """
    return RECIPES.search(words)


def get_recipe_module(name: str) -> ModuleType:
    """Return a recipe's module, by any of its names.

    Raises:
        RequestError: There is no such name; the message gives the nearest ones.
    """
    return recipe_modules()[find_method(name)]


def method_options(name: str) -> tuple[Option, ...]:
    """Return the options of a recipe, from the signature of its `build`."""
    return RECIPES.options(find_method(name))


def method_option_values(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all options of a recipe with their values.

    Args:
        name: Any name of the method.
        given: Values by option, under today's or earlier names. None: the defaults alone.

    Returns:
        Values of all options, under their names of today.

    Raises:
        RequestError: An option is unknown or given twice, or a value is of the wrong type or out of
            range.
    """
    return RECIPES.chosen(find_method(name), given)


def can_use_method(name: str, kit: Kit) -> bool:
    """Return whether a kit holds what a method needs.

    Args:
        name: Any name of the method.
        kit: What the method would be given.
    """
    try:
        check_method_needs(name, kit)
    except PolydecError:
        return False
    return True


def check_method_needs(name: str, kit: Kit) -> None:
    """Check that a kit holds what a method needs.

    Args:
        name: Any name of the method.
        kit: What the method would be given.

    Raises:
        RequestError: The method decodes models of another family, or the draft's vocabulary
            differs.
        MissingError: The kit lacks something; the message is one sentence.
    """
    card: Card = get_recipe_module(name).CARD
    # The family first: its message says more than a missing part of the kit.
    check_family(name, kit.family)
    for need in card.needs:
        need.check(kit, card.name)


def check_family(name: str, family: str) -> None:
    """Check that a method decodes models of a family.

    Args:
        name: Any name of the method.
        family: "ar", "diffusion" or "insertion".

    Raises:
        RequestError: It decodes other models.
    """
    card: Card = get_recipe_module(name).CARD
    if card.family not in ("any", family):
        others = CALLED[card.family].partition(" ")[2]
        raise RequestError(
            f"method {card.name} decodes {others} models and this is {CALLED[family]} one: take {_OWN[family]} "
            "(`polydec methods`)"
        )


_OWN = {
    "ar": "plain, auto or another of the family 'ar'",
    "diffusion": "llada, fast-dllm or another of the family 'diffusion'",
    "insertion": "insertion-language-models",
}
"""By a model's family, what can decode it."""


def build(
    name: str, kit: Kit, given: Mapping[str, Any] | None = None
) -> tuple[Decoder, dict[str, Any]]:
    """Build a recipe's decoder.

    Args:
        name: Any name of the method.
        kit: What the method is given.
        given: Values by option. None: the defaults alone.

    Returns:
        The decoder, and all its options with their values.

    Raises:
        RequestError: An option is unknown, a value is not legal, or the method does not fit the
            model.
        MissingError: The kit lacks something.
    """
    module = get_recipe_module(name)
    values = method_option_values(name, given)
    card: Card = module.CARD
    check_method_needs(name, kit)
    # A method may use a draft model that it does not need, but only one of the target's vocabulary.
    if not card.needs_draft:
        kit = kit.without_foreign_draft()
    return module.build(kit, **values), values


def describe_method(name: str) -> dict[str, Any]:
    """Return the object that `polydec methods --json` prints for a method."""
    card: Card = get_recipe_module(name).CARD
    return {
        **RECIPES.describe(card.name),
        "family": card.family,
        "guarantee": card.guarantee.value if card.guarantee else None,
        "needs_training": card.needs_training,
        "parent": card.parent,
    }


def default_option_text(value: object) -> str:
    """Return a default value as --set takes it."""
    return as_text(value)
