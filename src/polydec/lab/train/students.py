"""The trainable weights of each kind of drafter on a target's states, unrolled over pieces of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.state_layer import (
    NarrowBlock,
    PublishedBlock,
    TrainableStateLayer,
    TrainableStateStack,
)
from polydec.models.learned.state_layer import EPS, rms_normalised
from polydec.models.sessions.sources import open_source

Rates = Sequence[Sequence[float]]
Make = Callable[[Sequence[Tensor], Any, TokenVocabulary, Rates, float], Any]
"""An artefact of its tensors, its layer, the target's vocabulary, rates and share."""


@dataclass(frozen=True)
class TeacherContext:
    """What a student reads of its target, and what is asked of it.

    Attributes:
        target: The target's network, frozen.
        vocab: The target's vocabulary.
        tokens: The most frequent tokens of the text, ascending, for a head of its own, shape
            ``[C]``.
        levels: How many tokens ahead are guessed.
        seed: Seed of new weights.
        begin: Tensors that the student may begin with, as `DrafterKind.begins` gives them; None:
            there are none.
        copies: Copies of each probe.
        layers: Layers of the drafter.
        enters: Layer that each transferred state enters; none: the middle one.
    """

    target: TrainableLlama
    vocab: TokenVocabulary
    tokens: Tensor
    levels: int
    seed: int
    begin: Mapping[str, Tensor] | None = None
    copies: int = 1
    layers: int = 1
    enters: Sequence[int] = ()

    def embed_tokens(self, token: Tensor) -> Tensor:
        """The target's embeddings of tokens, shape ``[..., H]``."""
        return self.target.model.embed_tokens(token)

    def state_logits(self, state: Tensor, columns: Tensor | None = None) -> Tensor:
        """The target's logits of states.

        Args:
            state: States before the final norm, shape ``[..., H]``.
            columns: None: all tokens; anything else: `tokens` only.

        Returns:
            Shape ``[..., V]`` or ``[..., C]``.
        """
        normed = self.target.model.norm(state)
        if columns is None:
            return self.target.token_logits(normed)
        return F.linear(normed, self.head_CH)

    @property
    def table_VH(self) -> Tensor:
        """The matrix of the target's head, shape ``[V, H]``."""
        if self.target.lm_head is None:
            return self.target.model.embed_tokens.weight
        return self.target.lm_head.weight

    @cached_property
    def head_CH(self) -> Tensor:
        """The rows of `tokens` in the target's head, shape ``[C, H]``."""
        return self.table_VH[self.tokens].clone()


class DrafterStudent(nn.Module):
    """The trainable tensors of a drafter, and perhaps a layer, of which `make` makes the artefact.

    The target's norm, head and embeddings stay as they are. `columns` are the tokens that the
    drafter's laws are over (None: all). `normed` says that it reads and guesses states as the
    target's final norm leaves them. Subclasses have a `forward` that unrolls all levels.
    """

    columns: Tensor | None = None
    normed: bool = False

    def __init__(
        self,
        shown: TeacherContext,
        tensors: Sequence[Tensor],
        block: TrainableStateLayer | TrainableStateStack | NarrowBlock | PublishedBlock | None,
        make: Make,
    ) -> None:
        super().__init__()
        self.shown = shown
        self.block = block
        self._make = make
        self.tensors = nn.ParameterList([nn.Parameter(t) for t in tensors])

    def set_step(self, step: int, steps: int) -> None:
        """Called before a step, for kinds whose training changes with time. Here it does nothing.

        Args:
            step: Step of the training, from 0.
            steps: Steps of the training.
        """

    def extra_loss(self, made: Tensor, truth: Tensor) -> Tensor:
        """A further loss of the kind, besides those of every kind. Here it is 0.

        Args:
            made: States of a level, shape ``[N, H]``.
            truth: The target's probabilities there, shape ``[N, C]``.

        Returns:
            A scalar.
        """
        return made.new_zeros(())

    def student_inputs(self, state: Tensor) -> Tensor:
        """What enters of the target's states, which are those before its final norm."""
        if self.normed:
            return self.shown.target.model.norm(state)
        return state

    def guess_logits(self, made: Tensor, own_VH: Tensor | None = None) -> Tensor:
        """Logits of guessed states.

        Args:
            made: Guessed states, shape ``[..., H]``.
            own_VH: A head of the drafter's own, shape ``[V, H]``; None: the target's head.

        Returns:
            Shape ``[..., V]``.
        """
        if own_VH is not None:
            return F.linear(made, own_VH)
        # Normed states need no second norm before the head.
        if self.normed:
            return self.shown.target.token_logits(made)
        return self.shown.state_logits(made)

    def state_distance(self, made: Tensor, state: Tensor) -> Tensor:
        """The distance of guessed states from the target's, as a smooth L1 loss.

        Where the target's final norm follows, only the direction of a state matters, so both are
        normed first.

        Args:
            made: Guessed states, shape ``[N, H]``.
            state: The target's states before its final norm, shape ``[N, H]``.

        Returns:
            A scalar.
        """
        if self.normed:
            return F.smooth_l1_loss(made, self.student_inputs(state))
        return F.smooth_l1_loss(rms_normalised(made), rms_normalised(state))

    @property
    def matrices(self) -> list[nn.Parameter]:
        """What Muon may train: all matrices except a head over tokens, whose rows are many."""
        # A head is recognised by its number of rows.
        if self.columns is None:
            tokens = self.shown.target.s.vocab
        else:
            tokens = len(self.columns)
        return [p for p in self.parameters() if p.ndim == 2 and len(p) != tokens]

    def knows_tokens(self, token: Tensor) -> Tensor:
        """Whether the drafter's laws give these tokens a probability."""
        if self.columns is None:
            return torch.ones_like(token, dtype=torch.bool)
        return torch.isin(token, self.columns)

    def token_ids(self, column: Tensor) -> Tensor:
        """The token ids of columns of the drafter's laws."""
        if self.columns is None:
            return column
        return self.columns[column]

    def build_artefact(self, rates: Rates = (), share: float = 0.0) -> Any:
        """Build the artefact of the tensors as they are now.

        Args:
            rates: How often the token of each rank is right, by level. Default: not known.
            share: Cost of a level, in passes of the target. Default 0.

        Returns:
            The drafter's weights.
        """
        return self._make(
            list(self.tensors),
            None if self.block is None else self.block.layer,
            self.shown.vocab,
            rates,
            share,
        )


class HeadStudent(DrafterStudent):
    """Draft heads, each of which goes on where the one before it stopped."""

    def forward(
        self, entry_BTH: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Guess the states of all levels, after every position.

        Args:
            entry_BTH: The target's states of a piece of text, shape ``[B, T, H]``.
            window_BMW: Token ids up to the one after each position, shape ``[B, M, W]``, M at least
                T and the levels.
            every: Not used: heads are cheap, so all positions are trained.

        Yields:
            For each level the guessed states, shape ``[B, T, H]``, their logits, and the T
            positions.
        """
        model, (B, T, _), entry_BTH = (
            self.build_artefact(),
            entry_BTH.shape,
            self.student_inputs(entry_BTH),
        )
        # Some kinds have a layer before their heads, others read the state itself.
        if self.block is None:
            first = entry_BTH
        else:
            first = self.block(model.layer_inputs(entry_BTH, entry_BTH))
        # All positions of all rows form one batch of B T.
        carry = model.start_levels(first.flatten(0, 1))
        for k in range(model.depth):
            # Level k reads the true token k + 1 places after the position, as in teacher forcing.
            carry, made = model.guess_level(
                k, carry, self.shown.embed_tokens(window_BMW[:, k : k + T, -1]).flatten(0, 1)
            )
            made = made.view(B, T, -1)
            yield made, self.guess_logits(made, model.level_head(k)), torch.arange(T)


class LayerStudent(DrafterStudent):
    """A layer that reads true states, and then, level by level, tokens and what it made itself."""

    def forward(
        self, entry_BTD: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Guess the states of all levels.

        Args:
            entry_BTD: The target's states that the drafter reads, shape ``[B, T, D]``.
            window_BMW: Token ids up to the one after each position, shape ``[B, M, W]``, M at least
                T and the levels.
            every: Levels after the first are guessed after every so many positions only. Default 1.

        Yields:
            For each level the guessed states, shape ``[B, N, H]``, their logits, and the N
            positions after which they were guessed: all at the first level.
        """
        (B, T, _), entry_BTD = entry_BTD.shape, self.student_inputs(entry_BTD)
        model = self.build_artefact()
        past = list[Any]()
        true = entry_BTD.flatten(0, 1)
        above = entry_BTD
        at_T = torch.arange(T)
        slots = 1
        assert self.block is not None
        for k in range(self.shown.levels):
            # From the second level on the layer reads its own states, at fewer positions where
            # asked for.
            if k == 1:
                at_T = at_T[::every]
                above = above[:, ::every]
                true = entry_BTD[:, ::every].flatten(0, 1)
            # Some drafters read the last few tokens, not one.
            embed = self.shown.embed_tokens(window_BMW[:, at_T + k, -model.window :]).flatten(0, 1)
            # The first level joins true states and tokens, later levels what was made and tokens.
            rows = (model.drafted_inputs if k else model.layer_inputs)(
                embed, above.flatten(0, 1)
            ).view(B, -1, self.block.wide)
            # A drafted entry follows the last slot of its position.
            out = self.block(rows, past, at_T * slots + slots - 1 if k else None)
            if not k:  # a state and its token may take several entries, of which the last counts
                slots = rows.shape[1] // T
                rows = rows[:, slots - 1 :: slots]
                out = out[:, slots - 1 :: slots]
            # `stands` is what the next level reads; `guessed` is the state whose law is taken, if
            # there is one.
            stands, guessed = model.read_states(k, true, out.flatten(0, 1))
            above = stands.view(B, len(at_T), -1)
            if guessed is None:  # it has a head of its own
                yield above, self.own_head_logits(model, rows, out), at_T
            else:
                made = guessed.view(B, len(at_T), -1)
                yield made, self.guess_logits(made), at_T

    def own_head_logits(self, model: Any, rows_BTS: Tensor, out_BTH: Tensor) -> Tensor:
        """Logits of a head of the drafter's own.

        Its norm also goes over what the layer read besides the residual stream, where it read such.

        Args:
            model: The drafter's weights.
            rows_BTS: What the layer read, shape ``[B, T, S]``.
            out_BTH: What left the layer, shape ``[B, T, H]``.

        Returns:
            Shape ``[B, T, C]``.
        """
        assert self.block is not None
        whole = torch.cat([rows_BTS[..., : self.block.beside], out_BTH], -1)
        return F.linear(
            F.rms_norm(whole, whole.shape[-1:], None, EPS)[..., -out_BTH.shape[-1] :]
            * model.own.norm_H,
            model.own.head_CH,
        )


@dataclass(frozen=True)
class DrafterKind:
    """How a kind of drafter is trained on a target's states.

    Attributes:
        start: Makes a student of this kind.
        drafter: Makes the drafter of an artefact and a tree.
        save: Writes the artefact.
        levels: How many tokens ahead it is trained for.
        features: Weight of the states' loss besides that of the laws.
        sure: At levels after the first only tokens are learned that the target, like all before
            them, gives at least this probability.
        rows: How many rows are fed for so many nodes of a tree.
        depths: The layers that it reads, of the target's number of layers.
        torch: Whether it is measured on the torch path, as nothing else runs it.
        takes: Of the fields of a spec that mean nothing to some kinds (SOME), those that it reads.
        begins: The tensors of what `start` in a spec names.
    """

    start: Callable[[TeacherContext], DrafterStudent]
    drafter: Callable[[Any, Any], Any]
    save: Callable[..., None]
    levels: int = 3
    features: float = 0.0
    sure: float = 0.0
    rows: Callable[[int], int] = int
    depths: Callable[[int], tuple[int, ...]] = lambda layers: ()
    torch: bool = False
    takes: frozenset[str] = frozenset()
    begins: Callable[[str], Mapping[str, Tensor]] = lambda name: dict(open_source(name).weights)


UNROLLED = frozenset(("every",))
HEADED = UNROLLED | {"tokens"}
"""What kinds take: those with levels below the first, and of them those with a head of their own.
"""
