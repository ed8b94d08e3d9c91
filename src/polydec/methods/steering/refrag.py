"""REFRAG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from polydec.base.options import InRange, OneOf
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import OWN_PROMPT, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="refrag",
    title="REFRAG (passages as a vector a chunk)",
    summary="Passages of a prompt are read as one vector for each few tokens, but for the chunks that a policy picks.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Lin et al., REFRAG: rethinking RAG based decoding, 2025",
    reduces_to="no steering where all chunks are expanded, or no passage stands in the prompt",
    home="retrieved passages that hold much that is not asked for, and a decoder that was trained to read their vectors",
    needs=(OWN_PROMPT, ArtefactNeed("chunk-encoder")),
    aliases=("chunk vectors",),
    arxiv="2509.01092",
    published="first token 30.85 times as fast, at the perplexity of the full text (LLaMA-2-7B)",
)
PUBLISHED = PublishedPreset(
    unknown="how long a chunk is is a matter of the training (16 and 32 there), and shares of up to a "
    "fourth are expanded"
)

CHOOSERS = ("policy", "chance", "likeness", "words", "perplexity")
"""Names of what may choose chunks (laws/targets/passage_chunks.py has what they do, and is not loaded to
tell them).
"""


def prompt_positions(kit: Kit, options: Mapping[str, Any]) -> int:
    """How many positions of the context the kit's prompt takes at most.

    Args:
        kit: What the way is built of.
        options: All its options.

    Returns:
        The positions.
    """
    from polydec.laws.targets.passage_chunks import shortened_prompt_length
    from polydec.models.learned.kinds.chunk_encoder import ChunkEncoder

    # Chunks are as long as the encoder has them.
    made = kit.needed_artefact(ChunkEncoder)
    return shortened_prompt_length(kit.prompt, made, options["expand"])


def build(
    kit: Kit,
    *,
    expand: Annotated[float, InRange(0, 1), "share of the chunks that are read as tokens"] = 0.25,
    by: Annotated[str, OneOf(*CHOOSERS), "what chooses them"] = "policy",
) -> Target:
    from polydec.laws.targets.passage_chunks import SELECTORS, chunk_prompt_passages
    from polydec.models.learned.kinds.chunk_encoder import ChunkEncoder

    return chunk_prompt_passages(
        kit.target,
        kit.prompt,
        kit.needed_artefact(ChunkEncoder),
        expand,
        SELECTORS[by],
        kit.context,
    )
