"""A tree of a fixed shape, drawn with the noise that the target will use."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polydec.core.protocols import DraftScorer
from polydec.core.rng import GumbelNoise, Rng
from polydec.core.types import Draft, DrawKind
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees.static import check_levels, grow_level_tree


@dataclass(frozen=True)
class CoupledStaticTree:
    """A tree of fixed shape, drawn with the noise that the target will use.

    Every node of level d has the `levels[d]` tokens that come first in its row plus the noise of
    their position. The first k of noise plus log-probabilities are k draws without replacement,
    likeliest winner first. The budget bounds depth and nodes; go_on is asked of every node.

    Attributes:
        levels: Children of each node, level by level: 1 to 16 counts of 1 to 16. Default 2, 1, 1.

    Exact: law, under the `coupled` verifier only, which reads no draft law.
    Reduces to: `coupled_chain` where every count is 1.
    Source: Daliri, Musco, Suresh (2024) for one candidate; Kool et al., "Stochastic beams" (2019),
    for several.
    """

    levels: tuple[int, ...] = (2, 1, 1)

    def __post_init__(self) -> None:
        check_levels(self.levels)

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Grow the tree with the target's noise.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. The noise of a token is that of its own position, which
                the verifier uses again.

        Returns:
            The tree.
        """
        # All nodes of a level share the noise of their position, as the target has one noise there;
        # a stream can be drawn from only once.
        noise: dict[int, GumbelNoise] = {}

        def first_tokens(node: int, depth: int, law_V: Tensor, k: int) -> tuple[int, ...]:
            """The first k tokens of a row plus the position's noise.

            Args:
                node: Not used: the noise is that of the position.
                depth: Depth of the children, 1 is the first.
                law_V: The draft's log-probabilities, shape ``[V]``.
                k: Most children.

            Returns:
                Token ids, the winner first.
            """
            if depth not in noise:
                noise[depth] = rng.child_stream("token", position + depth - 1).gumbel_noise(
                    len(law_V)
                )
            return noise[depth].first_tokens(law_V, k)

        return await grow_level_tree(
            laws, root, self.levels, budget, DrawKind.WITHOUT, first_tokens
        )
