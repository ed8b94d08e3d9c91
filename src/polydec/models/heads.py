"""Draft heads on a target's last hidden state: each guesses the state one token further on (Medusa, Hydra)."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from polydec.core.protocols import Target
from polydec.core.types import Vocab
from polydec.models import artefact, edge
from polydec.models.fields import HeadsFields

KIND = artefact.Kind("heads", "heads", "heads.safetensors", "heads")
Head = tuple[Tensor, Tensor, Tensor]
"""weight [H, inputs], bias [H] and skip [H, inputs]: skip u + silu(weight u + bias) of inputs u."""


@dataclass(frozen=True, eq=False)
class Heads:
    """Head k, from 0: of the state after a token, the state k + 1 tokens further on. The target's own norm and head make a law
    of that, which is the one of the token after those. A model for the scheduler: a query is (k, inputs [N, inputs]).

    heads: arithmetic is fp32; reads: inputs hold the embeddings of the k + 1 tokens in between as well (Hydra), else the state
    alone (Medusa); vocab: the target's; rates: of each head, how often its token of each rank was right on held-out text, 0
    to 1. States and embeddings are divided by their root mean square first.
    """
    called: ClassVar[str] = "draft heads"
    kind: ClassVar[str] = "heads"
    made_by: ClassVar[str] = "polydec train heads"

    heads: Sequence[Head]
    reads: bool
    vocab: Vocab
    rates: Sequence[Sequence[float]]

    def __len__(self) -> int:
        return len(self.heads)

    def fit(self, target: Target, draft: Target | None) -> None:
        """Raise ValueError where they were trained for another vocabulary or for states of another width."""
        target.vocab.require_same(self.vocab, "the target of the draft heads")
        artefact.require_width(target, len(self.heads[0][1]), "draft heads")

    @property
    def cost(self) -> float:
        return float(sum(t.numel() for head in self.heads for t in head))

    def after(self, k: int, inputs_NI: Tensor) -> Tensor:
        """States [N, H] by head k."""
        weight, bias, skip = self.heads[k]
        return linear(inputs_NI, skip) + silu(linear(inputs_NI, weight, bias))

    @torch.inference_mode()
    def forward(self, queries: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """Each head once, over the rows of all queries to it."""
        out = [torch.empty(0)] * len(queries)
        for k in sorted({k for k, _ in queries}):
            mine = [i for i, (head, _) in enumerate(queries) if head == k]
            rows = self.after(k, torch.cat([queries[i][1] for i in mine]))
            for i, own in zip(mine, rows.split([len(queries[i][1]) for i in mine]), strict=True):
                out[i] = own
        return out


def even(state_NH: Tensor) -> Tensor:
    """fp32 rows divided by their root mean square: what a norm makes of them before its weights."""
    x = state_NH.float()
    return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


def fresh(width: int, count: int, reads: bool, seed: int, scale: float = 0.0) -> list[Head]:
    """Heads to train, which pass the state on as it is; scale: of a random part beside that."""
    g, out = torch.Generator().manual_seed(seed), list[Head]()
    for k in range(count):
        size = width * (k + 2 if reads else 1)
        noise, skip = (torch.randn(2, width, size, generator=g) * scale / width ** 0.5)
        out.append((noise, torch.zeros(width), skip + torch.eye(width, size)))
    return out


def examples(vocab: Vocab, width: int, draft_width: int) -> tuple[Heads, ...]:
    """Random ones for tests: of both kinds."""
    return tuple(Heads(fresh(width, 3, reads, 5, 1.0), reads, vocab, ((0.5, 0.2), (0.4, 0.2), (0.3, 0.1)))
                 for reads in (False, True))


def save(path: str | Path, heads: Heads, about: Mapping[str, Any]) -> None:
    """Write heads.safetensors and config.json into the directory `path`; about: what else the config says."""
    tensors = {f"{k}.{name}": t.float() for k, head in enumerate(heads.heads)
               for name, t in zip(("weight", "bias", "skip"), head)}
    artefact.save(path, KIND, tensors, {
        **about, "width": len(heads.heads[0][1]), "reads": heads.reads, "vocab_size": heads.vocab.size,
        "tokenizer": heads.vocab.tokenizer, "rates": [list(ranks) for ranks in heads.rates]})


def load(path: str | Path) -> Heads:
    """The heads in a directory that `save` wrote. Raises ValueError where there are none, or they are damaged."""
    path = Path(path).expanduser()
    config, t = artefact.read(path, KIND)
    with artefact.damaged(path, KIND):
        c = edge.check(HeadsFields, config, artefact.CONFIG)

        def head(k: int) -> Head:
            size = (c.width, c.width * (k + 2 if c.reads else 1))
            weight, bias, skip = (artefact.tensor(t, KIND, f"{k}.{name}", shape).float()
                                  for name, shape in (("weight", size), ("bias", size[:1]), ("skip", size)))
            return weight, bias, skip
        return Heads([head(k) for k in range(len(c.rates))], c.reads, Vocab(c.vocab_size, frozenset(), c.tokenizer), c.rates)
