"""What reads a passage in both directions and makes one vector of every few tokens, for a decoder that
stays as it is (ARC-Encoder)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import ArcEncoderFields
from polydec.models.learned.passages import PassageMarks
from polydec.models.learned.product_codes import ProductCodebook
from polydec.models.learned.recent_tensors import recent_tensor
from polydec.models.learned.skeleton import LlamaLayers

KIND = artefact.ArtefactKind("arc-encoder", "ARC-Encoder", "arc_encoder.safetensors", "context")

KEPT = 512
"""Parts of passages whose vectors are kept, those that were asked for last."""
KEPT_NUMBERS = 1 << 24
"""Numbers of these parts together, at most: 64 MiB."""
KEPT_CODED = 8192
"""Parts that are kept as codes; bytes of these together are as many as the numbers above, at most."""


@dataclass(frozen=True)
class ArcEncoderSizes:
    """vocab; chunk: tokens that are read together; skeleton: the layers, of which the last one pools;
    bottleneck: size between the two maps of the projector; target: width of what is made; pieces: of
    a vector at the bottleneck where it is kept as codes, 0 where it never is; centres: of each piece."""

    vocab: int
    chunk: int
    skeleton: LlamaLayers
    bottleneck: int
    target: int
    pieces: int = 0
    centres: int = 0

    @property
    def encoder_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor of the encoder, by name: the layers without their final norm."""
        # The projector reads the residual stream as it is, as in the paper.
        shapes = {n: s for n, s in self.skeleton.shapes.items() if n != "norm.weight"}
        return shapes | {"embed_tokens.weight": (self.vocab, self.skeleton.width)}

    @property
    def decoder_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor that belongs to one decoder: the projector and two learned inputs."""
        # The learned inputs have the encoder's width, since they pass the projector, too.
        W = self.skeleton.width
        return {
            "down": (self.bottleneck, W),
            "up": (self.target, self.bottleneck),
            "continue": (W,),
            "rewrite": (W,),
        }

    @property
    def code_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of the centres, where there are some."""
        if not self.pieces:
            return {}
        return {"codes": (self.pieces, self.centres, self.bottleneck // self.pieces)}


def balanced_group_of(length: int, factor: int) -> Tensor:
    """Cut a text into contiguous groups of nearly equal size.

    Args:
        length: Tokens of the text, at least 1.
        factor: Tokens of a group, at most.

    Returns:
        Of each token the number of its group, shape ``[length]``. There are ceil(length / factor)
        groups, and their sizes differ by 1 at most.
    """
    # Whole numbers only: no group is lost to rounding.
    return torch.arange(length) * -(-length // factor) // length


def pooled_states(
    s: ArcEncoderSizes, t: Mapping[str, Tensor], token_BN: Tensor, factor: int
) -> Tensor:
    """Read B texts of one length, each by itself, and pool groups of positions in the last layer.

    Args:
        s: Sizes of the encoder.
        t: The tensors of `encoder_shapes`, by name.
        token_BN: Token ids, shape ``[B, N]``.
        factor: Tokens of a group, at most.

    Returns:
        A state for each group, without a norm behind it, shape ``[B, G, W]``.
    """
    B, N = token_BN.shape
    layers = s.skeleton
    x = F.embedding(token_BN, t["embed_tokens.weight"])
    # A passage is read at once, so nothing stands before it.
    none = layers.empty_past(B)[0]
    # Nothing is hidden: a token sees what stands behind it, too.
    turn = layers.rotation_tables(torch.arange(N)[None])
    for i in range(layers.layers - 1):
        x, _ = layers.run_layer(
            t, i, x, x, (turn, turn), none, torch.ones(1, N, N, dtype=torch.bool)
        )
    # Means of the residual stream ask, and go on; keys and values are those of all tokens.
    group_N = balanced_group_of(N, factor)
    G = int(group_N[-1]) + 1
    # A matrix that averages: row G has equal weights on the tokens of group G.
    mean_GN = F.one_hot(group_N, G).T.float()
    mean_GN = mean_GN / mean_GN.sum(1, keepdim=True)
    # Queries stand at the places of the shortened text, keys where their tokens stand.
    asks = layers.rotation_tables(torch.arange(G)[None])
    see = torch.ones(1, G, N, dtype=torch.bool)
    return layers.run_layer(t, layers.layers - 1, mean_GN @ x, x, (asks, turn), none, see)[0]


@dataclass(frozen=True, eq=False)
class ArcEncoder:
    """trained_factor: tokens for each vector; passage_marks: around what is encoded; tensors: of both shapes of
    the sizes. Arithmetic is fp32, and a passage is encoded alone, so that its vectors depend on its
    tokens and on nothing else, to the bit."""

    called: ClassVar[str] = "an ARC-Encoder"
    kind: ClassVar[str] = "arc-encoder"
    made_by: ClassVar[str] = KIND.training_command

    vocab: TokenVocabulary
    sizes: ArcEncoderSizes
    trained_factor: int
    passage_marks: PassageMarks
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The target's embeddings have another width than what is made.
        """
        target.vocab.require_same(self.vocab, "the target of the ARC-Encoder")
        artefact.require_width(target, self.sizes.target, "the vectors of an ARC-Encoder")

    @cached_property
    def kept_parts(self) -> OrderedDict[tuple[int, tuple[int, ...]], Tensor]:
        """By factor and tokens, what the projector's first map made: the smallest form that there
        is of a passage, and what is retrieved again is not encoded again."""
        # Written once and then changed in place: a frozen instance takes no other value for a name.
        return OrderedDict()

    @cached_property
    def kept_codes(self) -> OrderedDict[tuple[int, tuple[int, ...]], Tensor]:
        """The same as codes, a byte for each piece of a vector."""
        return OrderedDict()

    @torch.no_grad()
    def passage_vectors(
        self, passage: Sequence[int], factor: int, task: str, coded: bool = False
    ) -> Tensor:
        """Make what the decoder reads in the place of a passage.

        A passage of more than `chunk` tokens is read in parts, whose vectors follow one another.

        Args:
            passage: Token ids, at least one.
            factor: Tokens for each vector.
            task: "continue" or "rewrite": which learned vector stands behind them.
            coded: Whether vectors are kept as codes, and read as what these stand for. Default False.

        Returns:
            The vectors, shape ``[G + 1, H]``.

        Raises:
            RequestError: Codes are asked for, and none were learned.
        """
        chunk = self.sizes.chunk
        states_of = self._coded_states if coded else self._part_states
        parts = [
            states_of(tuple(passage[i : i + chunk]), factor) for i in range(0, len(passage), chunk)
        ]
        # Not kept with the parts: one passage may be asked for with either task.
        behind = F.linear(self.tensors[task][None], self.tensors["down"])
        return F.linear(torch.cat([*parts, behind]), self.tensors["up"])

    def _encode_part(self, part: tuple[int, ...], factor: int) -> Tensor:
        # One part a pass: in a batch, sums could be rounded in another way.
        state = pooled_states(self.sizes, self.tensors, torch.tensor([part]), factor)[0]
        return F.linear(state, self.tensors["down"])

    def _coded_states(self, part: tuple[int, ...], factor: int) -> Tensor:
        """A part as its codes stand for it; these alone are kept."""
        if not self.sizes.pieces:
            raise RequestError(
                "coded is true: this encoder has no codes (train it with --pieces), so leave coded out"
            )
        book = ProductCodebook(self.tensors["codes"])

        def codes() -> Tensor:
            return book.encode_vectors(self._encode_part(part, factor))

        name = (factor, part)
        return book.decode_codes(
            recent_tensor(self.kept_codes, name, codes, KEPT_CODED, KEPT_NUMBERS)
        )

    def _part_states(self, part: tuple[int, ...], factor: int) -> Tensor:
        def encoded() -> Tensor:
            return self._encode_part(part, factor)

        # At published sizes a part is two megabytes: a number of parts alone bounds no memory.
        return recent_tensor(self.kept_parts, (factor, part), encoded, KEPT, KEPT_NUMBERS)


def new_decoder_tensors(s: ArcEncoderSizes, seed: int, spread: float) -> dict[str, Tensor]:
    """Make what belongs to one decoder, to begin with.

    Args:
        s: Sizes.
        seed: Seed of the two maps of the projector.
        spread: Root mean square of what they make of states of size 1, as large as the decoder's
            embeddings are.

    Returns:
        The tensors of `decoder_shapes`, by name; both learned inputs are ones.
    """
    dice = torch.Generator().manual_seed(seed)
    shapes = s.decoder_shapes
    out = {
        # Divided by the root of the inputs' number, so that sizes stay as they were.
        name: torch.randn(shapes[name], generator=dice) * shapes[name][1] ** -0.5
        for name in ("down", "up")
    }
    out["up"] *= spread
    return out | {name: torch.ones(shapes[name]) for name in ("continue", "rewrite")}


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[ArcEncoder, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width of the target's embeddings, which its vectors have.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One encoder of two layers for 2 tokens a vector, with tokens 1 and 2 as marks, and codes of
        four bytes a vector.
    """
    s = ArcEncoderSizes(vocab.size, 16, LlamaLayers(16, 2, 2, 1, 32, 1e4, 1e-5), 8, width, 4, 8)
    # Norms are ones, matrices keep sizes: states neither vanish nor grow.
    dice = torch.Generator().manual_seed(19)
    tensors = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=dice) * shape[1] ** -0.5
        for name, shape in s.encoder_shapes.items()
    }
    tensors |= new_decoder_tensors(s, 19, 1.0)
    tensors |= {n: torch.randn(x, generator=dice) for n, x in s.code_shapes.items()}
    # Unlike one another, so that tests can tell them apart.
    tensors["rewrite"] = -tensors["rewrite"]
    return (ArcEncoder(vocab, s, 2, PassageMarks(1, 2), tensors),)


def save(path: str | Path, made: ArcEncoder, about: Mapping[str, Any]) -> None:
    """Write arc_encoder.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        made: The encoder with the projector of one decoder.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    s = made.sizes
    sizes = {
        **asdict(s.skeleton),
        "vocab_size": s.vocab,
        "tokenizer": made.vocab.tokenizer,
        "chunk": s.chunk,
        "factor": made.trained_factor,
        "bottleneck": s.bottleneck,
        "target": s.target,
        "pieces": s.pieces,
        "centres": s.centres,
        "opening": made.passage_marks.opening,
        "closing": made.passage_marks.closing,
    }
    artefact.save_artefact(
        path, KIND, {k: v.float() for k, v in made.tensors.items()}, {**about, **sizes}
    )


def load(path: str | Path) -> ArcEncoder:
    """What `save` wrote into a directory. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(ArcEncoderFields, config, artefact.CONFIG)
        # Sizes are checked before any shape is made of them.
        skeleton = LlamaLayers(c.width, c.layers, c.heads, c.kv_heads, c.inner, c.theta, c.eps)
        s = ArcEncoderSizes(
            c.vocab_size, c.chunk, skeleton, c.bottleneck, c.target, c.pieces, c.centres
        )
        shapes = s.encoder_shapes | s.decoder_shapes | s.code_shapes
        tensors = artefact.read_float_tensors(t, KIND, shapes)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return ArcEncoder(vocab, s, c.factor, PassageMarks(c.opening, c.closing), tensors)
