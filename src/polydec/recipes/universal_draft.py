"""Universal assisted decoding: a draft model of any tokenizer."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.other_tokenizer import OtherTokenizer
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="universal-draft",
    title="Universal assisted decoding",
    summary="A draft model of any tokenizer reads the text in its own tokens, and what it writes is spelled in the target's.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Universal assisted generation, transformers, 2024; Timor et al., Accelerating LLM inference with lossless "
           "speculative decoding algorithms for heterogeneous vocabularies, 2025 (string-level exact match)",
    reduces_to="plain where nothing is accepted",
    parent="plain", home="a target whose family has no small model, at low temperature",
    needs=("draft",), same_tokenizer=False,
    options={"depth": "tokens drafted a pass, 0 to 64", "context": "most tokens that the draft reads, 16 to 65536"},
)


def build(target: Target, *, draft: Target, depth: int = 3, context: int = 512) -> Speculative:
    return Speculative(target, OtherTokenizer(draft, target.vocab, context), Match(), Fixed(depth))
