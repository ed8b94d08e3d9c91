"""A block drafter: an encoder-decoder network that fills several gaps behind a text at once (generalised aggressive
decoding)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.seq2seq import Seq2SeqConfig, T5Shape, read_seq2seq_config
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import BlockDrafterFields
from polydec.models.nets.seq2seq import GapFiller, build

KIND = artefact.ArtefactKind(
    "block-drafter", "block drafter", "block_drafter.safetensors", "block-drafter"
)


@dataclass(frozen=True, eq=False)
class BlockDrafter:
    """tensors: of a T5 network by their published names, whose table has one row more than the vocabulary: the mark that stands
    in a gap. block: gaps that it was trained to fill, 1 to 64. Arithmetic is fp32."""

    called: ClassVar[str] = "a block drafter"
    kind: ClassVar[str] = "block-drafter"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    shape: T5Shape
    block: int
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        # Widths need not agree: the drafter reads tokens and has a network of its own.
        target.vocab.require_same(self.vocab, "the target of the block drafter")

    @cached_property
    def filler(self) -> GapFiller:
        """The network, which fills gaps. Raises FileError where a tensor is missing or damaged."""
        # One row more: the mark of a gap is the token behind the vocabulary's last.
        return GapFiller(build(config_of(self.shape, 1), self.tensors), self.vocab.size)


def config_of(shape: T5Shape, more: int = 0) -> Seq2SeqConfig:
    """Describe the network, whose table has more rows than its vocabulary has tokens.

    Args:
        shape: Sizes of the T5 network.
        more: Rows of the table behind those of the vocabulary, for marks. Default 0.

    Returns:
        The config, as a published one would be read.
    """
    # Which tokens begin and end a text matters to no tensor; 0 stands for both.
    return read_seq2seq_config(replace(shape, vocab=shape.vocab + more).published_config(0, 0), {})


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[BlockDrafter, ...]:
    """Make a random one for tests, whose guesses depend on all of the text.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Not read: it draws nothing from states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter of blocks of 4.
    """
    shape = T5Shape(vocab.size, 8, 4, 8, 1, 1)
    # Vectors are norm weights, which begin as ones.
    g = torch.Generator().manual_seed(4)
    tensors = {
        name: torch.ones(*size) if len(size) == 1 else torch.randn(*size, generator=g)
        for name, size in t5_tensor_shapes(shape).items()
    }
    for name in tensors:
        if name.endswith(("q.weight", "k.weight")):
            tensors[name] *= 0.1  # else one position takes it all
    return (BlockDrafter(vocab, shape, 4, tensors),)


def t5_tensor_shapes(shape: T5Shape) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor."""
    W = shape.width
    inner = shape.heads * shape.head
    out: dict[str, tuple[int, ...]] = {"shared.weight": (shape.vocab + 1, W)}
    # T5 numbers the parts of a block: self-attention, in the decoder attention to the encoder, then
    # the MLP.
    for tower, count, attentions in (
        ("encoder", shape.first, ("SelfAttention",)),
        ("decoder", shape.layers, ("SelfAttention", "EncDecAttention")),
    ):
        for i in range(count):
            for j, attention in enumerate(attentions):
                at = f"{tower}.block.{i}.layer.{j}"
                out |= {f"{at}.{attention}.{x}.weight": (inner, W) for x in "qkv"}
                out |= {f"{at}.{attention}.o.weight": (W, inner), f"{at}.layer_norm.weight": (W,)}
            at = f"{tower}.block.{i}.layer.{len(attentions)}"
            out |= {
                f"{at}.DenseReluDense.wi.weight": (shape.inner, W),
                f"{at}.DenseReluDense.wo.weight": (W, shape.inner),
                f"{at}.layer_norm.weight": (W,),
            }
        # Only the first block has position biases, 32 buckets by distance; all others share them.
        bias = f"{tower}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        out |= {bias: (32, shape.heads), f"{tower}.final_layer_norm.weight": (W,)}
    return out


def save(path: str | Path, drafter: BlockDrafter, about: Mapping[str, Any]) -> None:
    """Write block_drafter.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        drafter: The drafter.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    shape = drafter.shape
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float() for name, t in drafter.tensors.items()},
        {
            **about,
            "vocab_size": shape.vocab,
            "tokenizer": drafter.vocab.tokenizer,
            "width": shape.width,
            "head": shape.head,
            "inner": shape.inner,
            "first": shape.first,
            "layers": shape.layers,
            "block": drafter.block,
        },
    )


def load(path: str | Path) -> BlockDrafter:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(BlockDrafterFields, config, artefact.CONFIG)
        shape = T5Shape(c.vocab_size, c.width, c.head, c.inner, c.first, c.layers)
        whole = artefact.read_float_tensors(tensors, KIND, t5_tensor_shapes(shape))
        return BlockDrafter(
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer), shape, c.block, whole
        )
