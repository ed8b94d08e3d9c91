"""GGUF files of the served families, as Hugging Face names and shapes them: configuration and
lazily dequantised weights.

The header is read here: the `gguf` library's reader makes one array of every string, which takes
seconds where the vocabulary is large. The rarer dequantisers are the library's.
"""

from __future__ import annotations

import math
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats.edge import error_sentence
from polydec.models.formats.gguf_families import ARCHITECTURES, TABLES, TOP, config_of
from polydec.models.formats.gguf_types import TYPES, GGUFTensorType

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING = 8
_ARRAY = 9
MOST = 1 << 24  # numbers of one field: as Python lists they take eight times the file's room


@dataclass(frozen=True)
class GGUFTensorEntry:
    """A tensor of the file.

    Attributes:
        shape: Its shape as in torch.
        type: Its type.
        start: Its first byte in the file, or in one of its parts.
        stop: The byte after its last one.
        part: Index of the file that it lies in. Default 0.
    """

    shape: tuple[int, ...]
    type: GGUFTensorType
    start: int
    stop: int
    part: int = 0


class _GGUFHeaderReader:
    """Reads the header's values in order; says where the file ends too early."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take_bytes(self, size: int) -> memoryview:
        """The next bytes."""
        if size > len(self.data) - self.at:
            raise FileError(
                f"its header asks for {size} bytes at byte {self.at}, but the file ends at {len(self.data)}: "
                "it is truncated or damaged"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def read_scalar(self, form: str) -> Any:
        """The next number, in a form of `struct`."""
        return struct.unpack(form, self.take_bytes(struct.calcsize(form)))[0]

    def read_count(self, what: str, least: int) -> int:
        """The next number, which says how many things follow.

        Args:
            what: What they are, for the message.
            least: Bytes that one of them takes at least.

        Returns:
            The number.

        Raises:
            FileError: The file has no room for so many.
        """
        n = self.read_scalar("<Q")
        if n * least > len(self.data) - self.at:
            raise FileError(
                f"its header announces {n} {what}, more than the file has room for: it is truncated or damaged"
            )
        return n

    def read_string(self) -> str:
        """The next text."""
        return str(
            self.take_bytes(self.read_count("characters of a string", 1)), "utf-8", "replace"
        )

    def read_strings(self) -> list[str]:
        """The next array of texts.

        It may be a vocabulary of hundreds of thousands: one loop, without calls for each number.
        """
        out = list[str]()
        data = self.data
        room = len(self.data)
        length = struct.Struct("<Q").unpack_from
        for _ in range(self.read_count("strings", 8)):
            # A text is its length in eight bytes, then its bytes.
            first = self.at + 8
            if first <= room:
                stop = first + length(data, self.at)[0]
            else:
                stop = first
            if stop > room:
                self.read_string()  # raises, and says where the file ends
            out.append(str(data[first:stop], "utf-8", "replace"))
            self.at = stop
        return out

    def read_name(self) -> str:
        """The next text, which must be a legal name."""
        at = self.at
        text = self.read_string()
        # A damaged header is noticed at the first name that is none.
        if not 0 < len(text) <= 128 or not text.isprintable():
            raise FileError(f"its header has no legal name at byte {at}: it is damaged")
        return text

    def read_value(self, kind: int) -> Any:
        """The next value of a kind: a number, a text, or an array of these."""
        # By the kind that the header states: scalars, strings, and arrays of either.
        if kind in _SCALARS:
            return self.read_scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.read_string()
        if kind != _ARRAY:
            raise FileError(
                f"its header has a value of kind {kind} at byte {self.at}: kinds are 0 to 12"
            )
        item = self.read_scalar("<I")
        if item == _STRING:
            return self.read_strings()
        if item not in _SCALARS:
            raise FileError(
                f"its header has an array of kind {item} at byte {self.at}: numbers and strings are legal"
            )
        form = np.dtype(_SCALARS[item])
        # Counted before they are read: a broken header may state any number.
        numbers = self.read_count("numbers", form.itemsize)
        if numbers > MOST:
            raise FileError(
                f"its header has an array of {numbers} numbers at byte {self.at}: {MOST} are read at most"
            )
        return np.frombuffer(self.take_bytes(numbers * form.itemsize), form).tolist()


class GGUFCheckpoint(Mapping[str, Tensor]):
    """One file, or the first of several parts (NAME-00001-of-00003.gguf, the others in the same
    folder).

    It has `fields` (its metadata), `config` (that of a Hugging Face config.json) and, as a mapping,
    the weights under their Hugging Face names, dequantised when asked for (float32; F16 and BF16
    tensors as they are).

    Raises:
        FileError: The file is no GGUF of versions 2 or 3, is truncated, or of an architecture
            outside ARCHITECTURES (that when `config` or the weights are asked for).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        try:
            self.parts = [np.memmap(self.path, np.uint8, "r")]
            self.fields, self.entries = _read(_view(self.parts[0]))
        except ValueError as e:  # an empty file cannot be mapped: that too is a ValueError
            raise FileError(error_sentence(f"{self.path} cannot be read as GGUF: {e}")) from None
        # The metadata is that of the first part; the others bring tensors.
        for path in _others(Path(self.path), self.fields):
            try:
                self.parts.append(np.memmap(path, np.uint8, "r"))
                fields, entries = _read(_view(self.parts[-1]))
            except (OSError, ValueError) as e:
                raise FileError(
                    error_sentence(f"{path}, a part of the model, cannot be read as GGUF: {e}")
                ) from None
            # A part in the wrong place would give tensors of another layer.
            if (
                fields.get("split.no") != len(self.parts) - 1
                or self.entries.keys() & entries.keys()
            ):
                raise FileError(
                    error_sentence(
                        f"{path} is not part {len(self.parts)} of {self.path}: its split.no is "
                        f"{fields.get('split.no')!r:.20}, or it holds tensors that are there already"
                    )
                )
            self.entries |= {
                name: replace(e, part=len(self.parts) - 1) for name, e in entries.items()
            }
        count = self.fields.get("split.tensors.count", len(self.entries))
        if len(self.parts) > 1 and count != len(self.entries):
            raise FileError(
                error_sentence(
                    f"{self.path} and its parts hold {len(self.entries)} tensors, but split.tensors.count is "
                    f"{count!r:.20}"
                )
            )

    def raw_bytes(self, entry: GGUFTensorEntry) -> np.ndarray:
        """The bytes of a tensor as they stand."""
        return self.parts[entry.part][entry.start : entry.stop]

    def metadata_field(self, key: str, *default: Any) -> Any:
        """A field of the metadata.

        Args:
            key: Its name.
            default: What counts where it is missing; at most one.

        Returns:
            Its value.

        Raises:
            FileError: It is missing, and there is no default.
        """
        if key not in self.fields and not default:
            raise FileError(f"{self.path} lacks the field {key}")
        return self.fields.get(key, *default)

    @property
    def architecture(self) -> str:
        """The architecture that the file names, one of ARCHITECTURES."""
        name = self.metadata_field("general.architecture")
        if not isinstance(name, str) or name not in ARCHITECTURES:
            raise FileError(
                error_sentence(
                    f"{self.path} holds a model of the architecture {name!r:.80}: GGUF files are read of "
                    f"{', '.join(ARCHITECTURES)}"
                )
            )
        return name

    @cached_property
    def config(self) -> dict[str, Any]:
        """What a config.json would say."""
        return config_of(self)

    def metadata_count(self, key: str, *default: int) -> int:
        """A count among the metadata; where the file has one a layer, all must be alike.

        Args:
            key: Name of the field.
            default: What counts where it is missing; at most one.

        Returns:
            The count, 1 to 2^31 - 1.

        Raises:
            FileError: It is missing without a default, no count, or layers differ.
        """
        value = self.metadata_field(key, *default)
        if isinstance(value, list):  # one a layer
            # Some files write a number for each layer; only equal ones are served.
            if not value or any(v != value[0] for v in value):
                raise FileError(
                    error_sentence(
                        f"{self.path} has {key} = {value!r:.80}: layers that differ are not served"
                    )
                )
            value = value[0]
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise FileError(
                error_sentence(
                    f"{self.path} has {key} = {value!r}: it must be a whole number from 1 to 2^31 - 1"
                )
            )
        return value

    def metadata_real(self, key: str, *default: float) -> float:
        """A number above 0 among the metadata.

        Args:
            key: Name of the field.
            default: What counts where it is missing; at most one.

        Returns:
            The number.

        Raises:
            FileError: It is missing without a default, or not above 0.
        """
        value = self.metadata_field(key, *default)
        if type(value) not in (int, float) or not 0 < value < 1e38:
            raise FileError(
                error_sentence(
                    f"{self.path} has {key} = {value!r:.80}: it must be a number above 0"
                )
            )
        return float(str(np.float32(value)))  # the shortest decimal that this float32 can have been

    @cached_property
    def _names(self) -> dict[str, str]:
        """Hugging Face name -> the file's."""
        names = {}
        kind = ARCHITECTURES[self.architecture]
        for own in self.entries:
            stem, _, end = own.rpartition(".")
            block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
            if stem in TOP:
                names[f"{TOP[stem]}.{end}"] = own
            elif block and (name := kind.tensor_name(block[2])):
                bare = name == "self_attn.sinks"  # Hugging Face's name of these ends there
                names[f"model.layers.{block[1]}.{name}" + ("" if bare else f".{end}")] = own
            elif own not in TABLES:
                raise FileError(
                    f"{self.path} has the tensor {own}, which no {self.architecture} model has"
                )
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self.entries[self._names[name]].shape

    def source_of(self, name: str) -> tuple[np.ndarray, ...]:
        """What a tensor is made of, as it lies in the file; the second array names the form of the
        first."""
        entry = self.entries[self._names[name]]
        form = f"{self.architecture} {entry.type.name} {entry.shape}".encode()
        return self.raw_bytes(entry), np.frombuffer(form, np.uint8)

    def __getitem__(self, name: str) -> Tensor:
        own = self._names[name]
        kind = ARCHITECTURES[self.architecture]
        tensor = self.stored_tensor(own)
        if kind.plus and own.endswith("norm.weight"):
            return tensor - kind.plus  # exact for all that rounding left of it
        if kind.paired and (".attn_q." in own or ".attn_k." in own):
            heads = self.config[
                "num_attention_heads" if ".attn_q." in own else "num_key_value_heads"
            ]
            if tensor.shape[0] % (2 * heads):
                raise FileError(
                    f"{self.path} has {own} of {tensor.shape[0]} rows, which {heads} heads cannot share"
                )
            # llama.cpp pairs neighbouring rows in RoPE, Hugging Face the two halves of a head
            tensor = tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(tensor.shape)
        return tensor

    def row_places(self, name: str, first: int, stop: int) -> GGUFTensorEntry:
        """Where rows of a tensor lie in the file. The tensor's leading sides count as one.

        Args:
            name: Its Hugging Face name.
            first: The first row; of a vector the first number.
            stop: The row after the last one.

        Returns:
            The place of these rows.
        """
        entry = self.entries[self._names[name]]
        # A vector's numbers are taken one by one.
        if len(entry.shape) < 2:
            size = (entry.stop - entry.start) // math.prod(entry.shape)
            return replace(
                entry,
                shape=(stop - first,),
                start=entry.start + first * size,
                stop=entry.start + stop * size,
            )
        # Bytes of a row: blocks never reach over its end.
        size = (entry.stop - entry.start) // math.prod(entry.shape[:-1])
        return replace(
            entry,
            shape=(stop - first, entry.shape[-1]),
            start=entry.start + first * size,
            stop=entry.start + stop * size,
        )

    def tensor_rows(self, name: str, first: int, stop: int) -> Tensor:
        """Rows of a tensor, dequantised. The tensor's leading sides count as one.

        Args:
            name: Its Hugging Face name.
            first: The first row; of a vector the first number.
            stop: The row after the last one.

        Returns:
            The rows.
        """
        return self._dequantised(self.row_places(name, first, stop), name)

    def stored_tensor(self, own: str) -> Tensor:
        """A tensor by the file's own name, dequantised; rows as they stand in the file."""
        return self._dequantised(self.entries[own], own)

    def _dequantised(self, entry: GGUFTensorEntry, own: str) -> Tensor:
        raw = self.raw_bytes(entry)
        kind = entry.type
        # A copy: a mapped file cannot be written to, and tensors may be.
        if kind.name in _PLAIN:
            return torch.from_numpy(np.array(raw)).view(_PLAIN[kind.name]).view(entry.shape)
        # The mapped bytes are only read, so that a view of them is enough.
        if kind.name in _FAST:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                blocks_NB = torch.from_numpy(raw).view(-1, kind.size)
            return _FAST[kind.name](blocks_NB).view(entry.shape)
        rows = raw.reshape(*entry.shape[:-1], entry.shape[-1] // kind.block * kind.size)
        from gguf import GGMLQuantizationType, dequantize

        try:
            return torch.from_numpy(dequantize(rows, GGMLQuantizationType(kind.number))).view(
                entry.shape
            )
        except (
            NotImplementedError,
            ValueError,
        ):  # ValueError: a library that is older than the type
            raise FileError(
                f"{self.path} has the tensor {own} in {kind.name}, which the gguf library cannot "
                "dequantise"
            ) from None


def _others(path: Path, fields: Mapping[str, Any]) -> list[Path]:
    """The further parts of a model in several files; none where it is one file.

    Raises:
        FileError: This is not its first part.
    """
    count = fields.get("split.count", 0)
    number = fields.get("split.no", 0)
    if count in (0, 1):
        return []
    name = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path.name)
    if type(count) is not int or number != 0 or name is None or int(name[2]) != count:
        raise FileError(
            error_sentence(
                f"{path} is one of {count!r:.20} parts: give the first, NAME-00001-of-0000N.gguf, with the "
                "others beside it, or join them (llama-gguf-split --merge)"
            )
        )
    return [path.with_name(f"{name[1]}-{i + 1:05}-of-{count:05}.gguf") for i in range(1, count)]


def _view(data: np.memmap) -> memoryview:
    return memoryview(data)  # pyright: ignore[reportArgumentType]     (numpy's stubs say so from Python 3.12 on)


def _read(data: memoryview) -> tuple[dict[str, Any], dict[str, GGUFTensorEntry]]:
    head = _GGUFHeaderReader(data)
    if bytes(head.take_bytes(4)) != b"GGUF":
        raise FileError("it does not begin with the letters GGUF")
    if (version := head.read_scalar("<I")) not in (2, 3):
        raise FileError(f"its version is {version}: versions 2 and 3 are read, little-endian")
    # A tensor's description takes 32 bytes or more, a field 13: whatever cannot fit is refused
    # before it is read.
    tensors = head.read_count("tensors", 32)
    n_fields = head.read_count("fields", 13)
    fields = {}
    for _ in range(n_fields):
        key = head.read_name()
        fields[key] = head.read_value(head.read_scalar("<I"))
    described = []
    for _ in range(tensors):
        name = head.read_name()
        dims = head.read_scalar("<I")
        if not 1 <= dims <= 4:
            raise FileError(f"its tensor {name!r} has {dims} dimensions: 1 to 4 are legal")
        # GGUF lists the side of a row first.
        shape = tuple(reversed([head.read_scalar("<Q") for _ in range(dims)]))
        # Where a tensor lies is known only after all of them are described.
        described.append((name, shape, head.read_scalar("<I"), head.read_scalar("<Q")))
    align = fields.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1 or align & (align - 1):
        raise FileError(f"its alignment is {align!r}: it must be a power of two")
    # Tensors begin after the header, at the next multiple of the alignment; their offsets count
    # from there.
    base = -(-head.at // align) * align
    entries = dict[str, GGUFTensorEntry]()
    for name, shape, number, offset in described:
        if name in entries:
            raise FileError(f"it holds the tensor {name} twice")
        if (kind := TYPES.get(number)) is None:
            raise FileError(f"its tensor {name} is of type {number}, which is not known here")
        if 0 in shape:
            raise FileError(f"its tensor {name} has the shape {shape}: it must not be empty")
        if shape[-1] % kind.block:
            raise FileError(
                f"its tensor {name} has rows of {shape[-1]}, not a multiple of the {kind.block} of {kind.name}"
            )
        start = base + offset
        stop = start + math.prod(shape) // kind.block * kind.size
        # Compared with the file's real length: a broken file is found before anything is read.
        if stop > len(data):
            raise FileError(
                f"its tensor {name} ends at byte {stop}, but the file at {len(data)}: it is truncated or damaged"
            )
        entries[name] = GGUFTensorEntry(shape, kind, start, stop)
    return fields, entries


def _halves(blocks_NB: Tensor, at: int) -> Tensor:
    """The float16 number at byte `at` of each block, N1."""
    return blocks_NB[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(bytes_NB: Tensor) -> Tensor:
    """Low halves of the bytes first, then the high ones."""
    n, b = bytes_NB.shape
    out = torch.empty(n, 2 * b)
    out[:, :b], out[:, b:] = bytes_NB & 15, bytes_NB >> 4
    return out


def _q4_0(blocks_NB: Tensor) -> Tensor:
    return _nibbles(blocks_NB[:, 2:]).sub_(8).mul_(_halves(blocks_NB, 0))


def _q4_1(blocks_NB: Tensor) -> Tensor:
    return _nibbles(blocks_NB[:, 4:]).mul_(_halves(blocks_NB, 0)).add_(_halves(blocks_NB, 2))


def _q8_0(blocks_NB: Tensor) -> Tensor:
    return blocks_NB[:, 2:].view(torch.int8).float().mul_(_halves(blocks_NB, 0))


_PLAIN: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
_FAST: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
