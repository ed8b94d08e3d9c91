"""A token tree under way."""

from __future__ import annotations

from torch import Tensor

from polydec.core.types import Draft, DrawKind


class TreeBuilder:
    """Adds nodes to a draft one by one, each below one that is there.

    token, parent, draw, law, probe, chance: of each node, as in `Draft`; depth: levels below the root; children: of each node
    its children that may be accepted, by token (of equal ones the first). A draft of which no node was given a chance says
    none.
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
    def of(draft: Draft) -> TreeBuilder:
        """Goes on with a draft."""
        out = TreeBuilder(draft.token[0])
        for i in range(1, len(draft.token)):
            out.add(
                draft.parent[i],
                draft.token[i],
                None if draft.chance is None else draft.chance[i],
                draft.draw[i],
                draft.law[i],
                draft.probe is not None and draft.probe[i],
            )
        return out

    def __len__(self) -> int:
        return len(self.token)

    def add(
        self,
        parent: int,
        token: int,
        chance: float | None = None,
        draw: DrawKind = DrawKind.CERTAIN,
        law: Tensor | None = None,
        probe: bool = False,
    ) -> int:
        """A new node, which is returned, also beside an equal one."""
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
        if not probe:
            self.children[parent].setdefault(token, node)
        return node

    def put(self, parent: int, token: int, chance: float | None = None) -> int:
        """The child with this token that may be accepted, which has the better of two chances; where there is none a new,
        certain one."""
        node = self.children[parent].get(token)
        if node is None:
            return self.add(parent, token, chance)
        if chance is not None and chance > self.chance[node]:
            self.chance[node] = chance
        return node

    def draft(self) -> Draft:
        return Draft(
            tuple(self.token),
            tuple(self.parent),
            tuple(self.draw),
            tuple(self.law),
            tuple(self.probe) if any(self.probe) else None,
            tuple(self.chance) if self.said else None,
        )
