"""DEL: exit and length from running acceptance."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.dynamic_exit import DynamicExit
from polydec.policies.fixed import Fixed
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="dynamic-exit",
    title="DEL, dynamic exit layer",
    summary="Early exit whose depth and length follow from what every depth would have got right so far.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Entezari Zarch et al., DEL: context-aware dynamic exit layer for efficient self-speculative decoding, 2025",
    reduces_to="plain where no exit promises more than a plain pass; early-exit with one eligible exit and length",
    parent="early-exit", home="models trained with an early-exit loss, on mixed tasks",
    needs=("layers",),
    options={"every": "exits after every so many layers, 1 to the model's less one", "depth": "longest draft, 0 to 64",
             "omega": "discount of earlier rounds, 0 to 1", "prompt": "last prompt positions that count, 0 to 4096",
             "head": "what the head costs, in layers, 0 and more", "by_length": "draft as long as pays best (else up to depth)",
             "by_confidence": "stop below a token that is rather a miss"},
)


def build(target: Target, *, draft: Target | None = None, every: int = 1, depth: int = 18, omega: float = 0.95,
          prompt: int = 32, head: float = 1.0, by_length: bool = True, by_confidence: bool = True) -> Speculative:
    drafter = DynamicExit(Chain(), target.layers, every, depth, omega, prompt, head, by_length, by_confidence)
    return Speculative(target, drafter, Exact(), Fixed(depth))
