"""Where plain decoding's own law has the tokens that a method wrote: laws at shared prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from polydec.core.effects import gather_coroutines
from polydec.core.law import float64_probabilities, normalise_log_weights
from polydec.core.protocols import DraftScores, Session, Target, of_choice
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.laws.targets.shaped import ShapedTarget, Shapers

TOGETHER = 8
"""Texts that are scored in one pass: the rows of more would take much memory."""


@dataclass(frozen=True)
class TokenFate:
    """One token under plain decoding's law behind the same text. chance: its probability; surprise, entropy and variance: minus
    its logarithm, and what the law expects of that; rank: where it stands among all tokens, the likeliest first, as a share of
    their weight (drawn evenly within the token's own weight, so that tokens drawn from the law have even ranks); best: minus
    the logarithm of the likeliest token's probability. lean: how much more a draft's law q favours the token (by min(1, q / p))
    than it does draws of p, and lean_variance of that; both 0 where there is no draft. own: its log-probability under the
    model's own row, before any rule."""

    chance: float
    surprise: float
    entropy: float
    variance: float
    rank: float
    best: float
    lean: float = 0.0
    lean_variance: float = 0.0
    own: float = float("nan")


def token_fate(p_V: Any, token: int, within: float, q_V: Any = None) -> TokenFate:
    """A token's fate under a law of float64 probabilities. within: 0 to 1, where in the token's own weight its rank lies; q_V:
    a draft's law."""
    p = np.asarray(p_V, dtype=np.float64)
    p = p / p.sum()
    mine = float(p[token])
    above = float(p[p > mine].sum()) + float(p[:token][p[:token] == mine].sum())
    live = p[p > 0.0]
    surprises = -np.log(live)
    entropy = float((live * surprises).sum())
    return TokenFate(
        mine,
        float(-np.log(mine)) if mine > 0.0 else float("inf"),
        entropy,
        float((live * (surprises - entropy) ** 2).sum()),
        min(1.0 - 1e-12, above + within * mine),
        float(-np.log(p.max())),
        *((0.0, 0.0) if q_V is None else _lean(p, np.asarray(q_V, dtype=np.float64), token)),
    )


def _lean(p: Any, q: Any, token: int) -> tuple[float, float]:
    """How far a token lies on the draft's side, and the variance of that under p."""
    favour = np.minimum(1.0, q / np.maximum(p, 1e-300))
    mean = float((p * favour).sum())
    return float(favour[token]) - mean, float((p * (favour - mean) ** 2).sum())


def answer_token_fates(
    target: Target,
    prompt: Sequence[int],
    texts: Mapping[int, Sequence[int]],
    rng: np.random.Generator,
    beside: Target | None = None,
    own: bool = False,
) -> dict[int, list[TokenFate]]:
    """Of every token of these answers (by choice, whose stream a law that draws uses) its fate under `target`. beside:
    a draft's law, of the same vocabulary; own: note the model's own row too."""
    out, want = (
        dict[int, list[TokenFate]](),
        ScoreRequest(base=RowDetail.ROW if own else RowDetail.NOTHING),
    )
    parts = [split_request_rules(law) for law in (target, beside) if law is not None]

    async def force(sessions: Sequence[Session], choice: int, tokens: Sequence[int]) -> None:
        try:
            draft = Draft.chain(prompt[-1], tokens[:-1])
            scores = [await session.score(draft, want) for session in sessions]
            within = rng.random(len(tokens))
            laws = [
                told_by_hand(mine, tuple(of_choice(r, choice) for r in rules), prompt, tokens)
                for mine, (_, rules) in zip(scores, parts, strict=True)
            ]
            mine = [
                token_fate(p_V, x, w, *q_V)
                for x, w, p_V, *q_V in zip(tokens, within, *laws, strict=True)
            ]
            if own:
                base = scores[0].base
                mine = [
                    replace(f, own=base.logp(i, (x,))[0])
                    for i, (f, x) in enumerate(zip(mine, tokens))
                ]
            out[choice] = mine
        finally:
            for session in sessions:
                session.close()

    async def every() -> None:
        bases = [inner.open(prompt) for inner, _ in parts]
        try:
            for base in bases:
                await base.prefill(ScoreRequest())
            written = [(choice, tokens) for choice, tokens in texts.items() if tokens]
            for at in range(0, len(written), TOGETHER):
                await gather_coroutines(
                    *(
                        force([base.fork(c) for base in bases], c, tokens)
                        for c, tokens in written[at : at + TOGETHER]
                    )
                )
        finally:
            for base in bases:
                base.close()

    run_coroutines([every()])
    return {choice: out.get(choice, []) for choice in texts}


def split_request_rules(target: Target) -> tuple[Target, Shapers]:
    """A law without the rules of the request, and these rules."""
    if isinstance(target, ShapedTarget):
        return (target.target, target.shapers)
    return (target, ())


def told_by_hand(
    scores: DraftScores, rules: Shapers, prompt: Sequence[int], tokens: Sequence[int]
) -> Iterator[Any]:
    """The law behind each token of an answer, as float64 probabilities. The rules are told of the text here, token by token:
    the sessions that tell them in a request are among what is certified."""
    states = [rule.start(tuple(prompt)) for rule in rules]
    for i, token in enumerate(tokens):
        yield shaped_row_probabilities(scores, i, rules, states)
        states = [rule.step(state, token) for rule, state in zip(rules, states, strict=True)]


def shaped_row_probabilities(
    scores: DraftScores, i: int, rules: Shapers, states: Sequence[Any]
) -> Any:
    """Float64 probabilities of row i, bent by rules that know as much of the text."""
    if not rules:
        return float64_probabilities(scores.row(i)).cpu().numpy()
    logw_V = scores.weights(i)
    if logw_V.dtype != torch.float64:
        logw_V = logw_V.float()
    for rule, state in zip(rules, states, strict=True):
        logw_V = rule.shape(state, logw_V)
    return float64_probabilities(normalise_log_weights(logw_V)).cpu().numpy()


def is_possible_token(
    target: Target, prompt: Sequence[int], before: Sequence[int], token: int
) -> bool:
    """Whether a token that one shape of passes finds impossible has weight in another: behind its text fed as a prompt."""
    text, (inner, rules) = (*prompt, *before), split_request_rules(target)
    states = [rule.start(tuple(prompt)) for rule in rules]
    for x in before:
        states = [rule.step(state, x) for rule, state in zip(rules, states, strict=True)]

    async def ask() -> float:
        session = inner.open(text)
        try:
            await session.prefill(ScoreRequest())
            scores = await session.score(Draft.chain(text[-1]), ScoreRequest())
            return float(shaped_row_probabilities(scores, 0, rules, states)[token])
        finally:
            session.close()

    return run_coroutines([ask()])[0] > 0.0
