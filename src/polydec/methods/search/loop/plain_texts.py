"""The method that draws a search's texts where nothing drafts: one token a pass."""

from __future__ import annotations

from polydec.core.protocols import Target
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier


def undrafted_method(target: Target) -> SpeculativeDecoder:
    """Return plain decoding of a law, as a draft-and-verify method whose drafts are empty."""
    return SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))
