"""REF-VLM: a text that points at parts of an image, and the model's states where it does."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="ref-vlm",
    title="REF-VLM (triplets)",
    summary="Gives the model's state at each reference of a text of triplets, and boxes and masks that are decoded of it.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="REF-VLM: triplet-based referring paradigm for unified visual decoding, 2025",
    reduces_to="plain in its text; jump-forward where depth is above 0",
    parent="plain",
    home="a vision-language model of `polydec train ref-vlm`",
    needs_training=True,
    shows_masks=True,
    aliases=("triplets", "triplet-decoding", "referring"),
    unexercised=dict.fromkeys(
        ("drafted", "accepted", "rejected"), "the text is written token by token"
    ),
)
PUBLISHED = PublishedPreset({})


def build(
    kit: Kit,
    *,
    depth: Annotated[
        int, InRange(0, 64), "tokens drafted a pass where a constraint leaves no choice"
    ] = 0,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.forced import JumpForwardDrafter
    from polydec.methods.speculative.loop.reference_reading import ReferenceReading
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.unit_decoders import UnitDecoders

    vocab = kit.target.vocab
    return SpeculativeDecoder(
        kit.target,
        JumpForwardDrafter(vocab, kit.language),
        MatchVerifier(),
        FixedPolicy(depth),
        reading=ReferenceReading.of_vocabulary(vocab, kit.find_artefact(UnitDecoders)),
    )
