"""A law that holds one text, so that a run can be made again without its model; and what becomes of it under other settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from polydec.base.errors import PolydecError
from polydec.core.decoder import answer_one
from polydec.core.delegating import Closed
from polydec.core.law import one_hot
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler
from polydec.core.trace import Event, Passed
from polydec.core.types import Draft, Vocab, Want
from polydec.drafting.costs import Costs
from polydec.families.ar.events import Proposed, Verified
from polydec.methods import registry
from polydec.methods.kit import Kit


@dataclass(frozen=True)
class Recorded:
    """An answer that was written: its prompt, its tokens, the size of the vocabulary and the ids that end an answer."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    size: int
    ends: frozenset[int]


@dataclass(frozen=True)
class Round:
    """A pass: its position, how many tokens were drafted, how many accepted."""

    position: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Told:
    """The law that goes on as a text went on, with certainty; behind anything else it is as at that place of the text."""

    text: tuple[int, ...]
    vocab: Vocab
    layers: int = 0

    def open(self, prompt: Sequence[int]) -> ToldSession:
        return ToldSession(self, len(prompt) - 1)

    def after(self, at: int) -> int:
        """The token behind position `at`."""
        return self.text[at + 1] if at + 1 < len(self.text) else self.text[-1]


class ToldSession(Closed):
    """A place in the text. at: of the pending root. There is no session below it, so nothing is passed on."""

    @property
    def peers(self) -> int:
        return 1

    def __init__(self, law: Told, at: int) -> None:
        self._law, self._at = law, at

    async def prefill(self, want: Want) -> ToldScores:
        first = 0 if want.prompt else max(0, self._at - 1)
        return ToldScores(self._law, [self._law.after(i) for i in range(first, self._at)])

    async def score(self, draft: Draft, want: Want) -> ToldScores:
        return ToldScores(self._law, [self._law.after(self._at + d) for d in draft.depth])

    def commit(self, tokens: Sequence[int]) -> None:
        self._at += len(tokens)

    def rewind(self, n: int) -> None:
        self._at -= n

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        raise PolydecError("a recorded text has one way to go on: a search cannot be replayed")

    def bend(self, draft: Draft, scores: Any) -> Any:
        return scores

    def fork(self, choice: int | None = None) -> ToldSession:
        return ToldSession(self._law, self._at)

    def _refusal(self, what: str) -> PolydecError:
        return PolydecError(f"a recorded text has no {what}: name a method that reads tokens alone")

    def evict(self) -> None:
        """There is nothing to give back."""

    def close(self) -> None:
        """Nor to close."""


class ToldScores:
    """One token a row."""

    hidden_NH = None

    def __init__(self, law: Told, tokens: Sequence[int]) -> None:
        self._law, self._tokens = law, tokens

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

    def exit(self, depth: int, nodes: Sequence[int]) -> ToldScores:
        raise PolydecError("a recorded text has no layers: name a method that reads tokens alone")

    @property
    def base(self) -> ToldScores:
        return self


@dataclass(frozen=True)
class Remade:
    """A run that was made again: its passes of the model, and how many passes of other models it took."""

    rounds: list[Round]
    others: int


def replayed(
    recorded: Recorded,
    method: str,
    options: Mapping[str, Any],
    draft: Target | None = None,
    costs: Costs | None = None,
) -> list[Round]:
    """The rounds of `remade`."""
    return remade(recorded, method, options, draft, costs).rounds


def remade(
    recorded: Recorded,
    method: str,
    options: Mapping[str, Any],
    draft: Target | None = None,
    costs: Costs | None = None,
) -> Remade:
    """The passes that a method would have taken to write this answer, its drafter at work as it would be, the model's part told
    from the record. It is what happens wherever the text is the same and the drafter reads nothing of the model but its tokens.

    draft: the draft model's law; costs: what the method was told of passes.
    Raises RequestError for a method that reads more."""
    law = Told((*recorded.prompt, *recorded.tokens), Vocab(recorded.size, recorded.ends))
    decoder, _ = registry.build(
        method, Kit(cast(Target, law), draft, measure=lambda: costs or Costs()), options
    )
    rounds, drafted = list[Round](), 0

    def on(event: Event) -> None:
        nonlocal drafted
        if isinstance(event, Proposed):
            drafted = len(event.token) - 1
        elif isinstance(event, Verified):
            rounds.append(Round(event.position, drafted, len(event.path)))

    request = Request(recorded.prompt, len(recorded.tokens), recorded.ends, ignore_eos=True)
    scheduler = Scheduler()
    task = scheduler.submit(answer_one(decoder, request, on=on))
    try:
        while scheduler.step() and task.error is None:
            pass
    finally:
        task.close()
    if task.error is not None:
        raise task.error
    return Remade(rounds, sum(u.passes for u in task.usage.values()))


def seconds(rounds: Sequence[Round], passes: Sequence[Passed], target: str) -> float | None:
    """What these rounds take by the clock of a record: a pass of so many rows the median of those that were recorded, between
    them a straight line; a drafted token what it took of other models. None where nothing of the target was recorded."""
    rows = defaultdict[int, list[float]](list)
    others = 0.0
    for p in passes:
        if p.model == target:
            rows[p.positions].append(p.seconds)
        else:
            others += p.seconds
    if not rows:
        return None
    at = sorted(rows)
    took = np.interp([r.drafted + 1 for r in rounds], at, [float(np.median(rows[n])) for n in at])
    fed = sum(n - 1 for n in at for _ in rows[n]) or 1
    return float(took.sum()) + others / fed * sum(r.drafted for r in rounds)
