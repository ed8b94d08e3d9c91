"""Medusa's heads in the two layouts in which they are published: that of its authors and that of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge, fields, tensor_files
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import PublishedMedusaFields
from polydec.models.learned.kinds.heads import DraftHeads
from polydec.models.learned.published import write_published_directory

FILE = "medusa_lm_head.pt"
"""What the authors' own weights are called."""
RATES = (0.5, 0.15, 0.08, 0.05)
"""How often the first head's tokens are right by rank, which others' files do not say: a guess, from which the tree is drawn;
each further head is held for two thirds as good."""


def is_published_medusa(config: Mapping[str, Any]) -> bool:
    """Whether a config is of one of the layouts."""
    names = config.get("architectures")
    return (
        "medusa_num_heads" in config
        or config.get("model_type") == "medusa"
        or names == ["MedusaModel"]
    )


def load_published_medusa(path: str | Path) -> DraftHeads:
    """The heads in a directory. Raises FileError with one sentence where they are damaged or of another shape."""
    path = edge.at_home(path)
    with edge.report_read_errors(f"medusa is {str(path)!r}: it is damaged"):
        c = edge.validate_record(
            PublishedMedusaFields, edge.read_json(path / "config.json"), "config.json"
        )
        if (path / FILE).is_file():
            weights = tensor_files.load_torch_file(path / FILE)
        else:
            weights = tensor_files.open_weights(path)
        # Each writer names the tensors in another way, and only the weights tell which it was.
        stored = _stored_names(weights, c.count)
        # Of laws: rows are the vocabulary, which the config need not name.
        shapes = [fields.shape_of(weights, head.own) for head in stored]
        if any(len(shape) != 2 or shape != shapes[0] for shape in shapes):
            raise FileError(f"the matrices of the heads have shapes {shapes}: all must have one")
        V, H = shapes[0]
        # A field that is left out (None or 0) fits any size.
        if (c.vocab_size, c.hidden_size) != (c.vocab_size and V, c.hidden_size and H):
            raise FileError(
                f"lm_heads have shape {(V, H)}: config.json says {(c.vocab_size, c.hidden_size)}"
            )
        for head in stored:
            fields.require_shapes(weights, {head.weight: (H, H)})
            if head.bias is not None:
                fields.require_shapes(weights, {head.bias: (H,)})
        own = [_numbers(weights, head.own) for head in stored]
        # A published block is x + silu(W x + b); its skip is the identity.
        eye = torch.eye(H)
        heads = list[tuple[Tensor, Tensor, Tensor]]()
        for head in stored:
            weight = _numbers(weights, head.weight)
            if head.bias is None:
                bias = torch.zeros(H)
            else:
                bias = _numbers(weights, head.bias)
            heads.append((weight, bias, eye))
        ours = c.polydec_trained
        if ours is None:
            return DraftHeads(
                heads, False, TokenVocabulary(V, frozenset(), ""), _guessed(c.count), own_VH=own
            )
        # The drafter plans its tree by one list of rates for each head.
        if len(ours.rates) != c.count:
            raise FileError(
                f"polydec_trained has rates of {len(ours.rates)} heads: there are {c.count}"
            )
        return DraftHeads(
            heads,
            False,
            TokenVocabulary(V, frozenset(), ours.tokenizer),
            ours.rates,
            None,
            ours.share,
            own,
        )


def _guessed(count: int) -> Sequence[Sequence[float]]:
    """The rates of so many heads."""
    # Each further token ahead is harder to guess.
    return [[r * (2 / 3) ** k for r in RATES] for k in range(count)]


def save_published_medusa(
    path: str | Path, heads: DraftHeads, about: Mapping[str, Any] | None = None
) -> None:
    """Write Medusa's heads as vLLM loads them.

    Args:
        path: Directory to write into; it is made where there is none.
        heads: The heads. Each must have a matrix of its own that makes laws, and one block; they
            read the state alone.
        about: What the field `polydec_trained` says besides the vocabulary, rates and share. Default None. The field
            is left out where the rates are this module's guess.

    Raises:
        FileError: The heads are of another form, which reads the states before the target's final
            norm.
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    # Each of these four would need a tensor that the published layout has no place for.
    if heads.own_VH is None or heads.reads or heads.layer is not None or heads.more:
        raise FileError(
            "vLLM cannot take these Medusa heads: they have no matrices of their own that make laws "
            "(`polydec train heads --kind medusa-published` trains such ones)"
        )
    tensors = {f"lm_heads.{k}.weight": own_VH for k, own_VH in enumerate(heads.own_VH)}
    for k, (weight, bias, _) in enumerate(heads.heads):
        tensors |= {f"blocks.{k}.layers.0.weight": weight, f"blocks.{k}.layers.0.bias": bias}
    V, H = heads.own_VH[0].shape
    config = dict[str, Any](
        architectures=["MedusaModel"],
        model_type="medusa",
        num_heads=heads.depth,
        num_hidden_layers=1,
        hidden_size=H,
        vocab_size=V,
        truncated_vocab_size=V,
        original_lm_head=False,
        medusa_fc_bias=True,
        torch_dtype="float32",
    )
    if heads.rates != _guessed(heads.depth):
        config["polydec_trained"] = {**(about or {}), **artefact.said_of(heads)}
    write_published_directory(path, config, tensors)


@dataclass(frozen=True)
class _StoredHead:
    """The names of a head's tensors in its file; bias None: it has none."""

    own: str
    weight: str
    bias: str | None


def _stored_names(weights: Mapping[str, Tensor], count: int) -> list[_StoredHead]:
    """Of each head the names that are there, with and without what the authors' own writer puts before them."""

    def first_name(*names: str) -> str | None:
        # The authors' own writer may prefix every name.
        both = (before + name for name in names for before in ("", "medusa_heads."))
        return next((name for name in both if name in weights), None)

    out = list[_StoredHead]()
    for k in range(count):
        theirs = f"{k}.0.linear"
        ours = f"blocks.{k}.layers.0"
        own = first_name(f"{k}.1.weight", f"lm_heads.{k}.weight")
        weight = first_name(f"{theirs}.weight", f"{ours}.weight")
        for name, have in ((f"lm_heads.{k}.weight", own), (f"{ours}.weight", weight)):
            if have is None:
                raise FileError(f"the weights lack {name!r}")
        assert own is not None and weight is not None
        out.append(_StoredHead(own, weight, first_name(f"{theirs}.bias", f"{ours}.bias")))
    return out


def _numbers(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor in fp32, its numbers finite. Raises FileError where one is not."""
    t = weights[name].float()
    if not bool(t.isfinite().all()):
        raise FileError(f"{name} holds a NaN or an infinite number")
    return t
