"""A router that is a small language model of its own: it reads the problem and the steps, each behind a mark of who wrote it
(Arbitrage)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import TextRouterFields
from polydec.models.learned.kinds.step_reward import StepReward
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw

KIND = artefact.ArtefactKind(
    "text-router", "text router", "text_router.safetensors", "probe --recipe text-router"
)
MARKS = 2
"""Rows that its table has behind the vocabulary's: the mark of the draft model's steps, and that of the target's."""


def marks_of(vocab: TokenVocabulary) -> tuple[int, int]:
    """The rows that stand before a step of the draft model's, and before one of the target's."""
    return vocab.size, vocab.size + 1


@dataclass(frozen=True)
class TextRouterSizes:
    """Of a network of the plain Llama skeleton. inner: of its MLPs; context: tokens that it can read."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    context: int
    theta: float
    eps: float

    def config_content(self, vocab: int) -> dict[str, Any]:
        """As a published config.json says it, with so many rows of the table."""
        return {
            "model_type": "llama",
            "vocab_size": vocab,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.context,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            # Nobody asks for laws, so a head of its own would be dead weight.
            "tie_word_embeddings": True,
        }

    def tensor_shapes(self, vocab: int) -> dict[str, tuple[int, ...]]:
        """Of every tensor, by its published name."""
        W = self.width
        inner = self.inner
        kv = self.width // self.heads * self.kv_heads
        out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, W)}
        for i in range(self.layers):
            at = f"model.layers.{i}."
            out |= {f"{at}{name}_layernorm.weight": (W,) for name in ("input", "post_attention")}
            out |= {f"{at}self_attn.{x}_proj.weight": (W, W) for x in "qo"}
            out |= {f"{at}self_attn.{x}_proj.weight": (kv, W) for x in "kv"}
            out |= {f"{at}mlp.{x}_proj.weight": (inner, W) for x in ("gate", "up")}
            out[f"{at}mlp.down_proj.weight"] = (W, inner)
        return out | {"model.norm.weight": (W,)}


@dataclass(frozen=True, eq=False)
class TextRouter:
    """tensors: of a Llama by their published names, whose table has MARKS rows more than the vocabulary; head: of the form of a
    process reward model's, on what leaves its last layer behind a step. Arithmetic is fp32."""

    called: ClassVar[str] = "a router that reads the text"
    kind: ClassVar[str] = "text-router"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    sizes: TextRouterSizes
    tensors: Mapping[str, Tensor]
    head: StepReward

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        target.vocab.require_same(self.vocab, "the target of the text router")

    @property
    def marks(self) -> tuple[int, int]:
        """Of the draft model's steps, and of the target's."""
        return marks_of(self.vocab)

    @cached_property
    def law(self) -> CausalLaw:
        """The model that reads."""
        # The marks are ordinary tokens to the network, but no text can hold them.
        rows = self.vocab.size + MARKS
        network = LlamaTransformer.build(
            self.sizes.config_content(rows), self.tensors, dtype="float32"
        )
        return CausalLaw(network, TokenVocabulary(rows, frozenset(), ""))

    def success_chance(self, hidden_H: Tensor) -> float:
        """0 to 1, that the target's step would be the better one."""
        return self.head.success_chance(hidden_H)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[TextRouter, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Not read: it reads tokens with a network of its own.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One router that reads up to 512 tokens.
    """
    sizes = TextRouterSizes(8, 1, 2, 2, 8, 512, 1e4, 1e-5)
    g = torch.Generator().manual_seed(15)
    tensors = {
        name: torch.ones(*size) if len(size) == 1 else torch.randn(*size, generator=g)
        for name, size in sizes.tensor_shapes(vocab.size + MARKS).items()
    }
    inner = (torch.randn(8, 8, generator=g), torch.zeros(8))
    out = torch.randn(1, 8, generator=g)
    return (TextRouter(vocab, sizes, tensors, StepReward(inner, (out, torch.zeros(1)), vocab)),)


HEAD = ("head.inner.weight", "head.inner.bias", "head.out.weight", "head.out.bias")


def save(path: str | Path, router: TextRouter, about: Mapping[str, Any]) -> None:
    """Write text_router.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        router: The router, its network and its head.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    head = dict(zip(HEAD, (*router.head.inner, *router.head.out), strict=True))
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float() for name, t in {**router.tensors, **head}.items()},
        {
            **about,
            **asdict(router.sizes),
            "head": len(router.head.inner[1]),
            "vocab_size": router.vocab.size,
            "tokenizer": router.vocab.tokenizer,
        },
    )


def load(path: str | Path) -> TextRouter:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(TextRouterFields, config, artefact.CONFIG)
        sizes = TextRouterSizes(
            c.width, c.layers, c.heads, c.kv_heads, c.inner, c.context, c.theta, c.eps
        )
        network = artefact.read_float_tensors(
            tensors, KIND, sizes.tensor_shapes(c.vocab_size + MARKS)
        )
        # In the order of HEAD.
        shapes = ((c.head, c.width), (c.head,), (1, c.head), (1,))
        t = [
            artefact.read_float_tensor(tensors, KIND, name, *shape)
            for name, shape in zip(HEAD, shapes, strict=True)
        ]
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return TextRouter(vocab, sizes, network, StepReward((t[0], t[1]), (t[2], t[3]), vocab))
