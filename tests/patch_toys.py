"""Heads with random weights, of which two of a size have laws that overlap in part, and toys that read their patches."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from polydec.core.decoder import run_decoder
from polydec.core.effects import ForwardQuery
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.network import LlamaShape, TrainableLlama, make_bidirectional
from polydec.methods.speculative.loop.patch_drawing import PatchDecoder, PatchDrafter
from polydec.methods.speculative.loop.patch_sets import PatchSetDecoder, SetSchedule
from polydec.models.learned.kinds.patch_head import PatchHead
from polydec.models.nets.denoising import DenoisingHead, DenoisingShape
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.denoiser import PatchCanvasModel
from polydec.models.sessions.soft import state_of

LEVELS = 64
SIZE = LEVELS + 2
TARGET = toy_law(5, SIZE)
DRAFT = toy_law(91, SIZE, cost=0.1)
PROMPT = (LEVELS, LEVELS + 1, LEVELS)


def made_head(seed=0, near=None, values=2, steps=3, patches=6, spread=1.0, moved=0.0, seen=1 / 32):
    """A head of toys' states. near: of this head's weights, with a little of its own (moved); seen: how much it makes of a
    state."""
    torch.manual_seed(seed)
    network = DenoisingHead(DenoisingShape(values, 4, 8, 1, steps))
    tensors = {name: spread * t.detach().double() for name, t in network.state_dict().items()}
    # States of toys are whole numbers up to the vocabulary's size.
    tensors["see.weight"] = tensors["see.weight"] * seen
    # Most of what is drawn lies between black and white.
    tensors["leave.weight"][:values] *= 0.5
    tensors["leave.bias"][:values] *= 0.5
    # Two heads with laws that overlap in part: drafts are accepted and refused.
    if near is not None:
        tensors = {name: near.tensors[name] + moved * t for name, t in tensors.items()}
    # What stands in a text is a whole number; the toy's other three numbers are those of a new token.
    tensors["embed.weight"] = torch.zeros(4, values, dtype=torch.float64)
    tensors["embed.weight"][0] = torch.arange(values) * 2.0 + 3
    tensors["embed.bias"] = torch.zeros(4, dtype=torch.float64)
    vocab = TokenVocabulary(SIZE, TARGET.vocab.eos)
    return PatchHead(vocab, network.shape, LEVELS, patches, torch.zeros(4), tensors)


def pictures(decoder, seed, count=1, most=12):
    """Answers of one request."""
    request = Request(PROMPT, most, ignore_eos=True, seed=seed, n=count)
    return run_coroutines([run_decoder(decoder, request)])[0]


def drafting(own, other, test, depth=3, alone=0):
    """A decoder whose draft has a head of its own."""
    return PatchDecoder(TARGET, own, PatchDrafter(DRAFT, other, depth, alone), test)


def far_apart(one_NX, other_NX):
    """The largest distance of distribution functions, over numbers and some sums of them, times the root of half
    their count: 1.95 or more of two samples of one law has a probability below 0.001 for each."""
    mixed = np.random.default_rng(0).normal(size=(one_NX.shape[1], 6))
    worst = 0.0
    for map_XM in (np.eye(one_NX.shape[1]), mixed):
        for one, other in zip((one_NX @ map_XM).T, (other_NX @ map_XM).T, strict=True):
            at = np.sort(np.concatenate([one, other]))
            parts = (np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (one, other))
            a, b = parts
            worst = max(worst, np.abs(a - b).max())
    return worst * math.sqrt(len(one_NX) / 2)


class PatchCanvasNetwork:
    """Says of each position of a canvas a state that hangs on all that stands in it. moved: how much of another one's
    numbers is added."""

    context = 64

    def __init__(self, seed, size=SIZE, cost=1.0, moved=0.0):
        self.cost = cost
        rng = torch.Generator().manual_seed(seed)
        self.table_V4 = torch.randn(size, 4, generator=rng)
        self.own_44, self.far_44 = torch.randn(2, 4, 4, generator=rng)
        self.share_TT = torch.randn(self.context, self.context, generator=rng) / 3
        if moved:
            self.table_V4 += moved * torch.randn(size, 4, generator=rng)
            self.own_44 += moved * torch.randn(4, 4, generator=rng)
        self.calls = self.runs = 0

    def forward(self, queries):
        self.calls += 1
        out = []
        for canvas, fed in queries:
            self.runs += fed
            x_T4 = torch.stack([self.vector_of(x) for x in canvas])
            mixed_T4 = self.share_TT[: len(x_T4), : len(x_T4)] @ torch.tanh(x_T4 @ self.far_44)
            out.append(torch.tanh(x_T4 @ self.own_44 + mixed_T4))
        return out

    def vector_of(self, x):
        """What stands for a token, a patch or a gap, which is the last row of the table."""
        state = None if x is None else state_of(x)
        return self.table_V4[-1 if x is None else x] if state is None else state.float()


@dataclass(frozen=True, eq=False)
class ToyPatchCanvas:
    """A masked model of patches over such a network."""

    network: PatchCanvasNetwork
    vocab: TokenVocabulary = TARGET.vocab
    family: ClassVar[str] = "patches"
    layers: ClassVar[int] = 0
    block: ClassVar[int] = 0
    boundary: ClassVar[None] = None
    allowed_canvases: ClassVar[None] = None

    @property
    def context(self):
        return self.network.context

    @property
    def gap_token(self):
        return self.vocab.size - 1

    def embed_canvas(self, canvas):
        return torch.stack([self.network.vector_of(x) for x in canvas])

    def laws_of_states(self, state_RH, rows):
        raise AssertionError("there are no laws of tokens")

    def open_canvas(self, length, prompt=0):
        return ToyPatchBoard(self.network)


@dataclass(eq=False)
class ToyPatchBoard:
    """A canvas under it."""

    network: Any
    open: ClassVar[int] = 0

    def __post_init__(self):
        ToyPatchBoard.open += 1

    async def read_canvas(self, canvas, feed):
        state_T4 = await ForwardQuery(self.network, (tuple(canvas), len(feed)), len(feed))
        return state_T4[list(feed)]

    def close(self):
        ToyPatchBoard.open -= 1


CANVAS = ToyPatchCanvas(PatchCanvasNetwork(11))
SMALL_CANVAS = ToyPatchCanvas(PatchCanvasNetwork(11, cost=0.1, moved=0.1))
SETS = SetSchedule(3)


def filling(own, other=None, test=None, depth=2, alone=0, **more):
    """A decoder of sets, with a draft that has a head of its own where one is given."""
    if other is None:
        return PatchSetDecoder(CANVAS, own, SETS, **more)
    drafter = PatchDrafter(SMALL_CANVAS, other, depth, alone)
    return PatchSetDecoder(CANVAS, own, SETS, drafter, test, **more)


def network_canvas(layers, width=32):
    """A masked model of patches whose network keeps keys and values, with random weights."""
    shape = LlamaShape(SIZE, width, layers, 1, 1, 2 * width, 64)
    network = make_bidirectional(TrainableLlama(shape, seed=3))
    weights = {name: 3 * p.detach() for name, p in network.state_dict().items() if p.ndim == 2}
    weights |= {name: p.detach() for name, p in network.state_dict().items() if p.ndim == 1}
    config = {**shape.config_content(tied=True), "polydec_causal": False}
    served = LlamaTransformer.build(config, weights, dtype="float32")
    return PatchCanvasModel(served, TARGET.vocab, SIZE - 1)


def wide_head(width=32):
    """A head of such a network."""
    torch.manual_seed(8)
    network = DenoisingHead(DenoisingShape(2, width, 8, 1, 3))
    tensors = {name: t.detach().double() for name, t in network.state_dict().items()}
    return PatchHead(TARGET.vocab, network.shape, LEVELS, 6, torch.zeros(width), tensors)
