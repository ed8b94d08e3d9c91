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
    """What plain decoding's law says of one token after the same text.

    Attributes:
        chance: Its probability.
        surprise: Minus the logarithm of it, nats; infinite where it is 0.
        entropy: What the law expects of the surprise, nats.
        variance: The variance of the surprise under the law.
        rank: Where the token stands among all tokens, the likeliest first, as a share of their
            weight, 0 to 1. It is drawn evenly within the token's own weight, so that tokens drawn
            from the law have even ranks.
        best: Minus the logarithm of the likeliest token's probability, nats.
        lean: How much more a draft's law q favours the token, by min(1, q / p), than it does draws
            of p; 0 where there is no draft.
        lean_variance: The variance of the lean under p; 0 where there is no draft.
        own: The token's log-probability under the model's own row, before any rule; NaN where it
            was not asked.
    """

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
    """The fate of a token under a law.

    Args:
        p_V: Probabilities of the law, float64, shape ``[V]``.
        token: The token's id.
        within: Where in the token's own weight its rank lies, 0 to 1.
        q_V: Probabilities of a draft's law, shape ``[V]``; None: there is none.

    Returns:
        The fate.
    """
    p = np.asarray(p_V, dtype=np.float64)
    p = p / p.sum()
    mine = float(p[token])
    # Tokens of equal probability stand in the order of their ids.
    above = float(p[p > mine].sum()) + float(p[:token][p[:token] == mine].sum())
    # 0 log 0 is 0: impossible tokens add nothing to entropy and variance.
    live = p[p > 0.0]
    surprises = -np.log(live)
    entropy = float((live * surprises).sum())
    return TokenFate(
        mine,
        float(-np.log(mine)) if mine > 0.0 else float("inf"),
        entropy,
        float((live * (surprises - entropy) ** 2).sum()),
        # Below 1, so that the last cell of a table is its largest index.
        min(1.0 - 1e-12, above + within * mine),
        float(-np.log(p.max())),
        *((0.0, 0.0) if q_V is None else _lean(p, np.asarray(q_V, dtype=np.float64), token)),
    )


def _lean(p: Any, q: Any, token: int) -> tuple[float, float]:
    """How far a token lies on the draft's side, and the variance of that under p."""
    # min(1, q / p): the share of a token's probability that a draft of q covers.
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
    """The fate of every token of some answers under a law.

    Args:
        target: Plain decoding's law, with the request's rules.
        prompt: Token ids of the prompt.
        texts: Token ids of each answer by choice; a law that draws uses that choice's stream.
        rng: Draws where in its own weight each token's rank lies.
        beside: A draft's law over the same vocabulary; None: there is none.
        own: Whether the model's own row is noted as well. Default false.

    Returns:
        Fates by choice, one a token.
    """
    out, want = (
        dict[int, list[TokenFate]](),
        ScoreRequest(base=RowDetail.ROW if own else RowDetail.NOTHING),
    )
    # The rules are applied here, not by the sessions of the shaped law.
    parts = [split_request_rules(law) for law in (target, beside) if law is not None]

    async def force_answer(sessions: Sequence[Session], choice: int, tokens: Sequence[int]) -> None:
        """Score one answer under every law and close its sessions.

        Args:
            sessions: One session a law, at the end of the prompt.
            choice: Number of the answer.
            tokens: Its token ids, at least one.
        """
        try:
            # The answer as one draft: row i is the law before token i.
            draft = Draft.chain_draft(prompt[-1], tokens[:-1])
            scores = [await session.score_draft(draft, want) for session in sessions]
            # A random place within the token's own weight makes ranks of discrete laws exactly
            # even.
            within = rng.random(len(tokens))
            laws = [
                told_by_hand(mine, tuple(of_choice(r, choice) for r in rules), prompt, tokens)
                for mine, (_, rules) in zip(scores, parts, strict=True)
            ]
            mine = [
                token_fate(p_V, x, w, *q_V)
                for x, w, p_V, *q_V in zip(tokens, within, *laws, strict=True)
            ]
            # The model's own law besides, before any rule.
            if own:
                base = scores[0].base
                mine = [
                    replace(f, own=base.token_logprobs(i, (x,))[0])
                    for i, (f, x) in enumerate(zip(mine, tokens))
                ]
            out[choice] = mine
        finally:
            for session in sessions:
                session.close()

    async def every_token() -> None:
        # The prompt is fed once for each law; answers fork from there.
        bases = [inner.open_session(prompt) for inner, _ in parts]
        try:
            for base in bases:
                await base.prefill_prompt(ScoreRequest())
            written = [(choice, tokens) for choice, tokens in texts.items() if tokens]
            # Some texts at a time, as each holds a cache.
            for at in range(0, len(written), TOGETHER):
                await gather_coroutines(
                    *(
                        force_answer([base.fork(c) for base in bases], c, tokens)
                        for c, tokens in written[at : at + TOGETHER]
                    )
                )
        finally:
            for base in bases:
                base.close()

    run_coroutines([every_token()])
    return {choice: out.get(choice, []) for choice in texts}


def split_request_rules(target: Target) -> tuple[Target, Shapers]:
    """A law without the rules of the request, and these rules."""
    if isinstance(target, ShapedTarget):
        return (target.target, target.shapers)
    return (target, ())


def told_by_hand(
    scores: DraftScores, rules: Shapers, prompt: Sequence[int], tokens: Sequence[int]
) -> Iterator[Any]:
    """The law before each token of an answer, with the rules applied step by step.

    The sessions that apply them in a request are among what is certified, so they are not used
    here.

    Args:
        scores: The model's rows along the answer.
        rules: The request's rules.
        prompt: Token ids of the prompt.
        tokens: Token ids of the answer.

    Yields:
        Probabilities, float64, shape ``[V]``, one row a token.
    """
    states = [rule.start_state(tuple(prompt)) for rule in rules]
    for i, token in enumerate(tokens):
        yield shaped_row_probabilities(scores, i, rules, states)
        states = [rule.next_state(state, token) for rule, state in zip(rules, states, strict=True)]


def shaped_row_probabilities(
    scores: DraftScores, i: int, rules: Shapers, states: Sequence[Any]
) -> Any:
    """The probabilities of one row after the rules.

    Args:
        scores: The model's rows.
        i: The row.
        rules: The request's rules, in order.
        states: The state of each rule after the text before the row.

    Returns:
        Probabilities, float64, shape ``[V]``.
    """
    if not rules:
        return float64_probabilities(scores.logprob_row(i)).cpu().numpy()
    # Rules are defined on the model's log-weights, not on normalised ones.
    logw_V = scores.log_weights(i)
    if logw_V.dtype != torch.float64:
        logw_V = logw_V.float()
    for rule, state in zip(rules, states, strict=True):
        logw_V = rule.shape_law(state, logw_V)
    return float64_probabilities(normalise_log_weights(logw_V)).cpu().numpy()


def is_possible_token(
    target: Target, prompt: Sequence[int], before: Sequence[int], token: int
) -> bool:
    """Whether a token that one shape of passes finds impossible has weight in another: with its
    text fed as a prompt.

    Args:
        target: Plain decoding's law, with the request's rules.
        prompt: Token ids of the prompt.
        before: Tokens of the answer before the token.
        token: The token's id.

    Returns:
        True where its probability is above 0.
    """
    text, (inner, rules) = (*prompt, *before), split_request_rules(target)
    states = [rule.start_state(tuple(prompt)) for rule in rules]
    for x in before:
        states = [rule.next_state(state, x) for rule, state in zip(rules, states, strict=True)]

    async def ask_once() -> float:
        session = inner.open_session(text)
        try:
            await session.prefill_prompt(ScoreRequest())
            scores = await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())
            return float(shaped_row_probabilities(scores, 0, rules, states)[token])
        finally:
            session.close()

    return run_coroutines([ask_once()])[0] > 0.0
