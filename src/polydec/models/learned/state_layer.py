"""One layer of the Llama skeleton with a cache of its own, which reads a target's states in place of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from polydec.base.errors import FileError
from polydec.models import native as cpu
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import LayerFields
from polydec.models.nets.query import NeuralNetwork
from polydec.models.nets.transformer import LlamaTransformer

EPS = 1e-5


def rms_normalised(state_NH: Tensor) -> Tensor:
    """fp32 rows divided by their root mean square: what a norm makes of them before its weights."""
    x = state_NH.float()
    return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


@dataclass(frozen=True, eq=False)
class DraftVocabularyHead:
    """A head of a drafter's own. token_C: the ids that it knows, ascending; head_CH: their rows; norm_H: weights of the norm
    before it."""

    token_C: Tensor
    head_CH: Tensor
    norm_H: Tensor


@dataclass(frozen=True, eq=False)
class StateLayer:
    """tensors: by the names that they have in a Llama behind "model.layers.0."; heads, kv_heads, theta: of its attention.

    threads: of the compiled step, None: as many as there are cores; sections: of a rotary embedding that tells rows and columns
    of images, how many pairs of dimensions each part turns, as the target's has them, else none.

    Attention reads S numbers a position, of which the last H are the residual stream; S is H but where a drafter puts something
    beside it (EAGLE-3: the token). Norms go over all S.
    """

    tensors: Mapping[str, Tensor]
    heads: int
    kv_heads: int
    theta: float
    threads: int | None = None
    sections: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """H."""
        return len(self.tensors["self_attn.o_proj.weight"])

    @property
    def cost(self) -> float:
        return float(sum(t.numel() for t in self.tensors.values()))

    def layer_network(
        self, vocab: int = 1, own: DraftVocabularyHead | None = None
    ) -> NeuralNetwork:
        """Make the network that runs the layer, fed by `NetworkQuery.embed` (S wide).

        It is the compiled step where that serves this shape, with matrices stored in 8 bits, as
        guesses are checked anyway; else torch in fp32.

        Args:
            vocab: Tokens V of the target's vocabulary, the width of the laws. Default 1.
            own: A head of the drafter's own. Default None: the network gives states alone.

        Returns:
            A network whose states are S wide, of which the last H are new.
        """
        t = {name: tensor.detach() for name, tensor in self.tensors.items()}
        wide = t["self_attn.q_proj.weight"].shape[1]
        # A Llama has one width. So the stream is S wide too, and zeros keep the part beside it as
        # it is.
        beside = wide - self.width
        config = self.network_config(vocab=vocab, tied=own is None)
        for name in (
            "self_attn.o_proj.weight",
            "mlp.down_proj.weight",
        ):  # nothing is written beside the stream
            t[name] = pad(t[name], (0, 0, beside, 0))
        for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
            t[name] = pad(t[name], (beside, 0))
        # Any finite weight would do: the MLP's columns for this part are zeros.
        t["post_attention_layernorm.weight"] = pad(
            t["post_attention_layernorm.weight"], (beside, 0), value=1.0
        )
        outside = {
            # Expanded, not copied: a table of zeros for the whole vocabulary takes one row of
            # memory.
            "model.embed_tokens.weight": torch.zeros(1, wide).expand(vocab, wide),
            "model.norm.weight": torch.ones(wide),
        }
        # The head reads the last H columns alone; zeros hide the part beside them.
        if own is not None:
            outside |= {
                "model.norm.weight": pad(own.norm_H.detach(), (beside, 0), value=1.0),
                "lm_head.tokens": own.token_C,
                "lm_head.weight": pad(own.head_CH.detach(), (beside, 0)),
            }
        tensors = {**{f"model.layers.0.{name}": tensor for name, tensor in t.items()}, **outside}
        thin = (
            {}
            if own is None
            else {  # nobody looks tokens up here, so a table of one column will do
                "model.embed_tokens.weight": torch.zeros(1, 1).expand(vocab, 1),
                "model.embed_tokens.proj.weight": torch.zeros(wide, 1),
            }
        )
        # Rounding to 8 bits can only cost accepted tokens: the target checks every guess.
        native, _ = cpu.try_native_network(config, tensors | thin, self.threads, quantize="q8_0")
        return native or LlamaTransformer.build(config, tensors, dtype="float32")

    def network_config(self, layers: int = 1, vocab: int = 1, tied: bool = True) -> dict[str, Any]:
        """Describe a network of layers of this shape as a Llama's config.json does.

        Args:
            layers: Number of layers. Default 1.
            vocab: Rows of the table. Default 1.
            tied: Whether there is no head besides the table. Default True.

        Returns:
            The fields by name.
        """
        return {
            "model_type": "llama",
            "vocab_size": vocab,
            "hidden_size": self.tensors["self_attn.q_proj.weight"].shape[1],
            "num_hidden_layers": layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": EPS,
            "head_dim": self.width // self.heads,
            "rope_theta": self.theta,
            "max_position_embeddings": 1 << 16,
            "intermediate_size": len(self.tensors["mlp.up_proj.weight"]),
            "hidden_act": "silu",
            "tie_word_embeddings": tied,
            **({"polydec_sections": list(self.sections)} if self.sections else {}),
        }

    @property
    def fields(self) -> dict[str, Any]:
        """What a config says of it."""
        told = {"sections": list(self.sections)} if self.sections else {}
        return {
            **told,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "theta": self.theta,
            "inner": len(self.tensors["mlp.up_proj.weight"]),
        }

    @property
    def named(self) -> dict[str, Tensor]:
        """Its tensors as a file has them."""
        return {f"layer.{name}": t.float() for name, t in self.tensors.items()}


def state_layer_shapes(
    width: int, heads: int, kv_heads: int, inner: int, wide: int | None = None, states: int = 1
) -> dict[str, tuple[int, ...]]:
    """List the shape of each tensor of a layer.

    Args:
        width: Width H of the residual stream.
        heads: Heads of queries; they divide `width`.
        kv_heads: Heads of keys and values; they divide `heads`.
        inner: Width of the MLP.
        wide: Numbers S that attention reads a position. Default None: the width.
        states: States that the MLP writes at a position. Default 1.

    Returns:
        The shapes, by the names of a Llama's layer.
    """
    S = wide or width
    kv = width // heads * kv_heads
    return {
        "self_attn.q_proj.weight": (width, S),
        "self_attn.k_proj.weight": (kv, S),
        "self_attn.v_proj.weight": (kv, S),
        "self_attn.o_proj.weight": (width, width),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (states * width, inner),
        "input_layernorm.weight": (S,),
        "post_attention_layernorm.weight": (width,),
    }


def read_state_layer(
    c: LayerFields,
    t: Mapping[str, Tensor],
    kind: artefact.ArtefactKind,
    width: int,
    wide: int | None = None,
    at: str = "layer.",
    states: int = 1,
) -> StateLayer:
    """Read a layer from the config and the tensors of an artefact.

    Args:
        c: What the config says of the layer.
        t: The tensors of the file, by name.
        kind: Kind of artefact, for the sentence of an error.
        width: Width H of the residual stream.
        wide: Numbers S that attention reads a position. Default None: the width.
        at: What the names of its tensors begin with. Default "layer.".
        states: States that the MLP writes at a position. Default 1.

    Returns:
        The layer in fp32.

    Raises:
        FileError: The heads do not divide the width, or a tensor is missing, damaged or of another
            shape.
    """
    # The rotary embedding turns pairs, so each head needs an even width.
    if width % (2 * c.heads) or c.heads % c.kv_heads:
        raise FileError(
            f"heads is {c.heads}, kv_heads {c.kv_heads}: they must divide the width {width}"
        )
    # Each pair of a head is turned by time, by rows or by columns.
    if c.sections and 2 * sum(c.sections) != width // c.heads:
        raise FileError(
            f"sections is {c.sections}: their sum must be half of a head, {width // c.heads // 2}"
        )
    tensors = artefact.read_float_tensors(
        t, kind, state_layer_shapes(width, c.heads, c.kv_heads, c.inner, wide, states), at
    )
    return StateLayer(tensors, c.heads, c.kv_heads, c.theta, sections=tuple(c.sections))


def random_state_layer(
    width: int, seed: int, wide: int | None = None, states: int = 1
) -> StateLayer:
    """Make a random layer for tests.

    Args:
        width: Width H of the residual stream, a multiple of 4. From 32 on it has a head for every
            16.
        seed: Seed of the numbers.
        wide: Numbers S that attention reads a position. Default None: the width.
        states: States that the MLP writes at a position. Default 1.

    Returns:
        A layer with an MLP twice as wide as the stream.
    """
    g = torch.Generator().manual_seed(seed)
    # Toys are too narrow for heads of 16.
    heads = 2 if width < 32 else width // 16
    tensors = {
        name: torch.randn(shape, generator=g) * 0.7 / width**0.5
        if len(shape) == 2
        else torch.ones(shape)
        for name, shape in state_layer_shapes(width, heads, heads, 2 * width, wide, states).items()
    }
    return StateLayer(tensors, heads, heads, 1e4)
