"""Checkpoints handed to the native step: a GGUF file's blocks as they stand, or float tensors."""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.base.errors import MissingError
from polydec.models.formats.architectures import SplitWeights, TensorPiece, TransformerConfig
from polydec.models.formats.fields import shape_of, source_of
from polydec.models.formats.gguf import GGUFCheckpoint, GGUFTensorEntry
from polydec.models.formats.gguf_families import ARCHITECTURES
from polydec.models.native import stored_matrices
from polydec.models.native.library import PARTS, TYPES, load_native_library
from polydec.models.nets import huge_pages

_FLOATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_MATRICES = {"embed", "head", "q", "k", "v", "o", "router", *_MLP}


@dataclass(frozen=True, eq=False)
class NativeWeight:
    """A tensor as the library takes it.

    Attributes:
        data: Its bytes; of a vector its numbers.
        shape: Its shape.
        kind: Of a matrix the number of its block type; None: it is a vector of float32.
        swap: Width of a head whose outputs the file pairs as neighbours; 0: it does not.
        bias: Whether a vector is a bias.
    """

    data: Any
    shape: tuple[int, ...]
    kind: int | None
    swap: int = 0
    bias: bool = False


class _GGUFWeightBlocks:
    """The blocks of a GGUF file under their Hugging Face names."""

    def __init__(self, file: GGUFCheckpoint, pieces: Mapping[str, TensorPiece]) -> None:
        self._file = file
        self._pieces = pieces
        self.paired = ARCHITECTURES[file.architecture].paired

    def block_place(self, name: str) -> GGUFTensorEntry:
        """Where the blocks of a tensor lie in the file."""
        if (piece := self._pieces.get(name)) is not None:
            return self._file.row_places(piece.name, piece.first, piece.stop)
        return self._file.entries[self._file._names[name]]

    def raw_bytes(self, name: str) -> np.ndarray:
        """The bytes of a tensor, mapped."""
        return self._file.raw_bytes(self.block_place(name))

    def release_pages(self, name: str) -> None:
        """Give back the pages of a tensor that the library has copied."""
        e = self.block_place(name)
        page = mmap.PAGESIZE
        # The advice takes full pages; they are read again if somebody asks.
        first = e.start // page * page
        if hasattr(mmap, "MADV_DONTNEED"):
            kept = self._file.parts[e.part]._mmap  # pyright: ignore[reportAttributeAccessIssue]   (numpy names it nowhere)
            kept.madvise(mmap.MADV_DONTNEED, first, e.stop - first)


class NativeWeightLoader:
    """Reads a checkpoint, and counts what types its weights have.

    Attributes:
        approximate: Why its matrices are not the file's; "" where they are.
    """

    def __init__(self, weights: Mapping[str, Any], quantize: str | None) -> None:
        if quantize is not None and quantize not in QUANTISED:
            raise MissingError(
                f"quantize is {quantize!r}: it must be one of {', '.join(QUANTISED)}"
            )
        self._weights = weights
        self._quantize = quantize
        # Some matrices are pieces of larger tensors, which are cut here.
        if isinstance(weights, SplitWeights):
            source = weights.source
            pieces = weights.pieces
        else:
            source = weights
            pieces = {}
        if isinstance(source, GGUFCheckpoint):
            self._file = _GGUFWeightBlocks(source, pieces)
        else:
            self._file = None
        # GGUF's blocks are quantised already: to round them again would only lose.
        if quantize and self._file:
            raise MissingError(
                f"quantize is {quantize!r} and the weights are a GGUF file: its blocks stay as they are"
            )
        self._keeps = bool(quantize) and _numbers(weights) <= stored_matrices.MOST
        self._types: Counter[str] = Counter()
        self._mapped: list[huge_pages.Region] | None = None
        self.approximate = ""

    @property
    def paired(self) -> bool:
        """Whether the file has turned pairs as neighbours."""
        return self._file is not None and self._file.paired

    @property
    def summary(self) -> str:
        """Types of the matrices, most of them first."""
        return "+".join(name for name, _ in self._types.most_common())

    @property
    def quantised(self) -> bool:
        """Whether any matrix has blocks with scales."""
        return any(name not in _FLOATS.values() for name in self._types)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return shape_of(self._weights, name)

    def read_vector(self, name: str, bias: bool = False, plus: float = 0.0) -> NativeWeight:
        """Read a vector.

        Args:
            name: Its published name.
            bias: Whether it is a bias. Default False.
            plus: Added to each number, as of norms that store weight - 1. Default 0.

        Returns:
            The vector, float32.
        """
        self.tensor_shape(name)
        data = np.ascontiguousarray(
            self._weights[name].float().numpy() + plus
        )  # a GGUF file's are already in our order
        return NativeWeight(data, data.shape, None, 0, bias)

    def read_matrix(self, name: str, swap: int = 0) -> NativeWeight:
        """Read a matrix: the blocks of a GGUF file as they stand, or floats, which may be
        quantised.

        Args:
            name: Its published name.
            swap: Width of a head whose outputs a GGUF file pairs as neighbours; 0: the matrix has
                none. Default 0.

        Returns:
            The matrix.

        Raises:
            MissingError: It is no matrix, or its type is not known to the library.
        """
        # Asked first: a tensor that is missing raises here, whatever its form.
        shape = self.tensor_shape(name)
        if len(shape) != 2:
            raise MissingError(f"{name} has shape {shape}: a matrix is expected")
        if self._file is not None:
            entry = self._file.block_place(name)
            # The library computes with these block forms as they are.
            if entry.type.name not in TYPES:
                raise MissingError(
                    f"{name} is of type {entry.type.name}: the native step reads {', '.join(TYPES)}"
                )
            self._types[entry.type.name] += shape[0] * shape[1]
            return NativeWeight(
                self._file.raw_bytes(name),
                shape,
                TYPES[entry.type.name],
                swap if self._file.paired else 0,
            )
        # A block has 32 numbers of a row.
        if self._quantize and shape[1] % 32 == 0:
            kind = self._quantize.upper()
            data = self._blocks(self._quantize, name, shape)
            self.approximate = f"weights quantised to {self._quantize} when loaded"
        else:
            t = self._weights[name].detach()
            kind = _FLOATS.get(t.dtype, "F32")
            data = (t if t.dtype in _FLOATS else t.float()).contiguous().view(torch.uint8).numpy()
        self._types[kind] += shape[0] * shape[1]
        return NativeWeight(data, shape, TYPES[kind])

    def _blocks(self, kind: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A matrix in blocks, those of an earlier load where there are such."""

        def made_blocks() -> np.ndarray:
            return QUANTISED[kind](self._weights[name])

        if not self._keeps:
            return made_blocks()
        n, k = shape
        return stored_matrices.cached_quantised_blocks(
            kind, source_of(self._weights, name), (n, k // 32, SIZES[kind]), made_blocks
        )

    def release_pages(self, name: str) -> None:
        """Give back the file's pages, which are not needed any more."""
        if self._file is not None:
            self._file.release_pages(name)
            return
        if self._mapped is None:
            self._mapped = huge_pages.mapped_file_regions(".safetensors")
        huge_pages.release_mapped_pages(self._mapped)


def _numbers(weights: Mapping[str, Any]) -> int:
    return sum(math.prod(shape_of(weights, name)) for name in weights)


def q8_0(weight_NK: Tensor) -> np.ndarray:
    """Quantise to blocks of 32: a half-precision scale, then 32 signed bytes, rounded to nearest."""
    n, k = weight_NK.shape
    out = torch.empty(n, k // 32, 34, dtype=torch.uint8)
    for i in range(0, n, 4096):  # a large matrix in pieces: what is made on the way stays small
        blocks = weight_NK[i : i + 4096].float().reshape(-1, k // 32, 32)
        scale = (blocks.abs().amax(-1, keepdim=True) / 127).half()
        # The scale as it is stored, in half precision: the code must fit what it is multiplied by
        # later. A block of zeros has scale 0.
        code = (blocks / scale.float().clamp(min=1e-30)).round().clamp(-127, 127).to(torch.int8)
        out[i : i + 4096, :, :2], out[i : i + 4096, :, 2:] = (
            scale.view(torch.uint8),
            code.view(torch.uint8),
        )
    return out.numpy()


def q4_1(weight_NK: Tensor) -> np.ndarray:
    """Quantise to blocks of 32: a half-precision step and least value, then 32 codes of 4 bits.

    Of several ranges, from that of all the block's numbers down to 0.85 of it, the one with the
    least squared error.
    """
    n, k = weight_NK.shape
    out = torch.empty(n, k // 32, 20, dtype=torch.uint8)
    for i in range(0, n, 1024):
        blocks = weight_NK[i : i + 1024].float().reshape(-1, k // 32, 32)
        low = blocks.amin(-1, keepdim=True)
        high = blocks.amax(-1, keepdim=True)
        best = torch.full_like(low, float("inf"))
        # A narrower range cuts outliers off, and rounds all others more finely.
        for part in (1.0, 0.97, 0.94, 0.91, 0.88, 0.85):
            step = (part * (high - low) / 15).half()
            least = ((low + high) / 2 - part * (high - low) / 2).half()
            code = ((blocks - least.float()) / step.float().clamp(min=1e-30)).round().clamp(0, 15)
            error = (code * step.float() + least.float() - blocks).square().sum(-1, keepdim=True)
            better = (error < best)[..., 0]
            at = out[i : i + 1024]
            best = torch.minimum(best, error)
            # Two codes a byte: number i in the low half, number i + 16 in the high half.
            byte = code.to(torch.uint8)
            at[better] = torch.cat(
                [
                    step.view(torch.uint8),
                    least.view(torch.uint8),
                    byte[..., :16] | byte[..., 16:] << 4,
                ],
                -1,
            )[better]
    return out.numpy()


QUANTISED: Mapping[str, Callable[[Tensor], np.ndarray]] = {"q8_0": q8_0, "q4_1": q4_1}
SIZES: Mapping[str, int] = {"q8_0": 34, "q4_1": 20}
"""Bytes of a block of 32."""


def load_all(
    load: NativeWeightLoader,
    c: TransformerConfig,
    put: Callable[[int, int, NativeWeight], int],
    tokens: Tensor | None,
) -> Callable[[Sequence[int]], Tensor] | None:
    """Give every tensor to the library, in order of use.

    Args:
        load: Reads the checkpoint.
        c: The network's config.
        put: Gives a tensor to the library: part, layer, tensor; it answers with a code.
        tokens: The ids that the head answers; None: all.

    Returns:
        What looks embeddings up where the library cannot (a narrow table, and a matrix that widens
        it); None: the library does.

    Raises:
        MissingError: A tensor is missing or of another shape, or the library does not take it.
    """

    def give_tensor(
        part: str, layer: int, name: str, swap: int = 0, expert: int | None = None
    ) -> None:
        """Give one tensor, and its bias if it has one.

        Args:
            part: Which part of the network it is, a key of `PARTS`.
            layer: Index of the layer; 0 where it belongs to none.
            name: Its published name, without ".weight".
            swap: Width of a head whose outputs a GGUF file pairs as neighbours; 0: there are none.
            expert: Index of the expert; None: it is none of one.
        """
        if expert is None:
            number = PARTS[part]
        else:
            # Experts are numbered after the parts: gate, up and down of each.
            number = len(PARTS) + 3 * expert + list(_MLP).index(part)
        if part in _MATRICES:
            item = load.read_matrix(name + ".weight", swap)
        else:
            item = load.read_vector(name + ".weight", plus=c.norms.plus)
        _check(put(number, layer, item), name)
        # The library has its own copy: the file's pages can go, so that a model is not in memory
        # twice.
        load.release_pages(name + ".weight")
        if name + ".bias" in load:
            _check(put(number, layer, load.read_vector(name + ".bias", bias=True)), name)

    top = "model.embed_tokens"
    widen: Callable[[Sequence[int]], Tensor] | None = None
    if top + ".proj.weight" in load:
        table, proj = load._weights[top + ".weight"], load._weights[top + ".proj.weight"].float()

        def looked_up(token: Sequence[int]) -> Tensor:
            wide = [
                proj.mv(table[x].float()) for x in token
            ]  # one by one: a row must not know its batch
            return torch.stack(wide) * c.embed_scale

        widen = looked_up
    else:
        give_tensor("embed", 0, top)
    for i in range(c.layers):
        # Norms have other places in other families; each is named by where it stands.
        norms = {
            "norm1": c.norms.attention,
            "after1": c.norms.attended,
            "norm2": c.norms.mlp,
            "after2": c.norms.mlped,
        }
        if c.is_sparse(i):
            mlp = {"router": "mlp.gate"}
        else:
            mlp = _MLP
        for part, name in {
            **_NAMES,
            **mlp,
            **{p: n for p, n in norms.items() if n is not None},
        }.items():
            full = f"model.layers.{i}.{name}"
            # Only some families norm queries and keys.
            if part in ("q_norm", "k_norm") and full + ".weight" not in load:
                continue
            # Only queries and keys are turned, so only these have pairs.
            give_tensor(part, i, full, c.head if part in "qk" else 0)
        if c.sinks:
            sinks = f"model.layers.{i}.self_attn.sinks"
            _check(put(PARTS["sinks"], i, load.read_vector(sinks)), sinks)
        for e in range(c.experts.count if c.experts is not None and c.is_sparse(i) else 0):
            for part, name in _MLP.items():
                give_tensor(
                    part,
                    i,
                    f"model.layers.{i}.{name.replace('mlp.', f'mlp.experts.{e}.')}",
                    expert=e,
                )
    give_tensor("norm", 0, "model.norm")
    if "lm_head.weight" in load:
        give_tensor("head", 0, "lm_head")
    # A head of its own is needed and missing: asking for its shape raises the error.
    elif tokens is not None or c.tied is False or widen is not None:
        load.tensor_shape("lm_head.weight")
    return widen


def _check(code: int, name: str) -> None:
    if code:
        raise MissingError(f"{name}: {load_native_library().step_error(code).decode()}")
