"""`polydec train arcana`: adapters by modality and a ladder of queries, for a model of scenes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polydec.base.errors import RequestError
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.lora import write_adapter
from polydec.lab.train.modal_lora import SCALE, add_modal_adapters, modal_parts
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.scenes import SIDE, scene_words
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.arcana import ArcanaSpec
from polydec.lab.train.vision import (
    JUDGED,
    MARKS,
    SCALED,
    QuestionRows,
    asked_answer_loss,
    draw_example,
    measure_answers,
    states_behind_images,
)
from polydec.models.formats import adapters, image_adapter
from polydec.models.formats.llava import LlavaShape, read_llava
from polydec.models.formats.vision import PartedCheckpoint
from polydec.models.nets.llava import LlavaTower, project_states
from polydec.models.nets.query_ladder import QueryLadder, new_ladder_tensors
from polydec.models.sessions.sources import CheckpointFiles, open_source


class ArcanaStudent(nn.Module):
    """A model of scenes with its adapters in training.

    Args:
        parted: The model, which is frozen but for the projector.
        spec: Sizes of the adapters and of the ladder.

    Attributes:
        language: The language model, whose linear maps have adapters.
        image_count: Vectors of an image, those of the ladder included.
    """

    def __init__(self, parted: PartedCheckpoint, spec: ArcanaSpec) -> None:
        super().__init__()
        shape: LlavaShape = parted.shape
        # A list hides it from `parameters`: it is not trained.
        self._tower = [LlavaTower(shape, parted.tower, "cpu")]
        self.image_count = shape.vector_count + spec.queries
        self.language: TrainableLlama = from_weights(parted.config, parted.weights)
        g = generator_for(spec.seed, 0, "adapters")
        add_modal_adapters(self.language, spec.adapter_ranks, self.image_count, spec.dropout, g)
        # Parameters may have no points in their names.
        self.projector = nn.ParameterDict(
            {
                _free_of_points(name): parted.tower[name].float().clone()
                for name in shape.tensor_shapes
                if name.startswith(image_adapter.PROJECTOR)
            }
        )
        tensors = dict[str, Tensor]()
        if spec.queries:
            # As wide inside as outside: the published size is not known.
            sizes = (max(shape.behind), spec.queries, shape.vit.width)
            tensors = new_ladder_tensors(shape.vit, *sizes, g)
        self.rungs = nn.ParameterDict(tensors)

    @property
    def query_ladder(self) -> QueryLadder | None:
        """The ladder as it is now; None: there is none."""
        # A view of the trained tensors: gradients pass through it.
        vit = self._tower[0].shape.vit
        return QueryLadder(vit.heads, vit.eps, dict(self.rungs.items())) if self.rungs else None

    @property
    def projector_tensors(self) -> dict[str, Tensor]:
        """The projector as it is now, by the layout's names."""
        return {name.replace("/", "."): t for name, t in self.projector.items()}

    @torch.no_grad()
    def read_pictures(self, pixels_BCHW: Tensor) -> list[Tensor]:
        """What the tower's layers leave of pictures."""
        # Frozen: what it leaves is all that the trained parts read of a picture.
        return self._tower[0].layer_states(pixels_BCHW)

    def forward(self, states: Sequence[Tensor], rows: QuestionRows) -> Tensor:
        """States behind each token of questions that stand behind an image.

        Args:
            states: What the tower's layers left of the images.
            rows: The questions.

        Returns:
            States that are ready for the head, ``[B, T, width]``.
        """
        # The very function that decoding calls.
        shape = self._tower[0].shape
        vectors = project_states(shape, self.projector_tensors, self.query_ladder, states)
        entered_BTH = self.language.model.embed_tokens(rows.token_BT)
        return states_behind_images(
            self.language, vectors, entered_BTH, rows.position_BT, rows.seen_BTT
        )


def train_arcana(spec: ArcanaSpec) -> dict[str, Any]:
    """Train adapters by modality, a ladder of queries and the projector, and save at spec.out an
    adapter that is a model's name.

    Measured are held-out scenes, as `train_vision` does: the share of answers that are right, and
    nats a token of the right ones. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong, or the target is no model of scenes.
        FileError: The target cannot be read.

    Source: Arcana (2024): both mechanisms, the ratio of the ranks, the scale and the dropout.
    """
    return run_training("arcana", spec, _course)


def _course(spec: ArcanaSpec) -> TrainingRun:
    # What the target cannot be is said before anything of it is read.
    source = open_source(spec.target)
    ids = scene_token_ids(source, spec.target)
    parted = read_llava(source.config, source.weights, source.processor)
    _require_scene_pixels(parted.shape, spec.target)
    network = ArcanaStudent(parted, spec)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = np.random.default_rng([spec.seed, 31, step])
        examples = [draw_example(rng, unseen=False) for _ in range(spec.rows)]
        # Dropout draws from the global generator, which is left as it was.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(generator_for(spec.seed, step, "dropout").initial_seed())
            loss, _ = asked_answer_loss(network.train(), examples, ids)
        return loss, spec.rows

    def measure_result() -> Mapping[str, Any]:
        # The same scenes for every form of a seed, so that forms can be compared.
        rng = np.random.default_rng([spec.seed, 32])
        unseen = [draw_example(rng, unseen=True) for _ in range(JUDGED)]
        rights, nats = measure_answers(network.eval(), unseen, ids)
        return {
            "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
            "held_out_right": rights,
            "held_out_nats": nats,
            "out": spec.out,
        }

    def save_adapter_at(at: Path, result: Mapping[str, Any]) -> None:
        """Write the adapters, the ladder and the projector.

        Args:
            at: Directory to write.
            result: What was measured; it is not used.
        """
        write_adapter(at, *saved_adapter(network, parted, spec))

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, decay=0.95, weight_decay=0.0),
        run_identity(spec),
        save_adapter_at,
        measure_result,
    )


def scene_token_ids(source: CheckpointFiles, name: str) -> dict[str, int]:
    """Token ids of all that is asked about scenes and answered, by word.

    Args:
        source: The files of a model.
        name: What messages call it.

    Returns:
        The ids.

    Raises:
        RequestError: It is no model of `polydec train vision`, or has an adapter for images already.
    """
    if source.config["model_type"] != "llava" or source.images is not None:
        raise RequestError(
            f"target is {name!r:.80}: name a model of `polydec train vision` (such as zoo:vision) without an adapter for images"
        )
    # A word that no token stands for could neither be asked nor answered.
    known = dict[str, int]()
    for word in (*MARKS, *scene_words()):
        token = source.text.tokenizer.token_to_id(word)
        if token is None:
            raise RequestError(
                f"target is {name!r:.80}, which has no token {word!r}: name a model of `polydec train vision`, such as "
                "zoo:vision"
            )
        known[word] = token
    return known


def _require_scene_pixels(shape: LlavaShape, name: str) -> None:
    """Raise RequestError where a tower reads pictures of another size, or in other numbers."""
    if (shape.vit.side, shape.scale) != (SIDE, SCALED):
        raise RequestError(
            f"target is {name!r:.80}, whose tower reads pictures otherwise: name a model of `polydec train vision`, such as "
            "zoo:vision"
        )


def saved_adapter(
    network: ArcanaStudent, parted: PartedCheckpoint, spec: ArcanaSpec
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What is saved of a student.

    Args:
        network: The student.
        parted: The model that it adapts, whose files' names the adapter has.
        spec: Names the model.

    Returns:
        Tensors by name, and the content of the config.
    """
    published = parted.weights.file_names
    # One adapter has no second pair: all rows go through what is saved for words.
    tensors = dict[str, Tensor]()
    for name, part in modal_parts(network.language):
        own = published[f"{name}.weight"].removesuffix(".weight")
        for begins, down, up in zip(
            (image_adapter.TEXT, image_adapter.IMAGE), part.down, part.up, strict=False
        ):
            tensors[begins + own + adapters.DOWN] = down.detach()
            tensors[begins + own + adapters.UP] = up.detach()
    tensors |= {image_adapter.LADDER + name: t.detach() for name, t in network.rungs.items()}
    tensors |= {name: t.detach() for name, t in network.projector_tensors.items()}
    # PEFT knows no such type, and refuses what it would read by half.
    text, image = spec.adapter_ranks
    return tensors, {
        "peft_type": adapters.MODAL,
        "base_model_name_or_path": spec.target,
        # Alpha over the rank is what the product is multiplied by.
        "lora_alpha": SCALE * text,
        "polydec_image_alpha": SCALE * max(1, image),
        "target_modules": sorted({name.rpartition(".")[2] for name, _ in modal_parts(network)}),
    }


def _free_of_points(name: str) -> str:
    return name.replace(".", "/")
