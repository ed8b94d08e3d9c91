"""Does a method that draws keep the target's law, on the real model? By laws at shared prefixes and by seeds, with what the
tests would have caught."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from polydec.api import Ask, Engine, LoadedModel, Prompt
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
SEEDS = 4
"""Seeds over which the samples of a prompt are spread."""
OTHERS = 1_000_003
"""Added to a seed for the draws of plain decoding that a method's are held against."""
SHUFFLES = 400


@dataclass(frozen=True)
class SampledToken:
    """A token that was drawn: of which prompt, seed and choice, at which place of the answer, in which pass, its fate under the
    law, the tokens before it, and what the method itself says of its log-probability, where it was asked."""

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
    """One test of a law. name: what it looks at; p: how probable a result as far off is where the law is kept; off: the
    deviation, in units of its own noise where it is a z; where: the place at which it is largest."""

    name: str
    p: float
    off: float
    where: str = ""


@dataclass(frozen=True)
class DetectionPower:
    """What would have been caught with probability 0.9 (each 1 where nothing could be): a temperature that is off by this
    share; this share of tokens written as the likeliest one in place of a draw; any law whose cells of equal weight are off by
    this total variation."""

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
    """What one side drew: its tokens, the passes and positions that it took, and its seconds."""

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
    """The tests of a method's draws, of plain decoding's own under them (the control), what they would have caught,
    and what each side took. digest: of the method's texts."""

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
    lm: LoadedModel,
    prompts: Sequence[tuple[Prompt, bool]],
    method: str,
    options: Mapping[str, Any],
    *,
    samples: int,
    seed: int = 0,
    law: Callable[[Target], Target] | None = None,
    told: bool = False,
    **request: Any,
) -> MethodSample:
    """So many texts of each (prompt, raw) by a method, spread over seeds, all in company, and the fate of each token under
    plain decoding's law of the same request. law: what is made of that law first; told: ask for log-probabilities too."""
    asked: dict[str, Any] = {"logprobs": 0} if told else {}
    engine = Engine(lm)
    jobs = list[tuple[int, int, Any, TokenPlaceObserver]]()
    for at, (prompt, raw) in enumerate(prompts):
        for i, n in enumerate(spread_over(samples)):
            watch = TokenPlaceObserver()
            ticket = engine.submit(
                prompt,
                method=method,
                options=options,
                raw=raw,
                seed=seed + i,
                n=n,
                on=watch,
                **request,
                **asked,
            )
            jobs.append((at, seed + i, ticket, watch))
    answers = engine.run([ticket for _, _, ticket, _ in jobs])
    rng = np.random.default_rng(seed)
    drawn = list[SampledToken]()
    texts = {}
    for (at, s, _ticket, watch), answer in zip(jobs, answers, strict=True):
        prompt, raw = prompts[at]
        made = plan_request(lm, Ask(prompt, method="plain", raw=raw, seed=s, **request))
        plain: Any = made.decoder
        if law is None:
            target = plain.target
        else:
            target = law(plain.target)
        written = {c: x.token_ids for c, x in enumerate(answer.choices)}
        notes = [x.logprobs or () for x in answer.choices]
        beside = _draft(lm, method, target)
        fates_of = answer_token_fates(target, made.request.prompt, written, rng, beside, told)
        for c, tokens in written.items():
            texts[at, s, c] = tokens
            drawn += [
                SampledToken(at, s, c, i, x, watch.at(c, i), f, tokens[:i], _nth(notes[c], i))
                for i, (x, f) in enumerate(zip(tokens, fates_of[c], strict=True))
            ]
    metrics = [a.metrics for a in answers]
    return MethodSample(
        tuple(drawn),
        sum(m["target_passes"] for m in metrics),
        sum(m["positions_fed"] for m in metrics),
        sum(sum(usage["seconds"] for usage in m["models"]) for m in metrics),
        texts,
    )


def _draft(lm: LoadedModel, method: str, target: Target) -> Target | None:
    """The draft's law under the same rules, for a method that draws from one with the target's tokens; else None."""
    needs = registry.recipe_for_model(method, AUTOREGRESSIVE).CARD.needs
    if DRAFT in needs:
        draft = lm.small()
    else:
        draft = None
    if draft is None or not isinstance(target, ShapedTarget):
        return draft
    return ShapedTarget(draft, *target.shapers)


def _nth(notes: Sequence[TokenLogprob], i: int) -> TokenLogprob | None:
    if i < len(notes):
        return notes[i]
    return None


def spread_over(samples: int) -> list[int]:
    """How many answers each seed is asked for, of so many samples."""
    seeds = min(SEEDS, samples)
    return [samples // seeds + (i < samples % seeds) for i in range(seeds)]


def run_law_tests(drawn: Sequence[SampledToken]) -> list[LawTest]:
    """Every test of these draws against the laws behind them; impossible tokens are left to `impossible`."""
    possible = [d for d in drawn if d.fate.chance > 0.0]
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
    """Whether the tokens are as surprising as the laws expect: the test that sees a temperature best. Each token's surprise
    less its law's entropy is a martingale's step, whatever was written before."""
    z = _z(drawn)
    return LawTest("surprise", two_sided(z), z, _largest(drawn, _z))


def _z(drawn: Sequence[SampledToken]) -> float:
    variance = sum(d.fate.variance for d in drawn)
    shift = sum(d.fate.surprise - d.fate.entropy for d in drawn)
    if variance > 1e-9:
        return shift / sqrt(variance)
    return 0.0


def rank_cells_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Whether the ranks are even, in cells of equal weight: any law that is off in what it prefers shows here."""

    def excess(tokens: Sequence[SampledToken]) -> float:
        return _even([int(d.fate.rank * CELLS) for d in tokens], CELLS)

    x = excess(drawn)
    return LawTest(
        "cells",
        chi_square_tail(x, CELLS - 1),
        x,
        _largest(drawn, lambda tokens: excess(tokens) - CELLS),
    )


def draft_lean_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Whether the tokens lie nearer to the draft's law than draws of the target's do: the test that sees best what acceptance
    or its residual has wrong."""
    z = _side(drawn)
    return LawTest("draft", two_sided(z), z, _largest(drawn, _side))


def _side(drawn: Sequence[SampledToken]) -> float:
    variance = sum(d.fate.lean_variance for d in drawn)
    if variance > 1e-9:
        return sum(d.fate.lean for d in drawn) / sqrt(variance)
    return 0.0


def neighbour_rank_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Whether a token's rank tells of the next one's: randomness that is used twice shows here. Pairs share no token."""
    by_text = defaultdict[tuple[int, int, int], dict[int, SampledToken]](dict)
    for d in drawn:
        by_text[d.prompt, d.seed, d.choice][d.at] = d
    corners = list[int]()
    for (_, _, choice), mine in by_text.items():
        for at in range(choice % 2, max(mine) if mine else 0, 2):
            if at in mine and at + 1 in mine:
                corners.append(int(mine[at].fate.rank * 4) * 4 + int(mine[at + 1].fate.rank * 4))
    x = _even(corners, 16)
    return LawTest("pairs", chi_square_tail(x, 15), x, "ranks of neighbouring tokens")


def shared_randomness_test(drawn: Sequence[SampledToken]) -> LawTest:
    """Whether texts that are the same so far go on alike more often than draws do: streams that share randomness.

    Draws behind one text are looked at one after another: each repeats one of those before it with the chance that the law
    gives to these together. So the test holds for a handful of texts as well, and for laws in which a repetition is rare.
    """
    groups = defaultdict[tuple[int, tuple[int, ...]], list[SampledToken]](list)
    for d in drawn:
        groups[d.prompt, d.before].append(d)
    steps = list[tuple[bool, float]]()
    worst = (0.0, "")
    for mine in groups.values():
        seen = dict[int, float]()
        off = 0.0
        for d in mine:
            chance = min(1.0, sum(seen.values()))
            if seen:
                steps.append((d.token in seen, chance))
                off += (d.token in seen) - chance
            seen[d.token] = d.fate.chance
        if abs(off) > worst[0]:
            worst = abs(off), f"prompt {mine[0].prompt + 1}, token {mine[0].at}"
    variance = sum(q * (1.0 - q) for _, q in steps)
    if variance > 1e-9:
        z = sum(did - q for did, q in steps) / sqrt(variance)
    else:
        z = 0.0
    return LawTest("twins", as_often(steps), z, worst[1])


def _even(values: Sequence[int], count: int) -> float:
    """Chi-square of counts that should be even; 0 where there are too few of them."""
    each = len(values) / count
    if each < 5.0:
        return 0.0
    return float(((np.bincount(values, minlength=count) - each) ** 2).sum() / each)


def _largest(drawn: Sequence[SampledToken], by: Any) -> str:
    """Where the deviation is largest: at which place among the tokens of a pass, and at which token of the answers. (Only
    places tell without bias: whether a draft was accepted depends on the token.)"""
    places = defaultdict[int, list[SampledToken]](list)
    positions = defaultdict[int, list[SampledToken]](list)
    for d in drawn:
        positions[d.at].append(d)
        if d.place is not None:
            places[d.place.depth].append(d)
    if not places:
        return ""
    depth, at = (max(g, key=lambda k, g=g: abs(by(g[k]))) for g in (places, positions))
    return f"place {depth} among the tokens of a pass, most at token {at} of the answers"


LAWFUL = 1e-3
FAR = 0.5
"""Nats by which a method's own log-probabilities may differ from those of a fresh pass, however little plain decoding's do; and
from where on they are off however much plain decoding's are."""


def fresh_law_tests(
    ours: Sequence[SampledToken], plain: Sequence[SampledToken], rules: str = "law"
) -> list[LawTest]:
    """Whether a method saw the laws that a fresh pass gives behind the same text: the model's own rows ("cache"), and what the
    rules of the request make of them. What plain decoding's own passes differ by is noise. rules: what these are called."""
    out = list[LawTest]()
    for name, far in (("cache", _own_off), (rules, _shaped_off)):
        noise = max((far(d) for d in plain), default=0.0)
        worst = max(ours, key=far, default=None)
        off = 0.0 if worst is None else far(worst)
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
            return out  # a rule over wrong rows gives wrong laws
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
    lm: LoadedModel,
    prompts: Sequence[tuple[Prompt, bool]],
    drawn: Sequence[SampledToken],
    request: Mapping[str, Any],
) -> tuple[list[SampledToken], list[SampledToken]]:
    """Tokens to which the law gives nothing: those that no shape of passes allows, and those that another shape does."""
    never = list[SampledToken]()
    ties = list[SampledToken]()
    for d in [d for d in drawn if d.fate.chance <= 0.0][:16]:
        prompt, raw = prompts[d.prompt]
        made = plan_request(lm, Ask(prompt, method="plain", raw=raw, seed=d.seed, **request))
        target: Any = made.decoder
        fits = is_possible_token(target.target, made.request.prompt, d.before, d.token)
        (ties if fits else never).append(d)
    return never, ties


def seeds_apart(ours: MethodSample, plain: MethodSample, seed: int = 0) -> LawTest:
    """Two samples by seeds: at each place of the answers, how far apart are the counts of their tokens, against the same with
    the names of the two sides shuffled (within a prompt, whole texts at a time)."""
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
    """Which (place, token) each text holds, as a table of texts × those, and which of the texts are ours."""
    texts = [*ours, *plain]
    names = {
        x: i for i, x in enumerate(sorted({(at, t) for text in texts for at, t in enumerate(text)}))
    }
    table = np.zeros((len(texts), len(names)), dtype=np.float32)
    for row, text in enumerate(texts):
        for at, t in enumerate(text):
            table[row, names[at, t]] = 1.0
    return table, np.arange(len(texts)) < len(ours)


def _apart(table_NW: Any, ours_N: Any) -> float:
    """Squared difference of the two sides' shares, each divided by what the token's own share makes likely."""
    a = int(ours_N.sum())
    b = int((~ours_N).sum())
    total = table_NW.sum(0)
    gap = table_NW[ours_N].sum(0) / a - table_NW[~ours_N].sum(0) / b
    return float((gap**2 / np.maximum(total, 1.0)).sum())


def detection_power(drawn: Sequence[SampledToken], count: int) -> DetectionPower:
    """What so many tests, which share the alarm, would have caught of deviations from the laws behind these draws."""
    if not drawn:
        return DetectionPower(1.0, 1.0, 1.0)
    alpha = ALARM / count
    far = NORMAL.inv_cdf(1.0 - alpha / 2.0) + NORMAL.inv_cdf(POWER)
    deviation = sqrt(sum(d.fate.variance for d in drawn))
    lower = sum(d.fate.entropy - d.fate.best for d in drawn)
    more = chi_square_noncentrality(alpha, POWER, CELLS - 1)
    edges = np.arange(CELLS) / CELLS
    likeliest_C = np.zeros(CELLS)
    for d in drawn:  # the likeliest token fills the law from its beginning
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
    return DetectionPower(
        min(1.0, far / deviation) if deviation > 0 else 1.0,
        min(1.0, by_surprise, by_cells),
        min(1.0, sqrt(more / (4.0 * len(drawn)))),
    )


def sample_against_law(
    lm: LoadedModel,
    prompts: Sequence[tuple[Prompt, bool]],
    method: str,
    options: Mapping[str, Any],
    *,
    samples: int,
    seed: int = 0,
    plain: MethodSample | None = None,
    **request: Any,
) -> SamplingFindings:
    """Draw by the method and by plain decoding, and hold both against the laws, and against each other. plain: what plain
    decoding drew before for the same request under other seeds, in place of drawing again."""
    asked = {"samples": samples, **request}
    ours = draw_texts(lm, prompts, method, options, seed=seed, told=True, **asked)
    if plain is None:
        plain = draw_texts(lm, prompts, "plain", {}, seed=seed + OTHERS, told=True, **asked)
    if request.get("steer"):
        rules = "steering"
    else:
        rules = "law"
    laws = fresh_law_tests(ours.drawn, plain.drawn, rules)
    results = [*laws, *run_law_tests(ours.drawn), seeds_apart(ours, plain, seed)]
    control = run_law_tests(plain.drawn)
    never, ties = find_impossible_tokens(lm, prompts, ours.drawn, request)
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
    """What these tests come to together. tie: where rounding may have decided."""
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
