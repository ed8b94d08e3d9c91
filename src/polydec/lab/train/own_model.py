"""A model of one's own that learns to read vectors in the place of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from polydec.base.errors import RequestError
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.exits import copy_with_vocab
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files

SLOWER = 10
"""A model that is trained already takes one such part of the learning rate of a new one."""


@dataclass(frozen=True, eq=False)
class OwnContextModel:
    """A checkpoint, with its tokenizer and tokens for the marks that a training needs.

    Attributes:
        network: The model, without gradients.
        tokenizer: Its tokenizer; new marks stand behind all other tokens.
        unwritten: Marks that no answer holds.
    """

    network: TrainableLlama
    tokenizer: Tokenizer
    unwritten: tuple[str, ...] = ()

    @staticmethod
    def load_own(
        spec: ContextSpec,
        marks: Sequence[str] = (),
        unwritten: Sequence[str] = (),
        *,
        stays: bool = False,
    ) -> OwnContextModel:
        """Load the model of a spec.

        Args:
            spec: Options; `target` names it.
            marks: Special tokens that it gets where it lacks them. Default: none.
            unwritten: Those of the marks that no answer holds. Default: none.
            stays: Whether the model stays as it is, so that it may have a head of its own. Default
                False.

        Returns:
            The model; the rows of new marks begin as the mean of the others.

        Raises:
            RequestError: It is no model of the plain Llama skeleton, or of one that cannot be
                trained here.
        """
        assert spec.target is not None
        # Read as it lies there: nothing of the checkpoint itself is written.
        network = load_directory(spec.target)
        if network.s.experts:
            raise RequestError(
                f"target is {spec.target!r}: it is a mixture of experts, and vectors are trained for models without them"
            )
        if network.lm_head is not None and not stays:
            raise RequestError(
                f"target is {spec.target!r}: it has a head of its own, and vectors are trained for models whose head is their "
                "table of embeddings"
            )
        # Its own tokenizer, with the marks behind all other tokens.
        tokenizer = find_tokenizer(
            LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0, marks
        )
        # Marks of a training are new tokens to a model that was trained without it.
        size = tokenizer.get_vocab_size()
        if size > network.s.vocab:
            network = copy_with_vocab(network, size).requires_grad_(False)
        return OwnContextModel(network.eval(), tokenizer, tuple(unwritten))

    def mark_token(self, mark: str) -> int:
        """The id of a special token. Raises RequestError where the tokenizer lacks it."""
        return mark_id(self.tokenizer, mark)

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, without BEGIN."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def save_own(self, out: Path, network: TrainableLlama) -> None:
        """Save a network with this tokenizer, as a directory that `polydec.load` reads.

        Args:
            out: Directory to write.
            network: The trained network.
        """
        config = network.s.config_content(bos=self.mark_token(BEGIN), eos=self.mark_token(END))
        files = tokenizer_files(self.tokenizer, network.s.context, self.unwritten)
        save_directory(out, network, config, files=files, dtype=torch.float32)


def own_model_schedule(spec: ContextSpec, steps: int | None = None) -> TrainingSchedule:
    """The schedule of a model that is trained further: AdamW alone, at a part of the rate.

    Args:
        spec: Options; the rate is that of a new model.
        steps: Steps; None: those of the spec.

    Returns:
        The schedule.
    """
    count = steps or spec.steps
    return TrainingSchedule(count, spec.rate / SLOWER, log_every=min(20, count))
