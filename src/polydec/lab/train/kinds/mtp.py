"""What is trained of masks with a gated adapter, which the frozen target reads after positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train.kinds.ppd import run_layer_by_levels
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
    """Masks after positions of a text, read by the frozen target through a gated adapter.

    Three losses are learned: of the sampler's laws, given the true token before; of the laws of the
    masks' own states; and how far these states lie from the true ones, which get no gradient.
    """

    def forward(
        self, entry_BTH: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Run a block of masks after some positions of a piece.

        The target reads the piece anew, and nothing before it: masks stand in the pass that makes
        its states.

        Args:
            entry_BTH: The target's states; only their number T is read, shape ``[B, T, H]``.
            window_BMW: Token ids up to the one after each position, shape ``[B, M, W]``, M at least
                T and the levels.
            every: Masks stand after every so many positions in training, EVERY at least. Default 1.

        Yields:
            For each mask its states after the last layer, shape ``[B, N, H]``, the sampler's logits
            there, and the N positions after which it stood.
        """
        mtp = self.build_artefact()
        T = entry_BTH.shape[1]
        at_T = torch.arange(0, T, max(every, EVERY) if torch.is_grad_enabled() else 1)
        for k, made in enumerate(
            run_mtp_masks(self.shown.target, mtp, window_BMW[:, :T, -2], at_T)
        ):
            # The sampler reads the true token before the guessed one.
            token_BN = window_BMW[:, at_T + k, -1]
            yield (
                made,
                self.shown.state_logits(
                    mtp.sampled_states(made, self.shown.embed_tokens(token_BN))
                ),
                at_T,
            )

    def extra_loss(self, made: Tensor, truth: Tensor) -> Tensor:
        """The cross-entropy of the laws of the masks' own states, without the sampler.

        Args:
            made: States of a level, shape ``[N, H]``.
            truth: The target's laws there, shape ``[N, C]``.

        Returns:
            Nats a position.
        """
        return F.cross_entropy(self.shown.state_logits(made).float(), truth)


def run_mtp_masks(
    target: TrainableLlama, mtp: MtpModel, token_BT: Tensor, at_T: Tensor
) -> list[Tensor]:
    """Run masks through the target, after some positions of a text.

    Args:
        target: The target, frozen.
        mtp: The masks and the adapter, which acts on masks only.
        token_BT: Token ids, shape ``[B, T]``.
        at_T: Positions after which a block of masks stands, shape ``[N]``.

    Returns:
        For each mask what leaves the last layer, shape ``[B, N, H]``.
    """
    x = target.model.embed_tokens(token_BT)
    rows = [mask_H.expand(len(x), len(at_T), -1) for mask_H in mtp.mask_KH]
    for i, layer in enumerate(target.model.layers):
        # The text goes first and fills the layer's keys; then each mask sees them and the masks
        # before it.
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
    """A student whose masks begin as embeddings of frequent tokens; its adapter adds nothing yet."""
    s = shown.target.s
    g = torch.Generator().manual_seed(shown.seed)
    drawn = shown.tokens[torch.randperm(len(shown.tokens), generator=g)[: shown.levels]]
    sizes = {
        "qkv": (s.width, (s.heads + 2 * s.kv_heads) * s.head),
        "out": (s.heads * s.head, s.width),
        "gate_up": (s.width, 2 * s.inner),
        "down": (s.inner, s.width),
    }
    # Of each place in each layer a random matrix down to RANK, and a zero matrix up.
    pairs = [
        t
        for _ in range(s.layers)
        for into, out in (sizes[place] for place in PLACES)
        for t in (torch.randn(RANK, into, generator=g) * into**-0.5, torch.zeros(out, RANK))
    ]

    def make_artefact(
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> MtpModel:
        """Build the artefact of a student's tensors.

        Args:
            t: The masks, eight tensors of the sampler, then the adapter's pairs by layer and place.
            layer: None: there is no layer.
            vocab: The target's vocabulary.
            rates: How often the token of each rank is right, by level.
            share: Cost of a draft, in passes of the target.

        Returns:
            The drafter's weights.
        """
        # The nine tensors before are the masks and the sampler; pairs follow.
        of = [tuple(t[i : i + 2]) for i in range(9, len(t), 2)]
        layers = [
            dict(zip(PLACES, of[i : i + len(PLACES)], strict=True))
            for i in range(0, len(of), len(PLACES))
        ]
        return MtpModel(t[0], GatedAdapter(layers), t[1:9], vocab, rates, share)  # pyright: ignore[reportArgumentType]

    return MtpStudent(
        shown,
        [shown.embed_tokens(drawn).clone(), *new_mtp_sampler(s.width, shown.seed), *pairs],
        None,
        make_artefact,
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
