"""`polydec train parallel-embeddings`: several embeddings of one input, each behind a learned prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from polydec.base.errors import FileError, RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.data import held_out
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.image_questions import QUESTIONS
from polydec.lab.train.jepa import (
    contrastive_loss,
    draw_answered_scenes,
    read_answer_folder,
)
from polydec.lab.train.lora import add_lora_adapters, save_lora_adapters
from polydec.lab.train.mutual_information import InformationEstimator
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.pairs import read_text_pairs
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.parallel_embeddings import ParallelEmbeddingsSpec
from polydec.models.formats.images import Image
from polydec.models.formats.tensor_files import RenamedWeights
from polydec.models.learned.kinds import path_prefixes
from polydec.models.learned.kinds.path_prefixes import PathPrefixes
from polydec.models.sessions.soft import state_of
from polydec.models.sessions.sources import open_source
from polydec.models.sessions.vision import is_vision, open_vision
from polydec.request.embedding import prepare_embedding_inputs
from polydec.request.loaded import LoadedModel
from polydec.request.loading import load
from polydec.request.reading import EmbeddingSettings

JUDGED = 64
"""Held-out pairs that are measured, at most."""
UNITS = 64
"""Units of a network that estimates information."""


@dataclass(frozen=True, eq=False)
class EmbeddedPair:
    """Two inputs whose embeddings belong together, as `polydec embed` reads them.

    Attributes:
        query: Ids of a text, of which some may stand for vectors of an image.
        answer: The same of what is to be found with it.
    """

    query: tuple[int, ...]
    answer: tuple[int, ...]


class PathStudent(nn.Module):
    """A language model whose input is read behind learned prefixes, and adapters that all paths
    share.

    Args:
        language: The model, which is frozen but for its adapters.
        spec: Paths, sizes and weights of the losses.
    """

    def __init__(self, language: TrainableLlama, spec: ParallelEmbeddingsSpec) -> None:
        super().__init__()
        self.spec = spec
        self.language = language
        if spec.rank:
            add_lora_adapters(language, spec.rank, spec.seed)
        table_VW = language.model.embed_tokens.weight.detach()
        shape = (spec.paths, spec.prefix, table_VW.shape[1])
        # Each path draws its own: equal prefixes would stay equal.
        g = generator_for(spec.seed, 0, "prefixes")
        self.prefix_KMW = nn.Parameter(torch.randn(shape, generator=g) * table_VW.std())
        self.path_pairs = list(combinations(range(spec.paths), 2))
        self.estimator = InformationEstimator(len(self.path_pairs), shape[2], UNITS, spec.seed)

    def forward(self, inputs: Sequence[Sequence[int]]) -> Tensor:
        """Embeddings of inputs along all paths, in one pass.

        Args:
            inputs: Ids of B texts, of which some may stand for vectors.

        Returns:
            Of length 1 each, ``[K, B, W]``.
        """
        paths, length, _ = self.prefix_KMW.shape
        entered_BSW = pad_sequence([self._entered_vectors(ids) for ids in inputs], batch_first=True)
        count = len(inputs)
        # Every path reads a copy of the input behind its own prefix.
        prefix_NMW = self.prefix_KMW.repeat_interleave(count, 0)
        x_NTW = torch.cat([prefix_NMW, entered_BSW.repeat(paths, 1, 1)], 1)
        model = self.language.model
        cos_TD = model.cos[: x_NTW.shape[1]]
        sin_TD = model.sin[: x_NTW.shape[1]]
        # What fills rows up stands behind them, where nothing before it looks.
        for layer in model.layers:
            x_NTW = layer(x_NTW, cos_TD, sin_TD)
        last_N = torch.tensor([length + len(ids) - 1 for ids in inputs]).repeat(paths)
        state_NW = model.norm(x_NTW[torch.arange(len(last_N)), last_N])
        return normalize(state_NW, dim=-1).unflatten(0, (paths, count))

    def _entered_vectors(self, ids: Sequence[int]) -> Tensor:
        """What enters the first layer of an input."""
        # A vector stands in the place of its id, which no table has.
        token_S = torch.tensor([0 if state_of(x) is not None else int(x) for x in ids])
        entered_SW = self.language.model.embed_tokens(token_S)
        vectors = [(at, state) for at, x in enumerate(ids) if (state := state_of(x)) is not None]
        if not vectors:
            return entered_SW
        entered_SW = entered_SW.clone()
        entered_SW[[at for at, _ in vectors]] = torch.stack([state for _, state in vectors])
        return entered_SW

    def paired_paths(self, path_KBW: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings of each two paths, scaled so that a number has a variance near 1."""
        scaled_KBW = path_KBW * path_KBW.shape[2] ** 0.5
        first = [a for a, _ in self.path_pairs]
        second = [b for _, b in self.path_pairs]
        return scaled_KBW[first], scaled_KBW[second]


def joined_paths(path_KBW: Tensor) -> Tensor:
    """One embedding of each input: the mean over paths, of length 1, ``[B, W]``."""
    return normalize(path_KBW.mean(0), dim=-1)


def parallel_loss(student: PathStudent, pairs: Sequence[EmbeddedPair]) -> tuple[Tensor, Tensor]:
    """The loss of a step.

    Args:
        student: The network.
        pairs: Pairs of inputs.

    Returns:
        Nats of the right answer among those of the step, summed over paths, with the weighted ones
        of the joined embedding and the weighted information of each two paths; and the queries'
        embeddings, ``[K, B, W]``.
    """
    spec = student.spec
    query_KBW = student([pair.query for pair in pairs])
    answer_KBW = student([pair.answer for pair in pairs])
    answers = [pair.answer for pair in pairs]
    loss = torch.stack(
        [
            contrastive_loss(query_BW, answer_BW, answers, spec.heat)
            for query_BW, answer_BW in zip(query_KBW, answer_KBW, strict=True)
        ]
    ).sum()
    if spec.joined:
        joined = joined_paths(query_KBW), joined_paths(answer_KBW)
        loss = loss + spec.joined * contrastive_loss(*joined, answers, spec.heat)
    if spec.information and student.path_pairs:
        told = student.estimator.information_bound(*student.paired_paths(query_KBW))
        loss = loss + spec.information * told
    return loss, query_KBW


def train_parallel_embeddings(spec: ParallelEmbeddingsSpec) -> dict[str, Any]:
    """Train prefixes, and adapters that all paths share; save the prefixes at spec.out/prefixes, and
    the adapters at spec.out, which is then a model's name.

    Each path is trained by itself to find the answer of its pair among those of a step, and so is
    the mean over paths; the information that each two paths have of one another is made small.
    Measured are held-out pairs. See `run_training`.

    Reduces to: plain contrastive training of one embedding where there is one path.

    Raises:
        RequestError: An option of the spec is wrong, the target is outside the Llama skeleton or
            reads no images where there is no data, or a step takes more pairs than there are.
        FileError: The target or the data cannot be read.

    Source: Wang et al., "Explore more, learn better: parallel MLLM embeddings under mutual
    information minimization" (2025). Sizes and weights are ours.
    """
    return run_training("parallel-embeddings", spec, _course)


def _course(spec: ParallelEmbeddingsSpec) -> TrainingRun:
    # What the target cannot be is said before anything of it is read.
    source = open_source(spec.target)
    seeing = is_vision(source.config)
    if spec.data is None and not seeing:
        raise RequestError(
            f"target is {spec.target!r:.80}, which reads text only: give pairs of texts (--data), or a model that reads "
            "images, such as zoo:vision"
        )
    parted = open_vision(source, "cpu")[0] if seeing else source
    language = from_weights(parted.config, parted.weights)
    lm = load(spec.target, draft=None)
    learned = read_embedded_pairs(lm, spec, unseen=False)
    unseen = read_embedded_pairs(lm, spec, unseen=True)[:JUDGED]
    # A pair twice in a step would be its own wrong answer.
    if len(learned) < spec.rows:
        raise RequestError(
            f"rows is {spec.rows}: a step takes so many pairs, and there are {len(learned)} to learn from"
        )
    student = PathStudent(language, spec)
    samples = list[Tensor]()

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Decided by the step alone, so that a run that was interrupted goes on as it would have.
        rng = np.random.default_rng([spec.seed, 41, step])
        chosen = rng.choice(len(learned), spec.rows, replace=False)
        loss, query_KBW = parallel_loss(student, [learned[int(i)] for i in chosen])
        samples[:] = [query_KBW.detach()]
        return loss, spec.rows

    def follow_paths() -> None:
        # The estimator must not lag behind what it judges.
        if spec.information and student.path_pairs:
            pairs = student.paired_paths(samples[0])
            student.estimator.learn_samples(*pairs, spec.estimator_steps, spec.rate)

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the prefixes, and the adapters where there are some.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        vocab = TokenVocabulary(lm.checkpoint.lm.vocab.size, frozenset(), source.fingerprint)
        prefixes = PathPrefixes(vocab, student.prefix_KMW.detach())
        path_prefixes.save(out / "prefixes", prefixes, {"target": spec.target})
        if spec.rank:
            # A language model among others has other names in its file.
            names = (
                parted.weights.file_names if isinstance(parted.weights, RenamedWeights) else None
            )
            save_lora_adapters(out, language, spec.target, names)

    words = [int(x) for pair in learned for x in pair.answer]
    return TrainingRun(
        student,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, decay=1.0, weight_decay=0.0),
        run_identity(spec, answers=tensor_digest(torch.tensor(words))),
        save_result,
        lambda: measure_paths(student, unseen),
        after_step=follow_paths,
    )


@torch.no_grad()
def measure_paths(student: PathStudent, pairs: Sequence[EmbeddedPair]) -> dict[str, Any]:
    """How well embeddings find their answers, and how alike paths are.

    Args:
        student: The network.
        pairs: Pairs that it did not learn.

    Returns:
        By name: the share of queries whose nearest answer is right, by the mean over paths, by all
        paths one behind another and by each path; the mean cosine of two paths of one query (1 of
        one path); the estimated information in nats a number; and sizes.
    """
    query_KBW = student([pair.query for pair in pairs])
    answer_KBW = student([pair.answer for pair in pairs])

    def retrieved(query_BW: Tensor, answer_BW: Tensor) -> float:
        """The share of queries whose nearest answer is right.

        Args:
            query_BW: Embeddings of queries.
            answer_BW: Those of answers.

        Returns:
            0 to 1.
        """
        nearest = (query_BW @ answer_BW.T).argmax(1).tolist()
        # The same answer to another query is as right.
        right = [pairs[i].answer == one.answer for i, one in zip(nearest, pairs, strict=True)]
        return sum(right) / len(right)

    first, second = student.paired_paths(query_KBW)
    width = query_KBW.shape[2]
    paired = bool(student.path_pairs)
    alike = float((first * second).sum(-1).mean()) / width if paired else 1.0
    return {
        "parameters": sum(p.numel() for p in student.parameters() if p.requires_grad),
        "among": len(pairs),
        "retrieved": retrieved(joined_paths(query_KBW), joined_paths(answer_KBW)),
        # Cosines of vectors that stand one behind another are the mean of those of paths.
        "retrieved_joined_long": retrieved(
            query_KBW.transpose(0, 1).flatten(1), answer_KBW.transpose(0, 1).flatten(1)
        ),
        "retrieved_by_path": [retrieved(*both) for both in zip(query_KBW, answer_KBW, strict=True)],
        "alike": alike,
        "information": float(student.estimator.information_bound(first, second)) if paired else 0.0,
        "adapted": student.spec.rank > 0,
        "out": student.spec.out,
    }


def read_embedded_pairs(
    lm: LoadedModel, spec: ParallelEmbeddingsSpec, *, unseen: bool
) -> list[EmbeddedPair]:
    """Read the pairs of a training.

    Args:
        lm: The target, which encodes them as `polydec embed` does.
        spec: The training; data, each and seed are read.
        unseen: Whether those that are held out are wanted, else all others.

    Returns:
        The pairs, in order.

    Raises:
        RequestError: An input is longer than the context, or the target reads no images.
        FileError: The data cannot be read, or has fewer than two pairs on this side.
    """
    if spec.data is not None and not (Path(spec.data).expanduser() / QUESTIONS).is_file():
        return _text_pairs(lm, spec, unseen=unseen)
    if spec.data is None:
        scenes = draw_answered_scenes(JUDGED if unseen else spec.each, spec.seed, unseen=unseen)
        # One question of each scene: an image twice in a step would find the other's answer.
        rng = np.random.default_rng([spec.seed, 42, unseen])
        told = [(image, [asked[int(rng.integers(len(asked)))]]) for image, asked in scenes]
    else:
        told = read_answer_folder(spec.data, unseen=unseen)
    out = list[EmbeddedPair]()
    for image, asked in told:
        texts = [question for question, _ in asked]
        out += _encoded_pairs(lm, spec, texts, [answer for _, answer in asked], image)
    return out


def _text_pairs(
    lm: LoadedModel, spec: ParallelEmbeddingsSpec, *, unseen: bool
) -> list[EmbeddedPair]:
    """Pairs of texts."""
    assert spec.data is not None, "without data scenes are drawn"
    pairs = [
        pair
        for pair in read_text_pairs(Path(spec.data).expanduser())
        if held_out(pair.source) == unseen
    ]
    if len(pairs) < 2:
        part = "held out" if unseen else "to learn from"
        raise FileError(
            f"data is {spec.data!r:.80}: fewer than two of its pairs are {part} (of ten seven are learned from and three held "
            "out, by the SHA-1 of their sources): give more"
        )
    return _encoded_pairs(
        lm, spec, [pair.source for pair in pairs], [pair.target for pair in pairs], None
    )


def _encoded_pairs(
    lm: LoadedModel,
    spec: ParallelEmbeddingsSpec,
    queries: Sequence[str],
    answers: Sequence[str],
    image: Image | None,
) -> list[EmbeddedPair]:
    """Pairs as they are read; the image stands before each query."""
    images = [image] * len(queries) if image is not None else []
    how = EmbeddingSettings()
    query = prepare_embedding_inputs(lm, queries, how, images=images)
    answer = prepare_embedding_inputs(lm, answers, how)
    most = lm.checkpoint.lm.context - spec.prefix
    if (longest := max(len(text.ids) for text in (*query, *answer))) > most:
        raise RequestError(
            f"data has an input of {longest} tokens: behind a prefix of {spec.prefix} there is room for {most}"
        )
    return [EmbeddedPair(q.ids, a.ids) for q, a in zip(query, answer, strict=True)]
