"""Real randomness that refuses to give the same draw twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polydec.core.rng import GumbelNoise, Rng


class StrictRng:
    """Rng, but a name that was drawn from in this run raises RuntimeError when it is drawn from
    again.

    It does so through another object, too. Noise is meant to be shared by name: it may be asked for
    again, as noise.

    Args:
        rng: The randomness that draws.
        name: Name of this stream, from the root of the run.
        drawn: Names that were drawn from, shared by all streams of a run. None: none yet.
        noises: Names whose noise was asked for, shared as well. None: none yet.
    """

    def __init__(
        self,
        rng: Rng,
        name: tuple[Any, ...] = (),
        drawn: set[Any] | None = None,
        noises: set[Any] | None = None,
    ) -> None:
        self._rng = rng
        self._name = name
        self._drawn: set[Any] = set() if drawn is None else drawn
        self._noises: set[Any] = set() if noises is None else noises

    @staticmethod
    def of_choice(seed: int, choice: int = 0) -> StrictRng:
        """Open the stream of a run.

        Args:
            seed: Seed of the request.
            choice: Choice of the request. Default 0.

        Returns:
            The stream, nothing of which was drawn from.
        """
        return StrictRng(Rng.of_choice(seed, choice))

    def child_stream(self, *names: Any) -> StrictRng:
        return StrictRng(
            self._rng.child_stream(*names), (*self._name, *names), self._drawn, self._noises
        )

    def shared_stream(self) -> Rng:
        return self._rng

    def _take(self) -> Rng:
        # A draw under the name of a noise would not be independent of it.
        if self._name in self._drawn | self._noises:
            raise RuntimeError(f"drawn twice under one name: {self._name}")
        self._drawn.add(self._name)
        return self._rng

    def draw_uniform(self) -> float:
        return self._take().draw_uniform()

    def draw_bernoulli(self, a: float) -> bool:
        return self._take().draw_bernoulli(a)

    def draw_categorical(self, p_V: Tensor) -> int:
        return self._take().draw_categorical(p_V)

    def without_replacement(self, p_V: Tensor, k: int) -> tuple[int, ...]:
        """Draw tokens without replacement.

        Args:
            p_V: Probabilities, shape ``[V]``.
            k: How many tokens.

        Returns:
            The tokens in the order drawn.

        Raises:
            RuntimeError: This name was used before.
        """
        return self._take().without_replacement(p_V, k)

    def uniform_row(self, size: int) -> NDArray[np.float64]:
        return self._take().uniform_row(size)

    def normal_row(self, size: int) -> Tensor:
        return self._take().normal_row(size)

    def gumbel_noise(self, size: int) -> GumbelNoise:
        # The same noise twice is one noise: only a name that was drawn from is refused.
        if self._name in self._drawn:
            raise RuntimeError(f"noise under a name that was drawn from: {self._name}")
        self._noises.add(self._name)
        return self._rng.gumbel_noise(size)
