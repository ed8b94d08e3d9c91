"""Draw whole paths without replacement, level by level."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScorer, DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind
from polydec.methods.speculative.loop.draws import certain_draw_chance
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import tree_score_want
from polydec.methods.speculative.trees.greedy_growth import check_width


@dataclass
class _ArrivedParent:
    """A parent in the race.

    It has its law, its path's probability, and the share of its children that have not arrived.
    """

    node: int
    mass: float
    only: int | None
    law_V: Tensor | None
    q_V: Tensor | None
    left: float = 1.0
    left_V: Tensor | None = None


@dataclass(frozen=True)
class StochasticBeamTree:
    """Of every level the first `width` paths of a draw of paths without replacement.

    A path's nodes stay where the path is likely enough, and unlikely branches end early.

    It is stochastic beam search written as a race. Let every path of the draft arrive after an
    exponential time whose rate is its probability (that is Gumbel top-k: the largest perturbed
    log-probability arrives first); a node arrives with the first path through it. A level has its
    first `width` arrivals, in that order, and between arrivals the race has no memory: with the
    parents that are there having mass S of children that have not arrived, and mass R of parents
    not being there yet, the next arrival is a further child of a parent that is there with
    probability S / (S + R), else the next parent with its first child. So no noise is stored, and
    every choice is one draw of finitely many.

    The budget bounds depth and nodes; below a draw where go_on says stop nothing is drawn. A greedy
    draft gives one certain child.

    Attributes:
        width: Most nodes of a level, 1 to 64. Default 3.

    Exact: law, under any exact verifier: which node gets a further child is drawn before the child
    is.
    Reduces to: `chain` at width 1; all paths where width is at least their number.
    Source: recursive speculative decoding, RSD-S (Jeon et al., 2024); stochastic beam search (Kool
    et al., 2019).
    """

    width: int = 3

    def __post_init__(self) -> None:
        check_width(self.width)

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Run one race a level.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. A level's race draws at
                ``rng.child_stream("draft", position, depth)``.

        Returns:
            The tree.
        """
        # The nodes of the last level in the order of their arrival: the node, the probability of
        # its path, and whether to go on below it.
        draft = Draft.chain_draft(root)
        beam = [(0, 1.0, True)]
        for depth in range(1, budget.depth + 1):
            width = min(self.width, budget.nodes + 1 - len(draft))
            if width < 1 or not any(on for _, _, on in beam):
                break
            scores = await laws.score_draft(draft, tree_score_want(budget))
            draft, beam = self._race(
                draft,
                beam,
                scores,
                width,
                depth,
                budget,
                rng.child_stream("draft", position, depth),
            )
        return draft

    def _race(
        self,
        draft: Draft,
        beam: list[tuple[int, float, bool]],
        scores: DraftScores,
        width: int,
        depth: int,
        budget: DraftBudget,
        rng: Rng,
    ) -> tuple[Draft, list[tuple[int, float, bool]]]:
        """One level: the draft with its arrivals, and these as the beam of the next level."""
        # Parents arrive in the order of the level above, so that the two races agree; the list is a
        # stack.
        waiting = beam[::-1]
        arrived = list[_ArrivedParent]()
        kids = list[tuple[int, float, bool]]()
        # R, the mass of paths through parents that have not arrived yet.
        absent = 1.0
        while len(kids) < width and (waiting or any(a.left > 0.0 for a in arrived)):
            here = rng.child_stream(len(kids), len(waiting))
            open_ = sum(a.mass * a.left for a in arrived)
            # With probability S / (S + R) the next arrival is a further child of a parent that is
            # there; else, or where there is none, the next parent arrives.
            if waiting and not (
                open_ > 0.0
                and here.child_stream("further").draw_bernoulli(open_ / (open_ + max(absent, 0.0)))
            ):
                node, mass, on = waiting.pop()
                absent -= mass
                # A node that may not be expanded still takes its mass with it.
                if not on:
                    continue
                only = scores.certain_token(node)
                if only is None:
                    law_V = scores.logprob_row(node)
                else:
                    law_V = None
                if law_V is None:
                    q_V = None
                else:
                    q_V = float64_probabilities(law_V)
                # The last field is what is left of its law, from which children are taken one by
                # one.
                parent = _ArrivedParent(
                    node, mass, only, law_V, q_V, 1.0, None if q_V is None else q_V.clone()
                )
                arrived.append(parent)
            else:
                # Among the parents that are there, each in proportion to the mass of its children
                # that have not arrived.
                weights = torch.tensor([a.mass * a.left for a in arrived], dtype=torch.float64)
                parent = arrived[here.child_stream("parent").draw_categorical(weights)]
            if parent.only is not None:
                token = parent.only
                q = certain_draw_chance(scores, parent.node, parent.only, budget.graded)
                share = 1.0
                parent.left = 0.0
            else:
                assert parent.q_V is not None and parent.left_V is not None
                token = here.draw_categorical(parent.left_V)
                q = share = float(parent.q_V[token])
                # Drawn without replacement: what has arrived is taken out of the parent's law.
                parent.left_V[token] = 0.0
                parent.left = float(parent.left_V.sum())
            kids.append((len(draft), parent.mass * share, budget.go_on(depth, q)))
            draft = draft.with_node(
                token,
                parent.node,
                DrawKind.CERTAIN if parent.only is not None else DrawKind.WITHOUT,
                parent.law_V,
                q,
            )
        return draft, kids
