"""Several layers of the Llama skeleton one behind another, with one cache, which read a target's states in place of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydec.models import native as cpu
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import LayerFields
from polydec.models.learned.state_layer import StateLayer
from polydec.models.nets.query import NeuralNetwork
from polydec.models.nets.transformer import LlamaTransformer


@dataclass(frozen=True, eq=False)
class StateStack:
    """layers: at least two, of one shape; each reads what the one before it left, and nothing stands beside the stream."""

    layers: Sequence[StateLayer]

    @property
    def width(self) -> int:
        """H."""
        return self.layers[0].width

    @property
    def cost(self) -> float:
        return sum(layer.cost for layer in self.layers)

    def layer_network(self) -> NeuralNetwork:
        """What runs them, fed by `NetworkQuery.embed` (H wide); see `StateLayer.layer_network`. It gives states alone."""
        first = self.layers[0]
        config = first.network_config(len(self.layers))
        tensors = {
            f"model.layers.{i}.{name}": tensor.detach()
            for i, layer in enumerate(self.layers)
            for name, tensor in layer.tensors.items()
        }
        # Nothing looks tokens up here: rows enter ready-made. A Llama's form asks for a table all
        # the same.
        tensors["model.embed_tokens.weight"] = torch.zeros(1, self.width)
        tensors["model.norm.weight"] = torch.ones(self.width)
        # Rounding to 8 bits can only cost accepted tokens: the target checks every guess.
        native, _ = cpu.try_native_network(config, tensors, first.threads, quantize="q8_0")
        return native or LlamaTransformer.build(config, tensors, dtype="float32")

    @property
    def fields(self) -> dict[str, Any]:
        """What a config says of them."""
        return {**self.layers[0].fields, "layers": len(self.layers)}

    @property
    def named(self) -> dict[str, Tensor]:
        """Their tensors as a file has them."""
        return {
            f"layer.{i}.{name}": tensor.float()
            for i, layer in enumerate(self.layers)
            for name, tensor in layer.tensors.items()
        }


def read_state_layers(
    c: LayerFields, t: Mapping[str, Tensor], kind: artefact.ArtefactKind, width: int
) -> StateLayer | StateStack:
    """Read one layer, or as many as the config says.

    Args:
        c: What the config says of the layers, their number among it.
        t: The tensors of the file, by name.
        kind: Kind of artefact, for the sentence of an error.
        width: Width H of the residual stream.

    Returns:
        A `StateLayer` where there is one, else a `StateStack`.

    Raises:
        FileError: The tensors do not fit the config.
    """
    if c.layers == 1:
        return state_layer.read_state_layer(c, t, kind, width)
    return StateStack(
        [state_layer.read_state_layer(c, t, kind, width, at=f"layer.{i}.") for i in range(c.layers)]
    )


def random_state_stack(width: int, layers: int, seed: int) -> StateStack:
    """Make random layers for tests.

    Args:
        width: Width H of the residual stream, as `random_state_layer` takes it.
        layers: Number of layers, at least 2.
        seed: Seed of the first layer; each further one has the next.

    Returns:
        The layers, one behind another.
    """
    return StateStack([state_layer.random_state_layer(width, seed + i) for i in range(layers)])
