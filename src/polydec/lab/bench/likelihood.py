"""How likely a model finds a text behind another: exactly where it continues texts, by draws where
it fills canvases.

Source of the estimate for masked diffusion: LLaDA (Nie et al. 2025), whose evaluation draws a
number of masks, then the places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb, fsum, sqrt
from typing import Any

from torch import Tensor

from polydec.api import Ask, Engine, LoadedModel
from polydec.base.errors import RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.law import normalise_log_weights
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.methods.registry.family import AUTOREGRESSIVE, MASKED_DIFFUSION, family_of

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids: a context, and the text behind it, each of at least one."""


@dataclass(frozen=True)
class TextLikelihood:
    """How likely a model finds a text after a context.

    Attributes:
        logp: Log-probability of the text in nats. Under a masked-diffusion model it is the mean
            over all orders in which the text may be written, a lower bound of the model's own.
        greedy: Whether the model at temperature 0 writes this text.
        error: Standard error of `logp`; 0 where nothing was drawn.
        passes: Forward passes that it took, counted for each text alone.
    """

    logp: float
    greedy: bool
    error: float = 0.0
    passes: int = 1


def text_likelihoods(
    lm: LoadedModel,
    pairs: Sequence[Pair],
    *,
    draws: int = 128,
    seed: int = 0,
    at_once: int = 16,
    most: int | None = None,
) -> list[TextLikelihood]:
    """Score texts after their contexts. A context that is too long loses its beginning.

    Args:
        lm: An autoregressive or masked-diffusion model.
        pairs: Token ids of context and text, each of at least one token.
        draws: Canvases for each text under a masked-diffusion model, at least 2. A text with no
            more sets of gaps than this is scored over all of them, without draws. Default 128.
        seed: Names the randomness. Default 0.
        at_once: Texts, or canvases of one text, whose passes are merged, at least 1. Default 16.
        most: Tokens of a context and its text together; None: as many as the model has room for.

    Returns:
        The likelihood of each pair, in order.

    Raises:
        RequestError: A number is out of range, a text is empty or too long, or the model writes in
            another way.
    """
    for name, value, least in (("draws", draws, 2), ("at_once", at_once, 1)):
        if value < least:
            raise RequestError(f"{name} is {value}: it must be at least {least}")
    family = family_of(lm.checkpoint.lm)
    law = lm.checkpoint.lm
    # Other kinds have no chance of a text by itself.
    if family not in (AUTOREGRESSIVE, MASKED_DIFFUSION) or hasattr(law, "encoder"):
        if hasattr(law, "encoder"):
            kind = "an encoder-decoder"
        else:
            kind = family.called
        raise RequestError(
            f"{lm.name} is {kind} model: texts are scored under models that continue texts or fill canvases"
        )
    room = (
        law.context if family is MASKED_DIFFUSION else law.context - 1
    )  # a pass writes one more token
    cut = [_fitting(pair, room if most is None else min(most, room)) for pair in pairs]
    if family.continues_text:
        return _continued(lm, cut, at_once)
    # The draws depend on context and text alone, so the likelihood is the same in any batch.
    named = [
        Rng.of_choice(seed).child_stream("likelihood", *context, "then", *text)
        for context, text in cut
    ]
    return [
        run_coroutines([_masked(law, context, text, draws, at_once, rng)])[0]
        for (context, text), rng in zip(cut, named, strict=True)
    ]


def _fitting(pair: Pair, room: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    context, text = map(tuple, pair)
    if not context or not text:
        raise RequestError("a context or a text is empty: each needs at least one token")
    if len(text) >= room:
        raise RequestError(f"a text has {len(text)} tokens: there is room for {room - 1}")
    return context[max(0, len(context) + len(text) - room) :], text


def _continued(lm: LoadedModel, pairs: Sequence[Pair], at_once: int) -> list[TextLikelihood]:
    """One pass a text tells all of its laws."""
    engine = Engine(lm, max_running=at_once)
    tickets = [
        # The text goes in as part of the prompt, whose log-probabilities one pass gives.
        engine.submit(Ask((*context, *text), method="plain", max_tokens=1, prompt_logprobs=0))
        for context, text in pairs
    ]
    engine.run(tickets)
    scored: list[TextLikelihood] = []
    for ticket, (_, text) in zip(tickets, pairs, strict=True):
        tokens = (ticket.completion().prompt_logprobs or ())[-len(text) :]
        logps = [float("nan") if t.model_logp is None else t.model_logp for t in tokens]
        scored.append(TextLikelihood(fsum(logps), all(t.rank == 1 for t in tokens)))
    return scored


async def _masked(
    law: Any,
    context: tuple[int, ...],
    text: tuple[int, ...],
    draws: int,
    at_once: int,
    rng: Rng,
) -> TextLikelihood:
    """Block by block under a block-causal model, whose later blocks are not seen by the earlier
    ones."""
    whole = (*context, *text)
    start = len(context)
    logp = 0.0
    variance = 0.0
    passes = 0
    for number, places in enumerate(_parts(start, len(whole), law.block)):
        # Few positions: all nonempty sets of gaps are scored, and the mean is exact.
        if 2 ** len(places) - 1 <= draws:
            sets = list(_all_sets(places))
        else:
            sets = None
        chosen = sets or [
            _drawn(places, rng.child_stream("set", number, draw)) for draw in range(draws)
        ]
        # Each value estimates the log-probability of all positions of this block.
        values: list[float] = []
        for at in range(0, len(chosen), at_once):
            group = chosen[at : at + at_once]
            values += await gather_coroutines(
                *(_filled_in(law, whole, places, gaps) for gaps in group)
            )
        passes += len(chosen)
        if sets:
            # The mean over the number of gaps, then over the sets of that many gaps.
            weights = [1.0 / (len(places) * comb(len(places), len(gaps))) for gaps in sets]
            logp += fsum(w * x for w, x in zip(weights, values, strict=True))
        else:
            # The variance of the block's mean; blocks are drawn independently, so variances add.
            mean = fsum(values) / draws
            logp += mean
            variance += fsum((x - mean) ** 2 for x in values) / (draws - 1) / draws
    greedy, more = await _is_greedy(law, whole, start)
    return TextLikelihood(logp, greedy, sqrt(variance), passes + more)


def _parts(start: int, stop: int, block: int) -> Iterator[range]:
    """The positions of the text that are written together."""
    if block:
        edges = range(start - start % block + block, stop, block)
    else:
        edges = ()
    bounds = [start, *edges, stop]
    for first, last in pairwise(bounds):
        yield range(first, last)


def _all_sets(places: range) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(places) + 1):
        yield from combinations(places, count)


def _drawn(places: range, rng: Rng) -> tuple[int, ...]:
    """Some of the places: how many is drawn first, each number as likely as the others."""
    count = 1 + int(rng.draw_uniform() * len(places))
    order = sorted(places, key=lambda p: rng.child_stream("place", p).draw_uniform())
    return tuple(sorted(order[:count]))


async def _laws(law: Any, whole: tuple[int, ...], stop: int, gaps: tuple[int, ...]) -> Tensor:
    """Log-probabilities at these gaps, where the text up to `stop` is known but for them, RV."""
    hidden = frozenset(gaps)
    canvas = tuple(None if i in hidden else x for i, x in enumerate(whole[:stop]))
    board = law.open_canvas(stop, 0)
    try:
        return normalise_log_weights(await board.score_canvas(canvas, gaps, range(stop)))
    finally:
        board.close()


async def _filled_in(
    law: Any, whole: tuple[int, ...], places: range, gaps: tuple[int, ...]
) -> float:
    """What one set of gaps says of all places: each of its gaps stands for as many places."""
    # Under a block-causal model later blocks are not part of what the canvas sees.
    if law.block:
        stop = places.stop
    else:
        stop = len(whole)
    logp_RV = await _laws(law, whole, stop, gaps)
    return len(places) / len(gaps) * fsum(logp_RV[i, whole[p]].item() for i, p in enumerate(gaps))


async def _is_greedy(law: Any, whole: tuple[int, ...], start: int) -> tuple[bool, int]:
    """Whether the surest gap always gets the text's token, and how many passes told that."""
    passes = 0
    for places in _parts(start, len(whole), law.block):
        gaps = tuple(places)
        # Fill the surest gap first, as greedy decoding does, one pass a gap.
        while gaps:
            if law.block:
                stop = places.stop
            else:
                stop = len(whole)
            logp_RV = await _laws(law, whole, stop, gaps)
            passes += 1
            best_R = logp_RV.max(-1)
            surest = int(best_R.values.argmax())
            if int(best_R.indices[surest]) != whole[gaps[surest]]:
                return False, passes
            gaps = (*gaps[:surest], *gaps[surest + 1 :])
    return True, passes
