"""`polydec train sorted`: one draft whose first half and three quarters are drafts too (S2D)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polydec.base.errors import RequestError
from polydec.lab.train.lm import train_lm
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.specs.sorted import SortedSpec


def exits_of(layers: int) -> tuple[int, ...]:
    """Half, three quarters and all of the layers, as the recipe s2d takes them."""
    return tuple(sorted({layers // 2, 3 * layers // 4, layers} - {0}))


def narrow_shape(target: LlamaShape, width: int) -> LlamaShape:
    """The target's shape at another width.

    Heads have the same size, about as many share a key as there, and the inner width is in
    proportion.

    Args:
        target: The target's sizes.
        width: The new width, a multiple of the target's head size.

    Returns:
        The sizes.

    Raises:
        RequestError: The width is no multiple of the head size.
    """
    if width % target.head:
        raise RequestError(
            f"width is {width}: it must be 0 or a multiple of {target.head}, the target's head size"
        )
    heads = width // target.head
    # As many query heads to a key head as in the target, as far as the heads divide.
    shared = max(1, round(heads * target.kv_heads / target.heads))
    return replace(
        target,
        width=width,
        heads=heads,
        kv_heads=next(k for k in range(shared, 0, -1) if heads % k == 0),
        inner=round(target.inner * width / target.width),
    )


def train_sorted(spec: SortedSpec) -> dict[str, Any]:
    """Train on the mean loss of all exits, save, and measure.

    See `train_lm`; bits per byte are those of the full draft.
    """
    target = load_directory(spec.target).s
    begun = not spec.width
    layers = spec.layers or max(2, target.layers // 2)
    exits = spec.exits or exits_of(layers)
    # A draft that begins with the target's layers needs smaller rates than a new one.
    if begun:
        rate = 1e-3
        muon = 0.01
    else:
        rate = 6e-3
        muon = 0.02
    schedule = TrainingSchedule(
        spec.steps, spec.rate or rate, muon=muon if spec.muon is None else spec.muon
    )
    result = train_lm(
        LMSpec(
            spec.out,
            data=spec.data,
            start=spec.target if begun else None,
            tokenizer=spec.target,
            layers=layers,
            shape=None if begun else narrow_shape(target, spec.width),
            teacher=spec.target if spec.distil else None,
            schedule=schedule,
            exits=exits,
            train_mb=spec.train_mb,
            held_kb=spec.held_kb,
            seed=spec.seed,
            save_every=spec.save_every,
            bf16=spec.bf16,
            **(spec.more or {}),
        )
    )
    return {**result, "exits": list(exits)}
