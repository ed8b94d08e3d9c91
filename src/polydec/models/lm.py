"""A language model as a law: the session that turns drafts into queries and keeps the cache in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import Forward, Pause
from polydec.core.protocols import Scores
from polydec.core.scheduler import current_task
from polydec.core.types import Draft, Reads, Vocab, Want
from polydec.models.geometry import Geometry
from polydec.models.parts import PartSession, SkipSession
from polydec.models.soft import state_of
from polydec.nets.cache import nbytes
from polydec.nets.press import Press
from polydec.nets.query import Answer, Network, Query, Run
from polydec.nets.scores import LogitScores, exits_of, picked

__all__ = ["LM", "Answer", "LMSession", "LogitScores", "Network", "Query"]
_SILENT = Want(law=Reads.NOTHING)
LEAST = 32
"""Tokens that a prompt must have in common with a live session's text for their cache entries to be shared."""


PRESSES = 4
"""Ways to press a cache of which kept texts stay, where no session is live under them."""

PROMPT = 16
"""Tokens without a row that is asked for, from which on a query is a prompt's."""


class LM:
    """Target over a network. `chunk`: tokens of a prompt that one pass takes at most; `keep`: how many closed sessions'
    caches wait for a prompt that begins with their text (turns of a chat). What sessions have in common is held once.
    press: how old keys and values are kept, None: as they are; it decides the law. beside: what all texts of this law are
    written from, None: nothing."""

    def __init__(
        self,
        network: Network,
        vocab: Vocab,
        *,
        chunk: int = 256,
        keep: int = 0,
        press: Press | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.network, self.vocab, self.chunk, self._keep = network, vocab, chunk, keep
        self.press, self.beside = press, beside
        self._under = dict[Press, LM]()  # the same network over pressed caches
        self._kept: list[
            tuple[tuple[int, ...], Any]
        ] = []  # oldest first: the text of each cache, and the cache
        self.live = WeakSet[LMSession]()

    @property
    def layers(self) -> int:
        """How many layers a part of a session can choose from; 0 where layers cannot run alone."""
        return self.network.layers if self.network.partial and self.network.tree else 0

    @property
    def adapts(self) -> bool:
        """Whether rows of a pass can run with an adapter (nets/gated.py) beside rows without."""
        return getattr(self.network, "adapts", False)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may take together."""
        return self.network.context

    @cached_property
    def geometry(self) -> Geometry:
        """Where its tokens lie to one another. What reads it raises RequestError where the network has no table of its own."""
        size, words = self.vocab.size, self.vocab.words
        return Geometry(
            self.network.embed,
            size if words is None else lambda: min(size, len(words.pieces)),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all cache entries, of live sessions and of kept texts; what they share counts once."""
        kept = [*self._kept, *(some for one in self._under.values() for some in one._kept)]
        return nbytes([*(s.cache for s in self.live), *(cache for _, cache in kept)])

    @property
    def keep(self) -> int:
        return self._keep

    @keep.setter
    def keep(self, count: int) -> None:
        self._keep = count
        for one in self._under.values():
            one.keep = count

    def pressed(self, press: Press) -> LM:
        """The law of this network over caches that are pressed. Its sessions are live here, too, as they share passes with
        others; what they hold they share among themselves only. Raises RequestError where the network cannot read such
        caches."""
        if not getattr(self.network, "presses", False):
            raise RequestError(
                f"cache is {press.called}: what runs this model (the compiled step, or transformers) reads caches as they are; "
                "load it on the torch path (--dtype torch)"
            )
        if press not in self._under:
            self.network.new_cache(press)
            busy = {session.law.press for session in self.live}
            idle = [k for k in self._under if k not in busy]
            for old in idle[: max(0, len(self._under) - PRESSES + 1)]:
                del self._under[old]
            self._under[press] = LM(
                self.network,
                self.vocab,
                chunk=self.chunk,
                keep=self.keep,
                press=press,
                beside=self.beside,
            )
            self._under[press].live = self.live
        return self._under[press]

    def open(self, prompt: Sequence[int]) -> LMSession:
        """Raises RequestError where a token is outside the vocabulary or the prompt leaves no room in the context. Ids that
        stand for vectors (models/soft.py) may stand before the last token."""
        if not prompt:
            raise RequestError("prompt is empty: at least one token (such as BOS) is needed")
        if len(prompt) >= self.network.context:
            raise RequestError(
                f"prompt has {len(prompt)} tokens: the model's context holds {self.network.context}, "
                "the answer included"
            )
        self.require([x for x in prompt[:-1] if state_of(x) is None], "prompt")
        self.require(prompt[-1:], "prompt")
        text = tuple(prompt[:-1])
        session = LMSession(self, self._beginning(text), text)
        self.live.add(session)
        return session

    def require(self, tokens: Sequence[int], who: str) -> None:
        """Raise RequestError where an id lies outside the vocabulary."""
        bad = next((x for x in tokens if not 0 <= x < self.vocab.size), None)
        if bad is not None:
            raise RequestError(f"{who} has token {bad}: ids must lie in 0 to {self.vocab.size - 1}")

    def _beginning(self, text: tuple[int, ...]) -> Any:
        """A cache that holds as much of this text as any: a kept one, which goes over to the new session where all of it is of
        use, or what a live session has in common."""
        best, most, at = None, 0, -1
        for i, (kept, cache) in enumerate(self._kept):
            if (n := _common(kept, text)) > most:
                best, most, at = cache, n, i
        for session in self.live:
            n = min(session.filled, _common(session.text, text))
            if (
                session.law is self
                and n >= LEAST
                and n > most
                and (self.network.tree or self.network.rollback or n == session.cache.length)
            ):
                best, most, at = session.cache, n, -1
        if best is None:
            cache = (
                self.network.new_cache()
                if self.press is None
                else self.network.new_cache(self.press)
            )
            if self.beside is not None:
                cache.beside = self.beside
            return cache
        return (
            self._kept.pop(at)[1] if at >= 0 and most == len(self._kept[at][0]) else best.fork(most)
        )

    def keep_text(self, text: tuple[int, ...], cache: Any) -> None:
        """Called by a session that closes: the newest `keep` texts stay."""
        if self.keep and cache.length:
            self._kept = [*self._kept, (text[: cache.length], cache)][-self.keep :]


class Beside(Protocol):
    """What the texts of a law are written from; caches point at it."""

    @property
    def peers(self) -> int:
        """How many sequences share the network's passes."""
        ...

    async def ready(self) -> None:
        """Read it, where it has not been read or was given back."""
        ...

    def evict(self) -> None:
        """Give back what was read of it."""
        ...


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first items are the same."""
    low, high = 0, min(len(a), len(b))
    if not high or a[0] != b[0]:
        return 0
    while low < high:  # items below `low` are the same
        middle = (low + high + 1) // 2
        if tuple(a[low:middle]) == tuple(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _forward(network: Network, query: Query) -> Forward:
    """A query, which passes may take in parts where it begins with much that nobody asks about: that is a prompt."""
    free = min(query.rows, default=len(query) - 1)
    if free < PROMPT or not network.tree or query.at is not None:
        return Forward(network, query, len(query), behind=query.first)

    def split(most: int) -> Forward:
        n = min(most, free)
        return Forward(
            network,
            query.part(0, n),
            n,
            rest=_forward(network, query.part(n, len(query))),
            behind=query.first,
        )

    return Forward(network, query, len(query), split, behind=query.first)


@dataclass(frozen=True, slots=True)
class Entry:
    """A cache entry that is staged, or has not passed every layer: its token, how many layers it passed, what came out of
    the last of them (None where that is all of them; at depth 0 what a probe brings in place of an embedding), and the
    states at the depths that were wanted; adapter: under which it runs."""

    token: int
    depth: int = 0
    state_H: Tensor | None = None
    exits: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    adapter: Any = None


class LMSession:
    """text: everything committed, the root left out. What the cache does not hold of it is fed with the next score.

    Entries that passed the first layers only (a part scored them) go on from there when a deeper score comes: no layer
    runs twice for a token that stays. Depths never rise from one entry to the next, so those are the last ones.

    An entry counts as cached once the pass that fills it has answered: where a pass fails, or is interrupted, the next
    verb finds everything as it was before (`_settle`).
    """

    def __init__(self, lm: LM, cache: Any, text: Sequence[int]) -> None:
        self.owner = (
            current_task()
        )  # the request that it belongs to, for an engine that has to make room
        self._lm, self._cache = lm, cache
        self._text, self._through = (
            list(text),
            Entry(-1, lm.network.layers),
        )  # what a whole pass leaves of any token
        self._tree: Draft | None = None  # the draft that was scored last
        self._staged: list[Entry] = []  # the staged entries: the draft's nodes, in order
        self._lag: list[
            Entry
        ] = []  # the last committed entries of the cache: not through every layer yet
        self._answers: dict[
            Any, list[tuple[int, Answer]]
        ] = {}  # rows of the staged nodes, by depth (or the layers that ran)
        self._skips: Run | None = (
            None  # the layers under which the staged nodes ran, where not the first ones
        )
        self._under = 0  # then the first node that did
        self._skipped: tuple[int, Run] | None = (
            None  # committed entries from here on ran under these only
        )
        self._evicted = 0  # where entries were given back that ran so: the end of those
        self._paths: dict[
            tuple[int, ...], Any
        ] = {}  # without a tree mask: the caches that hold root and path
        self._before: int | None = (
            None  # while a pass feeds the text: how much of it was cached before
        )

    @property
    def peers(self) -> int:
        beside = self._lm.beside
        return max(1, len(self._lm.live) if beside is None else beside.peers)

    @property
    def cache(self) -> Any:
        return self._cache

    @property
    def law(self) -> LM:
        """Whose session it is."""
        return self._lm

    @property
    def text(self) -> Sequence[int]:
        return self._text

    @property
    def filled(self) -> int:
        """How many committed entries have passed every layer."""
        n = self._cache.length - len(self._lag) if self._before is None else self._before
        return n if self._skipped is None else min(n, self._skipped[0])

    @property
    def _all(self) -> int:
        return self._lm.network.layers

    async def prefill(self, want: Want) -> LogitScores:
        await self._ready()
        self._settle()
        self._check(None, want)
        answers: list[Answer] = []
        rows = want.prompt or want.last
        if rows and self._skipped is not None:
            self._forget(self._skipped[0])
        if want.prompt:  # an older text's cache has no rows to give
            self._forget(0)
        elif want.last and self._text:
            self._forget(min(self._cache.length, len(self._text) - 1))
        end = len(self._text) if self._skipped is None else self._skipped[0]
        if end > self._cache.length:
            self._cache.reserve(end)
        while (left := end - self._cache.length) > 0 and (rows or left > self._lm.chunk):
            self._drop()
            await self._advance(self._all, _SILENT)  # what a part has left behind
            first, stop = self._cache.length, self._cache.length + min(left, self._lm.chunk)
            asked = (
                range(stop - first)
                if want.prompt
                else (stop - first - 1,)
                if want.last and stop == end
                else ()
            )
            answer = await self._feed(stop, asked, want)
            self._shed()
            if asked:
                answers.append(answer)
        return LogitScores(
            answers, exits_of(answers, self._lm.network.head) if want.exits else None
        )

    async def _ready(self) -> None:
        """What texts are written from has been read."""
        if self._lm.beside is not None:
            await self._lm.beside.ready()

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        await self._ready()
        scores = await self._score(draft, want)
        if self.owner is not None and self.owner.held is not None:
            await Pause()  # the engine wants the memory of this request back
        return scores

    async def _score(self, draft: Draft, want: Want) -> LogitScores:
        self._settle()
        net, cache, n = self._lm.network, self._cache, len(draft.token)
        if not net.tree:
            return await self._score_paths(draft, want)
        if (
            self._staged
            or self._lag
            or self._skipped
            or want.exits
            or draft.state is not None
            or cache.length != len(self._text)
        ):
            return await self.score_to(net.layers, draft, want)
        query = Query(
            cache, cache.stage(draft.parent), draft.token, range(n), want
        )  # nearly always: this draft, whole
        answer = await Forward(net, query, n)
        self._tree, self._staged = draft, [self._through] * n
        self._answers = {net.layers: [(n, answer)]}
        return LogitScores((answer,))

    async def score_to(self, depth: int, draft: Draft, want: Want) -> LogitScores:
        """The laws behind the first `depth` layers, final norm and head."""
        self._settle()
        self._check(draft, want)
        if (
            self._skipped is not None
        ):  # other layers hold nothing of these entries: all of them is fed again
            self._evicted = 0
            self._forget(self._skipped[0])
        done = sum(n for n, _ in self._answers.get(depth, ()))
        if (
            self._skips is not None
            or not self._goes_on(draft, depth, want)
            or any(e.depth >= depth for e in self._staged[done:])
        ):
            self._drop()
            self._take()
        await self._stage(draft, want.exits)
        self._answers.setdefault(depth, []).extend(await self._advance(depth, want))
        return self._scores(depth, want)

    async def score_under(self, run: Run, draft: Draft, want: Want) -> LogitScores:
        """The laws of the network that has these layers only, over the whole one's cache; nodes that the whole has scored
        stand as they are."""
        self._settle()
        self._check(draft, want)
        if draft.enter:
            raise RequestError(
                f"enter is {draft.enter}: states cannot enter where layers are left out"
            )
        await self._restore(run)
        if self._skipped is not None and (
            self._skipped[1] != run or len(self._text) > self._cache.length
        ):
            self._forget(self._skipped[0])
        whole = self._skips is None and all(e.depth == self._all for e in self._staged)
        before = self._all if whole else run
        if not (whole or self._skips == run) or not self._goes_on(draft, before, want):
            self._drop()
            self._take()
            await self._advance(self._all, _SILENT)
            whole = True
        known, state = len(self._staged), draft.state or (None,) * len(draft)
        answers = list(self._answers.get(before, ()))
        if new := draft.token[known:]:
            first = self._cache.stage(draft.parent[known:])
            entries = [_entry(x, 0, s, draft) for x, s in zip(new, state[known:])]
            answer = await self._run(
                Query(
                    self._cache,
                    first,
                    *_fed(entries, range(len(new)), want),
                    *run,
                    **_gates(entries),
                )
            )
            answers.append((len(new), answer))
            exits = answer.exits or {}
            self._staged += [
                Entry(x, self._all, None, {d: t[i] for d, t in exits.items()})
                for i, x in enumerate(new)
            ]
        if whole:
            self._under = known
        self._answers[run] = answers
        self._tree, self._skips = draft, run
        return self._scores(run, want)

    def _check(self, draft: Draft | None, want: Want) -> None:
        """Raise RequestError for what this network cannot answer, before any pass."""
        net = self._lm.network
        if want.exits and not net.partial:
            raise RequestError(
                f"exits is {want.exits}: the adapter of this model runs the whole network only"
            )
        if bad := [d for d in want.exits if not 1 <= d <= net.layers]:
            raise RequestError(f"exits has {bad[0]}: depths must lie in 1 to {net.layers}")
        if draft is None or draft.state is None:
            return
        if draft.adapter is not None and not self._lm.adapts:
            raise RequestError(
                f"adapter is {type(draft.adapter).__name__}: no row of this network runs with matrices of its own"
            )
        carries = {i: s for i, s in enumerate(draft.state) if s is not None}
        if len(draft.state) != len(draft) or any(
            draft.probe is None or not draft.probe[i] for i in carries
        ):
            raise RequestError(
                "state must have one entry a node, None but for probes: what carries a state is never committed"
            )
        if not 0 <= draft.enter < net.layers or (draft.enter and not (net.partial and net.tree)):
            raise RequestError(
                f"enter is {draft.enter}: it must lie in 0 to {net.layers - 1 if net.partial and net.tree else 0}"
            )
        if draft.enter and carries and len(carries) < len(draft) - min(carries):
            raise RequestError(
                f"enter is {draft.enter}: nodes that enter above the first layer must stand behind all others"
            )
        width = net.embed(draft.token[:1]).shape[1] if carries else 0
        for i, state_H in carries.items():
            if state_H.shape != (width,):
                raise RequestError(
                    f"state {i} has shape {tuple(state_H.shape)}: it must be ({width},)"
                )

    def _goes_on(self, draft: Draft, key: Any, want: Want) -> bool:
        """Whether a draft extends the staged one, of which all that is wanted now was answered."""
        if not self._staged or self._tree is None or not draft.extends(self._tree):
            return False
        law = max(want.law, want.base) is not Reads.NOTHING
        for _, a in self._answers.get(key, ()):
            if (want.hidden and a.hidden_RH is None) or (
                law and a.logits_RV is None and a.later is None
            ):
                return False
        return all(d in e.exits for d in want.exits for e in self._staged if d <= e.depth)

    async def _stage(self, draft: Draft, exits: tuple[int, ...]) -> None:
        """Entries for the nodes that have none. What enters further up waits until the others have come there; on their way
        they pass some of the exits that are wanted."""
        self._tree, n = draft, len(draft)
        state = draft.state or (None,) * n
        stop = (
            next((i for i in range(len(self._staged), n) if state[i] is not None), n)
            if draft.enter
            else n
        )
        self._add(draft, stop, 0)
        if stop < n:
            await self._advance(draft.enter, replace(_SILENT, exits=exits))
            self._add(draft, n, draft.enter)

    def _add(self, draft: Draft, stop: int, depth: int) -> None:
        known, state = len(self._staged), draft.state or (None,) * len(draft)
        self._cache.stage(draft.parent[known:stop])
        self._staged += [_entry(draft.token[i], depth, state[i], draft) for i in range(known, stop)]

    async def _advance(self, depth: int, want: Want) -> list[tuple[int, Answer]]:
        """Take every entry to this depth; answers for the staged ones among those that were not there."""
        entries, net = [*self._lag, *self._staged], self._lm.network
        first = next((i for i, e in enumerate(entries) if e.depth < depth), len(entries))
        begin, answers = self._cache.end - len(entries), list[tuple[int, Answer]]()
        if first < len(entries):
            self._cache.claim(
                begin + first
            )  # entries are about to be written: not where others read
        while first < len(entries) and entries[-1].depth < depth:
            low = entries[-1].depth  # those that are furthest behind come last, and catch up first
            start = next(i for i, e in enumerate(entries) if e.depth == low)
            stop, group = depth if start == first else entries[start - 1].depth, entries[start:]
            asked = range(max(0, len(self._lag) - start), len(group))
            deepest, at_once = (
                stop == self._all,
                len(asked) == len(group) and (low == 0 or len(group) == 1),
            )
            if deepest:
                rows, now = asked, want
            else:
                rows = range(len(group))
                now = replace(
                    want,
                    hidden=True,
                    law=want.law if at_once and stop == depth else Reads.NOTHING,
                    base=want.base if at_once and stop == depth else Reads.NOTHING,
                )
            layers = None if (low, stop) == (0, self._all) else tuple(range(low, stop))
            a = await self._run(
                Query(self._cache, begin + start, *_fed(group, rows, now), layers, **_gates(group))
            )
            if stop == depth and (deepest or at_once):
                answers = [(len(asked), a)] if asked else []
            elif stop == depth:  # rows that are seldom looked at: their heads wait until then
                answers = [(1, _later(a, i, net.head)) for i in asked]
            for i, e in enumerate(group):
                r = i - rows.start
                exits = (
                    e.exits
                    if r < 0 or a.exits is None
                    else {**e.exits, **{d: t[r] for d, t in a.exits.items()}}
                )
                state = None if deepest or a.hidden_RH is None else a.hidden_RH[r]
                entries[start + i] = Entry(e.token, stop, state, exits, e.adapter)
        n = len(self._lag)
        self._lag = [e for e in entries[:n] if e.depth < self._all]
        self._staged = entries[n:]
        return answers

    async def _run(self, query: Query) -> Answer:
        return await _forward(self._lm.network, query)

    def _scores(self, key: Any, want: Want) -> LogitScores:
        staged = self._staged
        return LogitScores(
            tuple(a for _, a in self._answers[key]),
            None
            if not want.exits
            else (
                lambda depth, nodes: torch.stack([staged[i].exits[depth] for i in nodes]),
                self._lm.network.head,
            ),
        )

    def _take(self, stop: int | None = None) -> None:
        """What the cache lacks of the text (of its first `stop` tokens) gets its slots, and runs with the next pass."""
        assert self._cache.length <= len(self._text), "the cache holds more than the text"
        tail = self._text[self._cache.length : stop]
        self._lag += [Entry(x, 0, state_of(x)) for x in tail]
        self._cache.stage(range(-1, len(tail) - 1))
        self._cache.commit(range(len(tail)))

    def _settle(self) -> None:
        """A pass that never answered has filled nothing: what it was to fill is not cached."""
        if self._before is not None:
            length, self._before = self._before, None
            self._forget(length)
        elif len(self._cache.parent) != len(self._staged):
            self._cache.keep((), range(len(self._staged)))
        self._shed()

    def _shed(self) -> None:
        """Of a pressed cache give back what is not read any more."""
        if self._lm.press is not None:
            self._cache.shed(self.filled)

    def _drop(self) -> None:
        """Nothing is staged any more."""
        if self._cache.parent:
            self._cache.commit(())
        self._tree, self._skips, self._staged, self._answers, self._paths = None, None, [], {}, {}

    def _forget(self, length: int) -> None:
        """Nothing is staged, and only so many entries are cached."""
        self._drop()
        before = self._cache.length
        self._cache.truncate(min(before, length))  # a pressed one may forget more
        gone = before - self._cache.length
        if gone > 0:
            self._lag = self._lag[: max(0, len(self._lag) - gone)]
        if (
            self._skipped is not None
            and not self._evicted
            and self._cache.length <= self._skipped[0]
        ):
            self._skipped = None

    async def _feed(
        self,
        stop: int,
        rows: Sequence[int],
        want: Want,
        entries: Sequence[Entry] = (),
        parent: Sequence[int] = (),
        cache: Any = None,
    ) -> Answer:
        """One pass over what the cache lacks of text[:stop], committed on the way, and over a draft, staged."""
        if cache is None:
            cache, self._before = self._cache, self._cache.length
        token, first = self._text[cache.length : stop], cache.end
        if token:
            cache.stage(range(-1, len(token) - 1))
            cache.commit(range(len(token)))
        cache.stage(parent)
        fed = [*(Entry(x, 0, state_of(x)) for x in token), *entries]
        query = Query(cache, first, *_fed(fed, rows, want), **_gates(fed))
        answer = await self._run(query)
        if cache is self._cache:
            self._before = None
        return answer

    async def _restore(self, run: Run) -> None:
        """After `evict`: what ran under these layers only does so again."""
        if not self._evicted or self._skipped is None or self._skipped[1] != run:
            self._evicted = 0
            return
        first, stop = self._skipped[0], self._evicted
        self._drop()
        self._take(first)
        await self._advance(self._all, _SILENT)
        fed, self._before = [Entry(x, 0, state_of(x)) for x in self._text[first:stop]], first
        slot = self._cache.stage(range(-1, len(fed) - 1))
        self._cache.commit(range(len(fed)))
        await self._run(Query(self._cache, slot, *_fed(fed, (), _SILENT), *run))
        self._before, self._evicted = None, 0

    async def _score_paths(self, draft: Draft, want: Want) -> LogitScores:
        """Branches one by one, for networks without a tree mask."""
        self._check(draft, want)
        self._drop()
        while len(self._text) > self._cache.length + 1:
            await self._feed(min(len(self._text), self._cache.length + self._lm.chunk), (), _SILENT)
        leaves = set(range(len(draft))) - set(draft.parent)
        rows, paths = dict[int, Answer](), dict[tuple[int, ...], Any]()
        state = draft.state or (None,) * len(draft)
        for leaf in sorted(leaves):
            path = (0, *draft.path_to(leaf))
            twin, tail = self._cache.fork(), len(self._text) - self._cache.length
            a = await self._feed(
                len(self._text),
                range(tail, tail + len(path)),
                want,
                [_entry(draft.token[i], 0, state[i], draft) for i in path],
                range(-1, len(path) - 1),
                twin,
            )
            if all(state[i] is None for i in path):
                paths[tuple(draft.token[i] for i in path)] = twin
            for r, i in enumerate(path):
                rows[i] = Answer(
                    None if a.logits_RV is None else a.logits_RV[r : r + 1],
                    None if a.hidden_RH is None else a.hidden_RH[r : r + 1],
                )
        self._tree, self._paths = draft, paths
        return LogitScores([rows[i] for i in range(len(draft))])

    def commit(self, tokens: Sequence[int]) -> None:
        self._settle()
        self._commit(tokens, self._skips is None)

    def commit_under(self, tokens: Sequence[int]) -> None:
        """The same, and what only some layers have seen stays cached: later passes under these layers build on it."""
        self._settle()
        self._mark(self._nodes(tokens))
        self._commit(tokens, True)

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        self._settle()
        return self._keep(nodes, root, self._skips is None)

    def keep_under(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """The same, in the way of `commit_under`."""
        self._settle()
        if self._tree is not None:
            self._mark(self._tree.below(root, nodes)[0])
        return self._keep(nodes, root, True)

    def _keep(self, nodes: Sequence[int], root: int, cached: bool) -> Draft:
        tree, staged = self._tree, self._staged
        if tree is None:
            raise RequestError(
                "no draft has been scored since the last commit: there is nothing to keep"
            )
        path, stay, draft = tree.below(root, nodes)
        tokens = [tree.token[i] for i in path]
        if not cached or len(staged) < len(
            tree
        ):  # without entries of its own: all of it is fed again
            self._commit(tokens, cached)
        else:
            self._cache.keep(path, stay)
            self._lag += self._late(path)
            self._answers = {k: picked(a, stay, self._lm.network) for k, a in self._answers.items()}
            self._staged, self._under = (
                [staged[i] for i in stay],
                sum(i < self._under for i in stay),
            )
            self._text += tokens
        self._tree = draft
        return draft

    def _nodes(self, tokens: Sequence[int]) -> list[int]:
        """The nodes of the scored draft that these tokens follow, the root first."""
        return [] if self._tree is None else self._tree.nodes_of(tokens)

    def _mark(self, path: Sequence[int]) -> None:
        """Note which entries are about to be committed that some layers only have seen."""
        ran = sum(i >= self._under for i in path)
        if self._skips is None or not ran:
            return
        if self._skipped is None:
            self._skipped = (len(self._text) + len(path) - ran, self._skips)
        if not self._staged:  # they were given back
            self._evicted = len(self._text) + len(path)

    def _late(self, path: Sequence[int]) -> list[Entry]:
        """Of staged entries those that lag behind the last layer."""
        some = [self._staged[i] for i in path]
        return [
            replace(e, exits={}) for e in some if e is not self._through and e.depth < self._all
        ]

    def _commit(self, tokens: Sequence[int], cached: bool) -> None:
        if self._paths:
            path = next(
                (
                    p
                    for p in self._paths
                    if p[: len(tokens)] == tuple(tokens)
                    and (len(p) == len(tokens) or self._lm.network.rollback)
                ),
                None,
            )
            if path is not None:
                self._cache = self._paths[path]
            self._cache.commit(range(len(tokens)) if path is not None else ())
        else:
            path = [i for i in self._nodes(tokens) if i < len(self._staged)] if cached else []
            self._cache.commit(path)
            self._lag += self._late(path)
        self._drop()
        self._text += tokens

    def rewind(self, n: int) -> None:
        if not 0 <= n <= len(self._text):
            raise RequestError(
                f"n is {n}: it must lie in 0 to {len(self._text)}, the committed tokens"
            )
        self._settle()
        del self._text[len(self._text) - n :]
        if self._evicted and self._skipped is not None:
            self._evicted = (
                min(self._evicted, len(self._text)) if len(self._text) > self._skipped[0] else 0
            )
        self._forget(min(self._cache.length, len(self._text)))

    def evict(self) -> None:
        self._settle()
        if self._skipped is not None and not self._evicted:
            self._evicted = self._cache.length
        if self._lm.beside is not None and all(
            one.owner is self.owner for one in self._lm.live
        ):  # nobody else is reading it
            self._lm.beside.evict()
        tree, skips = self._tree, self._skips
        self._forget(0)
        self._tree, self._skips = tree, skips

    def states(self, hidden_NH: Tensor) -> LogitScores:
        return LogitScores([Answer(self._lm.network.head(hidden_NH), hidden_NH)])

    def normed(self, hidden_NH: Tensor) -> Tensor:
        return self._lm.network.normed(hidden_NH)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        self._lm.require(tokens, "tokens")
        return self._lm.network.embed(tokens)

    def memory(self) -> tuple[Tensor, Tensor]:
        self._settle()
        return self._lm.network.keys(self._cache, self.filled)

    def bend(self, draft: Draft, scores: Scores) -> Scores:
        return scores

    def fork(self, choice: int | None = None) -> LMSession:
        self._settle()
        twin = LMSession(self._lm, self._cache.fork(), self._text)
        twin._tree, twin._staged, twin._lag = self._tree, list(self._staged), list(self._lag)
        twin._answers = {k: list(v) for k, v in self._answers.items()}
        twin._skips, twin._skipped, twin._under, twin._evicted = (
            self._skips,
            self._skipped,
            self._under,
            self._evicted,
        )
        self._lm.live.add(twin)
        return twin

    def part(
        self,
        layers: Sequence[int],
        without: frozenset[int] = frozenset(),
        together: int = 1,
    ) -> PartSession | SkipSession:
        if not self._lm.layers:
            raise RequestError(
                "layers cannot run alone in this model: its adapter runs the whole network only"
            )
        some = tuple(layers)
        if not some or list(some) != sorted(set(some)) or some[0] < 0 or some[-1] >= self._all:
            raise RequestError(
                f"layers is {layers}: they must be ascending and lie in 0 to {self._all - 1}"
            )
        if not {h // 2 for h in without} <= set(some) or any(h ^ 1 in without for h in without):
            raise RequestError(
                f"without is {sorted(without)}: it must hold 2 i (attention) or 2 i + 1 (MLP) of layers i that "
                "run, not both of one"
            )
        if together < 1:
            raise RequestError(f"together is {together}: it must be at least 1")
        if together > 1 and not getattr(self._lm.network, "grouped", False):
            raise RequestError(
                "layers of this model cannot read together (the compiled step runs one after another): load them "
                "on the torch path (--dtype torch)"
            )
        first = some[-1] == len(some) - 1 and not without and together == 1
        return (
            PartSession(self, len(some)) if first else SkipSession(self, (some, without, together))
        )

    def close(self) -> None:
        self._settle()
        self._lm.live.discard(self)
        self._forget(self.filled)
        self._lm.keep_text(tuple(self._text), self._cache)
        self._cache = self._cache.fork(0)  # what nobody else reads is given back


def _fed(
    entries: Sequence[Entry],
    rows: Sequence[int],
    want: Want,
) -> tuple[tuple[int, ...], Sequence[int], Want, Tensor | None]:
    """What a query says of entries of one depth: tokens, and states for those that have some."""
    states = [e.state_H for e in entries if e.state_H is not None]
    if not states:
        return tuple(e.token for e in entries), rows, want, None
    low = len(states) == len(entries)
    return (
        () if low else tuple(e.token if e.state_H is None else -1 for e in entries),
        rows,
        want,
        torch.stack(states),
    )


def _entry(token: int, depth: int, state_H: Tensor | None, draft: Draft) -> Entry:
    return Entry(token, depth, state_H, adapter=None if state_H is None else draft.adapter)


def _gates(entries: Sequence[Entry]) -> dict[str, Any]:
    """What a query says of those that run under an adapter: a draft has one at most."""
    gated = tuple(i for i, e in enumerate(entries) if e.adapter is not None)
    return {"adapter": entries[gated[0]].adapter, "gated": gated} if gated else {}


def _later(a: Answer, row: int, head: Any) -> Answer:
    assert a.hidden_RH is not None
    hidden_RH = a.hidden_RH[row : row + 1]
    return Answer(None, hidden_RH, later=lambda: head(hidden_RH))
