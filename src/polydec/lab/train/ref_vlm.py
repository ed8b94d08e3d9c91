"""`polydec train ref-vlm`: a small vision-language model that answers in triplets, and what decodes boxes and masks of their
states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.scene_masks import patch_mask
from polydec.lab.train.scene_triplets import (
    MARKS,
    UNITS,
    WORDS,
    TripletQuestion,
    draw_triplet_questions,
    part_box,
)
from polydec.lab.train.scenes import SIDE, draw_scene, draw_scene_pixels
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.ref_vlm import RefVlmSpec
from polydec.lab.train.stamp import (
    dice_loss,
    grown_tensors,
    mask_overlaps,
    scene_model_sizes,
    scene_model_words,
)
from polydec.lab.train.vision import (
    MARKS as SCENE_MARKS,
)
from polydec.lab.train.vision import (
    PATCH,
    PATCHES,
    UNKNOWN,
    QuestionRows,
    SceneExample,
    TrainableLlava,
    example_pixels,
    pack_questions,
    published_files,
    save_llava,
)
from polydec.laws.constraints.triplets import REFERENCE
from polydec.models.learned.kinds import unit_decoders
from polydec.models.learned.kinds.unit_decoders import UnitDecoders, UnitNetwork
from polydec.models.sessions import sources

JUDGED = 128
"""Held-out scenes that are measured."""
SPACE = "\u2581"
"""Stands for the space before a word in the name of its token."""


@dataclass(frozen=True, eq=False)
class TripletExample:
    """A picture, and what is asked of it.

    Attributes:
        example: The picture with its questions and answers.
        questions: What the answers refer to.
    """

    example: SceneExample
    questions: tuple[TripletQuestion, ...]


@dataclass(frozen=True, eq=False)
class ReferenceRows:
    """The references of some pictures' answers, in the order of rows and places.

    Attributes:
        picture_R: Which picture each is about.
        boxed_R: Whether its unit is a box; else it is a mask.
        box_R4: Left, upper, right and lower side of its thing, as shares of the picture's.
        mask_RN: 1 where a patch belongs to its thing, else 0.
    """

    picture_R: Tensor
    boxed_R: Tensor
    box_R4: Tensor
    mask_RN: Tensor


class ReferringLlava(nn.Module):
    """A vision-language model, and what decodes boxes and masks of its states."""

    def __init__(self, llava: TrainableLlava, width: int, spec: RefVlmSpec) -> None:
        super().__init__()
        self.llava = llava
        self.units = UnitNetwork(width, PATCHES, spec.inner, spec.seed)

    def forward(self, pixels_BCHW: Tensor, rows: QuestionRows) -> tuple[Tensor, Tensor]:
        """States behind each token of questions and answers.

        Args:
            pixels_BCHW: The pictures.
            rows: What stands behind them.

        Returns:
            States that are ready for the head of the language model, ``[B, T, width]``, and the vectors of the
            pictures, ``[B, PATCHES, width]``.
        """
        llava = self.llava
        image_BPH = llava.image_vectors(llava.tower(pixels_BCHW))
        entered_BTH = llava.language.model.embed_tokens(rows.token_BT)
        state_BTH = llava.states_behind(image_BPH, entered_BTH, rows.position_BT, rows.seen_BTT)
        return state_BTH, image_BPH


def train_ref_vlm(spec: RefVlmSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads, with the decoders in a folder of it.

    Scenes whose caption has a `hash_bucket` of 7 to 9 are held out and measured. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong, or the target is no model of `train vision`.
        FileError: The target cannot be read.

    Source: "REF-VLM: triplet-based referring paradigm for unified visual decoding" (2025); one stage in place of
    three, and all weights are trained, on scenes that are drawn.
    """
    return run_training("ref-vlm", spec, _course)


def _course(spec: RefVlmSpec) -> TrainingRun:
    # Read as it lies there: nothing of the target itself is written.
    source = sources.open_source(spec.target)
    own = scene_model_words(source, spec.target)
    if REFERENCE in own:
        raise RequestError(
            f"target is {spec.target!r}: it answers in triplets already, so begin with another"
        )
    # Another training may have taught some of these words.
    words = tuple(dict.fromkeys((*own, *MARKS, *WORDS)))
    sizes, shape = scene_model_sizes(source.config, spec.out, spec.seed, len(words))
    network = ReferringLlava(TrainableLlava(sizes, shape), shape.width, spec)
    network.llava.read_published(grown_tensors(source, len(words), spec.seed))
    # A word is a token, so its number is its id.
    ids = {word: at for at, word in enumerate(words)}

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = np.random.default_rng([spec.seed, 41, step])
        examples = [draw_triplet_example(rng, unseen=False) for _ in range(spec.rows)]
        return triplet_training_loss(network, examples, ids, spec), spec.rows

    def measure_result() -> Mapping[str, Any]:
        # Other draws than any step's, so that no scene is met twice by design.
        rng = np.random.default_rng([spec.seed, 42])
        unseen = [draw_triplet_example(rng, unseen=True) for _ in range(JUDGED)]
        right, overlap = measure_triplets(network, unseen, ids)
        return {
            "parameters": sum(t.numel() for t in network.llava.published_tensors().values()),
            "held_out_right": right,
            "held_out_overlap": overlap,
            "out": spec.out,
        }

    def save_at(at: Path, result: Mapping[str, Any]) -> None:
        """Write the model, and the decoders in a folder of it.

        Args:
            at: Directory to write.
            result: What was measured; the overlap goes into the decoders' files.
        """
        content = {
            **published_files(sizes, shape, words),
            "tokenizer.json": json.loads(triplet_tokenizer(words).to_str()),
        }
        save_llava(at, network.llava, content)
        # The decoders belong to the model as it was written, tokenizer and all.
        vocab = TokenVocabulary(len(words), frozenset(), sources.open_source(str(at)).fingerprint)
        side = SIDE // PATCH
        units = UnitDecoders(vocab, side, side, PATCH, network.units)
        unit_decoders.save(at / "units", units, {"held_out_overlap": result["held_out_overlap"]})

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, muon=spec.muon),
        run_identity(spec),
        save_at,
        measure_result,
        deep=network.llava.layer_matrices if spec.muon else (),
    )


def triplet_tokenizer(words: Sequence[str]) -> Tokenizer:
    """A tokenizer of which every word is a token that brings its space along, and every mark one that writes what the format
    has in its place.

    Args:
        words: The words of a model, those of the format among them.

    Returns:
        The tokenizer. It spells token by token, as a grammar asks for.
    """
    special = set(SCENE_MARKS)
    # Control tokens and marks of the format write no space.
    names = [word if word in special else MARKS.get(word, f"{SPACE}{word}") for word in words]
    vocab = {name: at for at, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    plain = normalizers.Replace(Regex("[^a-z0-9]+"), " ")
    tokenizer.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [normalizers.Lowercase(), plain, normalizers.Strip()]
    )
    # A word takes the space before it along, so that answers are spelled token by token.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in SCENE_MARKS]
    )
    tokenizer.add_tokens([AddedToken(MARKS[word], normalized=False) for word in MARKS])
    return tokenizer


def draw_triplet_example(rng: np.random.Generator, *, unseen: bool) -> TripletExample:
    """Draw a scene, and ask for boxes and masks of it in all ways.

    Args:
        rng: Decides; it is advanced.
        unseen: Whether the scene is one of those that are held out.

    Returns:
        The picture and the questions.
    """
    # The paper and the questions are drawn behind the scene, from the same stream.
    scene = draw_scene(rng, unseen=unseen)
    pixels = draw_scene_pixels(scene, rng)
    questions = draw_triplet_questions(scene, rng)
    # The model learns words alone; what they refer to stands beside them.
    asked = tuple(one.question for one in questions)
    return TripletExample(SceneExample(scene, pixels, asked), questions)


def reference_rows(examples: Sequence[TripletExample]) -> ReferenceRows:
    """What is right for each reference of some answers, in their order."""
    found = [
        (at, unit, part)
        for at, example in enumerate(examples)
        for question in example.questions
        for unit, part in question.reference_targets
    ]
    return ReferenceRows(
        torch.tensor([at for at, _, _ in found]),
        torch.tensor([unit == "box" for _, unit, _ in found]),
        torch.tensor([part_box(part) for _, _, part in found]),
        torch.from_numpy(
            np.array([patch_mask((part,), PATCH).flatten() for _, _, part in found], np.float32)
        ),
    )


def triplet_training_loss(
    network: ReferringLlava,
    examples: Sequence[TripletExample],
    ids: Mapping[str, int],
    spec: RefVlmSpec,
) -> Tensor:
    """How badly a model tells answers, and what is decoded of their references.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.
        spec: Options; the weights of the losses are read.

    Returns:
        Nats a token of an answer, and of boxes and masks the weighted losses.
    """
    pictures = [one.example for one in examples]
    rows = pack_questions(pictures, ids)
    state_BTH, image_BPH = network(example_pixels(pictures), rows)
    # Only answers are learned, not what they answer.
    asked_BT = rows.right_BT >= 0
    logits_NV = network.llava.language.token_logits(state_BTH[asked_BT])
    loss = F.cross_entropy(logits_NV, rows.right_BT[asked_BT])
    # States where references are read, row by row.
    state_RH = state_BTH[rows.token_BT == ids[REFERENCE]]
    right = reference_rows(examples)
    image_RPH = image_BPH[right.picture_R]
    boxed_R = right.boxed_R
    # A step may hold references of one unit alone, and a mean over none is no number.
    if boxed_R.any():
        box_R4 = network.units.decode_boxes(state_RH[boxed_R], image_RPH[boxed_R])
        loss = loss + spec.distance * F.l1_loss(box_R4, right.box_R4[boxed_R])
        loss = loss + spec.overlap * generalised_box_loss(box_R4, right.box_R4[boxed_R])
    if not boxed_R.all():
        logit_RN = network.units.decode_masks(state_RH[~boxed_R], image_RPH[~boxed_R])
        right_RN = right.mask_RN[~boxed_R]
        each = F.binary_cross_entropy_with_logits(logit_RN, right_RN)
        loss = loss + spec.cross_entropy * each + spec.dice * dice_loss(logit_RN, right_RN)
    return loss


def box_overlaps(made_R4: Tensor, right_R4: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union of boxes, and the same less the share of their common frame that neither covers.

    Args:
        made_R4: Left, upper, right and lower sides.
        right_R4: Those that are right, of boxes that are not empty.

    Returns:
        Both, each of shape ``[R]``: 0 to 1, and -1 to 1.
    """
    # The inner corners bound what both cover, the outer ones their common frame.
    low = torch.maximum(made_R4[:, :2], right_R4[:, :2])
    high = torch.minimum(made_R4[:, 2:], right_R4[:, 2:])
    both_R = _areas(low, high)
    any_R = (
        _areas(made_R4[:, :2], made_R4[:, 2:]) + _areas(right_R4[:, :2], right_R4[:, 2:]) - both_R
    )
    outer_low = torch.minimum(made_R4[:, :2], right_R4[:, :2])
    outer_high = torch.maximum(made_R4[:, 2:], right_R4[:, 2:])
    frame_R = _areas(outer_low, outer_high)
    share_R = both_R / any_R
    return share_R, share_R - (frame_R - any_R) / frame_R


def _areas(low_R2: Tensor, high_R2: Tensor) -> Tensor:
    """The areas between two corners each; 0 where the second does not lie behind the first."""
    return (high_R2 - low_R2).clamp_min(0.0).prod(1)


def generalised_box_loss(made_R4: Tensor, right_R4: Tensor) -> Tensor:
    """How little boxes overlap those that are right.

    Args:
        made_R4: Left, upper, right and lower sides.
        right_R4: Those that are right, of boxes that are not empty.

    Returns:
        The mean of 1 less the generalised overlap, 0 to 2.

    Source: Rezatofighi et al., "Generalized intersection over union" (2019), the loss.
    """
    return (1 - box_overlaps(made_R4, right_R4)[1]).mean()


@torch.no_grad()
def measure_triplets(
    network: ReferringLlava, examples: Sequence[TripletExample], ids: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, float]]:
    """How much is right, behind the right words.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.

    Returns:
        By kind of question the share of answers of which every word, and the end, is the likeliest; and by
        unit the mean overlap (intersection over union) of what is decoded.
    """
    right = dict[str, list[bool]]()
    overlap: dict[str, list[float]] = {unit: [] for unit in UNITS}
    # In parts, so that memory does not grow with the number of examples.
    for at in range(0, len(examples), 32):
        chosen = examples[at : at + 32]
        pictures = [one.example for one in chosen]
        rows = pack_questions(pictures, ids)
        state_BTH, image_BPH = network(example_pixels(pictures), rows)
        # Behind the right words each, as greedy decoding writes them where all are right.
        best_BT = network.llava.language.token_logits(state_BTH).argmax(-1)
        good_BT = (best_BT == rows.right_BT) | (rows.right_BT < 0)
        for b, picture in enumerate(pictures):
            for k, question in enumerate(picture.questions):
                whole = bool(good_BT[b][rows.question_BT[b] == k].all())
                right.setdefault(question.kind, []).append(whole)
        state_RH = state_BTH[rows.token_BT == ids[REFERENCE]]
        wanted = reference_rows(chosen)
        image_RPH = image_BPH[wanted.picture_R]
        boxed_R = wanted.boxed_R
        box_R4 = network.units.decode_boxes(state_RH[boxed_R], image_RPH[boxed_R])
        overlap["box"] += box_overlaps(box_R4, wanted.box_R4[boxed_R])[0].tolist()
        logit_RN = network.units.decode_masks(state_RH[~boxed_R], image_RPH[~boxed_R])
        overlap["mask"] += mask_overlaps(logit_RN > 0, wanted.mask_RN[~boxed_R] > 0)
    return (
        {kind: float(np.mean(found)) for kind, found in sorted(right.items())},
        {unit: float(np.mean(found)) for unit, found in overlap.items() if found},
    )
