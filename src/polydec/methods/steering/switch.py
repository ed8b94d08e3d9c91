"""Two models in turns."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="switch",
    title="Switch between two models",
    summary="The second model (--draft) writes, and the first one takes over while predictions are uncertain.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Entropy Adaptive Decoding: Dynamic Model Switching for Efficient Inference, 2025 (published: window 5)",
    reduces_to="no steering at tau below 0; the second model at tau none",
    home="a small model that is nearly as good, under any method and any rule of sampling",
    needs=(DRAFT,),
    aliases=("model switching",),
)
PUBLISHED = PublishedPreset(
    unknown="its threshold is swept, and its least distance between two switches could not be read: "
    "tau and hold stay ours"
)


def build(
    kit: Kit,
    *,
    tau: Annotated[
        float | None, "bits of mean entropy above which the first model takes over, none: never"
    ] = 1.0,
    tau_down: Annotated[float | None, "bits at or below which the second does, none: tau"] = None,
    window: Annotated[int, InRange(1, 256), "tokens of the mean"] = 5,
    hold: Annotated[int, InRange(1, 4096), "least tokens between two switches"] = 10,
) -> Target:
    from polydec.laws.targets.switch import EntropySwitchRule, SwitchTarget

    # The draft model is the small one, which writes first.
    return SwitchTarget(kit.drafting, kit.target, EntropySwitchRule(tau, tau_down, window, hold))
