"""Many texts in one session: what several of them begin with is computed and cached once."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest


class BranchTree:
    """The texts that a search still follows, as branches of one tree.

    A text is named by the node of its last token; node 0 is the prompt's last token at first.
    `score_texts` gives the law after every text; `extend_texts` says which texts there are next. Branches that no
    text continues are dropped at once, and what all texts have in common is committed, so the tree
    never holds more than is still needed.
    """

    __slots__ = ("_draft", "_session", "_want")

    def __init__(self, session: Session, draft: Draft, want: ScoreRequest) -> None:
        """Begin with a session.

        Args:
            session: Session of the model; closed with the tree.
            draft: Draft whose nodes name the texts.
            want: What is read of each score.
        """
        self._session = session
        self._draft = draft
        self._want = want

    @staticmethod
    async def open_tree(
        target: Target,
        prompt: Sequence[int],
        *,
        base: RowDetail = RowDetail.NOTHING,
        whole: bool = False,
        hidden: bool = False,
    ) -> BranchTree:
        """Feed a prompt, and return the tree that begins with it.

        Args:
            target: The model.
            prompt: Token ids, at least one.
            base: What will be read of the model's own rows, before shaping.
            whole: Feed all of the prompt now; else a last part may be fed with the first score.
            hidden: The state after each text is read, too.
        """
        session = target.open_session(prompt)
        try:
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING, last=whole))
        except BaseException:
            session.close()
            raise
        # A node's law is read once, and its state is far smaller: a session that has the state need
        # not keep the law.
        return BranchTree(
            session,
            Draft.chain_draft(prompt[-1]),
            ScoreRequest(base=base, hidden=hidden or target.layers > 0),
        )

    def fork(self, choice: int) -> BranchTree:
        """Return another tree at the prompt's end, at no cost, before anything was scored.

        It writes that choice of the request.
        """
        return BranchTree(self._session.fork(choice), self._draft, self._want)

    async def score_texts(self) -> DraftScores:
        """Return the law after each text, at its node: one pass over the tokens that are new."""
        return await self._session.score_draft(self._draft, self._want)

    def extend_by_one(
        self, texts: Sequence[tuple[int, int]], waiting: Sequence[int] = ()
    ) -> list[int]:
        """Continue these texts, each with one token, and no others.

        Args:
            texts: Pairs of a scored text's node and the token that it goes on with. With none the
                tree stays as it is.
            waiting: Nodes of texts that stay as they are.

        Returns:
            Nodes of the texts, then of those that wait; equal texts have one node.
        """
        if not texts:
            return list(waiting)
        going = [(node, (token,)) for node, token in texts]
        return self.extend_texts([*going, *((node, ()) for node in waiting)])

    def extend_texts(self, texts: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
        """Continue these texts, each with any number of tokens, and no others.

        Args:
            texts: Pairs of a scored text's node and the tokens that it goes on with, at least one
                pair. A text without tokens stays as it is.

        Returns:
            Nodes of the texts; equal texts have one node.
        """
        draft = self._draft
        paths = [{0, *draft.path_to(node)} for node in {node for node, _ in texts}]
        kept = sorted({node for path in paths for node in path})
        # The deepest node that all texts share becomes the root: nodes are numbered from the root
        # down, so it is the largest.
        root = max(node for node in kept if all(node in path for path in paths))
        # The session keeps what is still followed, renumbers it, and commits the path to the root.
        _, stay, _ = draft.subtree_below(root, kept)
        left = self._session.keep_nodes(kept, root)
        moved = {old: new for new, old in enumerate(stay)}
        token = list(left.token)
        parent = list(left.parent)
        # Siblings with equal tokens are one node.
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
        self._draft = Draft.certain_tree(token, parent)
        return nodes

    def close(self) -> None:
        """Give the session back."""
        self._session.close()
