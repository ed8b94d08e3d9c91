"""A language model as a law of texts, and what its sessions have in common: the caches of texts
that begin alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.scheduler import CachedPrefix, current_task
from polydec.core.types import TokenVocabulary
from polydec.models.nets.kv_cache import total_cache_bytes
from polydec.models.nets.moved_keys import why_still
from polydec.models.nets.press import CachePress, reads_repeats
from polydec.models.nets.query import NeuralNetwork
from polydec.models.sessions.checks import can_run_adapters, router_shape
from polydec.models.sessions.geometry import EmbeddingGeometry
from polydec.models.sessions.image_fall import ImageFall
from polydec.models.sessions.ledger import SessionLedger
from polydec.models.sessions.live_references import LiveReferences
from polydec.models.sessions.reuse import (
    AGAIN,
    CacheReuse,
    KeyedTextCache,
    cache_owner,
    common_prefix_length,
)
from polydec.models.sessions.session import LMSession, SourceContext
from polydec.models.sessions.soft import image_grids, state_of

LEAST = 32
"""Tokens that a prompt must have in common with a live session's text for their cache entries to be
shared."""

PRESSES = 4
"""Ways to press a cache of which kept texts stay, where no session is live under them."""


class CausalLaw:
    """The causal law of a network: a `Target` whose sessions share what they have in common.

    Entries are shared only among requests of one `cache_salt`, so that no client of a server learns
    what another one asked.

    Args:
        network: The network.
        vocab: The ids that may be written.
        chunk: Tokens of a prompt that one pass takes at most. Default 256.
        keep: How many closed sessions' caches wait for a prompt that begins with their text (turns
            of a chat). Default 0.
        press: How old keys and values are stored, which decides the law; None: as they are.
        beside: What all texts of this law are written from; None: nothing.
        within: The law of which this is a request's own view, and what the request takes of its
            key's text; None: it is no view.
        fall: The law of which this is a request's own view, and where in the network the images of the
            request's prompt are dropped; None: nowhere.

    Attributes:
        shared: Of all texts that were opened, tokens whose entries another text's cache held.
        live: The open sessions.
    """

    def __init__(
        self,
        network: NeuralNetwork,
        vocab: TokenVocabulary,
        *,
        chunk: int = 256,
        keep: int = 0,
        press: CachePress | None = None,
        beside: SourceContext | None = None,
        within: tuple[CausalLaw, CacheReuse] | None = None,
        fall: tuple[CausalLaw, ImageFall] | None = None,
    ) -> None:
        self.network = network
        self.vocab = vocab
        self.chunk = chunk
        self._keep = keep
        self.press = press
        self.beside = beside
        self.within = within
        self.fall = fall
        self.shared = 0
        self.texts = KeyedTextCache()  # of the keys of requests that take an earlier one's cache
        self._pressed = dict[CachePress, CausalLaw]()  # the same network over pressed caches
        # Oldest first: the salt and text of each cache, and the cache.
        self._kept: list[tuple[str, tuple[int, ...], Any]] = []
        self.live = LiveReferences[LMSession]()

    @property
    def layers(self) -> int:
        """How many layers a part of a session can choose from; 0 where layers cannot run alone."""
        # A repeat of the text passes all layers, so none may lag behind. Nor may any of those that tell
        # where an image is dropped.
        passes_all = reads_repeats(self.press) or self.fall is not None
        if self.network.partial and self.network.tree and not passes_all:
            return self.network.layers
        return 0

    @property
    def adapts(self) -> bool:
        """Whether rows of a pass can run with an adapter (models/nets/gated.py) beside rows
        without."""
        return can_run_adapters(self.network)

    @property
    def routes(self) -> tuple[int, int] | None:
        """Layers and experts of a mixture whose router can be moved (`ScoreRequest.routing`); None:
        it is none."""
        return router_shape(self.network)

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may take together."""
        return self.network.context

    @cached_property
    def geometry(self) -> EmbeddingGeometry:
        """Where its tokens lie to one another. What reads it raises RequestError where the network
        has no table of its own."""
        size = self.vocab.size
        words = self.vocab.words
        return EmbeddingGeometry(
            self.network.embed_tokens,
            size if words is None else lambda: min(size, len(words.pieces)),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all cache entries, of live sessions and of kept texts; what they share counts
        once."""
        laws = (self, *self._pressed.values())
        kept = [cache for law in laws for _, _, cache in law._kept]
        kept += [cache for law in laws for cache in law.texts.caches]
        return total_cache_bytes([*(session.ledger.cache for session in self.live), *kept])

    @property
    def keep(self) -> int:
        """How many closed sessions' caches wait for a prompt that begins with their text."""
        return self._keep

    @keep.setter
    def keep(self, count: int) -> None:
        self._keep = count
        for law in self._pressed.values():
            law.keep = count

    def pressed_law(self, press: CachePress) -> CausalLaw:
        """The law of this network over caches that are pressed.

        Its sessions are live here, too, as they share passes with others; what they hold they share
        among themselves only.

        Raises:
            RequestError: The network cannot read such caches.
        """
        if not getattr(self.network, "presses", False):
            raise RequestError(
                f"cache is {press.called}: what runs this model (transformers) reads caches as they are; "
                "load it on the torch path (--dtype torch)"
            )
        if press not in self._pressed:
            # Made once to find out: it raises where the press does not suit the network.
            self.network.new_cache(press)
            busy = {session.law.press for session in self.live}
            idle = [known for known in self._pressed if known not in busy]
            for oldest in idle[: max(0, len(self._pressed) - PRESSES + 1)]:
                del self._pressed[oldest]
            self._pressed[press] = CausalLaw(
                self.network,
                self.vocab,
                chunk=self.chunk,
                keep=self.keep,
                press=press,
                beside=self.beside,
            )
            # One set of sessions, since all of them share the network's passes.
            self._pressed[press].live = self.live
        return self._pressed[press]

    def open_session(self, prompt: Sequence[int]) -> LMSession:
        """Open a session over a prompt.

        Ids that stand for vectors (models/sessions/soft.py) may stand before the last token.

        Raises:
            RequestError: A token is outside the vocabulary, or the prompt is empty or leaves no
                room in the context.
        """
        # Of another text than the request's own the view has nothing to say.
        if self.fall is not None and not self.fall[1].is_of_text(prompt):
            return self.fall[0].open_session(prompt)
        if not prompt:
            raise RequestError("prompt is empty: at least one token (such as BOS) is needed")
        if len(prompt) >= self.network.context:
            raise RequestError(
                f"prompt has {len(prompt)} tokens: the model's context holds {self.network.context}, "
                "the answer included"
            )
        self.require_token_ids([x for x in prompt[:-1] if state_of(x) is None], "prompt")
        self.require_token_ids(prompt[-1:], "prompt")
        # The last token is the pending root: the first draft feeds it.
        text = tuple(prompt[:-1])
        session = LMSession(self, self._account(text))
        # A cache that was taken over has those of the text that it began with.
        whole = getattr(self.network, "tells_grids", False)
        if whole or getattr(self.network, "moves_places", False):
            session.ledger.cache.grids = image_grids(text, whole=whole)
        if session.owner is not None:
            ledger = session.ledger
            taken = ledger.cache.length + sum(graft.stop - graft.first for graft in ledger.grafts)
            ledger.prefix = CachedPrefix(self.network, len(text), taken)
            session.owner.note_opened(ledger.prefix)
        # From here on other prompts may share what this session caches.
        self.live.add_object(session)
        return session

    def reusing_view(
        self, key: str, edited: bool, cache_salt: str = "", again: int = AGAIN
    ) -> CausalLaw:
        """A view of this law for one request, which takes of the last text of its key what it can.

        That is what both begin with, and (edited) what stands after an edit. `within` says how much
        it was.

        Args:
            key: Names the text that is edited.
            edited: Whether it may take what stands after an edit, which makes the law approximate.
            cache_salt: A key names another text under another salt. Default "".
            again: Tokens right behind an edit that are fed again, at least 0. Default `AGAIN`.

        Returns:
            The view, whose sessions take entries and leave theirs for the key's next request.

        Raises:
            RequestError: Keys cannot be turned to other positions.
        """
        # Only whole entries can be turned to new positions.
        if edited and self.press is not None:
            raise RequestError(
                f"reuse is 'edited': cache is {self.press.called}, and packed keys are not turned; leave one out"
            )
        if edited and (why := why_still(self.network)):
            raise RequestError(
                f"reuse is 'edited': {why}, so keys cannot be turned to other positions; take 'prefix'"
            )
        # A view with its own reuse; network and kept texts are the same.
        view = CausalLaw(
            self.network,
            self.vocab,
            chunk=self.chunk,
            press=self.press,
            beside=self.beside,
            within=(self, CacheReuse(self.texts, key, edited, cache_salt, again)),
        )
        view.live = self.live
        return view

    def falling_view(self, fall: ImageFall) -> CausalLaw:
        """A view of this law for one request, whose images are dropped within the network.

        Args:
            fall: The request's prompt, and when that happens.

        Returns:
            The view, whose sessions share what they hold among themselves only.

        Raises:
            RequestError: The network does not show what its layers look at.
        """
        if not getattr(self.network, "watches", False):
            raise RequestError(
                f"cache is {fall.called}: what runs this model does not show what its layers look at; load it on the torch "
                "path (--dtype torch), or drop no image within them (fall=0)"
            )
        # Made once to find out: it raises where layers do not see the whole text.
        network: Any = self.network
        network.new_watched_cache(fall.called)
        view = CausalLaw(
            self.network, self.vocab, chunk=self.chunk, beside=self.beside, fall=(self, fall)
        )
        view.live = self.live
        return view

    def _account(self, text: tuple[int, ...]) -> SessionLedger:
        """The account of a new session over this text."""
        pressed = self.press is not None
        if self.within is None:
            return SessionLedger(self.network, self._beginning(text), text, pressed)
        law, reuse = self.within
        # Two requests of one key at a time would each take the same older text, and the later one
        # would not see the other's edit.
        others = (session.law.within for session in self.live if session.law is not self)
        if reuse.edited and any(x is not None and x[1].same_text(reuse) for x in others):
            raise RequestError(
                f"reuse_key is {short_repr(reuse.key)}: another request of this key is being answered, and they "
                "follow one another"
            )
        # What the key's older text has in common with this one: a beginning, and later parts.
        kept, n, grafts = reuse.known_text(text)
        if kept is None or not n:
            return SessionLedger(self.network, law._beginning(text), text, pressed)
        # The older text was approximate itself, from there on, and so is this one.
        if kept.edited is not None and kept.edited < n:
            edited = kept.edited
        else:
            edited = None
        reuse.note_reuse(n, grafts, edited)
        return SessionLedger(self.network, kept.cache.fork(n), text, pressed, grafts, edited)

    def forget_text(self, key: str, cache_salt: str = "") -> None:
        """Give back what is stored of the text of a key.

        Args:
            key: The key.
            cache_salt: Salt of its requests. Default "".
        """
        for law in (self, *self._pressed.values()):
            law.texts.forget_text(key, cache_salt)

    def require_token_ids(self, tokens: Sequence[int], who: str) -> None:
        """Check token ids.

        Args:
            tokens: The ids.
            who: What the message calls them.

        Raises:
            RequestError: An id lies outside the vocabulary.
        """
        bad = next((x for x in tokens if not 0 <= x < self.vocab.size), None)
        if bad is not None:
            raise RequestError(f"{who} has token {bad}: ids must lie in 0 to {self.vocab.size - 1}")

    def _beginning(self, text: tuple[int, ...]) -> Any:
        """A cache that holds as much of this text as any.

        It is one of a closed session, which goes over to the new session where all of it is of use,
        or shares what a live session has in common.
        """
        best = None
        most = 0
        at = -1
        owner = current_task()
        if owner is None:
            salt = ""
        else:
            salt = owner.cache_salt
        # First the caches of closed sessions, then those of live ones, which must have LEAST tokens
        # in common.
        for i, (kept_salt, kept, cache) in enumerate(self._kept):
            if (
                kept_salt == salt
                and (n := self._useful(cache, common_prefix_length(kept, text))) > most
            ):
                best = cache
                most = n
                at = i
        # A live session's cache can be shared where it can be cut back to the common beginning.
        shares = self.network.tree or self.network.rollback
        for session in self.live:
            if session.cache_salt != salt:
                continue
            ledger = session.ledger
            n = self._useful(
                ledger.cache, min(ledger.filled, common_prefix_length(ledger.text, text))
            )
            useful = session.law is self and n >= LEAST and n > most
            # A recurrent cache cannot go back: it is of use only where all of it is.
            if useful and (shares or n == ledger.cache.length):
                best = ledger.cache
                most = n
                at = -1
        if best is None:
            return self._new_cache()
        self.shared += most
        if at >= 0 and most == len(self._kept[at][1]):
            return self._kept.pop(at)[2]
        return best.fork(most)

    def _useful(self, cache: Any, common: int) -> int:
        """How many of the first entries that a text has in common with a cache's it can go on from.

        A pressed cache may have given back what rows after them see.
        """
        if self.press is None:
            return common
        return cache.available_entries(common)

    def _new_cache(self) -> Any:
        """An empty one."""
        new_cache = self.network.new_cache
        if self.press is None:
            cache = new_cache()
        else:
            cache = new_cache(self.press)
        if self.beside is not None:
            cache.beside = self.beside
        return cache

    def keep_text(
        self, text: tuple[int, ...], cache: Any, edited: int | None, cache_salt: str
    ) -> None:
        """Take over the cache of a session that closes.

        `keep` texts stay, or of a request's view the last one for its key. Beyond them the owner
        (`cache_owner`) that has the most loses its oldest one, so that none is left without.

        Args:
            text: The session's committed tokens.
            cache: Its cache; it may hold fewer of them.
            edited: Entries from there on were computed with another text in view; None: none was.
            cache_salt: Of the session's request.
        """
        if self.within is not None:
            reuse = self.within[1]
            # The last session of the view to close leaves its text.
            if cache.length and not any(session.law is self for session in self.live):
                reuse.texts.store_text(
                    reuse.key, text[: cache.length], cache, edited, cache_salt=reuse.cache_salt
                )
        elif self.keep and cache.length:
            kept = (cache_salt, text[: cache.length], cache)
            texts = [*self._kept, kept]
            while len(texts) > self.keep:
                owners = Counter(cache_owner(salt) for salt, _, _ in texts)
                # Among equals the one that comes first, whose text is the oldest of all.
                largest = owners.most_common(1)[0][0]
                del texts[
                    next(i for i, kept in enumerate(texts) if cache_owner(kept[0]) == largest)
                ]
            self._kept = texts
