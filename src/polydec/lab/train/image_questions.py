"""Questions, with an image and without one, and what a target answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polydec.base import edge
from polydec.base.errors import FileError, RequestError
from polydec.core.decoder import answer_one
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.data import held_out
from polydec.lab.train.progress import show_count_progress
from polydec.lab.train.scenes import draw_questions, draw_scene, draw_scene_pixels
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.formats import text_rows
from polydec.models.formats.images import Image
from polydec.models.text.picture_view import DrawnPicture
from polydec.request.ask import plan_request
from polydec.request.fields import Ask
from polydec.request.loaded import LoadedModel

QUESTIONS = "questions.jsonl"
LIVE = 32
"""Answers that are written at once."""


@dataclass(frozen=True, eq=False)
class ImageQuestion:
    """Something that is asked.

    Attributes:
        prompt: The question.
        image: What it is about. None: it has no image.
    """

    prompt: str
    image: Image | None = None


@dataclass(frozen=True, eq=False)
class AnsweredQuestion:
    """A question that a target has answered.

    Attributes:
        law: The target's law behind the question's image.
        prompt_ids: Token ids of the question.
        output_ids: Token ids of the answer.
        seen: Whether there is an image.
    """

    law: Target
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    seen: bool


def draw_scene_questions(count: int, seed: int, *, unseen: bool) -> list[ImageQuestion]:
    """Ask about scenes in all ways, each question once with its image and once without.

    Args:
        count: Scenes, at least 1.
        seed: Names the scenes.
        unseen: Whether they are held out.

    Returns:
        The questions, scene by scene.
    """
    # Other scenes than those that the model itself may have been trained on with this seed.
    rng = np.random.default_rng([seed, 21, unseen])
    out = list[ImageQuestion]()
    for _ in range(count):
        # By its caption it may be learned from, or it may not.
        scene = draw_scene(rng, unseen=unseen)
        # One image for all questions: the tower reads it once.
        image = Image(DrawnPicture(draw_scene_pixels(scene, rng)).png_file)
        for question in draw_questions(scene, rng):
            out += [ImageQuestion(question.asked, image), ImageQuestion(question.asked)]
    return out


def read_question_folder(folder: str, *, unseen: bool) -> list[ImageQuestion]:
    """Read a folder of images with questions.jsonl: rows of `prompt` and, for some, `image`.

    Args:
        folder: The folder.
        unseen: Whether rows are wanted that are held out (by the text of both), else all others.

    Returns:
        The questions in the order of the file.

    Raises:
        FileError: A row is malformed, or there is no such row.
    """
    root = Path(edge.path_text(folder, "data"))
    out = list[ImageQuestion]()
    for where, row in text_rows.read_json_lines(root / QUESTIONS):
        prompt = row.get("prompt")
        # Most data sets have texts without images, too: the first stage learns from those.
        name = row.get("image")
        if not isinstance(prompt, str) or not prompt:
            raise FileError(f"{where} has no prompt: it must be a text of at least one character")
        # A name must not lead out of its folder.
        if name is not None and (not isinstance(name, str) or Path(name).name != name):
            raise FileError(f"{where} has the image {name!r:.60}: it must be a file of the folder")
        # By both, as one question may be asked of many images.
        if held_out(f"{prompt}\n{name or ''}") == unseen:
            image = Image(root / name) if name else None
            out.append(ImageQuestion(edge.whole_text(prompt, f"prompt of {where}"), image))
    if not out:
        part = "held out" if unseen else "to learn from"
        raise FileError(
            edge.error_sentence(
                f"data is {folder!r}: no row of its {QUESTIONS} is {part} (of ten seven are learned from and three held "
                "out, by their SHA-1): give more"
            )
        )
    return out


def answer_questions(
    lm: LoadedModel,
    questions: Sequence[ImageQuestion],
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> list[AnsweredQuestion]:
    """Let a target answer questions.

    Args:
        lm: The target.
        questions: The questions.
        max_tokens: Tokens of an answer, at most.
        temperature: Of the sampling, 0 is greedy.
        seed: Seed of the draws; the number of a question is added.

    Returns:
        Those that have an answer, in order.

    Raises:
        RequestError: An image cannot be read, or a question leaves no room for an answer.
    """
    # A question without an image is read by the model as it is.
    law = lm.checkpoint.lm
    shapers = build_shapers(Sampling(temperature=temperature), eos=law.vocab.eos)
    out = list[AnsweredQuestion]()
    with show_count_progress("answering questions") as watch:
        for first in range(0, len(questions), LIVE):
            # Answers that are written side by side share their passes.
            part = questions[first : first + LIVE]
            planned = [
                plan_request(lm, Ask(q.prompt, source=q.image, method="plain")) for q in part
            ]
            # Each image is a law of its own; a question without one has the model's.
            laws = [
                law if plan.encoded.vectors is None else plan.encoded.vectors.prompted_law(law)
                for plan in planned
            ]
            done = run_coroutines(
                [
                    answer_one(
                        # With no draft tokens this is plain decoding, one pass a token.
                        SpeculativeDecoder(
                            ShapedTarget(own, *shapers),
                            NothingDrafter(),
                            MatchVerifier(),
                            FixedPolicy(0),
                        ),
                        Request(plan.request.prompt, max_tokens, seed=seed + first + i),
                    )
                    for i, (plan, own) in enumerate(zip(planned, laws, strict=True))
                ]
            )
            # A target may end at once: there is nothing to learn from that.
            out += [
                AnsweredQuestion(own, plan.request.prompt, result.token_ids, q.image is not None)
                for q, plan, own, result in zip(part, planned, laws, done, strict=True)
                if result.token_ids
            ]
            watch(first + len(part), len(questions))
    return out


def require_both_sorts(answered: Sequence[AnsweredQuestion], least: int) -> None:
    """Check that there are answers of both sorts to learn from.

    Args:
        answered: The answers.
        least: How many of each sort there must be.

    Raises:
        RequestError: There are fewer.
    """
    for seen, called in ((True, "with an image"), (False, "without one")):
        count = sum(one.seen == seen for one in answered)
        if count < least:
            raise RequestError(
                f"data has {count} answered questions {called}: both stages need some, so give at least {least} of each"
            )
