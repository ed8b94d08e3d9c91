"""Falcon: of a block of the target's states one pass guesses as many states again (semi-autoregressive drafting)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import FalconFields
from polydec.models.learned.state_layer import EPS, StateLayer, rms_normalised
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.query import NetworkAnswer, NetworkQuery

KIND = artefact.ArtefactKind("falcon", "eagle", "falcon.safetensors", "eagle --kind falcon")
CELLS = 2
"""Layers of the LSTM."""


def lstm_tensor_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Of each tensor of the LSTM."""
    return {
        f"lstm.{which}_{i}": (4 * width, 2 * width if which == "input" and not i else width)
        for i in range(CELLS)
        for which in ("input", "own")
    } | {f"lstm.bias_{i}": (4 * width,) for i in range(CELLS)}


def advance_lstm(lstm: Mapping[str, Tensor], x: Tensor, state: Tensor) -> Tensor:
    """Move both cells of the LSTM on by one input.

    Args:
        lstm: The tensors of `lstm_tensor_shapes`, by name.
        x: The input of the first cell, shape ``[..., 2 H]``.
        state: h and c of the first cell, then c and h of the second, shape ``[..., 4 H]``.

    Returns:
        The state after the input, in the same order; its last H numbers are what the LSTM says.
    """
    # h of the second cell stands last, so that a slice gives what the LSTM says.
    h0, c0, c1, h1 = state.chunk(4, -1)
    h0, c0 = _cell(lstm, 0, x, h0, c0)
    h1, c1 = _cell(lstm, 1, h0, h1, c1)
    return torch.cat([h0, c0, c1, h1], -1)


def _cell(
    lstm: Mapping[str, Tensor], i: int, x: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    # Inputs of all four gates in one product, then cut apart.
    gates = (
        linear(x, lstm[f"lstm.input_{i}"])
        + linear(h, lstm[f"lstm.own_{i}"])
        + lstm[f"lstm.bias_{i}"]
    )
    enter, forget, new, leave = gates.chunk(4, -1)
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


@dataclass(frozen=True, eq=False)
class FalconModel:
    """lstm: of two cells, by the names of `cells`: reads states and the tokens behind; layer: attention and MLP over what the
    LSTM says; block: how many states one pass guesses, 1 to 8; vocab, rates and share: see Eagle.

    The guesses of a pass stand behind the last `block` states: each of these sees all states, those behind it in the block too.
    """

    called: ClassVar[str] = "a Falcon drafter"
    kind: ClassVar[str] = "falcon"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 1

    lstm: Mapping[str, Tensor]
    layer: StateLayer
    block: int
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target makes no laws of guessed states.
        """
        target.vocab.require_same(self.vocab, "the target of the Falcon drafter")
        artefact.require_laws(target, self.layer.width, "Falcon's weights")

    @property
    def normed(self) -> bool:
        """States enter as they lie before the target's final norm."""
        return False

    @property
    def depth(self) -> int:
        """Most levels of a draft: it goes on from what it made itself."""
        return 64

    @property
    def cost(self) -> float:
        return self.layer.cost + float(sum(t.numel() for t in self.lstm.values()))

    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """Join tokens and the states before them to the rows that the LSTM reads.

        Args:
            embed_NWH: Embeddings of the tokens, shape ``[N, W, H]``; the last of each window is
                read.
            state_NH: The states before these tokens, shape ``[N, H]``.

        Returns:
            Each state beside its token, shape ``[N, 2 H]``.
        """
        return torch.cat([rms_normalised(state_NH), rms_normalised(embed_NWH[:, -1])], -1)

    @cached_property
    def network(self) -> FalconNetwork:
        """Fed by `NetworkQuery.embed`. What it answers of a row are the states that the block
        ending there guesses, [R, block H]."""
        return FalconNetwork(self)


class FalconNetwork:
    """In fp32; each query is computed by itself. An entry of its cache holds the key, the value and the LSTM's state."""

    tree = rollback = True
    partial = False
    layers = 1

    def __init__(self, falcon: FalconModel) -> None:
        layer = falcon.layer
        self._lstm = {n: t.detach().float() for n, t in falcon.lstm.items()}
        self._block = falcon.block
        self._w = {n: t.detach().float() for n, t in layer.tensors.items()}
        self._heads = (layer.heads, layer.kv_heads)
        self._width = layer.width
        self._head = layer.width // layer.heads
        self._keys = self._head * layer.kv_heads
        # In double, as angles of far positions need.
        self._inverse = layer.theta ** (-torch.arange(0, self._head, 2).double() / self._head)
        # The layer has no bound of its own: the target's context ends first.
        self.context = 1 << 20
        self.cost = falcon.cost

    def new_cache(self) -> KVCache:
        # Key, value and the LSTM's four vectors: a branch of the tree goes on from its parent's own
        # state.
        return KVCache(torch.empty(1, 0, 2 * self._keys + 4 * self._width))

    @torch.inference_mode()
    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]:
        return [self._answer(q) for q in queries]

    def _answer(self, q: NetworkQuery) -> NetworkAnswer:
        assert q.embed is not None, "it is fed by rows"
        # One after another: the LSTM's state of a row needs that of the row before it.
        for slot, x in zip(q.slots, q.embed.float(), strict=True):
            self._write(q.cache, slot, x)
        entry_NE = q.cache.all_entries()[0]
        return NetworkAnswer(
            None,
            torch.stack(
                [self._guess(entry_NE, path_to(q.cache, q.first + r)) for r in q.rows]
            ).flatten(1)
            if len(q.rows)
            # stack needs at least one row.
            else torch.empty(0, self._block * self._width),
        )

    def _write(self, cache: KVCache, slot: int, x: Tensor) -> None:
        # In a tree the row before is the parent, not the slot before.
        path = path_to(cache, slot)
        keys = 2 * self._keys
        if len(path) > 1:
            before = cache.all_entries()[0, path[-2], keys:]
        else:
            before = torch.zeros(4 * self._width)
        state = advance_lstm(self._lstm, x, before)
        n = self._norm(state[-self._width :], "input_layernorm.weight")
        # The position is the depth of the path, as siblings stand at one place of the text.
        key = self._turned(
            linear(n, self._w["self_attn.k_proj.weight"])[None], torch.tensor([len(path) - 1])
        )[0]
        cache.kv[0, slot - cache.start] = torch.cat(
            [key, linear(n, self._w["self_attn.v_proj.weight"]), state]
        )

    def _guess(self, entry_NE: Tensor, path: Sequence[int]) -> Tensor:
        """Of the block that ends with a path, [block, H]. Of a shorter path the first entry is repeated."""
        # Positions of the block within the path.
        places = [max(0, len(path) - self._block + j) for j in range(self._block)]
        seen_NE = entry_NE[list(path)]
        width = self._width
        keys = self._keys
        x_KH = seen_NE[places, -width:]
        # Only rows of the block ask; keys are those of the whole path.
        q = linear(self._norm(x_KH, "input_layernorm.weight"), self._w["self_attn.q_proj.weight"])
        q = self._split(self._turned(q, torch.tensor(places)))
        k, v = (
            self._split(t).repeat_interleave(self._heads[0] // self._heads[1], 0)
            for t in (seen_NE[:, :keys], seen_NE[:, keys : 2 * keys])
        )
        # No mask: rows of a block see each other both ways, which is what lets one pass guess
        # several states.
        mixed = scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        x = x_KH + linear(mixed, self._w["self_attn.o_proj.weight"])
        n = self._norm(x, "post_attention_layernorm.weight")
        inner = silu(linear(n, self._w["mlp.gate_proj.weight"])) * linear(
            n, self._w["mlp.up_proj.weight"]
        )
        return x + linear(inner, self._w["mlp.down_proj.weight"])

    def _split(self, t: Tensor) -> Tensor:
        """[heads, N, head]."""
        return t.unflatten(-1, (-1, self._head)).transpose(0, 1)

    def _turned(self, t: Tensor, position_N: Tensor) -> Tensor:
        """Through the rotary embedding, [N, heads x head]."""
        angle = torch.outer(position_N.double(), self._inverse).repeat(1, 2).float()[:, None]
        a, b = t.unflatten(-1, (-1, self._head)).chunk(2, -1)
        # Pairs lie half a head apart, as in Llama's weights.
        return (torch.cat([a, b], -1) * angle.cos() + torch.cat([-b, a], -1) * angle.sin()).flatten(
            1
        )

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], self._w[name], EPS)

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        raise FileError("Falcon has no head: its states are the target's")

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        raise FileError("Falcon's layer norms in its head")

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        raise FileError("Falcon has no table of its own: it reads the target's embeddings")


def path_to(cache: KVCache, slot: int) -> list[int]:
    """Find the slots of a cache that an entry stands behind.

    Args:
        cache: The cache, whose entries from `length` on form a tree.
        slot: Position of the entry in the text of all entries, from 0.

    Returns:
        The slots of the path from the first entry on, the entry's own last.
    """
    tail = list[int]()
    # Entries from `length` on are a tree; before that every entry stands behind all earlier ones.
    while slot >= cache.length:
        tail.append(slot)
        above = cache.parent[slot - cache.length]
        # A parent below 0 is the last committed entry.
        if above >= 0:
            slot = cache.length + above
        else:
            slot = cache.length - 1
    return [*range(slot + 1), *reversed(tail)]


def new_lstm_tensors(width: int, seed: int) -> dict[str, Tensor]:
    """Make an LSTM to train: small at random, and it forgets little at first.

    Args:
        width: Width H of the target's states.
        seed: Seed of the matrices.

    Returns:
        The tensors of `lstm_tensor_shapes`, by name.
    """
    g = torch.Generator().manual_seed(seed)
    made = {
        name: torch.randn(shape, generator=g) / shape[-1] ** 0.5
        if len(shape) == 2
        else torch.zeros(shape)
        for name, shape in lstm_tensor_shapes(width).items()
    }
    for i in range(CELLS):
        # The second quarter is the forget gate: sigmoid(1) keeps most of the state from the start.
        made[f"lstm.bias_{i}"][width : 2 * width] = 1.0
    return made


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[FalconModel, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter with blocks of two states.
    """
    return (
        FalconModel(
            new_lstm_tensors(width, 12),
            state_layer.random_state_layer(width, 12),
            2,
            vocab,
            ((0.5, 0.2), (0.4, 0.2)),
        ),
    )


def save(path: str | Path, falcon: FalconModel, about: Mapping[str, Any]) -> None:
    """Write falcon.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        falcon: The drafter.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    artefact.save_artefact(
        path,
        KIND,
        {**{name: t.float() for name, t in falcon.lstm.items()}, **falcon.layer.named},
        {
            **about,
            "width": falcon.layer.width,
            "block": falcon.block,
            **artefact.said_of(falcon),
            "layer": falcon.layer.fields,
        },
    )


def load(path: str | Path) -> FalconModel:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(FalconFields, config, artefact.CONFIG)
        lstm = artefact.read_float_tensors(t, KIND, lstm_tensor_shapes(c.width))
        return FalconModel(
            lstm,
            state_layer.read_state_layer(c.layer, t, KIND, c.width),
            c.block,
            artefact.vocab_of(c),
            c.rates,
            c.share,
        )
