"""How acceptance grows with what a drafter has read and with its size, and how wide a draft pays at
which batch (Scylla)."""

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
from polydec.base.outside_records import StrictRecord
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
"""Share of the drafted tokens and the one behind them from which on a count of accepted ones is
near its end."""


@dataclass(frozen=True)
class ScalingPoint:
    """One drafter as a point that a law is fitted to.

    Attributes:
        tokens: Tokens that it was trained on, above 0, in any unit.
        capacity: Its capacity, above 0, in any unit.
        accepted: Mean number of draft tokens that a pass of the target accepted.
    """

    tokens: float
    capacity: float
    accepted: float

    def __post_init__(self) -> None:
        for name in ("tokens", "capacity"):
            if not getattr(self, name) > 0:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be above 0")


Terms = Callable[[ScalingPoint], tuple[float, ...]]


def additive_terms(p: ScalingPoint) -> tuple[float, ...]:
    """Terms of a law that adds what each doubling brings: 1, log2 tokens, log2 capacity."""
    return 1.0, log2(p.tokens), log2(p.capacity)


def product_terms(p: ScalingPoint) -> tuple[float, ...]:
    """Terms of a law in which a doubling of one changes what a doubling of the other brings."""
    return *additive_terms(p), log2(p.tokens) * log2(p.capacity)


@dataclass(frozen=True)
class ScalingLaw:
    """A fitted law: accepted = the sum of factors times terms.

    Attributes:
        terms: The terms of a point: a constant, log2 tokens, log2 capacity, perhaps their product.
        factors: Factors of the terms: what a doubling brings.
        errors: Standard errors of the factors.
        explained: R squared.
        left_out: Root mean square error at points that the law was not fitted to, each left out in
            turn.
    """

    terms: Terms
    factors: tuple[float, ...]
    errors: tuple[float, ...]
    explained: float
    left_out: float

    def accepted_tokens(self, point: ScalingPoint) -> float:
        """The predicted number of accepted draft tokens of a drafter."""
        return float(np.dot(self.terms(point), self.factors))


def fit_scaling_law(points: Sequence[ScalingPoint]) -> ScalingLaw:
    """Fit a law by least squares. The product term stays where it brings points that were left out
    nearer.

    Source: Scaling Laws for Speculative Decoding (2025); the joint form is ours.

    Raises:
        RequestError: There are fewer than LEAST points, or tokens or capacity never change.
    """
    if len(points) < LEAST:
        raise RequestError(f"points has {len(points)}: a law needs {LEAST}")
    for name in ("tokens", "capacity"):
        if len({getattr(p, name) for p in points}) < 2:
            raise RequestError(f"{name} is the same at all points: it must change")
    # Leave-one-out error decides, as more terms always fit the points themselves better.
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
    # 1 - h_ii with the leverage h: the error of a left-out point is its residual divided by this.
    share = np.clip(1 - np.einsum("ij,jk,ik->i", x, inverse, x), 1e-9, None)
    # Sum of squares around the mean: R squared is 1 less the residuals' share of it.
    spread = float(((y - y.mean()) ** 2).sum())
    return ScalingLaw(
        terms,
        tuple(factors.tolist()),
        tuple(errors.tolist()),
        1.0 - float(off @ off) / spread if spread else 0.0,
        float(np.sqrt(np.mean((off / share) ** 2))),
    )


def _least(x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Factors of least squares, the inverse of the terms' products, what is left at each point, and
    standard errors."""
    # The pseudo-inverse: terms may be collinear where there are few points.
    inverse = np.linalg.pinv(x.T @ x)
    factors = inverse @ x.T @ y
    # Standard errors from the residual variance, with n - p degrees of freedom.
    off = y - x @ factors
    return (
        factors,
        inverse,
        off,
        np.sqrt(np.diag(inverse) * (off @ off) / max(1, len(y) - x.shape[1])),
    )


def extrapolation_error(points: Sequence[ScalingPoint]) -> float:
    """Root mean square error at the points of most tokens, of a law fitted to all others.

    It says whether the law may be extended to more tokens.
    """
    most = max(p.tokens for p in points)
    law = fit_scaling_law([p for p in points if p.tokens < most])
    # The points that are held out are those that an extension of the law would reach for.
    far = [p for p in points if p.tokens == most]
    return float(np.sqrt(np.mean([(law.accepted_tokens(p) - p.accepted) ** 2 for p in far])))


def is_near_depth_limit(accepted: float, depth: int) -> bool:
    """Whether acceptance is near the most that drafts of this depth can bring, where no law can go
    on growing.

    Args:
        accepted: Accepted draft tokens a pass, a mean.
        depth: Draft tokens a pass.

    Returns:
        True where accepted + 1 lies above a share FULL of depth + 1, the most that a pass can write.
    """
    return accepted + 1 > FULL * (depth + 1)


def doubling_slope(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What a doubling of x adds to y, and its standard error, of pairs (x, y) with x above 0."""
    # A straight line in log2 x: its slope is the gain of a doubling.
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
    """What training.json says of a drafter.

    Attributes:
        tokens: Tokens of all the steps that it was trained for.
        layers: Its layers.
        parameters: Its parameters.
    """

    tokens: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=1, le=64)]
    parameters: Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class TrainedEagle:
    """A trained EAGLE drafter in a folder.

    Attributes:
        name: Name of its folder.
        said: What its training record says.
        eagle: The drafter itself.
    """

    name: str
    said: DrafterTrainingRecord
    eagle: EagleModel


def drafters_of(at: Path, lm: LoadedModel) -> list[TrainedEagle]:
    """Load the EAGLE drafters in the subfolders of a folder, by name.

    Args:
        at: The folder.
        lm: The model that they draft for.

    Returns:
        The drafters; other trained things are passed over.

    Raises:
        RequestError: There is none, or one is damaged or was made for another model.
    """
    if at.is_dir():
        places = sorted(p for p in at.iterdir() if p.is_dir())
    else:
        places = []
    out = list[TrainedEagle]()
    for place in (p for p in places if (p / RESULT).is_file()):
        content = read_json(place / RESULT)
        # Other kinds of training may lie in the same folder.
        if content.get("kind") != "eagle":
            continue
        # A training record holds more than is read here.
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
    """The first held-out prompts that are stored with one of a folder's drafters.

    Args:
        at: The folder of the drafters.
        size: Size of the vocabulary, which ids must lie in.
        each: How many prompts at most.

    Returns:
        Token ids of each prompt.

    Raises:
        RequestError: No drafter has held-out prompts.
    """
    files = sorted(at.glob("*/held.jsonl"))
    if not files:
        raise RequestError(
            f"{at} holds no held.jsonl: let one of its drafters be trained without --text, which writes it"
        )
    return [s.prompt_ids for s in selfplay.read_samples(files[0], size)[:each]]


def count_chain_acceptance(
    lm: LoadedModel, eagle: EagleModel, law: str, prompts: Sequence[tuple[int, ...]], most: int = 48
) -> list[tuple[int, int]]:
    """Decode prompts with chains of DEPTH draft tokens and count.

    Args:
        lm: The model.
        eagle: The drafter.
        law: A key of `LAWS`: the sampling rule of the model.
        prompts: Token ids of each prompt.
        most: Tokens of an answer at most. Default 48.

    Returns:
        For each prompt its tokens and its passes.
    """
    target = ShapedTarget(lm.checkpoint.lm, LAWS[law]())
    decoder = SpeculativeDecoder(
        # A tree of width 1 is a chain; the fixed policy drafts DEPTH tokens every round.
        target,
        EagleDrafter(eagle, BestFirstTree(1)),
        MatchVerifier(),
        FixedPolicy(DEPTH, DEPTH),
    )
    asked = [Request(p, max_tokens=most, seed=i) for i, p in enumerate(prompts)]
    found = run_coroutines([answer_one(decoder, r) for r in asked])
    return [(len(r.token_ids), r.stats.passes) for r in found]


def bootstrap_acceptance(
    counts: Sequence[tuple[int, int]], draws: int = 2000
) -> tuple[float, float, float]:
    """Accepted draft tokens a pass, with a 95 % bootstrap interval over prompts.

    Args:
        counts: Tokens and passes of each prompt.
        draws: Bootstrap samples. Default 2000.

    Returns:
        The mean, and the interval's lower and upper end.
    """
    # A pass writes its accepted tokens and one of its own: tokens / passes - 1 are accepted.
    of = np.array(counts, float)
    # Resampled sums, shape [draws, 2]: prompts are drawn as wholes, tokens of one prompt depend on
    # each other.
    some = of[np.random.default_rng(0).integers(len(of), size=(draws, len(of)))].sum(1)
    low, high = np.quantile(some[:, 0] / some[:, 1] - 1, (0.025, 0.975))
    return float(of[:, 0].sum() / of[:, 1].sum() - 1), float(low), float(high)


def scaling_rows(
    lm: LoadedModel, drafters: Sequence[TrainedEagle], prompts: Sequence[tuple[int, ...]]
) -> Iterator[dict[str, Any]]:
    """Measure what a pass accepts with each drafter under each law of `LAWS`.

    Args:
        lm: The model.
        drafters: Drafters of several sizes and lengths of training.
        prompts: Token ids of each prompt.

    Yields:
        A row for each law and drafter.
    """
    for law in LAWS:
        # Each drafter under each law, on the same prompts.
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
    """The points of one law.

    Args:
        found: Rows of `scaling_rows`.
        law: The law whose rows are taken.

    Returns:
        One point a row, with its parameters as capacity.
    """
    return [
        ScalingPoint(r["tokens"], r["parameters"], r["accepted"]) for r in found if r["law"] == law
    ]


def scylla_tree_widths(
    lm: LoadedModel, drafters: Sequence[TrainedEagle], nodes: int = 16
) -> tuple[tuple[int, int], ...]:
    """How wide a tree of the likeliest drafter pays, by the number of sequences, at the costs of
    this machine.

    Args:
        lm: The model, with its measured costs.
        drafters: The drafters; the one whose first token is right most often is taken.
        nodes: Nodes of a tree at most. Default 16.

    Returns:
        Pairs of a number of sequences and the width that pays from there on, as `--method scylla`
        looks them up.
    """
    # rates[0][0]: how often the likeliest first token was right on held-out text.
    best = max(drafters, key=lambda one: one.eagle.rates[0][0]).eagle
    return widths_for("", best.rates, best.share, lm.costs, nodes, DEPTH)
