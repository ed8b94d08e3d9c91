"""Judge decoding: a probe may accept drafted tokens that the target would not have written."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="judge-decoding",
    title="Judge decoding",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    summary="A probe on the target's state after each drafted token keeps right ones that the target would have put otherwise.",
    source="Bachmann et al., Judge decoding: faster speculative sampling requires going beyond model alignment, 2025",
    reduces_to="a greedy chain of the draft under match at threshold 1",
    parent="draft-model",
    home="a strong draft, and answers of which only the result counts",
    needs=(DRAFT, ArtefactNeed("judge")),
    needs_training=True,
    aliases=("judge",),
    arxiv="2501.19309",
    published="19.7 tokens accepted in place of 6.3; up to 9 times plain decoding, about 3.9 times in an "
    "optimised engine (Llama 8B and 405B)",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    threshold: Annotated[float, InRange(0, 1), "chance above which a token is kept"] = 0.5,
    depth: Annotated[int, InRange(1, 64), "tokens drafted a pass"] = 10,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.drafters.with_states import WithStatesDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.judged import JudgeVerifier
    from polydec.models.learned.kinds.judge import JudgeProbe

    judge = kit.needed_artefact(JudgeProbe)
    ends = frozenset(kit.target.vocab.eos)
    # A chain of the draft's likeliest tokens, which are certain candidates.
    chain = RankedTree(tuple((0,) * n for n in range(1, depth + 1)))
    # The judge reads the target's states at drafted tokens, so each pass is asked for them.
    drafter = WithStatesDrafter(ModelDrafter(kit.drafting, chain))
    return SpeculativeDecoder(
        kit.target, drafter, JudgeVerifier(judge, threshold, ends), FixedPolicy(depth)
    )
