"""What makes a vector of each few tokens of a passage, and scores which of them should rather be read
as they are (REFRAG)."""

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
from polydec.models.learned.artefact_fields import ChunkEncoderFields
from polydec.models.learned.passages import PassageMarks
from polydec.models.learned.reader import EPS, BidirectionalEncoder
from polydec.models.learned.recent_tensors import recent_tensor

KIND = artefact.ArtefactKind(
    "chunk-encoder", "chunk encoder", "chunk_encoder.safetensors", "context"
)

KEPT = 16384
"""Chunks whose vectors are kept, those that were asked for last."""

MORE = 2
"""Rows that the encoder's table has behind the vocabulary's: of a place where no token is, and of
the one whose state is read."""


@dataclass(frozen=True)
class ChunkEncoderSizes:
    """size: tokens of a chunk (k); encoder, policy: what reads a chunk, and the vectors of all;
    target: width of what is made."""

    vocab: int
    size: int
    encoder: BidirectionalEncoder
    policy: BidirectionalEncoder
    target: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor, by name."""
        W = self.encoder.width
        return {
            # One flat file holds both encoders, told apart by these prefixes.
            **{f"encoder-{name}": shape for name, shape in self.encoder.shapes.items()},
            **{f"policy-{name}": shape for name, shape in self.policy.shapes.items()},
            "table": (self.vocab + MORE, W),
            "projector": (self.target, W),
            "scale": (self.target,),
            "policy-in": (self.policy.width, W),
            "policy-out": (1, self.policy.width),
        }


def select_part_tensors(t: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Select the tensors of one of the two encoders.

    Args:
        t: The tensors of `ChunkEncoderSizes.shapes`, by name.
        part: "encoder" or "policy".

    Returns:
        Those of that part, by their names within it.
    """
    return {n.removeprefix(f"{part}-"): x for n, x in t.items() if n.startswith(f"{part}-")}


def encode_chunks(s: ChunkEncoderSizes, t: Mapping[str, Tensor], token_NK: Tensor) -> Tensor:
    """Encode N chunks, each of which sees itself alone.

    Args:
        s: Sizes of the encoder.
        t: The tensors of `ChunkEncoderSizes.shapes`, by name.
        token_NK: Tokens of the chunks, shape ``[N, k]``; the size of the vocabulary stands where a
            shorter chunk has none.

    Returns:
        A vector for each chunk, c, shape ``[N, W]``.
    """
    # A learned token before the chunk: its final state is the chunk's vector.
    read_N1 = torch.full((len(token_NK), 1), s.vocab + 1)
    token_NT = torch.cat([read_N1, token_NK], dim=1)
    # Blanks of a short chunk are hidden, so the vector does not depend on how many there are.
    states = s.encoder.sequence_states(
        select_part_tensors(t, "encoder"), F.embedding(token_NT, t["table"]), token_NT != s.vocab
    )
    return states[:, 0]


def project_chunks(t: Mapping[str, Tensor], c_NW: Tensor) -> Tensor:
    """Make the rows that enter the decoder in place of chunks.

    Args:
        t: The tensors of `ChunkEncoderSizes.shapes`, by name.
        c_NW: What the encoder made of the chunks, shape ``[N, W]``.

    Returns:
        The rows, shape ``[N, H]``. `scale` gives them the size of the decoder's own embeddings.
    """
    # The norm sets the size: a row much longer than embeddings would drown them in attention.
    y = F.linear(c_NW, t["projector"])
    return F.rms_norm(y, y.shape[-1:], t["scale"], EPS)


def score_chunks(s: ChunkEncoderSizes, t: Mapping[str, Tensor], c_BLW: Tensor) -> Tensor:
    """Score how much each chunk of a text should rather be read as tokens.

    Args:
        s: Sizes of the policy.
        t: The tensors of `ChunkEncoderSizes.shapes`, by name.
        c_BLW: What the encoder made of the L chunks of each text, shape ``[B, L, W]``.

    Returns:
        The scores, shape ``[B, L]``; higher means rather as tokens.
    """
    # All texts of a batch have L chunks here, so nothing is hidden.
    there_BL = torch.ones(c_BLW.shape[:2], dtype=torch.bool)
    x = F.linear(c_BLW, t["policy-in"])
    return F.linear(
        s.policy.sequence_states(select_part_tensors(t, "policy"), x, there_BL), t["policy-out"]
    )[..., 0]


@dataclass(frozen=True, eq=False)
class ChunkEncoder:
    """tensors: of `ChunkEncoderSizes.shapes`; marks: of passages. Arithmetic is fp32, and a chunk is encoded
    alone, so that its vector depends on its tokens and on nothing else, to the bit."""

    called: ClassVar[str] = "an encoder of chunks"
    kind: ClassVar[str] = "chunk-encoder"
    made_by: ClassVar[str] = KIND.training_command

    vocab: TokenVocabulary
    sizes: ChunkEncoderSizes
    marks: PassageMarks
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The target's embeddings have another width than chunk vectors.
        """
        target.vocab.require_same(self.vocab, "the target of the chunk encoder")
        artefact.require_width(target, self.sizes.target, "chunk vectors")

    @cached_property
    def kept(self) -> OrderedDict[tuple[int, ...], Tensor]:
        """By its tokens, what was made of a chunk: what is retrieved again is not encoded again."""
        return OrderedDict()

    @torch.no_grad()
    def chunk_state(self, chunk: Sequence[int]) -> Tensor:
        """Of at most k tokens, c [W]."""
        # A chunk's vector depends on its tokens alone, so they serve as its name.
        name = tuple(chunk)

        def encoded() -> Tensor:
            blank = self.sizes.vocab
            row = torch.tensor([[*name, *[blank] * (self.sizes.size - len(name))]])
            return encode_chunks(self.sizes, self.tensors, row)[0]

        return recent_tensor(self.kept, name, encoded, KEPT)

    @torch.no_grad()
    def decoder_vector(self, state_W: Tensor) -> Tensor:
        """What the decoder reads for it [H]."""
        return project_chunks(self.tensors, state_W[None])[0]

    @torch.no_grad()
    def chunk_scores(self, states: Sequence[Tensor]) -> Tensor:
        """The policy's, of all chunks of a prompt [L]."""
        # A longer prompt is scored in parts, since the policy has learned so many places only.
        most = self.sizes.policy.places
        parts = [torch.stack(list(states[i : i + most])) for i in range(0, len(states), most)]
        return torch.cat([score_chunks(self.sizes, self.tensors, part[None])[0] for part in parts])


def new_chunk_encoder_tensors(s: ChunkEncoderSizes, seed: int, spread: float) -> dict[str, Tensor]:
    """Make random tensors to begin with.

    Args:
        s: Sizes of the encoder, of the policy and of what is made.
        seed: Seed of the numbers.
        spread: Root mean square of the decoder's embeddings, with which chunk vectors begin.

    Returns:
        The tensors of `ChunkEncoderSizes.shapes`, by name.
    """
    dice = torch.Generator().manual_seed(seed)
    out = dict[str, Tensor]()
    for part, reader in (("encoder", s.encoder), ("policy", s.policy)):
        # Both draw from one generator, so the order of the parts matters for the seed.
        out |= {f"{part}-{name}": x for name, x in reader.draw_tensors(dice).items()}
    for name in ("table", "projector", "policy-in", "policy-out"):
        out[name] = torch.randn(s.shapes[name], generator=dice) * s.shapes[name][1] ** -0.5
    return out | {"scale": torch.full((s.target,), spread)}


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[ChunkEncoder, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width of the target's embeddings, which chunk vectors have.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One encoder of chunks of 4 tokens, with tokens 1 and 2 as marks.
    """
    s = ChunkEncoderSizes(
        vocab.size, 4, BidirectionalEncoder(16, 1, 2, 5), BidirectionalEncoder(16, 1, 2, 64), width
    )
    return (ChunkEncoder(vocab, s, PassageMarks(1, 2), new_chunk_encoder_tensors(s, 13, 0.1)),)


def save(path: str | Path, made: ChunkEncoder, about: Mapping[str, Any]) -> None:
    """Write chunk_encoder.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        made: The encoder of chunks.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    s = made.sizes
    sizes = {
        "vocab_size": s.vocab,
        "tokenizer": made.vocab.tokenizer,
        "chunk": s.size,
        "width": s.encoder.width,
        "layers": s.encoder.layers,
        "heads": s.encoder.heads,
        "policy_width": s.policy.width,
        "policy_layers": s.policy.layers,
        "policy_heads": s.policy.heads,
        "policy_places": s.policy.places,
        "target": s.target,
        "opening": made.marks.opening,
        "closing": made.marks.closing,
    }
    artefact.save_artefact(
        path, KIND, {k: v.float() for k, v in made.tensors.items()}, {**about, **sizes}
    )


def load(path: str | Path) -> ChunkEncoder:
    """What `save` wrote into a directory. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(ChunkEncoderFields, config, artefact.CONFIG)
        encoder = BidirectionalEncoder(c.width, c.layers, c.heads, c.chunk + 1)
        policy = BidirectionalEncoder(
            c.policy_width, c.policy_layers, c.policy_heads, c.policy_places
        )
        s = ChunkEncoderSizes(c.vocab_size, c.chunk, encoder, policy, c.target)
        tensors = artefact.read_float_tensors(t, KIND, s.shapes)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return ChunkEncoder(vocab, s, PassageMarks(c.opening, c.closing), tensors)
