"""A law bent by shapers, in the order written.

Every shaper's state is a value at a node of the text, derived along parent pointers when somebody looks at that node;
so a rejected draft leaves nothing to roll back, and a greedy decode derives no state and writes no row at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polydec.core.delegating import DelegatingSession
from polydec.core.law import NEG_INF, normalise_log_weights, one_hot
from polydec.core.protocols import DraftScores, Session, Shaper, Target, of_choice
from polydec.core.row_scores import LogprobRowScores
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary

Shapers = tuple[Shaper[Any], ...]
KEEP = 32  # of the committed text, every 32nd node keeps its states: a rewind derives at most 31 of them again


@dataclass(frozen=True, init=False)
class ShapedTarget:
    """`target` bent by `shapers`, the first one written being the first applied; a Target, so it
    nests.

    The first shaper receives the inner law's log-weights: a model's logits, on which rules that
    look at signs (the repetition penalty) are defined. Over a target that makes its own law they
    act on that law's log-weights.

    Prompt rows (prefill with want.prompt) come unshaped: the shaped law is defined behind the
    prompt only. Rewinding into the prompt shortens it: the next root ends it, as if the session had
    been opened there.

    Exact: the law is the definition that lossless methods reproduce; nothing here is approximate.
    Reduces to: `target` without shapers.
    """

    target: Target
    shapers: Shapers

    def __init__(self, target: Target, *shapers: Shaper[Any]) -> None:
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "shapers", shapers)

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        return self.target.layers

    @property
    def context(self) -> int | None:
        """Tokens that the target reads at most; None where it does not say."""
        return getattr(self.target, "context", None)

    @property
    def adapts(self) -> bool:
        """See `LoadedModel.adapts`."""
        return getattr(self.target, "adapts", False)

    @property
    def moves_tokens(self) -> bool:
        """See `SoftPromptTarget.moves_tokens`."""
        return getattr(self.target, "moves_tokens", False)

    @property
    def routes(self) -> tuple[int, int] | None:
        """See `LoadedModel.routes`."""
        return getattr(self.target, "routes", None)

    def open_session(self, prompt: Sequence[int]) -> ShapedSession:
        return ShapedSession(
            self.shapers,
            self.target.open_session(prompt),
            TextTrail(ShaperStateNode(None, -1, tuple(prompt[:-1]))),
        )


class ShaperStateNode:
    """One token of the text, and what the shapers know after it (`states`, None until somebody
    asks).

    Nodes are linked upwards to the token before and downwards to the tokens that have been tried
    after it, as in a draft. `depth` is 0 for the prompt's last token, where shapers begin
    (`start`), and 1 more for each token. The node above that (depth -1) holds the rest of the
    prompt.

    Args:
        above: The node of the token before; None: this is the head.
        token: Token id.
        prompt: Of the head, the prompt without its last token. Default: none.
    """

    __slots__ = ("above", "depth", "kids", "prompt", "states", "token")

    def __init__(self, above: Any, token: int, prompt: tuple[int, ...] = ()) -> None:
        self.above, self.token, self.prompt = (
            above,
            token,
            prompt,
        )  # above: a Node, or None for the head
        if above is None:
            self.depth = -1
        else:
            self.depth = above.depth + 1
        self.kids: dict[int, ShaperStateNode] = {}
        self.states: tuple[Any, ...] | None = None

    def next_node(self, token: int) -> ShaperStateNode:
        kid = self.kids.get(token)
        if kid is None:
            kid = self.kids[token] = ShaperStateNode(self, token)
        return kid

    def state_of_shapers(self, shapers: Shapers) -> tuple[Any, ...]:
        """The state of each shaper after this token."""
        # Up to the nearest token whose states are known, or to the start of the answer.
        node = self
        behind = list[ShaperStateNode]()
        while node.states is None and node.depth:
            behind.append(node)
            node = node.above
        # The shapers begin at the last token of the prompt.
        if node.states is None:
            prompt = (*node.above.prompt, node.token)
            node.states = tuple(s.start_state(prompt) for s in shapers)
        states = node.states
        # Down again, a step for each token. Only the asked node and every 32nd store their states.
        while behind:
            node = behind.pop()
            states = tuple(
                s.next_state(x, node.token) for s, x in zip(shapers, states, strict=True)
            )
            if node is self or not node.depth % KEEP:
                node.states = states
        return states


class TextTrail:
    """Where a session stands in the text.

    tip: the node of the last committed token; the text is read from it upwards. draft: what was
    scored last. A session that runs only some layers of another one writes the same text, so the
    two share one trail.
    """

    __slots__ = ("draft", "tip")

    def __init__(self, tip: ShaperStateNode, draft: Draft | None = None) -> None:
        self.tip = tip
        self.draft = draft

    def trail_nodes(self, draft: Draft) -> list[ShaperStateNode]:
        """Of each node of a draft its node in the text. What two drafts have in common is shared."""
        # A node of the text is made once, whichever draft asks for it first.
        out = [self.tip.next_node(draft.token[0])]
        for p, x in zip(draft.parent[1:], draft.token[1:], strict=True):
            out.append(out[p].next_node(x))
        return out

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        """These tokens stand now. Branches that were not taken are forgotten."""
        for x in tokens:
            kid = self.tip.next_node(x)
            self.tip.kids.clear()
            # The states of a token that lies further back are only needed after a rewind; most are
            # dropped.
            if kid.states is not None and self.tip.depth % KEEP:
                self.tip.states = None
            self.tip = kid

    def rewind_tokens(self, n: int) -> None:
        while n and self.tip.above is not None:
            self.tip = self.tip.above
            n -= 1
        if n:
            # The rewind reaches into the prompt: the shortened prompt gets a new head.
            self.tip = ShaperStateNode(None, -1, self.tip.prompt[:-n])


class ShapedSession(DelegatingSession):
    """The inner session, and where each of its nodes stands in the text.

    Args:
        shapers: The shapers, the first one applied first.
        inner: The session of the law that is shaped.
        trail: Where the session stands in the text.
    """

    def __init__(self, shapers: Shapers, inner: Session, trail: TextTrail) -> None:
        self._shapers = shapers
        self._inner = inner
        self._trail = trail
        keep = [s.keeps_argmax for s in shapers]
        self._greedy = bool(shapers) and shapers[-1].reads is RowDetail.ARGMAX
        self._same = all(
            keep[:-1] if self._greedy else keep
        )  # the argmax of the inner law is known to be ours
        self._blind = self._greedy and self._same  # nothing else counts: no state is ever looked at
        self._asked = self._inside = ScoreRequest(
            law=RowDetail.NOTHING
        )  # what was wanted last, and what that is of the inner law

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        # Rows of the prompt come unshaped: of the inner law as much is needed as of its base.
        return await self._inner.prefill_prompt(replace(want, law=max(want.law, want.base)))

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> ShapedScores:
        """Score a draft; rows are shaped when somebody looks at them.

        Of the inner law no more is asked than the shapers need: only its argmax where all of them
        leave it where it is.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The shaped law at every node.
        """
        # Requests are mostly the same object from step to step: the translation is remembered.
        if want is not self._asked:
            law = want.law
            if law is not RowDetail.NOTHING and self._shapers:
                # No shaper can move the argmax, and nothing but the argmax is read.
                if self._same and (self._greedy or law is RowDetail.ARGMAX):
                    law = RowDetail.ARGMAX
                else:
                    law = RowDetail.ROW
            self._asked, self._inside = want, replace(want, law=max(law, want.base))
        inner = await self._inner.score_draft(draft, self._inside)
        self._trail.draft = draft
        return ShapedScores(
            self._shapers,
            inner,
            [] if self._blind else self._trail.trail_nodes(draft),
            self._greedy,
            self._same,
        )

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._inner.commit_tokens(tokens)
        if not self._blind:
            self._trail.commit_tokens(tokens)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last, and follow the committed path in the
        text.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.
        """
        left = self._inner.keep_nodes(nodes, root)
        trail = self._trail
        # Where no state is ever read, the text is not followed either.
        if trail.draft is not None and not self._blind:
            trail.commit_tokens(
                [trail.draft.token[i] for i in trail.draft.subtree_below(root, nodes)[0]]
            )
        trail.draft = left
        return left

    def bend_scores(self, draft: Draft, scores: DraftScores) -> ShapedScores:
        """Shape rows with the shapers of this session, each in its state at the node.

        Args:
            draft: The draft whose nodes the rows belong to.
            scores: The rows to shape, such as those of a drafter.

        Returns:
            The shaped rows.
        """
        inner = self._inner.bend_scores(draft, scores)
        return ShapedScores(
            self._shapers,
            inner,
            [] if self._blind else self._trail.trail_nodes(draft),
            self._greedy,
            self._same,
        )

    def rewind_tokens(self, n: int) -> None:
        self._inner.rewind_tokens(n)
        if not self._blind:
            self._trail.rewind_tokens(n)

    def fork(self, choice: int | None = None) -> ShapedSession:
        # Rules that draw take the stream of the new choice.
        if choice is None:
            shapers = self._shapers
        else:
            shapers = tuple(of_choice(s, choice) for s in self._shapers)
        return ShapedSession(
            shapers, self._inner.fork(choice), TextTrail(self._trail.tip, self._trail.draft)
        )

    def open_part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> ShapedSession:
        """Open a part of the inner session, whose rows are shaped, too. It writes the same text,
        so it shares the trail.

        Args:
            layers: Indices of the layers that run.
            without: Halves of layers that are left out: 2 i is the attention of layer i, 2 i + 1
                its MLP.
            together: How many consecutive attentions read the same input. Default 1.

        Returns:
            The shaped session over the same cache.
        """
        return ShapedSession(
            self._shapers, self._inner.open_part(layers, without, together), self._trail
        )


class ShapedScores(LogprobRowScores):
    """Scores of the shaped law; a row is shaped when it is first looked at.

    Args:
        shapers: The shapers, the first one applied first.
        inner: Scores of the law that is shaped.
        nodes: For each node of the draft its node in the text; empty where no state is read.
        greedy: Whether the last shaper leaves the argmax only.
        same: Whether no other shaper can move the argmax.
    """

    __slots__ = ("_certain", "_greedy", "_inner", "_nodes", "_row", "_same", "_shapers", "_weights")

    def __init__(
        self,
        shapers: Shapers,
        inner: DraftScores,
        nodes: list[ShaperStateNode],
        greedy: bool,
        same: bool,
    ) -> None:
        self._shapers = shapers
        self._inner = inner
        self._nodes = nodes
        self._greedy = greedy
        self._same = same
        self._weights: dict[int, Tensor] = {}
        self._row: dict[int, Tensor] = {}
        self._certain: dict[int, int] = {}

    def _bend(self, i: int, shapers: Shapers) -> Tensor:
        w_V = self._inner.log_weights(i)
        # Half-precision logits are shaped in float32.
        if w_V.dtype != torch.float64:
            w_V = w_V.float()
        if shapers:
            for s, state in zip(
                shapers, self._nodes[i].state_of_shapers(self._shapers), strict=False
            ):
                w_V = s.shape_law(state, w_V)
        return w_V

    def log_weights(self, i: int) -> Tensor:
        if i not in self._weights:
            x = self.certain_token(i)
            if x is None:
                self._weights[i] = self._bend(i, self._shapers)
            else:
                self._weights[i] = one_hot(x, self._inner.log_weights(i))
        return self._weights[i]

    def logprob_row(self, i: int) -> Tensor:
        if i not in self._row:
            # Without shapers the inner row is normalised already.
            if self._shapers:
                self._row[i] = normalise_log_weights(self.log_weights(i))
            else:
                self._row[i] = self._inner.logprob_row(i)
        return self._row[i]

    def certain_token(self, i: int) -> int | None:
        # The argmax is that of the inner law, which may know it without a row.
        if self._same:
            if self._greedy:
                return self._inner.likeliest_token(i)
            return self._inner.certain_token(i)
        if not self._greedy:
            return None
        if i not in self._certain:
            # A greedy law over shaped weights: all shapers but the last make the row.
            self._certain[i] = int(self._bend(i, self._shapers[:-1]).argmax())
        return self._certain[i]

    def likeliest_token(self, i: int) -> int:
        if self._same and not self._greedy:
            return self._inner.likeliest_token(i)
        x = self.certain_token(i)
        if x is None:
            return int(self.log_weights(i).argmax())
        return x

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        """Find the likeliest tokens of several rows of the shaped law.

        Args:
            rows: Nodes of the draft.
            k: How many tokens of each row.

        Returns:
            For each node its token ids, best first.
        """
        return [
            self.log_weights(i).topk(min(k, len(self.log_weights(i)))).indices.tolist()
            for i in rows
        ]

    def token_logprobs(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        """Look up log-probabilities of some tokens of one row of the shaped law.

        Args:
            i: Node of the draft.
            tokens: Token ids.

        Returns:
            A log-probability for each token, in the same order.
        """
        only = self.certain_token(i)
        # A law with one token: its log-probability is 0, all others -inf, without a row.
        if only is not None:
            return tuple(0.0 if x == only else NEG_INF for x in tokens)
        return super().token_logprobs(i, tokens)

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> ShapedScores:
        """Read the law that the first layers alone give, shaped as the rows of all layers are.

        Args:
            depth: How many layers; it must have been wanted of the score.
            nodes: Nodes of the draft, in the order of the rows.

        Returns:
            Scores whose row j belongs to ``nodes[j]``.
        """
        if self._nodes:
            mine = [self._nodes[i] for i in nodes]
        else:
            mine = []
        return ShapedScores(
            self._shapers, self._inner.exit_laws(depth, nodes), mine, self._greedy, self._same
        )

    @property
    def hidden_NH(self) -> Tensor | None:
        return self._inner.hidden_NH

    @property
    def base(self) -> DraftScores:
        return self._inner.base
