"""How far an approximate method is from the law that it was asked for: by position, with intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polydec.core.law import float64_probabilities
from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, Exactness, ScoreRequest
from polydec.lab.bench.forced import TokenFate, token_fate
from polydec.lab.bench.intervals import wilson_interval
from polydec.lab.bench.sampled_laws import (
    ALARM,
    CELLS,
    LawTest,
    SampledToken,
    describe_sampled_token,
    draw_texts,
    run_law_tests,
)
from polydec.lab.bench.shapes import target_before_argmax
from polydec.lab.bench.trials import MethodTrial
from polydec.request.ask import plan_request

DRAWS = 400
"""Resamples, whole texts at a time, behind each interval."""
LEVEL = (2.5, 97.5)
TIE = 1e-3
"""Nats within which two tokens of a method's own law may change places by rounding."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class LawDistance:
    """How far a method is from plain decoding's law at some positions of the answers, each figure
    with its 95 % interval.

    Where the method's own law is known, `kl` and `tv` are of the laws (from plain decoding's to the
    method's). Where only its texts are known, they are of cells of equal weight, and the true
    values are at least as large.

    Attributes:
        first: The first position.
        last: The last position.
        tokens: Tokens at these positions.
        kl: KL divergence of a token, nats; None where it cannot be known.
        kl_interval: Its interval; None likewise.
        tv: Total variation of a token, 0 to 1.
        tv_interval: Its interval.
        surprise: By how many nats a token is less likely than plain decoding's law expects of a
            draw (greedy: than its likeliest token).
        surprise_interval: Its interval.
    """

    first: int
    last: int
    tokens: int
    kl: float | None
    kl_interval: Interval | None
    tv: float
    tv_interval: Interval
    surprise: float
    surprise_interval: Interval


@dataclass(frozen=True)
class LawDistances:
    """How far a method is from plain decoding's law, by position.

    Attributes:
        by: What it was measured on: "laws", "samples" (a lower bound) or "greedy texts".
        tokens: Tokens in all.
        texts: Texts in all.
        all: Over every position.
        positions: Over some positions each.
        own: Tests of the texts against the law that the method decodes in the target's place, where
            it is known: to that one it must keep.
        place: Where it does not keep to it, in words; "" elsewhere.
    """

    by: str
    tokens: int
    texts: int
    all: LawDistance
    positions: tuple[LawDistance, ...]
    own: tuple[LawTest, ...] = ()
    place: str = ""

    @property
    def verdict(self) -> str:
        if self.place:
            return "fault"
        return "measured"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LawPairDistance:
    """One token's distance between both laws.

    Attributes:
        kl: KL divergence of plain decoding's law to the method's, nats.
        tv: Total variation, 0 to 1.
        own: The token's fate under the method's own law.
    """

    kl: float
    tv: float
    own: TokenFate


def measure_law_distances(trial: MethodTrial) -> LawDistances:
    """Measure how far the texts of a method are from plain decoding's law.

    Args:
        trial: The method, and the requests for its texts; at temperature 0 each prompt has one.

    Returns:
        The distances over all positions and by position.
    """
    greedy = trial.is_greedy
    # At temperature 0 the laws before the argmax are compared: after it they have one token each.
    if greedy:
        # A greedy text has no chance in it: one sample says all.
        ours = draw_texts(replace(trial, samples=1), law=target_before_argmax)
    else:
        ours = draw_texts(trial)
    rows = _rows(trial, ours.texts)
    # What can be compared depends on the method: laws where it shows them, else texts.
    if rows:
        by = "laws"
    elif greedy:
        by = "greedy texts"
    else:
        by = "samples"

    def distance_between(tokens: Sequence[SampledToken], first: int, last: int) -> LawDistance:
        """The distance at the positions from `first` to `last`.

        Args:
            tokens: All tokens.
            first: The first position.
            last: The last position, included.

        Returns:
            Their distance.
        """
        mine = [d for d in tokens if first <= d.at <= last]
        return law_distance(mine, first, last, greedy, rows)

    spans = [(a, b) for a, b in _spans(max((d.at for d in ours.drawn), default=0))]
    parts = [distance_between(ours.drawn, a, b) for a, b in spans]
    # The same tokens under the method's own law, where it has one.
    mine = [replace(d, fate=rows[_key(d)].own) for d in ours.drawn if rows]
    own, place = _kept(mine, greedy)
    return LawDistances(
        by,
        len(ours.drawn),
        len(ours.texts),
        distance_between(ours.drawn, 0, 1 << 30),
        tuple(p for p in parts if p.tokens),
        own,
        place,
    )


def _kept(mine: Sequence[SampledToken], greedy: bool) -> tuple[tuple[LawTest, ...], str]:
    """Whether these tokens follow the law that their fates are of: the tests, and the place of a
    fault."""
    off = [
        d for d in mine if d.fate.chance <= 0.0 or (greedy and d.fate.surprise > d.fate.best + TIE)
    ]
    if greedy or not mine:
        results = []
    else:
        results = run_law_tests(mine)
    # An impossible token is a proof, where tests are evidence only.
    if off:
        if not greedy:
            what = "a token that its own law makes impossible"
        else:
            what = "not its own law's choice"
        return tuple(results), f"{describe_sampled_token(off[0])}: {what}"
    worst = min(results, key=lambda t: t.p, default=None)
    # The tests share one chance of a false alarm.
    alarm = worst is not None and worst.p < ALARM / len(results)
    return tuple(
        results
    ), f"against its own law, {worst.name}: {worst.where}" if worst and alarm else ""


def _spans(last: int) -> list[tuple[int, int]]:
    """Positions 0, 1, 2-3, 4-7, 8-15 and so on."""
    out = [(0, 0)]
    while out[-1][1] < last:
        begin = out[-1][1] + 1
        out.append((begin, 2 * begin - 1))
    return out


def law_distance(
    drawn: Sequence[SampledToken],
    first: int,
    last: int,
    greedy: bool,
    rows: Mapping[tuple[int, int, int, int], LawPairDistance],
) -> LawDistance:
    """Sum up tokens at some positions, with intervals over texts.

    Args:
        drawn: The tokens.
        first: The first position.
        last: The last position; cut to the last one that has a token.
        greedy: Whether the texts are of temperature 0.
        rows: Distances of the two laws by prompt, seed, choice and place; empty where the method's
            law is not known.

    Returns:
        The distance; without tokens all zeros, with the widest interval of total variation.
    """
    last = min(last, max((d.at for d in drawn), default=first))
    # Texts are resampled as wholes: tokens of one text depend on each other.
    groups = defaultdict[tuple[int, int, int], list[SampledToken]](list)
    for d in drawn:
        groups[d.prompt, d.seed, d.choice].append(d)
    texts = list(groups.values())
    if not texts:
        return LawDistance(first, last, 0, None, None, 0.0, (0.0, 1.0), 0.0, (0.0, 0.0))

    def token_surprise(tokens: Sequence[SampledToken]) -> float:
        return float(np.mean([_shift(d.fate, greedy) for d in tokens]))

    # The surprise can be measured for every method, whatever is known of its law.
    shift, shift_interval = _interval(texts, token_surprise)
    if rows:
        kl, kl_i = _interval(
            texts, lambda tokens: float(np.mean([rows[_key(d)].kl for d in tokens]))
        )
        tv, tv_i = _interval(
            texts, lambda tokens: float(np.mean([rows[_key(d)].tv for d in tokens]))
        )
        return LawDistance(first, last, len(drawn), kl, kl_i, tv, tv_i, shift, shift_interval)
    if greedy:
        # Without a law of its own: the share of tokens that are not plain decoding's choice.
        other = sum(d.fate.surprise > d.fate.best + 1e-9 for d in drawn)
        tv = other / len(drawn)
        tv_i = wilson_interval(other, len(drawn))
        return LawDistance(first, last, len(drawn), None, None, tv, tv_i, shift, shift_interval)
    kl, kl_i = _interval(texts, lambda tokens: _cells(tokens)[0])
    tv, tv_i = _interval(texts, lambda tokens: _cells(tokens)[1])
    return LawDistance(first, last, len(drawn), kl, kl_i, tv, tv_i, shift, shift_interval)


def _key(d: SampledToken) -> tuple[int, int, int, int]:
    return d.prompt, d.seed, d.choice, d.at


def _shift(fate: TokenFate, greedy: bool) -> float:
    # An impossible token has infinite surprise: 50 nats keep the mean finite.
    return min(fate.surprise, 50.0) - (fate.best if greedy else fate.entropy)


def _cells(tokens: Sequence[SampledToken]) -> tuple[float, float]:
    """KL and total variation between where the tokens stand in the law and an even spread, less
    what chance alone makes of as many (Miller and Madow's term, and the mean of a multinomial's).
    """
    n = len(tokens)
    cells = min(CELLS, max(2, len(tokens) // 5))
    share = np.bincount([int(d.fate.rank * cells) for d in tokens], minlength=cells) / n
    live = share[share > 0.0]
    # Miller and Madow: chance alone adds (cells - 1) / 2n to the plug-in divergence.
    kl = float((live * np.log(live * cells)).sum()) - (cells - 1) / (2 * n)
    tv = float(np.abs(share - 1 / cells).sum()) / 2
    # The mean total variation of as many even draws: sqrt(2 / pi) of a cell's standard deviation.
    chance = cells * np.sqrt((1 / cells) * (1 - 1 / cells) * 2 / (np.pi * n)) / 2
    return max(0.0, kl), float(max(0.0, tv**2 - chance**2) ** 0.5)


def _interval(
    texts: Sequence[Sequence[SampledToken]], figure: Callable[[Sequence[SampledToken]], float]
) -> tuple[float, Interval]:
    """The figure of all texts, and its interval over resampled ones."""
    rng = np.random.default_rng(0)
    value = figure([d for text in texts for d in text])
    resampled = [
        figure([d for i in rng.integers(0, len(texts), len(texts)) for d in texts[i]])
        for _ in range(DRAWS if len(texts) > 1 else 0)
    ]
    if not resampled:
        return value, (value, value)
    low, high = np.percentile(resampled, LEVEL)
    # The interval holds the figure itself even where resampling is biased.
    return value, (min(value, float(low)), max(value, float(high)))


def _rows(
    trial: MethodTrial, texts: Mapping[tuple[int, int, int], tuple[int, ...]]
) -> dict[tuple[int, int, int, int], LawPairDistance]:
    """Of every token of these texts the distance of plain decoding's law and the method's own
    there; none where the method has no law of its own: its verifier, or a search, is what departs.
    Of greedy texts they are the laws before the last step, which takes the likeliest token: those
    of temperature 1."""
    out = dict[tuple[int, int, int, int], LawPairDistance]()
    rng = np.random.default_rng(1)
    # A greedy request is compared at temperature 1: there its laws are the model's own.
    warm = trial.at_temperature(1.0) if trial.is_greedy else trial
    groups = defaultdict[tuple[int, int], dict[int, tuple[int, ...]]](dict)
    for (prompt, seed, choice), tokens in texts.items():
        groups[prompt, seed][choice] = tokens
    for (prompt, seed), written in groups.items():
        made: list[Any] = [
            plan_request(trial.lm, side.ask_method(prompt, seed))
            for side in (warm.plain_trial, warm)
        ]
        # Its verifier, or a search, departs from the target's law: there is no law to compare with.
        if not _keeps_its_law(made[1].decoder):
            return {}
        laws = [m.decoder.target for m in made]
        ids = made[0].request.prompt
        p_CNV, q_CNV = (
            run_coroutines([_forced(law, ids, c, x) for c, x in written.items()]) for law in laws
        )
        # p: plain decoding's rows, q: the method's, both along the same text.
        for (choice, tokens), p_NV, q_NV in zip(written.items(), p_CNV, q_CNV, strict=True):
            for at, (p_V, q_V) in enumerate(zip(p_NV, q_NV, strict=True)):
                live = p_V > 0.0
                # KL(p || q) over the tokens that p allows; q is bounded from below, so it stays
                # finite.
                ratio = np.log(p_V[live]) - np.log(np.maximum(q_V[live], 1e-30))
                out[prompt, seed, choice, at] = LawPairDistance(
                    max(0.0, float((p_V[live] * ratio).sum())),
                    float(np.abs(p_V - q_V).sum()) / 2,
                    token_fate(q_V, tokens[at], rng.random()),
                )
    return out


def _keeps_its_law(decoder: Any) -> bool:
    """Whether a decoder puts another law in the target's place and draws from that one exactly."""
    verifier = getattr(decoder, "verifier", None)
    departs = getattr(decoder, "law", Exactness.LAW) is not Exactness.LAW
    return departs and getattr(verifier, "exactness", None) is Exactness.LAW


async def _forced(target: Target, prompt: Sequence[int], choice: int, tokens: Sequence[int]) -> Any:
    """The law's rows behind a text, token by token as it is written: a law may depend on how it is
    fed."""
    base = target.open_session(prompt)
    session = None
    try:
        await base.prefill_prompt(ScoreRequest())
        session = base.fork(choice)
        out = list[Any]()
        root = prompt[-1]
        # One token a pass, as it was written: the rows are copied, since a session may reuse them.
        for x in tokens:
            scores = await session.score_draft(Draft.chain_draft(root), ScoreRequest())
            out.append(float64_probabilities(scores.logprob_row(0)).numpy().copy())
            session.commit_tokens((root,))
            root = x
        return out
    finally:
        if session is not None:
            session.close()
        base.close()
