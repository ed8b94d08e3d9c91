"""EAGLE-3 of the target's own width: token and state are joined before the layer, and the head is one that is there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge, rows8
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import NarrowFields
from polydec.models.learned.kinds.eagle3 import Eagle3Model
from polydec.models.learned.state_layer import DraftVocabularyHead, StateLayer
from polydec.models.native.growth import add_native_matrix
from polydec.models.native.network import CpuStep
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, NeuralNetwork
from polydec.models.sessions import sources

KIND = artefact.ArtefactKind(
    "eagle-3-narrow", "eagle", "narrow.safetensors", "eagle --kind eagle-3-narrow"
)


@dataclass(frozen=True, eq=False)
class NarrowLayer:
    """join_HS: weight [H, 2 H] that makes one row of a token and the state before it; layer: of the target's width, which reads
    such rows. Half the numbers of EAGLE-3's layer, whose attention reads both beside each other."""

    join_HS: Tensor
    layer: StateLayer

    @property
    def width(self) -> int:
        """H."""
        return self.layer.width

    @property
    def cost(self) -> float:
        return self.layer.cost + self.join_HS.numel()

    def layer_network(self, vocab: int, own: DraftVocabularyHead) -> NeuralNetwork:
        """Make the network that joins each token with its state and runs the layer on them.

        Args:
            vocab: Tokens V of the target's vocabulary, the width of the laws.
            own: The head, which knows some of these tokens.

        Returns:
            A network that is fed rows 2 H wide by `NetworkQuery.embed`.
        """
        return JoiningNetwork(self.join_HS.detach(), self.layer.layer_network(vocab, own))


class JoiningNetwork:
    """A network that is fed rows of twice its width, each of which it joins to one first. step: it, where the compiled step
    runs it, else None."""

    def __init__(self, join_HS: Tensor, inner: NeuralNetwork) -> None:
        # The compiled grower of trees needs the step itself, which this network wraps.
        if isinstance(inner, CpuStep):
            self.step = inner
        else:
            self.step = None
        self._inner = inner
        if self.step is None:
            self._join = partial(linear, weight=join_HS)
        else:
            # Kept in 8 bits beside the layer's own matrices.
            self._join = add_native_matrix(self.step, "join", join_HS)
        self.layers = inner.layers
        self.context = inner.context
        self.cost = inner.cost + join_HS.numel()
        self.tree = inner.tree
        self.rollback = inner.rollback
        # Rows must be joined first, so a query cannot stop inside the layer.
        self.partial = False
        self.new_cache = inner.new_cache
        self.head_logits = inner.head_logits

    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]:
        return self._inner.forward([self._joined(q) for q in queries])

    def _joined(self, q: NetworkQuery) -> NetworkQuery:
        assert q.embed is not None, "it is fed by rows"
        return replace(q, embed=self._join(q.embed))

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        raise FileError("EAGLE-3's layer norms in its head")

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        raise FileError("EAGLE-3's layer has no table of its own: it reads the target's embeddings")

    def read_keys(self, cache: Any, stop: int, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Read the keys and values that the layer holds.

        Args:
            cache: A cache of this network.
            stop: Number of entries to read, from the first one on.
            layer: Index of the layer. Default None: the last one.

        Returns:
            Keys and values, each ``[kv heads, stop, head]``.
        """
        return self._inner.read_keys(cache, stop, layer)


@dataclass(frozen=True, eq=False)
class UnboundNarrowEagle:
    """What a directory holds: all but the head. eagle: its head is yet to come; start: the draft model whose head it is, None:
    it is made of the target's embeddings."""

    kind: ClassVar[str] = KIND.name

    eagle: Eagle3Model
    start: str | None = None

    def bound_drafter(self, target: Target) -> Eagle3Model:
        """What drafts for this target. Raises FileError where it does not fit, or the draft model does not."""
        self.eagle.check_fit(target, None)
        # The head is read only now: it lies in the target or in the draft model.
        own, rows = self.eagle.own, self._rows(target)
        if rows.shape != (len(own.token_C), self.eagle.layer.width):
            raise FileError(
                f"EAGLE-3's head, of {self.start!r}, has shape {tuple(rows.shape)}: it must be "
                f"{len(own.token_C)} rows of width {self.eagle.layer.width}"
            )
        narrow = self.eagle.layer
        layer = self.eagle.layer
        if isinstance(narrow, NarrowLayer):  # it takes turns with the target, on the same cores
            threads = getattr(getattr(target, "network", None), "threads", None)
            layer = replace(narrow, layer=replace(narrow.layer, threads=threads))
        return replace(
            self.eagle,
            layer=layer,
            own=replace(own, head_CH=rows),
            # Read at the first use: only the compiled grower asks for the table.
            table=cache(lambda: table_of(target, own.token_C)),
        )

    def _rows(self, target: Target) -> Tensor:
        token_C = self.eagle.own.token_C
        # It was trained with that head, whose rows differ from the target's embeddings.
        if self.start is not None:
            return head_of(sources.open_source(self.start).weights, token_C)
        return table_of(target, token_C)


def table_of(target: Target, token_C: Tensor) -> Tensor:
    """Read a model's embeddings of some tokens.

    Args:
        target: The model.
        token_C: The tokens, shape ``[C]``.

    Returns:
        The embeddings in fp32, shape ``[C, H]``.

    Raises:
        PolydecError: The model has no table of its own.
    """
    session = target.open_session((0,))
    try:
        return session.embed_tokens(token_C.tolist()).float()
    finally:
        session.close()


def tokens_of(draft: Mapping[str, Tensor]) -> list[int]:
    """The tokens that a draft model's head knows. Raises FileError where it has no head of its own."""
    if "lm_head.weight" not in draft:
        raise FileError(
            "start has no head of its own: give a draft model that `polydec train draft` made"
        )
    # A head without a list knows the whole vocabulary, row by row.
    if "lm_head.tokens" in draft:
        return draft["lm_head.tokens"].tolist()
    return list(range(len(draft["lm_head.weight"])))


def head_of(draft: Mapping[str, Tensor], token_C: Tensor) -> Tensor:
    """Read the rows of a draft model's head, which must know just these tokens.

    Args:
        draft: The draft model's tensors, by name.
        token_C: The tokens, ascending, shape ``[C]``.

    Returns:
        The rows in fp32, shape ``[C, H]``.

    Raises:
        FileError: The draft model has no head of its own, or knows other tokens.
    """
    # Row i must mean token i of the list, or every draft would be another token.
    if tokens_of(draft) != token_C.tolist():
        raise FileError("start knows other tokens than the drafter that began as it")
    return draft["lm_head.weight"].float()


def examples(
    vocab: TokenVocabulary, width: int, draft_width: int
) -> tuple[UnboundNarrowEagle, ...]:
    """Make a random one for tests, of numbers that 8 bits hold exactly.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter without its head; it knows all tokens but the first.
    """
    g, inner = torch.Generator().manual_seed(9), state_layer.random_state_layer(width, 9)

    def random_matrix(*shape: int) -> Tensor:
        # Rows are stored with a scale of their own: with 127 as the largest code that scale is
        # exactly 1 / 256.
        code = torch.randint(-127, 128, shape, generator=g)
        code[:, 0] = 127
        return code / 256

    tensors = {
        name: random_matrix(*t.shape) if t.ndim == 2 else t for name, t in inner.tensors.items()
    }
    layer = NarrowLayer(random_matrix(width, 2 * width), replace(inner, tensors=tensors))
    own = DraftVocabularyHead(
        torch.arange(1, vocab.size),
        torch.randn(vocab.size - 1, width, generator=g),
        torch.ones(width),
    )
    return (
        UnboundNarrowEagle(
            Eagle3Model(random_matrix(width, 2 * width), (1, 2), layer, own, vocab, ((0.5, 0.2),))
        ),
    )


def save(path: str | Path, read: UnboundNarrowEagle, about: Mapping[str, Any]) -> None:
    """Write narrow.safetensors, its matrices in 8 bits, and config.json into a directory.

    The head is not written: it is the target's or the draft model's. See models/formats/rows8.py.

    Args:
        path: Directory to write into; it is made where there is none.
        read: The drafter, and the draft model that it began as.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    eagle = read.eagle
    assert isinstance(eagle.layer, NarrowLayer)
    inner = eagle.layer.layer
    # Norms and ids stay as they are: they are small, and rounding them would cost much.
    matrices = rows8.quantise_rows(
        {"fuse.weight": eagle.fuse_HD, "join.weight": eagle.layer.join_HS, **inner.named}
    )
    artefact.save_artefact(
        path,
        KIND,
        {
            **matrices,
            "head.tokens": eagle.own.token_C.int(),
            "norm.weight": eagle.own.norm_H.float(),
        },
        {
            **about,
            "start": read.start,
            "width": eagle.layer.width,
            "depths": list(eagle.depths),
            "tokens": len(eagle.own.token_C),
            **artefact.said_of(eagle),
            "layer": inner.fields,
        },
    )


def save_trained(path: str | Path, eagle: Eagle3Model, about: Mapping[str, Any]) -> None:
    """Write what training made, as `save` does.

    Args:
        path: Directory to write into; it is made where there is none.
        eagle: The drafter that was trained.
        about: Further fields of config.json, by name. "start" must be among them: the draft model
            that it began as, or None.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    save(path, UnboundNarrowEagle(eagle, about["start"]), about)


def load(path: str | Path) -> UnboundNarrowEagle:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, packed = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(NarrowFields, config, artefact.CONFIG)
        t = rows8.dequantise_rows(packed)
        H = c.width
        D = len(c.depths)
        if list(c.depths) != sorted(set(c.depths)):
            raise FileError(f"depths is {c.depths}: they must ascend")
        own = DraftVocabularyHead(
            artefact.token_ids(t, KIND, "head.tokens", c.tokens, c.vocab_size),
            # No rows yet: `bound` puts the head here.
            torch.empty(0, H),
            artefact.read_float_tensor(t, KIND, "norm.weight", H),
        )
        layer = NarrowLayer(
            artefact.read_float_tensor(t, KIND, "join.weight", H, 2 * H),
            state_layer.read_state_layer(c.layer, t, KIND, H),
        )
        fuse_HD = artefact.read_float_tensor(t, KIND, "fuse.weight", H, D * H)
        return UnboundNarrowEagle(
            Eagle3Model(
                fuse_HD, tuple(c.depths), layer, own, artefact.vocab_of(c), c.rates, c.share
            ),
            c.start,
        )
