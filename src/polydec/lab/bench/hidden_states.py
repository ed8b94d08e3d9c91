"""Hidden-state optimisation: the keys and values of a text, changed by gradient as the text is read, so that what follows is
foretold better."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.prefix_network import Past, forward_with_past


@dataclass(frozen=True)
class StateSteps:
    """How states are changed.

    Attributes:
        rate: Length of a step, in root mean squares of a layer's keys or values. 0: nothing changes.
        segment: Tokens of a segment: behind each all entries take one step.
        bound: Longest change of an entry in a step, as a share of its own length.
        betas: Decays of Adam's two moments.
    """

    rate: float = 1e-3
    segment: int = 32
    bound: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("rate", self.rate, 0, 1),
            ("segment", self.segment, 1, 4096),
            ("bound", self.bound, 0, 1),
        ):
            if not least <= value <= most:
                raise RequestError(f"{name} is {value}: it must lie in {least} to {most}")


@dataclass
class EntryMoments:
    """Adam's moments of one layer's keys or values, an entry for each position that was read.

    An entry that is new begins with nothing, and counts its own steps.

    Attributes:
        first_BHPD: Mean gradients.
        second_BHPD: Mean squares of them.
        steps_P: Steps that each entry took.
    """

    first_BHPD: Tensor
    second_BHPD: Tensor
    steps_P: Tensor

    @staticmethod
    def like_entries(entries_BHPD: Tensor) -> EntryMoments:
        """Moments of no step yet."""
        nothing = torch.zeros_like(entries_BHPD)
        return EntryMoments(nothing, nothing.clone(), torch.zeros(entries_BHPD.shape[2]))

    def step_entries(self, entries_BHPD: Tensor, grad_BHPD: Tensor, how: StateSteps) -> Tensor:
        """Take a step of Adam.

        Args:
            entries_BHPD: Keys or values; those behind the last step's are new.
            grad_BHPD: The loss's gradient by them.
            how: Rates and bounds.

        Returns:
            The changed entries; the moments are changed in place.
        """
        new = entries_BHPD.shape[2] - len(self.steps_P)
        self.first_BHPD = F.pad(self.first_BHPD, (0, 0, 0, new))
        self.second_BHPD = F.pad(self.second_BHPD, (0, 0, 0, new))
        self.steps_P = F.pad(self.steps_P, (0, new)) + 1
        a, b = how.betas
        self.first_BHPD = a * self.first_BHPD + (1 - a) * grad_BHPD
        self.second_BHPD = b * self.second_BHPD + (1 - b) * grad_BHPD.square()
        # Each entry's moments are divided by what its own number of steps has gathered.
        mean = self.first_BHPD / (1 - a**self.steps_P)[:, None]
        square = self.second_BHPD / (1 - b**self.steps_P)[:, None]
        rms = entries_BHPD.square().mean().sqrt()
        step = how.rate * rms * mean / (square.sqrt() + 1e-12)
        most = how.bound * entries_BHPD.norm(dim=-1, keepdim=True)
        size = step.norm(dim=-1, keepdim=True)
        return entries_BHPD - step * (most / size.clamp(min=1e-30)).clamp(max=1.0)


@dataclass
class StateReader:
    """Reads a text in segments and changes what its cache holds behind each.

    Attributes:
        network: The model, whose weights stay.
        how: Rates and bounds.
        past: Keys and values of what was read, by layer.
        moments: Of each layer those of its keys and of its values.
    """

    network: TrainableLlama
    how: StateSteps
    past: Past = field(default_factory=Past)
    moments: list[tuple[EntryMoments, EntryMoments]] = field(
        default_factory=list[tuple[EntryMoments, EntryMoments]]
    )

    def read_segment(self, token_T: Tensor) -> Tensor:
        """Read further tokens; what is foretold of them is scored before anything changes.

        Args:
            token_T: Token ids; the last one is foretold and not read.

        Returns:
            Nats of each token but the first, shape ``[T - 1]``.
        """
        nats_T, past = self._nats(token_T, self.past)
        if not self.how.rate:
            self.past = [(k.detach(), v.detach()) for k, v in past]
            return nats_T.detach()
        # The segment's own entries are among those that change: what comes next reads them.
        entries = [t for pair in past for t in pair]
        grads = torch.autograd.grad(nats_T.sum(), entries)
        if not self.moments:
            self.moments = [
                (EntryMoments.like_entries(k[:, :, :0]), EntryMoments.like_entries(v[:, :, :0]))
                for k, v in past
            ]
        each = [m for pair in self.moments for m in pair]
        moved = [
            m.step_entries(t.detach(), g, self.how)
            for m, t, g in zip(each, entries, grads, strict=True)
        ]
        self.past = list(zip(moved[::2], moved[1::2], strict=True))
        return nats_T.detach()

    def _nats(self, token_T: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Nats of a segment's tokens behind a past, and the past with it."""
        trunk = self.network.model
        x_1TH = trunk.embed_tokens(token_T[None, :-1])
        # Inputs need a gradient themselves, or the first layer's entries would have none.
        hidden, kept = forward_with_past(trunk, x_1TH.detach().requires_grad_(), past or None)
        logits = self.network.token_logits(trunk.norm(hidden))[0].float()
        return F.cross_entropy(logits, token_T[1:], reduction="none"), kept


def text_nats(network: TrainableLlama, token_T: Tensor, how: StateSteps) -> Tensor:
    """Nats of all tokens of a text but the first, read in segments.

    Args:
        network: The model; it is not changed.
        token_T: Token ids, as many as its context holds at most.
        how: Rates and bounds.

    Returns:
        Shape ``[T - 1]``.

    Source: Yoshida and Gimpel, "Reconsidering the past: optimizing hidden states in language
    models" (2021); Yoshida, "Making the most of your model" (2024).
    """
    reader = StateReader(network, how)
    nats = [
        reader.read_segment(token_T[at : at + how.segment + 1])
        for at in range(0, len(token_T) - 1, how.segment)
    ]
    return torch.cat(nats)


def rate_rows(
    network: TrainableLlama, rows: Sequence[Tensor], rates: Sequence[float], segment: int
) -> Iterator[dict[str, Any]]:
    """Perplexity of some texts at each rate.

    Args:
        network: The model.
        rows: Token ids of the texts.
        rates: Rates of `StateSteps`; 0 is the model as it is.
        segment: Tokens of a segment.

    Yields:
        By rate the mean nats, the mean difference to the first rate with its 95 % interval over texts,
        the share of texts that got better, and milliseconds a token.
    """
    base: Tensor | None = None
    for rate in rates:
        began = time.process_time()
        how = StateSteps(rate, segment)
        nats_N = torch.stack([text_nats(network, row, how).mean() for row in rows]).double()
        ms = 1000 * (time.process_time() - began) / sum(len(row) - 1 for row in rows)
        base = nats_N if base is None else base
        change_N = nats_N - base
        half = 1.96 * float(change_N.std()) / math.sqrt(len(rows)) if len(rows) > 1 else 0.0
        yield {
            "rate": rate,
            "nats": round(float(nats_N.mean()), 4),
            "perplexity": round(math.exp(float(nats_N.mean())), 4),
            "change": round(float(change_N.mean()), 4),
            "interval": (
                round(float(change_N.mean()) - half, 4),
                round(float(change_N.mean()) + half, 4),
            ),
            "better": round(float((change_N < 0).double().mean()), 4),
            "ms": round(ms, 4),
        }
