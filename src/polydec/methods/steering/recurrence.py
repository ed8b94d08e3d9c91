"""Added recurrence."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import OWN_PROMPT, STATES, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="recurrence",
    title="Added recurrence (a long prompt in windows, one vector from each to the next)",
    summary="A prompt is read in short windows; of all windows before the last one the model sees a single vector.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Yoshida, Making the most of your model: methods for finetuning and applying pretrained transformers, 2024",
    reduces_to="no steering where the prompt has no more than one window",
    home="prompts longer than the model's context or than memory bears, with a model that was tuned for it "
    "(`polydec train recurrence`)",
    needs=(STATES, OWN_PROMPT, ArtefactNeed("window-summary")),
    aliases=("added recurrence", "recurrent summary", "window summary"),
    published="better perplexity than GPT-2 at equal compute or memory",
)
PUBLISHED = PublishedPreset(
    refused="a window's vector is a further key and value of a chosen layer there, and enters the "
    "first layer here"
)


def build(
    kit: Kit,
    *,
    window: Annotated[
        int, InRange(0, 65536), ValueNote("0: as it was trained"), "tokens of a window"
    ] = 0,
) -> Target:
    from polydec.laws.targets.recurrent_windows import WindowedPromptTarget
    from polydec.models.learned.kinds.window_summary import WindowSummary

    made = kit.needed_artefact(WindowSummary)
    return WindowedPromptTarget(
        kit.target,
        kit.prompt,
        WindowSummary(made.tensors, window or made.window_length, made.begin_token),
    )
