"""Sequential selection with one threshold for several independent draws from one law (k-SEQ)."""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log1p
from typing import ClassVar

import torch
from torch import Tensor

from polydec.core.law import exclude_token, float64_probabilities, residual_law
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, Exactness
from polydec.methods.speculative.loop.types import Verdict, follow_draft_path


@dataclass(frozen=True)
class KSeqVerifier:
    """Accept one of several independent draws, with one divisor for all of them.

    A run of k siblings that were drawn independently from one q is tried in the order drawn: x is
    accepted with probability min(1, p(x) / (rho q(x))), with the smallest rho in 1 to k under which
    what is accepted stays below p. If none is, p becomes what that leaves of it. A token that is
    drawn in the end, from what is left or otherwise, is looked up among all children: a rejected
    one may come back, and the tree below it is as good as any. Equal siblings count as often as
    they stand there; the first of them has the tree below. Other candidates are tried as `exact`
    does. Arithmetic is float64.

    It accepts at least 1 - (1 - 1/k)^k of what the best coupling of k draws with p accepts, so at
    least 1 - 1/e.

    Exact: law. What the k trials accept and what is left of p add up to p at every node, and below
    a node the tree was drawn without a look at its siblings.
    Reduces to: `exact` where siblings come alone; plain sampling without a draft.
    Source: SpecTr (Sun et al., 2023), k-SEQ.
    """

    exactness: ClassVar[Exactness] = Exactness.LAW

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Accept by k trials a node with one threshold for all of them.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes and the token that follows them.
        """
        return follow_draft_path(
            draft,
            lambda node, depth: self._token(
                draft, node, scores, rng.child_stream("token", position + depth)
            ),
        )

    def _token(self, draft: Draft, node: int, scores: DraftScores, here: Rng) -> int:
        """The token that follows a node."""
        only = scores.certain_token(node)
        if only is not None:
            return only
        p_V = float64_probabilities(scores.logprob_row(node))
        children = draft.children[node]
        # Children up to the last drawn one are tried. Certain ones after it need no trial: they are
        # looked up with the token that is drawn in the end.
        drawn = max((k for k, c in enumerate(children, 1) if draft.law[c] is not None), default=0)
        left = {}
        k = 0
        # Each turn tries one run of siblings; `size` is the k of k-SEQ for this run.
        while k < drawn:
            child = children[k]
            law_V = draft.law[children[k]]
            token = draft.token[child]
            size = 1
            rho = 1.0
            if law_V is None:
                q_V = None
            else:
                q_V = left.get(id(law_V))
            if law_V is not None and q_V is None:
                q_V = float64_probabilities(law_V)
            # A certain child, or the last token of its law, is a point mass, which is a run of one.
            if q_V is None or not float(q_V.sum()) > 0.0:
                q_V = torch.zeros_like(p_V).index_fill_(
                    0, torch.tensor([token], device=p_V.device), 1.0
                )
            # Siblings without replacement have different laws, so each is a run of its own.
            elif draft.draw[child] is DrawKind.WITHOUT:
                left[id(law_V)] = exclude_token(q_V, token)
            else:
                # Independent draws from one tensor form the run.
                while (
                    k + size < drawn
                    and draft.law[children[k + size]] is law_V
                    and draft.draw[children[k + size]] is DrawKind.INDEPENDENT
                ):
                    size += 1
                rho = smallest_rho(p_V, q_V, size)
            for j in range(k, k + size):
                # Trial j accepts x with min(1, p(x) / (rho q(x))).
                x = draft.token[children[j]]
                p = float(p_V[x])
                q = rho * float(q_V[x])
                if p > 0.0 and here.child_stream("accept", j).draw_bernoulli(
                    min(1.0, p / q) if q > 0.0 else 1.0
                ):
                    return x
            p_V = k_trial_residual(p_V, q_V, size, rho)
            k = k + size
        return here.draw_categorical(p_V)


def smallest_rho(p_V: Tensor, q_V: Tensor, k: int) -> float:
    """The smallest divisor rho under which k trials never give a token more often than p.

    A trial accepts a draw x from q with probability min(1, p(x) / (rho q(x))). With beta(rho), the
    chance that one trial accepts, the condition is 1 - (1 - beta)^k <= rho beta.

    Args:
        p_V: Probabilities of the target, shape ``[V]``, float64.
        q_V: Probabilities of the draft, shape ``[V]``, float64.
        k: How many trials, at least 1.

    Returns:
        rho, 1 to k, found by bisection and rounded up, which is the safe side.
    """
    if k == 1:
        return 1.0
    both = (p_V > 0.0) & (q_V > 0.0)
    p = p_V[both]
    q = q_V[both]
    # The sum over tokens of min(q, p / rho) is `whole` + `part` / rho + the sum over what is left
    # in `p` and `q`.
    low = 1.0
    high = float(k)
    whole = 0.0
    part = 0.0

    def gives_too_much(rho: float) -> bool:
        """Whether some token would come more often than p gives it at this divisor."""
        beta = min(
            1.0, whole + part / rho + (float(torch.minimum(q, p / rho).sum()) if len(p) else 0.0)
        )
        return any_success_chance(beta, k) > rho * beta

    if not gives_too_much(low):
        return low
    while high - low > 1e-12 * high:
        # A token whose min is q, or is p / rho, on all of (low, high) is summed once and dropped:
        # soon few tokens are left, and a step of the bisection costs little.
        if len(p):
            sure = q * high <= p
            weak = q * low >= p
            whole, part = whole + float(q[sure].sum()), part + float(p[weak].sum())
            p = p[~(sure | weak)]
            q = q[~(sure | weak)]
        middle = (low + high) / 2
        if gives_too_much(middle):
            low = middle
        else:
            high = middle
    # The upper end fulfils the condition; the middle of the last interval may not.
    return high


def any_success_chance(beta: float, k: int) -> float:
    """The chance that at least one of k independent trials succeeds: 1 - (1 - beta)^k.

    Args:
        beta: Chance of one trial, 0 or more; from 1 on the result is 1.
        k: How many trials.

    Returns:
        The chance, computed so that small values of beta lose no digits.
    """
    if beta >= 1.0:
        return 1.0
    return -expm1(k * log1p(-beta))


def k_trial_residual(p_V: Tensor, q_V: Tensor, k: int, rho: float) -> Tensor:
    """What k rejected trials leave of the target's law.

    Args:
        p_V: Probabilities of the target, shape ``[V]``, float64.
        q_V: Probabilities of the draft, shape ``[V]``, float64.
        k: How many trials were rejected.
        rho: The divisor of the acceptance rule.

    Returns:
        The residual, renormalised, shape ``[V]``; p itself where rounding left nothing.
    """
    if k == 1 and rho == 1.0:
        return residual_law(p_V, q_V)
    # One trial gives token x with probability min(q, p / rho). The first success of k trials has
    # the same shape, scaled to the chance of any success: that much of p is used up.
    kept_V = torch.minimum(q_V, p_V / rho)
    beta = float(kept_V.sum())
    if beta > 0.0:
        return residual_law(p_V, kept_V * (any_success_chance(min(beta, 1.0), k) / beta))
    return p_V


def k_trial_acceptance(p_V: Tensor, q_V: Tensor, k: int) -> float:
    """The chance that one of k independent draws from q is accepted against p.

    Args:
        p_V: Probabilities of the target, shape ``[V]``, float64.
        q_V: Probabilities of the draft, shape ``[V]``, float64.
        k: How many draws, at least 1.

    Returns:
        The chance under the smallest divisor, 0 to 1.
    """
    return any_success_chance(
        min(1.0, float(torch.minimum(q_V, p_V / smallest_rho(p_V, q_V, k)).sum())), k
    )


def best_acceptance(p_V: Tensor, q_V: Tensor, k: int) -> float:
    """The chance of acceptance under the best coupling of k independent draws with p.

    It is the optimum of a linear program. By max-flow min-cut it is the least p(H) + 1 - q(H)^k
    over sets H of tokens; as x^k is convex, the least is taken where H holds the tokens with the
    smallest p / q.

    Args:
        p_V: Probabilities of the target, shape ``[V]``, float64.
        q_V: Probabilities of the draft, shape ``[V]``, float64.
        k: How many draws, at least 1.

    Returns:
        The chance, 0 to 1: a bound for every verifier of such drafts.
    """
    order = (p_V / q_V.clamp_min(1e-300)).argsort()
    # Cumulated masses of the sets H by ascending p / q, the empty set first.
    p, q = (torch.cat([t.new_zeros(1), t[order].cumsum(0)]) for t in (p_V, q_V))
    return float((p + 1.0 - q.clamp(0.0, 1.0) ** k).min())
