"""Drafters on the states of a vision-language model: what they learn from, their losses and what is
measured, whatever they make of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity
from polydec.lab.train.image_questions import (
    AnsweredQuestion,
    ImageQuestion,
    answer_questions,
    draw_scene_questions,
    read_question_folder,
    require_both_sorts,
)
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample, samples_fingerprint
from polydec.lab.train.specs.image_drafter import ImageDrafterSpec
from polydec.lab.train.states import NODES, RANKS, cost_of
from polydec.lab.train.target_head import TargetHead
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.msd import ImageRowWeights, entries_with_images
from polydec.methods.speculative.loop.protocols import Drafter, TreeGrower
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.state_layer import rms_normalised
from polydec.models.nets.grid_positions import ImageGrid
from polydec.models.sessions.sources import open_source
from polydec.models.sessions.vision import is_vision, open_vision
from polydec.request.loading import load

DEPTH = 5
"""Levels of the trees that are measured."""
WIDTH = 4
"""Paths that each of their levels expands."""
MEASURED = 64
"""Held-out questions of each sort that they are measured on, at most."""


@dataclass(frozen=True, eq=False)
class ImageLesson:
    """An answered question as a drafter learns from it.

    Attributes:
        token_M: Token ids; of an image those that stand for its vectors.
        entry_MH: What entered the target's first layer, ``[M, H]``.
        visual_M: Whether a vector of an image stands there.
        state_NH: The target's state at each place but the last, ``[N, H]``, N = M - 1.
        answer_M: Whether the target wrote the token.
        grids: Images whose rows and columns the target tells.
    """

    token_M: Tensor
    entry_MH: Tensor
    visual_M: Tensor
    state_NH: Tensor
    answer_M: Tensor
    grids: tuple[ImageGrid, ...] = ()


class ImageStudent(nn.Module):
    """The trainable weights of a drafter behind images.

    Args:
        target: The ends of the target's language model: embeddings, norm and head.
        vocab: The target's vocabulary.
    """

    def __init__(self, target: TargetHead, vocab: TokenVocabulary) -> None:
        super().__init__()
        self._target = target
        self._vocab = vocab
        width = target.s.width
        # It begins as the sum of a token's embedding and the state before it.
        self.fuse = nn.Parameter(torch.cat([torch.eye(width), torch.eye(width)], 1))

    def build_artefact(self, rates: Sequence[Sequence[float]] = (), share: float = 0.0) -> Any:
        """The drafter with the weights as they are now.

        Args:
            rates: How often the token of each rank is right, by level. Default: not known.
            share: Cost of a draft, in passes of the target. Default 0.

        Returns:
            The drafter's weights.
        """
        raise NotImplementedError

    def guess_states(
        self, lessons: Sequence[ImageLesson], noise: Sequence[Tensor] = ()
    ) -> list[tuple[Tensor, Tensor]]:
        """Guess the states behind each place of some texts.

        Args:
            lessons: The texts.
            noise: Of each what is added to its states, ``[N, H]``. Default: nothing.

        Returns:
            Of each text the place of every row, -1 for one that stands for no place, ``[R]``, and
            the states of the K places behind it, ``[R, K, H]``.
        """
        raise NotImplementedError

    def text_rows(
        self, model: ImageRowWeights, lessons: Sequence[ImageLesson], noise: Sequence[Tensor]
    ) -> Tensor:
        """What enters the layer for some texts: the very rows that drafting makes.

        Args:
            model: The drafter, of the weights as they are now.
            lessons: The texts.
            noise: As for `guess_states`.

        Returns:
            Shape ``[B, R, H]``, of short texts filled up behind them.
        """
        rows = [
            model.prompt_inputs(
                x.entry_MH, x.visual_M, x.state_NH + noise[i] if noise else x.state_NH
            )
            for i, x in enumerate(lessons)
        ]
        # A layer that sees what is before a place alone: what fills rows up changes none of them.
        return pad_sequence(rows, batch_first=True)

    def state_logits(self, state: Tensor) -> Tensor:
        """The target's logits of states, ``[..., V]``."""
        return self._target.state_logits(state)


@dataclass(frozen=True)
class ImageDrafterKind:
    """A kind of drafter behind images.

    Attributes:
        student: Makes what is trained, of the target and its vocabulary.
        drafter: Drafts with an artefact, by a tree.
        save: Writes an artefact into a directory, with further fields of its config.
    """

    student: Callable[[TargetHead, TokenVocabulary], ImageStudent]
    drafter: Callable[[Any, TreeGrower], Drafter]
    save: Callable[[Path, Any, Mapping[str, Any]], None]


def image_share(step: int, steps: int) -> float:
    """The chance of an answer with an image at a step: 0 up to the middle, then rising to 1 at the
    last.

    Args:
        step: From 0 to steps - 1.
        steps: Steps in all.

    Returns:
        0 to 1.
    """
    return max(0.0, 2.0 * step / max(1, steps - 1) - 1.0)


def choose_lessons(
    lessons: Mapping[bool, Sequence[ImageLesson]],
    rows: int,
    share: float,
    g: torch.Generator,
) -> list[ImageLesson]:
    """Draw the texts of a step.

    Args:
        lessons: Those with an image and those without one.
        rows: How many.
        share: Chance that one has an image.
        g: Decides; it is advanced.

    Returns:
        The texts.
    """
    # Each by itself, so that a step may have both sorts.
    seen_B = torch.rand(rows, generator=g) < share
    return [
        lessons[seen][int(torch.randint(len(lessons[seen]), (), generator=g))]
        for seen in seen_B.tolist()
    ]


def state_noise(lesson: ImageLesson, width: float, g: torch.Generator) -> Tensor:
    """Noise for the states of a text.

    Args:
        lesson: The text.
        width: Of the noise in a text of 512 tokens, above 0; in a shorter one it is so much wider.
        g: Decides; it is advanced.

    Returns:
        Uniform around 0, ``[N, H]``.
    """
    # Uniform between -0.5 and 0.5.
    even_NH = torch.rand(lesson.state_NH.shape, generator=g) - 0.5
    return even_NH * (width * 512 / len(lesson.token_M))


def level_rows(lesson: ImageLesson, place_R: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """Which rows guess a token that the target wrote, as far ahead as a level is.

    Args:
        lesson: The text.
        place_R: The place of every row, -1 for one that stands for no place.
        level: Levels below the root, from 0.

    Returns:
        The rows, and the places of the tokens that they guess there.
    """
    # Behind place t the state of t + 1 is guessed, which makes the law of token t + 2.
    first_R = place_R + 2
    known_R = (place_R >= 0) & (first_R + level < len(lesson.answer_M))
    row = known_R.nonzero().flatten()
    # A draft begins at the first token of an answer, at the earliest.
    row = row[lesson.answer_M[first_R[row]]]
    return row, first_R[row] + level


def drafting_loss(
    student: ImageStudent, lessons: Sequence[ImageLesson], features: float, noise: Sequence[Tensor]
) -> Tensor:
    """The loss of a student: the target's laws of guessed states, and the distance of these.

    Only what the target wrote counts. Levels are added up.

    Args:
        student: The drafter in training.
        lessons: Texts.
        features: Weight of the states' distance.
        noise: See `ImageStudent.guess_states`.

    Returns:
        A scalar.
    """
    guessed = student.guess_states(lessons, noise)
    loss = torch.zeros(())
    for level in range(guessed[0][1].shape[1]):
        made = list[Tensor]()
        true = list[Tensor]()
        for x, (place_R, made_RKH) in zip(lessons, guessed, strict=True):
            row, token = level_rows(x, place_R, level)
            made.append(made_RKH[row, level])
            # The state before a token makes its law.
            true.append(x.state_NH[token - 1])
        # X: all tokens that the target wrote, of all texts.
        made_XH = torch.cat(made)
        # No answer may be so long that the last levels have a token.
        if len(made_XH):
            loss = loss + _level_loss(student, made_XH, torch.cat(true), features)
    return loss


def _level_loss(student: ImageStudent, made_XH: Tensor, true_XH: Tensor, features: float) -> Tensor:
    """The loss of states that were guessed for true ones."""
    # The whole law is learned and not the token alone, as it says more.
    with torch.no_grad():
        truth_XV = student.state_logits(true_XH).softmax(-1)
    laws = F.cross_entropy(student.state_logits(made_XH), truth_XV)
    # The final norm follows: only the direction of a state matters.
    distance = F.smooth_l1_loss(rms_normalised(made_XH), rms_normalised(true_XH))
    return laws + features * distance


@torch.no_grad()
def rank_hit_rates(student: ImageStudent, lessons: Sequence[ImageLesson]) -> list[list[float]]:
    """How often the token of each rank is what the target wrote, behind true states.

    Args:
        student: The drafter.
        lessons: Texts, at least one.

    Returns:
        Of each level RANKS shares, fewer in a smaller vocabulary; levels that no text reaches are
        left out.
    """
    guessed = [student.guess_states([x])[0] for x in lessons]
    out = list[list[float]]()
    for level in range(guessed[0][1].shape[1]):
        hits = list[Tensor]()
        for x, (place_R, made_RKH) in zip(lessons, guessed, strict=True):
            row, token = level_rows(x, place_R, level)
            # A tree takes ranks, so the hits of each count and not the first one's alone.
            logits_AV = student.state_logits(made_RKH[row, level])
            ranks = min(RANKS, logits_AV.shape[-1])
            hits.append(logits_AV.topk(ranks).indices == x.token_M[token, None])
        every = torch.cat(hits).float()
        if len(every):
            out.append([round(rate, 4) for rate in every.mean(0).tolist()])
    return out


def read_lesson(one: AnsweredQuestion, target: TargetHead) -> ImageLesson:
    """Let the target read a question with its answer, image and all.

    Args:
        one: The answered question.
        target: The ends of its language model, for the embeddings of words.

    Returns:
        What a drafter learns from.

    Raises:
        RequestError: The target shows no hidden states.
    """
    # The answer stands behind the prompt, whose images the law knows.
    ids = (*one.prompt_ids, *one.output_ids)
    session = one.law.open_session(ids)
    want = ScoreRequest(law=RowDetail.NOTHING, hidden=True, prompt=True)
    # One prefill gives the states of all places; no law is computed.
    scores = run_coroutines([session.prefill_prompt(want)])[0]
    vectors = session.text_vectors()
    grids = tuple(session.text_grids())
    session.close()
    if scores.hidden_NH is None:
        raise RequestError("target shows no hidden states: nothing can be trained on them")
    # Words enter by their embeddings, and vectors of images as they are.
    token_M = torch.tensor(ids)
    entry_MH, visual_M = entries_with_images(target.embed_tokens(token_M), vectors)
    answer_M = torch.arange(len(ids)) >= len(one.prompt_ids)
    return ImageLesson(
        token_M, entry_MH, visual_M, scores.hidden_NH.float().clone(), answer_M, grids
    )


def tokens_per_pass(
    answered: Sequence[AnsweredQuestion], drafter: Drafter, nodes: int, max_tokens: int
) -> float:
    """Tokens a pass of greedy decoding with a drafter.

    Args:
        answered: Questions, whose answers are written anew; at least one.
        drafter: The drafter, with its tree, which is fed whole: what feeding less saves hangs on a
            machine's costs.
        nodes: Tokens of a tree.
        max_tokens: Tokens of an answer, at most.

    Returns:
        Committed tokens over passes of the target.
    """
    results = run_coroutines(
        [
            answer_one(
                SpeculativeDecoder(
                    ShapedTarget(one.law, GreedyRule()),
                    drafter,
                    MatchVerifier(),
                    FixedPolicy(DEPTH, nodes),
                ),
                Request(one.prompt_ids, max_tokens),
            )
            for one in answered
        ]
    )
    return round(sum(len(r.token_ids) for r in results) / sum(r.stats.passes for r in results), 3)


def _questions(spec: ImageDrafterSpec, *, unseen: bool) -> list[ImageQuestion]:
    """What is asked: of the folder, or about scenes, of which a third as many are held out."""
    if spec.data is not None:
        return read_question_folder(spec.data, unseen=unseen)
    count = max(1, spec.each // 3) if unseen else spec.each
    return draw_scene_questions(count, spec.seed, unseen=unseen)


def image_drafting_course(spec: ImageDrafterSpec, kind: ImageDrafterKind) -> TrainingRun:
    """Prepare the training of a drafter behind images.

    The target answers the questions itself. The first half of the steps learns from answers without
    images; in the second the chance of an answer with one grows from 0 to 1. Measured on held-out
    questions are the hits of each rank behind true states, and tokens a pass of greedy decoding,
    with images and without.

    Args:
        spec: What is learned from, and how.
        kind: What is trained.

    Returns:
        The training.

    Raises:
        RequestError: The target reads no images or is of a kind that is not trained for, or there are too
            few questions.
        FileError: The questions cannot be read.
    """
    source = open_source(spec.target)
    if not is_vision(source.config):
        raise RequestError(
            f"target is {spec.target!r}, which reads no images: name a vision-language model, or train an eagle for it"
        )
    # Norm, head and embeddings of the language model alone; the tower stays with `lm`.
    text, _ = open_vision(source, "cpu")
    target = TargetHead.of_weights(text.config, text.weights)
    lm = load(spec.target, draft=None, threads=torch.get_num_threads())
    said = {
        "max_tokens": spec.max_tokens,
        "temperature": spec.temperature,
        "seed": spec.seed,
    }
    answered = answer_questions(lm, _questions(spec, unseen=False), **said)
    unseen = answer_questions(lm, _questions(spec, unseen=True), **said)
    # One of eight is set aside, so each sort leaves some to learn from.
    require_both_sorts(answered, 8)
    # Every eighth answer of a sort only tells how often each rank is right.
    lessons: dict[bool, list[ImageLesson]] = {True: [], False: []}
    aside: dict[bool, list[ImageLesson]] = {True: [], False: []}
    counts = {True: 0, False: 0}
    # Each sort is counted by itself, or one of them might have none aside.
    for one in answered:
        where = lessons if counts[one.seen] % 8 else aside
        where[one.seen].append(read_lesson(one, target))
        counts[one.seen] += 1
    student = kind.student(target, lm.checkpoint.lm.vocab)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Of the step alone, so that a run that goes on draws the same.
        g = generator_for(spec.seed, step, "rows")
        share = image_share(step, spec.steps) if spec.staged else 0.5
        chosen = choose_lessons(lessons, spec.rows, share, g)
        noise = [state_noise(x, spec.noise, g) for x in chosen] if spec.noise else []
        loss = drafting_loss(student, chosen, spec.features, noise)
        return loss, sum(len(x.token_M) for x in chosen)

    samples = [TrainingSample(one.prompt_ids, one.output_ids) for one in answered]

    @cache
    def known_rates() -> list[list[float]]:
        """The hit rates on answers with images that are set aside, by the final weights."""
        return rank_hit_rates(student, aside[True])

    def measure_result() -> dict[str, Any]:
        # The recipe's own tree.
        drafter = kind.drafter(student.build_artefact(known_rates()), BestFirstTree(WIDTH))
        # What a draft costs hangs little on what stands before it.
        few = [TrainingSample(one.prompt_ids, one.output_ids) for one in unseen[:4]]
        # What is won behind images may be lost on words: both are told.
        sorts = {"with images": True, "without": False}
        held = {
            name: [one for one in unseen if one.seen == seen][:MEASURED]
            for name, seen in sorts.items()
        }
        return {
            "parameters": sum(p.numel() for p in student.parameters()),
            "answers": len(answered),
            "share": cost_of(lm.checkpoint.lm, drafter, few, NODES[-1]),
            "held_out": {
                name: rank_hit_rates(student, [read_lesson(one, target) for one in chosen])
                for name, chosen in held.items()
                if chosen
            },
            "tokens_per_pass": {
                name: tokens_per_pass(chosen, drafter, NODES[-1], spec.max_tokens)
                for name, chosen in held.items()
                if chosen
            },
            "out": spec.out,
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the drafter as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; the cost of a draft goes into the artefact.
        """
        about = {"target": spec.target}
        kind.save(out, student.build_artefact(known_rates(), result["share"]), about)

    # One cosine from the warmup to the end.
    schedule = TrainingSchedule(spec.steps, spec.rate, warmup=0.1, decay=1.0, log_every=50)
    known_as = run_identity(spec, samples=samples_fingerprint(samples))
    return TrainingRun(student, step_loss, schedule, known_as, save_result, measure_result)
