"""Searches and rollouts: what they say of their answers, computed again; and their ledger against
the passes that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polydec.api import generate
from polydec.base.errors import PolydecError
from polydec.core.decoder import answer_one
from polydec.core.protocols import Target
from polydec.core.request import Request, Result
from polydec.core.scheduler import RequestPass, run_coroutines
from polydec.lab.bench.forced import answer_token_fates
from polydec.lab.bench.trials import MethodTrial
from polydec.lab.testing.examples import SHAPERS, bend_target, example_decoder, target_draft_pairs
from polydec.laws.targets.search_target import drop_greedy_rule
from polydec.methods.search.loop.arbitrage import ArbitrageSearch
from polydec.request.ask import plan_request

CLOSE = 2e-3
"""Nats a token by which a score computed again may differ: passes of other shapes round otherwise.
"""


def _mean_power(total: float, length: int, options: Mapping[str, Any]) -> float:
    return total / length ** float(options["length_penalty"])


def _total(total: float, length: int, options: Mapping[str, Any]) -> float:
    return total


SCORES: Mapping[str, Callable[[float, int, Mapping[str, Any]], float]] = {
    "beam": _mean_power,
    "exact-extract": _total,
}
"""What a method's score is, of a text's summed log-probabilities and its length."""


@dataclass(frozen=True)
class SearchAudit:
    """What an audit of a search's answers has found.

    Attributes:
        answers: How many answers were audited.
        scored: Scores that were computed again.
        logprobs: Log-probabilities of tokens that were computed again.
        apart: The largest difference a token, of a score or of a reported log-probability, nats.
        booked: Passes and positions by the method's own counts.
        ran: Passes and positions by the scheduler's record.
        place: The first thing that is wrong, in words; "" where nothing is.
    """

    answers: int
    scored: int
    logprobs: int
    apart: float
    booked: Mapping[str, int]
    ran: Mapping[str, int]
    place: str

    @property
    def verdict(self) -> str:
        if self.place:
            return "fault"
        return "keeps it"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def audit_search(trial: MethodTrial) -> SearchAudit:
    """Audit one answer to each prompt.

    Scores are computed again where their definition is known (`SCORES`), the log-probabilities of
    the answer's tokens wherever the method reports them, the counts of passes and positions always.

    Args:
        trial: A search or rollout method, and its requests.

    Returns:
        What was found over all prompts.
    """
    answers = scored = noted = 0
    furthest = 0.0
    place = ""
    booked: dict[str, int] = {"passes": 0, "positions": 0}
    ran = dict(booked)
    lm = trial.lm
    for at in range(len(trial.prompts)):
        passes = list[RequestPass]()
        # How much was shared before, as shared positions are not fed.
        shared = lm.checkpoint.lm.shared
        asked = trial.ask_method(at, trial.seed, logprobs=0)
        completion = generate(lm, asked, passes=passes)
        answers += 1
        # The plain method gives the law that log-probabilities are compared with.
        made = plan_request(lm, trial.plain_trial.ask_method(at, trial.seed))
        plain: Any = made.decoder
        answer = completion.choices[0]
        # Ranks are not used here, so the generator does not matter.
        rng = np.random.default_rng(0)
        searching = plan_request(lm, trial.ask_method(at, trial.seed)).decoder
        # A search scores by the law before the argmax; some steps may be another model's.
        laws = [drop_greedy_rule(plain.target), *_second_law(searching)]
        mine, *others = (
            answer_token_fates(law, made.request.prompt, {0: answer.token_ids}, rng)[0]
            for law in laws
        )
        total = -sum(f.surprise for f in mine)
        length = max(1, len(mine))
        own = [t for t in answer.logprobs or () if t.logp < 0.0]
        if own and len(own) == len(mine):
            noted += len(own)
            # A token may come from either law: the nearer one counts.
            gaps = [
                min(abs(t.logp + f.surprise) for f in by_law)
                for t, *by_law in zip(own, mine, *others, strict=True)
            ]
            furthest = max(furthest, *gaps)
            wrong = next((i for i, gap in enumerate(gaps) if gap > CLOSE * 10), None)
            if wrong is not None and not place:
                place = (
                    f"prompt {at + 1}, token {wrong}: its log-probability is {gaps[wrong]:.1e} off"
                )
        # The score is defined on the text's total log-probability, which was computed above.
        define = SCORES.get(completion.method["name"])
        if define is not None and answer.score is not None:
            scored += 1
            right = define(total, length, completion.method["options"])
            # Scaled to nats a token: |score / total| * length undoes the method's own
            # normalisation.
            gap = abs(answer.score - right) / max(1.0, abs(right) / abs(total or 1.0) * length)
            furthest = max(furthest, gap)
            if gap > CLOSE and not place:
                place = (
                    f"prompt {at + 1}: the score is {answer.score:.4f}, computed again {right:.4f}"
                )
        # Passes of draft models have counts of their own.
        mine_of = [p for p in passes if p.model is lm.network]
        metrics = completion.metrics
        books = {
            "passes": int(metrics["target_passes"]),
            "positions": int(metrics["positions_fed"]),
        }
        real = {"passes": len(mine_of), "positions": sum(p.positions for p in mine_of)}
        booked = {k: booked[k] + books[k] for k in booked}
        ran = {k: ran[k] + real[k] for k in ran}
        # Positions that another text's cache held were scored without being fed.
        read = real["positions"] + lm.checkpoint.lm.shared - shared
        place = place or _ledger(at, books, real, metrics, len(answer.token_ids), read)
    return SearchAudit(answers, scored, noted, furthest, booked, ran, place)


# On toys, where a text soon says a token again: rules that missed one show whatever is asked of the model

TOYS = 16
"""Random laws of three or four tokens, in every second one of them an answer does not end before
its longest."""
LONG = 8
"""Tokens of an answer at most."""
EXACT = 1e-6
"""Nats a token that a toy's arithmetic may leave."""
PROMPT = (0, 1, 0)


@dataclass(frozen=True)
class ToyAudit:
    """What an audit on toy laws has found.

    Attributes:
        laws: Toy laws that were used.
        tokens: Tokens whose log-probability was computed again.
        apart: The largest difference, nats.
        place: The first thing that is wrong, in words; "" where nothing is.
        unknown: Why the method cannot run on a toy; "" where it did.
    """

    laws: int
    tokens: int
    apart: float
    place: str = ""
    unknown: str = ""

    @property
    def verdict(self) -> str:
        if self.place:
            return "fault"
        return "keeps it"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def on_toys(method: str, options: Mapping[str, Any]) -> ToyAudit:
    """Audit a method's reported log-probabilities on random toy laws under penalties, a temperature
    and top-p.

    Args:
        method: Name of the method.
        options: Its options.

    Returns:
        What was found; the audit ends at the first law that is off.
    """
    laws = 0
    tokens = 0
    furthest = 0.0
    why = ""
    for i, models in enumerate(target_draft_pairs(TOYS), 1):
        target, draft = (bend_target(model, SHAPERS["shaped"]) for model in models)
        # Every second answer runs to its longest, where penalties have the most text to count.
        request = Request(PROMPT, LONG, logprobs=0, ignore_eos=i % 2 == 0)
        try:
            made = example_decoder(method, target, draft, options)
            answer = run_coroutines([answer_one(made, request)])[0]
        # A method may refuse a toy, such as one without a second tokenizer.
        except PolydecError as error:
            why = str(error)
            continue
        laws += 1
        gaps = _gaps(answer, (target, *_second_law(made)))
        tokens = tokens + len(gaps)
        furthest = max((furthest, *gaps))
        wrong = next((at for at, gap in enumerate(gaps) if gap > EXACT), None)
        if wrong is not None:
            wrong_at = f"toy law {i}, token {wrong}: its log-probability is {gaps[wrong]:.1e} off"
            return ToyAudit(laws, tokens, furthest, wrong_at)
    # No law at all is told as unknown, not as right.
    return ToyAudit(laws, tokens, furthest, unknown="" if laws else why)


def _second_law(decoder: Any) -> tuple[Target, ...]:
    """The law of the model that writes some steps in the target's place: there a token may be of
    either."""
    if isinstance(decoder, ArbitrageSearch):
        return (decoder.small.target,)
    return ()


def _gaps(answer: Result, laws: Sequence[Target]) -> list[float]:
    """By how many nats each token's log-probability differs from that of the nearest of these laws;
    none where the method tells none."""
    told = answer.logprobs or ()
    rng = np.random.default_rng(0)
    if len(told) != len(answer.token_ids):
        return []
    by_law = [answer_token_fates(law, PROMPT, {0: answer.token_ids}, rng)[0] for law in laws]
    return [
        # Two infinities of one sign are equal, but their difference is not a number.
        min(0.0 if t.logp == -f.surprise else abs(t.logp + f.surprise) for f in mine)
        for t, *mine in zip(told, *by_law, strict=True)
    ]


def _ledger(
    at: int,
    books: Mapping[str, int],
    real: Mapping[str, int],
    metrics: Mapping[str, Any],
    length: int,
    read: int,
) -> str:
    """What in a ledger cannot be; nothing: "". read: positions that were fed, and those of further
    prompts that another text's cache held."""
    if books["positions"] != real["positions"]:
        return f"prompt {at + 1}: {books['positions']} positions are booked and {real['positions']} were fed"
    if books["passes"] > real["passes"]:
        return f"prompt {at + 1}: {books['passes']} passes are booked and {real['passes']} ran"
    # A search writes at least the tokens of its answer, and scores no more than it has read.
    written = metrics.get("tokens_written")
    if written is not None and written < length:
        return f"prompt {at + 1}: {written} tokens are booked as written and the answer alone has {length}"
    scored = metrics.get("tokens_scored")
    if scored is not None and scored > read:
        return f"prompt {at + 1}: {scored} tokens are booked as scored and {read} positions were fed or shared"
    return ""
