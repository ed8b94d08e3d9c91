"""Does a method that draws keep the target's law, on the real model? By laws at shared prefixes and
by seeds, with what the tests would have caught."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np

from polydec.api import Engine, LoadedModel
from polydec.core.protocols import Target
from polydec.core.request import TokenLogprob
from polydec.lab.bench.certificate import content_digest
from polydec.lab.bench.chance import (
    NORMAL,
    as_often,
    chi_square_noncentrality,
    chi_square_tail,
    two_sided,
)
from polydec.lab.bench.forced import TokenFate, answer_token_fates, is_possible_token
from polydec.lab.bench.places import TokenPlace, TokenPlaceObserver
from polydec.lab.bench.trials import MethodTrial
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.family import AUTOREGRESSIVE
from polydec.methods.registry.kit import DRAFT
from polydec.request.ask import plan_request

ALARM = 1e-6
"""The chance of a false alarm of all tests of a certificate together."""
POWER = 0.9
"""The chance with which a fault of the stated size is caught."""
CELLS = 16
"""Cells of equal weight into which a law's tokens are parted, the likeliest first."""
OTHERS = 1_000_003
"""Added to a seed for the draws of plain decoding that a method's are held against."""
SHUFFLES = 400


@dataclass(frozen=True)
class SampledToken:
    """A token that a method drew.

    Attributes:
        prompt: Number of its prompt, from 0.
        seed: Seed of its answer.
        choice: Number of its answer under that seed.
        at: Its place in the answer, from 0.
        token: Its id.
        place: The pass that wrote it; None where the trace does not say.
        fate: What plain decoding's law says of it.
        before: Tokens of the answer before it.
        told: What the method itself says of its log-probability; None where it was not asked.
    """

    prompt: int
    seed: int
    choice: int
    at: int
    token: int
    place: TokenPlace | None
    fate: TokenFate
    before: tuple[int, ...]
    told: TokenLogprob | None = None


@dataclass(frozen=True)
class LawTest:
    """The result of one test of a law.

    Attributes:
        name: What it looks at.
        p: The probability of a result as far off where the law is kept.
        off: The deviation; in units of its own noise where it is a z.
        where: The place at which it is largest, in words.
    """

    name: str
    p: float
    off: float
    where: str = ""


@dataclass(frozen=True)
class DetectionPower:
    """What the tests would have caught with probability 0.9; each 1 where nothing could be caught.

    Attributes:
        temperature: A temperature that is off by this share.
        likeliest: This share of tokens written as the likeliest one in place of a draw.
        variation: Any law whose cells of equal weight are off by this total variation.
    """

    temperature: float
    likeliest: float
    variation: float

    def __str__(self) -> str:
        return (
            f"a temperature off by {self.temperature:.1%}, {self.likeliest:.1%} of tokens the likeliest in place of a draw, "
            f"or any law {self.variation:.1%} off (total variation of {CELLS} cells)"
        )


@dataclass(frozen=True)
class MethodSample:
    """What one side drew.

    Attributes:
        drawn: Its tokens.
        passes: Passes that it took.
        positions: Positions that were fed.
        seconds: Seconds in models.
        texts: Token ids by prompt, seed and choice.
    """

    drawn: tuple[SampledToken, ...]
    passes: int
    positions: int
    seconds: float
    texts: Mapping[tuple[int, int, int], tuple[int, ...]] = field(repr=False)

    @property
    def cost(self) -> dict[str, float]:
        return {"passes": self.passes, "positions": self.positions, "seconds": self.seconds}


@dataclass(frozen=True)
class SamplingFindings:
    """What the tests of a method's draws come to.

    Attributes:
        verdict: "keeps it", "near-tie" or "fault".
        place: The test that alarms and where, in words; "" where none does.
        tests: The tests of the method's draws.
        control: The same tests of plain decoding's own draws.
        power: What the tests would have caught.
        tokens: Tokens that were tested.
        texts: Texts that were drawn.
        digest: A digest of the method's texts, for whoever repeats the test.
        cost: Passes, positions and seconds of each side.
    """

    verdict: str
    place: str
    tests: tuple[LawTest, ...]
    control: tuple[LawTest, ...]
    power: DetectionPower
    tokens: int
    texts: int
    digest: str
    cost: Mapping[str, Mapping[str, float]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def draw_texts(
    trial: MethodTrial, *, law: Callable[[Target], Target] | None = None, told: bool = False
) -> MethodSample:
    """Draw texts by a method, and compute the fate of each token under plain decoding's law of the
    same request.

    Texts are spread over seeds and decoded together.

    Args:
        trial: The method, and the requests for its texts.
        law: Applied to plain decoding's law before fates are computed; None: the law itself.
        told: Whether the method is asked for log-probabilities as well. Default false.

    Returns:
        The tokens with their fates, and what they cost.
    """
    asked: dict[str, Any] = {"logprobs": 0} if told else {}
    # First stage: all texts of all prompts and seeds in one engine, where they share passes.
    engine = Engine(trial.lm)
    jobs = list[tuple[int, int, Any, TokenPlaceObserver]]()
    # All requests are submitted before any runs, so that they share passes.
    for at, seed, n in trial.sample_requests():
        watch = TokenPlaceObserver()
        ticket = engine.submit(trial.ask_method(at, seed, n=n, **asked), on=watch)
        jobs.append((at, seed, ticket, watch))
    answers = engine.run([ticket for _, _, ticket, _ in jobs])
    # Second stage: plain decoding's law at every token, teacher-forced on the texts.
    rng = np.random.default_rng(trial.seed)
    drawn = list[SampledToken]()
    texts = {}
    for (at, s, _ticket, watch), answer in zip(jobs, answers, strict=True):
        made = plan_request(trial.lm, trial.plain_trial.ask_method(at, s))
        plain: Any = made.decoder
        if law is None:
            target = plain.target
        else:
            target = law(plain.target)
        written = {c: x.token_ids for c, x in enumerate(answer.choices)}
        notes = [x.logprobs or () for x in answer.choices]
        # A lean towards the draft's law is tested only where the method has a draft.
        beside = _draft(trial.lm, trial.method, target)
        fates_of = answer_token_fates(target, made.request.prompt, written, rng, beside, told)
        for c, tokens in written.items():
            texts[at, s, c] = tokens
            drawn += [
                SampledToken(
                    at, s, c, i, x, watch.token_place(c, i), f, tokens[:i], _nth(notes[c], i)
                )
                for i, (x, f) in enumerate(zip(tokens, fates_of[c], strict=True))
            ]
    return method_sample(drawn, [answer.metrics for answer in answers], texts)


def method_sample(
    drawn: Sequence[SampledToken],
    metrics: Sequence[Mapping[str, Any]],
    texts: Mapping[tuple[int, int, int], tuple[int, ...]],
) -> MethodSample:
    """Sum up what requests cost.

    Args:
        drawn: Tokens of their answers.
        metrics: Metrics of each request.
        texts: Token ids by prompt, seed and choice.

    Returns:
        The sample.
    """
    return MethodSample(
        tuple(drawn),
        sum(int(m["target_passes"]) for m in metrics),
        sum(int(m["positions_fed"]) for m in metrics),
        sum(sum(usage["seconds"] for usage in m["models"]) for m in metrics),
        texts,
    )


def _draft(lm: LoadedModel, method: str, target: Target) -> Target | None:
    """The draft's law under the same rules, for a method that draws from one with the target's tokens; else None."""
    needs = registry.recipe_for_model(method, AUTOREGRESSIVE).CARD.needs
    if DRAFT in needs:
        draft = lm.draft_law()
    else:
        draft = None
    # The draft model draws under the request's rules too.
    if draft is None or not isinstance(target, ShapedTarget):
        return draft
    return ShapedTarget(draft, *target.shapers)


def _nth(notes: Sequence[TokenLogprob], i: int) -> TokenLogprob | None:
    if i < len(notes):
        return notes[i]
    return None


def run_law_tests(drawn: Sequence[SampledToken]) -> list[LawTest]:
    """Run every test of these draws against the laws they were drawn under. Impossible tokens are
    left to `find_impossible_tokens`.
    """
    possible = [d for d in drawn if d.fate.chance > 0.0]
    # Only a method with a draft can lean towards its law.
    if any(d.fate.lean_variance for d in possible):
        more = [draft_lean_test(possible)]
    else:
        more = []
    if possible:
        return [
            surprise_test(possible),
            rank_cells_test(possible),
            *more,
            neighbour_rank_test(possible),
            shared_randomness_test(possible),
        ]
    return []


def surprise_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Test whether the tokens are as surprising as the laws expect: the most sensitive test of a
    temperature.

    Each token's surprise less its law's entropy is a martingale's step, whatever was written
    before.
    """
    # Shift over its standard deviation: the martingale's central limit makes it a z.
    z = _z(drawn)
    return LawTest("surprise", two_sided(z), z, _largest(drawn, _z))


def _z(drawn: Sequence[SampledToken]) -> float:
    # Steps of a martingale: variances add, and the sum is near normal.
    variance = sum(d.fate.variance for d in drawn)
    shift = sum(d.fate.surprise - d.fate.entropy for d in drawn)
    if variance > 1e-9:
        return shift / sqrt(variance)
    return 0.0


def rank_cells_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Test whether the ranks are even, in cells of equal weight: any law with other preferences
    shows here.
    """

    def excess_count(tokens: Sequence[SampledToken]) -> float:
        # Ranks are even under the law, whatever its shape, so all tokens share one table.
        return _even([int(d.fate.rank * CELLS) for d in tokens], CELLS)

    x = excess_count(drawn)
    return LawTest(
        "cells",
        chi_square_tail(x, CELLS - 1),
        x,
        _largest(drawn, lambda tokens: excess_count(tokens) - CELLS),
    )


def draft_lean_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Test whether the tokens lie nearer to the draft's law than draws of the target's do: the most
    sensitive test of an acceptance rule or its residual.
    """
    z = _side(drawn)
    return LawTest("draft", two_sided(z), z, _largest(drawn, _side))


def _side(drawn: Sequence[SampledToken]) -> float:
    variance = sum(d.fate.lean_variance for d in drawn)
    if variance > 1e-9:
        return sum(d.fate.lean for d in drawn) / sqrt(variance)
    return 0.0


def neighbour_rank_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Test whether a token's rank says something of the next one's, as where randomness is used
    twice. Pairs share no token.
    """
    by_text = defaultdict[tuple[int, int, int], dict[int, SampledToken]](dict)
    for d in drawn:
        by_text[d.prompt, d.seed, d.choice][d.at] = d
    corners = list[int]()
    for (_, _, choice), mine in by_text.items():
        # Disjoint pairs; they begin at an odd place in every second choice, so that all neighbours
        # are seen.
        for at in range(choice % 2, max(mine) if mine else 0, 2):
            if at in mine and at + 1 in mine:
                # A table of 4 × 4 cells of two ranks, even where they are independent.
                corners.append(int(mine[at].fate.rank * 4) * 4 + int(mine[at + 1].fate.rank * 4))
    x = _even(corners, 16)
    return LawTest("pairs", chi_square_tail(x, 15), x, "ranks of neighbouring tokens")


def shared_randomness_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Test whether equal texts continue alike more often than draws do, as where streams share
    randomness.

    Draws after one text are looked at one after another: each repeats one of those before it with
    the probability that the law gives to these together. So the test holds for a handful of texts
    as well, and for laws in which a repetition is rare.
    """
    groups = defaultdict[tuple[int, tuple[int, ...]], list[SampledToken]](list)
    for d in drawn:
        # Draws of one law: same prompt, same tokens before.
        groups[d.prompt, d.before].append(d)
    steps = list[tuple[bool, float]]()
    worst = (0.0, "")
    for mine in groups.values():
        seen = dict[int, float]()
        off = 0.0
        for d in mine:
            # The chance to repeat any of the earlier draws: their tokens' probabilities together.
            chance = min(1.0, sum(seen.values()))
            if seen:
                steps.append((d.token in seen, chance))
                off += (d.token in seen) - chance
            seen[d.token] = d.fate.chance
        if abs(off) > worst[0]:
            worst = abs(off), f"prompt {mine[0].prompt + 1}, token {mine[0].at}"
    # Bernoulli steps whose chances are known beforehand: their variances add.
    variance = sum(q * (1.0 - q) for _, q in steps)
    if variance > 1e-9:
        z = sum(did - q for did, q in steps) / sqrt(variance)
    else:
        z = 0.0
    return LawTest("twins", as_often(steps), z, worst[1])


def _even(values: Sequence[int], count: int) -> float:
    """Chi-square of counts that should be even; 0 where there are too few of them."""
    each = len(values) / count
    # The usual rule for a chi-square test: at least five expected in each cell.
    if each < 5.0:
        return 0.0
    return float(((np.bincount(values, minlength=count) - each) ** 2).sum() / each)


def _largest(drawn: Sequence[SampledToken], by: Any) -> str:
    """Where the deviation is largest: at which place among the tokens of a pass, and at which token
    of the answers. (Only places tell without bias: whether a draft was accepted depends on the
    token.)"""
    places = defaultdict[int, list[SampledToken]](list)
    positions = defaultdict[int, list[SampledToken]](list)
    for d in drawn:
        positions[d.at].append(d)
        if d.place is not None:
            places[d.place.depth].append(d)
    if not places:
        return ""
    # For messages only: the group with the largest deviation.
    depth, at = (max(g, key=lambda k, g=g: abs(by(g[k]))) for g in (places, positions))
    return f"place {depth} among the tokens of a pass, most at token {at} of the answers"


LAWFUL = 1e-3
FAR = 0.5
"""Nats by which a method's own log-probabilities may differ from those of a fresh pass, however
little plain decoding's do; and from where on they are off however much plain decoding's are."""


def fresh_law_tests(
    ours: Sequence[SampledToken], plain: Sequence[SampledToken], rules: str = "law"
) -> list[LawTest]:
    """Test whether a method saw the laws that a fresh pass gives after the same text.

    First the model's own rows ("cache"), then what the request's rules make of them. The largest
    difference in plain decoding's own passes is taken as noise.

    Args:
        ours: Tokens that the method drew, with its reported log-probabilities.
        plain: Tokens that plain decoding drew, likewise.
        rules: Name of the test of the rules. Default "law".

    Returns:
        The tests; p is 0 where a difference is too large, else 1.
    """
    out = list[LawTest]()
    for name, far in (("cache", _own_off), (rules, _shaped_off)):
        noise = max((far(d) for d in plain), default=0.0)
        worst = max(ours, key=far, default=None)
        off = 0.0 if worst is None else far(worst)
        # At least LAWFUL, at most FAR, in between four times plain decoding's own noise.
        wrong = worst is not None and off > max(LAWFUL, min(FAR, 4.0 * noise))
        out.append(
            LawTest(
                name,
                0.0 if wrong else 1.0,
                off,
                describe_sampled_token(worst) if wrong and worst else "",
            )
        )
        if wrong:
            # Rules over wrong rows give wrong laws: a second alarm would say nothing more.
            return out
    return out


def _own_off(d: SampledToken) -> float:
    """By how many nats a method's pass and a fresh one differ about a token, before any rule."""
    if d.told is None:
        return 0.0
    return abs(d.told.model_logp - d.fate.own)


def _shaped_off(d: SampledToken) -> float:
    """The same of the law that the token was drawn from."""
    if d.told is None or d.fate.chance <= 0.0:
        return 0.0
    return abs(d.told.logp + d.fate.surprise)


def find_impossible_tokens(
    trial: MethodTrial, drawn: Sequence[SampledToken]
) -> tuple[list[SampledToken], list[SampledToken]]:
    """Look at tokens to which the law gives no probability, at most 16 of them.

    Args:
        trial: The method, and the requests for its texts.
        drawn: Tokens that the method drew.

    Returns:
        Tokens that no shape of passes allows, and those that another shape allows.
    """
    never = list[SampledToken]()
    ties = list[SampledToken]()
    for d in [d for d in drawn if d.fate.chance <= 0.0][:16]:
        made = plan_request(trial.lm, trial.plain_trial.ask_method(d.prompt, d.seed))
        target: Any = made.decoder
        fits = is_possible_token(target.target, made.request.prompt, d.before, d.token)
        (ties if fits else never).append(d)
    return never, ties


def seeds_apart(ours: MethodSample, plain: MethodSample, seed: int = 0) -> LawTest:
    """Compare two samples by their seeds alone, without the laws.

    At each place of the answers the counts of tokens are compared, and the difference is held
    against the same with the names of the two sides shuffled (within a prompt, whole texts at a
    time).

    Args:
        ours: What the method drew.
        plain: What plain decoding drew under other seeds.
        seed: Names the shuffles. Default 0.

    Returns:
        A one-sided test; p = 1 where no prompt has texts of both sides.
    """
    sides = [[(k, t) for k, t in s.texts.items()] for s in (ours, plain)]
    rng = np.random.default_rng(seed)
    by_prompt = defaultdict[int, tuple[list[Any], list[Any]]](lambda: ([], []))
    for which, side in enumerate(sides):
        for (prompt, _, _), tokens in side:
            by_prompt[prompt][which].append(tokens)
    counted = [_tables(a, b) for a, b in by_prompt.values() if a and b]
    if not counted:
        return LawTest("seeds", 1.0, 0.0)
    real = sum(_apart(table_NW, first) for table_NW, first in counted)
    # A permutation test: whole texts change sides, as tokens of one text depend on each other.
    mixed = list[float]()
    for _ in range(SHUFFLES):
        mixed.append(sum(_apart(table_NW, rng.permutation(first)) for table_NW, first in counted))
    noise = float(np.std(mixed))
    if noise > 1e-12:
        z = (real - float(np.mean(mixed))) / noise
    else:
        z = 0.0
    return LawTest("seeds", two_sided(z) / 2 if z > 0 else 1.0, z, "tokens by place, two samples")


def _tables(ours: Sequence[Any], plain: Sequence[Any]) -> tuple[Any, Any]:
    """Which (place, token) each text holds, as a table of texts × those, and which of the texts are
    ours."""
    texts = [*ours, *plain]
    # One column for each pair of place and token that occurs.
    names = {
        x: i for i, x in enumerate(sorted({(at, t) for text in texts for at, t in enumerate(text)}))
    }
    table = np.zeros((len(texts), len(names)), dtype=np.float32)
    for row, text in enumerate(texts):
        for at, t in enumerate(text):
            table[row, names[at, t]] = 1.0
    return table, np.arange(len(texts)) < len(ours)


def _apart(table_NW: Any, ours_N: Any) -> float:
    """Squared difference of the two sides' shares, each divided by what the token's own share makes
    likely."""
    # Shares, not counts, as the sides may have different numbers of texts.
    a = int(ours_N.sum())
    b = int((~ours_N).sum())
    total = table_NW.sum(0)
    gap = table_NW[ours_N].sum(0) / a - table_NW[~ours_N].sum(0) / b
    # Divided by the token's count, as its variance grows with it.
    return float((gap**2 / np.maximum(total, 1.0)).sum())


def detection_power(drawn: Sequence[SampledToken], count: int) -> DetectionPower:
    """What a number of tests, which share the alarm, would have caught of deviations from these
    laws.

    Args:
        drawn: The tokens with their fates.
        count: How many tests share the alarm, at least 1.

    Returns:
        The smallest deviations that are caught with probability POWER.
    """
    if not drawn:
        return DetectionPower(1.0, 1.0, 1.0)
    # Each test alarms at its share of the total chance of a false alarm.
    alpha = ALARM / count
    # Standard deviations by which a fault must shift a two-sided test at level alpha.
    far = NORMAL.inv_cdf(1.0 - alpha / 2.0) + NORMAL.inv_cdf(POWER)
    deviation = sqrt(sum(d.fate.variance for d in drawn))
    # By how much surprise falls if every token were the likeliest one.
    lower = sum(d.fate.entropy - d.fate.best for d in drawn)
    more = chi_square_noncentrality(alpha, POWER, CELLS - 1)
    edges = np.arange(CELLS) / CELLS
    likeliest_C = np.zeros(CELLS)
    # The likeliest token fills the cells from the first one on: its ranks lie in [0, p_max).
    for d in drawn:
        wide = float(np.exp(-d.fate.best))
        likeliest_C += np.clip(wide - edges, 0.0, 1 / CELLS) / wide
    uneven = CELLS * float(((likeliest_C / len(drawn) - 1 / CELLS) ** 2).sum())
    if lower > 0:
        by_surprise = far * deviation / lower
    else:
        by_surprise = 1.0
    if uneven > 0:
        by_cells = sqrt(more / (len(drawn) * uneven))
    else:
        by_cells = 1.0
    # A temperature off by a share t shifts a token's surprise by about t times its variance.
    return DetectionPower(
        min(1.0, far / deviation) if deviation > 0 else 1.0,
        min(1.0, by_surprise, by_cells),
        min(1.0, sqrt(more / (4.0 * len(drawn)))),
    )


def sample_against_law(trial: MethodTrial, plain: MethodSample | None = None) -> SamplingFindings:
    """Draw by the method and by plain decoding, and test both against the laws and against each
    other.

    Args:
        trial: The method, and the requests for its texts.
        plain: What plain decoding drew before for the same requests under other seeds; None: it
            draws now.

    Returns:
        The tests and what they come to.
    """
    ours = draw_texts(trial, told=True)
    if plain is None:
        plain = draw_texts(replace(trial.plain_trial, seed=trial.seed + OTHERS), told=True)
    if trial.request.get("steer"):
        rules = "steering"
    else:
        rules = "law"
    laws = fresh_law_tests(ours.drawn, plain.drawn, rules)
    results = [*laws, *run_law_tests(ours.drawn), seeds_apart(ours, plain, trial.seed)]
    # The same tests of plain decoding: an alarm here would be one of the tests, not of the method.
    control = run_law_tests(plain.drawn)
    never, ties = find_impossible_tokens(trial, ours.drawn)
    # A token that the law rules out settles it, whatever the tests say.
    if never or ties:
        d = (never or ties)[0]
        results.insert(
            0,
            LawTest(
                "impossible", 0.0 if never else 1.0, float(len(never)), describe_sampled_token(d)
            ),
        )
    cost = {"method": ours.cost, "plain": plain.cost}
    if ties:
        tie = f"impossible: {describe_sampled_token(ties[0])}"
    else:
        tie = ""
    return conclude_law_tests(results, control, ours, cost, tie)


def conclude_law_tests(
    results: Sequence[LawTest],
    control: Sequence[LawTest],
    ours: MethodSample,
    cost: Mapping[str, Mapping[str, float]],
    tie: str = "",
) -> SamplingFindings:
    """Draw the conclusion from all tests.

    Args:
        results: Tests of the method's draws, at least one.
        control: The same tests of plain decoding's draws.
        ours: What the method drew.
        cost: Passes, positions and seconds of each side.
        tie: Where rounding may have decided, in words; "" where it did not. Default "".

    Returns:
        The verdict: a fault where a test alarms at ALARM, shared by all tests (Bonferroni).
    """
    # The least probable result decides; all others are in the certificate.
    worst = min(results, key=lambda t: t.p)
    fault = worst.p < ALARM / max(1, len(results))
    return SamplingFindings(
        "fault" if fault else "near-tie" if tie else "keeps it",
        f"{worst.name}: {worst.where}" if fault else tie,
        tuple(results),
        tuple(control),
        detection_power(ours.drawn, len(results)),
        len(ours.drawn),
        len(ours.texts),
        content_digest(sorted(ours.texts.items())),
        cost,
    )


def describe_sampled_token(d: SampledToken) -> str:
    """Which token that is, in words."""
    place = f"prompt {d.prompt + 1}, seed {d.seed}, answer {d.choice}, token {d.at}"
    if d.place is None:
        return place
    return f"{place}, {d.place}"
