"""One layer that moves a masked-diffusion model's states on when a gap was filled, in place of a pass (ADJUST)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import JointFields
from polydec.models.learned.state_layer import EPS, StateLayer, rms_normalised

KIND = artefact.ArtefactKind("joint", "joint", "joint.safetensors", "joint")


@dataclass(frozen=True, eq=False)
class JointSamplerLayer:
    """A bidirectional layer that reads, of each position, the token's embedding beside the last state.

    fuse_H2: weight [H, 2 H] that joins the two, each behind a norm of its own (token_H, state_H); out_H: weights of the norm
    over what the layer gives, which is added to the state (divided by its root mean square, to which the model's own norm is
    blind): zeros change nothing. vocab: the target's. Arithmetic is fp32.
    """

    called: ClassVar[str] = "a joint sampler's layer"
    kind: ClassVar[str] = "joint"
    made_by: ClassVar[str] = KIND.training_command

    fuse_H2: Tensor
    token_H: Tensor
    state_H: Tensor
    out_H: Tensor
    layer: StateLayer
    vocab: TokenVocabulary

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve; it must be a masked-diffusion model.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The target is of another family, or its states have another width.
        """
        artefact.require_masked_model(target, self.vocab, self.layer.width, self.called)

    def __call__(self, embed_BTH: Tensor, state_BTH: Tensor) -> Tensor:
        """The states once the tokens are those that were embedded, [B, T, H]; state_BTH: before."""
        w, state_BTH = (
            self.layer.tensors,
            rms_normalised(state_BTH),
        )  # so long that what is added weighs something
        u = F.linear(
            # Embeddings and states differ much in size, so each has a norm of its own.
            torch.cat([_norm(embed_BTH, self.token_H), _norm(state_BTH, self.state_H)], -1),
            self.fuse_H2,
        )
        u = u + self._attention(_norm(u, w["input_layernorm.weight"]))
        n = _norm(u, w["post_attention_layernorm.weight"])
        inner = F.silu(F.linear(n, w["mlp.gate_proj.weight"])) * F.linear(
            n, w["mlp.up_proj.weight"]
        )
        # The final norm bounds what is added, so a bad layer cannot throw a state far off.
        return state_BTH + _norm(u + F.linear(inner, w["mlp.down_proj.weight"]), self.out_H)

    def _attention(self, n_BTH: Tensor) -> Tensor:
        layer = self.layer
        w = self.layer.tensors
        T = n_BTH.shape[1]
        head = layer.width // layer.heads
        q, k, v = (
            F.linear(n_BTH, w[f"self_attn.{name}_proj.weight"])
            .unflatten(-1, (-1, head))
            .transpose(1, 2)
            for name in "qkv"
        )
        inverse = layer.theta ** (-torch.arange(0, head, 2).double() / head)
        # Positions count within the canvas, as the model's own do.
        angle_TD = torch.outer(torch.arange(T).double(), inverse).repeat(1, 2)
        cos = angle_TD.cos().float()
        sin = angle_TD.sin().float()
        k, v = (
            z.repeat_interleave(layer.heads // layer.kv_heads, dim=1)
            for z in (_turned(k, cos, sin), v)
        )
        # No mask: each position of a canvas sees all others.
        y = F.scaled_dot_product_attention(_turned(q, cos, sin), k, v)
        return F.linear(y.transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"])


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def _turned(x: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """By the angles of the positions."""
    a, b = x.chunk(2, -1)
    return x * cos_TD + torch.cat([-b, a], -1) * sin_TD


def new_joint_layer(
    width: int, heads: int, inner: int, theta: float, vocab: TokenVocabulary, seed: int
) -> JointSamplerLayer:
    """Make a layer to train.

    What it gives counts a little: from zero its other weights would hardly move.

    Args:
        width: Width H of the target's states.
        heads: Heads of queries, and as many of keys and values; 2 heads divide the width.
        inner: Width of the MLP.
        theta: Base of the rotary embedding.
        vocab: The target's vocabulary, which the artefact is made for.
        seed: Seed of the matrices.

    Returns:
        The layer.
    """
    g = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(s, generator=g) * 0.5 * s[-1] ** -0.5 if len(s) == 2 else torch.ones(s)
        for name, s in state_layer.state_layer_shapes(width, heads, heads, inner).items()
    }
    fuse_H2 = torch.randn(width, 2 * width, generator=g) * (2 * width) ** -0.5
    return JointSamplerLayer(
        fuse_H2,
        torch.ones(width),
        torch.ones(width),
        torch.full((width,), 0.3),
        StateLayer(tensors, heads, heads, theta),
        vocab,
    )


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[JointSamplerLayer, ...]:
    """Make random ones for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One layer for states of this width, and one for the `TOY` numbers of a toy canvas.
    """
    g = torch.Generator().manual_seed(9)
    return tuple(
        JointSamplerLayer(
            torch.randn(w, 2 * w, generator=g) / w**0.5,
            torch.ones(w),
            torch.ones(w),
            torch.full((w,), 0.5),
            state_layer.random_state_layer(w, 9),
            vocab,
        )
        for w in (width, TOY)
    )


TOY = 16
"""Numbers of a toy canvas's state."""


def save(path: str | Path, trained: JointSamplerLayer, about: Mapping[str, Any]) -> None:
    """Write joint.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        trained: The layer.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {
        "fuse.weight": trained.fuse_H2,
        "token.weight": trained.token_H,
        "state.weight": trained.state_H,
        "out.weight": trained.out_H,
    }
    artefact.save_artefact(
        path,
        KIND,
        {**{name: t.float() for name, t in tensors.items()}, **trained.layer.named},
        {
            **about,
            "width": trained.layer.width,
            "vocab_size": trained.vocab.size,
            "tokenizer": trained.vocab.tokenizer,
            "layer": trained.layer.fields,
        },
    )


def load(path: str | Path) -> JointSamplerLayer:
    """The layer in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(JointFields, config, artefact.CONFIG)
        H = c.width
        fuse_H2 = artefact.read_float_tensor(t, KIND, "fuse.weight", H, 2 * H)
        token_H, state_H, out_H = (
            artefact.read_float_tensor(t, KIND, f"{name}.weight", H)
            for name in ("token", "state", "out")
        )
        layer = state_layer.read_state_layer(c.layer, t, KIND, H)
        return JointSamplerLayer(
            fuse_H2,
            token_H,
            state_H,
            out_H,
            layer,
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer),
        )
