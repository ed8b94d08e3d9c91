"""Masks with a gated adapter: rows behind a token that run with matrices of their own through the target's pass (MTP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, silu

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import MtpFields
from polydec.models.learned.state_layer import rms_normalised
from polydec.models.nets.gated import PLACES, GatedAdapter

KIND = artefact.ArtefactKind("mtp", "mtp", "mtp.safetensors", "probes --kind mtp")
PARTS = ("weight", "bias", "norm", "shift")
"""Tensors of each of the sampler's two blocks: of the linear layer, and of the norm behind it."""


@dataclass(frozen=True, eq=False)
class MtpModel:
    """A model for the scheduler, whose queries are states of masks and the embeddings of the tokens before what they guess.

    mask_KH: what enters of each mask, of which mask k, from 0, stands k + 1 positions behind its token; adapter: under which
    they run, and no token does (None: the target's own matrices alone); sampler: of two blocks, each Linear, SiLU, LayerNorm,
    the tensors of PARTS, the first from [token, state] to H; vocab: the target's; rates: of each mask, how often its token of
    each rank was right on held-out text; share: passes of the target that a draft costs beside its rows.
    """

    called: ClassVar[str] = "masks with a gated adapter"
    kind: ClassVar[str] = "mtp"
    made_by: ClassVar[str] = KIND.training_command

    mask_KH: Tensor
    adapter: GatedAdapter | None
    sampler: Sequence[Tensor]
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0

    def __len__(self) -> int:
        return len(self.mask_KH)

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that they were trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, the target makes no laws of guessed states, it
                runs no row with an adapter, or it has another number of layers.
        """
        target.vocab.require_same(self.vocab, "the target of the masks")
        # Guessed states go through the target's own norm and head, which must run alone.
        artefact.require_laws(target, self.mask_KH.shape[1], "the masks")
        if self.adapter is None:
            return
        # The adapter works inside the target's layers, for rows of masks alone.
        if not getattr(target, "adapts", False):
            raise FileError(
                "mtp needs rows with a gated adapter (LoRA), which the compiled step does not run, nor what "
                "transformers reads: load a plain Llama with --dtype torch"
            )
        if target.layers != len(self.adapter.layers):
            raise FileError(
                f"the masks' adapter has matrices for {len(self.adapter.layers)} layers: this target has "
                f"{target.layers}"
            )

    @property
    def cost(self) -> float:
        return float(sum(t.numel() for t in self.sampler))

    def sampled_states(self, state_NH: Tensor, embed_NH: Tensor) -> Tensor:
        """Guess states from what masks came out as and from the tokens before what they guess.

        Args:
            state_NH: What masks came out as, shape ``[N, H]``.
            embed_NH: Embeddings of the tokens before, shape ``[N, H]``.

        Returns:
            The guessed states, before the target's final norm, shape ``[N, H]``.
        """
        # The order is that of the stored weights.
        x = torch.cat([rms_normalised(embed_NH), rms_normalised(state_NH)], -1)
        # Four tensors a block, in the order of PARTS.
        for weight, bias, norm, shift in (self.sampler[:4], self.sampler[4:]):
            x = layer_norm(silu(linear(x, weight, bias)), norm.shape, norm, shift)
        return x

    @torch.inference_mode()
    def forward(self, queries: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        # All queries go through the sampler at once and are cut apart again.
        state, embed = (torch.cat(rows) for rows in zip(*queries, strict=True))
        return list(self.sampled_states(state, embed).split([len(s) for s, _ in queries]))


def new_mtp_sampler(width: int, seed: int) -> list[Tensor]:
    """Make a sampler to train, at random.

    Args:
        width: Width H of the target's states.
        seed: Seed of the two matrices.

    Returns:
        The tensors of `PARTS` of the first block, then those of the second.
    """
    g = torch.Generator().manual_seed(seed)
    out = list[Tensor]()
    for inputs in (2 * width, width):
        out += [
            torch.randn(width, inputs, generator=g) * inputs**-0.5,
            torch.zeros(width),
            torch.ones(width),
            torch.zeros(width),
        ]
    return out


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[MtpModel, ...]:
    """Make a random one for tests, without an adapter: it fits targets of any number of layers.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One model with two masks, whose numbers are whole as a toy's states are.
    """
    masks = (
        torch.arange(2 * width).reshape(2, width).float() % 3
    )  # a toy's states are whole numbers
    return (MtpModel(masks, None, new_mtp_sampler(width, 4), vocab, ((0.5, 0.2), (0.4, 0.2))),)


def save(path: str | Path, mtp: MtpModel, about: Mapping[str, Any]) -> None:
    """Write mtp.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        mtp: The masks, with their adapter where they have one.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    if mtp.adapter is not None:
        layers = mtp.adapter.layers
    else:
        layers = ()
    tensors = {f"sampler.{i // 4}.{PARTS[i % 4]}": t.float() for i, t in enumerate(mtp.sampler)}
    tensors |= {
        f"layers.{i}.{place}.{side}": t.float()
        for i, layer in enumerate(layers)
        for place in PLACES
        for side, t in zip("ab", layer[place], strict=True)
    }
    # Sizes of the adapter follow from its tensors; 0 stands for none.
    about = {
        **about,
        "width": mtp.mask_KH.shape[1],
        "layers": len(layers),
        "rank": mtp.adapter.rank if mtp.adapter else 0,
        "qkv": len(layers[0]["qkv"][1]) if layers else 0,
        "gathered": layers[0]["out"][0].shape[1] if layers else 0,
        "inner": layers[0]["down"][0].shape[1] if layers else 0,
        **artefact.said_of(mtp),
    }
    artefact.save_artefact(path, KIND, {"masks": mtp.mask_KH.float(), **tensors}, about)


def load(path: str | Path) -> MtpModel:
    """What a directory has that `save` wrote. Raises FileError where there is nothing, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(MtpFields, config, artefact.CONFIG)
        H = c.width
        R = c.rank
        sizes = {
            "qkv": (H, c.qkv),
            "out": (c.gathered, H),
            "gate_up": (H, 2 * c.inner),
            "down": (c.inner, H),
        }

        layers = [
            {
                place: (
                    artefact.read_float_tensor(t, KIND, f"layers.{i}.{place}.a", R, into),
                    artefact.read_float_tensor(t, KIND, f"layers.{i}.{place}.b", out, R),
                )
                # Each matrix is a product of two thin ones, in and out of the rank.
                for place, (into, out) in sizes.items()
            }
            for i in range(c.layers)
        ]
        sampler = [
            # The first block reads token and state, 2 H numbers, the second H.
            artefact.read_float_tensor(
                t, KIND, f"sampler.{k}.{part}", *((H, (2 - k) * H) if part == "weight" else (H,))
            )
            for k in range(2)
            for part in PARTS
        ]
        return MtpModel(
            artefact.read_float_tensor(t, KIND, "masks", len(c.rates), H),
            GatedAdapter(layers) if layers else None,
            sampler,
            artefact.vocab_of(c),
            c.rates,
            c.share,
        )
