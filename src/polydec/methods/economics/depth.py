"""Which layers, and which halves of them, a shallow copy of a network keeps."""

from __future__ import annotations

from collections.abc import Set

from polydec.base.errors import RequestError


def kept_layers(layers: int, speed: float, *, even: bool = False) -> tuple[int, ...]:
    """The floor(layers / speed) layers, at least two (one of one), of Unified Layer Skipping: the first, the last, and of the
    others those whose index is a multiple of floor(layers / (kept - 1)), from below. The published rule leaves the largest
    gap at the top, which costs an untuned model dearly; even: spaced as evenly as can be instead. speed: 1 (all of
    them) or more. Raises RequestError below 1.
    Source: Liu et al., "Accelerating inference in large language models with a unified layer skipping strategy" (2024).
    """
    if not speed >= 1.0:
        raise RequestError(f"speed is {speed}: it must be at least 1")
    count = min(layers, max(2, int(layers / speed)))
    if count == layers:
        return tuple(range(layers))
    if even:
        return tuple(round(i * (layers - 1) / (count - 1)) for i in range(count))
    step = layers // (count - 1)
    middle = [i for i in range(1, layers - 1) if i % step == 0][: count - 2]
    return (0, *middle, layers - 1)


def first_layers(exit: int | None, layers: int) -> tuple[int, ...]:
    """The layers below an exit; None: a quarter of them. Raises RequestError where there is no such exit."""
    if exit is not None and not 1 <= exit <= layers:
        raise RequestError(f"exit is {exit}: it must lie in 1 to {layers}, the model's layers")
    return tuple(range(max(1, layers // 4) if exit is None else exit))


def exits_every(every: int, layers: int) -> tuple[int, ...]:
    """Every so many depths, and the last. Raises RequestError below 1."""
    if every < 1:
        raise RequestError(f"every is {every}: it must be at least 1")
    return (*range(every, layers, every), layers)


def candidate_exit_depths(layers: int, every: int, upper: bool) -> tuple[int, ...]:
    """Every so many depths of the lower half of the layers, or of the upper one, the last layer left out; at least one.
    Raises RequestError where there is but one layer."""
    if layers < 2:
        raise RequestError(f"the model has {layers} layer: none lies below the last one")
    if upper:
        low, high = (layers // 2, layers)
    else:
        low, high = (1, max(2, layers // 2))
    return tuple(d for d in range(low, high) if d % every == 0) or (low,)


def parse_layer_halves(skip: str, layers: int) -> frozenset[int]:
    """The halves that `skip` names, such as "3,5a,7m": layer 3 whole, the attention of 5, the MLP of 7; "": none. 2 i is
    the attention of layer i, 2 i + 1 its MLP. Raises RequestError where a name is of another form, a layer is not below
    `layers`, or nothing would be left."""
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
    """What `halves` reads as these."""
    whole = {h // 2 for h in out if h ^ 1 in out}
    return ",".join(
        f"{h // 2}" if h // 2 in whole else f"{h // 2}{'am'[h % 2]}"
        for h in sorted(out)
        if h // 2 not in whole or h % 2 == 0
    )


def remaining_layer_halves(out: Set[int], layers: int) -> tuple[tuple[int, ...], frozenset[int]]:
    """What runs of so many layers without these halves."""
    return tuple(i for i in range(layers) if not {2 * i, 2 * i + 1} <= out), frozenset(
        h for h in out if h ^ 1 not in out
    )
