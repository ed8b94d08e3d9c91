"""What a network cannot answer is refused before any pass."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.base.errors import RequestError
from polydec.core.types import Draft, ScoreRequest
from polydec.models.nets.query import NeuralNetwork


def can_run_adapters(network: NeuralNetwork) -> bool:
    """Whether rows of a pass can run with an adapter (models/nets/gated.py) next to rows without."""
    return getattr(network, "adapts", False)


def router_shape(network: NeuralNetwork) -> tuple[int, int] | None:
    """How many layers and experts a network has whose router can be moved (`ScoreRequest.routing`).

    None: it has no router, or none that can be moved.
    """
    return getattr(network, "routes", None)


def require_answerable(network: NeuralNetwork, want: ScoreRequest) -> None:
    """Check what is wanted of a score.

    Args:
        network: The network that answers.
        want: What is read of the scores.

    Raises:
        RequestError: It reads what this network does not show.
    """
    if want.exits and not network.partial:
        raise RequestError(
            f"exits is {want.exits}: the adapter of this model runs the whole network only"
        )
    if bad := [d for d in want.exits if not 1 <= d <= network.layers]:
        raise RequestError(f"exits has {bad[0]}: depths must lie in 1 to {network.layers}")


def require_readable(network: NeuralNetwork, draft: Draft, want: ScoreRequest) -> None:
    """Check a draft, and what is wanted of its scores.

    Args:
        network: The network that answers.
        draft: The draft to score.
        want: What is read of the scores.

    Raises:
        RequestError: The network cannot score this draft, or not with what is wanted of it.
    """
    require_answerable(network, want)
    if want.routing is not None:
        raise RequestError("routing can be wanted of all layers of a model, and of no part of them")
    if draft.state is None:
        return
    if draft.adapter is not None and not can_run_adapters(network):
        raise RequestError(
            f"adapter is {type(draft.adapter).__name__}: no row of this network runs with matrices of its own"
        )
    # A state may stand in for a token only where the node is never committed, as the text has no
    # token for it.
    carries = {i: s for i, s in enumerate(draft.state) if s is not None}
    if len(draft.state) != len(draft) or any(
        draft.probe is None or not draft.probe[i] for i in carries
    ):
        raise RequestError(
            "state must have one entry a node, None but for probes: what carries a state is never committed"
        )
    # States that enter above the first layer need a network that can run its layers in parts.
    climbs = network.partial and network.tree
    enter = draft.enter or (0,) * len(draft)
    # A state may enter any layer of such a network, else the first one only.
    top = network.layers - 1 if climbs else 0
    # Deepest entry is one layer below the last, where a state still has a layer to go through.
    if wrong := [d for d in enter if not 0 <= d <= top]:
        raise RequestError(f"enter is {wrong[0]}: it must lie in 0 to {top}")
    if len(enter) != len(draft) or any(d for i, d in enumerate(enter) if i not in carries):
        raise RequestError(f"enter is {enter}: it must have one entry a node, 0 but for states")
    # Layers run from below: a node that enters above cannot stand before one that enters below.
    if list(enter) != sorted(enter):
        raise RequestError(
            f"enter is {enter}: nodes that enter above the first layer must stand behind all others"
        )
    if carries:
        # Of any token: the root itself may stand for a vector, which has no row in the table.
        width = network.embed_tokens((0,)).shape[1]
    else:
        width = 0
    for i, state_H in carries.items():
        if state_H.shape != (width,):
            raise RequestError(f"state {i} has shape {tuple(state_H.shape)}: it must be ({width},)")


def require_routing(network: NeuralNetwork, draft: Draft, want: ScoreRequest) -> None:
    """Check a move of the router, and the draft that is scored under it.

    Args:
        network: The network that answers.
        draft: The draft to score.
        want: What is read of the scores, and how the router is moved.

    Raises:
        RequestError: The network has no router of that shape, or the draft brings states of its
            own.
    """
    require_answerable(network, want)
    have = router_shape(network)
    moved = want.routing
    if have is None or moved is None:
        raise RequestError(
            "routing is wanted: this model has no router of experts that can be moved"
        )
    if len(moved) != have[0] or any(len(layer) != have[1] for layer in moved):
        raise RequestError(
            f"routing has {len(moved)} layers of {len(moved[0]) if moved else 0} experts: this model has "
            f"{have[0]} of {have[1]}"
        )
    # Moved weights of experts change what a state means.
    if draft.state is not None or want.hidden or want.exits:
        raise RequestError("routing is wanted: such a pass gives laws of tokens alone, no states")


def require_layers(
    network: NeuralNetwork, layers: Sequence[int], without: frozenset[int], together: int
) -> None:
    """Check that some layers can run alone; see `Session.open_part`.

    Args:
        network: The network.
        layers: Indices of the layers, ascending.
        without: Halves that are left out (2 i: the attention of layer i; 2 i + 1: its MLP), not
            both of one layer.
        together: How many consecutive attentions read the same input, 1 or more.

    Raises:
        RequestError: The network cannot run them.
    """
    if not (network.partial and network.tree and network.layers):
        raise RequestError(
            "layers cannot run alone in this model: its adapter runs the whole network only"
        )
    # Layers must be ascending, each once, and of this network.
    run = list(layers)
    last = network.layers - 1
    if not run or run != sorted(set(run)) or run[0] < 0 or run[-1] > last:
        raise RequestError(f"layers is {layers}: they must be ascending and lie in 0 to {last}")
    # Two halves of a layer have the numbers 2 i and 2 i + 1; to leave out both is to leave out the
    # layer.
    if not {half // 2 for half in without} <= set(run) or any(h ^ 1 in without for h in without):
        raise RequestError(
            f"without is {sorted(without)}: it must hold 2 i (attention) or 2 i + 1 (MLP) of layers i that "
            "run, not both of one"
        )
    if together < 1:
        raise RequestError(f"together is {together}: it must be at least 1")
    if together > 1 and not getattr(network, "grouped", False):
        raise RequestError(
            "layers of this model cannot read together (the compiled step runs one after another): load them "
            "on the torch path (--dtype torch)"
        )
