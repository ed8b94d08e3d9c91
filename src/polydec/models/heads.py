"""Draft heads on a target's last hidden state: each guesses the state one token further on (Medusa, Hydra, Hydra++)."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from polydec.core.protocols import Target
from polydec.core.types import Vocab
from polydec.models import artefact, edge, state_layer
from polydec.models.fields import HeadsFields
from polydec.models.query import Network
from polydec.models.state_layer import StateLayer, even

KIND = artefact.Kind("heads", "heads", "heads.safetensors", "heads")
Head = tuple[Tensor, Tensor, Tensor]
"""weight [H, inputs], bias [H] and skip [H, inputs]: skip u + silu(weight u + bias) of inputs u."""
Step = tuple[int, Tensor, Tensor]
"""What a query of heads is: which head, what the nodes above leave [N, C], and the nodes' embeddings [N, H]."""


@dataclass(frozen=True, eq=False)
class Heads:
    """Head k, from 0: of the state after a token, the state k + 1 tokens further on. The target's own norm and head make a law
    of that, which is the one of the token after those. A model for the scheduler: a query is a `Step`.

    heads: arithmetic is fp32; reads: heads read the embeddings of the k + 1 tokens in between as well (Hydra), else the state
    alone (Medusa); layer: makes of all true states so far the one that the heads begin with (Hydra++), None: they begin with
    the last one; vocab: the target's; rates: of each head, how often its token of each rank was right on held-out text, 0 to
    1; share: passes of the target that a draft costs, as measured where it was trained. States and embeddings are divided by
    their root mean square first.
    """
    called: ClassVar[str] = "draft heads"
    kind: ClassVar[str] = "heads"
    made_by: ClassVar[str] = "polydec train heads"
    window: ClassVar[int] = 1

    heads: Sequence[Head]
    reads: bool
    vocab: Vocab
    rates: Sequence[Sequence[float]]
    layer: StateLayer | None = None
    share: float = 0.0

    def __len__(self) -> int:
        return len(self.heads)

    def fit(self, target: Target, draft: Target | None) -> None:
        """Raise ValueError where they were trained for another vocabulary or for states of another width."""
        target.vocab.require_same(self.vocab, "the target of the draft heads")
        artefact.require_width(target, len(self.heads[0][1]), "draft heads")

    @property
    def cost(self) -> float:
        return float(sum(t.numel() for head in self.heads for t in head))

    @cached_property
    def network(self) -> Network | None:
        """The layer, as a network."""
        return None if self.layer is None else self.layer.network()

    def enter(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """What enters the layer: the states alone."""
        return even(state_NH)

    def start(self, state_NH: Tensor) -> Tensor:
        """What the first head is given besides the root."""
        return even(state_NH)

    def step(self, k: int, carry_NC: Tensor, embed_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Head k at nodes: what it leaves to the nodes below, and the states that it guesses."""
        weight, bias, skip = self.heads[k]
        inputs = torch.cat([carry_NC, even(embed_NH)], 1) if self.reads else carry_NC
        return inputs, linear(inputs, skip) + silu(linear(inputs, weight, bias))

    @torch.inference_mode()
    def forward(self, queries: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
        return merged(self.step, queries)


def merged(step: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
           queries: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
    """Each head once, over the rows of all queries to it."""
    out = [(torch.empty(0), torch.empty(0))] * len(queries)
    for k in sorted({k for k, *_ in queries}):
        mine = [i for i, (head, *_) in enumerate(queries) if head == k]
        sizes = [len(queries[i][1]) for i in mine]
        both = step(k, torch.cat([queries[i][1] for i in mine]), torch.cat([queries[i][2] for i in mine]))
        for i, carry, state in zip(mine, both[0].split(sizes), both[1].split(sizes), strict=True):
            out[i] = carry, state
    return out


def fresh(width: int, count: int, reads: bool, seed: int, scale: float = 0.0) -> list[Head]:
    """Heads to train, which pass the state on as it is; scale: of a random part beside that."""
    g, out = torch.Generator().manual_seed(seed), list[Head]()
    for k in range(count):
        size = width * (k + 2 if reads else 1)
        noise, skip = (torch.randn(2, width, size, generator=g) * scale / width ** 0.5)
        out.append((noise, torch.zeros(width), skip + torch.eye(width, size)))
    return out


def examples(vocab: Vocab, width: int, draft_width: int) -> tuple[Heads, ...]:
    """Random ones for tests: of all three kinds."""
    return tuple(Heads(fresh(width, 3, reads, 5, 1.0), reads, vocab, ((0.5, 0.2), (0.4, 0.2), (0.3, 0.1)), layer)
                 for reads, layer in ((False, None), (True, None), (True, state_layer.example(width, 7))))


def named_head(name: str, head: Head) -> dict[str, Tensor]:
    """A head's tensors as a file has them."""
    return {name + part: t.float() for part, t in zip(("weight", "bias", "skip"), head, strict=True)}


def read_head(t: Mapping[str, Tensor], kind: artefact.Kind, name: str, width: int, inputs: int) -> Head:
    """The same from the file. Raises ValueError where it does not have them."""
    shapes = {"weight": (width, inputs), "bias": (width,), "skip": (width, inputs)}
    weight, bias, skip = (artefact.tensor(t, kind, name + part, shape).float() for part, shape in shapes.items())
    return weight, bias, skip


def save(path: str | Path, heads: Heads, about: Mapping[str, Any]) -> None:
    """Write heads.safetensors and config.json into the directory `path`; about: what else the config says."""
    own, tensors = heads.layer, dict[str, Tensor]()
    for k, head in enumerate(heads.heads):
        tensors |= named_head(f"{k}.", head)
    artefact.save(path, KIND, tensors | ({} if own is None else own.named), {
        **about, "width": len(heads.heads[0][1]), "reads": heads.reads, **artefact.said_of(heads),
        "layer": None if own is None else own.fields})


def load(path: str | Path) -> Heads:
    """The heads in a directory that `save` wrote. Raises ValueError where there are none, or they are damaged."""
    path = edge.at_home(path)
    config, t = artefact.read(path, KIND)
    with artefact.damaged(path, KIND):
        c = edge.check(HeadsFields, config, artefact.CONFIG)
        sizes = [c.width * (k + 2 if c.reads else 1) for k in range(len(c.rates))]
        layer = None if c.layer is None else state_layer.read(c.layer, t, KIND, c.width)
        return Heads([read_head(t, KIND, f"{k}.", c.width, size) for k, size in enumerate(sizes)], c.reads,
                     artefact.vocab_of(c), c.rates, layer, c.share)
