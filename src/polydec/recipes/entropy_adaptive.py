"""Entropy Adaptive Decoding."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.nothing import Nothing
from polydec.policies.fixed import Fixed
from polydec.targets.switch import ByEntropy, Switch
from polydec.verifiers.match import Match

CARD = Card(
    name="entropy-adaptive",
    title="Entropy Adaptive Decoding",
    summary="The small model writes, and hands over to the large one while its predictions are uncertain.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.APPROXIMATE,
    source="Entropy Adaptive Decoding: Dynamic Model Switching for Efficient Inference, 2025 (published: window 5)",
    reduces_to="plain, of the target at tau below 0, of the draft at tau none",
    parent="plain", home="a small model that is nearly as good, where a text near the large model's is good enough",
    needs=("draft",),
    options={"tau": "bits of mean entropy above which the target takes over, none: never",
             "tau_down": "bits at or below which the draft does, none: tau",
             "window": "tokens of the mean, 1 to 256", "hold": "least tokens between two switches, 1 to 4096"},
)


def build(target: Target, *, draft: Target, tau: float | None = 1.0, tau_down: float | None = None, window: int = 5,
          hold: int = 10) -> Speculative:
    law = Switch(draft, target, ByEntropy(tau, tau_down, window, hold))
    return Speculative(law, Nothing(), Match(), Fixed(0), Exactness.APPROXIMATE)
