"""How acceptance grows with what a drafter has read and with its size, and how wide a draft pays at which batch (Scylla)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from polydec.api import LoadedModel
from polydec.base.edge import read_json, validate_record
from polydec.base.errors import RequestError
from polydec.base.record import StrictRecord
from polydec.core.decoder import answer_one
from polydec.core.protocols import Shaper
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train import selfplay
from polydec.lab.train.envelope import RESULT
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.widths import widths_for
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned import artefacts
from polydec.models.learned.kinds.eagle import EagleModel

LEAST = 5
"""Points that a law is fitted to, at least."""
FULL = 0.8
"""Share of the drafted tokens and the one behind them from which on a count of accepted ones is near its end."""


@dataclass(frozen=True)
class ScalingPoint:
    """One drafter: tokens it was trained on and its capacity (any unit), both above 0; accepted: drafted tokens that a pass of
    the target accepted, a mean."""

    tokens: float
    capacity: float
    accepted: float

    def __post_init__(self) -> None:
        for name in ("tokens", "capacity"):
            if not getattr(self, name) > 0:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be above 0")


Terms = Callable[[ScalingPoint], tuple[float, ...]]


def additive_terms(p: ScalingPoint) -> tuple[float, ...]:
    """Of a law that adds what each doubling brings."""
    return 1.0, log2(p.tokens), log2(p.capacity)


def product_terms(p: ScalingPoint) -> tuple[float, ...]:
    """Of a law in which a doubling of one changes what a doubling of the other brings."""
    return *additive_terms(p), log2(p.tokens) * log2(p.capacity)


@dataclass(frozen=True)
class ScalingLaw:
    """accepted = the sum of factors times terms: a constant, what a doubling of the tokens brings, what one of the capacity
    brings, and perhaps their product. errors: standard errors of the factors; explained: R²; left_out: root mean square error
    at points that it was not fitted to, each left out in turn."""

    terms: Terms
    factors: tuple[float, ...]
    errors: tuple[float, ...]
    explained: float
    left_out: float

    def at(self, point: ScalingPoint) -> float:
        """What it says of a drafter of these tokens and this capacity."""
        return float(np.dot(self.terms(point), self.factors))


def fit_scaling_law(points: Sequence[ScalingPoint]) -> ScalingLaw:
    """The law of least squares; the product is kept where it brings points that were left out nearer. Raises RequestError for
    fewer than LEAST points, or where one of the two never changes.

    Source: Scaling Laws for Speculative Decoding (2025); the joint form is ours.
    """
    if len(points) < LEAST:
        raise RequestError(f"points has {len(points)}: a law needs {LEAST}")
    for name in ("tokens", "capacity"):
        if len({getattr(p, name) for p in points}) < 2:
            raise RequestError(f"{name} is the same at all points: it must change")
    plain = _fitted(points, additive_terms)
    if len(points) > LEAST:
        product = _fitted(points, product_terms)
    else:
        product = None
    if product is not None and product.left_out < plain.left_out:
        return product
    return plain


def _fitted(points: Sequence[ScalingPoint], terms: Terms) -> ScalingLaw:
    x = np.array([terms(p) for p in points])
    y = np.array([p.accepted for p in points])
    factors, inverse, off, errors = _least(x, y)
    share = np.clip(
        1 - np.einsum("ij,jk,ik->i", x, inverse, x), 1e-9, None
    )  # of its error that a point has left out
    spread = float(((y - y.mean()) ** 2).sum())
    return ScalingLaw(
        terms,
        tuple(factors.tolist()),
        tuple(errors.tolist()),
        1.0 - float(off @ off) / spread if spread else 0.0,
        float(np.sqrt(np.mean((off / share) ** 2))),
    )


def _least(x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Factors of least squares, the inverse of the terms' products, what is left at each point, and standard errors."""
    inverse = np.linalg.pinv(x.T @ x)
    factors = inverse @ x.T @ y
    off = y - x @ factors
    return (
        factors,
        inverse,
        off,
        np.sqrt(np.diag(inverse) * (off @ off) / max(1, len(y) - x.shape[1])),
    )


def extrapolation_error(points: Sequence[ScalingPoint]) -> float:
    """Root mean square error at the points of most tokens, of a law fitted to all others: whether it may be extended."""
    most = max(p.tokens for p in points)
    law = fit_scaling_law([p for p in points if p.tokens < most])
    far = [p for p in points if p.tokens == most]
    return float(np.sqrt(np.mean([(law.at(p) - p.accepted) ** 2 for p in far])))


def is_near_depth_limit(accepted: float, depth: int) -> bool:
    """Whether so many accepted tokens, and the one behind them, are near the most that drafts of this depth can bring: there no
    law can go on growing."""
    return accepted + 1 > FULL * (depth + 1)


def doubling_slope(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of pairs (x, y), x above 0: what a doubling of x adds to y, and its standard error."""
    factors, _, _, errors = _least(
        np.array([(1.0, log2(x)) for x, _ in pairs]), np.array([y for _, y in pairs])
    )
    return float(factors[1]), float(errors[1])


# What `polydec bench --suite scaling` measures: feature drafters of several sizes, each trained on so many tokens

DEPTH = 5
"""Tokens of a chain."""
LAWS: Mapping[str, Callable[[], Shaper[Any]]] = {
    "greedy": GreedyRule,
    "T = 1": lambda: TemperatureRule(1.0),
}
MADE_BY = "polydec train eagle --layers N --steps M --out"
"""What makes the drafters."""


class DrafterTrainingRecord(StrictRecord):
    """What training.json says of a drafter: tokens of the steps it was trained for, layers, parameters."""

    tokens: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=1, le=64)]
    parameters: Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class TrainedEagle:
    """A trained one of a folder."""

    name: str
    said: DrafterTrainingRecord
    eagle: EagleModel


def drafters_of(at: Path, lm: LoadedModel) -> list[TrainedEagle]:
    """The EAGLE drafters in the folders of a folder, by name. Raises RequestError where there is none, or one is damaged or was
    made for another model."""
    if at.is_dir():
        places = sorted(p for p in at.iterdir() if p.is_dir())
    else:
        places = []
    out = list[TrainedEagle]()
    for place in (p for p in places if (p / RESULT).is_file()):
        content = read_json(place / RESULT)
        if content.get("kind") != "eagle":
            continue
        known = {k: v for k, v in content.items() if k in DrafterTrainingRecord.model_fields}
        said = validate_record(
            DrafterTrainingRecord, known, f"{place / RESULT} is not what `{MADE_BY}` wrote"
        )
        eagle = artefacts.bind_artefact(artefacts.load_artefact(str(place)), lm.checkpoint.lm)
        out.append(TrainedEagle(place.name, said, eagle))
    if not out:
        raise RequestError(f"{at} holds no drafter that `{MADE_BY} DIR` made")
    return out


def prompts_of(at: Path, size: int, each: int) -> list[tuple[int, ...]]:
    """The first so many held-out prompts that lie with one of a folder's drafters. Raises RequestError where there are none."""
    files = sorted(at.glob("*/held.jsonl"))
    if not files:
        raise RequestError(
            f"{at} holds no held.jsonl: let one of its drafters be trained without --text, which writes it"
        )
    return [s.prompt_ids for s in selfplay.read_samples(files[0], size)[:each]]


def count_chain_acceptance(
    lm: LoadedModel, eagle: EagleModel, law: str, prompts: Sequence[tuple[int, ...]], most: int = 48
) -> list[tuple[int, int]]:
    """Of each prompt how many tokens chains of DEPTH wrote in how many passes, at most `most`."""
    target = ShapedTarget(lm.checkpoint.lm, LAWS[law]())
    decoder = SpeculativeDecoder(
        target, EagleDrafter(eagle, BestFirstTree(1)), MatchVerifier(), FixedPolicy(DEPTH, DEPTH)
    )
    asked = [Request(p, max_tokens=most, seed=i) for i, p in enumerate(prompts)]
    found = run_coroutines([answer_one(decoder, r) for r in asked])
    return [(len(r.token_ids), r.stats.passes) for r in found]


def bootstrap_acceptance(
    counts: Sequence[tuple[int, int]], draws: int = 2000
) -> tuple[float, float, float]:
    """Accepted tokens a pass, and their 95 % interval by drawing prompts with replacement."""
    of = np.array(counts, float)
    some = of[np.random.default_rng(0).integers(len(of), size=(draws, len(of)))].sum(1)
    low, high = np.quantile(some[:, 0] / some[:, 1] - 1, (0.025, 0.975))
    return float(of[:, 0].sum() / of[:, 1].sum() - 1), float(low), float(high)


def scaling_rows(
    lm: LoadedModel, drafters: Sequence[TrainedEagle], prompts: Sequence[tuple[int, ...]]
) -> Iterator[dict[str, Any]]:
    """Of each law and drafter what a pass accepts."""
    for law in LAWS:
        for one in drafters:
            mean, low, high = bootstrap_acceptance(
                count_chain_acceptance(lm, one.eagle, law, prompts)
            )
            yield {
                "law": law,
                "drafter": one.name,
                "layers": one.said.layers,
                "parameters": one.said.parameters,
                "tokens": one.said.tokens,
                "accepted": round(mean, 4),
                "low": round(low, 4),
                "high": round(high, 4),
                "near the end": is_near_depth_limit(mean, DEPTH),
            }


def scaling_points(found: Sequence[Mapping[str, Any]], law: str) -> list[ScalingPoint]:
    """Of one law the points of all rows, by their parameters."""
    return [
        ScalingPoint(r["tokens"], r["parameters"], r["accepted"]) for r in found if r["law"] == law
    ]


def scylla_tree_widths(
    lm: LoadedModel, drafters: Sequence[TrainedEagle], nodes: int = 16
) -> tuple[tuple[int, int], ...]:
    """How wide a tree of the likeliest drafter pays from which number of sequences on, by the costs of this machine: what
    `--method scylla` looks up."""
    best = max(drafters, key=lambda one: one.eagle.rates[0][0]).eagle
    return widths_for("", best.rates, best.share, lm.costs, nodes, DEPTH)
