"""S2D: one nested draft, left at the exit that is sure."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.sorted_exits import SortedExits
from polydec.policies.fixed import Fixed
from polydec.verifiers.exact import Exact

CARD = Card(
    name="s2d",
    title="Sorted speculative decoding",
    summary="A draft model trained at three depths; each token leaves it at the first one that is sure enough.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Kavehzadeh et al., S2D: sorted speculative decoding for more efficient deployment of nested large language "
           "models, 2024",
    reduces_to="draft-model at tau_1 and tau_2 above 1 and stop 0; a draft of half the layers at tau_1 0",
    parent="draft-model", home="one draft for several targets",
    needs=("draft", "draft's layers"),
    options={"tau_1": "probability from which half the draft's layers suffice, 0 and more (above 1: never)",
             "tau_2": "the same of three quarters, 0 and more", "stop": "drafting ends below this probability, 0 to 1",
             "depth": "longest draft, 0 to 64"},
)


def build(target: Target, *, draft: Target, tau_1: float = 0.9, tau_2: float = 0.8, stop: float = 0.3,
          depth: int = 5) -> Speculative:
    last = draft.layers
    drafter = SortedExits.of(draft, (last // 2, 3 * last // 4, last), stop, tau_1=tau_1, tau_2=tau_2)
    return Speculative(target, drafter, Exact(), Fixed(depth))
