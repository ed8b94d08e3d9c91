"""Low-rank adapters (LoRA) on a network's layers: they are trained, and in the end merged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from polydec.base.files import replace_file_atomically
from polydec.models.formats import adapters


class LowRankUpdate(nn.Module):
    """A matrix with `up` times `down` added; `up` begins as zero, so nothing changes at first."""

    def __init__(self, rows: int, columns: int, rank: int, g: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, columns, generator=g) / columns**0.5)
        # With one factor at zero nothing changes at first, and the other still gives it a gradient.
        self.up = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight with the low-rank product added."""
        return weight + self.up @ self.down


def add_lora_adapters(network: nn.Module, rank: int, seed: int) -> None:
    """Put an adapter on every linear part of the network's layers.

    Nothing else is trained from then on.

    Args:
        network: The network, changed in place.
        rank: Rank of the adapters, 1 or more.
        seed: Seed of the down matrices.
    """
    g = torch.Generator().manual_seed(seed)
    network.requires_grad_(False)
    for name, part in list(network.named_modules()):
        # Head and embeddings lie outside of layers.
        if isinstance(part, nn.Linear) and ".layers." in f".{name}.":
            low = LowRankUpdate(part.out_features, part.in_features, rank, g)
            parametrize.register_parametrization(part, "weight", low)


def merge_lora_adapters(network: nn.Module) -> None:
    """Make the adapters part of the weights; all weights are trainable afterwards."""
    for part in network.modules():
        if parametrize.is_parametrized(part, "weight"):
            parametrize.remove_parametrizations(part, "weight")
    network.requires_grad_(True)


def adapted_weights(network: nn.Module) -> dict[str, Tensor]:
    """The weights of a network by their names, with what its adapters add; without gradients."""
    out = dict[str, Tensor]()
    for name, value in network.state_dict().items():
        # A matrix with an adapter stands there as its parts, the matrix itself first.
        part, _, rest = name.partition(".parametrizations.weight.")
        if rest == "original":
            out[part + ".weight"] = network.get_submodule(part).weight.detach()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        elif not rest:
            out[name] = value
    return out


def save_lora_adapters(
    path: Path, network: nn.Module, base: str, file_names: Mapping[str, str] | None = None
) -> None:
    """Write the adapters of a network into a directory, as PEFT does.

    Args:
        path: Directory to write.
        network: A network with adapters.
        base: Name of the checkpoint that the adapters change.
        file_names: Of the network's weights the names that the checkpoint has. Default: the same.
    """
    tensors = dict[str, Tensor]()
    names = set[str]()
    rank = 0
    for name, part in network.named_modules():
        if not parametrize.is_parametrized(part, "weight"):
            continue
        low = cast(Any, part).parametrizations.weight[0]
        rank = low.down.shape[0]
        # PEFT finds the parts to adapt by the last component of their names.
        names.add(name.rpartition(".")[2])
        own = name
        if file_names is not None:
            own = file_names[f"{name}.weight"].removesuffix(".weight")
        tensors[adapters.PREFIX + own + adapters.DOWN] = low.down.detach().contiguous()
        tensors[adapters.PREFIX + own + adapters.UP] = low.up.detach().contiguous()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,  # the product is added as it is
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(names),
    }
    write_adapter(path, tensors, config)


def write_adapter(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write an adapter into a directory; each file appears complete or not at all.

    Args:
        path: Directory to write.
        tensors: Its tensors by name.
        config: What it says of itself.
    """
    path.mkdir(parents=True, exist_ok=True)
    whole = {name: t.contiguous() for name, t in tensors.items()}
    replace_file_atomically(
        path / adapters.WEIGHTS, lambda at: save_file(whole, at, {"format": "pt"})
    )
    text = json.dumps(config, indent=2) + "\n"
    replace_file_atomically(
        path / adapters.CONFIG, lambda at: Path(at).write_text(text, encoding="utf-8")
    )
