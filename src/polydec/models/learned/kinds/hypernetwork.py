"""What makes the vector of several tokens that are read as one, of their own vectors (dynamic
tokenization)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import HypernetworkFields
from polydec.models.learned.reader import BidirectionalEncoder
from polydec.models.learned.recent_tensors import recent_tensor

KIND = artefact.ArtefactKind(
    "hypernetwork", "hypernetwork", "hypernetwork.safetensors", "hypernetwork"
)

KEPT = 5000
"""Units whose vectors are kept, those that were asked for last."""


@dataclass(frozen=True)
class HypernetworkSizes:
    """longest: tokens of a unit; encoder: what reads them; target: width of the model's embeddings."""

    longest: int
    encoder: BidirectionalEncoder
    target: int

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor, by name."""
        W = self.encoder.width
        return self.encoder.shapes | {"into": (W, self.target), "out": (self.target, W)}


def unit_vectors(
    s: HypernetworkSizes, t: Mapping[str, Tensor], part_NKH: Tensor, there_NK: Tensor
) -> Tensor:
    """Make the vector of each unit: the mean of its tokens' vectors, and what the network adds.

    Args:
        s: Sizes of the network.
        t: The tensors of `HypernetworkSizes.tensor_shapes`, by name.
        part_NKH: What enters the model for the tokens of N units, shape ``[N, K, H]``.
        there_NK: Where a unit has a token, shape ``[N, K]``, bool; at least at its first place.

    Returns:
        The vectors, shape ``[N, H]``.
    """
    # Embeddings are small numbers; the network reads them at a size of 1.
    x_NKW = F.linear(F.rms_norm(part_NKH, part_NKH.shape[-1:]), t["into"])
    # The state at the first token stands for the unit: it has seen all others.
    state = s.encoder.sequence_states(t, x_NKW, there_NK)[:, 0]
    # The mean is over a unit's own tokens, without the places that only pad it.
    there = there_NK[..., None].to(part_NKH.dtype)
    return (part_NKH * there).sum(1) / there.sum(1) + F.linear(state, t["out"])


@dataclass(frozen=True, eq=False)
class MergedTokenMaker:
    """tensors: of `HypernetworkSizes.tensor_shapes`. Arithmetic is fp32, and a unit is read alone, so that its
    vector depends on its tokens and on nothing else, to the bit."""

    called: ClassVar[str] = "a hypernetwork"
    kind: ClassVar[str] = "hypernetwork"
    made_by: ClassVar[str] = KIND.training_command

    vocab: TokenVocabulary
    sizes: HypernetworkSizes
    tensors: Mapping[str, Tensor]

    @property
    def longest_unit(self) -> int:
        """Tokens that it reads as one, at most."""
        return self.sizes.longest

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The target's embeddings have another width than what is made.
        """
        target.vocab.require_same(self.vocab, "the target of the hypernetwork")
        artefact.require_width(target, self.sizes.target, "the vectors of a hypernetwork")

    @cached_property
    def kept_vectors(self) -> OrderedDict[tuple[int, ...], Tensor]:
        """By its tokens, the vector of a unit."""
        return OrderedDict()

    @torch.no_grad()
    def unit_vector(self, unit: Sequence[int], part_KH: Tensor) -> Tensor:
        """Make the vector of one unit.

        Args:
            unit: Its token ids, one to `longest`.
            part_KH: What enters the model for them, shape ``[K, H]``.

        Returns:
            The vector, shape ``[H]``.
        """
        # The tokens alone name a vector: one network serves one model, so the same tokens always
        # bring the same embeddings.
        name = tuple(unit)

        def read_alone() -> Tensor:
            # A unit is read by itself, as padding beside longer ones could change its last bits.
            there = torch.ones(1, len(name), dtype=torch.bool)
            return unit_vectors(self.sizes, self.tensors, part_KH[None].float(), there)[0]

        return recent_tensor(self.kept_vectors, name, read_alone, KEPT)


def new_hypernetwork_tensors(s: HypernetworkSizes, seed: int) -> dict[str, Tensor]:
    """Make tensors to begin with: the vector of a unit is the mean of its tokens' vectors.

    Args:
        s: Sizes of the network.
        seed: Seed of the numbers.

    Returns:
        The tensors of `HypernetworkSizes.tensor_shapes`, by name; `out` is zeros.
    """
    dice = torch.Generator().manual_seed(seed)
    W = s.encoder.width
    into = torch.randn(W, s.target, generator=dice) * s.target**-0.5
    return s.encoder.draw_tensors(dice) | {"into": into, "out": torch.zeros(s.target, W)}


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[MergedTokenMaker, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width of the target's embeddings.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One network for units of up to 4 tokens.
    """
    s = HypernetworkSizes(4, BidirectionalEncoder(16, 1, 2, 4), width)
    tensors = new_hypernetwork_tensors(s, 23)
    # Zeros would make plain means, and a test could not see whether the network was used.
    tensors["out"] = torch.randn(width, 16, generator=torch.Generator().manual_seed(24)) * 0.1
    return (MergedTokenMaker(vocab, s, tensors),)


def save(path: str | Path, made: MergedTokenMaker, about: Mapping[str, Any]) -> None:
    """Write hypernetwork.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        made: The network.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    s = made.sizes
    sizes = {
        "vocab_size": made.vocab.size,
        "tokenizer": made.vocab.tokenizer,
        "longest": s.longest,
        "width": s.encoder.width,
        "layers": s.encoder.layers,
        "heads": s.encoder.heads,
        "target": s.target,
    }
    artefact.save_artefact(
        path, KIND, {k: v.float() for k, v in made.tensors.items()}, {**about, **sizes}
    )


def load(path: str | Path) -> MergedTokenMaker:
    """What `save` wrote into a directory. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(HypernetworkFields, config, artefact.CONFIG)
        encoder = BidirectionalEncoder(c.width, c.layers, c.heads, c.longest)
        s = HypernetworkSizes(c.longest, encoder, c.target)
        tensors = artefact.read_float_tensors(t, KIND, s.tensor_shapes)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return MergedTokenMaker(vocab, s, tensors)
