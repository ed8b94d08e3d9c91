"""A law behind vectors that are computed again and again while an answer is written: before its first
token, and before each so many further ones; or some tokens late, as they are computed beside these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.row_scores import PickedScores
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary, require_scored_draft
from polydec.laws.targets.thinking import LatentPrefixMaker, LatentPrefixTarget

TOP = -1
"""Stands for the nodes of a draft before the next place of vectors."""


NEVER = 1 << 31
"""Tokens to the second place of vectors where there is none: no answer is so long."""


class RecurringThoughtMaker(LatentPrefixMaker, Protocol):
    """Who makes the vectors, each time of what stands before them, or of its beginning.

    Attributes:
        tokens_late: How many of the last tokens before the vectors are not read for them.
    """

    @property
    def tokens_late(self) -> int: ...
    async def make_ahead(self, session: Session, length: int) -> tuple[int, ...]:
        """Make the vectors of the beginning of a text.

        Args:
            session: A session on the text.
            length: Entries of its beginning.

        Returns:
            Ids of the vectors; none where they cannot be made now.
        """
        ...


def recurring_target(
    target: Target, prompt: tuple[int, ...], thinker: RecurringThoughtMaker, every: int
) -> Target:
    """The law behind vectors that are made once, or again and again.

    Args:
        target: The law to read.
        prompt: Token ids of the prompt, at least two.
        thinker: Makes the vectors.
        every: Tokens from one place to the next; 0: the vectors are made once.

    Returns:
        The law.

    Raises:
        RequestError: Vectors would come later than the next ones are begun.
    """
    # Without vectors there is nothing to make again, or late.
    if thinker.count and (every or thinker.tokens_late):
        return RecurringThoughtTarget(target, prompt, thinker, every or NEVER)
    return LatentPrefixTarget(target, prompt, thinker)


@dataclass(frozen=True)
class RecurringThoughtTarget:
    """`target`, to which a text that begins with `prompt` is shown with vectors before the prompt's
    last token, and before each token that is a multiple of `every` behind it; all of them so many
    tokens later as the thinker says (`late`).

    Vectors are made of all that stands before them, earlier vectors included, but for the last `late`
    tokens. So the law is a law of texts: of a draft that goes beyond such a place, the nodes behind it
    are scored behind vectors of their own path, each path by itself. Late vectors are begun together
    with a pass of `target`, as soon as it holds what they are made of: where passes of several models
    run at the same time they cost no wait, and no text depends on it.

    Exact: the law of `target` behind these vectors, no approximation of it.
    Reduces to: `LatentPrefixTarget` while answers have fewer tokens than `every`, none of them late.

    Attributes:
        target: The law to read.
        prompt: Token ids of the prompt, at least two.
        thinker: Makes the vectors.
        every: Tokens from one place to the next, at least 1 and more than vectors are late.
    """

    target: Target
    prompt: tuple[int, ...]
    thinker: RecurringThoughtMaker
    every: int

    def __post_init__(self) -> None:
        if len(self.prompt) < 2:
            raise RequestError(
                "the prompt has one token: thoughts stand before its last one, behind another"
            )
        if self.every < 1:
            raise RequestError(f"every is {self.every}: it must be at least 1")
        # Vectors of one place must be read before those of the next are begun.
        if self.thinker.tokens_late >= self.every:
            raise RequestError(
                f"late is {self.thinker.tokens_late}: it must be below every, which is {self.every}"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        """0: layers that run alone would read a text without its thoughts."""
        return 0

    def open_session(self, prompt: Sequence[int]) -> Session:
        n = len(self.prompt)
        if tuple(prompt[:n]) != self.prompt:
            return self.target.open_session(prompt)
        # Vectors follow the last token but one of the prompt, which is committed with them.
        inner = self.target.open_session(self.prompt[:-1])
        return RecurringThoughtSession(
            self, inner, self.prompt[:-2], tuple(prompt[n - 2 : -1]), 0, 0
        )


class RecurringThoughtSession(DelegatingSession):
    """A session that thinks before its first pass and at each further place that is due.

    Args:
        law: Whose session it is.
        inner: The session that reads vectors.
        read: What the inner session has committed, ids of vectors included.
        tokens: Committed tokens from the prompt's last but one on.
        fed: How many of them the inner session has.
        calls: How often vectors were read.
        made: Ids of the next vectors, where these were made already. Default: they were not.
    """

    _no_parts = "layers cannot run alone behind thoughts: these would be read without them"

    def __init__(
        self,
        law: RecurringThoughtTarget,
        inner: Session,
        read: tuple[int, ...],
        tokens: tuple[int, ...],
        fed: int,
        calls: int,
        made: tuple[int, ...] = (),
    ) -> None:
        self._law = law
        self._inner = inner
        self._read = read
        self._tokens = tokens
        self._fed = fed
        self._calls = calls
        self._made = made
        self._draft: Draft | None = None
        # Whether the inner session holds all nodes of that draft.
        self._whole = False
        self._twins: list[RecurringThoughtSession] = []

    @property
    def _next_place(self) -> int:
        """Index among the tokens of the next one before which vectors stand."""
        return self._begun_place + self._law.thinker.tokens_late

    @property
    def _begun_place(self) -> int:
        """How many of the tokens the next vectors are made of."""
        return 1 + self._calls * self._law.every

    def _feed_known(self) -> None:
        """Give the inner session the tokens before the next place; the last of these waits where
        vectors follow it."""
        # The token before a place is committed by whoever makes the vectors, with these.
        stop = self._next_place
        most = stop - 1 if len(self._tokens) >= stop else len(self._tokens)
        if more := self._tokens[self._fed : most]:
            self._inner.commit_tokens(more)
            self._read += more
            self._fed = most

    async def _think_due(self) -> None:
        """Make all vectors that stand before the root."""
        # A text that was given whole may have passed several places.
        while len(self._tokens) >= self._next_place:
            self._feed_known()
            noted = NotedCommits(self._inner)
            before = (*self._read, self._tokens[self._fed])
            if self._made:
                noted.commit_tokens((before[-1], *self._made))
            else:
                await self._law.thinker.commit_thought(noted, before)
            self._read = (*self._read, *noted.told)
            self._fed += 1
            self._calls += 1
            self._made = ()
        self._feed_known()

    async def _begin_ahead(self) -> None:
        """Make the next vectors, of which some tokens stay unread, where what they are made of is
        cached already."""
        begun = self._begun_place
        # They are made once, and of tokens that are committed; vectors without delay are made where
        # they are due.
        if self._law.thinker.tokens_late and not self._made and self._fed >= begun:
            length = len(self._read) - (self._fed - begun)
            self._made = await self._law.thinker.make_ahead(self._inner, length)

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        await self._think_due()
        # What late vectors are made of is fed now, where else its end would ride with the first pass.
        fed = replace(want, last=True) if self._law.thinker.tokens_late else want
        scores = await self._inner.prefill_prompt(fed)
        if not want.prompt:
            return scores
        rows = list(range(len(self._law.prompt) - 2))
        place = len(rows)
        for at in range(len(self._tokens)):
            # The row of a token before vectors is that of the last vector.
            behind = at - self._law.thinker.tokens_late
            if behind >= 0 and behind % self._law.every == 0:
                place += self._law.thinker.count
            rows.append(place)
            place += 1
        return PickedScores.rows_of(scores, rows)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft; vectors that stand before its root are made first, those within it for each
        path that goes so far.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The law at every node.
        """
        self._drop_twins()
        await self._think_due()
        self._draft = draft
        owner = self._split_draft(draft)
        top = [node for node, own in enumerate(owner) if own == TOP]
        self._whole = len(top) == len(draft)
        if self._whole:
            # Both are waited for at once, so that vectors are made while the model's pass runs.
            _, scores = await gather_coroutines(
                self._begin_ahead(), self._inner.score_draft(draft, want)
            )
            return scores
        # Paths that go over the next place share its vectors, where they can be made by now.
        await self._begin_ahead()
        # What stands before the next place is one draft of the inner session.
        scores = await self._inner.score_draft(draft.only_nodes(top), want)
        rows: dict[int, tuple[DraftScores, int]] = {node: (scores, i) for i, node in enumerate(top)}
        begun = dict[int, RecurringThoughtSession]()
        for own in dict.fromkeys(owner):
            if own == TOP:
                continue
            parent = draft.parent[own] if own >= 0 else -2 - own
            if parent not in begun:
                # Siblings stand behind the same vectors.
                begun[parent] = await self._behind_path(draft, parent)
            # A twin for each sibling, as only one of them can be its root.
            twin = begun[parent].fork()
            self._twins.append(twin)
            if own >= 0:
                _, stay, left = draft.subtree_below(own, range(len(draft)))
                below = await twin.score_draft(left, want)
                rows |= {node: (below, i) for i, node in enumerate(stay)}
            else:
                group = [node for node, x in enumerate(owner) if x == own]
                chosen = sorted({0, *_path_of(draft, parent), *group})
                _, stay, left = draft.subtree_below(parent, chosen)
                below = await twin._score_probes(left, want)
                rows |= {node: (below, i) for i, node in enumerate(stay) if node in group}
        ordered = [rows[node] for node in range(len(draft))]
        return PickedScores([of for of, _ in ordered], [at for _, at in ordered])

    async def _behind_path(self, draft: Draft, node: int) -> RecurringThoughtSession:
        """A session behind the path to a node, and behind the vectors that follow it."""
        twin = self.fork()
        self._twins.append(twin)
        twin.commit_tokens([draft.token[i] for i in _path_of(draft, node)])
        await twin._think_due()
        return twin

    async def _score_probes(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score probes that stand right behind vectors: the last of these is the root, in the place
        of the draft's own."""
        # Taken back, so that it can be the root that a pass reads.
        self._inner.rewind_tokens(1)
        return await self._inner.score_draft(
            replace(draft, token=(self._read[-1], *draft.token[1:])), want
        )

    def _split_draft(self, draft: Draft) -> list[int]:
        """Of each node the node at or above it before which vectors stand, or TOP where there is
        none; of probes right behind vectors -2 less the node that they follow."""
        room = self._next_place - len(self._tokens)
        owner = list[int]()
        for node, parent in enumerate(draft.parent):
            own = TOP if parent < 0 else owner[parent]
            if own == TOP and draft.depth[node] == room:
                if not draft.is_probe(node):
                    own = node
                elif not draft.is_probe(parent):
                    own = -2 - parent
            owner.append(own)
        return owner

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._drop_twins()
        self._tokens += tuple(tokens)
        self._draft = None
        self._whole = False
        self._feed_known()

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last. Where it went beyond a place of vectors
        it is fed anew with the next score.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.

        Raises:
            RequestError: Nothing was scored since the last commit.
        """
        draft = require_scored_draft(self._draft)
        path, _, left = draft.subtree_below(root, nodes)
        told = tuple(draft.token[i] for i in path)
        # A draft that the inner session holds whole is cut there; of any other the path alone stays.
        if self._whole:
            self._inner.keep_nodes(nodes, root)
            self._tokens += told
            self._read += told
            self._fed += len(told)
        else:
            self.commit_tokens(told)
        self._draft = left
        return left

    def rewind_tokens(self, n: int) -> None:
        most = len(self._tokens) - 1
        if not 0 <= n <= most:
            raise RequestError(
                f"n is {n}: it must lie in 0 to {most}, the tokens since a prompt with thoughts"
            )
        self._drop_twins()
        left = len(self._tokens) - n
        # Vectors stay that stand before the new root or earlier.
        passed = (left - 1 - self._law.thinker.tokens_late) // self._law.every + 1
        calls = min(self._calls, max(0, passed))
        # So do vectors that were made ahead, while the text holds what they were made of.
        if calls < self._calls or left < self._begun_place:
            self._made = ()
        fed = min(self._fed, left)
        # Tokens and vectors lie one behind the other in what was read.
        back = self._fed - fed + (self._calls - calls) * self._law.thinker.count
        self._inner.rewind_tokens(back)
        self._read = self._read[: len(self._read) - back]
        self._tokens = self._tokens[:left]
        self._fed = fed
        self._calls = calls
        self._draft = None
        self._whole = False

    def text_vectors(self) -> Mapping[int, Tensor]:
        # Thoughts stand between the tokens of the text, in the place of none.
        return {}

    def text_grids(self) -> Sequence[Any]:
        # A thought is no image.
        return ()

    def layer_memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        raise RequestError(
            "keys cannot be read behind a prompt with thoughts: they stand at other places than its tokens"
        )

    def evict_cache(self) -> None:
        for session in (self._inner, *self._twins):
            session.evict_cache()

    def _drop_twins(self) -> None:
        """Close the sessions of paths that were scored last."""
        for twin in self._twins:
            twin.close()
        self._twins = []

    def fork(self, choice: int | None = None) -> RecurringThoughtSession:
        twin = RecurringThoughtSession(
            self._law,
            self._inner.fork(choice),
            self._read,
            self._tokens,
            self._fed,
            self._calls,
            self._made,
        )
        twin._draft = self._draft
        twin._whole = self._whole
        return twin

    def close(self) -> None:
        self._drop_twins()
        self._inner.close()


class NotedCommits(DelegatingSession):
    """A session that notes what is committed to another one.

    Args:
        inner: The other session.
    """

    def __init__(self, inner: Session) -> None:
        self._inner = inner
        self.told: list[int] = []

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft as the other session does.

        Args:
            draft: The token tree.
            want: What the caller is going to read.

        Returns:
            The law at every node.
        """
        return await self._inner.score_draft(draft, want)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._inner.commit_tokens(tokens)
        self.told += tokens

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Refuse: whoever makes vectors commits tokens.

        Args:
            nodes: Not read.
            root: Not read.

        Raises:
            RequestError: Always.
        """
        raise RequestError("nodes cannot be kept while vectors are made")

    def rewind_tokens(self, n: int) -> None:
        self._inner.rewind_tokens(n)
        self.told = self.told[: len(self.told) - n]

    def fork(self, choice: int | None = None) -> Session:
        return self._inner.fork(choice)


def _path_of(draft: Draft, node: int) -> tuple[int, ...]:
    """The nodes from the root to a node, both included."""
    return (0, *draft.path_to(node))
