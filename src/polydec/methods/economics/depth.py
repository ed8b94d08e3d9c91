"""Choose layers, and halves of layers, that a shallow copy of a network keeps."""

from __future__ import annotations

from collections.abc import Set

from polydec.base.errors import RequestError


def kept_layers(layers: int, speed: float, *, even: bool = False) -> tuple[int, ...]:
    """Return the layers that Unified Layer Skipping keeps.

    These are floor(layers / speed) layers, at least two (one of one): the first, the last, and of
    the others those whose index is a multiple of floor(layers / (kept - 1)), from below. The
    published rule leaves the largest gap at the top, which costs an untuned model dearly.

    Source: Liu et al., "Accelerating inference in large language models with a unified layer
    skipping strategy" (2024).

    Args:
        layers: Layers of the model, at least 1.
        speed: Factor by which fewer layers run, at least 1. 1: all of them.
        even: Space the layers as evenly as can be, in place of the published rule.

    Returns:
        Layer indices, ascending.

    Raises:
        RequestError: `speed` is below 1.
    """
    if not speed >= 1.0:
        raise RequestError(f"speed is {speed}: it must be at least 1")
    count = min(layers, max(2, int(layers / speed)))
    if count == layers:
        return tuple(range(layers))
    # Both ends included: the first and the last layer always run.
    if even:
        return tuple(round(i * (layers - 1) / (count - 1)) for i in range(count))
    step = layers // (count - 1)
    # From below, so the layers that are left over lie near the top.
    middle = [i for i in range(1, layers - 1) if i % step == 0][: count - 2]
    return (0, *middle, layers - 1)


def first_layers(exit: int | None, layers: int) -> tuple[int, ...]:
    """Return the layers below an early exit.

    Args:
        exit: Number of layers that run, 1 to `layers`. None: a quarter of them.
        layers: Layers of the model.

    Raises:
        RequestError: There is no such exit.
    """
    if exit is not None and not 1 <= exit <= layers:
        raise RequestError(f"exit is {exit}: it must lie in 1 to {layers}, the model's layers")
    return tuple(range(max(1, layers // 4) if exit is None else exit))


def exits_every(every: int, layers: int) -> tuple[int, ...]:
    """Return every so many depths, and the last.

    Args:
        every: Distance of two exits in layers, at least 1.
        layers: Layers of the model.

    Raises:
        RequestError: `every` is below 1.
    """
    if every < 1:
        raise RequestError(f"every is {every}: it must be at least 1")
    return (*range(every, layers, every), layers)


def candidate_exit_depths(layers: int, every: int, upper: bool) -> tuple[int, ...]:
    """Return every so many depths of one half of the layers, the last layer left out; at least one.

    Args:
        layers: Layers of the model, at least 2.
        every: Distance of two depths in layers, at least 1.
        upper: Take the upper half of the layers, else the lower.

    Raises:
        RequestError: The model has one layer.
    """
    if layers < 2:
        raise RequestError(f"the model has {layers} layer: none lies below the last one")
    if upper:
        low = layers // 2
        high = layers
    else:
        low = 1
        high = max(2, layers // 2)
    # At least one depth: the first of the half where no multiple lies in it.
    return tuple(d for d in range(low, high) if d % every == 0) or (low,)


def parse_layer_halves(skip: str, layers: int) -> frozenset[int]:
    """Read which halves of layers are left out.

    Args:
        skip: Names with commas between them, such as "3,5a,7m": all of layer 3, the attention of 5,
            the MLP of 7. "": none.
        layers: Layers of the model.

    Returns:
        Numbers of halves: 2 i is the attention of layer i, 2 i + 1 its MLP.

    Raises:
        RequestError: A name is of another form, a layer is not below `layers`, or nothing would be
            left.
    """
    out = set[int]()
    for name in filter(None, (s.strip() for s in skip.split(","))):
        if name[-1] in "am":
            number = name[:-1]
        else:
            number = name
        if not number.isdecimal() or int(number) >= layers:
            raise RequestError(
                f"skip is {skip!r}: it must name layers 0 to {layers - 1}, such as 3 (whole), 3a (its attention) "
                "or 3m (its MLP), with commas between them"
            )
        # Halves 2 i (attention) and 2 i + 1 (MLP); a bare number means both.
        at = 2 * int(number)
        if name == number:
            out |= {at, at + 1}
        else:
            out |= {at + "am".index(name[-1])}
    if len(out) == 2 * layers:
        raise RequestError(
            f"skip is {skip!r}: at least one attention or MLP of the {layers} layers must be left"
        )
    return frozenset(out)


def format_layer_halves(out: Set[int]) -> str:
    """Write halves of layers as `parse_layer_halves` reads them."""
    # The other half of a layer is h ^ 1: both together are named by the layer alone.
    whole = {h // 2 for h in out if h ^ 1 in out}
    return ",".join(
        f"{h // 2}" if h // 2 in whole else f"{h // 2}{'am'[h % 2]}"
        for h in sorted(out)
        if h // 2 not in whole or h % 2 == 0
    )


def remaining_layer_halves(out: Set[int], layers: int) -> tuple[tuple[int, ...], frozenset[int]]:
    """Split what runs into layers and missing halves.

    Args:
        out: Halves that are left out, numbered as in `parse_layer_halves`.
        layers: Layers of the model.

    Returns:
        Layers of which at least a half runs, and the halves that are missing in them.
    """
    return tuple(i for i in range(layers) if not {2 * i, 2 * i + 1} <= out), frozenset(
        h for h in out if h ^ 1 not in out
    )
