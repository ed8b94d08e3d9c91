"""The contract of contrasts: rules that make one row of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised
from polydec.lab.testing.shaper_contract import awkward_logit_rows, is_different_law
from polydec.laws.targets.contrast import ContrastRule


@dataclass(frozen=True)
class ContrastCounts(ContractCounts):
    """What a check saw a contrast do.

    Attributes:
        changed: Rows of several laws whose mixture was another law than the first.
        followed: Those whose mixture was another one than that of the same first row with other
            laws beside it.
        excluded: Those in which the first law rules a token out to which another gives weight.
        closed: Those of a gated rule at which the other laws are not asked.
    """

    changed: int = 0
    followed: int = 0
    excluded: int = 0
    closed: int = 0


def check_contrast(rule: ContrastRule, *, size: int = 7, neutral: bool = False) -> ContrastCounts:
    """Check everything that a contrast rule promises.

    What it gives is a row of the same kind, with a token that has weight and none that is NaN or
    infinite; a token that the first law rules out stays out; arguments are not written to; the same
    rows give the same row; what tokens are called changes nothing. A class attribute `unexercised`
    of the rule says, by the name of a count (ContrastCounts), why that is 0.

    Args:
        rule: The rule.
        size: Tokens of a row, at least 2. Default 7.
        neutral: Whether the first law must come back where all laws are the same. Default False.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    seen = Counter[str]()
    for first_V in map(normalise_log_weights, awkward_logit_rows(size)):
        # One first row with many others beside it, so that a rule which ignores the others is found
        # out.
        mixed = list[Tensor]()
        for seed in range(3):
            for other_V in awkward_logit_rows(size, seed):
                others = [normalise_log_weights(other_V).to(first_V.dtype)] * rule.laws
                mixed.append(_total(rule, first_V, others, seen))
                _renamed(rule, first_V, others, seed)
        seen["followed"] += sum(is_different_law(mixed[0], law_V) for law_V in mixed)
        if neutral:
            same_V = normalise_log_weights(rule.mix_laws(first_V, [first_V] * rule.laws).double())
            # A contrast of a law with itself has nothing to contrast.
            apart = float((same_V.exp() - first_V.double().exp()).abs().max())
            assert apart < 1e-5, f"the same laws gave another one: {apart:.1e} apart"
    counts = ContrastCounts(**seen)
    wanted = ["changed", "followed", "excluded"] + ["closed"] * rule.gated
    require_mechanism_exercised(counts, rule, wanted)
    return counts


def _total(
    rule: ContrastRule, first_V: Tensor, others: Sequence[Tensor], seen: Counter[str]
) -> Tensor:
    """The mixture, counted."""
    # Copies of what goes in: rows are shared with other readers and may not be written to.
    before = [first_V.clone(), *(x.clone() for x in others)]
    open_ = rule.opens_contrast(first_V)
    out_V = rule.mix_laws(first_V, others)
    assert all(torch.equal(a, b) for a, b in zip(before, (first_V, *others))), "mix wrote to a row"
    assert out_V.shape == first_V.shape and out_V.dtype == first_V.dtype, (
        f"mix made {out_V.dtype} {tuple(out_V.shape)}"
    )
    assert bool((out_V < float("inf")).all()), f"a log-weight is not finite: {out_V.tolist()}"
    assert bool((out_V > NEG_INF).any()), "nothing was left"
    # A mixture may take tokens away, and never give one back.
    assert not bool(((out_V > NEG_INF) & (first_V == NEG_INF)).any()), (
        "a token that the first law rules out came back"
    )
    assert (
        torch.equal(rule.mix_laws(first_V, others), out_V) and rule.opens_contrast(first_V) == open_
    ), "the same rows gave another law"
    # Counted, so that a contract whose rule did nothing fails.
    seen["changed"] += is_different_law(first_V, out_V)
    seen["excluded"] += bool(((first_V == NEG_INF) & (others[0] > NEG_INF)).any())
    seen["closed"] += not open_
    return out_V


def _renamed(rule: ContrastRule, first_V: Tensor, others: list[Tensor], seed: int) -> None:
    # A rule that reads rows alone commutes with a renaming of the tokens.
    to = torch.randperm(len(first_V), generator=torch.Generator().manual_seed(seed))
    got_V = rule.mix_laws(first_V[to], [x[to] for x in others])
    want_V: Any = normalise_log_weights(rule.mix_laws(first_V, others).double())[to].exp()
    assert torch.allclose(normalise_log_weights(got_V.double()).exp(), want_V, atol=1e-5), (
        "renaming the tokens changed the law"
    )
