"""Rejection that lets a draft pass more often than the target's law allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.verifiers.exact import walk_by_rejection


@dataclass(frozen=True)
class LenientVerifier:
    """As `exact`, but a drawn child is accepted more often.

    It is accepted with probability min(1, p(x) / (lenience q(x))). After a rejection the residual
    is that of `exact`, so a token whose probability the draft has too high stays less likely than
    it was drafted. A token that the target's law does not have is never accepted, so greedy
    decoding and cut-off rules hold. Candidates that are certain are accepted as in `exact`.

    Attributes:
        lenience: Factor of the draft's probability, above 0, at most 1. Default 0.5.

    Exact: approximate: of one drawn child the text has q(x) min(1, p(x) / (lenience q(x))), and the
    residual's share of the rest.
    Reduces to: `exact` at lenience 1.
    Source: DistillSpec (Zhou et al., 2023), the linear form; Leviathan et al. (2023), appendix A.5.
    """

    lenience: float = 0.5
    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise RequestError(f"lenience is {self.lenience}: it must lie above 0 and at most 1")

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Accept by rejection sampling with the lenient rule.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes and the token that follows them.
        """
        return walk_by_rejection(draft, scores, rng, position, self.lenience)
