"""How far the laws of a kept cache are from those of a pass over the whole canvas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from polydec.api import LoadedModel, Prompt
from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.decoder import answer_one
from polydec.core.delegating import DelegatingDenoiser
from polydec.core.law import normalise_log_weights
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.methods.registry import registry

STALE = 1e-4
"""Nats by which a pass that feeds everything may differ from a fresh one: rounding."""


@dataclass(frozen=True)
class CacheDrift:
    """Over the laws that a method looked at: nats is the divergence KL(uncached || cached), its mean and largest value; moved:
    the share of laws whose likeliest token was another; rows: how many laws; passes: of the method, without those that
    compare; stale: the first pass (from 1) that fed everything and yet gave laws of something kept, against every cache's own
    definition."""

    rows: int
    nats: float
    most: float
    moved: float
    passes: int
    stale: int | None = None


def measure_cache_drift(
    lm: LoadedModel,
    prompt: Prompt,
    method: str,
    options: Mapping[str, Any],
    *,
    sampling: Sampling,
    max_tokens: int,
    raw: bool = False,
    seed: int = 0,
) -> CacheDrift:
    """Of one answer of a masked-diffusion model: every pass is followed by one that keeps nothing. Raises RequestError for a
    method or options that cannot decode the model."""
    watched = WatchedDenoiser(lm.checkpoint.lm)
    kit = replace(
        lm.kit(), target=watched, shapers=build_shapers(sampling, order="vllm", seed=seed, choice=0)
    )
    decoder, _ = registry.build(method, kit, options)
    run_coroutines([answer_one(decoder, Request(lm.ids(prompt, raw=raw), max_tokens, seed=seed))])
    nats_N = torch.cat(watched.nats)
    return CacheDrift(
        len(nats_N),
        float(nats_N.mean()),
        float(nats_N.max()),
        float(torch.cat(watched.moved).double().mean()),
        len(watched.nats),
        next(
            (
                i
                for i, (nats_R, all_) in enumerate(zip(watched.nats, watched.whole), 1)
                if all_ and float(nats_R.max()) > STALE
            ),
            None,
        ),
    )


@dataclass(frozen=True)
class WatchedDenoiser(DelegatingDenoiser):
    """A denoiser whose boards compare each pass with one that feeds everything; nats, moved: what was found, pass by
    pass; whole: whether a pass fed everything."""

    denoiser: Denoiser
    nats: list[Tensor] = field(default_factory=list[Tensor])
    moved: list[Tensor] = field(default_factory=list[Tensor])
    whole: list[bool] = field(default_factory=list[bool])

    def open(self, length: int, prompt: int = 0) -> WatchedBoard:
        return WatchedBoard(self, self.denoiser.open(length, prompt), prompt)


class WatchedBoard:
    """A board, and a fresh one beside it for each pass."""

    def __init__(self, watched: WatchedDenoiser, board: CanvasSession, prompt: int) -> None:
        self._watched = watched
        self._board = board
        self._prompt = prompt

    async def score(self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]) -> Tensor:
        got_RV = await self._board.score(canvas, rows, feed)
        await self._compare(got_RV, canvas, rows, feed)
        return got_RV

    async def read(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """What is compared are the laws of the gaps that were fed."""
        state_FH = await self._board.read(canvas, feed)
        index = [i for i, at in enumerate(feed) if canvas[at] is None]
        rows = [feed[i] for i in index]
        await self._compare(self._watched.laws(state_FH[index], rows), canvas, rows, feed)
        return state_FH

    async def _compare(
        self, got_RV: Tensor, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]
    ) -> None:
        fresh = self._watched.denoiser.open(len(canvas), self._prompt)
        own = self._watched.block
        if own:
            stop = min(len(canvas), -(-(feed[-1] + 1) // own) * own)
        else:
            stop = len(canvas)
        try:
            true_RV = normalise_log_weights(await fresh.score(canvas, rows, range(stop)))
        finally:
            fresh.close()
        terms_RV = true_RV.exp() * (true_RV - normalise_log_weights(got_RV))
        self._watched.nats.append(
            terms_RV.masked_fill(true_RV == float("-inf"), 0.0).sum(-1).clamp(min=0.0)
        )
        self._watched.whole.append(list(feed) == list(range(stop)))
        self._watched.moved.append(true_RV.argmax(-1) != got_RV.argmax(-1))

    def fork(self) -> WatchedBoard:
        return WatchedBoard(self._watched, self._board.fork(), self._prompt)

    def close(self) -> None:
        self._board.close()
