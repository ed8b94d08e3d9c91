"""The laws of drafted tokens, by states that a drafter makes up: the target's own norm, head and shapers make laws of them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from polydec.core.protocols import Scores, Session
from polydec.core.types import Draft
from polydec.models.query import Answer
from polydec.models.scores import LogitScores


@dataclass
class StateLaws:
    """session: the target's own, which is asked for laws and never moved; logits: of the nodes that have states by now."""
    session: Session
    logits: dict[int, Answer] = field(default_factory=dict[int, Answer])

    def new(self, draft: Draft) -> list[int]:
        """The nodes that have no state yet."""
        return [i for i in range(len(draft)) if i not in self.logits]

    def add(self, nodes: Sequence[int], state_NH: Tensor) -> None:
        """These nodes have these states, which lie before the target's final norm; or all of them the only one."""
        scores = self.session.states(state_NH)
        rows = [Answer(scores.weights(i)[None]) for i in range(len(state_NH))]
        self.logits |= dict(zip(nodes, rows if len(rows) == len(nodes) else rows * len(nodes), strict=True))

    def scores(self, draft: Draft) -> Scores:
        """The laws at all nodes, shaped as the target's are."""
        return self.session.bend(draft, LogitScores([self.logits[i] for i in range(len(draft))]))


def state_after(scores: Scores, node: int) -> Tensor:
    """The target's state after a node. Raises ValueError where the target shows none."""
    if scores.hidden_NH is None:
        raise ValueError("the target shows no hidden states: what was trained on them cannot draft for it")
    return scores.hidden_NH[node].clone()
