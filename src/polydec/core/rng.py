"""Named, single-use randomness: a draw is a pure function of (seed, choice index, names)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Name = str | int


class GumbelNoise:
    """Gumbel noise over a vocabulary: `argmax(logp)` is a draw from that law, and laws that share the noise agree often."""

    __slots__ = ("gumbel_V",)

    def __init__(self, gumbel_V: Tensor) -> None:
        self.gumbel_V = gumbel_V

    def argmax(self, logp_V: Tensor) -> int:
        return int((logp_V.double().cpu() + self.gumbel_V).argmax())

    def topk(self, logp_V: Tensor, k: int) -> tuple[int, ...]:
        """k draws without replacement, the first one being `argmax`; fewer where fewer have weight."""
        value_K, token_K = (logp_V.double().cpu() + self.gumbel_V).topk(min(k, len(self.gumbel_V)))
        return tuple(map(int, token_K[value_K > float("-inf")]))


class Rng:
    """One independent stream for each tuple of names. Drawing twice from one object raises RuntimeError.

    Draws are inverses of float64 uniforms made on the host: given the same row they are the same on every device.
    """

    __slots__ = ("_key", "_used")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._used = False

    @staticmethod
    def of(seed: int, choice: int = 0) -> Rng:
        """The stream of one choice (0 .. n - 1) of one request, by its seed. Nothing else enters, so batches cannot change
        it."""
        return Rng(b"polydec").at(seed, choice)

    def at(self, *names: Name) -> Rng:
        """An independent child, the same for the same names. Pure: it does not use this stream up."""
        return Rng(blake2b(repr(names).encode(), digest_size=16, key=self._key).digest())

    def _take(self) -> bytes:
        if self._used:
            raise RuntimeError("this Rng was drawn from before; derive a child with .at(name)")
        self._used = True
        return self._key

    def shared(self) -> Rng:
        """The same stream, for guesses and for what checks them: both make the draws of a name, and no other draw hangs on
        it."""
        return self

    def uniform(self) -> float:
        """In [0, 1), 53 bits."""
        return (int.from_bytes(self._take()[:8], "little") >> 11) * 2.0**-53

    def bernoulli(self, a: float) -> bool:
        """True with probability a."""
        return self.uniform() < a

    def categorical(self, p_V: Tensor) -> int:
        """An index drawn by the weights p_V, which need not be normalised, by the inverse CDF of one uniform; never one of
        weight zero."""
        import torch  # here, as in `noise`: every card is read with this module, and none of them draws

        cdf_V = p_V.double().cumsum(-1)
        total = float(cdf_V[-1])
        i = int(torch.searchsorted(cdf_V, self.uniform() * total, right=True))
        # u * total can round up to the total: then the last entry that has weight is meant
        if i < len(cdf_V):
            return i
        return int(torch.searchsorted(cdf_V, total))

    def without_replacement(self, p_V: Tensor, k: int) -> tuple[int, ...]:
        """k draws by the weights p_V in order, each from what the earlier ones left; fewer where fewer have weight."""
        self._take()
        left_V = p_V.double().clone()
        out = list[int]()
        for i in range(k):
            if not float(left_V.sum()) > 0.0:
                break
            out.append(self.at(i).categorical(left_V))
            left_V[out[-1]] = 0.0
        return tuple(out)

    def noise(self, size: int) -> GumbelNoise:
        """Gumbel noise for `size` tokens."""
        import numpy as np
        import torch

        words = np.frombuffer(self._take(), dtype=np.uint64)
        u_V = np.random.Generator(np.random.Philox(key=words)).random(size)
        return GumbelNoise(torch.tensor(-np.log(-np.log(np.maximum(u_V, 2.0**-54)))))
