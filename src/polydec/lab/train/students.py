"""What is trained on a target's states: the weights of each kind of drafter, unrolled over pieces of text."""

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
    """What a student reads of its target. tokens: the most frequent ones of the text, for a head of
    its own; levels: tokens guessed; seed; begin: tensors that it may begin with, by the names of
    `DrafterKind.begins`; None: there are none; copies: of each probe; layers: of the drafter;
    enters: the layer of each transferred state, none: the middle one."""

    target: TrainableLlama
    vocab: TokenVocabulary
    tokens: Tensor
    levels: int
    seed: int
    begin: Mapping[str, Tensor] | None = None
    copies: int = 1
    layers: int = 1
    enters: Sequence[int] = ()

    def embed(self, token: Tensor) -> Tensor:
        return self.target.model.embed_tokens(token)

    def logits(self, state: Tensor, columns: Tensor | None = None) -> Tensor:
        """The target's own, of states; columns: of these tokens alone."""
        normed = self.target.model.norm(state)
        if columns is None:
            return self.target.logits(normed)
        return F.linear(normed, self.head_CH)

    @property
    def table_VH(self) -> Tensor:
        """The matrix of the target's head."""
        if self.target.lm_head is None:
            return self.target.model.embed_tokens.weight
        return self.target.lm_head.weight

    @cached_property
    def head_CH(self) -> Tensor:
        """The target's rows of `tokens`."""
        return self.table_VH[self.tokens].clone()


class DrafterStudent(nn.Module):
    """Some tensors and perhaps a layer, of which `make` makes the artefact; the target's norm, head and embeddings stay.
    columns: the tokens that its laws are over, None: all; normed: it reads and guesses states as the target's final norm
    leaves them."""

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

    def at(self, step: int, steps: int) -> None:
        """Training is at this step of so many."""

    def beside(self, made: Tensor, truth: Tensor) -> Tensor:
        """A loss of its own beside those of every kind, of the states of a level [N, H] and the target's laws there [N, C]."""
        return made.new_zeros(())

    def entry(self, state: Tensor) -> Tensor:
        """What enters of the target's states, which lie before its final norm."""
        if self.normed:
            return self.shown.target.model.norm(state)
        return state

    def logits(self, made: Tensor, own_VH: Tensor | None = None) -> Tensor:
        """Of guessed states, by a matrix of its own or by the target's head."""
        if own_VH is not None:
            return F.linear(made, own_VH)
        if self.normed:
            return self.shown.target.logits(made)
        return self.shown.logits(made)

    def apart(self, made: Tensor, state: Tensor) -> Tensor:
        """How far guessed states lie from the target's: where a norm follows, their directions alone."""
        if self.normed:
            return F.smooth_l1_loss(made, self.entry(state))
        return F.smooth_l1_loss(rms_normalised(made), rms_normalised(state))

    @property
    def matrices(self) -> list[nn.Parameter]:
        """What Muon may train: all matrices but a head over tokens, whose rows are many."""
        if self.columns is None:
            tokens = self.shown.target.s.vocab
        else:
            tokens = len(self.columns)
        return [p for p in self.parameters() if p.ndim == 2 and len(p) != tokens]

    def knows(self, token: Tensor) -> Tensor:
        """Whether its laws give these tokens a probability."""
        if self.columns is None:
            return torch.ones_like(token, dtype=torch.bool)
        return torch.isin(token, self.columns)

    def named(self, column: Tensor) -> Tensor:
        """The tokens of columns of its laws."""
        if self.columns is None:
            return column
        return self.columns[column]

    def model(self, rates: Rates = (), share: float = 0.0) -> Any:
        return self._make(
            list(self.tensors),
            None if self.block is None else self.block.layer,
            self.shown.vocab,
            rates,
            share,
        )


class HeadStudent(DrafterStudent):
    """Heads, each of which goes on where the one before it stopped."""

    def forward(
        self, entry_BTH: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each level the states guessed behind every position [B, T, H], their logits, and the positions."""
        model, (B, T, _), entry_BTH = self.model(), entry_BTH.shape, self.entry(entry_BTH)
        if self.block is None:
            first = entry_BTH
        else:
            first = self.block(model.enter(entry_BTH, entry_BTH))
        carry = model.start(first.flatten(0, 1))
        for k in range(model.depth):
            carry, made = model.step(
                k, carry, self.shown.embed(window_BMW[:, k : k + T, -1]).flatten(0, 1)
            )
            made = made.view(B, T, -1)
            yield made, self.logits(made, model.head(k)), torch.arange(T)


class LayerStudent(DrafterStudent):
    """A layer that reads true states and then, level by level, the tokens behind each and what it made itself."""

    def forward(
        self, entry_BTD: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each level the states guessed [B, N, H], their logits, and the N positions behind which they were guessed: all of
        them at the first level, every so many below it."""
        (B, T, _), entry_BTD = entry_BTD.shape, self.entry(entry_BTD)
        model = self.model()
        past = list[Any]()
        true = entry_BTD.flatten(0, 1)
        above = entry_BTD
        at_T = torch.arange(T)
        slots = 1
        assert self.block is not None
        for k in range(self.shown.levels):
            if k == 1:
                at_T = at_T[::every]
                above = above[:, ::every]
                true = entry_BTD[:, ::every].flatten(0, 1)
            embed = self.shown.embed(window_BMW[:, at_T + k, -model.window :]).flatten(0, 1)
            rows = (model.below if k else model.enter)(embed, above.flatten(0, 1)).view(
                B, -1, self.block.wide
            )
            out = self.block(rows, past, at_T * slots + slots - 1 if k else None)
            if not k:  # a state and its token may take several entries, of which the last counts
                slots = rows.shape[1] // T
                rows = rows[:, slots - 1 :: slots]
                out = out[:, slots - 1 :: slots]
            stands, guessed = model.read(k, true, out.flatten(0, 1))
            above = stands.view(B, len(at_T), -1)
            if guessed is None:  # it has a head of its own
                yield above, self.speak(model, rows, out), at_T
            else:
                made = guessed.view(B, len(at_T), -1)
                yield made, self.logits(made), at_T

    def speak(self, model: Any, rows_BTS: Tensor, out_BTH: Tensor) -> Tensor:
        """Logits of a head of its own, whose norm goes over what the layer read beside the stream as well, where it did."""
        assert self.block is not None
        whole = torch.cat([rows_BTS[..., : self.block.beside], out_BTH], -1)
        return F.linear(
            F.rms_norm(whole, whole.shape[-1:], None, EPS)[..., -out_BTH.shape[-1] :]
            * model.own.norm_H,
            model.own.head_CH,
        )


@dataclass(frozen=True)
class DrafterKind:
    """start: a student of this kind; drafter: of its artefact and a tree; save: its module's; levels: how many tokens ahead it
    is trained for; features: weight of the states' loss beside the laws'; sure: what is learned of a level are tokens that the
    target gives this probability, and those before them behind the first; rows: how many are fed for so many nodes; depths: of
    the target's number of layers those that it reads; torch: it is measured on the torch path, as nothing else runs it; takes:
    of the fields of a spec that mean nothing to some kinds (SOME), those that it reads; begins: the tensors of what `start`
    names."""

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
"""What kinds take: those with levels below the first, and of them those with a head of their own."""
