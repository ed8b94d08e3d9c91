"""Accept what was drafted without looking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness
from polydec.methods.speculative.loop.types import Verdict


@dataclass(frozen=True)
class TrustVerifier:
    """Accept the first child of each node without a test.

    The token after the last one is drawn from the target's row, by rng.child_stream("token",
    position), as `match` draws it.

    Exact: approximate: no drafted token is compared with the target's law.
    Reduces to: `match` where nothing is drafted.
    Source: lexical unit decoding (Sun et al., 2024).
    """

    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE
    unexercised: ClassVar[Mapping[str, str]] = {"rejected": "it accepts whatever was drafted"}

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Accept the first child of each node, down to a node without children.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores. The row of the last accepted node alone is read.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes and a token drawn from the target's law after them.
        """
        path = list[int]()
        node = 0
        # Siblings after the first one are never looked at.
        while draft.children[node]:
            node = draft.children[node][0]
            path.append(node)
        only = scores.certain_token(node)
        if only is None:
            bonus = rng.child_stream("token", position + len(path)).draw_categorical(
                float64_probabilities(scores.logprob_row(node))
            )
        else:
            bonus = only
        return Verdict(tuple(path), bonus)
