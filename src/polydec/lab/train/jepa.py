"""`polydec train jepa`: an answer embedder of a vision-language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from polydec.base import edge
from polydec.base.errors import FileError, RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.data import held_out
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.image_questions import QUESTIONS
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.scenes import draw_questions, draw_scene, draw_scene_pixels, view_questions
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.jepa import JepaSpec
from polydec.models.formats import text_rows
from polydec.models.formats.images import Image
from polydec.models.learned.kinds import answer_embedder
from polydec.models.learned.kinds.answer_embedder import AnswerEmbedder
from polydec.models.nets.answer_embedding import (
    EmbeddingSizes,
    embedding_tensor_shapes,
    foretell_answers,
    read_answers,
    vectors_of_embeddings,
)
from polydec.models.sessions.sources import open_source
from polydec.models.sessions.vision import is_vision, open_vision
from polydec.models.text.picture_view import DrawnPicture
from polydec.request.loaded import LoadedModel
from polydec.request.loading import load

JUDGED = 64
"""Held-out images that are measured, at most."""


@dataclass(frozen=True, eq=False)
class RightAnswer:
    """A question about an image, with the right answer.

    Attributes:
        image: Number of the image.
        asked: Token ids of the question.
        answer: Those of the answer, with its end.
    """

    image: int
    asked: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AnsweredImages:
    """Images with what is asked of them.

    Attributes:
        vector_NPW: The vectors of each image.
        answers: The questions, those of an image together, in the order of the images.
    """

    vector_NPW: Tensor
    answers: tuple[tuple[RightAnswer, ...], ...]


class EmbeddingStudent(nn.Module):
    """The networks of models/nets/answer_embedding.py with weights that are learned.

    Args:
        sizes: Of the networks.
        language: The target's language model, with which layers and embeddings begin where shapes
            are the same.
        slow: See `JepaSpec`.
        seed: Of the other first weights.
    """

    def __init__(
        self, sizes: EmbeddingSizes, language: TrainableLlama, slow: float, seed: int
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.slow = slow
        # Of its own, so that the global one stays as it was.
        draw = torch.Generator().manual_seed(seed)
        shapes = embedding_tensor_shapes(sizes)
        self.names = tuple(shapes)
        known = language.state_dict()
        first = list[Tensor]()
        for name, shape in shapes.items():
            begun = known.get(name_in_target(name))
            # A layer of another size begins anew; the others still know words.
            if begun is not None and begun.shape == shape:
                first.append(begun.detach().clone())
            # A norm begins as the one that changes nothing.
            elif "norm" in name:
                first.append(torch.ones(shape))
            else:
                first.append(torch.randn(shape, generator=draw) * shape[-1] ** -0.5)
        self.tensors = nn.ParameterList(nn.Parameter(t.clone()) for t in first)
        # What reads answers moves away from here more slowly than its numbers say.
        self._first = {n: t for n, t in zip(self.names, first, strict=True) if n[:7] == "reading"}

    @property
    def named_weights(self) -> Mapping[str, Tensor]:
        """The weights, by name."""
        return {
            name: t + (1 - self.slow) * (self._first[name] - t) if name in self._first else t
            for name, t in zip(self.names, self.tensors, strict=True)
        }


def name_in_target(name: str) -> str:
    """What a tensor of the networks is called in a language model, which it may begin with."""
    # Both networks begin with the same layers, the first ones.
    room, _, rest = name.partition(".")
    if room not in ("foretelling", "reading"):
        return ""
    if rest == "embed":
        return "model.embed_tokens.weight"
    if rest == "norm":
        return "model.norm.weight"
    return f"model.layers.{rest}"


def train_jepa(spec: JepaSpec) -> dict[str, Any]:
    """Train an answer embedder, and save it at spec.out.

    Three parts learn at once. Foretold and read embeddings of the same answer are held together, and
    those of other answers in the step apart, both ways. What turns embeddings into vectors of a
    prompt learns that the target, which is frozen, then writes the answer; nothing of that reaches
    the embeddings. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong, the target reads no images or is outside the
            Llama skeleton, or a step takes more images than there are.
        FileError: The data cannot be read.

    Source: VL-JEPA (2025): what is foretold, the loss, the slow reader of answers, and that the
    decoder learns apart. There the reader is a published text embedder and the decoder a model of its
    own; here the target is both.
    """
    return run_training("jepa", spec, _course)


def _course(spec: JepaSpec) -> TrainingRun:
    # Refused before anything is loaded.
    source = open_source(spec.target)
    if not is_vision(source.config):
        raise RequestError(
            f"target is {spec.target!r}: an answer embedder needs a model that reads images, such as zoo:vision"
        )
    # The language model alone, as training needs gradients through it.
    parted, _ = open_vision(source, "cpu")
    language = from_weights(parted.config, parted.weights)
    # And the whole model, which reads images as it does elsewhere.
    lm = load(spec.target, draft=None)
    learned, unseen = read_answered_images(lm, spec)
    # An image twice in a step would be its own wrong answer.
    if len(learned.answers) < spec.rows:
        raise RequestError(
            f"rows is {spec.rows}: a step asks about so many images, and there are {len(learned.answers)} to learn from"
        )
    sizes = EmbeddingSizes(
        lm.checkpoint.lm.vocab.size,
        language.s.width,
        language.s.head,
        spec.foretelling,
        spec.reading,
        spec.size,
        spec.shown,
    )
    student = EmbeddingStudent(sizes, language, spec.slow, spec.seed)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Decided by the step alone, so that a run that was interrupted goes on as it would have.
        rng = np.random.default_rng([spec.seed, 17, step])
        images = rng.choice(len(learned.answers), spec.rows, replace=False)
        chosen = [draw_answer(learned.answers[int(i)], rng) for i in images]
        apart, nats = embedding_losses(student, language, learned.vector_NPW, chosen, spec.heat)
        return apart + nats, len(chosen)

    @torch.no_grad()
    def measure_result() -> Mapping[str, Any]:
        rng = np.random.default_rng([spec.seed, 18])
        chosen = [draw_answer(answers, rng) for answers in unseen.answers[:JUDGED]]
        foretold_BE, read_BE = answer_embeddings(student, unseen.vector_NPW, chosen)
        _, nats = embedding_losses(student, language, unseen.vector_NPW, chosen, spec.heat)
        # The same answer to another question is as right.
        nearest = (foretold_BE @ read_BE.T).argmax(1).tolist()
        right = [chosen[i].answer == one.answer for i, one in zip(nearest, chosen, strict=True)]
        return {
            "parameters": sum(p.numel() for p in student.parameters()),
            "images": len(learned.answers),
            "among": len(chosen),
            "retrieved": sum(right) / len(right),
            "held_out_nats": float(nats),
            "out": spec.out,
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the embedder as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        # As they act: what moves slowly is saved where it is.
        weights = {name: t.detach() for name, t in student.named_weights.items()}
        vocab = TokenVocabulary(sizes.vocab, frozenset(), source.fingerprint)
        answer_embedder.save(out, AnswerEmbedder(vocab, sizes, weights), {"target": spec.target})

    tokens = torch.tensor([x for of in learned.answers for one in of for x in one.answer])
    return TrainingRun(
        student,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, decay=1.0, log_every=50),
        run_identity(spec, answers=tensor_digest(tokens)),
        save_result,
        measure_result,
    )


def draw_answer(answers: Sequence[RightAnswer], rng: np.random.Generator) -> RightAnswer:
    """Draw one question of an image.

    Args:
        answers: The questions of the image.
        rng: Decides; it is advanced.

    Returns:
        The question with its answer.
    """
    return answers[int(rng.integers(len(answers)))]


def padded_ids(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids of texts side by side, and which of them are there, both ``[B, T]``."""
    id_BT = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    # Which places are text, as id 0 is a token, too.
    lengths = torch.tensor([len(text) for text in texts])
    return id_BT, torch.arange(id_BT.shape[1]) < lengths[:, None]


def answer_embeddings(
    student: EmbeddingStudent, vector_NPW: Tensor, chosen: Sequence[RightAnswer]
) -> tuple[Tensor, Tensor]:
    """Foretell and read the embeddings of answers.

    Args:
        student: The networks.
        vector_NPW: Vectors of all images.
        chosen: Questions with answers.

    Returns:
        Those that are foretold and those that are read, ``[B, size]`` each.
    """
    # Made once: both networks read the same weights.
    w = student.named_weights
    image_BPW = vector_NPW[[one.image for one in chosen]]
    foretold_BE = foretell_answers(
        student.sizes, w, image_BPW, *padded_ids([one.asked for one in chosen])
    )
    read_BE = read_answers(student.sizes, w, *padded_ids([one.answer for one in chosen]))
    return foretold_BE, read_BE


def embedding_losses(
    student: EmbeddingStudent,
    language: TrainableLlama,
    vector_NPW: Tensor,
    chosen: Sequence[RightAnswer],
    heat: float,
) -> tuple[Tensor, Tensor]:
    """The two losses of a step.

    Args:
        student: The networks.
        language: The target's language model, which is not trained.
        vector_NPW: Vectors of all images.
        chosen: Questions with answers.
        heat: See `JepaSpec`.

    Returns:
        Nats of the right answer among those of the step, both ways together; and nats a token of the
        answers that the target writes from foretold embeddings.
    """
    foretold_BE, read_BE = answer_embeddings(student, vector_NPW, chosen)
    apart = contrastive_loss(foretold_BE, read_BE, [one.answer for one in chosen], heat)
    # Put into words by itself: what is foretold does not bend to be told.
    shown_BKW = vectors_of_embeddings(student.sizes, student.named_weights, foretold_BE.detach())
    return apart, answer_nats(language, shown_BKW, chosen)


def contrastive_loss(
    query_BE: Tensor, answer_BE: Tensor, answers: Sequence[Sequence[int]], heat: float
) -> Tensor:
    """Hold embeddings of pairs together, and those of other pairs of the step apart (InfoNCE).

    Args:
        query_BE: Embeddings of length 1.
        answer_BE: Those of what belongs to each.
        answers: What these are made of: an equal answer to another query is no wrong one, and is
            left out.
        heat: What cosines are divided by.

    Returns:
        Nats of the right answer among those of the step, and of the right query, their mean.
    """
    alike_BB = query_BE @ answer_BE.T / heat
    count = len(answers)
    same_BB = torch.tensor(
        [[i != j and answers[i] == answers[j] for j in range(count)] for i in range(count)]
    )
    alike_BB = alike_BB.masked_fill(same_BB, float("-inf"))
    own_B = torch.arange(count)
    return (F.cross_entropy(alike_BB, own_B) + F.cross_entropy(alike_BB.T, own_B)) / 2


def answer_nats(
    language: TrainableLlama, shown_BKW: Tensor, chosen: Sequence[RightAnswer]
) -> Tensor:
    """Nats a token of answers behind vectors and questions.

    Args:
        language: The model that writes.
        shown_BKW: Vectors that stand before each question.
        chosen: Questions with answers.

    Returns:
        A scalar.
    """
    # Question and answer in one row, as the model will write them.
    id_BT, _ = padded_ids([(*one.asked, *one.answer) for one in chosen])
    right_BT = torch.full_like(id_BT, -100)
    for row_T, one in zip(right_BT, chosen, strict=True):
        # Each place tells the token behind it.
        begin = len(one.asked) - 1
        row_T[begin : begin + len(one.answer)] = torch.tensor(one.answer)
    model = language.model
    x_BSW = torch.cat([shown_BKW, model.embed_tokens(id_BT)], 1)
    cos_SD = model.cos[: x_BSW.shape[1]]
    sin_SD = model.sin[: x_BSW.shape[1]]
    # What fills rows up stands behind them, where nothing before it looks.
    for layer in model.layers:
        x_BSW = layer(x_BSW, cos_SD, sin_SD)
    # Nothing is asked behind a vector.
    state_BTW = model.norm(x_BSW[:, shown_BKW.shape[1] :])
    counts = right_BT >= 0
    return F.cross_entropy(language.token_logits(state_BTW[counts]), right_BT[counts])


def read_answered_images(lm: LoadedModel, spec: JepaSpec) -> tuple[AnsweredImages, AnsweredImages]:
    """What a training learns from, and what is held out.

    Args:
        lm: The target, whose tower reads the images.
        spec: The training; data, each and seed are read.

    Returns:
        Both.

    Raises:
        FileError: The data cannot be read.
    """
    sides = list[AnsweredImages]()
    # By scene or by file name, so that no image is on both sides.
    for unseen in (False, True):
        if spec.data is None:
            told = draw_answered_scenes(JUDGED if unseen else spec.each, spec.seed, unseen=unseen)
        else:
            told = read_answer_folder(spec.data, unseen=unseen)
        sides.append(_answered_images(lm, told))
    return sides[0], sides[1]


def draw_answered_scenes(
    count: int, seed: int, *, unseen: bool
) -> list[tuple[Image, list[tuple[str, str]]]]:
    """Draw scenes, with questions of each kind and their answers.

    Args:
        count: Scenes.
        seed: Names them.
        unseen: Whether they are held out.

    Returns:
        Images, and of each the questions with answers.
    """
    # Other scenes than those that the target itself learned with this seed.
    rng = np.random.default_rng([seed, 31, unseen])
    out = list[tuple[Image, list[tuple[str, str]]]]()
    for _ in range(count):
        scene = draw_scene(rng, unseen=unseen)
        image = Image(DrawnPicture(draw_scene_pixels(scene, rng)).png_file)
        # Captions of three kinds among them: a stream is mostly asked for those.
        asked = (*draw_questions(scene, rng), *view_questions(scene))
        out.append((image, [(question.asked, question.answer) for question in asked]))
    return out


def read_answer_folder(folder: str, *, unseen: bool) -> list[tuple[Image, list[tuple[str, str]]]]:
    """Read a folder of images with questions.jsonl: rows of `prompt`, `answer` and `image`.

    Args:
        folder: The folder.
        unseen: Whether images are wanted that are held out (by their names), else all others.

    Returns:
        Images, and of each the questions with answers.

    Raises:
        FileError: A row is malformed, or there is no such image.
    """
    root = Path(edge.path_text(folder, "data"))
    found = dict[str, list[tuple[str, str]]]()
    for where, row in text_rows.read_json_lines(root / QUESTIONS):
        for name in ("prompt", "answer", "image"):
            if not isinstance(row.get(name), str) or not row[name]:
                raise FileError(
                    f"{where} has no {name}: it must be a text of at least one character"
                )
        # A name must not lead out of its folder.
        if Path(row["image"]).name != row["image"]:
            raise FileError(
                f"{where} has the image {row['image']!r:.60}: it must be a file of the folder"
            )
        if held_out(row["image"]) == unseen:
            pair = edge.whole_text(row["prompt"], where), edge.whole_text(row["answer"], where)
            found.setdefault(row["image"], []).append(pair)
    if len(found) < 2:
        part = "held out" if unseen else "to learn from"
        raise FileError(
            edge.error_sentence(
                f"data is {folder!r}: fewer than two images of its {QUESTIONS} are {part} (of ten seven are learned from and "
                "three held out, by the SHA-1 of their names): give more"
            )
        )
    return [(Image(root / name), asked) for name, asked in found.items()]


def _answered_images(
    lm: LoadedModel, told: Sequence[tuple[Image, Sequence[tuple[str, str]]]]
) -> AnsweredImages:
    """Read images by the target's tower, and encode what is asked and answered."""
    vision = lm.checkpoint.vision
    assert vision is not None, "checked with the target"
    # The end is part of an answer: it tells a short one from the beginning of a long one.
    end = min(lm.checkpoint.lm.vocab.eos)
    vectors = list[Tensor]()
    answers = list[tuple[RightAnswer, ...]]()
    for at, (image, asked) in enumerate(told):
        vectors.append(vision.tower.image_vectors(vision.decode_image(image)).detach().cpu())
        # They are stacked, and a step has images of one size.
        if vectors[-1].shape != vectors[0].shape:
            raise RequestError(
                f"data has images of {len(vectors[0])} and of {len(vectors[-1])} vectors: they must have as many"
            )
        answers.append(
            tuple(
                RightAnswer(
                    at,
                    tuple(lm.encoder.encode_prompt(question)),
                    (*lm.checkpoint.text.encode(answer, special=False), end),
                )
                for question, answer in asked
            )
        )
    return AnsweredImages(torch.stack(vectors).float(), tuple(answers))
