"""Speculative sampling whose drafts end where a trained head expects a rejection."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.model import FromModel
from polydec.models import stop_head
from polydec.policies.fixed import Fixed
from polydec.trees.learned_stop import LearnedStop
from polydec.verifiers.exact import Exact

CARD = Card(
    name="specdec-plus-plus",
    title="SpecDec++",
    summary="A trained head on the draft model's hidden states says when some token of the draft is likely to be rejected.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Huang, Guo, Wang, SpecDec++: boosting speculative decoding via adaptive candidate lengths, 2024",
    reduces_to="draft-model at threshold 1",
    parent="draft-model-confidence", home="a draft and target that are used long enough to train the head once",
    needs=("draft", "head"), needs_training=True,
    options={
        "head": "directory of the head; polydec train stop-head makes it",
        "threshold": "chance that some token is rejected above which the draft ends, 0 to 1",
        "least": "tokens that are drafted in any case, 1 to depth",
        "depth": "longest draft, 0 to 64",
    },
)


def build(target: Target, *, draft: Target, head: str | None = None, threshold: float = 0.7, least: int = 1,
          depth: int = 8) -> Speculative:
    stop = LearnedStop.below(depth, stop_head.load(head), threshold, least)
    return Speculative(target, FromModel(draft, stop), Exact(), Fixed(depth))
