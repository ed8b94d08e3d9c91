"""Builder of token trees."""

from __future__ import annotations

from torch import Tensor

from polydec.core.types import Draft, DrawKind


class TreeBuilder:
    """Adds nodes to a draft one by one, each below one that is there.

    A draft of which no node was given a chance says none.

    Attributes:
        token: Token id of each node, as in `Draft`.
        parent: Parent of each node; -1 of the root.
        depth: Levels below the root.
        draw: How each node was drawn.
        law: Law that each node was drawn from; None where it is certain.
        probe: Whether a node is fed for its state only.
        chance: How likely a node is accepted where its parent is.
        said: Whether any node was given a chance.
        children: Children of each node that may be accepted, by token; of equal tokens the first.
    """

    __slots__ = ("chance", "children", "depth", "draw", "law", "parent", "probe", "said", "token")

    def __init__(self, root: int) -> None:
        self.token = [root]
        self.parent = [-1]
        self.depth = [0]
        self.draw = [DrawKind.CERTAIN]
        self.law = list[Tensor | None]([None])
        self.probe = [False]
        self.chance = [1.0]
        self.said = False
        self.children: list[dict[int, int]] = [{}]

    @staticmethod
    def of_draft(draft: Draft) -> TreeBuilder:
        """Return a builder that goes on with a draft."""
        out = TreeBuilder(draft.token[0])
        # Node 0 is the root, which the builder made already; the others keep their numbers.
        for i in range(1, len(draft.token)):
            out.add_node(
                draft.parent[i],
                draft.token[i],
                None if draft.chance is None else draft.chance[i],
                draft.draw[i],
                draft.law[i],
                draft.is_probe(i),
            )
        return out

    def __len__(self) -> int:
        return len(self.token)

    def add_node(
        self,
        parent: int,
        token: int,
        chance: float | None = None,
        draw: DrawKind = DrawKind.CERTAIN,
        law: Tensor | None = None,
        probe: bool = False,
    ) -> int:
        """Add a node, even where its parent has an equal child.

        Args:
            parent: Number of the parent.
            token: Token id.
            chance: How likely it is accepted where its parent is, 0 to 1. None: nobody says.
            draw: How it was drawn. Default: with certainty.
            law: Log-probabilities that it was drawn from, shape ``[V]``; None where it is certain.
            probe: Whether it is fed for its state only; then it is no child that may be accepted.

        Returns:
            Number of the new node.
        """
        node = len(self.token)
        self.token.append(token)
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1)
        self.draw.append(draw)
        self.law.append(law)
        self.probe.append(probe)
        self.chance.append(1.0 if chance is None else chance)
        self.said = self.said or chance is not None
        self.children.append({})
        # Probes are never accepted, so they are no children; of equal children the first is found.
        if not probe:
            self.children[parent].setdefault(token, node)
        return node

    def find_or_add(self, parent: int, token: int, chance: float | None = None) -> int:
        """Find the child with a token, or add it as a certain one.

        A child that is there gets the higher of the two chances.

        Args:
            parent: Number of the parent.
            token: Token id.
            chance: How likely it is accepted where its parent is, 0 to 1. None: nobody says.

        Returns:
            Number of the node.
        """
        node = self.children[parent].get(token)
        if node is None:
            return self.add_node(parent, token, chance)
        if chance is not None and chance > self.chance[node]:
            self.chance[node] = chance
        return node

    def built_draft(self) -> Draft:
        """Return the draft as it is now."""
        # Fields that nobody has set are None, as in any other draft.
        return Draft(
            tuple(self.token),
            tuple(self.parent),
            tuple(self.draw),
            tuple(self.law),
            tuple(self.probe) if any(self.probe) else None,
            tuple(self.chance) if self.said else None,
        )
