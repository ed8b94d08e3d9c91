"""Heads with random weights, of which two of a size have laws that overlap in part, and toys that read their patches."""

import torch

from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.loop.patch_drawing import PatchDecoder, PatchDrafter
from polydec.models.learned.kinds.patch_head import PatchHead
from polydec.models.nets.denoising import DenoisingHead, DenoisingShape

LEVELS = 64
SIZE = LEVELS + 2
TARGET = toy_law(5, SIZE)
DRAFT = toy_law(91, SIZE, cost=0.1)
PROMPT = (LEVELS, LEVELS + 1, LEVELS)


def made_head(seed=0, near=None, values=2, steps=3, patches=6, spread=1.0, moved=0.0):
    """A head of toys' states. near: of this head's weights, with a little of its own (moved)."""
    torch.manual_seed(seed)
    network = DenoisingHead(DenoisingShape(values, 4, 8, 1, steps))
    tensors = {name: spread * t.detach().double() for name, t in network.state_dict().items()}
    # States of toys are whole numbers up to the vocabulary's size.
    tensors["see.weight"] = tensors["see.weight"] / 32
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
