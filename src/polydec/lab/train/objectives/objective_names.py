"""The objectives of `polydec train lm` by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polydec.lab.train.objectives.cm3 import CausalMasking
from polydec.lab.train.objectives.meap import MeapObjective
from polydec.lab.train.objectives.next_token import NextToken
from polydec.lab.train.objectives.protocols import LMObjective
from polydec.lab.train.objectives.token_unify import TokenUnify
from polydec.lab.train.specs.lm import LMSpec

KNOWN: Mapping[str, Callable[[LMSpec], LMObjective]] = MappingProxyType(
    {
        "next-token": lambda spec: NextToken(),
        "meap": lambda spec: MeapObjective(spec.mask),
        "cm3": lambda spec: CausalMasking(spec.spans),
        "tokenunify": lambda spec: TokenUnify(spec.mixture),
    }
)
