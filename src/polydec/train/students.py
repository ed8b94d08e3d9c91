"""What is trained on a target's states: the weights of each kind of drafter, unrolled over pieces of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.types import Vocab
from polydec.learned import published_eagle1
from polydec.learned.head import deep, fresh
from polydec.learned.kinds import chimera, clover, narrow
from polydec.learned.kinds.chimera import Chimera
from polydec.learned.kinds.clover import Clover
from polydec.learned.kinds.eagle import Eagle
from polydec.learned.kinds.eagle3 import Eagle3
from polydec.learned.kinds.heads import Heads
from polydec.learned.published import layout
from polydec.learned.state_layer import EPS, StateLayer, Vocabulary, even
from polydec.train.network import Llama
from polydec.train.state_layer import Block, NarrowBlock, Past, PublishedBlock

Rates = Sequence[Sequence[float]]
Make = Callable[[Sequence[Tensor], Any, Vocab, Rates, float], Any]
"""An artefact of its tensors, its layer, the target's vocabulary, rates and share."""


@dataclass(frozen=True)
class Shown:
    """What a student reads of its target. tokens: the most frequent ones of the text, for a head of its own; levels: tokens
    guessed; seed; begin: tensors of a draft model that it may begin with, None: there is none."""

    target: Llama
    vocab: Vocab
    tokens: Tensor
    levels: int
    seed: int
    begin: Mapping[str, Tensor] | None = None

    def embed(self, token: Tensor) -> Tensor:
        return self.target.model.embed_tokens(token)

    def logits(self, state: Tensor, some: Tensor | None = None) -> Tensor:
        """The target's own, of states; some: of these tokens alone."""
        normed = self.target.model.norm(state)
        return self.target.logits(normed) if some is None else F.linear(normed, self.head_CH)

    @property
    def table_VH(self) -> Tensor:
        """The matrix of the target's head."""
        return (
            self.target.model.embed_tokens.weight
            if self.target.lm_head is None
            else self.target.lm_head.weight
        )

    @cached_property
    def head_CH(self) -> Tensor:
        """The target's rows of `tokens`."""
        return self.table_VH[self.tokens].clone()


class Student(nn.Module):
    """Some tensors and perhaps a layer, of which `make` makes the artefact; the target's norm, head and embeddings stay. some:
    the tokens that its laws are over, None: all; normed: it reads and guesses states as the target's final norm leaves them."""

    some: Tensor | None = None
    normed: bool = False

    def __init__(
        self,
        shown: Shown,
        tensors: Sequence[Tensor],
        block: Block | NarrowBlock | PublishedBlock | None,
        make: Make,
    ) -> None:
        super().__init__()
        self.shown, self.block, self._make = shown, block, make
        self.tensors = nn.ParameterList([nn.Parameter(t) for t in tensors])

    def at(self, step: int, steps: int) -> None:
        """Training is at this step of so many."""

    def beside(self, made: Tensor, truth: Tensor) -> Tensor:
        """A loss of its own beside those of every kind, of the states of a level [N, H] and the target's laws there [N, C]."""
        return made.new_zeros(())

    def entry(self, state: Tensor) -> Tensor:
        """What enters of the target's states, which lie before its final norm."""
        return self.shown.target.model.norm(state) if self.normed else state

    def logits(self, made: Tensor, own_VH: Tensor | None = None) -> Tensor:
        """Of guessed states, by a matrix of its own or by the target's head."""
        if own_VH is not None:
            return F.linear(made, own_VH)
        return self.shown.target.logits(made) if self.normed else self.shown.logits(made)

    def apart(self, made: Tensor, state: Tensor) -> Tensor:
        """How far guessed states lie from the target's: where a norm follows, their directions alone."""
        return (
            F.smooth_l1_loss(made, self.entry(state))
            if self.normed
            else F.smooth_l1_loss(even(made), even(state))
        )

    @property
    def matrices(self) -> list[nn.Parameter]:
        """What Muon may train: all matrices but a head over tokens, whose rows are many."""
        tokens = self.shown.target.s.vocab if self.some is None else len(self.some)
        return [p for p in self.parameters() if p.ndim == 2 and len(p) != tokens]

    def knows(self, token: Tensor) -> Tensor:
        """Whether its laws give these tokens a probability."""
        return (
            torch.ones_like(token, dtype=torch.bool)
            if self.some is None
            else torch.isin(token, self.some)
        )

    def named(self, column: Tensor) -> Tensor:
        """The tokens of columns of its laws."""
        return column if self.some is None else self.some[column]

    def model(self, rates: Rates = (), share: float = 0.0) -> Any:
        return self._make(
            list(self.tensors),
            None if self.block is None else self.block.layer,
            self.shown.vocab,
            rates,
            share,
        )


class HeadStudent(Student):
    """Heads, each of which goes on where the one before it stopped."""

    def forward(
        self, entry_BTH: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each level the states guessed behind every position [B, T, H], their logits, and the positions."""
        model, (B, T, _), entry_BTH = self.model(), entry_BTH.shape, self.entry(entry_BTH)
        first = entry_BTH if self.block is None else self.block(model.enter(entry_BTH, entry_BTH))
        carry = model.start(first.flatten(0, 1))
        for k in range(model.depth):
            carry, made = model.step(
                k, carry, self.shown.embed(window_BMW[:, k : k + T, -1]).flatten(0, 1)
            )
            made = made.view(B, T, -1)
            yield made, self.logits(made, model.head(k)), torch.arange(T)


class LayerStudent(Student):
    """A layer that reads true states and then, level by level, the tokens behind each and what it made itself."""

    def forward(
        self, entry_BTD: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each level the states guessed [B, N, H], their logits, and the N positions behind which they were guessed: all of
        them at the first level, every so many below it."""
        (B, T, _), entry_BTD = entry_BTD.shape, self.entry(entry_BTD)
        model, past, true = self.model(), Past(), entry_BTD.flatten(0, 1)
        above, at_T, slots = entry_BTD, torch.arange(T), 1
        assert self.block is not None
        for k in range(self.shown.levels):
            if k == 1:
                at_T, above, true = (
                    at_T[::every],
                    above[:, ::every],
                    entry_BTD[:, ::every].flatten(0, 1),
                )
            embed = self.shown.embed(window_BMW[:, at_T + k, -model.window :]).flatten(0, 1)
            rows = (model.below if k else model.enter)(embed, above.flatten(0, 1)).view(
                B, -1, self.block.wide
            )
            out = self.block(rows, past, at_T * slots + slots - 1 if k else None)
            if not k:  # a state and its token may take several entries, of which the last counts
                slots = rows.shape[1] // T
                rows, out = rows[:, slots - 1 :: slots], out[:, slots - 1 :: slots]
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


def make_heads(reads: bool, layered: bool, blocks: int = 1) -> Callable[[Shown], Student]:
    """blocks: of each head; those behind the first change nothing before training."""

    def start(shown: Shown) -> Student:
        s = shown.target.s

        def make(
            t: Sequence[Tensor], layer: StateLayer | None, vocab: Vocab, rates: Rates, share: float
        ) -> Heads:
            first = 3 * shown.levels
            pairs = [(t[i], t[i + 1]) for i in range(first, len(t), 2)]
            more = [pairs[i : i + blocks - 1] for i in range(0, len(pairs), max(1, blocks - 1))]
            return Heads(
                [(t[i], t[i + 1], t[i + 2]) for i in range(0, first, 3)],
                reads,
                vocab,
                rates,
                layer,
                share,
                None,
                more,
            )

        tensors = [t for head in fresh(s.width, shown.levels, reads, shown.seed) for t in head]
        for k in range(shown.levels):
            for block in deep(s.width, blocks - 1, shown.seed + k):
                tensors += block
        return HeadStudent(shown, tensors, Block(s, shown.seed) if layered else None, make)

    return start


def make_medusa_published(shown: Shown) -> Student:
    """In learned/published_medusa.py's layout: a head passes the state on, and its law is the target's, before training."""
    width, eye = shown.target.s.width, torch.eye(shown.target.s.width)

    def make(t: Sequence[Tensor], layer: None, vocab: Vocab, rates: Rates, share: float) -> Heads:
        return Heads(
            [(t[i], t[i + 1], eye) for i in range(0, len(t), 3)],
            False,
            vocab,
            rates,
            None,
            share,
            t[2::3],
        )

    begun = fresh(width, shown.levels, False, shown.seed)
    student = HeadStudent(
        shown,
        [t for weight, bias, _ in begun for t in (weight, bias, shown.table_VH.clone())],
        None,
        make,
    )
    student.normed = True
    return student


def make_eagle(published: bool) -> Callable[[Shown], Student]:
    """published: in the layout of learned/published_eagle1.py, where embeddings enter as they are: they begin half as long as
    states."""

    def start(shown: Shown) -> Student:
        s, trunk = shown.target.s, shown.target.model
        scale = (
            0.5 * float(trunk.norm.weight.norm() / trunk.embed_tokens.weight.norm(dim=-1).mean())
            if published
            else 1.0
        )

        def make(
            t: Sequence[Tensor], layer: Any, vocab: Vocab, rates: Rates, share: float
        ) -> Eagle:
            return Eagle(t[0], layer, vocab, rates, share, published)

        block = (
            PublishedBlock(s, shown.seed, published_eagle1.layout)
            if published
            else Block(s, shown.seed)
        )
        student = LayerStudent(
            shown, [torch.cat([scale * torch.eye(s.width), torch.eye(s.width)], 1)], block, make
        )
        student.normed = published
        return student

    return start


def depths_of(layers: int) -> tuple[int, ...]:
    """After which layers EAGLE-3 reads the states: a low, a middle and a high one, as far as there are so many."""
    return tuple(sorted({max(1, layers // 4), max(1, layers // 2), max(1, layers - 1)}))


def quarters_of(layers: int) -> tuple[int, ...]:
    """After each quarter of the layers."""
    return tuple(sorted({max(1, n * layers // 4) for n in range(1, 5)}))


def make_eagle3(published: bool) -> Callable[[Shown], Student]:
    """published: in the layout of learned/published.py."""

    def start(shown: Shown) -> Student:
        s, depths = shown.target.s, depths_of(shown.target.s.layers)

        def make(
            t: Sequence[Tensor], layer: Any, vocab: Vocab, rates: Rates, share: float
        ) -> Eagle3:
            return Eagle3(
                t[0],
                depths,
                layer,
                Vocabulary(shown.tokens, t[1], t[2]),
                vocab,
                rates,
                share,
                not published,
            )

        tensors = [
            torch.eye(s.width).repeat(1, len(depths)) / len(depths),
            shown.table_VH[shown.tokens].clone(),
            shown.target.model.norm.weight.detach().clone(),
        ]
        block = (
            PublishedBlock(s, shown.seed, layout)
            if published
            else Block(s, shown.seed, 2 * s.width)
        )
        student = LayerStudent(shown, tensors, block, make)
        student.some = shown.tokens
        return student

    return start


def make_narrow(shown: Shown) -> Student:
    """EAGLE-3 of the target's width, over a head that stays as it is: that of the draft model that it begins as, else the
    target's rows."""
    s, depths, begin = shown.target.s, quarters_of(shown.target.s.layers), shown.begin
    trunk = shown.target.model
    head_CH, norm_H = (
        trunk.embed_tokens.weight[shown.tokens].clone(),
        trunk.norm.weight.detach().clone(),
    )
    scale = float(head_CH.square().mean(-1).sqrt().mean())
    if begin is not None:
        head_CH, norm_H = narrow.head_of(begin, shown.tokens), begin["model.norm.weight"].float()

    def make(t: Sequence[Tensor], layer: Any, vocab: Vocab, rates: Rates, share: float) -> Eagle3:
        return Eagle3(
            t[0], depths, layer, Vocabulary(shown.tokens, head_CH, t[1]), vocab, rates, share
        )

    fuse = torch.eye(s.width).repeat(1, len(depths)) / len(depths)
    student = LayerStudent(shown, [fuse, norm_H], NarrowBlock(s, shown.seed, begin, scale), make)
    student.some = shown.tokens
    return student


def make_clover(shown: Shown) -> Student:
    s = shown.target.s
    attend, out = clover.begun(s.width, shown.seed, 0.01)

    def make(
        t: Sequence[Tensor], layer: StateLayer | None, vocab: Vocab, rates: Rates, share: float
    ) -> Clover:
        assert layer is not None
        return Clover(
            layer,
            (t[0], t[1], t[2]),
            ((t[3], t[4], t[5]), (t[6], t[7], t[8])),
            shown.levels,
            vocab,
            rates,
            share,
        )

    return HeadStudent(shown, [*attend, *out[0], *out[1]], Block(s, shown.seed), make)


def make_chimera(shown: Shown) -> Student:
    s = shown.target.s

    def make(
        t: Sequence[Tensor], layer: StateLayer | None, vocab: Vocab, rates: Rates, share: float
    ) -> Chimera:
        assert layer is not None
        return Chimera((t[0], t[1]), t[2:], layer, vocab, rates, share)

    return LayerStudent(
        shown, chimera.begun(s.width, shown.levels, shown.seed), Block(s, shown.seed), make
    )


@dataclass(frozen=True)
class Kind:
    """start: a student of this kind; drafter: of its artefact and a tree; save: its module's; levels: how many tokens ahead it
    is trained for; features: weight of the states' loss beside the laws'; sure: what is learned of a level are tokens that the
    target gives this probability, and those before them behind the first; rows: how many are fed for so many nodes; depths: of
    the target's number of layers those that it reads; torch: it is measured on the torch path, as nothing else runs it; takes:
    of the fields of a spec that mean nothing to some kinds (SOME), those that it reads."""

    start: Callable[[Shown], Student]
    drafter: Callable[[Any, Any], Any]
    save: Callable[..., None]
    levels: int = 3
    features: float = 0.0
    sure: float = 0.0
    rows: Callable[[int], int] = int
    depths: Callable[[int], tuple[int, ...]] = lambda layers: ()
    torch: bool = False
    takes: frozenset[str] = frozenset()
