"""A law that holds one text, so that a run can be made again without its model; and what becomes of it under other settings."""

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
    """An answer that was written: its prompt, its tokens, the size of the vocabulary and the ids that end an answer.

    company: from which position on how many requests shared a pass, in order; nothing: it was alone; limit: how many tokens
    it might have had (0: as many as it has), which says how far its last drafts could reach."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    size: int
    ends: frozenset[int]
    company: tuple[tuple[int, int], ...] = ()
    limit: int = 0

    @property
    def room(self) -> int:
        """The limit of a run that is made again: a text that no token ended is cut where it was."""
        ended = bool(self.tokens) and self.tokens[-1] in self.ends
        if ended:
            return max(self.limit, len(self.tokens))
        return len(self.tokens)


@dataclass(frozen=True)
class ReplayRound:
    """A pass: its position, how many tokens were drafted, how many accepted."""

    position: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class RecordedTarget:
    """The law that goes on as a text went on, with certainty; behind anything else it is as at that place of the text."""

    text: tuple[int, ...]
    vocab: TokenVocabulary
    layers: int = 0
    company: tuple[tuple[int, int], ...] = ()

    def open(self, prompt: Sequence[int]) -> RecordedSession:
        return RecordedSession(self, len(prompt) - 1)

    def after(self, at: int) -> int:
        """The token behind position `at`."""
        if at + 1 < len(self.text):
            return self.text[at + 1]
        return self.text[-1]

    def peers(self, at: int) -> int:
        """How many requests shared the pass that wrote behind position `at`."""
        before = bisect(self.company, at + 1, key=lambda since: since[0])
        if before:
            return max(1, self.company[before - 1][1])
        return 1


class RecordedSession(LawsOnlySession):
    """A place in the text. at: of the pending root. There is no session below it, so nothing is passed on."""

    @property
    def peers(self) -> int:
        return self._law.peers(self._at)

    def __init__(self, law: RecordedTarget, at: int) -> None:
        self._law = law
        self._at = at

    async def prefill(self, want: ScoreRequest) -> RecordedScores:
        if want.prompt:
            first = 0
        else:
            first = max(0, self._at - 1)
        return RecordedScores(self._law, [self._law.after(i) for i in range(first, self._at)])

    async def score(self, draft: Draft, want: ScoreRequest) -> RecordedScores:
        return RecordedScores(self._law, [self._law.after(self._at + d) for d in draft.depth])

    def commit(self, tokens: Sequence[int]) -> None:
        self._at += len(tokens)

    def rewind(self, n: int) -> None:
        self._at -= n

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        raise PolydecError("a recorded text has one way to go on: a search cannot be replayed")

    def bend(self, draft: Draft, scores: Any) -> Any:
        return scores

    def fork(self, choice: int | None = None) -> RecordedSession:
        return RecordedSession(self._law, self._at)

    def _refusal(self, what: str) -> PolydecError:
        return PolydecError(f"a recorded text has no {what}: name a method that reads tokens alone")

    def evict(self) -> None:
        """There is nothing to give back."""

    def close(self) -> None:
        """Nor to close."""


class RecordedScores:
    """One token a row."""

    hidden_NH = None

    def __init__(self, law: RecordedTarget, tokens: Sequence[int]) -> None:
        self._law = law
        self._tokens = tokens

    def row(self, i: int) -> Tensor:
        return one_hot(self._tokens[i], torch.zeros(self._law.vocab.size))

    weights = row

    def certain(self, i: int) -> int:
        return self._tokens[i]

    argmax = certain

    def topk(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        return (self._tokens[i],), (0.0,)

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        return [[self._tokens[i]] for i in rows]

    def logp(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        return tuple(0.0 if x == self._tokens[i] else float("-inf") for x in tokens)

    def exit(self, depth: int, nodes: Sequence[int]) -> RecordedScores:
        raise PolydecError("a recorded text has no layers: name a method that reads tokens alone")

    @property
    def base(self) -> RecordedScores:
        return self


@dataclass(frozen=True)
class ReplayRun:
    """A run that was made again: its passes of the model, how many passes of other models it took, and seconds of all else that
    ran: a drafter without a model, and the loop around it."""

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
    """The rounds of `remade`."""
    return replay_run(recorded, method, options, draft, costs).rounds


def replay_run(
    recorded: RecordedAnswer,
    method: str,
    options: Mapping[str, Any],
    draft: Target | None = None,
    costs: PassCosts | None = None,
    artefacts: Sequence[ModelArtefact] = (),
) -> ReplayRun:
    """The passes that a method would have taken to write this answer, its drafter at work as it would be, the model's part told
    from the record. It is what happens wherever the text is the same and the drafter reads nothing of the model but its tokens.

    draft: the draft model's law; costs: what the method was told of passes; artefacts: what was trained for the model and
    reads tokens alone, such as a table of n-grams.
    Raises RequestError for a method that reads more."""
    vocab = TokenVocabulary(recorded.size, recorded.ends)
    law = RecordedTarget((*recorded.prompt, *recorded.tokens), vocab, company=recorded.company)
    decoder, _ = registry.build(
        method,
        Kit(cast(Target, law), draft, tuple(artefacts), measure=lambda: costs or PassCosts()),
        options,
    )
    rounds = list[ReplayRound]()
    drafted = 0

    def on(event: TraceEvent) -> None:
        nonlocal drafted
        if isinstance(event, ProposedEvent):
            drafted = len(event.token) - 1
        elif isinstance(event, VerifiedEvent):
            rounds.append(ReplayRound(event.position, drafted, len(event.path)))

    request = Request(recorded.prompt, recorded.room, recorded.ends, ignore_eos=True)
    scheduler = Scheduler()
    passes = list[RequestPass]()
    task = scheduler.submit(answer_one(decoder, request, on=on))
    task.passes = passes
    begun = time.perf_counter()
    try:
        while scheduler.step() and task.error is None:
            pass
    finally:
        task.close()
    if task.error is not None:
        raise task.error
    took = time.perf_counter() - begun - sum(p.seconds for p in passes)
    return ReplayRun(rounds, sum(u.passes for u in task.usage.values()), max(0.0, took))
