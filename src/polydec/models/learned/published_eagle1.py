"""EAGLE-1 in the layout in which it is published, and which vLLM and SGLang load: reading and writing it.

Where it differs from learned/eagle.py: states enter as the target's final norm leaves them, embeddings as they are, and the
layer has no norm before attention. What leaves it is such a state, of which the target's head makes a law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.models.formats import edge, tensor_files
from polydec.models.learned import artefact, published
from polydec.models.learned.artefact_fields import PublishedFields
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.learned.published import (
    PublishedLayer,
    embedding_table,
    require_layout,
    require_table,
    tensor_of,
    trained_facts,
    write_published_directory,
)

NAMES = ("LlamaForCausalLMEagle", "EagleLlamaForCausalLM")
"""What the architecture is called: by SGLang, and by vLLM. Each looks for a name of its own in the list of a config."""
RATES = ((0.6, 0.15, 0.07, 0.04), (0.5, 0.13, 0.06, 0.04), (0.5, 0.12, 0.06, 0.04))
"""How often a level's tokens are right by rank, which others' files do not say: a guess, from which EAGLE's tree is drawn."""
UNREAD = ("bias", "tie_word_embeddings")
"""Fields that say nothing here: whether `fc` has a bias is told by the weights, and the head is the target's."""


@dataclass(frozen=True, eq=False)
class ReadEagle1:
    """A published EAGLE-1 that has been read. table: an embedding table of its own, which must be the target's, or None."""

    kind: ClassVar[str] = EagleModel.kind

    eagle: EagleModel
    table: Tensor | None

    def bound_drafter(self, target: Target) -> EagleModel:
        """What drafts for this target. Raises FileError where it does not fit."""
        self.eagle.check_fit(target, None)
        require_table(self.table, target, "EAGLE-1")
        return self.eagle


def is_published_eagle1(config: Mapping[str, Any], path: Path) -> bool:
    """Tell whether a directory is of this layout.

    The authors' own files say that they are a Llama of one layer, so there the weights tell.

    Args:
        config: The object in config.json.
        path: The directory. Its weights are opened only where the config leaves it open.

    Returns:
        Whether it is of this layout.
    """
    names = config.get("architectures")
    if not isinstance(names, list):
        return False
    # A name of its own settles it; a plain Llama of one layer may also be a model.
    if any(name in NAMES for name in names):
        return True
    single_llama = names == ["LlamaForCausalLM"] and config.get("num_hidden_layers") == 1
    return single_llama and "fc.weight" in tensor_files.open_weights(path)


def load_published_eagle1(path: str | Path) -> ReadEagle1:
    """The drafter in a directory. Raises FileError with one sentence where it is damaged or of another kind."""
    path = edge.at_home(path)
    with edge.report_read_errors(f"eagle is {str(path)!r}: it is damaged"):
        config = edge.read_json(path / "config.json")
        # Nothing in the weights' names would show it, and drafts would be wrong without a word.
        if config.get("add_para_norm"):
            raise FileError(
                "add_para_norm is true: norms before the states are joined are not read"
            )
        c = edge.validate_record(
            PublishedFields, {k: v for k, v in config.items() if k not in UNREAD}, "config.json"
        )
        if (
            c.hidden_size % c.num_attention_heads and c.head_dim is None
        ) or c.num_attention_heads % c.kv_heads:
            raise FileError(
                f"num_attention_heads is {c.num_attention_heads}, num_key_value_heads {c.kv_heads}: they must "
                f"divide the width {c.hidden_size}"
            )
        weights = tensor_files.open_weights(path)
        H = c.hidden_size
        biased = any(name in weights for name in ("fc.bias", "model.fc.bias"))
        require_layout(
            weights,
            {
                **{f"midlayer.{name}": shape for name, shape in eagle1_layer_shapes(c).items()},
                "fc.weight": (H, 2 * H),
                **({"fc.bias": (H,)} if biased else {}),
            },
        )
        tensors = {
            name: tensor_of(weights, f"midlayer.{name}").float() for name in eagle1_layer_shapes(c)
        }
        fuse_H2 = tensor_of(weights, "fc.weight").float()
        if biased:
            bias_H = tensor_of(weights, "fc.bias").float()
        else:
            bias_H = None
        vocab, rates, share = trained_facts(c, RATES)
        return ReadEagle1(
            EagleModel(fuse_H2, PublishedLayer(tensors, c), vocab, rates, share, True, bias_H),
            embedding_table(weights),
        )


def eagle1_layer_shapes(c: PublishedFields) -> dict[str, tuple[int, ...]]:
    """Of each tensor of the layer: EAGLE-3's without the norms before attention, which reads H numbers."""
    H = c.hidden_size
    # EAGLE-3's attention reads 2 H; here token and state are joined before it.
    wide = {f"self_attn.{x}_proj.weight" for x in "qkv"}
    return {
        name: (shape[0], H) if name in wide else shape
        for name, shape in published.eagle3_layer_shapes(c).items()
        if name not in ("input_layernorm.weight", "hidden_norm.weight")
    }


def save_published_eagle1(
    path: str | Path, eagle: EagleModel, about: Mapping[str, Any] | None = None
) -> None:
    """Write an EAGLE-1 drafter as it is published, with `fc.bias` where the drafter has one.

    Args:
        path: Directory to write into; it is made where there is none.
        eagle: The drafter, whose states enter behind the target's final norm.
        about: What the field `polydec_trained` says besides the vocabulary, rates and share. Default None. The field
            is left out where the rates are this module's guess.

    Raises:
        FileError: The weights have the form of learned/kinds/eagle.py, which neither engine can
            take.
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    layer = eagle.layer
    if not eagle.normed or not isinstance(layer, PublishedLayer):
        raise FileError(
            "vLLM and SGLang cannot take this EAGLE drafter: it reads states before the target's last norm "
            "(`polydec train eagle --kind eagle-published` trains the form that they have)"
        )
    config = {
        **layer.about.model_dump(exclude_none=True),
        "architectures": list(NAMES),
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": eagle.vocab.size,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bias": False,  # both would take it for biases of attention, which nothing would fill
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    # A guess is not written out as if it had been measured.
    if eagle.rates is not RATES:
        config["polydec_trained"] = {**(about or {}), **artefact.said_of(eagle)}
    tensors = {f"layers.0.{name}": t for name, t in layer.tensors.items()} | {
        "fc.weight": eagle.fuse_H2
    }
    write_published_directory(
        path, config, tensors if eagle.bias_H is None else {**tensors, "fc.bias": eagle.bias_H}
    )


def export_eagle1(path: Path, eagle: EagleModel) -> Path:
    """Write an EAGLE-1 drafter once for SGLang and once for vLLM.

    SGLang has a place for `fc.bias`, and would begin with random numbers there. vLLM has none, and
    stops at a tensor that it does not know.

    Args:
        path: Directory of the files for SGLang. Its folder `vllm` gets those for vLLM, without the
            bias.
        eagle: The drafter.

    Returns:
        The folder `vllm`.

    Raises:
        FileError: The weights have a form that neither engine can take.
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    # Zeros stand for a bias that the drafter does not have.
    save_published_eagle1(
        path,
        eagle
        if eagle.bias_H is not None
        else replace(eagle, bias_H=torch.zeros(eagle.layer.width)),
    )
    save_published_eagle1(path / "vllm", replace(eagle, bias_H=None))
    return path / "vllm"
