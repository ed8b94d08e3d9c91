"""Ways to steer a model: found by their files, names, aliases and papers, and built into a law that
any method decodes."""

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
    """The module of each way by its name (the file's, with hyphens), those of other packages
    included (`plugins.py`)."""
    return STEERINGS.all_modules()


def steering_names() -> dict[str, str]:
    """Every name that a way answers to, in lower case with hyphens: its own, its aliases, its
    paper's number; and its own."""
    return STEERINGS.all_names()


def find_steering(name: str) -> str:
    """The way that answers to a name, an alias or an arXiv number. Raises RequestError with the
    nearest names for one that is not there."""
    return STEERINGS.find_module(name, f"it must be one of {', '.join(steering_modules())}")


def get_steering_module(name: str) -> ModuleType:
    """A way's module, by any of its names. Raises RequestError with the nearest names for one that
    is not there."""
    return steering_modules()[find_steering(name)]


def steering_options(name: str) -> tuple[Option, ...]:
    """Return the options of a way, from the signature of its `build`."""
    return STEERINGS.module_options(find_steering(name))


def steering_option_values(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Complete the options of a way to steer.

    Args:
        name: Any name of it.
        given: Options as text or typed; the others have their defaults.

    Returns:
        All options with the values they have.

    Raises:
        RequestError: An option is unknown, of the wrong type or out of range.
    """
    return STEERINGS.complete_options(find_steering(name), given)


def second_prompt_deriver(name: str) -> Callable[[str], str] | None:
    """Return what makes a second prompt from the first one; None where nothing does."""
    return getattr(get_steering_module(name), "derive", None)


def steering_vector_positions(name: str, options: Mapping[str, Any]) -> int:
    """How many positions of the context a way's own vectors take: what `POSITIONS` of its file
    makes of its options.

    Args:
        name: Any name of the way.
        options: All its options.

    Returns:
        The positions, 0 for a way that has no vectors.
    """
    # A way without vectors of its own takes no positions.
    taken: Callable[[Mapping[str, Any]], int] | None = getattr(
        get_steering_module(name), "POSITIONS", None
    )
    if taken is None:
        return 0
    return taken(options)


def recurring_vector_positions(name: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """How many positions of the context a way's own vectors take within an answer.

    Args:
        name: Any name of the way.
        options: All its options.

    Returns:
        Positions, and behind how many tokens of the answer they are taken again; 0 tokens: never.
    """
    taken: Callable[[Mapping[str, Any]], tuple[int, int]] | None = getattr(
        get_steering_module(name), "RECURRING", None
    )
    if taken is None:
        return 0, 0
    return taken(options)


def steered_prompt_positions(name: str, kit: Kit, options: Mapping[str, Any]) -> int:
    """How many positions of the context a kit's prompt takes, a way's own vectors left out: what
    `prompt_positions` of its file says.

    Args:
        name: Any name of the way.
        kit: What the way is built of.
        options: All its options.

    Returns:
        The positions, as many as the prompt has tokens for a way that does not shorten it.
    """
    taken: Callable[[Kit, Mapping[str, Any]], int] | None = getattr(
        get_steering_module(name), "prompt_positions", None
    )
    if taken is None:
        return len(kit.prompt)
    return taken(kit, options)


def shortens_prompts(name: str) -> bool:
    """Whether a way, by any name of it, may read a prompt in fewer positions than it has tokens."""
    return hasattr(get_steering_module(name), "prompt_positions")


def reads_second_prompt(name: str) -> bool:
    """Whether a way, by any name of it, reads a second prompt."""
    card: Card = get_steering_module(name).CARD
    return SECOND_PROMPT in card.needs


def check_second(name: str, given: bool) -> None:
    """Check that a second prompt is read where it is given.

    Args:
        name: Any name of the way.
        given: Whether there is one.

    Raises:
        RequestError: The way reads none.
    """
    card: Card = get_steering_module(name).CARD
    # A second prompt that nobody reads is an error: it would have no effect.
    if given and not reads_second_prompt(name):
        raise RequestError(
            f"negative_prompt is given: steering {card.name} reads no second prompt, so leave it out"
        )


def build(
    name: str, kit: Kit, given: Mapping[str, Any] | None = None
) -> tuple[Target, dict[str, Any]]:
    """The steered law of a kit's bare target, and all options with the values they have. Raises
    RequestError for an option that is not legal, or something that the kit lacks."""
    module = get_steering_module(name)
    values = steering_option_values(name, given)
    card: Card = module.CARD
    # All needs are checked before the law is built: a message names the first one missing.
    for need in card.needs:
        need.check_kit(kit, f"steering {card.name}")
    return module.build(kit, **values), values


def describe_steering(name: str) -> dict[str, Any]:
    """Return the object that `polydec steerings --json` prints for a way."""
    return STEERINGS.describe_module(find_steering(name))
