"""Ways to steer a model, found by name, alias or paper, and built into a law.

Any method decodes that law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import Option
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.catalogue import ModuleCatalogue
from polydec.methods.registry.kit import SECOND_PROMPT, Kit

STEERINGS = ModuleCatalogue(("polydec.methods.steering",), "steerings", "steering", "steer is {}")


def steering_modules() -> dict[str, ModuleType]:
    """Return the module of each way by its name (the file's, with hyphens).

    Those of other packages are included (`plugins.py`).
    """
    return STEERINGS.modules()


def steering_names() -> dict[str, str]:
    """Return the own name of a way by every name that it answers to.

    The names are in lower case with hyphens.
    """
    return STEERINGS.names()


def find_steering(name: str) -> str:
    """Return the own name of the way that answers to a name, an alias or an arXiv number.

    Raises:
        RequestError: There is no such name; the message gives the nearest ones.
    """
    return STEERINGS.find(name, f"it must be one of {', '.join(steering_modules())}")


def get_steering_module(name: str) -> ModuleType:
    """Return a way's module, by any of its names.

    Raises:
        RequestError: There is no such name; the message gives the nearest ones.
    """
    return steering_modules()[find_steering(name)]


def steering_options(name: str) -> tuple[Option, ...]:
    """Return the options of a way, from the signature of its `build`."""
    return STEERINGS.options(find_steering(name))


def steering_option_values(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all options of a way with their values.

    Args:
        name: Any name of the way.
        given: Values by option. None: the defaults alone.

    Raises:
        RequestError: The way or an option is unknown, or a value is of the wrong type or out of
            range.
    """
    return STEERINGS.chosen(find_steering(name), given)


def second_prompt_deriver(name: str) -> Callable[[str], str] | None:
    """Return what makes a second prompt from the first one; None where nothing does."""
    return getattr(get_steering_module(name), "derive", None)


def steering_vector_positions(name: str, options: Mapping[str, Any]) -> int:
    """Return how many positions of the context a way's own vectors take.

    Args:
        name: Any name of the way.
        options: Values of its options; the file's `POSITIONS` reads them.
    """
    # A way without vectors of its own takes no positions.
    taken: Callable[[Mapping[str, Any]], int] | None = getattr(
        get_steering_module(name), "POSITIONS", None
    )
    if taken is None:
        return 0
    return taken(options)


def check_second(name: str, given: bool) -> None:
    """Check that a second prompt is given only to a way that reads one.

    Args:
        name: Any name of the way.
        given: Whether the request has a second prompt.

    Raises:
        RequestError: One is given and not read.
    """
    card: Card = get_steering_module(name).CARD
    # A second prompt that nobody reads is an error: it would have no effect.
    if given and SECOND_PROMPT not in card.needs:
        raise RequestError(
            f"negative_prompt is given: steering {card.name} reads no second prompt, so leave it out"
        )


def build(
    name: str, kit: Kit, given: Mapping[str, Any] | None = None
) -> tuple[Target, dict[str, Any]]:
    """Build the steered law of a kit's bare target.

    Args:
        name: Any name of the way.
        kit: What the way is given.
        given: Values by option. None: the defaults alone.

    Returns:
        The steered law, and all options with their values.

    Raises:
        RequestError: An option is not legal, or the draft's vocabulary differs.
        MissingError: The kit lacks something.
    """
    module = get_steering_module(name)
    values = steering_option_values(name, given)
    card: Card = module.CARD
    # All needs are checked before the law is built: a message names the first one missing.
    for need in card.needs:
        need.check(kit, f"steering {card.name}")
    return module.build(kit, **values), values


def describe_steering(name: str) -> dict[str, Any]:
    """Return the object that `polydec steerings --json` prints for a way."""
    return STEERINGS.describe(find_steering(name))
