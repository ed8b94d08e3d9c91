"""A tree of a shape that was fixed beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind
from polydec.methods.speculative.loop.draws import certain_draw_chance
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import tree_score_want


@dataclass(frozen=True)
class StaticTree:
    """A tree of fixed shape: every node of level d has `levels[d]` children, drawn from its law.

    The budget bounds depth and nodes; below a draw where go_on says stop nothing is drawn. A greedy
    draft gives one certain child.

    Attributes:
        levels: Children of each node, level by level: 1 to 16 counts of 1 to 16. Default 2, 1, 1.
        replace: Whether siblings are drawn independently. Default: without replacement.

    Exact: law, under any exact verifier: a child's existence depends on its ancestors and on counts
    alone.
    Reduces to: `chain` where every count is 1.
    Source: SpecInfer (Miao et al., 2023), independent; recursive speculative decoding (Jeon et al.,
    2024), without replacement.
    """

    levels: tuple[int, ...] = (2, 1, 1)
    replace: bool = False

    def __post_init__(self) -> None:
        check_levels(self.levels)

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Grow the tree with one pass of the draft a level.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Children of a node are drawn at
                ``rng.child_stream("draft", position, node)``.

        Returns:
            The tree.
        """
        here = rng.child_stream("draft", position)

        def first_tokens(node: int, depth: int, law_V: Tensor, k: int) -> tuple[int, ...]:
            """Draw the children of a node.

            Args:
                node: Index of the node, which names the draw.
                depth: Not used.
                law_V: The draft's log-probabilities at the node, shape ``[V]``.
                k: Most children.

            Returns:
                Token ids in the order drawn, fewer where fewer have weight.
            """
            p_V = float64_probabilities(law_V)
            child = here.child_stream(node)
            # Each draw has a stream of its own; without replacement one call draws all siblings.
            if self.replace:
                return tuple(child.child_stream(i).draw_categorical(p_V) for i in range(k))
            return child.without_replacement(p_V, k)

        if self.replace:
            how = DrawKind.INDEPENDENT
        else:
            how = DrawKind.WITHOUT
        return await grow_level_tree(laws, root, self.levels, budget, how, first_tokens)


async def grow_level_tree(
    laws: DraftScorer,
    root: int,
    levels: Sequence[int],
    budget: DraftBudget,
    how: DrawKind,
    pick: Callable[[int, int, Tensor, int], Sequence[int]],
) -> Draft:
    """Grow a tree whose nodes of level d have `levels[d]` children, as far as the budget goes.

    Args:
        laws: Scores the draft model's law at every node of a draft.
        root: Last token of the text. It is node 0 of the draft.
        levels: Children of each node, level by level.
        budget: Bounds of the draft: levels, nodes, and where to stop.
        how: How ``pick`` draws, which is written to the nodes.
        pick: Called with a node, the depth of its children, the law there (log-probabilities, shape
            ``[V]``) and a number k; draws at most k token ids.

    Returns:
        The tree. A node whose law is certain has one certain child.
    """
    draft = Draft.chain_draft(root)
    tips = [0]
    for depth, width in enumerate(levels[: budget.depth], 1):
        # The root does not count against the budget.
        if not tips or len(draft) > budget.nodes:
            break
        scores = await laws.score_draft(draft, tree_score_want(budget))
        below = list[int]()
        for node in tips:
            only = scores.certain_token(node)
            room = budget.nodes + 1 - len(draft)
            # All further tips would find no room either.
            if room < 1:
                break
            if only is not None:
                law_V = None
                tokens = (only,)
            else:
                law_V = scores.logprob_row(node)
                # How many children are drawn depends on the room that is left, never on what was
                # drawn beside them.
                tokens = pick(node, depth, law_V, min(width, room))
            for token in tokens:
                if law_V is None:
                    q = certain_draw_chance(scores, node, token, budget.graded)
                else:
                    q = exp(law_V[token])
                # A draw at which go_on says stop stays in the tree, without children.
                if budget.go_on(depth, q):
                    below.append(len(draft))
                draft = draft.with_node(
                    token, node, DrawKind.CERTAIN if law_V is None else how, law_V, q
                )
        tips = below
    return draft


def check_levels(levels: tuple[int, ...]) -> None:
    """Raise RequestError unless there are 1 to 16 counts, each of 1 to 16."""
    if not 1 <= len(levels) <= 16 or not all(1 <= k <= 16 for k in levels):
        raise RequestError(
            f"levels is {','.join(map(str, levels))}: it must be 1 to 16 child counts of 1 to 16 each, "
            "such as 2,1,1"
        )
