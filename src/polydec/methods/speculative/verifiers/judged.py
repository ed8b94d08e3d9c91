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
    """As `match`, but a trained judge may accept a drafted token that the target did not draw.

    Where no child has the drawn token, the first child that the judge finds right with a chance
    above `threshold` stands in its place. An end of the text is never accepted so. The drafter must
    ask for the states (`WithStatesDrafter`); where a pass gives none, nothing is judged. The
    verdict says which nodes were accepted by the judge.

    Attributes:
        judge: Gives the chance that a drafted token is right, from the target's hidden state at it.
        threshold: Chance above which the judge accepts, 0 to 1. Default 0.5.
        ends: Token ids that end the text.

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

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Follow the target's own draws, or where these were not drafted the judge.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft, with hidden states.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes, the token that follows them, and which nodes the judge accepted.
        """
        state_NH = scores.hidden_NH
        kept = set[int]()

        def pick_token(node: int, depth: int) -> int:
            """The token after a node: the target's own, or that of a child which the judge accepts.

            Args:
                node: Index of the node.
                depth: Levels below the root, which give the position of the token.

            Returns:
                The token id.
            """
            # The target's own token is drawn first, so a judge that accepts nothing changes no
            # text.
            only = scores.certain_token(node)
            if only is None:
                token = rng.child_stream("token", position + depth).draw_categorical(
                    float64_probabilities(scores.logprob_row(node))
                )
            else:
                token = only
            # The judge is asked only where verification would end. It reads the state at the child
            # itself, which has seen the drafted token.
            if state_NH is None or draft.child_of(node, token) is not None:
                return token
            for child in draft.children[node]:
                if (
                    draft.token[child] not in self.ends
                    and self.judge.token_chance(state_NH[child]) > self.threshold
                ):
                    kept.add(child)
                    return draft.token[child]
            return token

        verdict = follow_draft_path(draft, pick_token)
        return replace(verdict, judged=tuple(i for i in verdict.path if i in kept))
