"""Accept what the target draws itself, and what a probe on its states finds right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness
from polydec.methods.speculative.loop.types import Verdict, follow_draft_path
from polydec.models.learned.kinds.judge import JudgeProbe


@dataclass(frozen=True)
class JudgeVerifier:
    """As `match`; where no child has the token that was drawn, the first child that the judge finds right with a chance above
    `threshold` stands in its place. An end of the text (a token of `ends`) is never accepted so. The drafter must ask for the
    states (`WithStatesDrafter`); where a pass shows none, nothing is judged. The verdict says which nodes were kept so.

    threshold: 0 to 1.

    Exact: approximate: judged tokens follow the draft, not the target's law.
    Reduces to: `match` at threshold 1.
    Source: Bachmann et al., Judge decoding (2025).
    """

    judge: JudgeProbe
    threshold: float = 0.5
    ends: frozenset[int] = frozenset()
    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise RequestError(f"threshold is {self.threshold}: it must lie in 0 to 1")

    def verify(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        state_NH = scores.hidden_NH
        kept = set[int]()

        def pick(node: int, depth: int) -> int:
            only = scores.certain(node)
            if only is None:
                token = rng.at("token", position + depth).categorical(
                    float64_probabilities(scores.row(node))
                )
            else:
                token = only
            if state_NH is None or draft.child(node, token) is not None:
                return token
            for child in draft.children[node]:
                if (
                    draft.token[child] not in self.ends
                    and self.judge.chance(state_NH[child]) > self.threshold
                ):
                    kept.add(child)
                    return draft.token[child]
            return token

        verdict = follow_draft_path(draft, pick)
        return replace(verdict, judged=tuple(i for i in verdict.path if i in kept))
