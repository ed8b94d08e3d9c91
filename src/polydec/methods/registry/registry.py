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
from polydec.base.options import Option
from polydec.core.decoder import Decoder
from polydec.methods.registry.card import Card
from polydec.methods.registry.catalogue import ModuleCatalogue
from polydec.methods.registry.family import FAMILIES, DecodingFamily
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

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

    package: the folder, one mechanism a file; method: what a class there must have to be a
    mechanism.
    """

    package: str
    method: str


ROLES = {
    "drafters": MechanismRole("polydec.methods.speculative.drafters", "open_guess"),
    "trees": MechanismRole("polydec.methods.speculative.trees", "grow_tree"),
    "verifiers": MechanismRole("polydec.methods.speculative.verifiers", "verify_draft"),
    "policies": MechanismRole("polydec.methods.speculative.policies", "draft_budget"),
    "shapers": MechanismRole("polydec.laws.shapers", "shape_law"),
    "unmaskers": MechanismRole("polydec.methods.diffusion.unmaskers", "choose_edit"),
    "refreshes": MechanismRole("polydec.methods.diffusion.refreshes", "fed_positions"),
    "contrasts": MechanismRole("polydec.laws.contrasts", "mix_laws"),
}
"""By the name of a role, which is also the group of the plug-ins that bring more of it."""


def recipe_modules() -> dict[str, ModuleType]:
    """Every recipe's module by its name (the file's, with hyphens), those of other packages
    included (`plugins.py`)."""
    return RECIPES.all_modules()


def of_family(family: str) -> list[str]:
    """Return the names of the recipes for a family: "ar", "diffusion", "insertion" or
    "patches"."""
    return [
        name for name, module in recipe_modules().items() if module.CARD.family in ("any", family)
    ]


@cache
def mechanism_classes(role: str) -> dict[str, type]:
    """Every mechanism of a role folder by its file's name: the public class there that has the
    role's method. Those of other packages are among them (`plugins.py`)."""
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
    """Every name that a method answers to, in lower case: its own, its aliases and its paper's
    number; and its own name."""
    return RECIPES.all_names()


def find_method(name: str) -> str:
    """The method that answers to a name, an alias or an arXiv number. Raises RequestError with the
    nearest names for one that is not there."""
    return RECIPES.find_module(name, "`polydec methods` lists all of them")


def recipe_for_model(name: str, family: DecodingFamily) -> ModuleType:
    """The recipe that a name means for a model: "auto" is the default of its family.

    Args:
        name: Any name of a method.
        family: Of the model.

    Returns:
        The recipe's module.

    Raises:
        RequestError: The name is unknown, or the method decodes models of another family.
    """
    method = find_method(name)
    # "auto" of the family "ar" is a recipe of its own, which chooses among others.
    if method == "auto":
        method = family.default_method
    recipe = recipe_modules()[method]
    _check_family(recipe.CARD, family)
    return recipe


def check_names(name: str, given: Mapping[str, Any] | None = None) -> None:
    """Check what can be known of a method without a model. "auto" may mean the default of any
    family, so it takes the options of each.

    Args:
        name: Any name of a method.
        given: Its options.

    Raises:
        RequestError: No model could be decoded by this method with these options.
    """
    own_name = find_method(name)
    if own_name == "auto":
        methods = [family.default_method for family in FAMILIES.values()]
    else:
        methods = [own_name]
    wrong: PolydecError | None = None
    for method in methods:
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
    """Methods whose name, aliases, title, paper or summary hold all of these words, those whose
    name does first."""
    return RECIPES.search_modules(words)


def get_recipe_module(name: str) -> ModuleType:
    """A recipe's module, by any of its names. Raises RequestError with the nearest names for one
    that is not there."""
    return recipe_modules()[find_method(name)]


def method_options(name: str) -> tuple[Option, ...]:
    """Return the options of a recipe, from the signature of its `build`."""
    return RECIPES.module_options(find_method(name))


def method_option_values(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Complete the options of a recipe.

    Args:
        name: Any name of it.
        given: Options as text or typed; the others have their defaults. With `published=true` they
            have what the method's paper sets.

    Returns:
        All options with the values they have, under their names of today.

    Raises:
        RequestError: An option is unknown, given twice, of the wrong type or out of range; or the
            published preset is asked for and cannot be had, or an option contradicts it.
    """
    return RECIPES.complete_options(find_method(name), given)


def published_preset(name: str) -> PublishedPreset | None:
    """What a method's paper sets, by any name of the method; None where nobody has read it against
    the options yet."""
    return RECIPES.published_preset(find_method(name))


def can_use_method(name: str, kit: Kit) -> bool:
    """Whether a kit holds what a method needs.

    Args:
        name: Any name of the method.
        kit: The models, and what goes with them.

    Returns:
        True where it can be built.
    """
    try:
        check_method_needs(get_recipe_module(name).CARD, kit)
    except PolydecError:
        return False
    return True


def check_method_needs(card: Card, kit: Kit) -> None:
    """Check that a method can decode what a kit holds.

    Args:
        card: Of the method.
        kit: The models, and what was trained for them.

    Raises:
        RequestError: The kit lacks something, in one sentence.
    """
    _check_family(card, kit.family)
    for need in card.needs:
        need.check_kit(kit, card.name)


def _check_family(card: Card, family: DecodingFamily) -> None:
    """Raise RequestError where a method does not decode models of this family."""
    if card.family not in ("any", family.name):
        others = FAMILIES[card.family].called.partition(" ")[2]
        raise RequestError(
            f"method {card.name} decodes {others} models and this is {family.called} one: take {family.own_methods} "
            "(`polydec methods`)"
        )


def build(
    name: str, kit: Kit, given: Mapping[str, Any] | None = None
) -> tuple[Decoder, dict[str, Any]]:
    """Build the decoder of a method by its name.

    Args:
        name: Any name of a method.
        kit: The models, and what goes with them.
        given: Options of the method, as text or typed; the others have their defaults.

    Returns:
        The decoder, and all options with the values they have.

    Raises:
        RequestError: An option is unknown, of the wrong type or out of range, or the kit lacks
            something.
    """
    values = method_option_values(name, given)
    return build_recipe(get_recipe_module(name), kit, values), values


def build_recipe(recipe: ModuleType, kit: Kit, values: Mapping[str, Any]) -> Decoder:
    """Build the decoder of a recipe whose options are checked.

    Args:
        recipe: The recipe's module.
        kit: The models, and what goes with them.
        values: All options of the recipe with the values they have (`method_option_values`).

    Returns:
        The decoder.

    Raises:
        RequestError: The kit lacks something that the method needs, or two options do not go
            together.
    """
    card: Card = recipe.CARD
    check_method_needs(card, kit)
    # A method may use a draft model that it does not need, but only one of the target's vocabulary.
    if not card.needs_draft:
        kit = kit.without_foreign_draft()
    return recipe.build(kit, **values)


def describe_method(name: str) -> dict[str, Any]:
    """Return the object that `polydec methods --json` prints for a method."""
    card: Card = get_recipe_module(name).CARD
    return {
        **RECIPES.describe_module(card.name),
        "family": card.family,
        "guarantee": card.guarantee.value if card.guarantee else None,
        "needs_training": card.needs_training,
        "parent": card.parent,
    }
