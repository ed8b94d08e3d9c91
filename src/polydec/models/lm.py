"""A language model as a law: the session that turns drafts into queries and keeps the cache in step."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from polydec.core.effects import Forward
from polydec.core.law import normalise
from polydec.core.types import Draft, Reads, Vocab, Want


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Feed `token` (or `embed`, MH) into slots [first, first + M) of `cache`, which has them staged or committed.

    A slot below cache.length sees every slot up to itself; a staged one sees the committed slots, its ancestors and
    itself, and stands at position cache.length + its depth. `rows` (ascending indices into the M) are answered. With
    `layers`, only these layers run; where they do not begin at 0, `embed` is what enters the first of them.
    """
    cache: Any
    first: int
    token: tuple[int, ...]
    rows: Sequence[int]
    want: Want
    embed: Tensor | None = None
    layers: range | None = None

    def __len__(self) -> int:
        return len(self.token) if self.embed is None else len(self.embed)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """logits_RV of the rows asked for (None where want.law is NOTHING); hidden_RH: after the last layer that ran, before the
    final norm, where wanted. A network that finds the likeliest tokens itself gives `argmax`, and where no more was wanted
    `later` instead of logits: what computes them after all."""
    logits_RV: Tensor | None
    hidden_RH: Tensor | None = None
    argmax: Sequence[int] | None = None
    later: Callable[[], Tensor] | None = None


class Network(Protocol):
    """What a session runs on."""
    @property
    def cost(self) -> float: ...
    @property
    def layers(self) -> int: ...
    @property
    def context(self) -> int:
        """The longest sequence, in positions."""
        ...

    @property
    def tree(self) -> bool:
        """Whether several staged children of one entry can be fed in one query (else path by path)."""
        ...

    @property
    def rollback(self) -> bool:
        """Whether a cache can drop its last entries cheaply; asked only where `tree` is False."""
        ...

    @property
    def partial(self) -> bool:
        """Whether a range of the layers can run alone."""
        ...

    def new_cache(self) -> Any: ...
    def forward(self, queries: Sequence[Query]) -> Sequence[Answer]: ...
    def __hash__(self) -> int: ...


class LogitScores:
    """Scores of a model, over the logits of one or several passes."""
    __slots__ = ("_argmax", "_at", "_chunks", "_hidden", "_later", "_logp")

    def __init__(self, answers: Sequence[Answer]) -> None:
        laws = [a for a in answers if a.logits_RV is not None or a.later is not None]
        self._chunks, self._later = [a.logits_RV for a in laws], [a.later for a in laws]
        self._argmax: list[Sequence[int] | None] = [a.argmax for a in laws]
        sizes = [len(a.argmax if a.logits_RV is None else a.logits_RV) for a in laws]
        self._at = [(c, r) for c, size in enumerate(sizes) for r in range(size)]
        self._hidden = [a.hidden_RH for a in answers if a.hidden_RH is not None]
        self._logp: dict[int, Tensor] = {}

    def _logits(self, chunk: int) -> Tensor:
        if self._chunks[chunk] is None:
            self._chunks[chunk] = self._later[chunk]()
        return self._chunks[chunk]

    def weights(self, i: int) -> Tensor:
        chunk, row = self._at[i]
        return self._logits(chunk)[row]

    def row(self, i: int) -> Tensor:
        if i not in self._logp:
            w_V = self.weights(i)
            self._logp[i] = normalise(w_V if w_V.dtype == torch.float64 else w_V.float())
        return self._logp[i]

    def certain(self, i: int) -> int | None:
        return None

    def argmax(self, i: int) -> int:
        chunk, row = self._at[i]
        if self._argmax[chunk] is None:
            self._argmax[chunk] = self._logits(chunk).argmax(-1).tolist()
        return self._argmax[chunk][row]

    def topk(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        row_V = self.row(i)
        value_K, token_K = row_V.topk(min(k, len(row_V)))
        return tuple(token_K.tolist()), tuple(value_K.tolist())

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        """Of many rows the k likeliest tokens: the vectorised twin of `topk`, without log-probabilities."""
        k = min(k, self._logits(0).shape[-1])
        if len(self._chunks) == 1 and list(rows) == list(range(len(self._at))):
            return self._logits(0).topk(k, dim=-1).indices.tolist()
        return [self.weights(i).topk(k).indices.tolist() for i in rows]

    def logp(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        row_V = self.row(i)
        return tuple(float(row_V[x]) for x in tokens)

    @property
    def hidden_NH(self) -> Tensor | None:
        return torch.cat(self._hidden) if self._hidden else None

    @property
    def base(self) -> LogitScores:
        return self


class LM:
    """Target over a network. `chunk`: tokens of a prompt that one pass takes at most; `keep`: how many closed sessions'
    caches wait for a prompt that begins with their text (turns of a chat)."""
    def __init__(self, network: Network, vocab: Vocab, *, chunk: int = 256, keep: int = 0) -> None:
        self.network, self.vocab, self.chunk, self.keep = network, vocab, chunk, keep
        self._kept: list[tuple[tuple[int, ...], Any]] = []    # oldest first: the text of each cache, and the cache
        self.live = WeakSet[LMSession]()

    def open(self, prompt: Sequence[int]) -> LMSession:
        """Raises ValueError where a token is outside the vocabulary or the prompt leaves no room in the context."""
        if not prompt:
            raise ValueError("prompt is empty: at least one token (such as BOS) is needed")
        if len(prompt) >= self.network.context:
            raise ValueError(f"prompt has {len(prompt)} tokens: the model's context holds {self.network.context}, "
                             "the answer included")
        bad = next((x for x in prompt if not 0 <= x < self.vocab.size), None)
        if bad is not None:
            raise ValueError(f"prompt has token {bad}: ids must lie in 0 to {self.vocab.size - 1}")
        text, cache = tuple(prompt[:-1]), None
        best = max(self._kept, key=lambda kept: _common(kept[0], text), default=None)
        if best is not None and (n := _common(best[0], text)):
            cache = best[1].fork()
            cache.truncate(n)
        session = LMSession(self, cache or self.network.new_cache(), text)
        self.live.add(session)
        return session

    def keep_text(self, text: tuple[int, ...], cache: Any) -> None:
        """Called by a session that closes: the newest `keep` texts stay."""
        if self.keep and cache.length:
            self._kept = [*self._kept, (text[:cache.length], cache)][-self.keep:]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
    return min(len(a), len(b)) if n is None else n


class LMSession:
    """text: everything committed, the root left out. What the cache does not hold of it is fed with the next score."""
    def __init__(self, lm: LM, cache: Any, text: Sequence[int], layers: range | None = None) -> None:
        self._lm, self._cache, self._layers = lm, cache, layers
        self._text = list(text)
        self._tree: Draft | None = None           # its nodes are the staged entries, in order
        self._answers: list[Answer] = []
        self._paths: dict[tuple[int, ...], Any] = {}      # without a tree mask: the caches that hold root and path

    @property
    def peers(self) -> int:
        return max(1, len(self._lm.live))

    async def prefill(self, want: Want) -> LogitScores:
        answers: list[Answer] = []
        while (left := len(self._text) - self._cache.length) and (want.prompt or left > self._lm.chunk):
            stop = self._cache.length + min(left, self._lm.chunk)
            answers.append(await self._feed(stop, range(stop - self._cache.length) if want.prompt else (), want))
        return LogitScores(answers)

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        if not self._lm.network.tree:
            return await self._score_paths(draft, want)
        known = len(self._tree) if self._tree is not None and draft.extends(self._tree) else 0
        if not known:
            self._cache.commit(())                # what is staged, be it by a part
            self._answers = []
        if known < len(draft):
            new = len(draft) - known
            tail = len(self._text) - self._cache.length
            self._answers.append(await self._feed(len(self._text), range(tail, tail + new), want,
                                                  draft.token[known:], draft.parent[known:]))
        self._tree = draft
        return LogitScores(self._answers)

    async def _feed(self, stop: int, rows: Sequence[int], want: Want, draft: Sequence[int] = (),
                    parent: Sequence[int] = (), cache: Any = None) -> Answer:
        """One pass over what the cache lacks of text[:stop], committed on the way, and over a draft, staged."""
        cache = cache or self._cache
        token, first = self._text[cache.length:stop], cache.end
        if token:
            cache.stage(range(-1, len(token) - 1))
            cache.commit(range(len(token)))
        cache.stage(parent)
        token = (*token, *draft)
        return await Forward(self._lm.network, Query(cache, first, token, rows, want, layers=self._layers), len(token))

    async def _score_paths(self, draft: Draft, want: Want) -> LogitScores:
        """Where no mask can part the branches: every path in a cache of its own."""
        if len(self._text) > self._cache.length + 1:
            await self._feed(len(self._text), (), Want(law=Reads.NOTHING))
        leaves = set(range(len(draft))) - set(draft.parent)
        rows: dict[int, Answer] = {}
        self._paths = {}
        for leaf in sorted(leaves):
            path = (0, *draft.path_to(leaf))
            twin, tail = self._cache.fork(), len(self._text) - self._cache.length
            tokens = tuple(draft.token[i] for i in path)
            a = await self._feed(len(self._text), range(tail, tail + len(path)), want, tokens,
                                 range(-1, len(path) - 1), twin)
            self._paths[tokens] = twin
            for r, i in enumerate(path):
                rows[i] = Answer(None if a.logits_RV is None else a.logits_RV[r:r + 1],
                                 None if a.hidden_RH is None else a.hidden_RH[r:r + 1])
        return LogitScores([rows[i] for i in range(len(draft))])

    def commit(self, tokens: Sequence[int]) -> None:
        tree, keep = self._tree, list[int]()
        if tree is not None:
            if tokens and tokens[0] == tree.token[0]:
                keep.append(0)
                for x in tokens[1:]:
                    child = tree.child(keep[-1], x)
                    if child is None:
                        break
                    keep.append(child)
            self._cache.commit(keep)
            self._tree = None
        else:
            path = next((p for p in self._paths if p[:len(tokens)] == tuple(tokens)
                         and (len(p) == len(tokens) or self._lm.network.rollback)), None)
            if path is not None:
                self._cache = self._paths[path]
            self._cache.commit(range(len(tokens)) if path is not None else ())
        self._paths, self._answers = {}, []
        self._text += tokens

    def rewind(self, n: int) -> None:
        if not 0 <= n <= len(self._text):
            raise ValueError(f"n is {n}: it must lie in 0 to {len(self._text)}, the committed tokens")
        self._tree, self._answers, self._paths = None, [], {}
        del self._text[len(self._text) - n:]
        self._cache.truncate(min(self._cache.length, len(self._text)))

    def fork(self) -> LMSession:
        twin = LMSession(self._lm, self._cache.fork(), self._text, self._layers)
        twin._tree, twin._answers = self._tree, list(self._answers)
        return twin

    def part(self, layers: range) -> PartSession:
        if not self._lm.network.partial:
            raise ValueError("layers cannot run alone in this model: its adapter runs the whole network only")
        if layers.start != 0 or layers.step != 1 or not 0 < layers.stop <= self._lm.network.layers:
            raise ValueError(f"layers is {layers}: it must be range(0, n) with n in 1 to {self._lm.network.layers}")
        return PartSession(self, layers)

    def close(self) -> None:
        self._lm.live.discard(self)
        if self._tree is not None:
            self._cache.commit(())
        self._lm.keep_text(tuple(self._text), self._cache)


@dataclass(frozen=True)
class PartSession:
    """The first layers of a whole session: the same committed entries, its own staged ones, which the whole session
    drops when it scores next. Whatever is committed, rewound or closed is so in the whole session."""
    whole: LMSession
    layers: range

    @property
    def peers(self) -> int:
        return self.whole.peers

    async def prefill(self, want: Want) -> LogitScores:
        return await self.whole.prefill(want)

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        w = self.whole
        w._cache.commit(())
        w._tree = None
        if w._cache.length < len(w._text):        # every layer must hold what is committed
            await w._feed(len(w._text), (), Want(law=Reads.NOTHING))
        return await LMSession(w._lm, w._cache, w._text, self.layers).score(draft, want)

    def commit(self, tokens: Sequence[int]) -> None:
        self.whole.commit(tokens)

    def rewind(self, n: int) -> None:
        self.whole.rewind(n)

    def fork(self) -> PartSession:
        return replace(self, whole=self.whole.fork())

    def part(self, layers: range) -> PartSession:
        return self.whole.part(layers)

    def close(self) -> None:
        pass
