"""What every shaper promises, as checks on random and on awkward rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.protocols import Shaper, of_choice
from polydec.core.types import RowDetail
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised

Relabel = Callable[[Callable[[int], int]], Shaper[Any]]


@dataclass(frozen=True)
class ShaperCounts(ContractCounts):
    """What a check saw a shaper do.

    Attributes:
        changed: Rows whose law became another one.
        followed: Rows whose law was another one than behind the first text; nothing is asked of
            shapers without states.
    """

    changed: int = 0
    followed: int = 0


def is_different_law(a_V: Tensor, b_V: Tensor) -> bool:
    """Whether two rows of log-weights are two laws.

    Args:
        a_V: Log-weights, at least one of them finite.
        b_V: Others, of as many tokens.

    Returns:
        Whether a probability differs by more than 1e-6.
    """
    p_V = normalise_log_weights(a_V.double()).exp()
    q_V = normalise_log_weights(b_V.double()).exp()
    return bool(((p_V - q_V).abs() > 1e-6).any())


def awkward_logit_rows(size: int, seed: int = 0) -> Iterator[Tensor]:
    """Make rows of logits that rules may stumble over.

    Args:
        size: Tokens of a row, at least 2.
        seed: Seed of the random ones. Default 0.

    Yields:
        Rows that are random in both float types, peaked, flat, far off, full of equals, and with
        few finite entries, shape ``[V]``.
    """
    g = torch.Generator().manual_seed(seed)

    def random_row(scale: float) -> Tensor:
        return torch.randn(size, generator=g) * scale

    yield random_row(1.0)
    yield random_row(3.0).double()
    yield random_row(30.0)
    # Far from 0 an exponential that is not shifted first overflows, or gives 0 everywhere.
    yield random_row(1.0) + 500.0
    yield random_row(1.0) - 500.0
    yield torch.zeros(size)
    yield random_row(2.0).round()
    # Constraints leave few tokens: a rule must not make one up, nor lose the last.
    for alive in (1, 2, size // 2):
        row_V = random_row(2.0)
        row_V[torch.randperm(size, generator=g)[alive:]] = NEG_INF
        yield row_V


def awkward_texts(size: int, seed: int = 0) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Make texts that rules may stumble over.

    Args:
        size: Tokens of the vocabulary, at least 3.
        seed: Seed of the random ones. Default 0.

    Yields:
        Prompt and output: empty outputs, loops, every token, random ones; any token may stand
        anywhere.
    """
    g = torch.Generator().manual_seed(seed)
    yield (0,), ()
    yield (size - 1,), (size - 1, size - 1, 0)
    yield (1, 2, 1, 2, 1), (2, 1, 2, 1, 2)
    yield tuple(range(size)), tuple(range(size))
    yield (1,) * 9, (1,) * 9
    for n in (3, 12, 30):
        text = tuple(torch.randint(min(size, 4), (n,), generator=g).tolist())
        yield text[: n // 2], text[n // 2 :]


def check_shaper(
    shaper: Shaper[Any],
    *,
    size: int = 7,
    alike: bool = True,
    shifts: bool = True,
    renames: bool = True,
    relabel: Relabel | None = None,
    neutral: Shaper[Any] | None = None,
) -> ShaperCounts:
    """Check everything that a shaper promises, on random and on awkward rows.

    A class attribute `unexercised` of the shaper says, by the name of a count (ShaperCounts), why
    that is 0.

    Args:
        shaper: The shaper.
        size: Tokens of a row, at least 3. Default 7.
        alike: Whether prompt and output count the same, so that stepping along tokens equals
            starting on the longer prompt. Default True.
        shifts: Whether a constant added to all log-weights changes no law; False for rules on
            logits. Default True.
        renames: Whether what tokens are called changes no law; False for rules that mean the ids
            themselves, such as a hash of them. Default True.
        relabel: Makes the same rule after tokens were renamed, from the map of old ids to new ones.
            None: the rule's parameters hold no token ids.
        neutral: The same rule with parameters that change nothing. None: there are no such
            parameters.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    seen = Counter[str]()
    stateful = False
    first = list[Tensor]()
    for prompt, output in awkward_texts(size):
        # A shaper whose states are None cannot follow the text, and need not.
        stateful |= _state(shaper, prompt, output) is not None
        for i, row_V in enumerate(awkward_logit_rows(size)):
            out_V = _total_and_pure(shaper, prompt, output, row_V)
            # The rows after the first text are what later texts are compared with.
            first += [out_V] * (i == len(first))
            seen["changed"] += is_different_law(row_V, out_V)
            seen["followed"] += is_different_law(first[i], out_V)
            _another_choice(shaper, prompt, output, row_V)
            if alike:
                _same(
                    _shape(shaper, prompt, output, row_V),
                    _shape(shaper, (*prompt, *output), (), row_V),
                    "stepping along tokens is not starting on the longer prompt",
                )
            if shifts:
                _same(
                    _shape(shaper, prompt, output, row_V.double() + 2.5),
                    _shape(shaper, prompt, output, row_V.double()),
                    "a constant added to all log-weights changed the law (declare shifts=False if it should)",
                )
            if neutral is not None:
                _same(
                    _shape(neutral, prompt, output, row_V),
                    row_V,
                    "the neutral parameter changed the law",
                )
        if not renames:
            continue
        g = torch.Generator().manual_seed(len(output))
        row_V = torch.randn(size, generator=g, dtype=torch.float64)
        # Renamed tokens, renamed text, renamed row: the law must be the old one, renamed.
        to = torch.randperm(size, generator=g).tolist()
        renamed_V = torch.empty_like(row_V)
        renamed_V[to] = row_V
        if relabel is None:
            twin = shaper
        else:
            twin = relabel(to.__getitem__)
        _same(
            _shape(twin, [to[x] for x in prompt], [to[x] for x in output], renamed_V)[to],
            _shape(shaper, prompt, output, row_V),
            "renaming the tokens changed the law (does it need `relabel`?)",
        )
    counts = ShaperCounts(**seen)
    require_mechanism_exercised(counts, shaper, ["changed"] + ["followed"] * stateful)
    return counts


def _state(shaper: Shaper[Any], prompt: Sequence[int], output: Sequence[int]) -> Any:
    state = shaper.start_state(tuple(prompt))
    for x in output:
        state = shaper.next_state(state, x)
    return state


def _shape(
    shaper: Shaper[Any], prompt: Sequence[int], output: Sequence[int], row_V: Tensor
) -> Tensor:
    return shaper.shape_law(_state(shaper, prompt, output), row_V)


def _same(a_V: Tensor, b_V: Tensor, message: str) -> None:
    p_V = normalise_log_weights(a_V.double()).exp()
    q_V = normalise_log_weights(b_V.double()).exp()
    assert torch.allclose(p_V, q_V, rtol=1e-5, atol=1e-6), (
        f"{message}: {p_V.tolist()} and {q_V.tolist()}"
    )


def _another_choice(
    shaper: Shaper[Any], prompt: Sequence[int], output: Sequence[int], row_V: Tensor
) -> None:
    # A choice is a view of one rule: taken twice it is the last one taken, and it reads the rule's
    # states.
    other = of_choice(shaper, 5)
    assert of_choice(other, 0) == of_choice(shaper, 0), "for_choice depends on more than the choice"
    state = _state(shaper, prompt, output)
    assert torch.equal(other.shape_law(state, row_V), _shape(other, prompt, output, row_V)), (
        "a choice needs states of its own"
    )
    if other != shaper:
        _total_and_pure(other, prompt, output, row_V)


def _total_and_pure(
    shaper: Shaper[Any], prompt: Sequence[int], output: Sequence[int], row_V: Tensor
) -> Tensor:
    """What the shaper makes of the row."""
    state = _state(shaper, prompt, output)
    before_V = row_V.clone()
    out_V = shaper.shape_law(state, row_V)
    first_V = out_V.clone()
    assert torch.equal(row_V, before_V), "shape wrote to its argument"
    assert out_V.shape == row_V.shape and out_V.dtype == row_V.dtype, (
        f"shape made {out_V.dtype} {tuple(out_V.shape)}"
    )
    assert bool((out_V < float("inf")).all()), f"a log-weight is not finite: {out_V.tolist()}"
    assert bool((out_V > NEG_INF).any()), f"nothing was left of {row_V.tolist()}"
    # A rule that forces a token may give weight to one that had none, if it leaves no other: then
    # all that is left was dead.
    dead_V = row_V == NEG_INF
    left_V = out_V > NEG_INF
    assert not bool((left_V & dead_V).any()) or not bool((left_V & ~dead_V).any()), (
        "a token without weight came back to life"
    )
    # Steps into every direction: none of them may write to the state they began from.
    for x in range(len(row_V)):
        shaper.shape_law(shaper.next_state(state, x), row_V)
    assert torch.equal(shaper.shape_law(state, row_V), first_V), (
        "a state changed when it was stepped or shaped with"
    )
    assert torch.equal(_shape(shaper, prompt, output, row_V), first_V), (
        "the same text and row gave another law"
    )
    best = int(row_V.argmax())
    if shaper.keeps_argmax:
        assert bool(out_V[best] == out_V.max()), (
            "keeps_argmax is declared, but the likeliest token is another one"
        )
    if shaper.reads is RowDetail.ARGMAX:
        assert left_V.nonzero()[:, 0].tolist() == [best], (
            "reads ARGMAX is declared, but not just the likeliest token is left"
        )
    return first_V
