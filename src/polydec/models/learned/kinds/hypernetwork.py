"""What makes the vector of several tokens that are read as one, of their own vectors (dynamic
tokenization)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from polydec.base.errors import FileError
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

LIFT = -3.0
"""Log of how much rarer than its first token a unit of answers is before anything is learned."""

KEPT = 5000
"""Units whose vectors are kept, those that were asked for last."""


@dataclass(frozen=True)
class HypernetworkSizes:
    """longest: tokens of a unit; encoder: what reads them; target: width of the model's embeddings;
    answers: units that an answer may be written in, 0 where it is written in tokens."""

    longest: int
    encoder: BidirectionalEncoder
    target: int
    answers: int = 0

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor, by name."""
        W = self.encoder.width
        shapes = self.encoder.shapes | {"into": (W, self.target), "out": (self.target, W)}
        if self.answers:
            # What foretells a unit, beside what foretells its first token.
            shapes |= {"foretells": (self.target, W), "rise": (1, W), "lift": (1,)}
        return shapes

    @property
    def unit_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensor of units, where there are some: ids, -1 behind the last one."""
        return {"units": (self.answers, self.longest)} if self.answers else {}


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
    state = unit_states(s, t, part_NKH, there_NK)
    # The mean is over a unit's own tokens, without the places that only pad it.
    there = there_NK[..., None].to(part_NKH.dtype)
    return (part_NKH * there).sum(1) / there.sum(1) + F.linear(state, t["out"])


def unit_states(
    s: HypernetworkSizes, t: Mapping[str, Tensor], part_NKH: Tensor, there_NK: Tensor
) -> Tensor:
    """Read each unit.

    Args:
        s: As for `unit_vectors`.
        t: As for `unit_vectors`.
        part_NKH: As for `unit_vectors`.
        there_NK: As for `unit_vectors`.

    Returns:
        The network's state of each unit, shape ``[N, W]``.
    """
    # Embeddings are small numbers; the network reads them at a size of 1.
    x_NKW = F.linear(F.rms_norm(part_NKH, part_NKH.shape[-1:]), t["into"])
    # The state at the first token stands for the unit: it has seen all others.
    return s.encoder.sequence_states(t, x_NKW, there_NK)[:, 0]


def unit_rises(t: Mapping[str, Tensor], unit_NW: Tensor, state_BH: Tensor) -> Tensor:
    """How much likelier each unit is than the law makes its first token.

    Args:
        t: The tensors of `HypernetworkSizes.tensor_shapes`, by name.
        unit_NW: The network's states of units, shape ``[N, W]``.
        state_BH: States of the model, as its head reads them, shape ``[B, H]``.

    Returns:
        What is added to the log-weight of the first token, shape ``[B, N]``.
    """
    rise_N1 = F.linear(unit_NW, t["rise"]) + t["lift"]
    return state_BH @ F.linear(unit_NW, t["foretells"]).T + rise_N1.T


@dataclass(frozen=True, eq=False)
class MergedTokenMaker:
    """tensors: of both shapes of the sizes. Arithmetic is fp32, and a unit is read alone, so that its
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

    @property
    def answer_units(self) -> tuple[tuple[int, ...], ...]:
        """The units that an answer may be written in, the most frequent first."""
        if not self.sizes.answers:
            return ()
        return tuple(tuple(int(x) for x in row if x >= 0) for row in self.tensors["units"].tolist())

    @cached_property
    def kept_answers(self) -> dict[str, tuple[Tensor, Tensor]]:
        """What `answer_vectors` made: one network serves one model."""
        return {}

    @torch.no_grad()
    def answer_vectors(self, embed: Callable[[Sequence[int]], Tensor]) -> tuple[Tensor, Tensor]:
        """Make what is read and what foretells, of all units of answers.

        Args:
            embed: Gives what enters the model for some tokens, shape ``[K, H]``.

        Returns:
            Vectors that are read in the place of units, shape ``[N, H]``, and the network's states
            of these, shape ``[N, W]``.
        """
        if "made" not in self.kept_answers:
            # All units at once, always in one order: the same numbers in any company.
            rows = [torch.tensor(unit) for unit in self.answer_units]
            token_NK = pad_sequence(rows, batch_first=True)
            there_NK = pad_sequence([torch.ones_like(x) for x in rows], batch_first=True).bool()
            part_NKH = embed(token_NK.flatten().tolist()).float().unflatten(0, token_NK.shape)
            self.kept_answers["made"] = (
                unit_vectors(self.sizes, self.tensors, part_NKH, there_NK),
                unit_states(self.sizes, self.tensors, part_NKH, there_NK),
            )
        return self.kept_answers["made"]

    @torch.no_grad()
    def answer_rises(self, unit_NW: Tensor, state_H: Tensor) -> Tensor:
        """How much likelier each unit is than its first token is.

        Args:
            unit_NW: States of units, as `answer_vectors` made them.
            state_H: State of the model, as its head reads it.

        Returns:
            What is added to the log-weight of the first token, shape ``[N]``.
        """
        return unit_rises(self.tensors, unit_NW, state_H[None].float())[0]

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
        The tensors of `HypernetworkSizes.tensor_shapes`, by name; `out` is zeros, and every unit of
        answers is as much rarer than its first token.
    """
    dice = torch.Generator().manual_seed(seed)
    W = s.encoder.width
    into = torch.randn(W, s.target, generator=dice) * s.target**-0.5
    made = s.encoder.draw_tensors(dice) | {"into": into, "out": torch.zeros(s.target, W)}
    if s.answers:
        # A unit is rarer than its first token.
        lift = torch.full((1,), LIFT)
        made |= {"foretells": torch.zeros(s.target, W), "rise": torch.zeros(1, W), "lift": lift}
    return made


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[MergedTokenMaker, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width of the target's embeddings.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One network for units of up to 4 tokens, with three units for answers.
    """
    s = HypernetworkSizes(4, BidirectionalEncoder(16, 1, 2, 4), width, 3)
    tensors = new_hypernetwork_tensors(s, 23)
    # Zeros would make plain means, and a test could not see whether the network was used.
    tensors["out"] = torch.randn(width, 16, generator=torch.Generator().manual_seed(24)) * 0.1
    tensors["foretells"] = torch.randn(width, 16, generator=torch.Generator().manual_seed(25)) * 0.1
    # As likely as its first token: units are written, and tokens, too.
    tensors["lift"] = torch.zeros(1)
    small = [[min(x, vocab.size - 1) for x in unit] for unit in ((0, 1), (2, 1, 3), (3, 0))]
    tensors["units"] = pad_units(small, 4)
    return (MergedTokenMaker(vocab, s, tensors),)


def pad_units(units: Sequence[Sequence[int]], longest: int) -> Tensor:
    """Units as they are saved: numbers, -1 behind the last token of each.

    Args:
        units: Token ids of each unit, at most `longest`.
        longest: Numbers of a row.

    Returns:
        Shape ``[N, longest]``.
    """
    return torch.tensor([[*unit, *[-1] * (longest - len(unit))] for unit in units]).float()


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
        "answers": s.answers,
    }
    artefact.save_artefact(
        path, KIND, {k: v.float() for k, v in made.tensors.items()}, {**about, **sizes}
    )


def _check_units(unit_NK: Tensor | None, size: int) -> None:
    """Raise FileError where units of answers are not two tokens of the vocabulary or more, and -1 behind."""
    if unit_NK is None:
        return
    told_NK = unit_NK >= 0
    whole = bool((unit_NK == unit_NK.round()).all()) and float(unit_NK.max()) < size
    # Once a row has ended, nothing follows.
    in_front = bool((told_NK[:, 1:] <= told_NK[:, :-1]).all())
    if not (whole and in_front and bool(told_NK[:, 1].all()) and float(unit_NK.min()) >= -1):
        raise FileError(
            f"{KIND.weights}: units must be rows of two ids below {size} or more, and -1 behind these"
        )


def load(path: str | Path) -> MergedTokenMaker:
    """What `save` wrote into a directory. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(HypernetworkFields, config, artefact.CONFIG)
        encoder = BidirectionalEncoder(c.width, c.layers, c.heads, c.longest)
        s = HypernetworkSizes(c.longest, encoder, c.target, c.answers)
        tensors = artefact.read_float_tensors(t, KIND, s.tensor_shapes | s.unit_shapes)
        _check_units(tensors.get("units"), c.vocab_size)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return MergedTokenMaker(vocab, s, tensors)
