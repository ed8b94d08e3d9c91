"""Named, single-use randomness: a draw is a pure function of (seed, choice index, names)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Name = str | int


class GumbelNoise:
    """Gumbel noise over a vocabulary: `argmax_token(logp)` is a draw from that law, and laws that share
    the noise agree often.
    """

    __slots__ = ("gumbel_V",)

    def __init__(self, gumbel_V: Tensor) -> None:
        self.gumbel_V = gumbel_V

    def argmax_token(self, logp_V: Tensor) -> int:
        # On the host in float64, so that every device draws the same token.
        return int((logp_V.double().cpu() + self.gumbel_V).argmax())

    def first_tokens(self, logp_V: Tensor, k: int) -> tuple[int, ...]:
        """Draw without replacement; the first draw is `argmax_token`.

        Args:
            logp_V: Log-probabilities of the law, shape ``[V]``.
            k: How many draws.

        Returns:
            Token ids in the order drawn; fewer than k where fewer have weight.
        """
        # The k largest of log p + Gumbel noise are k draws without replacement (Gumbel top-k
        # trick).
        value_K, token_K = (logp_V.double().cpu() + self.gumbel_V).topk(min(k, len(self.gumbel_V)))
        return tuple(map(int, token_K[value_K > float("-inf")]))


class Rng:
    """One independent stream for each tuple of names. Drawing twice from one object raises
    RuntimeError.

    Draws are inverses of float64 uniforms made on the host: given the same row they are the same on
    every device.
    """

    __slots__ = ("_key", "_used")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._used = False

    @staticmethod
    def of_choice(seed: int, choice: int = 0) -> Rng:
        """Make the stream of one choice of one request. Nothing else enters, so batches cannot
        change it.

        Args:
            seed: Seed of the request.
            choice: Number of the choice, 0 to n - 1. Default 0.

        Returns:
            The stream.
        """
        return Rng(b"polydec").child_stream(seed, choice)

    def child_stream(self, *names: Name) -> Rng:
        """An independent child, the same for the same names. Pure: it does not use this stream up."""
        # The parent's key is the key of the hash: children of different parents are independent.
        return Rng(blake2b(repr(names).encode(), digest_size=16, key=self._key).digest())

    def _take(self) -> bytes:
        # Two draws from one stream would depend on each other.
        if self._used:
            raise RuntimeError("this Rng was drawn from before; derive a child with .at(name)")
        self._used = True
        return self._key

    def shared_stream(self) -> Rng:
        """The same stream, for guesses and for what checks them: both make the draws of a name,
        and no other draw hangs on it.
        """
        return self

    def draw_uniform(self) -> float:
        """In [0, 1), 53 bits."""
        # The upper 53 of 64 bits fill the mantissa of a float64, so every value is exact.
        return (int.from_bytes(self._take()[:8], "little") >> 11) * 2.0**-53

    def draw_bernoulli(self, a: float) -> bool:
        """True with probability a."""
        return self.draw_uniform() < a

    def draw_categorical(self, p_V: Tensor) -> int:
        """An index drawn by the weights p_V, which need not be normalised, by the inverse CDF of
        one uniform; never one of weight zero.
        """
        import torch  # here, as in `gumbel_noise`: every card is read with this module, and none of them draws

        cdf_V = p_V.double().cumsum(-1)
        total = float(cdf_V[-1])
        # The inverse of the cumulative weights; right=True passes over entries of weight 0.
        i = int(torch.searchsorted(cdf_V, self.draw_uniform() * total, right=True))
        # u * total can round up to the total: then the last entry that has weight is meant
        if i < len(cdf_V):
            return i
        return int(torch.searchsorted(cdf_V, total))

    def without_replacement(self, p_V: Tensor, k: int) -> tuple[int, ...]:
        """Draw several indices without replacement.

        Args:
            p_V: Weights, which need not be normalised, shape ``[V]``.
            k: How many draws.

        Returns:
            Indices in the order drawn, each drawn from what the earlier ones left; fewer than k
            where fewer have weight.
        """
        # The stream counts as used, too: the draws come from its children.
        self._take()
        left_V = p_V.double().clone()
        out = list[int]()
        for i in range(k):
            # Nothing is left that has weight.
            if not float(left_V.sum()) > 0.0:
                break
            # Each draw has a stream of its own, named by its number.
            out.append(self.child_stream(i).draw_categorical(left_V))
            left_V[out[-1]] = 0.0
        return tuple(out)

    def uniform_row(self, size: int) -> NDArray[np.float64]:
        """`size` numbers in (0, 1), float64."""
        import numpy as np

        # 128 bits of the stream's key are the key of a counter-based generator.
        words = np.frombuffer(self._take(), dtype=np.uint64)
        u_N = np.random.Generator(np.random.Philox(key=words)).random(size)
        # 0 has no logarithm, so a number is at least half of the smallest step.
        return np.maximum(u_N, 2.0**-54)

    def gumbel_noise(self, size: int) -> GumbelNoise:
        """Gumbel noise for `size` tokens."""
        import numpy as np
        import torch

        # Gumbel noise is -log(-log u).
        return GumbelNoise(torch.tensor(-np.log(-np.log(self.uniform_row(size)))))

    def normal_row(self, size: int) -> Tensor:
        """`size` draws from the standard normal law, float64."""
        import torch

        # The inverse of its distribution function, as every other draw is one.
        special: Any = torch.special
        return special.ndtri(torch.tensor(self.uniform_row(size)))
