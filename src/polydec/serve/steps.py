"""What each round of an answer did, for whoever looks at it: the draft tree, what was accepted of it, and when."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.core.scheduler import RequestPass
from polydec.core.trace import EditedEvent, TraceEvent
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.models.text.token_texts import token_text
from polydec.models.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class DecodingStep:
    """What made some tokens final.

    Attributes:
        at: When, by `time.perf_counter`.
        wrote: How many tokens.
        token: Of draft and verify the tree that was fed; node 0 is the last token before it.
        parent: The parent of each of its nodes.
        path: The nodes that were accepted.
        bonus: The target's own token after them, which the end of an answer may cut off.
    """

    at: float
    wrote: int
    token: tuple[int, ...] = ()
    parent: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    bonus: int | None = None


class StepObserver:
    """An observer of one request that keeps its steps until they are taken."""

    kinds = (EditedEvent, ProposedEvent, VerifiedEvent)

    def __init__(self) -> None:
        # By choice, as answers of one request run at the same time.
        self._draft: dict[int, ProposedEvent] = {}
        self._verdict: dict[int, VerifiedEvent] = {}
        self._done: dict[int, list[DecodingStep]] = {}

    def __call__(self, event: TraceEvent) -> None:
        match event:
            case ProposedEvent():
                self._draft[event.choice] = event
            case VerifiedEvent():
                self._verdict[event.choice] = event
            # An edit without tokens ends no round.
            case EditedEvent() if event.tokens:
                self._done.setdefault(event.choice, []).append(self._step(event))
            case _:
                pass

    def _step(self, event: EditedEvent) -> DecodingStep:
        now = time.perf_counter()
        wrote = len(event.tokens)
        # The edit ends a round: the draft and the verdict before it are that round's.
        draft = self._draft.pop(event.choice, None)
        verdict = self._verdict.pop(event.choice, None)
        # Methods that draft nothing report edits alone.
        if draft is None or verdict is None:
            return DecodingStep(now, wrote)
        return DecodingStep(now, wrote, draft.token, draft.parent, verdict.path, verdict.bonus)

    def take_steps(self, choice: int) -> tuple[DecodingStep, ...]:
        """Take the steps of an answer since the last call.

        Args:
            choice: Number of the answer's choice.

        Returns:
            The steps.
        """
        return tuple(self._done.pop(choice, ()))


def steps_json(text: Tokenizer, done: Sequence[DecodingStep], begin: float) -> list[dict[str, Any]]:
    """Write steps as JSON.

    Args:
        text: The model's tokenizer.
        done: The steps.
        begin: Time from which seconds are counted, by `time.perf_counter`.

    Returns:
        An object for each step.
    """
    out = list[dict[str, Any]]()
    for step in done:
        row: dict[str, Any] = {"seconds": step.at - begin, "wrote": step.wrote}
        if step.token:
            if step.bonus is None:
                bonus = None
            else:
                bonus = {"token": step.bonus, "text": token_text(text, step.bonus)}
            row |= {
                "token": step.token,
                "text": [token_text(text, t) for t in step.token],
                "parent": step.parent,
                "accepted": step.path,
                "bonus": bonus,
            }
        out.append(row)
    return out


def passes_json(
    done: Sequence[RequestPass], begin: float, names: Mapping[Any, str], target: object
) -> list[dict[str, Any]]:
    """Write passes as JSON. A client learns only what its own requests fed.

    Args:
        done: The passes.
        begin: Time from which seconds are counted, by `time.perf_counter`.
        names: Names of models.
        target: The model that the answer is decoded from; others draft for it.

    Returns:
        An object for each pass.
    """
    return [
        {
            "model": names.get(p.model, "?"),
            "target": p.model is target,
            "start": p.start - begin,
            "seconds": p.seconds,
            "positions": p.positions,
            # Only requests of the same salt are counted: a client may know nothing of the others.
            "of": p.salted_of,
            "queries": p.salted_queries,
        }
        for p in done
    ]
