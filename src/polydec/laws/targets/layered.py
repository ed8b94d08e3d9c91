"""A law held against that of an earlier layer of the same pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.law import jensen_shannon_divergence
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.laws.targets.contrast import ContrastRule, MadeScores, matching_nodes


@dataclass(frozen=True)
class LayerContrastTarget:
    """The row behind all layers and that of one of `exits`, mixed by `rule`: at each node the exit
    whose law differs most from the last layer's (Jensen-Shannon divergence, the first on a tie).
    Exits are read through the final norm and the head, from the pass that runs anyway.

    exits: ascending depths, at least one, below the target's layers; rule: of one other law.

    Exact: the law is the definition that lossless methods reproduce; nothing here is approximate.
    Reduces to: `target` under a rule that gives back the first row.
    Source: Chuang et al., "DoLa: decoding by contrasting layers improves factuality in large
    language models", 2023.
    """

    target: Target
    exits: tuple[int, ...]
    rule: ContrastRule

    def __post_init__(self) -> None:
        last = self.target.layers - 1
        if (
            not self.exits
            or list(self.exits) != sorted(set(self.exits))
            or not 1 <= self.exits[0] <= self.exits[-1] <= last
        ):
            raise RequestError(
                f"exits is {self.exits}: it must hold ascending depths of 1 to {last}"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        return self.target.layers

    def open_session(self, prompt: Sequence[int]) -> LayeredSession:
        return LayeredSession(self.exits, self.rule, self.target.open_session(prompt))


class LayeredSession(DelegatingSession):
    """The inner session; what is scored there brings the exits along.

    `_draft` is what was scored last. `_rows` and `_at` are its exits, and for each node its row in
    them (-1: it has none).

    Args:
        exits: Ascending depths in layers.
        rule: Mixes two rows.
        inner: The session of the model.
    """

    def __init__(self, exits: tuple[int, ...], rule: ContrastRule, inner: Session) -> None:
        self._exits = exits
        self._rule = rule
        self._inner = inner
        self._draft: Draft | None = None
        self._rows: Sequence[DraftScores] = ()
        self._at: Sequence[int] = ()

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft, and mix each row with that of an exit.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The mixed law at every node.
        """
        if want.law is RowDetail.NOTHING:
            self._draft = None
            self._rows = ()
            return await self._inner.score_draft(draft, want)
        # The exits come from the pass that runs anyway.
        both = tuple(sorted({*want.exits, *self._exits}))
        scores = await self._inner.score_draft(draft, replace(want, law=RowDetail.ROW, exits=both))
        tokens, self._at = text_nodes(draft)
        self._draft, self._rows = draft, [scores.exit_laws(depth, tokens) for depth in self._exits]
        return MadeScores(LayerMixing(self._rule, scores, self._rows, self._at), scores)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._inner.commit_tokens(tokens)
        self._draft = None
        self._rows = ()

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last; its exits are forgotten.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.
        """
        self._draft = None
        self._rows = ()
        return self._inner.keep_nodes(nodes, root)

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Shape rows, then mix them at the nodes that were scored last.

        Elsewhere the exits are not known, and rows stay as the inner session shapes them.

        Args:
            draft: The draft whose nodes the rows belong to.
            scores: The rows to shape, such as those of a drafter.

        Returns:
            The shaped rows.
        """
        inner = self._inner.bend_scores(draft, scores)
        if self._draft is None:
            return inner
        # From a node to the staged node of the same text, then to its row in the exits.
        at = [-1 if j < 0 else self._at[j] for j in matching_nodes(draft, self._draft)]
        return MadeScores(LayerMixing(self._rule, inner, self._rows, at), inner)

    def rewind_tokens(self, n: int) -> None:
        self._inner.rewind_tokens(n)
        self._draft = None
        self._rows = ()

    def fork(self, choice: int | None = None) -> LayeredSession:
        twin = LayeredSession(self._exits, self._rule, self._inner.fork(choice))
        twin._draft = self._draft
        twin._rows = self._rows
        twin._at = self._at
        return twin


def text_nodes(draft: Draft) -> tuple[list[int], list[int]]:
    """The nodes that are tokens of a text, and of each node its place among them. A state that
    stands in for a token may enter above the exits, and no token is ever read behind it: -1.
    """
    nodes = [i for i in range(len(draft)) if draft.state is None or draft.state[i] is None]
    at = [-1] * len(draft)
    for place, i in enumerate(nodes):
        at[i] = place
    return nodes, at


@dataclass(frozen=True, eq=False)
class LayerMixing:
    """Make rows of the mixed law.

    Attributes:
        rule: Mixes two rows.
        last: Rows of all layers.
        rows: Rows of the exits.
        at: For each node its row in those of the exits; -1: not known.
    """

    rule: ContrastRule
    last: DraftScores
    rows: Sequence[DraftScores]
    at: Sequence[int]

    def __call__(self, i: int) -> Tensor:
        last_V = self.last.logprob_row(i)
        at = self.at[i]
        if at < 0:
            return last_V
        early = [scores.logprob_row(at) for scores in self.rows]
        # DoLa: the premature layer is the one whose law differs most from the last layer's.
        apart = [jensen_shannon_divergence(last_V, row_V) for row_V in early]
        return self.rule.mix_laws(last_V, [early[apart.index(max(apart))]])
