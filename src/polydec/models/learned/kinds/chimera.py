"""Chimera: one layer over a target's states and the codes of the last three tokens, and a head for each token ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from polydec.models.learned.artefact_fields import EagleFields
from polydec.models.learned.state_layer import StateLayer, rms_normalised
from polydec.models.nets.query import NeuralNetwork

KIND = artefact.ArtefactKind("chimera", "chimera", "chimera.safetensors", "eagle --kind chimera")


@dataclass(frozen=True, eq=False)
class ChimeraModel:
    """trigram: weight [3 H, 3 H] and projection [H, 3 H] of the code of three tokens, P (c + silu(W c)); layer: reads a true
    state and the code of the tokens up to the one behind it, one after the other, and of drafted tokens the code alone; heads
    [2 H wide, one a level]: of the last true state and what left the layer, the state that the target makes a law of; vocab,
    rates and share: see Eagle."""

    called: ClassVar[str] = "a Chimera drafter"
    kind: ClassVar[str] = "chimera"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 3

    trigram: tuple[Tensor, Tensor]
    heads: Sequence[Tensor]
    layer: StateLayer
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0

    @property
    def depths(self) -> tuple[int, ...]:
        """Of the target's states the last alone."""
        return ()

    @property
    def normed(self) -> bool:
        """States enter as they lie before the target's final norm."""
        return False

    @property
    def depth(self) -> int:
        """Most levels of a draft."""
        return len(self.heads)

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target makes no laws of guessed states.
        """
        target.vocab.require_same(self.vocab, "the target of the Chimera drafter")
        artefact.require_laws(target, self.layer.width, "Chimera's weights")

    @property
    def cost(self) -> float:
        return self.layer.cost + float(sum(t.numel() for t in (*self.trigram, *self.heads)))

    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """Make the rows that enter the layer for true states.

        Args:
            embed_NWH: Embeddings of the last three tokens up to the one after each state, shape
                ``[N, 3, H]``.
            state_NH: The true states, shape ``[N, H]``.

        Returns:
            Each state and, after it, the code of its tokens, shape ``[2 N, H]``.
        """
        # State and code alternate, so that a code sees its state through the layer's causal
        # attention.
        return torch.stack(
            [rms_normalised(state_NH), self.drafted_inputs(embed_NWH, state_NH)], 1
        ).flatten(0, 1)

    def drafted_inputs(self, embed_NWH: Tensor, above_NH: Tensor) -> Tensor:
        """Make the rows that enter the layer for drafted tokens: the codes alone.

        Args:
            embed_NWH: Embeddings of the last three tokens, the drafted one last, shape ``[N, 3,
                H]``.
            above_NH: What was made at the nodes above; not read.

        Returns:
            The codes, shape ``[N, H]``.
        """
        # Three embeddings become one row of 3 H numbers.
        code = rms_normalised(embed_NWH).flatten(1)
        return linear(code + silu(linear(code, self.trigram[0])), self.trigram[1])

    def read_states(self, k: int, true_H: Tensor, out_NS: Tensor) -> tuple[Tensor, Tensor]:
        """Read what left the layer at nodes of one level.

        Args:
            k: Levels that the nodes lie below the root, from 0.
            true_H: The last true state, shape ``[H]``.
            out_NS: What left the layer, shape ``[N, H]``.

        Returns:
            What left the layer, for the nodes below, and the guessed states ``[N, H]``, before the
            target's final norm.
        """
        # Every head sees the last true state beside what was made, as guesses drift with depth.
        return out_NS, linear(
            torch.cat([rms_normalised(true_H).expand_as(out_NS), rms_normalised(out_NS)], -1),
            self.heads[k],
        )

    @cached_property
    def network(self) -> NeuralNetwork:
        """The layer, asked for states alone."""
        return self.layer.layer_network()


def new_chimera_tensors(width: int, levels: int, seed: int) -> list[Tensor]:
    """Make the tensors of `trigram` and `heads` to train.

    A code begins as the last token's embedding.

    Args:
        width: Width H of the target's states.
        levels: Number of heads, one a level.
        seed: Seed of the code's weight, the only random tensor.

    Returns:
        The code's weight ``[3 H, 3 H]``, its projection ``[H, 3 H]``, and each head ``[H, 2 H]``,
        which begins as the sum of its two inputs.
    """
    g = torch.Generator().manual_seed(seed)
    # Reads the third of the three embeddings and drops the other two.
    last = torch.cat([torch.zeros(width, 2 * width), torch.eye(width)], 1)
    return [
        torch.randn(3 * width, 3 * width, generator=g) * 0.1 / width**0.5,
        last,
        # Two identities side by side: a head begins as the sum of state and output.
        *[torch.eye(width).repeat(1, 2) for _ in range(levels)],
    ]


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[ChimeraModel, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter of three levels.
    """
    g, (weight, project, *heads) = (
        torch.Generator().manual_seed(10),
        new_chimera_tensors(width, 3, 10),
    )
    heads = [t + torch.randn(t.shape, generator=g) / width**0.5 for t in heads]
    return (
        ChimeraModel(
            (weight, project),
            heads,
            state_layer.random_state_layer(width, 10),
            vocab,
            ((0.5, 0.2), (0.4, 0.2), (0.3, 0.1)),
        ),
    )


def save(path: str | Path, chimera: ChimeraModel, about: Mapping[str, Any]) -> None:
    """Write chimera.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        chimera: The drafter.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {
        "trigram.weight": chimera.trigram[0],
        "trigram.project": chimera.trigram[1],
        **{f"{k}.head": t for k, t in enumerate(chimera.heads)},
    }
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float() for name, t in tensors.items()} | chimera.layer.named,
        {
            **about,
            "width": chimera.layer.width,
            **artefact.said_of(chimera),
            "layer": chimera.layer.fields,
        },
    )


def load(path: str | Path) -> ChimeraModel:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(EagleFields, config, artefact.CONFIG)
        H = c.width
        weight = artefact.read_float_tensor(t, KIND, "trigram.weight", 3 * H, 3 * H)
        project = artefact.read_float_tensor(t, KIND, "trigram.project", H, 3 * H)
        heads = [
            artefact.read_float_tensor(t, KIND, f"{k}.head", H, 2 * H) for k in range(len(c.rates))
        ]
        return ChimeraModel(
            (weight, project),
            heads,
            state_layer.read_state_layer(c.layer, t, KIND, H),
            artefact.vocab_of(c),
            c.rates,
            c.share,
        )
