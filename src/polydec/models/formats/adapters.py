"""Adapters as PEFT writes them: a directory that says which checkpoint it changes, and what it has
for each weight: two thin matrices (LoRA), their rows' lengths beside them (DoRA), or a factor for
each row or column (IA3).

Source: LoRA, Hu et al. 2021, arXiv 2106.09685; DoRA, Liu et al. 2024, arXiv 2402.09353; IA3, Liu et
al. 2022, arXiv 2205.05638.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import edge, fields
from polydec.models.formats.image_adapter import (
    IMAGE,
    LADDER,
    PROJECTOR,
    TEXT,
    ImageAdapter,
    join_pairs,
    part_by_beginning,
)
from polydec.models.formats.tensor_files import SafeTensors, load_torch_file

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
MODAL = "MM_LORA"
"""The peft_type, ours, of an adapter for words beside one for images."""
NOT_PLAIN = (
    "use_qalora",
    "use_bdlora",
    "fan_in_fan_out",
    "layer_replication",
    "alora_invocation_tokens",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "megatron_config",
    "velora_config",
    "monteclora_config",
    "arrow_config",
    "kasa_config",
)
"""What changes more than the sum of two products, where it is set."""
PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Values of init_lora_weights, beside true and false, that say how training began and leave the
checkpoint as it is."""
PLAIN_NAME = re.compile(r"\^?[\w.]+\$?")
"""A name of modules without what only regular expressions have, except for ends."""
DOWN = ".lora_A.weight"
UP = ".lora_B.weight"
LENGTHS = ".lora_magnitude_vector"
FACTOR = ".ia3_l"


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter: low-rank, or of factors.

    Attributes:
        base: The checkpoint that it was trained on, by a name that `polydec.load` takes.
        down: By the name of a weight the matrix ``[rank, inputs]``.
        up: By the name of a weight the matrix ``[outputs, rank]``.
        scale: By the name of a weight what the product of both is multiplied by before it is added.
        start: Where training began with a part of the weights that was taken out of the checkpoint,
            which part that is, "pissa" or "olora"; "": nothing was taken out.
        lengths: DoRA: by the name of a weight the length that each of its rows has in the end,
            ``[outputs]``. Without: rows keep the length of the sum.
        factor: IA3: by the name of a weight or a bias what it is multiplied by, ``[outputs, 1]`` or
            ``[1, inputs]``, of a bias ``[outputs]``.
        images: What images alone go through; all the rest is then for words. None: images go
            through what words do.
    """

    base: str
    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    scale: Mapping[str, float]
    start: str = ""
    lengths: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    factor: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    images: ImageAdapter | None = None

    @property
    def changed_shapes(self) -> dict[str, tuple[int | None, int | None]]:
        """By the name of each weight that is changed its rows and columns, as far as they are known."""
        out: dict[str, tuple[int | None, int | None]] = {
            name: (self.up[name].shape[0], a.shape[1]) for name, a in self.down.items()
        }
        for name, factor in self.factor.items():
            if name.endswith(".weight"):
                rows, columns = factor.shape
                out[name] = (None, columns) if rows == 1 else (rows, None)
        return out

    def scaled_pair(self, name: str) -> tuple[Tensor, Tensor] | None:
        """The two matrices of a weight, whose product is what is added; None: it has none."""
        if name not in self.down:
            return None
        return self.down[name], self.scale[name] * self.up[name].float()


def read_lora_adapter(path: Path) -> LoraAdapter:
    """The adapter in a directory.

    Raises:
        FileError: It is damaged, or of a form that is none of LoRA, DoRA, IA3 and that of two
            adapters by modality.
    """
    at = path / CONFIG
    c = edge.validate_record(fields.AdapterFields, edge.read_json(at), str(at))
    if c.peft_type not in ("LORA", "IA3", MODAL):
        raise FileError(
            f"{at}: peft_type is {c.peft_type!r:.40}: adapters of the kinds 'LORA' (DoRA among them), 'IA3' and {MODAL!r} "
            "are read"
        )
    # Each of these changes the sum W + s B A into something else.
    for name in NOT_PLAIN:
        if getattr(c, name):
            raise FileError(
                f"{at}: {name} is set, which is neither plain LoRA nor DoRA or IA3: merge it with PEFT first"
            )
    if c.bias not in (None, "none"):
        raise FileError(f"{at}: bias is {c.bias!r:.40}: only 'none' is read")
    start = _start(c, at)
    tensors = _tensors(path)
    if c.peft_type == "IA3":
        return _read_factors(path, c, tensors)
    if c.peft_type == MODAL:
        return _read_modal(path, c, tensors)
    return _read_pairs(path, c, tensors, start)


def _read_modal(path: Path, c: fields.AdapterFields, tensors: Mapping[str, Tensor]) -> LoraAdapter:
    """An adapter for words with what images go through.

    Raises:
        FileError: They are damaged.
    """
    parts = part_by_beginning(tensors, str(path))
    text = _read_pairs(path, c, parts[TEXT], "")
    ladder = {name: _finite(path, name, t) for name, t in parts[LADDER].items()}
    projector = {PROJECTOR + name: _finite(path, name, t) for name, t in parts[PROJECTOR].items()}
    pairs = dict[str, tuple[Tensor, Tensor]]()
    # Without pairs of their own rows of images run as those of words do.
    if parts[IMAGE]:
        said = c.model_copy(update={"lora_alpha": c.polydec_image_alpha})
        image = _read_pairs(path, said, parts[IMAGE], "")
        # The weights hold what is added for words: at rows of images it is taken away again.
        pairs = {
            name: join_pairs(str(path), name, image.scaled_pair(name), text.scaled_pair(name))
            for name in sorted({*image.down, *text.down})
        }
    return replace(text, images=ImageAdapter(pairs, ladder, projector))


def _read_pairs(
    path: Path, c: fields.AdapterFields, tensors: Mapping[str, Tensor], start: str
) -> LoraAdapter:
    """A low-rank adapter.

    Args:
        path: Its directory.
        c: Its config.
        tensors: Its tensors.
        start: What was taken out of the checkpoint before training.

    Returns:
        The adapter.

    Raises:
        FileError: They are damaged.
    """
    at = path / CONFIG
    down = dict[str, Tensor]()
    up = dict[str, Tensor]()
    scale = dict[str, float]()
    lengths = dict[str, Tensor]()
    # Every lower matrix must have its upper one, and nothing else may be there.
    for name in tensors:
        if name.endswith(UP):
            continue
        if c.use_dora and name.removesuffix(".weight").endswith(LENGTHS):
            own = name.removesuffix(".weight").removeprefix(PREFIX).removesuffix(LENGTHS)
            lengths[own + ".weight"] = _finite(path, own, tensors[name]).flatten()
            continue
        own = name.removeprefix(PREFIX).removesuffix(DOWN)
        other = name.removesuffix(DOWN) + UP
        if not name.endswith(DOWN) or other not in tensors:
            raise FileError(
                f"{path} has {name!r:.120}: pairs of NAME{DOWN} and NAME{UP} are read, and nothing else"
            )
        # Shapes first: nothing is read of matrices that do not belong together.
        thin = fields.shape_of(tensors, name)
        wide = fields.shape_of(tensors, other)
        if len(thin) != 2 or len(wide) != 2 or thin[0] != wide[1]:
            raise FileError(
                f"{path} has {name!r:.120} of shape {thin} beside one of {wide}: they are no pair"
            )
        if 0 in (*thin, *wide):
            raise FileError(
                f"{path} has {name!r:.120} of shape {thin} beside one of {wide}: a rank is at least 1, and no side is empty"
            )
        a = tensors[name]
        b = tensors[other]
        a = _finite(path, own, a)
        b = _finite(path, own, b)
        # PEFT does not load such matrices: adding them would give another model.
        if not _is_targeted(own, c):
            raise FileError(
                f"{path} has {own!r:.120}, which target_modules, exclude_modules or layers_to_transform of {CONFIG} leave out"
            )
        rank = a.shape[0]
        alpha = _alpha(own, c, at)
        down[own + ".weight"], up[own + ".weight"] = a, b
        # Plain LoRA scales by alpha / rank; rank-stabilised LoRA divides by the root of the rank.
        scale[own + ".weight"] = alpha / (rank**0.5 if c.use_rslora else rank)
    if not down:
        raise FileError(f"{path} holds no pair of matrices: it changes nothing")
    # DoRA has a length for each row of each weight.
    for name, b in up.items() if c.use_dora else ():
        if name not in lengths or len(lengths[name]) != len(b):
            raise FileError(
                f"{path} has use_dora and no lengths of the {len(b)} rows of {name!r:.120} (NAME{LENGTHS})"
            )
    return LoraAdapter(c.base_model_name_or_path, down, up, scale, start, lengths)


def _finite(path: Path, own: str, tensor: Tensor) -> Tensor:
    """A tensor, checked.

    Raises:
        FileError: It holds other numbers than floating-point ones, or one that is none.
    """
    if not tensor.is_floating_point():
        raise FileError(
            f"{path} has {own!r:.120} of {tensor.dtype}: floating-point numbers are read"
        )
    if not bool(tensor.isfinite().all()):
        raise FileError(f"{path} has a NaN or an infinite number in {own!r:.120}")
    return tensor


def _read_factors(
    path: Path, c: fields.AdapterFields, tensors: Mapping[str, Tensor]
) -> LoraAdapter:
    """The factors of an IA3 adapter.

    Raises:
        FileError: They are damaged.
    """
    factor = dict[str, Tensor]()
    for name in tensors:
        own = name.removeprefix(PREFIX).removesuffix(FACTOR)
        shape = fields.shape_of(tensors, name)
        # A factor for each output is a column; one for each input (of feed-forward layers) a row.
        if not name.endswith(FACTOR) or len(shape) != 2 or 1 not in shape or 0 in shape:
            raise FileError(
                f"{path} has {name!r:.120} of shape {shape}: columns and rows NAME{FACTOR} are read, and nothing else"
            )
        if not _is_targeted(own, c):
            raise FileError(
                f"{path} has {own!r:.120}, which target_modules, exclude_modules or layers_to_transform of {CONFIG} leave out"
            )
        each = _finite(path, own, tensors[name])
        factor[own + ".weight"] = each
        # What a module adds is multiplied as its output is.
        if shape[0] > 1:
            factor[own + ".bias"] = each.flatten()
    if not factor:
        raise FileError(f"{path} holds no factors: it changes nothing")
    return LoraAdapter(c.base_model_name_or_path, {}, {}, {}, factor=factor)


def _start(c: fields.AdapterFields, at: Path) -> str:
    """What was taken out of the checkpoint before training.

    Raises:
        FileError: Nobody can say it from the files.
    """
    start = c.init_lora_weights
    if start in (None, True, False) or str(start).lower() in PLAIN_STARTS:
        return ""
    if start in STARTS:
        return str(start)
    raise FileError(
        f"{at}: init_lora_weights is {start!r:.40}: what that took out of the checkpoint is not in the files, so merge it with "
        f"PEFT first (read are true, false, {', '.join((*PLAIN_STARTS, *STARTS))})"
    )


def _alpha(module: str, c: fields.AdapterFields, at: Path) -> float:
    """lora_alpha of a module: the first name of alpha_pattern that it ends with says it."""
    for name, alpha in (c.alpha_pattern or {}).items():
        if not PLAIN_NAME.fullmatch(name):
            raise FileError(
                f"{at}: alpha_pattern has {name!r:.60}: names of modules are read, and no regular expressions"
            )
        # PEFT's own rule: a name stands for the end of a module's path.
        if re.match(rf"(.*\.)?({name})$", module):
            return alpha
    return c.lora_alpha


def _is_targeted(module: str, c: fields.AdapterFields) -> bool:
    """Whether the config says that a module is adapted; where it says it by a regular expression,
    whatever is there is."""

    def is_named(names: list[str]) -> bool:
        return any(module == name or module.endswith(f".{name}") for name in names)

    if isinstance(c.exclude_modules, list) and is_named(c.exclude_modules):
        return False
    if not isinstance(c.target_modules, list):
        return True
    # The layer is the first number among the parts of a name, such as model.layers.3.mlp.
    layer = re.match(r".*?\.[^.]*\.(\d+)\.", module)
    layers = c.layers_to_transform
    if isinstance(layers, int):
        asked = [layers]
    else:
        asked = layers or []
    if asked and (layer is None or int(layer[1]) not in asked) and not c.layers_pattern:
        return module in c.target_modules
    return is_named(c.target_modules)


def _largest_part(weight: Tensor, rank: int, scale: float) -> Tensor:
    """The nearest matrix of a rank: the largest singular values with their vectors. Training
    divided it by the scale."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    return (left[:, :rank] * values[:rank]) @ right[:rank]


def _first_columns(weight: Tensor, rank: int, scale: float) -> Tensor:
    """The first columns of the orthogonal factor with the first rows of the triangular one, scaled."""
    # W = Q R: OLoRA starts from the leading columns of Q and rows of R.
    orthogonal, triangular = torch.linalg.qr(weight)
    return scale * (orthogonal[:, :rank] @ triangular[:rank])


STARTS: Mapping[str, Callable[[Tensor, int, float], Tensor]] = {
    "pissa": _largest_part,
    "olora": _first_columns,
}
"""By init_lora_weights, the part that PEFT takes out of a weight before it adds an adapter of some
rank and scale.

Source: PiSSA, Meng et al. 2024, arXiv 2404.02948; OLoRA, Büyükakyüz 2024, arXiv 2406.01775.
"""


def _tensors(path: Path) -> Mapping[str, Tensor]:
    if (path / WEIGHTS).is_file():
        return SafeTensors([path / WEIGHTS])
    if (path / "adapter_model.bin").is_file():
        return load_torch_file(path / "adapter_model.bin")
    raise FileError(f"{path} has an {CONFIG}, but no {WEIGHTS} beside it")


class LoraMergedWeights(Mapping[str, Tensor]):
    """The weights of a checkpoint as an adapter changes them, each made when it is asked for, in the
    checkpoint's own type.

    Raises:
        FileError: The adapter changes a weight that is not there, or has another shape.
    """

    def __init__(self, base: Mapping[str, Tensor], adapter: LoraAdapter) -> None:
        self._base = base
        self._adapter = adapter
        # Shapes are compared now; products are made when a weight is asked for.
        for name, want in adapter.changed_shapes.items():
            if name in base:
                has = tuple(fields.shape_of(base, name))
            else:
                has = "none"
            fits = len(has) == 2 and all(w in (None, h) for w, h in zip(want, has, strict=True))
            if not fits:
                raise FileError(
                    f"the adapter changes {name!r:.120} of shape {want}: {adapter.base} has {has} of that name"
                )

    def __getitem__(self, name: str) -> Tensor:
        own = self._base[name]
        adapter = self._adapter
        # All is computed in float32.
        if name in adapter.factor:
            return (own.float() * adapter.factor[name].float()).to(own.dtype)
        if name not in adapter.down:
            return own
        # W' = W + scale * B A
        more = adapter.up[name].float() @ adapter.down[name].float()
        whole = self._rest(name, own.float()) + adapter.scale[name] * more
        # DoRA: each row has the direction of that sum, and a length of its own.
        if name in adapter.lengths:
            whole = whole * (adapter.lengths[name].float() / whole.norm(dim=1))[:, None]
        return whole.to(own.dtype)

    def _rest(self, name: str, own: Tensor) -> Tensor:
        """A weight without the part that training began with."""
        adapter = self._adapter
        if not adapter.start:
            return own
        rank = adapter.down[name].shape[0]
        scale = adapter.scale[name]
        return own - STARTS[adapter.start](own, rank, scale)

    def source_of(self, name: str) -> tuple[Any, ...]:
        """What a weight is made of, as it lies in the files."""
        own = fields.source_of(self._base, name)
        adapter = self._adapter
        if name in adapter.factor:
            return (*own, adapter.factor[name])
        if name not in adapter.down:
            return own
        start = float(["", *STARTS].index(adapter.start))
        scale = torch.tensor([adapter.scale[name], start], dtype=torch.float64)
        lengths = adapter.lengths.get(name)
        more = () if lengths is None else (lengths,)
        return (*own, adapter.down[name], adapter.up[name], scale, *more)

    def __contains__(self, name: object) -> bool:  # else each question would make a weight
        return name in self._base

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight, without making it."""
        return fields.shape_of(self._base, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)
