"""Rejection with residuals, for candidates of any kind in any mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.law import exclude_token, float64_probabilities, residual_law
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, Exactness
from polydec.methods.speculative.loop.types import Verdict


@dataclass(frozen=True)
class ExactVerifier:
    """Rejection sampling with residuals, for chains and trees of any kind of candidates.

    The children of a node are tried in the order drawn, each against what its rejected siblings
    left of the target's law. A child drawn from q is accepted with probability min(1, p(x) / q(x));
    a rejection leaves p = (p - q)+ renormalised. Siblings drawn without replacement see q without
    the ones before them. A certain child is a point mass. Once only certain children remain, the
    token is drawn from p by rng.child_stream("token", position) and the child that has it is
    followed, so that certain drafts give the text of plain decoding. Arithmetic is float64.

    Exact: law. The acceptance rule and the residual add up to p at every node.
    Reduces to: `match` on certain candidates; plain sampling without a draft.
    Source: Leviathan et al. (2023) and Chen et al. (2023) for chains; SpecInfer (Miao et al., 2023)
    for independent siblings; recursive rejection sampling (Jeon et al., 2024) for siblings without
    replacement.
    """

    exactness: ClassVar[Exactness] = Exactness.LAW

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Accept by rejection sampling, node by node.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes and the token that follows them, which is drawn from the residual.
        """
        return walk_by_rejection(draft, scores, rng, position)


def walk_by_rejection(
    draft: Draft, scores: DraftScores, rng: Rng, position: int, lenience: float = 1.0
) -> Verdict:
    """Walk from the root down, at each node by rejection among its children.

    Args:
        draft: The draft that the target has scored.
        scores: The target's scores at the nodes of the draft.
        rng: Random stream of the text.
        position: Absolute position of the first drafted token.
        lenience: A drawn child is accepted with probability min(1, p(x) / (lenience q(x))). 1 is
            the exact rule; below 1 drafts pass more often than the target's law allows. Above 0, at
            most 1.

    Returns:
        The accepted nodes and the token that follows them.
    """
    node = 0
    path = list[int]()
    while True:
        here = rng.child_stream("token", position + len(path))
        child, token = _down(draft, node, scores, here, lenience)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def _down(
    draft: Draft, node: int, scores: DraftScores, here: Rng, lenience: float
) -> tuple[int | None, int]:
    """(the accepted child, its token), or (None, the token that follows the node)."""
    # A law that has one possible token needs no row: the child that has it is accepted, any other
    # is rejected.
    only = scores.certain_token(node)
    if only is not None:
        return draft.child_of(node, only), only
    p_V = float64_probabilities(scores.logprob_row(node))
    children = draft.children[node]
    # For each law that siblings were drawn from without replacement, what its earlier draws left of
    # it (keys are identities: such siblings share one tensor).
    left: dict[int, Tensor] = {}
    # Children up to the last drawn one are tried in order. Certain ones after it need no trial: one
    # draw from the rest of p decides between them.
    drawn = max((k for k, c in enumerate(children, 1) if draft.law[c] is not None), default=0)
    for k, child in enumerate(children[:drawn]):
        token = draft.token[child]
        law_V = draft.law[child]
        q_V = None
        if law_V is not None:
            if id(law_V) in left:
                q_V = left[id(law_V)]
            else:
                q_V = float64_probabilities(law_V)
        if q_V is not None and not float(q_V.sum()) > 0.0:
            # The last token of its law: it is a point mass now, as a certain one is.
            q_V = None
        p = float(p_V[token])
        q = 1.0 if q_V is None else float(q_V[token])
        # Leniency concerns drawn tokens only: a certain one was drawn from no law, so its q is 1.
        share = 1.0 if law_V is None else lenience
        if q > 0.0:
            chance = min(1.0, p / (share * q))
        else:
            chance = 1.0
        # The test of Leviathan et al. (2023): accept with min(1, p(x) / q(x)). A token outside the
        # target's support is never accepted, whatever rounding made of the ratio.
        if p > 0.0 and here.child_stream("accept", k).draw_bernoulli(chance):
            return child, token
        # A rejection leaves (p - q)+ of the target's law. For a point mass that is p without the
        # token; where nothing else has weight p stays, as rounding alone can have rejected it.
        if q_V is None:
            rest_V = exclude_token(p_V, token)
            if float(rest_V.sum()) > 0.0:
                p_V = rest_V
        else:
            p_V = residual_law(p_V, q_V)
            # The next sibling was drawn from q without this token.
            if draft.draw[child] is DrawKind.WITHOUT:
                left[id(law_V)] = exclude_token(q_V, token)
    token = here.draw_categorical(p_V)
    return next((c for c in children[drawn:] if draft.token[c] == token), None), token
