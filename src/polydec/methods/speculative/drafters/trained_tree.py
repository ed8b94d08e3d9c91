"""The tree of whatever was trained on the target's states: found, and fed where that pays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from polydec.base.errors import MissingError, PolydecError
from polydec.core.protocols import Target
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.falcon import FalconDrafter
from polydec.methods.speculative.drafters.heads import HeadsDrafter
from polydec.methods.speculative.drafters.longspec import LongSpecDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.priced import PricedDrafter
from polydec.methods.speculative.drafters.priced_tree import PricedTree
from polydec.methods.speculative.loop.protocols import Drafter, TreeGrower
from polydec.models.learned.artefact import StateDrafterModel, width_of_states
from polydec.models.learned.kinds.chimera import ChimeraModel
from polydec.models.learned.kinds.clover import CloverModel
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.learned.kinds.eagle3 import Eagle3Model
from polydec.models.learned.kinds.falcon import FalconModel
from polydec.models.learned.kinds.heads import DraftHeads
from polydec.models.learned.kinds.longspec import LongSpec

WIDTH = 4
TIPS = 1
"""Of each level the likeliest path goes on, and four tokens are named below it: by replay that is
worth 1 to 4 % more than two or three paths, as a further row of a level costs half as much as the
level."""
UNBOUNDED = 1024
"""Levels and tokens of a method's own tree: its policy bounds them."""
_UNBENT = {"prompt": False, "bent": False}
_MAKERS: tuple[tuple[type[Any], Callable[[Any, TreeGrower], Drafter]], ...] = (
    (Eagle3Model, partial(EagleDrafter, **_UNBENT)),
    (EagleModel, partial(EagleDrafter, **_UNBENT)),
    (ChimeraModel, partial(EagleDrafter, **_UNBENT)),
    (FalconModel, partial(FalconDrafter, **_UNBENT)),
    (CloverModel, partial(HeadsDrafter, **_UNBENT)),
    (DraftHeads, partial(HeadsDrafter, **_UNBENT)),
    (LongSpec, LongSpecDrafter),
)
"""The kinds in order of preference, and what drafts with each. Laws that are not shaped let the
compiled code grow the tree in one call."""


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
    for kind, drafter_of in _MAKERS:
        trained = kit.find_artefact(kind)
        if trained is not None and _shows_states(kit.target):
            return drafter_of(trained, tree), trained.rates[0][0]
    return None


def cost_aware_tree(
    drafter: Drafter, trained: StateDrafterModel, kit: ArtefactFinder, costs: PassCosts
) -> CostAwareDrafter:
    """A trained drafter whose tree is grown and fed as far as that is worth its cost.

    Levels cost what they were measured to cost here. Where this drafter was not measured, a draft
    costs as much as where it was trained, shared out among the levels that have rates.

    Args:
        drafter: Grows a tree of certain tokens, and honours a budget's floor.
        trained: What was trained.
        kit: The target, and what was trained for it.
        costs: What passes cost on this machine.

    Returns:
        The wrapped drafter: it drafts nothing where nothing pays.
    """
    if costs.tree_ms is not None and _measured_artefact(kit) is trained:
        first_ms, level_ms = costs.tree_ms
    else:
        first_ms = level_ms = trained.share * costs.request_share(1) / len(trained.rates)
    right = trained.rates[0][0]
    tree = PricedTree(drafter, first_ms, level_ms, right, UNBOUNDED, UNBOUNDED)
    return CostAwareDrafter(NothingDrafter(), None, costs, tree=tree)


def cost_aware_proposal(
    drafter: Drafter, trained: StateDrafterModel, costs: PassCosts
) -> CostAwareDrafter:
    """A trained drafter whose proposals all take as long, fed as far as that is worth its cost.

    Args:
        drafter: The drafter.
        trained: What was trained.
        costs: What passes cost on this machine.

    Returns:
        The wrapped drafter: it is asked, and its nodes are fed, only where that pays.
    """
    ms = trained.share * costs.request_share(1)
    return CostAwareDrafter(PricedDrafter(drafter, ms), None, costs)


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


def _measured_artefact(kit: ArtefactFinder) -> Any:
    """What the measured costs of a tree are of: the first that was trained."""
    found = (kit.find_artefact(kind) for kind, _ in _MAKERS)
    return next((trained for trained in found if trained is not None), None)


def _shows_states(target: Target) -> bool:
    """Whether the law, as it is steered or shaped, shows states."""
    # Steering or shaping may leave no hidden states to read, which shows only when asked.
    try:
        width_of_states(target)
    except PolydecError:
        return False
    return True
