"""Constraints: every finished answer is valid, and the law that was drawn from is the model's under
the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polydec.api import generate
from polydec.core.law import normalise_log_weights
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.bench.places import TokenPlaceObserver
from polydec.lab.bench.trials import MethodTrial
from polydec.lab.bench.valid import is_valid_text
from polydec.laws.shapers.sampling import Sampling
from polydec.request.ask import plan_request

CLOSE = 1e-4
"""Nats by which two computations of one masked law may differ."""


@dataclass(frozen=True)
class ConstraintFindings:
    """What was found of answers under a constraint.

    Attributes:
        answers: Answers in all.
        finished: Answers that came to an end by themselves.
        valid: Finished answers that the constraint allows, by an independent judge.
        invalid: Finished answers that it does not allow.
        unjudged: Finished answers that no judge here can decide.
        rows: Laws that were computed again from the model's bare rows and the mask.
        apart: The largest difference of a log-probability, nats.
        outside: The largest weight that a law leaves outside its mask, 0 to 1.
        place: The first thing that is wrong, in words; "" where nothing is.
    """

    answers: int
    finished: int
    valid: int
    invalid: int
    unjudged: int
    rows: int
    apart: float
    outside: float
    place: str

    @property
    def verdict(self) -> str:
        if self.place:
            return "fault"
        return "keeps it"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def judge_constrained(trial: MethodTrial) -> ConstraintFindings:
    """Judge a method's answers under a constraint, and compute the laws of the first answer to each
    prompt again.

    Args:
        trial: The method, and its requests, which have a constraint; at temperature 0 each prompt
            has one answer.

    Returns:
        What was found over all prompts.
    """
    counts: dict[str, int] = dict.fromkeys(("answers", "finished", "yes", "no", "unknown"), 0)
    rows = 0
    furthest = 0.0
    outside = 0.0
    place = ""
    constraint = trial.request["constraint"]
    for at in range(len(trial.prompts)):
        watch = TokenPlaceObserver()
        ask = trial.ask_method(at, trial.seed, n=1 if trial.is_greedy else trial.samples)
        completion = generate(trial.lm, ask, on=watch)
        for choice, answer in enumerate(completion.choices):
            counts["answers"] += 1
            # An answer that was cut off at its length need not be complete.
            if answer.finish_reason != "stop":
                continue
            counts["finished"] += 1
            judged = is_valid_text(constraint, answer.text)
            counts[{True: "yes", False: "no", None: "unknown"}[judged]] += 1
            if judged is False and not place:
                wrong = (
                    f"a finished answer that the constraint does not allow, {answer.text[:80]!r}"
                )
                place = f"prompt {at + 1}, answer {choice}: {wrong}"
        # Other rules bend the law as well: then the model's row and the mask do not give it.
        if _is_bare(trial.sampling_rules):
            again = _again(trial, at, completion.choices[0].token_ids)
            for i, (gap, more) in enumerate(again):
                rows += 1
                furthest = max(furthest, gap)
                outside = max(outside, more)
                if (gap > CLOSE or more > 0.0) and not place:
                    where = watch.token_place(0, i)
                    place = f"prompt {at + 1}, token {i}: the masked law is {gap:.1e} nats off" + (
                        "" if where is None else f", {where}"
                    )
    return ConstraintFindings(
        counts["answers"],
        counts["finished"],
        counts["yes"],
        counts["no"],
        counts["unknown"],
        rows,
        furthest,
        outside,
        place,
    )


def _is_bare(sampling: Sampling) -> bool:
    """Whether a temperature is all that bends the model's law beside the mask."""
    return Sampling(temperature=sampling.temperature) == sampling


def _again(trial: MethodTrial, at: int, tokens: Sequence[int]) -> list[tuple[float, float]]:
    """Of every token's law under the constraint: how far its log-probabilities are from the model's
    own row, divided by the temperature, cut by the mask and normalised here; and what weight it has
    outside the mask. At temperature 0 both are of temperature 1."""
    warm = trial.at_temperature(1.0) if trial.is_greedy else trial
    # Plain decoding's target under the same constraint: its rows are what the method drew from.
    made = plan_request(trial.lm, warm.plain_trial.ask_method(at, trial.seed))
    decoder: Any = made.decoder
    vocab = trial.lm.checkpoint.lm.vocab
    # The language must know which tokens end an answer, as the request's own does.
    if trial.request.get("ignore_eos"):
        eos = frozenset[int]()
    else:
        eos = vocab.eos
    language = trial.request["constraint"].token_language(vocab, eos | made.request.stop_ids)

    async def ask_once() -> list[tuple[float, float]]:
        # The whole answer as one draft: row i is the law of token i.
        session = decoder.target.open_session(made.request.prompt)
        try:
            # The text is fed once more, to compare the law with the mask of each state.
            await session.prefill_prompt(ScoreRequest())
            draft = Draft.chain_draft(made.request.prompt[-1], tokens[:-1])
            scores = await session.score_draft(draft, ScoreRequest(base=ScoreRequest().law))
            out = list[tuple[float, float]]()
            state = language.start_state()
            for i, x in enumerate(tokens):
                mask_V = language.token_mask(state)
                own_V = scores.base.log_weights(i).double().cpu() / warm.sampling_rules.temperature
                want_V = normalise_log_weights(
                    own_V.masked_fill(~mask_V[: len(own_V)].cpu(), float("-inf"))
                ).numpy()
                got_V = normalise_log_weights(scores.log_weights(i).double().cpu()).numpy()
                # Very small probabilities differ by rounding alone: they are left out of the
                # comparison.
                live = np.isfinite(want_V) & (want_V > -30.0)
                # Weight on tokens that the mask forbids; it must be 0.
                stray = float(np.exp(got_V[~np.isfinite(want_V)]).sum())
                out.append((float(np.abs(got_V[live] - want_V[live]).max()), stray))
                state = language.next_state(state, x)
            return out
        finally:
            session.close()

    return run_coroutines([ask_once()])[0]
