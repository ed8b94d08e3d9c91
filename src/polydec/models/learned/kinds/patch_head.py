"""What draws patches of pictures as vectors behind a model's states: a diffusion head (MAR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import PatchHeadFields
from polydec.models.nets.denoising import (
    DenoisingHead,
    DenoisingPaths,
    DenoisingShape,
    GuidedSteps,
    StepLaw,
    draw_paths,
    score_paths,
)

KIND = artefact.ArtefactKind("patch-head", "head", "patch_head.safetensors", "patches")
MARK = "mark"
"""The tensor that tells whose states the head reads; the others are the network's."""
SAME = 0.05
"""How far that row may lie from the model's own, of its length: a draft's weights are stored in 8 bits."""


class PathDraw(NamedTuple):
    """What is asked where patches are drawn: as `draw_paths` has it."""

    state_NH: Tensor
    start_ND: Tensor
    noise_NTD: Tensor


class PathScore(NamedTuple):
    """What is asked where trajectories are scored: as `score_paths` has it."""

    state_NH: Tensor
    points_NSD: Tensor


@dataclass(frozen=True, eq=False)
class PatchHead:
    """A trained diffusion head. A patch is a square of grey pixels; of each, its level is written.

    Attributes:
        vocab: Of the model; its first ids are grey levels from black to white, its last one stands in
            place of a class that is left out.
        shape: Sizes of the network.
        levels: How many grey levels there are, 2 or more.
        patches: Of a picture.
        mark_H: What enters the model's first layer for its last id: so a head knows its model. Zeros:
            it may be any of that width.
        tensors: Of the network, by name.
        guided: Whether it is told of each patch what `GuidedSteps` is. Default False.
    """

    called: ClassVar[str] = "a head that draws patches"
    kind: ClassVar[str] = KIND.name
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    shape: DenoisingShape
    levels: int
    patches: int
    mark_H: Tensor
    tensors: Mapping[str, Tensor]
    guided: bool = False

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained with this model.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The model's states have another width or are not shown behind its final norm, or
                it is another model.
            PolydecError: The model shows no states.
        """
        target.vocab.require_same(self.vocab, "the target of the head that draws patches")
        have_H = self._last_row(target)
        # A head reads one model's states: another model of its width would draw noise.
        if not bool(self.mark_H.any()):
            return
        if float((have_H - self.mark_H).norm()) > SAME * float(self.mark_H.norm()):
            raise FileError(
                "the head that draws patches was trained with another model: name the folder head of this one (--with)"
            )

    def _last_row(self, target: Target) -> Tensor:
        """What enters a model's first layer for its last id. Raises where its states cannot be read, or
        have another width."""
        last = (self.vocab.size - 1,)
        width = self.shape.width
        if artefact.is_patch_canvas(target):
            # A canvas gives what enters its first layer without a session.
            model: Any = target
            have_H = model.embed_canvas(last)[0].float().cpu()
            if len(have_H) != width:
                raise FileError(
                    f"heads that draw patches were trained for states of width {width}: this target's have {len(have_H)}"
                )
            return have_H
        artefact.require_laws(target, width, "heads that draw patches", head=False, normed=True)
        session = target.open_session((0,))
        try:
            return session.embed_tokens(last)[0].float().cpu()
        finally:
            session.close()

    @cached_property
    def guided_head(self) -> PatchHead:
        """The same head, whose steps are guided."""
        return replace(self, guided=True)

    @property
    def step_law(self) -> StepLaw:
        """The law of a patch's steps, by what it is told of the patch."""
        # Both heads have the same weights; only what they are told differs.
        if self.guided:
            return GuidedSteps(self.network, self.shape)
        return self.network

    @cached_property
    def network(self) -> DenoisingHead:
        """What draws, in float64: a pass of many gives what each gives alone."""
        network = DenoisingHead(self.shape).double()
        network.load_state_dict(dict(self.tensors))
        return network.eval()

    @property
    def cost(self) -> float:
        """Numbers that a step reads."""
        return float(sum(t.numel() for t in self.tensors.values())) * (1 + self.guided)

    @cached_property
    def path_drawer(self) -> PathDrawer:
        """Draws patches; its queries are `PathDraw`."""
        return PathDrawer(self)

    @cached_property
    def path_scorer(self) -> PathScorer:
        """Scores trajectories; its queries are `PathScore`."""
        return PathScorer(self)

    @torch.no_grad()
    def embed_patches(self, value_ND: Tensor) -> Tensor:
        """What enters the model's first layer for patches, shape ``[N, H]``, float32."""
        return self.network.embed(value_ND).float()

    def grey_levels(self, value_D: Tensor) -> tuple[int, ...]:
        """The ids that a patch is written as, pixel by pixel: -1 is black, 1 is white."""
        # Noise may go beyond black and white: such values are written as these.
        level_D = ((value_D + 1) / 2 * (self.levels - 1)).round().clamp(0, self.levels - 1)
        return tuple(map(int, level_D))


@dataclass(frozen=True, eq=False)
class PathDrawer:
    """A head that draws: queries of one pass are drawn together."""

    head: PatchHead

    @property
    def cost(self) -> float:
        return self.head.cost * self.head.shape.steps

    def forward(self, queries: Sequence[PathDraw]) -> list[DenoisingPaths]:
        """Draw patches.

        Args:
            queries: The queries.

        Returns:
            The trajectories of each one.
        """
        # A step of the head for all of them: rows do not see one another.
        whole = [torch.cat(parts).double() for parts in zip(*queries, strict=True)]
        return _parted(draw_paths(self.head.step_law, *whole), queries)


@dataclass(frozen=True, eq=False)
class PathScorer:
    """A head that scores: queries of one pass are scored together."""

    head: PatchHead

    @property
    def cost(self) -> float:
        return self.head.cost

    def forward(self, queries: Sequence[PathScore]) -> list[DenoisingPaths]:
        """Score trajectories.

        Args:
            queries: The queries.

        Returns:
            The trajectories of each one, under this head.
        """
        # As above, in one step.
        whole = [torch.cat(parts).double() for parts in zip(*queries, strict=True)]
        return _parted(score_paths(self.head.step_law, *whole), queries)


def _parted(
    paths: DenoisingPaths, queries: Sequence[PathDraw] | Sequence[PathScore]
) -> list[DenoisingPaths]:
    """The trajectories of each query."""
    out = list[DenoisingPaths]()
    begin = 0
    for query in queries:
        stop = begin + len(query.state_NH)
        out.append(paths.some_paths(slice(begin, stop)))
        begin = stop
    return out


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[PatchHead, ...]:
    """Make small ones for the contracts.

    Args:
        vocab: The target's vocabulary.
        width: Width of the target's states.
        draft_width: Width of the draft model's.

    Returns:
        One with random weights for each width, of pictures of six patches of two pixels.
    """
    # The last token of a toy is its end.
    levels = max(2, vocab.size - 1)
    out = list[PatchHead]()
    # Where both models have one width, one head serves both.
    for seed, states in enumerate(dict.fromkeys((width, draft_width))):
        shape = DenoisingShape(2, states, 8, 1, 3)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            network = DenoisingHead(shape)
            tensors = {name: t.detach().clone() for name, t in network.state_dict().items()}
        # A toy's states are whole numbers, of which the first says what stands there.
        tensors["embed.weight"] = torch.zeros(states, 2)
        tensors["embed.weight"][0] = torch.tensor([2.0, 3.0])
        tensors["embed.bias"] = torch.zeros(states)
        out.append(PatchHead(vocab, shape, levels, 6, torch.zeros(states), tensors))
    return tuple(out)


def save(path: str | Path, head: PatchHead, about: Mapping[str, Any]) -> None:
    """Write patch_head.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        head: The head.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    s = head.shape
    artefact.save_artefact(
        path,
        KIND,
        {MARK: head.mark_H.float(), **{name: t.float() for name, t in head.tensors.items()}},
        {
            **about,
            "vocab_size": head.vocab.size,
            "tokenizer": head.vocab.tokenizer,
            "levels": head.levels,
            "patches": head.patches,
            "values": s.values,
            "width": s.width,
            "units": s.units,
            "layers": s.layers,
            "steps": s.steps,
        },
    )


def load(path: str | Path) -> PatchHead:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(PatchHeadFields, config, artefact.CONFIG)
        shape = DenoisingShape(c.values, c.width, c.units, c.layers, c.steps)
        # On the meta device a module has shapes and takes no memory.
        with torch.device("meta"):
            wanted = {n: tuple(t.shape) for n, t in DenoisingHead(shape).state_dict().items()}
        whole = artefact.read_float_tensors(tensors, KIND, wanted)
        mark_H = artefact.read_float_tensor(tensors, KIND, MARK, c.width)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return PatchHead(vocab, shape, c.levels, c.patches, mark_H, whole)
