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
    """How far cached laws are from uncached ones, over the laws that a method looked at.

    Attributes:
        rows: How many laws were compared.
        nats: Mean of the divergence KL(uncached || cached).
        most: The largest divergence, nats.
        moved: Share of laws whose likeliest token is another one.
        passes: Passes of the method, without those that compare.
        stale: The first pass (from 1) that fed everything and yet gave laws of cached states, which
            no cache may do; None: there is none.
    """

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
    """Measure the drift of a cache over one answer of a masked-diffusion model: each pass is
    followed by one without a cache.

    Args:
        lm: The loaded model.
        prompt: Text, chat messages or token ids.
        method: Name of a method that fills a canvas.
        options: Its options, a cache among them.
        sampling: Sampling rules of the answer.
        max_tokens: Positions of the answer.
        raw: Whether the prompt goes in without the chat template. Default false.
        seed: Names the randomness. Default 0.

    Returns:
        The drift over all passes.

    Raises:
        RequestError: The method or its options cannot decode the model.
    """
    watched = WatchedDenoiser(lm.checkpoint.lm)
    # The method sees the watched model in the model's place; all else is as in a request.
    kit = replace(
        lm.recipe_kit(),
        target=watched,
        shapers=build_shapers(sampling, order="vllm", seed=seed, choice=0),
    )
    decoder, _ = registry.build(method, kit, options)
    run_coroutines(
        [answer_one(decoder, Request(lm.encode_prompt(prompt, raw=raw), max_tokens, seed=seed))]
    )
    nats_N = torch.cat(watched.nats)
    return CacheDrift(
        len(nats_N),
        float(nats_N.mean()),
        float(nats_N.max()),
        float(torch.cat(watched.moved).double().mean()),
        len(watched.nats),
        # A pass that feeds everything recomputes every state: only rounding may remain.
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
    """A denoiser whose canvases compare each pass with one that feeds everything.

    Attributes:
        denoiser: The model under watch.
        nats: Divergences of each pass, one tensor [R] a pass.
        moved: Whether the likeliest token is another one, one tensor [R] a pass.
        whole: Whether each pass fed everything.
    """

    denoiser: Denoiser
    nats: list[Tensor] = field(default_factory=list[Tensor])
    moved: list[Tensor] = field(default_factory=list[Tensor])
    whole: list[bool] = field(default_factory=list[bool])

    def open_canvas(self, length: int, prompt: int = 0) -> WatchedBoard:
        """Open a canvas whose passes are compared.

        Args:
            length: Positions of the canvas.
            prompt: How many of its first positions are the prompt. Default 0.

        Returns:
            The canvas under watch.
        """
        # The model's own canvas still does the work of the method.
        return WatchedBoard(self, self.denoiser.open_canvas(length, prompt), prompt)


class WatchedBoard:
    """A canvas under watch, and a fresh one for each pass to compare it with."""

    def __init__(self, watched: WatchedDenoiser, board: CanvasSession, prompt: int) -> None:
        self._watched = watched
        self._board = board
        self._prompt = prompt

    async def score_canvas(
        self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]
    ) -> Tensor:
        """Run a pass and compare its laws with those of a pass without a cache.

        Args:
            canvas: Token ids by position, None for a gap.
            rows: Positions whose laws are wanted, ascending, all in `feed`.
            feed: Positions that run in this pass, ascending.

        Returns:
            Log-weights as the cached pass gives them, shape ``[R, V]``.
        """
        got_RV = await self._board.score_canvas(canvas, rows, feed)
        await self._compare(got_RV, canvas, rows, feed)
        return got_RV

    async def read_canvas(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """Run a pass for states; the laws of the gaps that it fed are compared.

        Args:
            canvas: Token ids by position, None for a gap.
            feed: Positions that run in this pass, ascending.

        Returns:
            The state of each fed position, shape ``[F, H]``.
        """
        state_FH = await self._board.read_canvas(canvas, feed)
        # Only gaps have a law of their own; states of known tokens are fed for the cache.
        index = [i for i, at in enumerate(feed) if canvas[at] is None]
        rows = [feed[i] for i in index]
        await self._compare(self._watched.laws_of_states(state_FH[index], rows), canvas, rows, feed)
        return state_FH

    async def _compare(
        self, got_RV: Tensor, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]
    ) -> None:
        # A canvas of its own for every pass: nothing can be left over in it.
        fresh = self._watched.denoiser.open_canvas(len(canvas), self._prompt)
        # A block-causal model sees up to the end of the last fed block; any other one sees the
        # whole canvas.
        own = self._watched.block
        if own:
            stop = min(len(canvas), -(-(feed[-1] + 1) // own) * own)
        else:
            stop = len(canvas)
        try:
            true_RV = normalise_log_weights(await fresh.score_canvas(canvas, rows, range(stop)))
        finally:
            fresh.close()
        # KL(uncached || cached) by row; 0 * -inf at impossible tokens would be NaN.
        terms_RV = true_RV.exp() * (true_RV - normalise_log_weights(got_RV))
        self._watched.nats.append(
            terms_RV.masked_fill(true_RV == float("-inf"), 0.0).sum(-1).clamp(min=0.0)
        )
        # Such a pass recomputes every state, so any difference beyond rounding is a stale cache.
        self._watched.whole.append(list(feed) == list(range(stop)))
        self._watched.moved.append(true_RV.argmax(-1) != got_RV.argmax(-1))

    def fork(self) -> WatchedBoard:
        return WatchedBoard(self._watched, self._board.fork(), self._prompt)

    def close(self) -> None:
        self._board.close()
