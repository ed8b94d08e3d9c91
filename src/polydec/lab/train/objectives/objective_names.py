"""The objectives of `polydec train lm` by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polydec.lab.train.objectives.answer_tokens import AnswerTokens
from polydec.lab.train.objectives.cm3 import CausalMasking
from polydec.lab.train.objectives.meap import MeapObjective
from polydec.lab.train.objectives.meap_answers import MeapAnswers
from polydec.lab.train.objectives.next_token import NextToken
from polydec.lab.train.objectives.protocols import AnswerObjective, LMObjective
from polydec.lab.train.objectives.token_unify import TokenUnify
from polydec.lab.train.specs.lm import LMSpec

KNOWN: Mapping[str, Callable[[LMSpec], LMObjective]] = MappingProxyType(
    {
        "next-token": lambda spec: NextToken(),
        "meap": lambda spec: MeapObjective(spec.mask),
        "cm3": lambda spec: CausalMasking(spec.spans),
        "tokenunify": lambda spec: TokenUnify(spec.mixture, staged=spec.stages),
    }
)

ANSWERING: Mapping[str, Callable[[LMSpec], AnswerObjective]] = MappingProxyType(
    {
        "next-token": lambda spec: AnswerTokens(),
        "meap": lambda spec: MeapAnswers(spec.mask, spec.second),
    }
)
"""Those of pairs, of which only the answers are learned."""
