"""Encoder-decoder models: a law of texts for each source.

The encoder is a model of the scheduler's own, so the sources of several requests are read in one
pass. What it leaves is held once for all sessions that write from the same source.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import ForwardQuery
from polydec.core.types import TokenVocabulary
from polydec.models.formats.images import PixelStrip, StripShape
from polydec.models.sessions.geometry import EmbeddingGeometry
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.session import LMSession

SourceContent = tuple[int, ...] | PixelStrip
"""What an encoder reads: token ids, or an image. Equal ones are one source."""


class EncoderSource:
    """What a text is written from.

    Attributes:
        model: The model whose encoder reads it.
        content: Its token ids, or the pixels of an image.
        cache_salt: Of the requests that share it.
        kv: What the decoder reads of it, ``[layers, 2, heads, tokens, head]``; None: the encoder
            has not run.
    """

    def __init__(
        self, model: EncoderDecoderModel, content: SourceContent, cache_salt: str = ""
    ) -> None:
        self.model = model
        self.content = content
        self.cache_salt = cache_salt
        self.kv: Tensor | None = None

    @property
    def nbytes(self) -> int:
        if self.kv is None:
            return 0
        return self.kv.nbytes

    @property
    def peers(self) -> int:
        return len(self.model.live)

    async def prepare_judgement(self) -> None:
        """Run the encoder, unless it has run."""
        if self.kv is None:
            # The scheduler merges sources of several requests into one pass of the encoder.
            kv = await ForwardQuery(self.model.encoder, self.content, len(self.content))
            if self.kv is None:  # another request may have been first
                self.kv = kv

    def evict_cache(self) -> None:
        """Give back what the encoder left."""
        self.kv = None


class EncoderDecoderModel:
    """An encoder-decoder model: it gives the law of texts that are written from a source.

    Args:
        encoder: Reads sources.
        network: The decoder, a `NeuralNetwork`.
        vocab: The vocabulary of texts and sources.
        start: The tokens that every text begins with.
        chunk: Tokens of a prompt that one pass takes at most. Default 256.
        strip: How its encoder reads an image. Default None: it reads tokens.
    """

    layers = 0
    adapts = False

    def __init__(
        self,
        encoder: Any,
        network: Any,
        vocab: TokenVocabulary,
        start: tuple[int, ...],
        *,
        chunk: int = 256,
        strip: StripShape | None = None,
    ) -> None:
        self.encoder = encoder
        self.network = network
        self.vocab = vocab
        self.start = start
        self.chunk = chunk
        self.strip = strip
        self._keep = 0
        # A law lives as long as a session or a request uses it; its caches go with it.
        self._laws = WeakValueDictionary[tuple[str, SourceContent], CausalLaw]()

    @property
    def keep(self) -> int:
        """How many closed sessions' caches wait in each law for a text that begins with theirs."""
        return self._keep

    @keep.setter
    def keep(self, count: int) -> None:
        self._keep = count
        for law in list(self._laws.values()):
            law.keep = count

    def law_given_source(
        self, source: Sequence[int] | PixelStrip, cache_salt: str = ""
    ) -> CausalLaw:
        """The law of texts that are written from these tokens, or from this image.

        Equal sources of one cache_salt share law, caches and what the encoder left.

        Args:
            source: Token ids of the source, 1 to `context` of them; an image as `strip` has it, of a
                model that reads one.
            cache_salt: Only requests of the same salt share anything. Default "".

        Returns:
            The law. It is forgotten when nobody uses it any more.

        Raises:
            RequestError: There are no tokens, too many, one lies outside the vocabulary, or the
                model reads the other kind of source.
        """
        if isinstance(source, PixelStrip):
            content: SourceContent = source
            self._check_strip(source)
        else:
            content = tuple(source)
            self._check_tokens(content)
        # The salt is part of the key, so that no client learns what another one asked.
        law = self._laws.get((cache_salt, content))
        if law is None:
            beside = EncoderSource(self, content, cache_salt)
            law = CausalLaw(
                self.network, self.vocab, chunk=self.chunk, keep=self.keep, beside=beside
            )
            self._laws[cache_salt, content] = law
        return law

    def _check_strip(self, strip: PixelStrip) -> None:
        """Raise RequestError for an image that the encoder does not read."""
        own = self.strip
        if own is None:
            raise RequestError("source is an image: this model reads text only")
        if (strip.height, strip.stride) != (own.height, own.stride) or len(strip) > own.most:
            raise RequestError(
                f"source is an image of {len(strip)} positions of {strip.stride} x {strip.height} pixels: this model reads at "
                f"most {own.most} of {own.stride} x {own.height}"
            )

    def _check_tokens(self, ids: tuple[int, ...]) -> None:
        """Raise RequestError for tokens that the encoder does not read."""
        if self.strip is not None:
            raise RequestError("source is a text: this model reads an image")
        if not ids:
            raise RequestError("source is empty: give a text of at least one character")
        if len(ids) > self.context:
            raise RequestError(
                f"source has {len(ids)} tokens: this model reads at most {self.context}"
            )
        if bad := [x for x in ids if not 0 <= x < self.vocab.size]:
            raise RequestError(
                f"source has token {bad[0]}: ids must lie in 0 to {self.vocab.size - 1}"
            )

    def open_session(self, prompt: Sequence[int]) -> LMSession:
        """Refuse: a text of this model needs a source (see `given`)."""
        raise RequestError("this model writes from a source: give one (source)")

    @property
    def context(self) -> int:
        """Tokens that a text may take, and a source."""
        return self.network.context

    @property
    def live(self) -> list[LMSession]:
        """The sessions of all sources."""
        # A copy of the list: laws may vanish while it is walked.
        return [session for law in list(self._laws.values()) for session in law.live]

    @property
    def nbytes(self) -> int:
        """Of the caches of all sources, and of what the encoder left."""
        laws = list(self._laws.values())
        return sum(law.nbytes + getattr(law.beside, "nbytes", 0) for law in laws)

    @cached_property
    def geometry(self) -> EmbeddingGeometry:
        """Where the tokens lie to one another."""
        return EmbeddingGeometry(self.network.embed_tokens, self.vocab.size)
