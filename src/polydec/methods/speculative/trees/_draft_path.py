"""What trees read of the draft, and the tree that is one path."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from polydec.core.protocols import DraftScorer, DraftScores
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.draws import Pick, draw_draft_token
from polydec.methods.speculative.loop.types import DraftBudget


def tree_score_want(budget: DraftBudget) -> ScoreRequest:
    """What a tree reads of the draft's scores: rows before shaping only for a graded budget."""
    return ScoreRequest(base=RowDetail.ROW if budget.graded else RowDetail.NOTHING)


def likeliest_children(
    scores: DraftScores, at: int, k: int, budget: DraftBudget
) -> list[tuple[int, float, float]]:
    """The likeliest tokens of a row, as children of a node.

    A greedy law's own token stands first, the others follow by the model before shaping, whose
    probabilities count.

    Args:
        scores: Laws at the nodes of the draft, with the model's rows before shaping.
        at: Index of the row.
        k: Most tokens, at least 1.
        budget: Says whether certain tokens are graded.

    Returns:
        Tuples of token id, probability, and the value to ask the budget's go_on with, best first.
        Fewer than k where the row has fewer tokens.
    """
    # A greedy law is a point mass: its further candidates come from the model before shaping.
    only = scores.certain_token(at)
    if only is None:
        tokens, logp = scores.likeliest_tokens(at, k)
    else:
        tokens = (only, *[x for x in scores.base.likeliest_tokens(at, k)[0] if x != only])[:k]
        logp = scores.base.token_logprobs(at, tokens)
    chances = [exp(logp_x) for logp_x in logp]
    return [
        (x, q, q if only is None or budget.graded else 1.0)
        for x, q in zip(tokens, chances, strict=True)
    ]


async def grow_single_path(
    laws: DraftScorer, root: int, budget: DraftBudget, pick: Callable[[int], Pick]
) -> Draft:
    """Draw one path down to the budget's depth.

    It ends earlier where the budget's go_on says stop; the token that said so stays.

    Args:
        laws: Scores the draft model's law at every node of a draft.
        root: Last token of the text. It is node 0 of the draft.
        budget: Bounds of the draft: levels, nodes, and where to stop.
        pick: Called with a depth (1 is the first), gives what draws the token of that depth.

    Returns:
        The chain. Each drawn node carries the law that it was drawn from.
    """
    draft = Draft.chain_draft(root)
    for depth in range(1, min(budget.depth, budget.nodes) + 1):
        scores = await laws.score_draft(draft, tree_score_want(budget))
        token, draw, law_V, q = draw_draft_token(scores, depth - 1, pick(depth), budget.graded)
        # The token joins before go_on is asked: a draw is never taken back.
        draft = draft.with_node(token, depth - 1, draw, law_V, q)
        if not budget.go_on(depth, q):
            break
    return draft
