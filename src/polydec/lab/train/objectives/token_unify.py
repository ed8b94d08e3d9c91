"""Masked, next and all later tokens in turn (TokenUnify), which also trains draft heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from polydec.base.errors import RequestError
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.objectives.meap import MASK
from polydec.lab.train.objectives.protocols import IGNORED, cross_entropy, rows_of
from polydec.lab.train.tokens import mark_id, tokenizer_files
from polydec.models.learned.kinds import heads
from polydec.models.learned.kinds.heads import DraftHeads
from polydec.models.learned.state_layer import rms_normalised
from polydec.models.sessions.checkpoint import load_bundle

MODE = "<|masked|>"
"""In the place of the mark of a beginning where a row is read with holes, so that the network knows
which of both it is."""
RANKS = 4
DRAFTED = 4
"""Tokens of a law that are counted as a draft's, and offsets that are kept as draft heads (2 to 5).
"""
OFFSETS = 16
"""The farthest token that is foretold."""


class OffsetPredictor(nn.Module):
    """Makes, of the state after a token, a state that predicts a token further on.

    Two residual blocks, whose biases are rows by offset. Offset 1 is the state itself and goes
    through no block.
    """

    def __init__(self, student: TrainableLlama) -> None:
        super().__init__()
        width = student.s.width
        g = torch.Generator().manual_seed(0)
        # All offsets share both matrices; only biases tell them apart.
        self.weight, self.deep = (
            nn.Parameter(torch.randn(width, width, generator=g) * width**-0.5) for _ in range(2)
        )
        self.bias, self.deep_bias = (
            nn.Parameter(torch.zeros(OFFSETS - 1, width)) for _ in range(2)
        )

    def forward(self, state: Tensor, offset: int) -> Tensor:
        """The state, before the final norm, that stands for a later token.

        Args:
            state: States before the final norm, shape ``[..., H]``.
            offset: How far the token is, 2 to OFFSETS.

        Returns:
            Shape ``[..., H]``.
        """
        # The state comes before the final norm, so its size says nothing.
        x = rms_normalised(state)
        x = x + silu(linear(x, self.weight, self.bias[offset - 2]))
        return x + silu(linear(x, self.deep, self.deep_bias[offset - 2]))

    def draft_heads(
        self, student: TrainableLlama
    ) -> list[tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """The offsets 2 to DRAFTED + 1 as draft heads: for each its first block and its second."""
        # Draft heads have an output matrix; here it is the identity.
        eye = torch.eye(student.s.width)
        return [
            (
                (self.weight.detach(), self.bias[k].detach(), eye),
                (self.deep.detach(), self.deep_bias[k].detach()),
            )
            for k in range(DRAFTED)
        ]


class TokenUnifyModel(nn.Module):
    """A network, and what predicts later tokens from its states."""

    def __init__(self, student: TrainableLlama) -> None:
        super().__init__()
        self.student = student
        self.offsets = OffsetPredictor(student)


@dataclass(frozen=True)
class TokenUnify:
    """Each step learns masked tokens, next tokens, or all later ones, drawn by `shares`, or in three
    stages of this order, which is the published one.

    Masked: a share of 0.1 to 0.5 of a row's inputs is masked, and the state at a mask, which sees
    the whole row, predicts what was there, after MODE in place of the mark of a beginning; the
    same weights then fill gaps as a masked-diffusion model (`out/masked`). Later: `looks` offsets k of 1 to 16
    are drawn by w_k = (1 / k) / sum, so that their mean is, in expectation, the sum over all
    offsets with weights w_k. Offset 1 is the next token; the others go through `OffsetPredictor`,
    which is kept as draft heads for `medusa`.

    Attributes:
        shares: Shares of masked, next and later tokens, each at least 0 and together 1 (ours: 0.3,
            0.4, 0.3).
        looks: Offsets that a step of later tokens draws.
        staged: Whether the three follow one another, each for its share of the steps.

    Reduces to: `NextToken` at shares (0, 1, 0), to the bit; a masked language model at (1, 0, 0).
    Source: Chen et al., "TokenUnify: scalable autoregressive visual pre-training with mixture token
    prediction" (2024); for text, with weights, shares and the head chosen here, as the published
    ones are not established.
    """

    shares: Sequence[float] = (0.3, 0.4, 0.3)
    looks: int = 4
    staged: bool = False
    marks = (MASK, MODE)
    ends = ()

    def __post_init__(self) -> None:
        if len(self.shares) != 3 or min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise RequestError(
                f"mixture is {tuple(self.shares)}: it must hold three shares, each at least 0, that add up to 1"
            )

    def trained_network(self, student: TrainableLlama) -> TokenUnifyModel:
        """The student and its offsets."""
        return TokenUnifyModel(student)

    def batch_loss(
        self,
        network: nn.Module,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
        done: float = 0.0,
    ) -> Tensor:
        """The loss of one of the three, drawn for the step, or that of its stage.

        Args:
            network: The student and its offsets.
            batch_BT: Token ids, BEGIN first, shape ``[B, T]``.
            ids: Ids of the special tokens, by name.
            rng: Source of all chance; it is advanced.
            done: Share of the steps that lie behind, which says the stage. Default 0.

        Returns:
            A mean in nats.
        """
        assert isinstance(network, TokenUnifyModel)
        if self.staged:
            kind = self.stage_number(done)
        else:
            # A step learns one of the three only, drawn by the step's own generator.
            kind = int(rng.choice(3, p=self.shares))
        return self._kinds[kind](self, network, batch_BT, ids, rng)

    def stage_number(self, done: float) -> int:
        """Which of the three is learned behind this share of the steps, where they are stages."""
        ends_K = np.cumsum(self.shares)
        # A share of 0 is no stage; rounding may leave the last end a little below 1.
        return int(np.argmax(ends_K > min(done, ends_K[-1] - 1e-9)))

    def _masked(
        self,
        net: TokenUnifyModel,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
    ) -> Tensor:
        inputs = list[np.ndarray]()
        labels = list[np.ndarray]()
        # The last token has no successor and is left out in all three.
        for row_T in batch_BT[:, :-1].numpy():
            # Each row has a share of its own.
            hide_T = (rng.random(len(row_T)) < rng.uniform(0.1, 0.5)) & (row_T != ids[END])
            hide_T[0], hide_T[1] = False, True  # the mode's place, and at least one of a row
            inputs.append(np.where(hide_T, ids[MASK], row_T))
            inputs[-1][0] = ids[MODE]
            # The label stands at the mask itself, not one before it.
            labels.append(np.where(hide_T, row_T, IGNORED))
        # What stands behind a mask is seen, too, as on a canvas.
        T = len(inputs[0])
        see_TT = torch.ones(T, T, dtype=torch.bool)
        return cross_entropy(net.student, rows_of(inputs), rows_of(labels), see_TT)

    def _next(
        self,
        net: TokenUnifyModel,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
    ) -> Tensor:
        return cross_entropy(net.student, batch_BT[:, :-1], batch_BT[:, 1:])

    def _later(
        self,
        net: TokenUnifyModel,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
    ) -> Tensor:
        # Offsets beyond the row are left out.
        weights_K = offset_weights(min(OFFSETS, batch_BT.shape[1] - 1))
        offsets = 1 + rng.choice(len(weights_K), self.looks, p=weights_K)
        # One pass of the network serves all offsets.
        state_BTH = net.student.model.text_states(batch_BT[:, :-1])
        parts = [
            torch.nn.functional.cross_entropy(
                # The state of input t predicts token t + k, so the last k - 1 states predict
                # nothing known.
                offset_token_logits(net, state_BTH[:, : state_BTH.shape[1] - k + 1], k).flatten(
                    0, 1
                ),
                batch_BT[:, k:].flatten(),
            )
            for k in offsets.tolist()
        ]
        return torch.stack(parts).mean()

    _kinds = (_masked, _next, _later)

    def save_extras(
        self, out: Path, network: nn.Module, unseen_RT: Tensor, result: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Write the offsets 2 to 5 as draft heads in out/heads, and the model that fills canvases
        in out/masked.

        Args:
            out: Directory of the run, which has the model already.
            network: The student and its offsets.
            unseen_RT: Rows that nothing was learned from, shape ``[R, T]``.
            result: What was measured; it is not used.

        Returns:
            `right_at_offset`: how often the likeliest token of each offset is right.
        """
        assert isinstance(network, TokenUnifyModel)
        if self.shares[0]:
            save_masked_model(out, network.student)
        rates = rates_of(network, unseen_RT)
        parts = network.offsets.draft_heads(network.student)
        made = DraftHeads(
            [first for first, _ in parts],
            False,
            load_bundle(str(out)).lm.vocab,
            rates,
            more=[[second] for _, second in parts],
        )
        heads.save(out / "heads", made, {"objective": "tokenunify"})
        return {"right_at_offset": {k + 2: rate[0] for k, rate in enumerate(rates)}}


def save_masked_model(out: Path, student: TrainableLlama) -> None:
    """Write the same weights as a masked-diffusion model, whose texts begin with MODE.

    Args:
        out: Directory of the run, which has the model's tokenizer; out/masked is written.
        student: The network.
    """
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    mode, mask, end = (mark_id(tokenizer, mark) for mark in (MODE, MASK, END))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{MODE} $A", special_tokens=[(MODE, mode)]
    )
    files = tokenizer_files(tokenizer, student.s.context, (MODE,))
    own = files["tokenizer_config.json"]
    own |= {"bos_token": MODE, "chat_template": own["chat_template"].replace(BEGIN, MODE)}
    files["generation_config.json"] |= {"bos_token_id": mode}
    config = student.s.config_content(bos=mode, eos=end) | {
        "polydec_causal": False,
        "polydec_mask": mask,
        "polydec_shifted": False,
        "polydec_block": 0,
    }
    save_directory(out / "masked", student, config, files=files)


def offset_weights(count: int) -> np.ndarray:
    """The weights of the offsets 1 to `count`: 1 / k, scaled to sum to 1."""
    raw_K = 1 / np.arange(1, count + 1)
    return raw_K / raw_K.sum()


def offset_token_logits(net: TokenUnifyModel, state_BTH: Tensor, offset: int) -> Tensor:
    """Logits of a token further on, after each state.

    Args:
        net: The student and its offsets.
        state_BTH: States before the final norm, shape ``[B, T, H]``.
        offset: How far the token is, 1 to OFFSETS; 1: the next one.

    Returns:
        Shape ``[B, T, V]``.
    """
    if offset == 1:
        guessed = state_BTH
    else:
        guessed = net.offsets(state_BTH, offset)
    # All offsets go through the network's own norm and head.
    return net.student.token_logits(net.student.model.norm(guessed)).float()


@torch.no_grad()
def rates_of(net: TokenUnifyModel, unseen_RT: Tensor) -> list[list[float]]:
    """How often the token of each rank is right, for each offset that is kept.

    Args:
        net: The student and its offsets.
        unseen_RT: Rows that nothing was learned from, shape ``[R, T]``.

    Returns:
        DRAFTED lists of RANKS shares, 0 to 1.
    """
    state_RTH = net.student.model.text_states(unseen_RT[:, :-1])
    out = list[list[float]]()
    for k in range(2, 2 + DRAFTED):
        logits = offset_token_logits(net, state_RTH[:, : state_RTH.shape[1] - k + 1], k)
        # [R, T, RANKS]: whether the token of each rank is the text's.
        right = logits.topk(RANKS, -1).indices == unseen_RT[:, k:, None]
        out.append(right.float().mean((0, 1)).tolist())
    return out
