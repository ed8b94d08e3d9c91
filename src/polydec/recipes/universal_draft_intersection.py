"""Universal assisted decoding over the tokens that two vocabularies share."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.shared_tokens import SharedTokens
from polydec.policies.fixed import Fixed
from polydec.verifiers.exact import Exact

CARD = Card(
    name="universal-draft-intersection",
    title="Universal assisted decoding over shared tokens",
    summary="A draft model of any tokenizer draws among the tokens that both vocabularies have, from a law that is known.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Timor et al., Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous "
           "vocabularies, 2025 (token-level intersection; in transformers since 4.50)",
    reduces_to="draft-model where the two tokenizers are one",
    parent="universal-draft", home="sampling with a draft of another tokenizer whose vocabulary is much the same",
    needs=("draft",), same_tokenizer=False,
    options={"depth": "tokens drafted a pass, 0 to 64", "context": "most tokens that the draft reads, 16 to 65536"},
)


def build(target: Target, *, draft: Target, depth: int = 2, context: int = 512) -> Speculative:
    return Speculative(target, SharedTokens(draft, target.vocab, context), Exact(), Fixed(depth))
