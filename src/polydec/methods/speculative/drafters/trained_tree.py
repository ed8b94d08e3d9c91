"""The tree of whatever was trained on the target's states, for use together with other drafts."""

from __future__ import annotations

from typing import Any, Protocol

from polydec.base.errors import MissingError, PolydecError
from polydec.core.protocols import Target
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.heads import HeadsDrafter
from polydec.methods.speculative.loop.protocols import Drafter, TreeGrower
from polydec.models.learned.artefact import width_of_states
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.learned.kinds.eagle3 import Eagle3Model
from polydec.models.learned.kinds.heads import DraftHeads

WIDTH = 4
TIPS = 1
"""Of each level the likeliest path goes on, and four tokens are named below it: by replay that is
worth 1 to 4 % more than two or three paths, as a further row of a level costs half as much as the
level."""


class ArtefactFinder(Protocol):
    """What holds a model and finds what was trained for it: a kit."""

    @property
    def target(self) -> Target: ...
    def find_artefact(self, kind: type[Any], /) -> Any: ...


def find_tree_drafter(kit: ArtefactFinder, tree: TreeGrower) -> tuple[Drafter, float] | None:
    """Find a drafter that was trained on the target's states.

    It reads no prompt beyond its last token, so that prompts cost nothing more, and its laws stay
    as they are whatever shapes the target's.

    Args:
        kit: The target, and what was trained for it.
        tree: Which nodes are drawn of the drafter's laws.

    Returns:
        The drafter, and how often it is right in its first token. None: nothing was trained that
        fits.
    """
    # The kinds in order of preference.
    for kind, drafts in (
        (Eagle3Model, EagleDrafter),
        (EagleModel, EagleDrafter),
        (DraftHeads, HeadsDrafter),
    ):
        trained = kit.find_artefact(kind)
        if trained is not None and _shows_states(kit.target):
            # Unshaped laws let the compiled code grow the tree in one call.
            return drafts(trained, tree, prompt=False, bent=False), trained.rates[0][0]
    return None


def require_tree_drafter(kit: ArtefactFinder, tree: TreeGrower) -> tuple[Drafter, float]:
    """Find a drafter that was trained on the target's states, or fail.

    Args:
        kit: The target, and what was trained for it.
        tree: Which nodes are drawn of the drafter's laws.

    Returns:
        The drafter, and how often it is right in its first token.

    Raises:
        MissingError: Nothing was trained that fits.
    """
    trained = find_tree_drafter(kit, tree)
    if trained is None:
        raise MissingError(
            "states is True: nothing is here that was trained on this model's states (--with names it)"
        )
    return trained


def _shows_states(target: Target) -> bool:
    """Whether the law, as it is steered or shaped, shows states."""
    # Steering or shaping may leave no hidden states to read, which shows only when asked.
    try:
        width_of_states(target)
    except PolydecError:
        return False
    return True
