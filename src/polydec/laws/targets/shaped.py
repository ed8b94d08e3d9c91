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
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary

Shapers = tuple[Shaper[Any], ...]
KEEP = 32  # of the committed text, every 32nd node keeps its states: a rewind derives at most 31 of them again


@dataclass(frozen=True, init=False)
class ShapedTarget:
    """`target` bent by `shapers`, the first one written being the first applied; a Target, so it nests.

    The first shaper receives the inner law's log-weights: a model's logits, on which rules that look at signs (the
    repetition penalty) are defined. Over a target that makes its own law they act on that law's log-weights.

    Prompt rows (prefill with want.prompt) come unshaped: the shaped law is defined behind the prompt only. Rewinding
    into the prompt shortens it: the next root ends it, as if the session had been opened there.

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
    def routes(self) -> tuple[int, int] | None:
        """See `LoadedModel.routes`."""
        return getattr(self.target, "routes", None)

    def open(self, prompt: Sequence[int]) -> ShapedSession:
        return ShapedSession(
            self.shapers,
            self.target.open(prompt),
            TextTrail(ShaperStateNode(None, -1, tuple(prompt[:-1]))),
        )


class ShaperStateNode:
    """One token of the text, and what the shapers know after it (`states`, None until somebody asks).

    Nodes are linked upwards to the token before and downwards to the tokens that have been tried after it, as in a draft.
    depth: 0 for the prompt's last token, where shapers begin (`start`), then 1 more for each token. The node above that
    (depth -1) holds the rest of the prompt.
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

    def next(self, token: int) -> ShaperStateNode:
        kid = self.kids.get(token)
        if kid is None:
            kid = self.kids[token] = ShaperStateNode(self, token)
        return kid

    def look(self, shapers: Shapers) -> tuple[Any, ...]:
        """The state of each shaper after this token."""
        node = self
        behind = list[ShaperStateNode]()
        while node.states is None and node.depth:
            behind.append(node)
            node = node.above
        if node.states is None:
            prompt = (*node.above.prompt, node.token)
            node.states = tuple(s.start(prompt) for s in shapers)
        states = node.states
        while behind:
            node = behind.pop()
            states = tuple(s.step(x, node.token) for s, x in zip(shapers, states, strict=True))
            if node is self or not node.depth % KEEP:
                node.states = states
        return states


class TextTrail:
    """Where a session stands in the text.

    tip: the node of the last committed token; the text is read from it upwards. draft: what was scored last. A session that
    runs only some layers of another one writes the same text, so the two share one trail.
    """

    __slots__ = ("draft", "tip")

    def __init__(self, tip: ShaperStateNode, draft: Draft | None = None) -> None:
        self.tip = tip
        self.draft = draft

    def nodes(self, draft: Draft) -> list[ShaperStateNode]:
        """Of each node of a draft its node in the text. What two drafts have in common is shared."""
        out = [self.tip.next(draft.token[0])]
        for p, x in zip(draft.parent[1:], draft.token[1:], strict=True):
            out.append(out[p].next(x))
        return out

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens stand now. Branches that were not taken are forgotten."""
        for x in tokens:
            kid = self.tip.next(x)
            self.tip.kids.clear()
            if kid.states is not None and self.tip.depth % KEEP:
                self.tip.states = None
            self.tip = kid

    def rewind(self, n: int) -> None:
        while n and self.tip.above is not None:
            self.tip = self.tip.above
            n -= 1
        if n:
            self.tip = ShaperStateNode(None, -1, self.tip.prompt[:-n])


class ShapedSession(DelegatingSession):
    """The inner session, and where each of its nodes stands in the text."""

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

    async def prefill(self, want: ScoreRequest) -> DraftScores:
        return await self._inner.prefill(replace(want, law=max(want.law, want.base)))

    async def score(self, draft: Draft, want: ScoreRequest) -> ShapedScores:
        if want is not self._asked:
            law = want.law
            if law is not RowDetail.NOTHING and self._shapers:
                if self._same and (self._greedy or law is RowDetail.ARGMAX):
                    law = RowDetail.ARGMAX
                else:
                    law = RowDetail.ROW
            self._asked, self._inside = want, replace(want, law=max(law, want.base))
        inner = await self._inner.score(draft, self._inside)
        self._trail.draft = draft
        return ShapedScores(
            self._shapers,
            inner,
            [] if self._blind else self._trail.nodes(draft),
            self._greedy,
            self._same,
        )

    def commit(self, tokens: Sequence[int]) -> None:
        self._inner.commit(tokens)
        if not self._blind:
            self._trail.commit(tokens)

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        left = self._inner.keep(nodes, root)
        trail = self._trail
        if trail.draft is not None and not self._blind:
            trail.commit([trail.draft.token[i] for i in trail.draft.below(root, nodes)[0]])
        trail.draft = left
        return left

    def bend(self, draft: Draft, scores: DraftScores) -> ShapedScores:
        inner = self._inner.bend(draft, scores)
        return ShapedScores(
            self._shapers,
            inner,
            [] if self._blind else self._trail.nodes(draft),
            self._greedy,
            self._same,
        )

    def rewind(self, n: int) -> None:
        self._inner.rewind(n)
        if not self._blind:
            self._trail.rewind(n)

    def fork(self, choice: int | None = None) -> ShapedSession:
        if choice is None:
            shapers = self._shapers
        else:
            shapers = tuple(of_choice(s, choice) for s in self._shapers)
        return ShapedSession(
            shapers, self._inner.fork(choice), TextTrail(self._trail.tip, self._trail.draft)
        )

    def part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> ShapedSession:
        return ShapedSession(
            self._shapers, self._inner.part(layers, without, together), self._trail
        )


class ShapedScores:
    """Scores of the shaped law; a row is bent when it is first looked at."""

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
        w_V = self._inner.weights(i)
        if w_V.dtype != torch.float64:
            w_V = w_V.float()
        if shapers:
            for s, state in zip(shapers, self._nodes[i].look(self._shapers), strict=False):
                w_V = s.shape(state, w_V)
        return w_V

    def weights(self, i: int) -> Tensor:
        if i not in self._weights:
            x = self.certain(i)
            if x is None:
                self._weights[i] = self._bend(i, self._shapers)
            else:
                self._weights[i] = one_hot(x, self._inner.weights(i))
        return self._weights[i]

    def row(self, i: int) -> Tensor:
        if i not in self._row:
            if self._shapers:
                self._row[i] = normalise_log_weights(self.weights(i))
            else:
                self._row[i] = self._inner.row(i)
        return self._row[i]

    def certain(self, i: int) -> int | None:
        if self._same:
            if self._greedy:
                return self._inner.argmax(i)
            return self._inner.certain(i)
        if not self._greedy:
            return None
        if i not in self._certain:
            self._certain[i] = int(self._bend(i, self._shapers[:-1]).argmax())
        return self._certain[i]

    def argmax(self, i: int) -> int:
        if self._same and not self._greedy:
            return self._inner.argmax(i)
        x = self.certain(i)
        if x is None:
            return int(self.weights(i).argmax())
        return x

    def topk(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        row_V = self.row(i)
        value_K, token_K = row_V.topk(min(k, len(row_V)))
        return tuple(token_K.tolist()), tuple(value_K.tolist())

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        return [self.weights(i).topk(min(k, len(self.weights(i)))).indices.tolist() for i in rows]

    def logp(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        only = self.certain(i)
        if only is not None:
            return tuple(0.0 if x == only else NEG_INF for x in tokens)
        row_V = self.row(i)
        return tuple(float(row_V[x]) for x in tokens)

    def exit(self, depth: int, nodes: Sequence[int]) -> ShapedScores:
        if self._nodes:
            mine = [self._nodes[i] for i in nodes]
        else:
            mine = []
        return ShapedScores(
            self._shapers, self._inner.exit(depth, nodes), mine, self._greedy, self._same
        )

    @property
    def hidden_NH(self) -> Tensor | None:
        return self._inner.hidden_NH

    @property
    def base(self) -> DraftScores:
        return self._inner.base
