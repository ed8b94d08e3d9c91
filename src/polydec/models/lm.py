"""A language model as a law of texts, and what its sessions have in common: the caches of texts that begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakSet

from polydec.base.errors import RequestError
from polydec.core.types import Vocab
from polydec.models.checks import adapts
from polydec.models.geometry import Geometry
from polydec.models.ledger import Ledger
from polydec.models.session import Beside, LMSession
from polydec.models.soft import state_of
from polydec.nets.cache import nbytes
from polydec.nets.press import Press
from polydec.nets.query import Network

LEAST = 32
"""Tokens that a prompt must have in common with a live session's text for their cache entries to be shared."""

PRESSES = 4
"""Ways to press a cache of which kept texts stay, where no session is live under them."""


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
        self._pressed = dict[Press, LM]()  # the same network over pressed caches
        # Oldest first: the text of each cache, and the cache.
        self._kept: list[tuple[tuple[int, ...], Any]] = []
        self.live = WeakSet[LMSession]()

    @property
    def layers(self) -> int:
        """How many layers a part of a session can choose from; 0 where layers cannot run alone."""
        return self.network.layers if self.network.partial and self.network.tree else 0

    @property
    def adapts(self) -> bool:
        """Whether rows of a pass can run with an adapter (nets/gated.py) beside rows without."""
        return adapts(self.network)

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
        kept = [cache for law in (self, *self._pressed.values()) for _, cache in law._kept]
        return nbytes([*(session.ledger.cache for session in self.live), *kept])

    @property
    def keep(self) -> int:
        return self._keep

    @keep.setter
    def keep(self, count: int) -> None:
        self._keep = count
        for law in self._pressed.values():
            law.keep = count

    def pressed(self, press: Press) -> LM:
        """The law of this network over caches that are pressed. Its sessions are live here, too, as they share passes with
        others; what they hold they share among themselves only. Raises RequestError where the network cannot read such
        caches."""
        if not getattr(self.network, "presses", False):
            raise RequestError(
                f"cache is {press.called}: what runs this model (transformers) reads caches as they are; "
                "load it on the torch path (--dtype torch)"
            )
        if press not in self._pressed:
            self.network.new_cache(press)
            busy = {session.law.press for session in self.live}
            idle = [known for known in self._pressed if known not in busy]
            for oldest in idle[: max(0, len(self._pressed) - PRESSES + 1)]:
                del self._pressed[oldest]
            self._pressed[press] = LM(
                self.network,
                self.vocab,
                chunk=self.chunk,
                keep=self.keep,
                press=press,
                beside=self.beside,
            )
            self._pressed[press].live = self.live
        return self._pressed[press]

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
        pressed = self.press is not None
        session = LMSession(self, Ledger(self.network, self._beginning(text), text, pressed))
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
            if (n := self._useful(cache, _common(kept, text))) > most:
                best, most, at = cache, n, i
        shares = self.network.tree or self.network.rollback
        for session in self.live:
            ledger = session.ledger
            n = self._useful(ledger.cache, min(ledger.filled, _common(ledger.text, text)))
            useful = session.law is self and n >= LEAST and n > most
            if useful and (shares or n == ledger.cache.length):
                best, most, at = ledger.cache, n, -1
        if best is None:
            return self._new_cache()
        if at >= 0 and most == len(self._kept[at][0]):
            return self._kept.pop(at)[1]
        return best.fork(most)

    def _useful(self, cache: Any, common: int) -> int:
        """How many of the first entries that a text has in common with a cache's it can go on from: a pressed cache may have
        given back what rows behind them see."""
        return common if self.press is None else cache.whole(common)

    def _new_cache(self) -> Any:
        """An empty one."""
        new_cache = self.network.new_cache
        cache = new_cache() if self.press is None else new_cache(self.press)
        if self.beside is not None:
            cache.beside = self.beside
        return cache

    def keep_text(self, text: tuple[int, ...], cache: Any) -> None:
        """Called by a session that closes: the newest `keep` texts stay."""
        if self.keep and cache.length:
            self._kept = [*self._kept, (text[: cache.length], cache)][-self.keep :]


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
