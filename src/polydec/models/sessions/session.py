"""One text under a model's law: the verbs of a session. How each is done stands in the files that
are named in `ledger`."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import PauseEffect
from polydec.core.protocols import DraftScores
from polydec.core.scheduler import current_task
from polydec.core.types import Draft, ScoreRequest
from polydec.models.nets.grid_positions import ImageGrid
from polydec.models.nets.press import CachePress, reads_repeats
from polydec.models.nets.query import NetworkAnswer, NeuralNetwork
from polydec.models.nets.scores import LogitScores
from polydec.models.sessions import depths, moved_router, paths, prompts, slots
from polydec.models.sessions.checks import require_answerable, require_layers
from polydec.models.sessions.image_fall import ImageFall, settle_image_fall
from polydec.models.sessions.ledger import SessionLedger
from polydec.models.sessions.live_references import LiveReferences
from polydec.models.sessions.parts import PartSession, SkipSession
from polydec.models.sessions.repeats import read_repeats
from polydec.models.sessions.reuse import CacheReuse
from polydec.models.sessions.soft import state_of


class SourceContext(Protocol):
    """What the texts of a law are written from; caches point at it."""

    @property
    def peers(self) -> int:
        """How many sequences share the network's passes."""
        ...

    async def prepare_judgement(self) -> None:
        """Read it, where it has not been read or was given back."""
        ...

    def evict_cache(self) -> None:
        """Give back what was read of it."""
        ...


class SessionLaw(Protocol):
    """What the sessions of one law have in common: see `CausalLaw`, which opens them."""

    network: NeuralNetwork
    chunk: int
    press: CachePress | None
    beside: SourceContext | None
    live: LiveReferences[LMSession]
    within: tuple[Any, CacheReuse] | None
    fall: tuple[Any, ImageFall] | None

    def require_token_ids(self, tokens: Sequence[int], who: str) -> None:
        """Check token ids.

        Args:
            tokens: The ids.
            who: What the message calls them.

        Raises:
            RequestError: An id lies outside the vocabulary.
        """
        ...

    def keep_text(
        self, text: tuple[int, ...], cache: Any, edited: int | None, cache_salt: str
    ) -> None:
        """Take over the cache of a session that closes.

        Args:
            text: The session's committed tokens.
            cache: Its cache; it may hold fewer of them.
            edited: Entries from there on were computed with another text in view; None: none was.
            cache_salt: Of the session's request.
        """
        ...


class LMSession:
    """A text, its cache and the draft that was scored last: a `Session` of a model.

    Attributes:
        law: What the sessions of one law have in common.
        ledger: The account of text, cache and draft.
        owner: The request that the session belongs to, for an engine that has to make room; None:
            none.
    """

    def __init__(self, law: SessionLaw, ledger: SessionLedger) -> None:
        self.law = law
        self.ledger = ledger
        self.owner = current_task()

    @property
    def cache_salt(self) -> str:
        """What is computed for this text is shared with texts of the same salt only."""
        if self.owner is None:
            return ""
        return self.owner.cache_salt

    @property
    def peers(self) -> int:
        beside = self.law.beside
        return max(1, len(self.law.live) if beside is None else beside.peers)

    async def prefill_prompt(self, want: ScoreRequest) -> LogitScores:
        if self.law.beside is not None:  # what texts are written from has been read
            await self.law.beside.prepare_judgement()
        self.ledger.settle_pass()
        # Refused before anything is fed.
        require_answerable(self.law.network, want)
        await self._settle_image()
        chunk = self.law.chunk
        if reads_repeats(self.law.press):
            chunk = min(chunk, self.law.press.block)
        return await prompts.prefill_prompt(self.ledger, want, chunk)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> LogitScores:
        """The laws at every node of a draft, by all layers.

        Args:
            draft: The draft; one that extends the last one feeds its new nodes only.
            want: What is read of the scores.

        Returns:
            The laws.

        Raises:
            RequestError: The network cannot score this draft, or not with what is wanted.
        """
        if self.law.beside is not None:  # what texts are written from has been read
            await self.law.beside.prepare_judgement()
        self.ledger.settle_pass()
        await self._settle_image()
        if reads_repeats(self.law.press):
            await read_repeats(self.ledger, len(self.ledger.text) + max(draft.depth))
        # Three ways to score: with a moved router, as a tree in one pass, or path by path.
        if want.routing is not None:
            scores = await moved_router.score_with_routing(self.ledger, draft, want)
        elif self.law.network.tree:
            scores = await depths.score_whole(self.ledger, draft, want)
        else:
            scores = await paths.score_by_paths(self.ledger, draft, want, self.law.chunk)
        await self.pause_on_hold()
        return scores

    async def _settle_image(self) -> None:
        """Find where images are dropped within the network, before anything else is fed."""
        if self.law.fall is not None:
            await settle_image_fall(self.ledger, self.law.fall[1], self.law.chunk)

    async def pause_on_hold(self) -> None:
        """Stop here while the request is on hold: the engine wants its memory back, and evicts this
        session meanwhile."""
        if self.owner is not None and self.owner.paused is not None:
            await PauseEffect()

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self.ledger.settle_pass()
        # What only some layers have staged is no entry of the full network: it is fed again.
        self.ledger.commit_tokens(tokens, cached=self.ledger.scored.run is None)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last; see `Session.keep_nodes`.

        Args:
            nodes: The nodes that stay, ascending, each node's parent among them.
            root: The node that becomes the root; the path above it is committed. Default 0: the old
                root.

        Returns:
            The draft as it now stands.

        Raises:
            RequestError: No draft was scored since the last commit.
        """
        self.ledger.settle_pass()
        return self.ledger.keep_nodes(nodes, root, cached=self.ledger.scored.run is None)

    def rewind_tokens(self, n: int) -> None:
        committed = len(self.ledger.text)
        if not 0 <= n <= committed:
            raise RequestError(f"n is {n}: it must lie in 0 to {committed}, the committed tokens")
        self.ledger.settle_pass()
        self.ledger.rewind_tokens(n)

    def evict_cache(self) -> None:
        self.ledger.settle_pass()
        beside = self.law.beside
        live = self.law.live
        if beside is not None and all(session.owner is self.owner for session in live):
            beside.evict_cache()  # nobody else is reading it
        self.ledger.evict_cache()

    def score_states(self, hidden_NH: Tensor) -> LogitScores:
        return LogitScores([NetworkAnswer(self.law.network.head_logits(hidden_NH), hidden_NH)])

    def normed_states(self, hidden_NH: Tensor) -> Tensor:
        return self.law.network.normed_states(hidden_NH)

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        self.law.require_token_ids(tokens, "tokens")
        return self.law.network.embed_tokens(tokens)

    def text_vectors(self) -> Mapping[int, Tensor]:
        states = ((at, state_of(token)) for at, token in enumerate(self.ledger.text))
        return {at: state_H for at, state_H in states if state_H is not None}

    def text_grids(self) -> Sequence[ImageGrid]:
        # A cache may know an image of whose vectors some were left out, though its model tells no
        # rows and columns.
        if getattr(self.law.network, "tells_grids", False):
            return self.ledger.cache.grids
        return ()

    def read_slots(
        self, vectors_NH: Tensor, grid: tuple[int, int] | None = None, causal: bool = False
    ) -> Coroutine[Any, Any, Tensor]:
        """Read slots behind the text; see `Session.read_slots`.

        Args:
            vectors_NH: What enters the first layer for them.
            grid: Rows and columns of the image whose cells they are. None: they follow as words do.
            causal: Whether a slot sees none behind it. Default False.

        Returns:
            What gives their states behind the last layer, once it is awaited.

        Raises:
            RequestError: They cannot be read here; before anything is awaited.
        """
        law = self.law
        slots.require_slots(law.network, law.press, len(self.ledger.text), vectors_NH)
        return self._read_slots(vectors_NH, grid, causal)

    async def _read_slots(
        self, vectors_NH: Tensor, grid: tuple[int, int] | None, causal: bool
    ) -> Tensor:
        await self._settle_image()
        hidden_NH = await slots.read_slots(self.ledger, vectors_NH, grid, causal)
        await self.pause_on_hold()
        return hidden_NH

    def layer_memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        self.ledger.settle_pass()
        return self.law.network.read_keys(self.ledger.cache, self.ledger.filled, layer)

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Scores of others, as this session would shape them: a model shapes nothing.

        Args:
            draft: The draft.
            scores: Scores of its nodes.

        Returns:
            The same scores.
        """
        return scores

    def fork(self, choice: int | None = None) -> LMSession:
        self.ledger.settle_pass()
        twin = LMSession(self.law, self.ledger.fork())
        self.law.live.add_object(twin)
        return twin

    def open_part(
        self,
        layers: Sequence[int],
        without: frozenset[int] = frozenset(),
        together: int = 1,
    ) -> PartSession | SkipSession:
        """The same cache under some layers only.

        Args:
            layers: Ascending indices. The first ones without anything left out are an early exit,
                any others a layer skip.
            without: Halves that are left out as well (2 i: the attention of layer i; 2 i + 1: its
                MLP). Default: none.
            together: How many consecutive attentions, the first and the last left out, read the
                same input. Default 1.

        Returns:
            A session of these layers, which shares this one's account.

        Raises:
            RequestError: The network cannot run them alone.
        """
        run = tuple(layers)
        require_layers(self.law.network, run, without, together)
        if run == tuple(range(len(run))) and not without and together == 1:
            return PartSession(self, len(run))
        return SkipSession(self, (run, without, together))

    def close(self) -> None:
        ledger = self.ledger
        ledger.settle_pass()
        self.law.live.discard_object(self)
        # Only entries that have passed every layer are of use to another text.
        ledger.forget_entries(ledger.filled)
        self.law.keep_text(tuple(ledger.text), ledger.cache, ledger.edited, self.cache_salt)
        # The law may have taken the cache over: this session lets go of it.
        ledger.cache = ledger.cache.fork(0)  # what nobody else reads is given back
