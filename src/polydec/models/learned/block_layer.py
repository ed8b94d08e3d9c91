"""One layer on a target's states whose MLP writes several states at a position: those that follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from polydec.base.errors import FileError
from polydec.models.learned.state_layer import EPS, StateLayer
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, NeuralNetwork

IDLE = 32
"""Width of the MLP that writes nothing: the least that the compiled step serves."""


@dataclass(frozen=True, eq=False)
class BlockLayer:
    """A layer that guesses a block of states at once (semi-autoregressive).

    Attributes:
        layer: Its tensors; the MLP's last matrix writes the states one below another.
        block: How many they are, 1 to 16. With 1 it is the layer itself.
    """

    layer: StateLayer
    block: int

    @property
    def width(self) -> int:
        """H."""
        return self.layer.width

    @property
    def cost(self) -> float:
        return self.layer.cost

    def layer_network(self) -> BlockNetwork:
        """Make the network that runs the layer, fed by `NetworkQuery.embed` (H wide).

        Returns:
            A network whose states are those of a block, ``[R, block H]``.
        """
        t = {name: tensor.detach() for name, tensor in self.layer.tensors.items()}
        width = self.width
        # The compiled step knows whole layers alone. Of one with these tensors attention is left.
        idle = {
            "mlp.gate_proj.weight": torch.zeros(IDLE, width),
            "mlp.up_proj.weight": torch.zeros(IDLE, width),
            "mlp.down_proj.weight": torch.zeros(width, IDLE),
        }
        attention = replace(self.layer, tensors={**t, **idle}).layer_network()
        return BlockNetwork(t, self.block, self.cost, attention)


def block_states(tensors: Mapping[str, Tensor], x_NH: Tensor, block: int) -> Tensor:
    """Guess the states that follow some positions: the part of the layer behind attention.

    Args:
        tensors: The layer's tensors, by name.
        x_NH: What attention left of each position, shape ``[..., H]``.
        block: How many states K are guessed.

    Returns:
        The states, shape ``[..., K, H]``.
    """
    n = rms_norm(x_NH, x_NH.shape[-1:], tensors["post_attention_layernorm.weight"], EPS)
    gate = silu(linear(n, tensors["mlp.gate_proj.weight"]))
    inner = gate * linear(n, tensors["mlp.up_proj.weight"])
    # One product writes all states, which lie one behind another in the last matrix's rows.
    written = linear(inner, tensors["mlp.down_proj.weight"]).unflatten(-1, (block, -1))
    # Each goes on from the row itself: what is not learned yet leaves the state as it is.
    return x_NH[..., None, :] + written


class BlockNetwork:
    """Attention by another network, and behind it the MLP at the rows that are answered alone.

    No other position needs it: nothing reads what it writes but the target's head.
    """

    # A query cannot stop inside the layer.
    partial = False

    def __init__(
        self, tensors: Mapping[str, Tensor], block: int, cost: float, attention: NeuralNetwork
    ) -> None:
        self._tensors = {name: t.float() for name, t in tensors.items()}
        self._block = block
        self._attention = attention
        self.layers = attention.layers
        self.context = attention.context
        self.cost = cost
        self.tree = attention.tree
        self.rollback = attention.rollback
        self.new_cache = attention.new_cache

    @torch.inference_mode()
    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]:
        return [self._guessed(answer) for answer in self._attention.forward(queries)]

    def _guessed(self, answer: NetworkAnswer) -> NetworkAnswer:
        assert answer.hidden_RH is not None, "states are asked for"
        # In fp32: these few rows cost little beside reading a prompt.
        states_RKH = block_states(self._tensors, answer.hidden_RH.float(), self._block)
        return NetworkAnswer(None, states_RKH.flatten(1))

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        raise FileError("a layer of blocks has no head: its states are the target's")

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        raise FileError("a layer of blocks has no norm behind it: its states are the target's")

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        raise FileError("a layer of blocks has no table: it reads the target's embeddings")

    def read_keys(self, cache: Any, stop: int, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Read the keys and values that the layer holds.

        Args:
            cache: A cache of this network.
            stop: Number of entries to read, from the first one on.
            layer: Index of the layer. Default None: the last one.

        Returns:
            Keys and values, each ``[kv heads, stop, head]``.
        """
        return self._attention.read_keys(cache, stop, layer)
