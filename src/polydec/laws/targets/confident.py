"""Each token leaves the network at the first depth that is sure of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.laws.targets.switch import SwitchScores


@dataclass(frozen=True)
class EarlyExitTarget:
    """The law of the first exit that is sure enough, token by token.

    The exit is the first of `exits` layers, norm and head whose two likeliest tokens lie at least
    lambda apart in probability (before shaping). A later token that goes deeper first takes along
    the states of those that left earlier, so that the keys and values it reads are those of all
    layers and a row depends on its text alone.

    Prompt rows (prefill with want.prompt) are those of the complete model: all layers see a prompt.

    Exact: approximate. Rows that leave early are not the whole model's.
    Reduces to: `target` at threshold above 1.2 (above 1 where decay is None).
    Source: Schuster et al., "Confident adaptive language modeling" (2022); there, missing keys and
    values are made from the exit's state instead.

    Attributes:
        target: The model.
        exits: Ascending depths in layers; the last one is all layers.
        threshold: Lambda, 0 (always the first exit) and more (above 1: never early). Default 0.9.
        decay: 0 and more: at generated token t lambda is 0.9 lambda + 0.1 exp(-decay t / 128).
            None: lambda is constant.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"states": "its rows leave at several depths"}
    target: Target
    exits: tuple[int, ...]
    threshold: float = 0.9
    decay: float | None = None

    def __post_init__(self) -> None:
        if not self.exits or list(self.exits) != sorted(set(self.exits)) or self.exits[0] < 1:
            raise RequestError(
                f"exits is {self.exits}: it must hold ascending depths of 1 and more"
            )
        if not self.threshold >= 0.0:
            raise RequestError(f"threshold is {self.threshold}: it must be at least 0")
        if self.decay is not None and not 0.0 <= self.decay < inf:
            raise RequestError(f"decay is {self.decay}: it must be none, or 0 and more")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        return 0

    def open_session(self, prompt: Sequence[int]) -> ConfidentSession:
        return ConfidentSession(self, self.target.open_session(prompt))

    def exit_threshold(self, t: int) -> float:
        """Lambda at generated token t (0 is the first)."""
        if self.decay is None:
            return self.threshold
        # The decaying threshold of the paper with N = 128: early tokens must be surer, as all later
        # ones read them.
        return 0.9 * self.threshold + 0.1 * exp(-self.decay * t / 128)


class ConfidentSession(DelegatingSession):
    """A session whose tokens leave the network at several depths.

    Args:
        how: The exits and the threshold.
        inner: The session of the complete model.
        done: Tokens committed since the prompt. Default 0.
    """

    _no_parts = "layers of a model that exits early cannot be chosen again"

    def __init__(self, how: EarlyExitTarget, inner: Session, done: int = 0) -> None:
        self._how = how
        self._inner = inner
        self._done = done
        self._scored: Draft | None = None

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> SwitchScores:
        """Score a draft; each node takes the law of the first exit that is sure of it.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            For each node the row of its exit.

        Raises:
            RequestError: A single depth is wanted.
        """
        if want.exits:
            raise RequestError(
                f"exits is {want.exits}: where tokens leave early, no depth can be looked at alone"
            )
        chosen: dict[int, DraftScores] = {}
        *early, last = self._how.exits
        for depth in early:
            # A part of the first layers computes only what no earlier part has computed of these
            # nodes.
            scores = await self._inner.open_part(range(depth)).score_draft(
                draft, replace(want, base=RowDetail.ROW)
            )
            for i in range(len(draft)):
                # The bar depends on the place of the token in the answer.
                if i not in chosen and _margin(scores.base, i) >= self._how.exit_threshold(
                    self._done + draft.depth[i]
                ):
                    chosen[i] = scores
            # Every node has left: the deeper layers wait until a later token needs them.
            if len(chosen) == len(draft):
                break
        else:
            # Nodes that no exit was sure of go through all layers.
            scores = await self._inner.open_part(range(last)).score_draft(draft, want)
        self._scored = draft
        return SwitchScores.by_node([chosen.get(i, scores) for i in range(len(draft))])

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._inner.commit_tokens(tokens)
        self._done += len(tokens)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last, and count what that commits.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.
        """
        left = self._inner.keep_nodes(nodes, root)
        # What is committed moves the bar of later tokens.
        if self._scored is not None:
            self._done += self._scored.depth[root]
        self._scored = left
        return left

    def rewind_tokens(self, n: int) -> None:
        self._inner.rewind_tokens(n)
        # A rewind may reach into the prompt, whose tokens are not counted.
        self._done = max(0, self._done - n)

    def fork(self, choice: int | None = None) -> ConfidentSession:
        twin = ConfidentSession(self._how, self._inner.fork(choice), self._done)
        twin._scored = self._scored
        return twin


def _margin(scores: DraftScores, i: int) -> float:
    # Of a vocabulary of one token the second probability is 0.
    logp = scores.likeliest_tokens(i, 2)[1]
    return exp(logp[0]) - (exp(logp[1]) if len(logp) > 1 else 0.0)
