"""EAGLE-3's layer: it reads the target's states at several depths, and has a head of its own over some of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import Eagle3Fields
from polydec.models.learned.state_layer import DraftVocabularyHead, StateLayer, rms_normalised
from polydec.models.native.growth import NativeTreeGrower
from polydec.models.nets.query import NeuralNetwork

KIND = artefact.ArtefactKind("eagle-3", "eagle", "eagle3.safetensors", "eagle --kind eagle-3")


class Eagle3Layer(Protocol):
    """A layer that reads 2 H numbers a position, a token and a state."""

    @property
    def width(self) -> int:
        """H."""
        ...

    @property
    def cost(self) -> float: ...
    def layer_network(self, vocab: int, own: DraftVocabularyHead, /) -> Any:
        """Make the network that runs the layer and its head.

        Args:
            vocab: Tokens V of the target's vocabulary, the width of the laws.
            own: The head, which knows some of these tokens.

        Returns:
            A `NeuralNetwork` that is fed by `NetworkQuery.embed`.
        """
        ...


@dataclass(frozen=True, eq=False)
class Eagle3Model:
    """depths: after which layers of the target its states are read, ascending; fuse_HD: weight [H,
    depths x H] that joins them; layer: reads a token's embedding beside the state; own: its head.
    vocab, rates and share: see Eagle. Drafted tokens are those of the head's vocabulary; what is
    accepted is the target's affair. evened: states and embeddings are divided by their root mean
    squares before they enter (models/learned/published.py: as they are, since its layer does that
    with weights). table: gives the target's embeddings of the head's tokens, [C, H]; None: it is
    not bound to a target."""

    called: ClassVar[str] = "an EAGLE-3 drafter"
    kind: ClassVar[str] = "eagle-3"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 1

    fuse_HD: Tensor
    depths: tuple[int, ...]
    layer: Eagle3Layer
    own: DraftVocabularyHead
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0
    evened: bool = True
    table: Callable[[], Tensor] | None = None

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target shows fewer layers than are
                read.
        """
        target.vocab.require_same(self.vocab, "the target of the EAGLE-3 drafter")
        artefact.require_width(target, self.layer.width, "EAGLE-3's weights")
        # Depths ascend, so the last one is the highest layer.
        if target.layers < self.depths[-1]:
            raise FileError(
                f"EAGLE-3's weights read the states after layer {self.depths[-1]}: this target shows "
                f"{target.layers or 'none'} of its layers"
            )

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
        return self.layer.cost + self.own.head_CH.numel()

    def layer_inputs(self, embed_NWH: Tensor, state_ND: Tensor) -> Tensor:
        """Make the rows that enter the layer for tokens and the true states before them.

        Args:
            embed_NWH: Embeddings of the tokens, shape ``[N, W, H]``; the last of each window is
                read.
            state_ND: The states of all `depths`, joined along the last axis, shape ``[N, depths x
                H]``.

        Returns:
            Each token beside its fused state, shape ``[N, 2 H]``.
        """
        # Each depth is evened by itself: later layers have much longer states.
        joined = torch.cat([self._entry(s) for s in state_ND.chunk(len(self.depths), -1)], -1)
        # The compiled step keeps this matrix in 8 bits, as it does the layer's.
        if self.grower is None:
            fused = linear(joined, self.fuse_HD)
        else:
            fused = self.grower.fused(joined)
        return self.drafted_inputs(embed_NWH, fused)

    def drafted_inputs(self, embed_NWH: Tensor, above_NH: Tensor) -> Tensor:
        """Make the rows that enter the layer for drafted tokens.

        Args:
            embed_NWH: Embeddings of the drafted tokens, shape ``[N, W, H]``; the last of each
                window is read.
            above_NH: The states that were made at the nodes above, shape ``[N, H]``.

        Returns:
            Each token beside the state above it, shape ``[N, 2 H]``.
        """
        # Unlike EAGLE, nothing joins the two here: attention reads both beside each other.
        return torch.cat([self._entry(embed_NWH[:, -1]), self._entry(above_NH)], -1)

    def _entry(self, x_NH: Tensor) -> Tensor:
        if not self.evened:
            return x_NH.float()
        if self.grower is None:
            return rms_normalised(x_NH)
        return self.grower.even_rows(x_NH)

    def read_states(self, k: int, true_H: Tensor, out_NS: Tensor) -> tuple[Tensor, None]:
        """Read what left the layer at nodes of one level.

        Args:
            k: Levels that the nodes lie below the root; not read.
            true_H: The last true state, shape ``[H]``; not read.
            out_NS: What left the layer, shape ``[N, S]``; its last H numbers are the state.

        Returns:
            The states ``[N, H]`` that the nodes below stand on, and None: the drafter's own head
            makes the laws.
        """
        # What stands before the last H numbers is the token, which no node below needs.
        return out_NS[:, -self.layer.width :], None

    @cached_property
    def network(self) -> NeuralNetwork:
        """The layer, and its head."""
        return self.layer.layer_network(self.vocab.size, self.own)

    @cached_property
    def grower(self) -> NativeTreeGrower | None:
        """What grows whole trees in one call; None where the compiled step does not run the layer."""
        # The compiled grower looks embeddings up by itself, and evens all that enters.
        if self.table is None or not self.evened:
            return None
        # Networks of torch have no step; then the tree is grown level by level.
        step = getattr(self.network, "step", None)
        if step is None:
            return None
        return NativeTreeGrower(step, self.fuse_HD, self.own.token_C, self.table)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[Eagle3Model, ...]:
    """Make a random one for tests, which knows all tokens but the first.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter that reads the states after layers 1 and 2.
    """
    g = torch.Generator().manual_seed(8)
    # Without token 0: tests see whether a token that the head lacks is handled.
    count = vocab.size - 1
    own = DraftVocabularyHead(
        torch.arange(1, vocab.size), torch.randn(count, width, generator=g), torch.ones(width)
    )
    return (
        Eagle3Model(
            torch.randn(width, 2 * width, generator=g) / width**0.5,
            (1, 2),
            state_layer.random_state_layer(width, 8, 2 * width),
            own,
            vocab,
            ((0.5, 0.2), (0.4, 0.2)),
        ),
    )


def save(path: str | Path, eagle: Eagle3Model, about: Mapping[str, Any]) -> None:
    """Write eagle3.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        eagle: The drafter, with a layer of this package's form.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        FileError: It came in the published form, which `polydec export` writes.
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    if not isinstance(eagle.layer, StateLayer):
        raise FileError("a published EAGLE-3 drafter is written by `polydec export`")
    artefact.save_artefact(
        path,
        KIND,
        {
            "fuse.weight": eagle.fuse_HD.float(),
            "head.tokens": eagle.own.token_C.int(),
            "head.weight": eagle.own.head_CH.float(),
            "norm.weight": eagle.own.norm_H.float(),
            **eagle.layer.named,
        },
        {
            **about,
            "width": eagle.layer.width,
            "depths": list(eagle.depths),
            "tokens": len(eagle.own.token_C),
            **artefact.said_of(eagle),
            "layer": eagle.layer.fields,
        },
    )


def load(path: str | Path) -> Eagle3Model:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(Eagle3Fields, config, artefact.CONFIG)
        # `fit` compares the last depth alone, which must be the highest.
        if list(c.depths) != sorted(set(c.depths)):
            raise FileError(f"depths is {c.depths}: they must ascend")
        token_C = artefact.token_ids(t, KIND, "head.tokens", c.tokens, c.vocab_size)
        # The head knows fewer tokens than the target, by ids that the file lists.
        own = DraftVocabularyHead(
            token_C,
            artefact.read_float_tensor(t, KIND, "head.weight", c.tokens, c.width),
            artefact.read_float_tensor(t, KIND, "norm.weight", c.width),
        )
        return Eagle3Model(
            artefact.read_float_tensor(t, KIND, "fuse.weight", c.width, len(c.depths) * c.width),
            tuple(c.depths),
            state_layer.read_state_layer(c.layer, t, KIND, c.width, 2 * c.width),
            own,
            artefact.vocab_of(c),
            c.rates,
            c.share,
        )
