"""Clover: a layer that makes a target's states ready to speculate, and a state that every drafted token moves on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, linear, silu

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import CloverFields
from polydec.models.learned.head import (
    Head,
    Step,
    named_head,
    new_draft_heads,
    read_head,
    run_heads_batched,
)
from polydec.models.learned.state_layer import StateLayer, rms_normalised
from polydec.models.nets.query import NeuralNetwork

KIND = artefact.ArtefactKind("clover", "clover", "clover.safetensors", "heads --kind clover")


@dataclass(frozen=True, eq=False)
class CloverModel:
    """A model for the scheduler, whose queries are those of draft heads (`Step`).

    layer: the augmenting block, over all true states; attend: weights [H, H] of query, key and value, by which a token moves
    the state: the value is added by the cosine of query and key, head by head; out: the heads behind that, the first of the
    state, the other of state and token, for all further levels; levels: most tokens ahead; vocab, rates and share: see Heads.
    """

    called: ClassVar[str] = "a Clover drafter"
    kind: ClassVar[str] = "clover"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 1

    layer: StateLayer
    attend: tuple[Tensor, Tensor, Tensor]
    out: tuple[Head, Head]
    levels: int
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0

    @property
    def depth(self) -> int:
        return self.levels

    @property
    def reads(self) -> bool:
        """Nodes of a level differ by their paths."""
        return True

    @property
    def normed(self) -> bool:
        """States enter as the last layer leaves them."""
        return False

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target makes no laws of guessed states.
        """
        target.vocab.require_same(self.vocab, "the target of the Clover drafter")
        artefact.require_laws(target, self.layer.width, "Clover's weights")

    @property
    def cost(self) -> float:
        return float(sum(t.numel() for t in (*self.attend, *self.out[0], *self.out[1])))

    @cached_property
    def network(self) -> NeuralNetwork:
        """The augmenting block."""
        return self.layer.layer_network()

    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """Make the rows that enter the augmenting block: the states alone.

        Args:
            embed_NWH: Embeddings of the tokens, shape ``[N, 1, H]``; not read.
            state_NH: The true states, shape ``[N, H]``.

        Returns:
            The states divided by their root mean squares, shape ``[N, H]``.
        """
        return rms_normalised(state_NH)

    def level_head(self, k: int) -> None:
        """The target's norm and head make laws of what heads guess."""

    def start_levels(self, state_NH: Tensor) -> Tensor:
        return rms_normalised(state_NH)

    def guess_level(self, k: int, carry_NH: Tensor, embed_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Move the states on by the tokens of nodes, and guess from them.

        Args:
            k: Levels that the nodes lie below the root, from 0. All levels below the first share a
                head.
            carry_NH: The states that the nodes above leave, shape ``[N, H]``.
            embed_NH: Embeddings of the nodes' tokens, shape ``[N, H]``.

        Returns:
            The states that these tokens leave, and the guessed states before the target's final
            norm, each ``[N, H]``.
        """
        # Tokens are evened like states, so that sizes do not decide the comparison.
        token_NH = rms_normalised(embed_NH)
        heads = self.layer.heads
        query, key, value = (
            linear(x, w)
            for x, w in zip(
                (rms_normalised(carry_NH), token_NH, token_NH), self.attend, strict=True
            )
        )
        # A cosine in place of a softmax: there is one key for each query, of which a softmax would
        # always give 1.
        near = cosine_similarity(
            query.unflatten(-1, (heads, -1)), key.unflatten(-1, (heads, -1)), dim=-1
        )
        # Heads are compared apart and joined again; the state itself goes on beside what is added.
        moved = carry_NH + (near[..., None] * value.unflatten(-1, (heads, -1))).flatten(-2)
        # The first level has no drafted token before it, so its head reads the state alone.
        weight, bias, skip = self.out[min(k, 1)]
        if k:
            inputs = torch.cat([moved, token_NH], 1)
        else:
            inputs = moved
        return moved, linear(inputs, skip) + silu(linear(inputs, weight, bias))

    @torch.inference_mode()
    def forward(self, queries: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
        return run_heads_batched(self.guess_level, queries)


def new_clover_tensors(
    width: int, seed: int, scale: float
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Head, Head]]:
    """Make `attend` and `out` to train.

    Query and key begin by comparing states and tokens as they are, and a token moves little yet.

    Args:
        width: Width H of the target's states.
        seed: Seed of the random parts.
        scale: Size of the random parts: of `attend` before it is divided by H, of `out` before it
            is divided by the root of H.

    Returns:
        The matrices of query, key and value, each ``[H, H]``, and the two heads.
    """
    g = torch.Generator().manual_seed(seed)
    same_WW = torch.eye(width)
    noise = torch.rand(3, width, width, generator=g) * scale / width
    out = (
        new_draft_heads(width, 1, False, seed, scale)[0],
        new_draft_heads(width, 1, True, seed, scale)[0],
    )
    # Query and key begin near the identity; the value begins near nothing.
    return (same_WW + noise[0], same_WW + noise[1], noise[2]), out


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[CloverModel, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter of three levels.
    """
    return (
        CloverModel(
            state_layer.random_state_layer(width, 9),
            *new_clover_tensors(width, 9, 1.0),
            3,
            vocab,
            ((0.5, 0.2), (0.4, 0.2), (0.3, 0.1)),
        ),
    )


def save(path: str | Path, clover: CloverModel, about: Mapping[str, Any]) -> None:
    """Write clover.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        clover: The drafter.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {f"attend.{name}": t.float() for name, t in zip("qkv", clover.attend)}
    tensors |= named_head("out.0.", clover.out[0]) | named_head("out.1.", clover.out[1])
    artefact.save_artefact(
        path,
        KIND,
        tensors | clover.layer.named,
        {
            **about,
            "width": clover.layer.width,
            "levels": clover.levels,
            **artefact.said_of(clover),
            "layer": clover.layer.fields,
        },
    )


def load(path: str | Path) -> CloverModel:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(CloverFields, config, artefact.CONFIG)
        query, key, value = (
            artefact.read_float_tensor(t, KIND, f"attend.{name}", c.width, c.width)
            for name in "qkv"
        )
        out = (
            read_head(t, KIND, "out.0.", c.width, c.width),
            read_head(t, KIND, "out.1.", c.width, 2 * c.width),
        )
        return CloverModel(
            state_layer.read_state_layer(c.layer, t, KIND, c.width),
            (query, key, value),
            out,
            c.levels,
            artefact.vocab_of(c),
            c.rates,
            c.share,
        )
