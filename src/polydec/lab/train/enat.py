"""The loss of a masked-diffusion network that encodes tokens apart from gaps (ENAT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.models.formats.enat_config import EnatShape
from polydec.models.nets.enat import EnatModules

DRAWN = 14
KEPT = 12
"""The 12th smallest of 14 uniform numbers has the law Beta(12, 3), whose mean is 0.8."""


def new_enat_modules(shape: EnatShape, seed: int) -> EnatModules:
    """A network with random weights; the global generator is left as it was.

    Args:
        shape: Sizes.
        seed: Names the weights.

    Returns:
        The network.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return EnatModules(shape)


class AveragedEnat(nn.Module):
    """A network in training, and the moving average of its weights.

    Attributes:
        learned: The network that takes the steps.
        average: What its weights were on average, later ones more.
    """

    def __init__(self, shape: EnatShape, seed: int) -> None:
        super().__init__()
        self.learned = new_enat_modules(shape, seed)
        self.average = new_enat_modules(shape, seed).requires_grad_(False)

    @property
    def layer_matrices(self) -> list[nn.Parameter]:
        """Matrices of the layers that are learned."""
        # Tables and norms stay with AdamW.
        halves = (self.learned.encoder, self.learned.decoder)
        return [p for half in halves for p in half.parameters() if p.ndim == 2]

    @torch.no_grad()
    def follow_weights(self, kept: float) -> None:
        """Move the average to the weights as they are now. kept: its share that stays, 0 to 1."""
        for mean, now in zip(self.average.parameters(), self.learned.parameters(), strict=True):
            mean.lerp_(now, 1 - kept)


def enat_picture_loss(
    network: EnatModules,
    before: EnatModules,
    mask: int,
    reused: float,
    smoothed: float,
    row_BT: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """The loss on pictures, each behind its class.

    Of all pictures of a batch one share is masked, drawn by Beta(12, 3). In a share of the batches
    some of the other tokens are new, as in a pass behind another one: older ones were encoded
    without them, by another network and without a gradient, and are shown as later passes see them.

    Args:
        network: The network in training.
        before: The one that has encoded older tokens; as published the average of its weights.
        mask: Id of a gap.
        reused: Share of the batches in which older tokens are shown.
        smoothed: Label smoothing.
        row_BT: Token ids, the class first (`mask`: it is left out), shape ``[B, L + 1]``.
        rng: Source of the masks; it is advanced.

    Returns:
        Nats a masked token.

    Source: Ni et al., "ENAT: rethinking spatial-temporal interactions in token-based image synthesis"
    (2024).
    """
    L = row_BT.shape[1] - 1
    share = float(torch.rand(DRAWN, generator=rng).sort().values[KEPT - 1])
    count = min(max(1, round(share * L)), L - 1)
    # Of the tokens that stand a uniform share is new.
    again = float(torch.rand((), generator=rng)) < reused
    late = int(float(torch.rand((), generator=rng)) * (L - count + 1)) if again else L - count
    order_BL = torch.rand(len(row_BT), L, generator=rng).argsort(-1) + 1
    out_B = row_BT[:, 0] == mask
    # Rows of one batch must be alike in how many tokens stand, old and new.
    losses = list[Tensor]()
    # A picture whose class is left out has a token less.
    for which_B in (out_B, ~out_B):
        token_BT = row_BT[which_B]
        place_BL = order_BL[which_B]
        if not len(token_BT):
            continue
        gap_BM, new_BN, old_BO = place_BL.split([count, late, L - count - late], 1)
        if which_B is not out_B:
            first_B1 = torch.zeros(len(token_BT), 1, dtype=torch.long)
            # With nothing older the class itself is new: it is encoded with the others.
            if again:
                old_BO = torch.cat([first_B1, old_BO], 1)
            else:
                new_BN = torch.cat([first_B1, new_BN], 1)
        logits_BMC = _gap_logits(network, before, token_BT, gap_BM, new_BN, old_BO, mask)
        label_BM = token_BT.gather(1, gap_BM)
        loss = F.cross_entropy(
            logits_BMC.flatten(0, 1), label_BM.flatten(), label_smoothing=smoothed
        )
        losses.append(loss * len(token_BT))
    return torch.stack(losses).sum() / len(row_BT)


def _gap_logits(
    network: EnatModules,
    before: EnatModules,
    token_BT: Tensor,
    gap_BM: Tensor,
    new_BN: Tensor,
    old_BO: Tensor,
    mask: int,
) -> Tensor:
    """Logits at gaps, as a pass makes them behind one that has encoded the old tokens."""
    nothing_B0W = network.token_embedding.weight.new_zeros(len(token_BT), 0, network.shape.width)
    old_BOW = nothing_B0W
    # What an earlier pass has made of them: they saw one another and no newer token.
    if old_BO.shape[1]:
        with torch.no_grad():
            entered = before.entry_states(token_BT.gather(1, old_BO), old_BO)
            condition_BW = before.condition_states(token_BT[:, 0], mask)
            before_BOW = before.encode_tokens(entered, nothing_B0W, condition_BW)
        old_BOW = network.shown_states(before_BOW)
    # The pass itself: new tokens see the older ones, and gaps see all.
    condition_BW = network.condition_states(token_BT[:, 0], mask)
    new_BNW = network.entry_states(token_BT.gather(1, new_BN), new_BN)
    if new_BN.shape[1]:
        new_BNW = network.encode_tokens(new_BNW, old_BOW, condition_BW)
    gap_BMW = network.entry_states(torch.full_like(gap_BM, mask), gap_BM)
    gap_BMW = network.decode_gaps(gap_BMW, torch.cat([old_BOW, new_BNW], 1), condition_BW)
    return network.written_logits(gap_BMW)
