"""Tensors in files of safetensors and of PyTorch's own format, read when somebody asks for them."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import edge, fields, rows8
from polydec.models.formats.fields import source_of


class SafeTensors(Mapping[str, Tensor]):
    """Tensors of some .safetensors files, each read when asked for.

    Attributes:
        metadata: What their headers say in addition to tensors.

    Raises:
        FileError: A file is damaged.
    """

    def __init__(self, files: list[Path]) -> None:
        self._at: dict[str, tuple[Path, Any]] = {}
        self.metadata = dict[str, str]()
        for file in files:
            try:
                # The file is mapped; tensors are read from it one by one.
                handle = safe_open(file, "pt")
                self._at |= dict.fromkeys(handle.keys(), (file, handle))
                self.metadata |= handle.metadata() or {}
            except (SafetensorError, OSError) as e:
                raise FileError(
                    f"{file} cannot be read as safetensors, it is truncated or damaged ({e})"
                ) from None

    def __getitem__(self, name: str) -> Tensor:
        return self._at[name][1].get_tensor(name)

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return tuple(self._at[name][1].get_slice(name).get_shape())

    def __contains__(self, name: object) -> bool:  # else each question would read a tensor
        return name in self._at

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)


class SharedEmbeddingWeights(Mapping[str, Tensor]):
    """Tensors of one checkpoint, the embedding table of another where it has none."""

    def __init__(self, own: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
        self._own = own
        name = "model.embed_tokens.weight"
        if name in base and name not in own:
            self._borrowed = {name: base}
        else:
            self._borrowed = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._borrowed.get(name, self._own)[name]

    def source_of(self, name: str) -> tuple[Any, ...]:
        """What a tensor is made of, as it lies in its file."""
        return source_of(self._borrowed.get(name, self._own), name)

    def __contains__(self, name: object) -> bool:  # else each question would read a tensor
        return name in self._borrowed or name in self._own

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return fields.shape_of(self._borrowed.get(name, self._own), name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *self._borrowed])

    def __len__(self) -> int:
        return len(self._own) + len(self._borrowed)


class HeadlessWeights(Mapping[str, Tensor]):
    """Tensors of a network without a head, as embedding models are stored: names get `model.`
    before them."""

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        self._own = own

    def _name(self, name: object) -> str:
        if isinstance(name, str) and name.startswith(PREFIX):
            return name[len(PREFIX) :]
        return ""

    def __getitem__(self, name: str) -> Tensor:
        return self._own[self._name(name)]

    def source_of(self, name: str) -> tuple[Any, ...]:
        """What a tensor is made of, as it lies in its file."""
        return source_of(self._own, self._name(name))

    def __contains__(self, name: object) -> bool:
        return self._name(name) in self._own

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return fields.shape_of(self._own, self._name(name))

    def __iter__(self) -> Iterator[str]:
        return (PREFIX + name for name in self._own)

    def __len__(self) -> int:
        return len(self._own)


class RenamedWeights(Mapping[str, Tensor]):
    """Tensors under other names.

    Args:
        weights: Tensors by the names of the file.
        names: Of each of our names the file's; those that the file lacks are left out.
    """

    def __init__(self, weights: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self._weights = weights
        # Optional tensors, such as biases, are left out where the file lacks them.
        self._names = {ours: theirs for ours, theirs in names.items() if theirs in weights}

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._names[name]]

    def source_of(self, name: str) -> tuple[Any, ...]:
        """What a tensor is made of, as it lies in its file."""
        return source_of(self._weights, self._names[name])

    @property
    def file_names(self) -> Mapping[str, str]:
        """Of each of our names the file's."""
        return self._names

    def __contains__(self, name: object) -> bool:  # else each question would read a tensor
        return name in self._names

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return fields.shape_of(self._weights, self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


PREFIX, TRUNK = "model.", re.compile(r"(embed_tokens|layers\.\d+|norm)\.")
"""What a head-less network lacks before its names, and how all of them begin."""


def open_weights(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a directory, with the names that a network with a head has: see `_open`."""
    weights = _open(path)
    # Every name begins like a part of the trunk: the prefix is missing everywhere.
    if all(map(TRUNK.match, weights)):
        return HeadlessWeights(weights)
    return weights


def _open(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a directory: model.safetensors, or the files of its index, else PyTorch's own
    format.

    Raises:
        FileError: There are none, one is missing or one is damaged.
    """
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (path / single).is_file():
            files = [path / single]
        elif (path / index).is_file():
            shards = edge.read_json(path / index).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise FileError(
                    f"{path / index} has no weight_map: it is not the index of a checkpoint"
                )
            # An index must not lead out of its directory.
            if bad := next(
                (f for f in shards.values() if not isinstance(f, str) or Path(f).name != f), None
            ):
                raise FileError(
                    edge.error_sentence(
                        f"{path / index} names the file {bad!r}: files beside it are legal"
                    )
                )
            files = [path / f for f in sorted(set(shards.values()))]
        else:
            continue
        if (lost := next((f for f in files if not f.is_file()), None)) is not None:
            raise FileError(f"{path} is incomplete: {lost.name}, which its index names, is missing")
        # Matrices in 8 bits are unpacked when they are read.
        if single.endswith(".safetensors"):
            return rows8.dequantise_rows(SafeTensors(files))
        return ChainMap(*map(load_torch_file, files))
    raise FileError(
        f"{path} is a directory without weights: model.safetensors (or its index) is missing"
    )


def load_torch_file(file: Path) -> dict[str, Tensor]:
    """The tensors of a file in PyTorch's own format; nothing in it is run.

    Raises:
        FileError: It is damaged, or holds something else than stored tensors by name.
    """
    try:
        tensors = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except Exception as e:  # torch raises what its unpickler meets
        why = f"it is damaged or not in PyTorch's zip format ({edge.first_line(e)})"
        raise FileError(edge.error_sentence(f"{file} cannot be read, {why}")) from None
    if not isinstance(tensors, dict) or not all(
        isinstance(k, str) and isinstance(t, Tensor) for k, t in tensors.items()
    ):
        raise FileError(
            edge.error_sentence(
                f"{file} holds something else than tensors by name: it is no checkpoint's"
            )
        )
    for name, t in tensors.items():
        # A tensor that repeats its numbers may claim any shape, and whoever copies it makes room
        # for all of that.
        if t.is_sparse or t.numel() * t.element_size() > t.untyped_storage().nbytes():
            raise FileError(
                edge.error_sentence(
                    f"{file} has {name!r} of shape {tuple(t.shape)}, more numbers than it stores for it: only tensors that "
                    "are stored whole are read"
                )
            )
    return tensors
