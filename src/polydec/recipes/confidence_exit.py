"""Confidence exit: each token leaves at the first depth that is sure of it."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.nothing import Nothing
from polydec.models.depth import exits_every
from polydec.policies.fixed import Fixed
from polydec.targets.confident import Confident
from polydec.verifiers.match import Match

CARD = Card(
    name="confidence-exit",
    title="Confident adaptive language modeling (early exit)",
    summary="Each token leaves the network at the first exit whose best two tokens lie far enough apart.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.APPROXIMATE,
    source="Schuster et al., Confident adaptive language modeling, 2022",
    reduces_to="plain at threshold above 1.2",
    parent="plain", home="models trained with an early-exit loss, where a near text is good enough",
    needs=("layers",),
    options={"threshold": "least gap between the two likeliest tokens, 0 and more",
             "every": "an exit after every so many layers, 1 and more",
             "decay": "how fast the threshold falls along the text, none or 0 and more"},
)


def build(target: Target, *, draft: Target | None = None, threshold: float = 0.9, every: int = 2,
          decay: float | None = None) -> Speculative:
    law = Confident(target, exits_every(every, target.layers), threshold, decay)
    return Speculative(law, Nothing(), Match(), Fixed(0), Exactness.APPROXIMATE)
