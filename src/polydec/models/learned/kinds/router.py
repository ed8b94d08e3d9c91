"""A router on a draft model's own states: would the target write a better step than the one that ends here?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.learned import artefact
from polydec.models.learned.kinds import step_reward
from polydec.models.learned.kinds.step_reward import StepReward

KIND = artefact.ArtefactKind("router", "router", "router.safetensors", "probe --recipe router")


@dataclass(frozen=True, eq=False)
class DraftStateRouter:
    """head: of the form of a process reward model's, on the state of the draft model behind a step's last token."""

    called: ClassVar[str] = "a router"
    kind: ClassVar[str] = "router"
    made_by: ClassVar[str] = KIND.training_command

    head: StepReward

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for this pair of models.

        Args:
            target: The model that it is to serve.
            draft: The draft model, whose states it reads.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: There is no draft model, or its states have another width.
        """
        if draft is None:
            raise FileError("the router reads a draft model's states: name one (--draft)")
        target.vocab.require_same(self.head.vocab, "the target of the router")
        draft.vocab.require_same(self.head.vocab, "the draft of the router")
        artefact.require_width(draft, self.head.width, "routers")

    def success_chance(self, hidden_H: Tensor) -> float:
        """0 to 1, that the target's step would be the better one."""
        return self.head.success_chance(hidden_H)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[DraftStateRouter, ...]:
    """Make random ones for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width of the target's states; not read.
        draft_width: Width of the draft model's states, which it reads.

    Returns:
        One router.
    """
    return tuple(
        DraftStateRouter(reward) for reward in step_reward.examples(vocab, draft_width, draft_width)
    )


def save(path: str | Path, router: DraftStateRouter, about: Mapping[str, Any]) -> None:
    """Write router.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        router: The router.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    step_reward.save(path, router.head, about, KIND)


def load(path: str | Path) -> DraftStateRouter:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    return DraftStateRouter(step_reward.load(path, KIND))
