"""Losses at several depths of one network: early exits, and layers left out at random.

All exits go through the shared norm and head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.lab.train.network import TrainableLlama
from polydec.models.formats.superlinear import SuperlinearRule


@dataclass(frozen=True)
class EarlyExitLosses:
    """What a step learns besides the loss of the full network.

    Depths count layers: 1 is after the first.

    Attributes:
        scale: e_scale of the early-exit loss, 0 (off) to 1. Depth d weighs scale * d (d - 1) / 2,
            the full network L - 1 more; a step learns every second early depth, in turn, and the
            full one.
        dropout: 0 to 0.5, how often the last layer is left out for a row. A layer at index l is
            left out with dropout * (2 ** (l / (L - 1)) - 1).
        exits: Instead, these depths at equal weight in every step (sorted training); the last one
            must be L.

    Source: LayerSkip (Elhoushi et al., 2024); SoFT (Valipour et al., 2023) for `exits`.
    """

    scale: float = 0.0
    dropout: float = 0.0
    exits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= 1:
            raise RequestError(f"early_exit is {self.scale}: it must lie in 0 (off) to 1")
        if not 0 <= self.dropout <= 0.5:
            raise RequestError(f"layer_dropout is {self.dropout}: it must lie in 0 to 0.5")
        if list(self.exits) != sorted(set(self.exits)) or (self.exits and self.exits[0] < 1):
            raise RequestError(
                f"exits is {self.exits}: it must hold ascending depths of 1 and more"
            )
        if self.exits and self.scale:
            raise RequestError(
                "exits and early_exit are both set: one of them decides which depths are learnt"
            )

    @property
    def on(self) -> bool:
        """Whether anything is learned besides the full network's loss."""
        return bool(self.scale or self.dropout or self.exits)

    def loss_weights(self, layers: int, step: int) -> dict[int, float]:
        """The weight of every depth that a step learns.

        Args:
            layers: Layers of the network, L.
            step: Step of the training, which decides which early depths have their turn.

        Returns:
            Weights by depth, ascending; they add up to 1.

        Raises:
            RequestError: The last of `exits` is not the network's depth.
        """
        if self.exits:
            if self.exits[-1] != layers:
                raise RequestError(
                    f"exits is {self.exits}: the last one must be {layers}, the network's layers"
                )
            return {d: 1 / len(self.exits) for d in self.exits}
        # The sum of 1 to d - 1 is d (d - 1) / 2.
        raw = {layers: layers - 1 + self.scale * layers * (layers - 1) / 2}
        if self.scale:  # depth 1 has weight 0
            raw = {d: self.scale * d * (d - 1) / 2 for d in range(2 + step % 2, layers, 2)} | raw
        total = sum(raw.values())
        if total:
            return {d: w / total for d, w in raw.items()}
        return {layers: 1.0}

    def hidden_states(
        self,
        network: TrainableLlama,
        token_BT: Tensor,
        depths: Mapping[int, float],
        seed: int,
        step: int,
    ) -> list[Tensor]:
        """Run the network, leaving layers out at random, and give the states at some depths.

        Args:
            network: The network in training.
            token_BT: Token ids, shape ``[B, T]``.
            depths: Wanted depths, as `weights` gives them; the weights are not read.
            seed: Seed of the run.
            step: Step of the training; with the seed it decides which layers are left out.

        Returns:
            States after the final norm, one tensor of shape ``[B, T, H]`` for each depth.
        """
        trunk = network.model
        T = token_BT.shape[1]
        out = list[Tensor]()
        dice = torch.Generator().manual_seed(seed * 1_000_003 + step)
        x = trunk.embed_tokens(token_BT)
        last = max(network.s.layers - 1, 1)
        for i, layer in enumerate(trunk.layers):
            # 2 ** (i / last) - 1 grows from 0 at the first layer to 1 at the last.
            p = self.dropout * (math.exp(i * math.log(2) / last) - 1)
            if p:
                keep = torch.rand(len(x), generator=dice) >= p
            else:
                keep = None
            if keep is None or bool(keep.all()):
                x = layer(x, trunk.cos[:T], trunk.sin[:T])
            elif bool(keep.any()):
                # Only the rows that are not dropped go through the layer.
                x = x.to(torch.float32).index_copy(
                    0,
                    keep.nonzero()[:, 0],
                    layer(x[keep], trunk.cos[:T], trunk.sin[:T]).to(torch.float32),
                )
            if i + 1 in depths:
                # All exits share the final norm.
                out.append(trunk.norm(x))
        return out


def copy_with_layers(start: TrainableLlama, layers: int, seed: int = 0) -> TrainableLlama:
    """A trainable copy of a network with another number of layers.

    With fewer layers it has the first ones. With more, its layers are spread evenly, and between
    them stand new ones whose outputs are zero, so that it computes what `start` computes.

    Args:
        start: The network to copy.
        layers: Layers of the copy, 1 or more.
        seed: Seed of the new layers' weights. Default 0.

    Returns:
        The copy.
    """
    have = start.s.layers
    out = TrainableLlama(replace(start.s, layers=layers), seed=seed)
    if layers > have:
        # Where each old layer lies in the new stack.
        at = [round(i * (layers - 1) / max(have - 1, 1)) for i in range(have)]
    else:
        at = list(range(layers))
    # What is no layer is taken as it is.
    weights = {k: v for k, v in start.state_dict().items() if ".layers." not in k}
    for i in range(layers):
        name = f"model.layers.{i}."
        if i in at:
            old = f"model.layers.{at.index(i)}."
            weights |= {
                k.replace(old, name, 1): v
                for k, v in start.state_dict().items()
                if k.startswith(old)
            }
        else:
            # A layer whose two outputs are zero adds nothing to the residual stream.
            for part in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                weights[f"{name}{part}"] = torch.zeros_like(out.state_dict()[f"{name}{part}"])
    out.load_state_dict({**out.state_dict(), **weights})
    return out


def copy_with_vocab(start: TrainableLlama, vocab: int) -> TrainableLlama:
    """A copy of a network with rows for more tokens.

    Args:
        start: The network to copy, with a tied head.
        vocab: Tokens of the copy, at least those of `start`.

    Returns:
        The copy; new rows begin as the mean of the others.
    """
    out = TrainableLlama(replace(start.s, vocab=vocab))
    weights = dict(start.state_dict())
    name = "model.embed_tokens.weight"
    more = vocab - start.s.vocab
    weights[name] = torch.cat([weights[name], weights[name].mean(0, keepdim=True).expand(more, -1)])
    out.load_state_dict(weights)
    return out


def copy_with_search(start: TrainableLlama, rule: SuperlinearRule) -> TrainableLlama:
    """A copy of a network whose attention searches for the keys that it reads.

    Args:
        start: The network to copy.
        rule: Which keys are read.

    Returns:
        The copy; where `start` reads all keys, queries that search begin as those that attend.
    """
    out = TrainableLlama(replace(start.s, superlinear=rule))
    weights = dict(start.state_dict())
    for name, tensor in start.state_dict().items():
        if name.endswith("self_attn.q_proj.weight"):
            weights.setdefault(name.replace("q_proj", "search_proj"), tensor)
    out.load_state_dict(weights)
    return out
