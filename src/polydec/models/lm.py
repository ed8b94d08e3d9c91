"""A language model as a law: the session that turns drafts into queries and keeps the cache in step."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor

from polydec.core.effects import Forward
from polydec.core.types import Draft, Reads, Vocab, Want
from polydec.models.query import Answer, Network, Query, Run
from polydec.models.scores import LogitScores, exits_of, rows_of

__all__ = ["LM", "Answer", "LMSession", "LogitScores", "Network", "PartSession", "Query", "SkipSession"]
_SILENT = Want(law=Reads.NOTHING)


class LM:
    """Target over a network. `chunk`: tokens of a prompt that one pass takes at most; `keep`: how many closed sessions'
    caches wait for a prompt that begins with their text (turns of a chat)."""
    def __init__(self, network: Network, vocab: Vocab, *, chunk: int = 256, keep: int = 0) -> None:
        self.network, self.vocab, self.chunk, self.keep = network, vocab, chunk, keep
        self._kept: list[tuple[tuple[int, ...], Any]] = []    # oldest first: the text of each cache, and the cache
        self.live = WeakSet[LMSession]()

    @property
    def layers(self) -> int:
        """How many layers a part of a session can choose from; 0 where layers cannot run alone."""
        return self.network.layers if self.network.partial and self.network.tree else 0

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


@dataclass(frozen=True, slots=True)
class Entry:
    """A cache entry that is staged, or has not passed every layer: its token, how many layers it passed, what came out of
    the last of them (None where that is all of them), and the states at the depths that were wanted."""
    token: int
    depth: int = 0
    state_H: Tensor | None = None
    exits: dict[int, Tensor] = field(default_factory=dict[int, Tensor])


class LMSession:
    """text: everything committed, the root left out. What the cache does not hold of it is fed with the next score.

    Entries that passed the first layers only (a part scored them) go on from there when a deeper score comes: no layer
    runs twice for a token that stays. Depths never rise from one entry to the next, so those are the last ones.
    """
    def __init__(self, lm: LM, cache: Any, text: Sequence[int]) -> None:
        self._lm, self._cache = lm, cache
        self._text, self._through = list(text), Entry(-1, lm.network.layers)      # what a whole pass leaves of any token
        self._tree: Draft | None = None           # its nodes are the staged entries, in order
        self._staged: list[Entry] = []
        self._lag: list[Entry] = []               # the last committed entries of the cache: not through every layer yet
        self._answers: dict[Any, list[Answer]] = {}       # of the staged nodes, by depth (or by the layers that ran)
        self._skips: Run | None = None            # the layers under which the staged nodes ran, where not the first
        self._skipped: tuple[int, Run] | None = None      # committed entries from here on ran under these only
        self._paths: dict[tuple[int, ...], Any] = {}      # without a tree mask: the caches that hold root and path

    @property
    def peers(self) -> int:
        return max(1, len(self._lm.live))

    @property
    def _all(self) -> int:
        return self._lm.network.layers

    async def prefill(self, want: Want) -> LogitScores:
        answers: list[Answer] = []
        if want.prompt:                           # an older text's cache has no rows to give
            self._forget(0)
        while (left := len(self._text) - self._cache.length) and (want.prompt or left > self._lm.chunk):
            self._drop()
            await self._advance(self._all, _SILENT)       # what a part has left behind
            stop = self._cache.length + min(left, self._lm.chunk)
            answers.append(await self._feed(stop, range(stop - self._cache.length) if want.prompt else (), want))
        return LogitScores(answers, exits_of(answers, self._lm.network.head) if want.exits else None)

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        net, cache, n = self._lm.network, self._cache, len(draft.token)
        if not net.tree:
            return await self._score_paths(draft, want)
        if self._tree is not None or self._lag or self._skipped or want.exits or cache.length != len(self._text):
            return await self.score_to(net.layers, draft, want)
        query = Query(cache, cache.stage(draft.parent), draft.token, range(n), want)      # nearly always: this draft, whole
        self._tree, self._staged = draft, [self._through] * n
        answer = await Forward(net, query, n)
        self._answers[net.layers] = [answer]
        return LogitScores((answer,))

    async def score_to(self, depth: int, draft: Draft, want: Want) -> LogitScores:
        """The laws behind the first `depth` layers, final norm and head."""
        if self._skipped is not None:             # other layers hold nothing of these entries: all of them is fed again
            self._forget(self._skipped[0])
        done = sum(map(rows_of, self._answers.get(depth, ())))
        if self._tree is None or self._skips is not None or not draft.extends(self._tree) or any(
                e.depth >= depth for e in self._staged[done:]):
            self._drop()
            self._take()
        known = len(self._staged)
        self._cache.stage(draft.parent[known:])
        self._staged += [Entry(x) for x in draft.token[known:]]
        self._tree = draft
        self._answers.setdefault(depth, []).extend(await self._advance(depth, want))
        return self._scores(depth, want)

    async def score_under(self, run: Run, draft: Draft, want: Want) -> LogitScores:
        """The laws of the network that has these layers only, over the whole one's cache; nodes that the whole has scored
        stand as they are."""
        if self._skipped is not None and (self._skipped[1] != run or len(self._text) > self._cache.length):
            self._forget(self._skipped[0])
        whole = self._skips is None and all(e.depth == self._all for e in self._staged)
        if self._tree is None or not (whole or self._skips == run) or not draft.extends(self._tree):
            self._drop()
            self._take()
            await self._advance(self._all, _SILENT)
        known = len(self._staged)
        answers = self._answers.setdefault(run, list(self._answers.get(self._all, ())))
        first = self._cache.stage(draft.parent[known:])
        self._tree, self._skips = draft, run
        if new := draft.token[known:]:
            answers.append(await self._run(Query(self._cache, first, new, range(len(new)), want, None, *run)))
            exits = answers[-1].exits or {}
            self._staged += [Entry(x, self._all, None, {d: t[i] for d, t in exits.items()}) for i, x in enumerate(new)]
        return self._scores(run, want)

    async def _advance(self, depth: int, want: Want) -> list[Answer]:
        """Take every entry to this depth; answers for the staged ones among those that were not there."""
        entries, net = [*self._lag, *self._staged], self._lm.network
        first = next((i for i, e in enumerate(entries) if e.depth < depth), len(entries))
        begin, answers = self._cache.end - len(entries), list[Answer]()
        self._cache.stage(())                     # entries are about to be written: not under a twin
        while first < len(entries) and entries[-1].depth < depth:
            low = entries[-1].depth               # those that are furthest behind come last, and catch up first
            start = next(i for i, e in enumerate(entries) if e.depth == low)
            stop, group = depth if start == first else entries[start - 1].depth, entries[start:]
            asked = range(max(0, len(self._lag) - start), len(group))
            deepest, at_once = stop == self._all, len(asked) == len(group) and (low == 0 or len(group) == 1)
            if deepest:
                rows, now = asked, want
            else:
                rows = range(len(group))
                now = replace(want, hidden=True, law=want.law if at_once and stop == depth else Reads.NOTHING,
                              base=want.base if at_once and stop == depth else Reads.NOTHING)
            a = await self._run(Query(
                self._cache, begin + start, tuple(e.token for e in group) if not low else (), rows, now,
                None if not low else torch.stack([e.state_H for e in group if e.state_H is not None]),
                None if (low, stop) == (0, self._all) else tuple(range(low, stop))))
            if stop == depth and (deepest or at_once):
                answers = [a] if asked else []
            elif stop == depth:                   # rows that are seldom looked at: their heads wait until then
                answers = [_later(a, i, net.head) for i in asked]
            for i, e in enumerate(group):
                r = i - rows.start
                exits = e.exits if r < 0 or a.exits is None else {**e.exits, **{d: t[r] for d, t in a.exits.items()}}
                state = None if deepest or a.hidden_RH is None else a.hidden_RH[r]
                entries[start + i] = Entry(e.token, stop, state, exits)
        n = len(self._lag)
        self._lag = [e for e in entries[:n] if e.depth < self._all]
        self._staged = entries[n:]
        return answers

    async def _run(self, query: Query) -> Answer:
        return await Forward(self._lm.network, query, len(query))

    def _scores(self, key: Any, want: Want) -> LogitScores:
        staged = self._staged
        return LogitScores(tuple(self._answers[key]), None if not want.exits else (
            lambda depth, nodes: torch.stack([staged[i].exits[depth] for i in nodes]), self._lm.network.head))

    def _take(self) -> None:
        """What the cache lacks of the text gets its slots, and runs with the next pass."""
        assert self._cache.length <= len(self._text), "the cache holds more than the text"
        tail = self._text[self._cache.length:]
        self._cache.stage(range(-1, len(tail) - 1))
        self._cache.commit(range(len(tail)))
        self._lag += [Entry(x) for x in tail]

    def _drop(self) -> None:
        """Nothing is staged any more."""
        if self._cache.parent:
            self._cache.commit(())
        self._tree, self._skips, self._staged, self._answers, self._paths = None, None, [], {}, {}

    def _forget(self, length: int) -> None:
        """Nothing is staged, and only so many entries are cached."""
        self._drop()
        gone = self._cache.length - length
        if gone > 0:
            self._lag = self._lag[:max(0, len(self._lag) - gone)]
        self._cache.truncate(min(self._cache.length, length))
        if self._skipped is not None and self._cache.length <= self._skipped[0]:
            self._skipped = None

    async def _feed(self, stop: int, rows: Sequence[int], want: Want, draft: Sequence[int] = (),
                    parent: Sequence[int] = (), cache: Any = None) -> Answer:
        """One pass over what the cache lacks of text[:stop], committed on the way, and over a draft, staged."""
        cache = cache or self._cache
        token, first = self._text[cache.length:stop], cache.end
        if token:
            cache.stage(range(-1, len(token) - 1))
            cache.commit(range(len(token)))
        cache.stage(parent)
        return await self._run(Query(cache, first, (*token, *draft), rows, want))

    async def _score_paths(self, draft: Draft, want: Want) -> LogitScores:
        """Where no mask can part the branches: every path in a cache of its own."""
        if len(self._text) > self._cache.length + 1:
            await self._feed(len(self._text), (), _SILENT)
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
        self._commit(tokens, self._skips is None)

    def commit_under(self, tokens: Sequence[int]) -> None:
        """The same, and what only some layers have seen stays cached: later passes under these layers build on it."""
        if self._skips is not None and self._skipped is None:
            self._skipped = (self._cache.length, self._skips)
        self._commit(tokens, True)

    def _commit(self, tokens: Sequence[int], cached: bool) -> None:
        tree, keep = self._tree, list[int]()
        if tree is not None:
            if cached:
                keep = tree.nodes_of(tokens)
            self._cache.commit(keep)
            if late := [i for i in keep if self._staged[i] is not self._through and self._staged[i].depth < self._all]:
                self._lag += [replace(self._staged[i], exits={}) for i in late]
        elif self._paths:
            path = next((p for p in self._paths if p[:len(tokens)] == tuple(tokens)
                         and (len(p) == len(tokens) or self._lm.network.rollback)), None)
            if path is not None:
                self._cache = self._paths[path]
            self._cache.commit(range(len(tokens)) if path is not None else ())
        self._drop()
        self._text += tokens

    def rewind(self, n: int) -> None:
        if not 0 <= n <= len(self._text):
            raise ValueError(f"n is {n}: it must lie in 0 to {len(self._text)}, the committed tokens")
        del self._text[len(self._text) - n:]
        self._forget(min(self._cache.length, len(self._text)))

    def fork(self) -> LMSession:
        twin = LMSession(self._lm, self._cache.fork(), self._text)
        twin._tree, twin._staged, twin._lag = self._tree, list(self._staged), list(self._lag)
        twin._answers = {k: list(v) for k, v in self._answers.items()}
        twin._skips, twin._skipped = self._skips, self._skipped
        return twin

    def part(self, layers: Sequence[int], without: frozenset[int] = frozenset()) -> PartSession | SkipSession:
        if not self._lm.layers:
            raise ValueError("layers cannot run alone in this model: its adapter runs the whole network only")
        some = tuple(layers)
        if not some or list(some) != sorted(set(some)) or some[0] < 0 or some[-1] >= self._all:
            raise ValueError(f"layers is {layers}: they must be ascending and lie in 0 to {self._all - 1}")
        if not {h // 2 for h in without} <= set(some) or any(h ^ 1 in without for h in without):
            raise ValueError(f"without is {sorted(without)}: it must hold 2 i (attention) or 2 i + 1 (MLP) of layers i that "
                             "run, not both of one")
        first = some[-1] == len(some) - 1 and not without
        return PartSession(self, len(some)) if first else SkipSession(self, (some, without))

    def close(self) -> None:
        self._lm.live.discard(self)
        self._forget(self._cache.length - len(self._lag) if self._skipped is None else self._skipped[0])
        self._lm.keep_text(tuple(self._text), self._cache)


def _later(a: Answer, row: int, head: Any) -> Answer:
    assert a.hidden_RH is not None
    hidden_RH = a.hidden_RH[row:row + 1]
    return Answer(None, hidden_RH, later=lambda: head(hidden_RH))


@dataclass(frozen=True)
class _Within:
    """Some layers of a whole session: whatever is rewound here is so in the whole one, and closing is left to it."""
    whole: LMSession

    @property
    def peers(self) -> int:
        return self.whole.peers

    async def prefill(self, want: Want) -> LogitScores:
        return await self.whole.prefill(want)

    def rewind(self, n: int) -> None:
        self.whole.rewind(n)

    def fork(self) -> Self:
        return replace(self, whole=self.whole.fork())

    def part(self, layers: Sequence[int], without: frozenset[int] = frozenset()) -> PartSession | SkipSession:
        return self.whole.part(layers, without)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class PartSession(_Within):
    """The first layers of a whole session (early exit): what they have computed of a draft stands, and the whole goes on
    from there when it scores a draft that extends it. Committed entries that only these layers have seen pass the others
    when a deeper score needs them."""
    depth: int

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        return await self.whole.score_to(self.depth, draft, want)

    def commit(self, tokens: Sequence[int]) -> None:
        self.whole.commit(tokens)


@dataclass(frozen=True)
class SkipSession(_Within):
    """Some layers of a whole session, or halves of them (layer skip): committed entries are the whole's, staged ones hold
    what these layers made of them (nothing where their attention does not run), and the whole feeds them anew. What is
    committed here, not in the whole, stays as these layers had it; if the whole scores after that, it feeds it again."""
    run: Run

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        return await self.whole.score_under(self.run, draft, want)

    def commit(self, tokens: Sequence[int]) -> None:
        self.whole.commit_under(tokens)
