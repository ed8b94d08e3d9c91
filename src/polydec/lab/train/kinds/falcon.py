"""What is trained of Falcon: an LSTM, and a layer whose blocks see themselves in both directions.

In training part of the truth is shown (glancing).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.state_layer import Past, TrainableStateLayer, attend_draft_levels, swiglu_mlp
from polydec.lab.train.students import DrafterKind, DrafterStudent, Rates, TeacherContext
from polydec.methods.speculative.drafters.falcon import FalconDrafter
from polydec.models.learned.kinds import falcon
from polydec.models.learned.kinds.falcon import FalconModel
from polydec.models.learned.state_layer import EPS, StateLayer, rms_normalised

BLOCK = 2
"""States that one pass guesses, as published."""
GLANCED = 0.4
"""Of the tokens that are guessed wrong the share whose places are shown the truth, when training
begins; it falls to 0."""


class FalconStudent(DrafterStudent):
    """A Falcon drafter: guesses a block of states after every block of a piece, then further ones."""

    def __init__(self, shown: TeacherContext) -> None:
        s = shown.target.s
        made = falcon.new_lstm_tensors(shown.target.s.width, shown.seed)
        super().__init__(shown, list(made.values()), TrainableStateLayer(s, shown.seed), self._make)
        self._names = list(made)
        self._left = 1.0
        self._draw = torch.Generator()

    def _make(
        self,
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> FalconModel:
        assert layer is not None
        return FalconModel(
            dict(zip(self._names, t, strict=True)), layer, BLOCK, vocab, rates, share
        )

    def set_step(self, step: int, steps: int) -> None:
        """Set how much truth is shown: less and less, none at the last step.

        Args:
            step: Step of the training, from 0; with the seed it decides which blocks are shown.
            steps: Steps of the training.
        """
        self._left, self._draw = (
            1.0 - step / steps,
            generator_for(self.shown.seed, step, "glances"),
        )

    def forward(
        self, entry_BTH: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Guess the states of all levels. The positions are those that end blocks.

        Args:
            entry_BTH: The target's states of a piece of text, shape ``[B, T, H]``.
            window_BMW: Token ids up to the one after each position, shape ``[B, M, W]``, M at least
                T and the levels.
            every: Not used: only ends of blocks are followed.

        Yields:
            For each level the guessed states, shape ``[B, N, H]``, their logits, and the N
            positions.
        """
        T = entry_BTH.shape[1]
        token_BM = window_BMW[..., -1]
        ends = torch.arange(
            T % BLOCK + BLOCK - 1, T, BLOCK
        )  # the last block ends where the piece does
        # What enters at a position: its state, and the embedding of the token after it.
        x_BTS = torch.cat(
            [rms_normalised(entry_BTH), rms_normalised(self.shown.embed_tokens(token_BM[:, :T]))],
            -1,
        )
        if torch.is_grad_enabled():
            x_BTS = self._glanced(x_BTS, token_BM)
        state_BTE, guess_BTH, text = self._read(x_BTS)
        past: Past = [text]
        # K = BLOCK guesses after each block; a beginning that fills no block is left out.
        guess_BNKH = guess_BTH[:, T % BLOCK :].unflatten(1, (-1, BLOCK))
        state_BNE = state_BTE[:, ends]
        for level in range(self.shown.levels):
            j = level % BLOCK
            if level and not j:  # the next block stands on the one that was guessed
                state_BNE, guess_BNKH = self._go_on(
                    state_BNE, guess_BNKH, past, ends, token_BM, level
                )
            made = guess_BNKH[:, :, j]
            yield made, self.shown.state_logits(made), ends

    def _glanced(self, x_BTS: Tensor, token_BM: Tensor) -> Tensor:
        """Show the truth at some blocks: state and token of the place that each has to guess.

        How many are shown falls with the guesses that are wrong, and with time.
        """
        T = x_BTS.shape[1]
        with torch.no_grad():
            wrong_BT = (
                self.shown.state_logits(self._read(x_BTS)[1]).argmax(-1)
                != token_BM[:, BLOCK : BLOCK + T]
            )
        # The share is one number for the batch, and blocks are drawn whole.
        share = GLANCED * self._left * wrong_BT.float().mean()
        shown_BN = torch.rand(len(x_BTS), -(-T // BLOCK), generator=self._draw) < share
        shown_BN[:, -1] = False  # what lies behind the piece is not known
        shown_BT = shown_BN.repeat_interleave(BLOCK, 1)[:, -T:, None]
        # BLOCK places ahead is what a position guesses; the last block wraps around and is never
        # shown.
        ahead_BTS = torch.cat([x_BTS[:, BLOCK:], x_BTS[:, :BLOCK]], 1)
        return torch.where(shown_BT, ahead_BTS, x_BTS)

    def _read(self, x_BTS: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Read a text: the LSTM's states [B, T, 4 H], the guesses [B, T, H], and keys and values."""
        assert isinstance(self.block, TrainableStateLayer)
        lstm = self.build_artefact().lstm
        H = x_BTS.shape[-1] // 2
        state = x_BTS.new_zeros(len(x_BTS), 4 * H)
        states = list[Tensor]()
        # The recurrence goes token by token.
        for x in x_BTS.unbind(1):
            state = falcon.advance_lstm(lstm, x, state)
            states.append(state)
        state_BTE = torch.stack(states, 1)
        T = x_BTS.shape[1]
        q, k, v = self.block.project_rows(state_BTE[..., -H:], torch.arange(T))
        # Blocks are counted from the end of the text; a position sees its own block to its end.
        block_T = (torch.arange(T) - T) // BLOCK
        sees = block_T[None] <= block_T[:, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        return state_BTE, self._rest(state_BTE[..., -H:], mixed), (k, v)

    def _go_on(
        self,
        state_BNE: Tensor,
        guess_BNKH: Tensor,
        past: Past,
        ends: Tensor,
        token_BM: Tensor,
        level: int,
    ) -> tuple[Tensor, Tensor]:
        """Read the next block of tokens: the LSTM's states after it, and what the block guesses.

        `past` has keys and values of the text and of the blocks drafted so far; those of this block
        are added.
        """
        assert isinstance(self.block, TrainableStateLayer)
        lstm = self.build_artefact().lstm
        H = guess_BNKH.shape[-1]
        states = list[Tensor]()
        for j in range(BLOCK):
            token = token_BM[:, ends + level - BLOCK + 1 + j]
            # Drafted places have guessed states in place of the target's.
            x = torch.cat(
                [
                    rms_normalised(guess_BNKH[:, :, j]),
                    rms_normalised(self.shown.embed_tokens(token)),
                ],
                -1,
            )
            state_BNE = falcon.advance_lstm(lstm, x, state_BNE)
            states.append(state_BNE[..., -H:])
        rows = [
            self.block.project_rows(x, ends + level - BLOCK + 1 + j) for j, x in enumerate(states)
        ]
        past += [(k, v) for _, k, v in rows]
        # Keys of the block are added first, so that its places see one another in both directions.
        mixed = [attend_draft_levels(q, past, ends) for q, _, _ in rows]
        return state_BNE, torch.stack(
            [self._rest(x, y) for x, y in zip(states, mixed, strict=True)], 2
        )

    def _rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What leaves the layer: the residual of attention, then that of the MLP."""
        assert isinstance(self.block, TrainableStateLayer)
        w = self.block.layer.tensors
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"])
        return x + swiglu_mlp(
            w, F.rms_norm(x, x.shape[-1:], w["post_attention_layernorm.weight"], EPS)
        )


def make_falcon(shown: TeacherContext) -> DrafterStudent:
    """A Falcon student over the states of the target."""
    return FalconStudent(shown)


KINDS = {"falcon": DrafterKind(make_falcon, FalconDrafter, falcon.save, 4, 1.0)}
