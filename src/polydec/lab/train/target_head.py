"""What is read of a target whose states are learned from: its table, its final norm and its head, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.shape import LlamaShape
from polydec.models.formats.fields import require_shapes

KINDS = ("llama", "mistral", "qwen2")
"""Kinds of models whose table is read as it is, and whose final norm divides by the root mean square."""


@dataclass(frozen=True, eq=False)
class TargetHead:
    """The two ends of a target.

    Attributes:
        s: Its sizes.
        embed_VH: Its table of embeddings, ``[V, H]``.
        norm_H: Weights of its final norm.
        head_VH: Its head; the table where it has none.
        sections: Of a rotary embedding that tells rows and columns of images, the pairs of
            dimensions of each part; none: it tells none.
    """

    s: LlamaShape
    embed_VH: Tensor
    norm_H: Tensor
    head_VH: Tensor
    sections: tuple[int, ...] = ()

    @staticmethod
    def of_weights(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> TargetHead:
        """Read the ends of a language model.

        Args:
            config: Fields of its config.json.
            weights: Tensors by their Hugging Face names.

        Returns:
            Its ends, in fp32.

        Raises:
            RequestError: It is of another kind, or a tensor has another shape than its config says.
        """
        kind = config.get("model_type")
        if kind not in KINDS:
            raise RequestError(
                f"target's language model is of the kind {kind!r}: a drafter is trained for {', '.join(KINDS)}"
            )
        shape = LlamaShape.of_config(_plain_config(config))
        names = ["model.embed_tokens.weight", "model.norm.weight"]
        table = (shape.vocab, shape.width)
        wanted = {names[0]: table, names[1]: (shape.width,)}
        # A head that is tied to the table may stand in the files all the same.
        if not config.get("tie_word_embeddings") and "lm_head.weight" in weights:
            names.append("lm_head.weight")
            wanted["lm_head.weight"] = table
        require_shapes(weights, wanted)
        # Its layers are never run here, so they are not read.
        tensors = [weights[name].float() for name in names]
        sections = tuple(config.get("polydec_sections") or ())
        return TargetHead(shape, tensors[0], tensors[1], tensors[-1 if names[2:] else 0], sections)

    def embed_tokens(self, token: Tensor) -> Tensor:
        """The embeddings of tokens, ``[..., H]``."""
        return F.embedding(token, self.embed_VH)

    def state_logits(self, state: Tensor) -> Tensor:
        """Logits of states that lie before the final norm, ``[..., V]``."""
        normed = F.rms_norm(state, state.shape[-1:], self.norm_H, self.s.eps)
        return F.linear(normed, self.head_VH)


def _plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of which sizes are read: biases and positions of the layers do not matter at the ends."""
    scaling = config.get("rope_scaling")
    # Positions of a layer that is drafted with are not scaled, so a target's must not be.
    plain = isinstance(scaling, Mapping) and scaling.get("rope_type", "default") == "default"
    left_out = {"rope_scaling": None} if plain else {}
    return {**config, "model_type": "llama", "attention_bias": False, **left_out}
