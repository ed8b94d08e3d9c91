"""Soft probes: rows that ride behind a token in the target's own pass and come out as guesses of what follows (PPD, Hidden
Transfer)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import ProbeFields

KIND = artefact.ArtefactKind("probes", "probes", "probes.safetensors", "probes")


@dataclass(frozen=True, eq=False)
class SoftProbes:
    """Probe j, from 0, stands j + 1 positions behind its token; what leaves the target's last layer there stands for the state
    of the true token.

    bias_PH: what enters of each probe, first of all probes of the first copy, then of the second; maps: of each a weight
    [H, H], by which the state of its token at that depth is added to that, None: nothing is; enter: of each the index of the
    layer that it enters, none lower than the one before it, above 0 with maps only; vocab: the target's; rates: of each probe,
    how often its token of each rank was right on held-out text; share: passes of the target that a draft costs beside its
    rows; copies: of each probe, that stand in chains of their own and whose logits are averaged (PPD's ensemble tokens).
    """

    called: ClassVar[str] = "soft probes"
    kind: ClassVar[str] = "probes"
    made_by: ClassVar[str] = KIND.training_command

    bias_PH: Tensor
    maps: Sequence[Tensor] | None
    enter: Sequence[int]
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0
    copies: int = 1

    @property
    def depths(self) -> tuple[int, ...]:
        """The layers whose inputs are read, ascending; none without maps."""
        if self.maps is None:
            return ()
        return tuple(sorted({*self.enter}))

    def __len__(self) -> int:
        return len(self.bias_PH) // self.copies

    def copy_probes(self, copy: int) -> SoftProbes:
        """The probes of one copy alone."""
        rows = slice(copy * len(self), (copy + 1) * len(self))
        return replace(self, bias_PH=self.bias_PH[rows], copies=1)

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that they were trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, the target makes no laws of guessed states, or
                it shows fewer layers than the probes enter.
        """
        target.vocab.require_same(self.vocab, "the target of the probes")
        artefact.require_laws(target, self.bias_PH.shape[1], "the probes")
        # Entering layer 0 needs no layer to be shown.
        top = max(self.enter, default=0)
        if top and target.layers <= top:
            raise FileError(
                f"the probes enter layer {top}: this target shows {target.layers or 'none'} of its layers"
            )

    def probe_inputs(self, states: Mapping[int, Tensor | None], count: int) -> Tensor:
        """Make the rows that enter as probes behind some tokens.

        Args:
            states: At each of `depths` the states of the tokens that enter the layer of this index,
                shape ``[N, H]``; read only with maps. None at one of them: the maps add nothing.
            count: Number N of tokens.

        Returns:
            The rows, shape ``[N, copies x probes, H]``.
        """
        # Every token gets the same rows; a view, so nothing is copied.
        bias = self.bias_PH.expand(count, *self.bias_PH.shape)
        known = [states.get(depth) for depth in self.enter]
        # A target that shows no state at one of the layers gets the learned rows alone.
        if self.maps is None or any(x is None for x in known):
            return bias
        moved = [
            linear(x.float(), m) for x, m in zip(known, self.maps, strict=True) if x is not None
        ]
        # With maps a probe follows its token's own state, not only the average one.
        return bias + torch.stack(moved, 1)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[SoftProbes, ...]:
    """Make random ones for tests, of both kinds.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        Probes without maps, with maps that enter layer 1, and without maps in two copies; each has
        two.
    """
    rates = ((0.5, 0.2), (0.4, 0.2))
    bias = torch.arange(2 * width).reshape(2, width).float() % 3  # a toy's states are whole numbers
    return (
        SoftProbes(bias, None, (0, 0), vocab, rates),
        SoftProbes(
            torch.zeros(2, width),
            # One map passes the state on, the other shifts it: both keep whole numbers whole.
            [torch.eye(width), torch.eye(width).roll(1, 0).round()],
            (1, 1),
            vocab,
            rates,
        ),
        SoftProbes(torch.cat([bias, bias.roll(1, 0)]), None, (0, 0), vocab, rates, copies=2),
    )


def save(path: str | Path, probes: SoftProbes, about: Mapping[str, Any]) -> None:
    """Write probes.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        probes: The probes.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    if probes.maps is None:
        maps = {}
    else:
        maps = {f"{j}.map": t.float() for j, t in enumerate(probes.maps)}
    artefact.save_artefact(
        path,
        KIND,
        {"bias": probes.bias_PH.float(), **maps},
        {
            **about,
            "width": probes.bias_PH.shape[1],
            "maps": probes.maps is not None,
            "enter": list(probes.enter),
            "copies": probes.copies,
            **artefact.said_of(probes),
        },
    )


def load(path: str | Path) -> SoftProbes:
    """The probes in a directory that `save` wrote. Raises FileError where there are none, or they are damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(ProbeFields, config, artefact.CONFIG)
        count = len(c.rates)
        H = c.width
        # an older file has one layer for all
        if isinstance(c.enter, int):
            enter = (c.enter,) * count
        else:
            enter = tuple(c.enter)
        if any(enter) and not c.maps:
            raise FileError(f"enter is {c.enter}: probes without maps enter the first layer")
        if len(enter) != count or list(enter) != sorted(enter):
            raise FileError(f"enter is {c.enter}: it must have {count} layers that never fall")
        if c.copies > 1 and c.maps:
            raise FileError(f"copies is {c.copies}: probes with maps have one copy")
        if c.maps:
            maps = [artefact.read_float_tensor(t, KIND, f"{j}.map", H, H) for j in range(count)]
        else:
            maps = None
        bias_PH = artefact.read_float_tensor(t, KIND, "bias", c.copies * count, H)
        return SoftProbes(bias_PH, maps, enter, artefact.vocab_of(c), c.rates, c.share, c.copies)
