"""Stop drafting after a draw that the draft model was not sure of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class ConfidencePolicy:
    """Stop drafting below a draw whose probability under the draft is less than `threshold`.

    The draw itself stays. A greedy draft's token counts with the probability that its model gave it
    before shaping.

    Attributes:
        threshold: Least probability to go on below, 0 to 1. Default 0.4.
        depth: Most levels, 0 to 64. Default 8.
        nodes: Nodes in all, 0 to 1024. None: as many as depth.

    Exact: law: where a draft stops depends on what was drawn, what is kept does not.
    Reduces to: `fixed` at threshold 0; a draft of one level at threshold 1 under any draft that
    leaves a doubt.
    Source: the confidence threshold of assisted generation in Hugging Face transformers (0.4); Du
    et al., GliDe with a CaPE (2024), for trees.
    """

    unexercised: ClassVar[Mapping[str, str]] = {
        "moved": "where a draft stops depends on its draws alone"
    }
    threshold: float = 0.4
    depth: int = 8
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise RequestError(f"threshold is {self.threshold}: it must lie in 0 to 1")
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")
        if self.nodes is not None and not 0 <= self.nodes <= 1024:
            raise RequestError(f"nodes is {self.nodes}: it must lie in 0 to 1024")

    def start_state(self) -> None:
        return None

    def draft_budget(self, state: None) -> DraftBudget:
        return DraftBudget(
            self.depth,
            self.depth if self.nodes is None else self.nodes,
            go_on=self._sure,
            graded=True,
        )

    def _sure(self, depth: int, q: float) -> bool:
        return q >= self.threshold

    def observe_round(self, state: None, draft: Draft, verdict: Verdict) -> None:
        """Leave the state: there is none.

        Args:
            state: None.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            None.
        """
        return None
