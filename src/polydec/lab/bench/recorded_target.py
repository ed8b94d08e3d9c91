"""A law that holds one text, so that a run can be made again without its model; and what becomes of
it under other settings."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from polydec.base.errors import PolydecError
from polydec.core.decoder import answer_one
from polydec.core.delegating import LawsOnlySession
from polydec.core.law import one_hot
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import RequestPass, Scheduler
from polydec.core.trace import TraceEvent
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit, ModelArtefact
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer that was written.

    Attributes:
        prompt: Its prompt, token ids.
        tokens: Its own token ids.
        size: Size of the vocabulary.
        ends: Token ids that end an answer.
        company: Pairs (position, requests): from that position on so many requests shared a pass,
            in order; empty where it was alone.
        limit: How many tokens it might have had, which says how far its last drafts could reach; 0:
            as many as it has.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    size: int
    ends: frozenset[int]
    company: tuple[tuple[int, int], ...] = ()
    limit: int = 0

    @property
    def room(self) -> int:
        """The token limit of a replay: a text that no end token ended is cut where it was."""
        ended = bool(self.tokens) and self.tokens[-1] in self.ends
        if ended:
            # An end token stops the replay by itself; the limit then only bounds the last drafts.
            return max(self.limit, len(self.tokens))
        return len(self.tokens)


@dataclass(frozen=True)
class ReplayRound:
    """A pass of the model in a replay.

    Attributes:
        position: Tokens before it, those of the prompt included.
        drafted: Draft tokens that it verified.
        accepted: Draft tokens that it accepted.
    """

    position: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class RecordedTarget:
    """A law that continues as a recorded text did, with certainty.

    After any other text it gives the token that stands at that position of the recorded one.

    Attributes:
        text: Prompt and answer, token ids.
        vocab: The vocabulary.
        layers: 0: no part of the layers can run alone.
        company: As in `RecordedAnswer`.
    """

    text: tuple[int, ...]
    vocab: TokenVocabulary
    layers: int = 0
    company: tuple[tuple[int, int], ...] = ()

    def open_session(self, prompt: Sequence[int]) -> RecordedSession:
        return RecordedSession(self, len(prompt) - 1)

    def token_after(self, at: int) -> int:
        """The token that follows position `at`; the last one where the text has ended."""
        if at + 1 < len(self.text):
            return self.text[at + 1]
        # Drafts may reach beyond the recorded end. Any token will do there: the limit cuts it off.
        return self.text[-1]

    def peers_at(self, at: int) -> int:
        """How many requests shared the pass that wrote the token after position `at`."""
        # The last change of company at or before that position.
        before = bisect(self.company, at + 1, key=lambda since: since[0])
        if before:
            return max(1, self.company[before - 1][1])
        return 1


class RecordedSession(LawsOnlySession):
    """A position in the recorded text. No session lies below it, so nothing is delegated."""

    @property
    def peers(self) -> int:
        return self._law.peers_at(self._at)

    def __init__(self, law: RecordedTarget, at: int) -> None:
        """Start at a position.

        Args:
            law: The recorded text as a law.
            at: Position of the pending root.
        """
        self._law = law
        self._at = at

    async def prefill_prompt(self, want: ScoreRequest) -> RecordedScores:
        # Scores of every prompt token where they are wanted, else of the last one before the root.
        if want.prompt:
            first = 0
        else:
            first = max(0, self._at - 1)
        return RecordedScores(self._law, [self._law.token_after(i) for i in range(first, self._at)])

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> RecordedScores:
        """Score a draft: each node gets the recorded token at its position, whatever its path
        holds.

        Args:
            draft: The draft, its root the pending token.
            want: Unused: a recorded text has one law to give.

        Returns:
            One token a node.
        """
        # Node by node the token after its depth: all branches of a tree continue with the same
        # text.
        return RecordedScores(self._law, [self._law.token_after(self._at + d) for d in draft.depth])

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._at += len(tokens)

    def rewind_tokens(self, n: int) -> None:
        self._at -= n

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Refuse: a search keeps several branches, and a recorded text has one.

        Args:
            nodes: Nodes of the last draft that would stay.
            root: The node that would become the root. Default 0.

        Raises:
            PolydecError: Always.
        """
        raise PolydecError("a recorded text has one way to go on: a search cannot be replayed")

    def bend_scores(self, draft: Draft, scores: Any) -> Any:
        """The scores themselves: nothing shapes a recorded text.

        Args:
            draft: The draft that was scored.
            scores: Another law's rows at its nodes.

        Returns:
            `scores`.
        """
        return scores

    def fork(self, choice: int | None = None) -> RecordedSession:
        # A position is all the state there is.
        return RecordedSession(self._law, self._at)

    def _refusal(self, what: str) -> PolydecError:
        return PolydecError(f"a recorded text has no {what}: name a method that reads tokens alone")

    def evict_cache(self) -> None:
        """Do nothing: there are no cache entries."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class RecordedScores:
    """A law at every node of a draft that gives all probability to one token."""

    hidden_NH = None

    def __init__(self, law: RecordedTarget, tokens: Sequence[int]) -> None:
        self._law = law
        self._tokens = tokens

    def logprob_row(self, i: int) -> Tensor:
        return one_hot(self._tokens[i], torch.zeros(self._law.vocab.size))

    # Log-probabilities serve as log-weights: no rule bends them.
    log_weights = logprob_row

    def certain_token(self, i: int) -> int:
        return self._tokens[i]

    likeliest_token = certain_token

    def likeliest_tokens(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The certain token of a row, however many are asked for.

        Args:
            i: Row of the draft.
            k: How many tokens are wanted, at least 1.

        Returns:
            The token, and its log-probability 0.
        """
        return (self._tokens[i],), (0.0,)

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        """The certain tokens of several rows.

        Args:
            rows: Rows of the draft.
            k: How many tokens are wanted of each, at least 1.

        Returns:
            One token for each row.
        """
        return [[self._tokens[i]] for i in rows]

    def token_logprobs(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of some tokens of a row: 0 for the certain one, else minus infinity.

        Args:
            i: Row of the draft.
            tokens: Token ids.

        Returns:
            Nats, in the order of `tokens`.
        """
        return tuple(0.0 if x == self._tokens[i] else float("-inf") for x in tokens)

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> RecordedScores:
        """Refuse: a recorded text has no layers.

        Args:
            depth: Layers that would run.
            nodes: Nodes that would be scored.

        Raises:
            PolydecError: Always.
        """
        raise PolydecError("a recorded text has no layers: name a method that reads tokens alone")

    @property
    def base(self) -> RecordedScores:
        return self


@dataclass(frozen=True)
class ReplayRun:
    """A run that was replayed without its model.

    Attributes:
        rounds: Its passes of the model.
        others: How many passes of other models it took.
        seconds: Time of all else: a drafter without a model, and the loop around it.
    """

    rounds: list[ReplayRound]
    others: int
    seconds: float


def replay_rounds(
    recorded: RecordedAnswer,
    method: str,
    options: Mapping[str, Any],
    draft: Target | None = None,
    costs: PassCosts | None = None,
) -> list[ReplayRound]:
    """The rounds of `replay_run`.

    Args:
        recorded: The answer to be written again.
        method: Name of the method.
        options: Its options.
        draft: The draft model's law; None: there is none.
        costs: What the method is to know of the cost of passes; None: defaults.

    Returns:
        The passes of the model, in order.

    Raises:
        RequestError: The method reads more of the model than a record has.
    """
    return replay_run(recorded, method, options, draft, costs).rounds


def replay_run(
    recorded: RecordedAnswer,
    method: str,
    options: Mapping[str, Any],
    draft: Target | None = None,
    costs: PassCosts | None = None,
    artefacts: Sequence[ModelArtefact] = (),
) -> ReplayRun:
    """Replay an answer under a method: its drafter runs as it would, and the record plays the
    model's part.

    This is what happens wherever the text is the same and the drafter reads nothing of the model
    but its tokens.

    Args:
        recorded: The answer to be written again.
        method: Name of the method.
        options: Its options.
        draft: The draft model's law; None: there is none.
        costs: What the method is to know of the cost of passes; None: defaults.
        artefacts: What was trained for the model and reads tokens alone, such as a table of
            n-grams.

    Returns:
        The rounds, the passes of other models and the seconds of all else.

    Raises:
        RequestError: The method reads more of the model than a record has.
    """
    vocab = TokenVocabulary(recorded.size, recorded.ends)
    law = RecordedTarget((*recorded.prompt, *recorded.tokens), vocab, company=recorded.company)
    # The record stands in for the model; costs are what the method would have measured.
    decoder, _ = registry.build(
        method,
        Kit(cast(Target, law), draft, tuple(artefacts), measure=lambda: costs or PassCosts()),
        options,
    )
    rounds = list[ReplayRound]()
    drafted = 0

    def on_event(event: TraceEvent) -> None:
        nonlocal drafted
        # Node 0 of a draft is its root, the pending token.
        if isinstance(event, ProposedEvent):
            drafted = len(event.token) - 1
        elif isinstance(event, VerifiedEvent):
            rounds.append(ReplayRound(event.position, drafted, len(event.path)))

    # The end token of the record is a token like others here: the limit ends the replay.
    request = Request(recorded.prompt, recorded.room, recorded.ends, ignore_eos=True)
    scheduler = Scheduler()
    passes = list[RequestPass]()
    task = scheduler.submit_coroutine(answer_one(decoder, request, on=on_event))
    task.passes = passes
    begun = time.perf_counter()
    try:
        # An error of the replay ends it; closing the task releases its sessions in any case.
        while scheduler.step() and task.error is None:
            pass
    finally:
        task.close()
    if task.error is not None:
        raise task.error
    # What passes take is predicted elsewhere: here only the time between them counts.
    took = time.perf_counter() - begun - sum(p.seconds for p in passes)
    return ReplayRun(rounds, sum(u.passes for u in task.usage.values()), max(0.0, took))
