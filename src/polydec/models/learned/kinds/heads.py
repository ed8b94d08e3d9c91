"""Draft heads on a target's last hidden state: each guesses the state one token further on (Medusa, Hydra, Hydra++)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import HeadsFields
from polydec.models.learned.head import (
    Block,
    Head,
    Step,
    named_head,
    new_draft_heads,
    new_head_blocks,
    read_head,
    run_heads_batched,
)
from polydec.models.learned.state_layer import StateLayer, rms_normalised
from polydec.models.nets.query import NeuralNetwork

KIND = artefact.ArtefactKind("heads", "heads", "heads.safetensors", "heads")


@dataclass(frozen=True, eq=False)
class DraftHeads:
    """Head k, from 0: of the state after a token, the state k + 1 tokens further on. The target's own norm and head make a law
    of that, which is the one of the token after those. A model for the scheduler: a query is a `Step`.

    heads: arithmetic is fp32; reads: heads read the embeddings of the k + 1 tokens in between as well (Hydra), else the state
    alone (Medusa); layer: makes of all true states so far the one that the heads begin with (Hydra++), None: they begin with
    the last one; vocab: the target's; rates: of each head, how often its token of each rank was right on held-out text, 0 to
    1; share: passes of the target that a draft costs, as measured where it was trained. States and embeddings are divided by
    their root mean square first.

    own_VH: of each head a matrix that makes its laws, and states then enter as the target's final norm leaves them (the
    published form of Medusa and Hydra); None: the target's norm and head make laws of what heads guess. more: of each head the
    blocks behind its first, as many for each; none: it has one block.
    """

    called: ClassVar[str] = "draft heads"
    kind: ClassVar[str] = "heads"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 1

    heads: Sequence[Head]
    reads: bool
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    layer: StateLayer | None = None
    share: float = 0.0
    own_VH: Sequence[Tensor] | None = None
    more: Sequence[Sequence[Block]] = ()

    @property
    def depth(self) -> int:
        return len(self.heads)

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that they were trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target does not run its norm, or its
                norm and head, on states that it did not make.
        """
        target.vocab.require_same(self.vocab, "the target of the draft heads")
        artefact.require_laws(
            target, len(self.heads[0][1]), "draft heads", head=not self.normed, normed=self.normed
        )

    @property
    def cost(self) -> float:
        blocks = [block for head in self.more for block in head]
        return float(
            sum(t.numel() for part in (*self.heads, *blocks, self.own_VH or ()) for t in part)
        )

    @cached_property
    def network(self) -> NeuralNetwork | None:
        """The layer, as a network."""
        if self.layer is None:
            return None
        return self.layer.layer_network()

    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """Make the rows that enter the layer: the states alone.

        Args:
            embed_NWH: Embeddings of the tokens, shape ``[N, 1, H]``; not read.
            state_NH: The true states, shape ``[N, H]``.

        Returns:
            The states divided by their root mean squares, shape ``[N, H]``.
        """
        return rms_normalised(state_NH)

    def start_levels(self, state_NH: Tensor) -> Tensor:
        """What the first head is given besides the root."""
        # Published heads were trained on what leaves the final norm, so their states are not
        # evened.
        if self.own_VH is None:
            return rms_normalised(state_NH)
        return state_NH.float()

    def level_head(self, k: int) -> Tensor | None:
        """The matrix that makes laws of what head k guesses; None: the target's norm and head do."""
        if self.own_VH is None:
            return None
        return self.own_VH[k]

    @property
    def normed(self) -> bool:
        """Whether states enter as the target's final norm leaves them."""
        return self.own_VH is not None

    def guess_level(self, k: int, carry_NC: Tensor, embed_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Run head k at nodes.

        Args:
            k: Index of the head, from 0.
            carry_NC: What the nodes above leave: the state and, where heads read tokens, the
                embeddings of the tokens before, shape ``[N, C]``.
            embed_NH: Embeddings of the nodes' tokens, shape ``[N, H]``; read where `reads` is true.

        Returns:
            What these nodes leave to those below, and the guessed states ``[N, H]``.
        """
        # Hydra's head k reads the state and every token since: each node leaves its inputs to those
        # below.
        weight, bias, skip = self.heads[k]
        if self.reads:
            inputs = torch.cat([carry_NC, rms_normalised(embed_NH)], 1)
        else:
            inputs = carry_NC
        # The skip lets an untrained head pass the state on.
        made = linear(inputs, skip) + silu(linear(inputs, weight, bias))
        # Further blocks only refine the guess; nodes below do not read them.
        for into, shift in self.more[k] if self.more else ():
            made = made + silu(linear(made, into, shift))
        return inputs, made

    @torch.inference_mode()
    def forward(self, queries: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
        return run_heads_batched(self.guess_level, queries)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[DraftHeads, ...]:
    """Make random ones for tests, of each kind.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        Medusa's, Hydra's and Hydra++'s heads; Hydra++'s with heads of three blocks; and these with
        matrices of their own. Each has three heads.
    """
    # Scale 1: with random parts of size 0 all heads would guess alike.
    plain = tuple(
        DraftHeads(
            new_draft_heads(width, 3, reads, 5, 1.0),
            reads,
            vocab,
            ((0.5, 0.2), (0.4, 0.2), (0.3, 0.1)),
            layer,
        )
        for reads, layer in (
            (False, None),
            (True, None),
            (True, state_layer.random_state_layer(width, 7)),
        )
    )
    deeper = replace(plain[-1], more=[new_head_blocks(width, 2, 9 + k, 1.0) for k in range(3)])
    g = torch.Generator().manual_seed(6)
    own_VH = [torch.randn(vocab.size, width, generator=g) for _ in range(3)]
    return (*plain, deeper, replace(deeper, own_VH=own_VH))


def save(path: str | Path, heads: DraftHeads, about: Mapping[str, Any]) -> None:
    """Write heads.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        heads: The heads.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    own = heads.layer
    tensors = dict[str, Tensor]()
    tensors |= {f"{k}.own": own_VH.float() for k, own_VH in enumerate(heads.own_VH or ())}
    for k, head in enumerate(heads.heads):
        tensors |= named_head(f"{k}.", head)
    for k, blocks in enumerate(heads.more):
        for i, (weight, bias) in enumerate(blocks):
            tensors |= {f"{k}.more.{i}.weight": weight.float(), f"{k}.more.{i}.bias": bias.float()}
    artefact.save_artefact(
        path,
        KIND,
        tensors | ({} if own is None else own.named),
        {
            **about,
            "width": len(heads.heads[0][1]),
            "reads": heads.reads,
            "blocks": 1 + (len(heads.more[0]) if heads.more else 0),
            "own": heads.own_VH is not None,
            **artefact.said_of(heads),
            "layer": None if own is None else own.fields,
        },
    )


def load(path: str | Path) -> DraftHeads:
    """The heads in a directory that `save` wrote. Raises FileError where there are none, or they are damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(HeadsFields, config, artefact.CONFIG)
        # Medusa's heads read H numbers, Hydra's one embedding more at each level.
        sizes = [c.width * (k + 2 if c.reads else 1) for k in range(len(c.rates))]
        if c.layer is None:
            layer = None
        else:
            layer = state_layer.read_state_layer(c.layer, t, KIND, c.width)
        if c.own:
            own_VH = [
                artefact.read_float_tensor(t, KIND, f"{k}.own", c.vocab_size, c.width)
                for k in range(len(sizes))
            ]
        else:
            own_VH = None
        return DraftHeads(
            [read_head(t, KIND, f"{k}.", c.width, size) for k, size in enumerate(sizes)],
            c.reads,
            artefact.vocab_of(c),
            c.rates,
            layer,
            c.share,
            own_VH,
            [
                # Files have either no further blocks or as many for each head.
                [
                    artefact.read_float_layer(t, KIND, f"{k}.more.{i}", c.width, c.width)
                    for i in range(c.blocks - 1)
                ]
                for k in range(len(sizes) if c.blocks > 1 else 0)
            ],
        )
