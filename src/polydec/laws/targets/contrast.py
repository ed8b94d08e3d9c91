"""A law made of the rows of several laws that read one text: the first is what is wanted, the others it is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.effects import gather_coroutines
from polydec.core.law import normalise_log_weights
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.row_scores import LogprobRowScores
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary

SILENT, ROW = ScoreRequest(law=RowDetail.NOTHING), ScoreRequest()


class ContrastRule(Protocol):
    """What becomes of the rows of several laws: a pure function of them, and of nothing else."""

    laws: ClassVar[int]
    """How many others there are beside the first."""
    gated: ClassVar[bool]
    """Whether there are rows of the first law at which the others are not asked (see `opens_contrast`)."""

    def opens_contrast(self, logp_V: Tensor) -> bool:
        """Whether the others are asked where the first law has this row; else the row stands as it
        is.
        """
        ...

    def mix_laws(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Mix the rows of several laws into one.

        A token that the first law rules out stays out. No weight is NaN, and none is infinite but
        -inf.

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the other laws, each of shape ``[V]``.

        Returns:
            Log-weights of the new law, shape ``[V]``.
        """
        ...


@dataclass(frozen=True)
class ContrastTarget:
    """The rows of several laws that read one text, mixed by a rule.

    Sessions of all laws are kept in step, so any drafter, verifier or search decodes it, and their
    passes are merged with those of other requests. All of them score the same draft, at the same
    time where the rule is not gated. Under a gated rule the others are asked only for a draft that
    has a row where the gate is open; until then what was written waits, and is fed in one pass.

    What is read besides the law (rows of the prompt, states, embeddings, the model's own rows,
    exits) is that of `target`.

    Exact: the law is the definition that lossless methods reproduce; nothing here is approximate.
    Reduces to: `target` under a rule that gives back the first row.

    Attributes:
        target: The first law.
        others: The other laws, as many as the rule mixes, over the same vocabulary.
        rule: Mixes their rows.
    """

    target: Target
    others: tuple[Target, ...]
    rule: ContrastRule

    def __post_init__(self) -> None:
        if len(self.others) != self.rule.laws:
            raise RequestError(
                f"others has {len(self.others)} laws: the rule {type(self.rule).__name__} mixes {self.rule.laws}"
            )
        # Rows are mixed id by id, so ids must mean the same in all laws.
        for other in self.others:
            self.target.vocab.require_same(other.vocab, "the second model")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        """0: layers of several laws that are kept in step cannot run alone."""
        return 0

    def open_session(self, prompt: Sequence[int]) -> ContrastSession:
        return ContrastSession(
            self.rule,
            self.target.open_session(prompt),
            [other.open_session(prompt) for other in self.others],
        )


class ContrastSession(DelegatingSession):
    """The sessions of all laws, in step.

    `_draft` is what was scored last, None where nothing is staged. `_asked` says whether the others
    scored it too. `_rows` holds their scores, and is empty where they are not known.

    Args:
        rule: Mixes the rows.
        first: Session of the first law.
        others: Sessions of the other laws.
    """

    _no_parts = "layers cannot run alone where a law is made of several"

    def __init__(self, rule: ContrastRule, first: Session, others: Sequence[Session]) -> None:
        self._rule = rule
        self._inner = first
        self._others = others
        self._stage(None)

    def _stage(self, draft: Draft | None, rows: Sequence[DraftScores] = ()) -> None:
        self._draft = draft
        self._rows = rows
        self._asked = bool(rows)

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        # Under a gated rule the others read the prompt when they are first asked.
        if self._rule.gated:
            waiting = ()
        else:
            waiting = self._others
        return (
            await gather_coroutines(
                self._inner.prefill_prompt(want), *(s.prefill_prompt(SILENT) for s in waiting)
            )
        )[0]

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft under all laws and mix their rows.

        Under a gated rule the others are asked only where the gate opens at some node.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The mixed law at every node.
        """
        # No rows are read: the others need not see this draft.
        if want.law is RowDetail.NOTHING:
            scores = await self._inner.score_draft(draft, want)
            self._stage(draft)
            return scores
        # Mixing needs complete rows, whatever the caller reads of the result.
        now = replace(want, law=RowDetail.ROW)
        rows = list[DraftScores]()
        if self._rule.gated:
            # The gate looks at the first law, so the others have to wait for it.
            first = await self._inner.score_draft(draft, now)
            if any(self._rule.opens_contrast(first.logprob_row(i)) for i in range(len(draft))):
                rows = await gather_coroutines(*(caught_up(s, draft) for s in self._others))
        else:
            first, *rows = await gather_coroutines(
                self._inner.score_draft(draft, now),
                *(s.score_draft(draft, ROW) for s in self._others),
            )
        self._stage(draft, rows)
        return MadeScores(ContrastRowMaker(self._rule, first, rows, range(len(draft))), first)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        for session in (self._inner, *self._others):
            session.commit_tokens(tokens)
        self._stage(None)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last, in all sessions.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.
        """
        draft = self._draft
        left = self._inner.keep_nodes(nodes, root)
        assert draft is not None, "the first law keeps what it never scored"
        # A session that has not scored the draft commits the path as plain tokens.
        path = [draft.token[i] for i in draft.subtree_below(root, nodes)[0]]
        for session in self._others:
            if self._asked:
                session.keep_nodes(nodes, root)
            else:
                session.commit_tokens(path)
        self._draft = left
        self._rows = ()
        return left

    def evict_cache(self) -> None:
        for session in (self._inner, *self._others):
            session.evict_cache()

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Shape rows, then mix them at the nodes that were scored last.

        Elsewhere nobody knows what the other laws say, and rows stay as the first session shapes
        them.

        Args:
            draft: The draft whose nodes the rows belong to.
            scores: The rows to shape, such as those of a drafter.

        Returns:
            The shaped rows.
        """
        inner = self._inner.bend_scores(draft, scores)
        if self._draft is None or not self._rows:
            return inner
        return MadeScores(
            ContrastRowMaker(self._rule, inner, self._rows, matching_nodes(draft, self._draft)),
            inner,
        )

    def rewind_tokens(self, n: int) -> None:
        for session in (self._inner, *self._others):
            session.rewind_tokens(n)
        self._stage(None)

    def fork(self, choice: int | None = None) -> ContrastSession:
        twin = ContrastSession(
            self._rule, self._inner.fork(choice), [s.fork(choice) for s in self._others]
        )
        twin._draft = self._draft
        twin._rows = self._rows
        twin._asked = self._asked
        return twin

    def close(self) -> None:
        for session in (self._inner, *self._others):
            session.close()


async def caught_up(session: Session, draft: Draft) -> DraftScores:
    """Score a draft with a session that may have missed much of the text before it; that is fed in
    chunks first.

    Args:
        session: The session.
        draft: The token tree.

    Returns:
        The law at every node, complete rows.
    """
    await session.prefill_prompt(SILENT)
    return await session.score_draft(draft, ROW)


def matching_nodes(draft: Draft, known: Draft) -> list[int]:
    """Match the nodes of a draft to those of a known draft that end the same text.

    Args:
        draft: The draft to look up.
        known: The draft whose rows are known.

    Returns:
        For each node of `draft` the node of `known`; -1 where there is none.
    """
    out = list[int]()
    for i in range(len(draft)):
        nodes = known.nodes_of([draft.token[0], *(draft.token[j] for j in draft.path_to(i))])
        out.append(nodes[-1] if len(nodes) == draft.depth[i] + 1 else -1)
    return out


@dataclass(frozen=True, eq=False)
class ContrastRowMaker:
    """Make rows of a mixed law.

    Attributes:
        rule: Mixes the rows.
        first: Rows of the first law.
        rows: Rows of the other laws; empty where they were not asked.
        at: For each node its row in those of the others; -1: they were not asked there.
    """

    rule: ContrastRule
    first: DraftScores
    rows: Sequence[DraftScores]
    at: Sequence[int]

    def __call__(self, i: int) -> Tensor:
        first_V = self.first.logprob_row(i)
        # Where the others were not asked, or the gate is closed, the first law stands.
        if (
            not self.rows
            or self.at[i] < 0
            or (self.rule.gated and not self.rule.opens_contrast(first_V))
        ):
            return first_V
        return self.rule.mix_laws(first_V, [scores.logprob_row(self.at[i]) for scores in self.rows])


class RowMaker(Protocol):
    """Makes row i of log-weights."""

    def __call__(self, i: int) -> Tensor: ...


class MadeScores(LogprobRowScores):
    """Scores whose rows a function makes; each row is made when it is first looked at.

    Args:
        make: Makes the log-weights of row i.
        inner: What everything else is read of (exits, states, base).
    """

    __slots__ = ("_inner", "_make", "_row", "_weights")

    def __init__(self, make: RowMaker, inner: DraftScores) -> None:
        self._make = make
        self._inner = inner
        self._weights: dict[int, Tensor] = {}
        self._row: dict[int, Tensor] = {}

    def log_weights(self, i: int) -> Tensor:
        if i not in self._weights:
            self._weights[i] = self._make(i)
        return self._weights[i]

    def logprob_row(self, i: int) -> Tensor:
        if i not in self._row:
            self._row[i] = normalise_log_weights(self.log_weights(i))
        return self._row[i]

    def certain_token(self, i: int) -> int | None:
        return None

    def likeliest_token(self, i: int) -> int:
        return int(self.log_weights(i).argmax())

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        """Find the likeliest tokens of several rows of the made law.

        Args:
            rows: Nodes of the draft.
            k: How many tokens of each row.

        Returns:
            For each node its token ids, best first.
        """
        return [list(self.likeliest_tokens(i, k)[0]) for i in rows]

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> DraftScores:
        """Read the law of the first layers alone, as the inner scores have it: it is not mixed.

        Args:
            depth: How many layers; it must have been wanted of the score.
            nodes: Nodes of the draft, in the order of the rows.

        Returns:
            Scores whose row j belongs to ``nodes[j]``.
        """
        return self._inner.exit_laws(depth, nodes)

    @property
    def hidden_NH(self) -> Tensor | None:
        return self._inner.hidden_NH

    @property
    def base(self) -> DraftScores:
        return self._inner.base
