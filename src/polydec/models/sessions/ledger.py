"""What a session keeps account of: its text, how much of it the cache holds, and the draft that was
scored last.

Nothing here runs a layer. Each way to score a draft stands in a file of its own and works on this
account: `depths` (all layers of a network, and its first ones), `skips` (some of its layers),
`paths` (networks that read one branch at a time); `prompts` feeds what comes before all drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from polydec.base.values import fast_dataclass
from polydec.core.scheduler import CachedPrefix
from polydec.core.types import Draft, require_scored_draft
from polydec.models.nets.query import NetworkAnswer, NeuralNetwork, Run
from polydec.models.nets.scores import pick_answer_rows
from polydec.models.sessions.reuse import CacheGraft
from polydec.models.sessions.soft import adapter_of, state_of


@fast_dataclass(slots=True)
class LedgerEntry:
    """A cache entry that is staged, or has not passed every layer.

    Attributes:
        token: Its token id.
        depth: How many layers it has passed.
        state_H: What came out of the last of them; None where that is all of them. At depth 0, what
            a probe brings in place of an embedding.
        exits: The states at the depths that were wanted.
        adapter: The adapter under which it runs; None: none.
    """

    token: int
    depth: int = 0
    state_H: Tensor | None = None
    exits: dict[int, Tensor] = field(default_factory=lambda: {})
    adapter: Any = None


def entry_of(draft: Draft, node: int, depth: int = 0) -> LedgerEntry:
    """The entry of a draft's node.

    A root that stands for a vector (models/sessions/soft.py) is a node like any other: it may be
    committed, and stays a vector.

    Args:
        draft: The draft.
        node: Index of the node.
        depth: How many layers it does not pass: it enters above them. Default 0.

    Returns:
        The entry, with the node's state if it has one.
    """
    token = draft.token[node]
    state_H = None if draft.state is None else draft.state[node]
    # A node without a state of its own may stand for a vector, beside probes too.
    if state_H is None:
        return LedgerEntry(token, depth, state_of(token), adapter=adapter_of(token))
    return LedgerEntry(token, depth, state_H, adapter=draft.adapter)


def entries_of(tokens: Sequence[int]) -> list[LedgerEntry]:
    """The entries of a text, which have passed no layer yet."""
    return [LedgerEntry(x, 0, state_of(x), adapter=adapter_of(x)) for x in tokens]


@dataclass(slots=True)
class ScoredDraft:
    """The draft that was scored last, and what its passes left.

    Attributes:
        draft: The draft; None where none was scored.
        entries: The staged entries of the draft's nodes, in order; none where they were given back.
        answers: Their rows, by depth or by the layers that ran, each with how many nodes it answers
            for.
        run: The layers under which the nodes from `since` on ran; None where these are the first
            ones.
        since: The nodes before it passed all layers (with a run of None it is only counted when
            entries are given back).
        twins: Of a network without a tree mask the caches that hold root and path, by their tokens.
    """

    draft: Draft | None = None
    entries: list[LedgerEntry] = field(default_factory=lambda: [])
    answers: dict[Any, list[tuple[int, NetworkAnswer]]] = field(default_factory=lambda: {})
    run: Run | None = None
    since: int = 0
    twins: dict[tuple[int, ...], Any] = field(default_factory=lambda: {})

    def copy(self) -> ScoredDraft:
        """The same for a fork. Caches of paths stay with the original: a fork feeds the path that
        it takes anew."""
        answers = {key: list(rows) for key, rows in self.answers.items()}
        return ScoredDraft(self.draft, list(self.entries), answers, self.run, self.since)


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """Committed entries that ran under some layers only.

    Attributes:
        first: The first of these entries; all after it are such, too.
        run: The layers that ran.
        evicted: Where they were given back, the end of them; 0: the cache holds them.
    """

    first: int
    run: Run
    evicted: int = 0


class SessionLedger:
    """The account of one session.

    Attributes:
        network: The network that the session runs on.
        cache: The session's cache.
        text: Everything committed, the root left out. What the cache does not hold of it is fed
            with the next score.
        pressed: Whether the cache may give back what is not read any more.
        grafts: Entries of an older text that take their places in the cache while the prompt is
            fed, in order.
        edited: Entries from there on were computed with another text in view; None: none was. They
            are never fed again, as that would change the law.
        prefix: What is noted of the entries that it began with; None: nothing is.
        lag: The last committed entries of the cache, where they have not passed every layer: only
            the first ones ran when a part scored them, and they go on from there when a deeper
            score comes, so that no layer runs twice for a token that stays. Depths never rise from
            one entry to the next.
        scored: The draft that was scored last.
        skipped: Committed entries that ran under some layers only; None: there are none.
        filling: While a pass feeds the text, how much of it was cached before; else None. An entry
            counts as cached once the pass that fills it has answered: where a pass fails, or is
            interrupted, the next verb finds everything as it was before (`settle_pass`).
        through: What a full pass leaves of any token.
    """

    def __init__(
        self,
        network: NeuralNetwork,
        cache: Any,
        text: Sequence[int],
        pressed: bool,
        grafts: Sequence[CacheGraft] = (),
        edited: int | None = None,
    ) -> None:
        self.network = network
        self.cache = cache
        self.text = list(text)
        self.pressed = pressed
        self.grafts = list(grafts)
        self.edited = edited
        self.prefix: CachedPrefix | None = None
        self.lag: list[LedgerEntry] = []
        self.scored = ScoredDraft()
        self.skipped: SkippedRun | None = None
        self.filling: int | None = None
        # One object for all entries that have passed every layer: only their depth is read.
        self.through = LedgerEntry(-1, network.layers)  # what a whole pass leaves of any token

    @property
    def layers(self) -> int:
        """How many layers the whole network has."""
        return self.network.layers

    @property
    def filled(self) -> int:
        """How many committed entries have passed every layer."""
        if self.filling is None:
            n = self.cache.length - len(self.lag)
        else:
            n = self.filling
        if self.skipped is None:
            return n
        return min(n, self.skipped.first)

    @property
    def passed_all_layers(self) -> int:
        """How many nodes of the draft that was scored last, its first ones, the full network has
        scored.

        0 where only its first layers ran. Entries that were given back count as they did before.
        """
        scored = self.scored
        if scored.run is not None or not scored.entries:
            return scored.since
        return len(scored.entries) * all(entry.depth == self.layers for entry in scored.entries)

    def nodes_of(self, tokens: Sequence[int]) -> list[int]:
        """The nodes of the scored draft that these tokens follow, the root first."""
        if self.scored.draft is None:
            return []
        return self.scored.draft.nodes_of(tokens)

    def settle_pass(self) -> None:
        """Undo a pass that never answered: what it was to fill is not cached."""
        if self.filling is not None:
            length = self.filling
            self.filling = None
            self.forget_entries(length)
        # Slots that were staged for entries that never came to be.
        elif len(self.cache.parent) != len(self.scored.entries):
            self.cache.keep_path((), range(len(self.scored.entries)))
        if self.pressed:
            self.shed_pressed()

    def shed_pressed(self) -> None:
        """Of a pressed cache give back what is not read any more."""
        if self.pressed:
            self.cache.shed_packed(self.filled)

    def drop_draft(self) -> None:
        """Unstage the draft; nothing is scored any more."""
        if self.cache.parent:
            self.cache.commit_path(())
        self.scored = ScoredDraft()

    def forget_entries(self, length: int) -> None:
        """Unstage the draft, and forget all cached entries but the first so many."""
        self.drop_draft()
        before = self.cache.length
        self.cache.truncate_entries(min(before, length))  # a pressed one may forget more
        # What lags are the last entries: as many of them go as the cache gave up.
        gone = before - self.cache.length
        if gone > 0:
            self.lag = self.lag[: max(0, len(self.lag) - gone)]
        if self.edited is not None and self.cache.length <= self.edited:
            self.edited = None
        skipped = self.skipped
        if skipped is not None and not skipped.evicted and self.cache.length <= skipped.first:
            self.skipped = None

    def take_slots(self, stop: int | None = None) -> None:
        """Give slots to what the cache lacks of the text (of its first `stop` tokens); it runs with
        the next pass."""
        assert self.cache.length <= len(self.text), "the cache holds more than the text"
        tail = self.text[self.cache.length : stop]
        self.lag += entries_of(tail)
        self.cache.stage_slots(range(-1, len(tail) - 1))
        self.cache.commit_path(range(len(tail)))

    def commit_tokens(self, tokens: Sequence[int], cached: bool) -> None:
        """Make these tokens part of the text.

        Args:
            tokens: Tokens that are past now, the root first.
            cached: Whether what is staged of them stays in the cache; otherwise it is fed again.
        """
        if self.scored.twins:
            self._adopt(tokens)
        else:
            if cached:
                path = self.nodes_of(tokens)
            else:
                path = []
            staged = len(self.scored.entries)
            # After an eviction the draft's nodes have no entries: their tokens are fed again as
            # text.
            if path and path[-1] >= staged:  # some were given back
                path = [i for i in path if i < staged]
            self.cache.commit_path(path)
            self.lag += self._late(path)
        self.drop_draft()
        self.text += tokens

    def _adopt(self, tokens: Sequence[int]) -> None:
        """Go on with the cache that holds the path of these tokens, where there is one."""
        for path, twin in self.scored.twins.items():
            # A longer path will do where the cache can drop its last entries.
            exact = len(path) == len(tokens)
            if path[: len(tokens)] == tuple(tokens) and (exact or self.network.rollback):
                self.cache = twin
                self.cache.commit_path(range(len(tokens)))
                return
        self.cache.commit_path(())

    def keep_nodes(self, nodes: Sequence[int], root: int, cached: bool) -> Draft:
        """Keep some nodes of the draft that was scored last; see `Session.keep_nodes`.

        Args:
            nodes: The nodes that stay, ascending, each node's parent among them.
            root: The node that becomes the root; the path above it is committed.
            cached: Whether what is staged stays in the cache; otherwise it is fed again.

        Returns:
            The draft as it now stands.

        Raises:
            RequestError: No draft was scored since the last commit.
        """
        scored = self.scored
        draft = require_scored_draft(scored.draft)
        path, stay, left = draft.subtree_below(root, nodes)
        tokens = [draft.token[i] for i in path]
        # Nodes that all layers had scored stand first among those that stay, too.
        since = sum(i < scored.since for i in stay)
        if not cached or len(scored.entries) < len(draft):
            self.commit_tokens(tokens, cached)  # without entries of its own: all of it is fed again
            if cached:
                self.scored = ScoredDraft(left, run=scored.run, since=since)
        else:
            # Only the accepted path stays, and those nodes that a later draft may use again.
            self.cache.keep_path(path, stay)
            self.lag += self._late(path)
            scored.answers = {
                key: pick_answer_rows(rows, stay, self.network)
                for key, rows in scored.answers.items()
            }
            scored.entries = [scored.entries[i] for i in stay]
            scored.since = since
            self.text += tokens
        self.scored.draft = left
        return left

    def _late(self, path: Sequence[int]) -> list[LedgerEntry]:
        """Of staged entries those that have not passed the last layer.

        Nearly always there are none: the last of all, which has passed no more layers than any
        other, has passed all of them.
        """
        if not path or self.scored.entries[-1].depth == self.layers:
            return []
        entries = [self.scored.entries[i] for i in path]
        return [replace(entry, exits={}) for entry in entries if entry.depth < self.layers]

    def rewind_tokens(self, n: int) -> None:
        """Forget the last n committed tokens, and whatever is staged."""
        del self.text[len(self.text) - n :]
        # Entries that were given back end with the text now, or are no more.
        if self.skipped is not None and self.skipped.evicted:
            evicted = self.skipped.evicted
            length = len(self.text)
            if length > self.skipped.first:
                evicted = min(evicted, length)
            else:
                evicted = 0
            self.skipped = replace(self.skipped, evicted=evicted)
        self.forget_entries(min(self.cache.length, len(self.text)))

    def graft_entries(self) -> None:
        """Put the next entries of an older text into their places: the cache has come to where they
        stand."""
        one = self.grafts.pop(0)
        assert self.cache.length == one.at, "the text before a graft has not been fed"
        network: Any = (
            self.network
        )  # its keys can be turned (models/nets/moved_keys.py), or nobody would have planned this
        # Keys are turned by the distance that the entries move.
        for first, piece in one.cache.entry_pieces(one.first, one.stop):
            self.cache.append_entries(network.turn_entries(piece, first, one.at - one.first))
        if self.edited is None:
            self.edited = one.at

    def evict_cache(self) -> None:
        """Give all entries back, but for those that could not be fed again as they are.

        Text and draft stay, so that both can be fed anew.
        """
        if self.edited is not None:
            return
        if self.skipped is not None and not self.skipped.evicted:
            self.skipped = replace(self.skipped, evicted=self.cache.length)
        scored = self.scored
        # Counted before the entries go: afterwards nothing would say which nodes the full network
        # had scored.
        since = self.passed_all_layers
        self.forget_entries(0)
        self.scored = ScoredDraft(scored.draft, run=scored.run, since=since)

    def fork(self) -> SessionLedger:
        """A ledger of its own over the same entries, which both share."""
        twin = SessionLedger(
            self.network, self.cache.fork(), self.text, self.pressed, self.grafts, self.edited
        )
        twin.scored = self.scored.copy()
        twin.lag = list(self.lag)
        twin.skipped = self.skipped
        return twin
