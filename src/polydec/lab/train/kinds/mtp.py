"""What is trained of masks with a gated adapter: blocks of them ride behind positions of a text through a frozen target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train.kinds.probes import run_layer_by_levels
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.state_layer import Past
from polydec.lab.train.students import UNROLLED, DrafterKind, DrafterStudent, Rates, TeacherContext
from polydec.methods.speculative.drafters.mtp import MtpDrafter
from polydec.models.learned.kinds import mtp as masks
from polydec.models.learned.kinds.mtp import MtpModel, new_mtp_sampler
from polydec.models.learned.state_layer import StateLayer
from polydec.models.nets.gated import PLACES, GatedAdapter

RANK = 16
"""Of the adapter's matrices (published: 128; ranks of 1 to 16 are said to work well)."""
EVERY = 4
"""Blocks stand behind every so many positions while it learns."""


class MtpStudent(DrafterStudent):
    """A block of masks behind positions of a piece. Three losses: of the sampler's laws, given the true token before; of the
    laws of the masks' own states; and how far these states lie from the true ones, which no gradient reaches."""

    def forward(
        self, entry_BTH: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each mask what it came out as [B, N, H], the sampler's logits there, and the positions behind which it stood. The
        target reads the piece anew, and nothing before it: masks stand in the pass that makes its states."""
        mtp = self.model()
        T = entry_BTH.shape[1]
        at_T = torch.arange(0, T, max(every, EVERY) if torch.is_grad_enabled() else 1)
        for k, made in enumerate(
            run_mtp_masks(self.shown.target, mtp, window_BMW[:, :T, -2], at_T)
        ):
            token_BN = window_BMW[:, at_T + k, -1]
            yield made, self.shown.logits(mtp.sampled(made, self.shown.embed(token_BN))), at_T

    def beside(self, made: Tensor, truth: Tensor) -> Tensor:
        return F.cross_entropy(self.shown.logits(made).float(), truth)


def run_mtp_masks(
    target: TrainableLlama, mtp: MtpModel, token_BT: Tensor, at_T: Tensor
) -> list[Tensor]:
    """What leaves the last layer of each mask [B, N, H] behind these positions of a text."""
    x = target.model.embed_tokens(token_BT)
    rows = [mask_H.expand(len(x), len(at_T), -1) for mask_H in mtp.mask_KH]
    for i, layer in enumerate(target.model.layers):
        past = Past()
        if mtp.adapter is None:
            adapter = None
        else:
            adapter = mtp.adapter.layers[i]
        with torch.no_grad():
            x = run_layer_by_levels(target, layer, x, past)  # pyright: ignore[reportArgumentType]
        rows = [run_layer_by_levels(target, layer, row, past, at_T, adapter) for row in rows]  # pyright: ignore[reportArgumentType]
    return rows


def make_mtp(shown: TeacherContext) -> DrafterStudent:
    """Masks begin as the embeddings of frequent tokens, and the adapter as one that adds nothing."""
    s = shown.target.s
    g = torch.Generator().manual_seed(shown.seed)
    drawn = shown.tokens[torch.randperm(len(shown.tokens), generator=g)[: shown.levels]]
    sizes = {
        "qkv": (s.width, (s.heads + 2 * s.kv_heads) * s.head),
        "out": (s.heads * s.head, s.width),
        "gate_up": (s.width, 2 * s.inner),
        "down": (s.inner, s.width),
    }
    pairs = [
        t
        for _ in range(s.layers)
        for into, out in (sizes[place] for place in PLACES)
        for t in (torch.randn(RANK, into, generator=g) * into**-0.5, torch.zeros(out, RANK))
    ]

    def make(
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> MtpModel:
        of = [tuple(t[i : i + 2]) for i in range(9, len(t), 2)]
        layers = [
            dict(zip(PLACES, of[i : i + len(PLACES)], strict=True))
            for i in range(0, len(of), len(PLACES))
        ]
        return MtpModel(t[0], GatedAdapter(layers), t[1:9], vocab, rates, share)  # pyright: ignore[reportArgumentType]

    return MtpStudent(
        shown,
        [shown.embed(drawn).clone(), *new_mtp_sampler(s.width, shown.seed), *pairs],
        None,
        make,
    )


KINDS = {
    "mtp": DrafterKind(
        make_mtp,
        MtpDrafter,
        masks.save,
        4,
        1.0,
        rows=lambda nodes: 5 * nodes + 4,
        torch=True,
        takes=UNROLLED,
    ),
}
