"""Many texts in one session: what several of them begin with is computed and held once."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest


class BranchTree:
    """The texts that a search still follows, as branches of one tree. A text is named by the node of its last token; node 0
    is the prompt's last token at first.

    `score` gives the law behind every text; `grow` says which texts there are next. Branches that no text goes on from are
    dropped at once, and what all texts have in common is committed, so the tree never holds more than is still in play.
    """

    __slots__ = ("_draft", "_session", "_want")

    def __init__(self, session: Session, draft: Draft, want: ScoreRequest) -> None:
        self._session = session
        self._draft = draft
        self._want = want

    @staticmethod
    async def open(
        target: Target,
        prompt: Sequence[int],
        *,
        base: RowDetail = RowDetail.NOTHING,
        whole: bool = False,
    ) -> BranchTree:
        """Feed a prompt of at least one token. base: what will be read of the model's own rows, before shaping; whole: no part
        of it is left to ride with the first pass."""
        session = target.open(prompt)
        try:
            await session.prefill(ScoreRequest(law=RowDetail.NOTHING, last=whole))
        except BaseException:
            session.close()
            raise
        # a node's law is read once, its state is far smaller: a session that has the state does not keep the law
        return BranchTree(
            session, Draft.chain(prompt[-1]), ScoreRequest(base=base, hidden=target.layers > 0)
        )

    def fork(self, choice: int) -> BranchTree:
        """Another one at the prompt's end, at no cost, before anything was scored. choice: the answer that it is for."""
        return BranchTree(self._session.fork(choice), self._draft, self._want)

    async def score(self) -> DraftScores:
        """The law behind each text, at its node. One pass over the tokens that are new."""
        return await self._session.score(self._draft, self._want)

    def grow(self, texts: Sequence[tuple[int, int]], waiting: Sequence[int] = ()) -> list[int]:
        """Go on with these texts and no others; each is the node of a text that was scored, and one more token. waiting: nodes
        of texts that stay as they are. Returns the node of each, of those that wait at last; equal texts have one node.
        Without any that goes on, the tree stays as it is."""
        if not texts:
            return list(waiting)
        going = [(node, (token,)) for node, token in texts]
        return self.extend([*going, *((node, ()) for node in waiting)])

    def extend(self, texts: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
        """As `grow`, of at least one text, each with any number of tokens: with none it stays as it is."""
        draft = self._draft
        paths = [{0, *draft.path_to(node)} for node in {node for node, _ in texts}]
        kept = sorted({node for path in paths for node in path})
        root = max(node for node in kept if all(node in path for path in paths))
        _, stay, _ = draft.below(root, kept)
        left = self._session.keep(kept, root)
        moved = {old: new for new, old in enumerate(stay)}
        token = list(left.token)
        parent = list(left.parent)
        node_of = dict[tuple[int, int], int]()
        nodes = list[int]()
        for node, tokens in texts:
            at = moved[node]
            for x in tokens:
                if (at, x) not in node_of:
                    node_of[at, x] = len(token)
                    token.append(x)
                    parent.append(at)
                at = node_of[at, x]
            nodes.append(at)
        self._draft = Draft.certain(token, parent)
        return nodes

    def close(self) -> None:
        """Give the session back."""
        self._session.close()
