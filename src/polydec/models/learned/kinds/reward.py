"""A reward of texts: what a classifier, or any function of your own, says of one (SVDD)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import RewardFields

KIND = artefact.ArtefactKind("reward", "reward", "reward.safetensors", "probe --recipe reward")


@dataclass(frozen=True, eq=False)
class TextReward:
    """judge: a text -> what it is worth, any number; odds: that is the logarithm of odds. A `Classifier` can be
    saved; a function of your own goes with a loaded model by `replace(lm, artefacts=(*lm.artefacts, TextReward(function)))`."""

    called: ClassVar[str] = "a reward of texts"
    kind: ClassVar[str] = "reward"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    judge: Callable[[str], float]
    odds: bool = False

    def text_chance(self, text: str) -> float:
        """0 to 1: a classifier's probability of the good kind; of any other judge what it says, cut off there."""
        score = self.judge(text)
        if self.odds:
            # Below -700 the exponential would overflow; the probability is all but 0 there.
            return 1 / (1 + exp(-max(score, -700.0)))
        return min(max(float(score), 0.0), 1.0)

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Accept any model: it reads texts, which every one writes.

        Args:
            target: The model that it is to serve; not read.
            draft: Draft model of the request, or None; not read.
        """


@dataclass(frozen=True, eq=False)
class NgramTextClassifier:
    """The log-odds, in nats, that a text is of the good kind and not of the other: bias plus weight_S over the shares of its
    sequences of 1 to `order` bytes, each counted at a place that its CRC-32 names. An empty text has the bias alone."""

    weight_S: Tensor
    bias: float
    order: int

    def __call__(self, text: str) -> float:
        return float(self.class_shares(text) @ self.weight_S) + self.bias

    def class_shares(self, text: str) -> Tensor:
        """[S], adding up to 1 for each length of sequence that the text has."""
        return byte_ngram_frequencies(text, len(self.weight_S), self.order)


def byte_ngram_frequencies(text: str, size: int, order: int) -> Tensor:
    """Count a text's sequences of bytes, each at the place that its CRC-32 names.

    Args:
        text: The text; its UTF-8 bytes are counted.
        size: Number S of places, at least 1.
        order: Length of the longest sequences, in bytes, at least 1.

    Returns:
        The share of each place, all lengths together, shape ``[S]``. Shares of one length add up to
        1 where the text has a sequence of that length.
    """
    # Hashing in place of a vocabulary: two sequences may share a place, which the weights learn to
    # live with.
    out_S = torch.zeros(size)
    data = text.encode()
    for n in range(1, order + 1):
        count = len(data) - n + 1
        for i in range(max(count, 0)):
            # Divided by the count of this length, so long texts do not weigh more than short ones.
            out_S[crc32(data[i : i + n]) % size] += 1 / count
    return out_S


def stack_ngram_frequencies(texts: Iterable[str], size: int, order: int) -> Tensor:
    """Count the sequences of bytes of several texts, as `byte_ngram_frequencies` does of one.

    Args:
        texts: The texts, at least one.
        size: Number S of places, at least 1.
        order: Length of the longest sequences, in bytes, at least 1.

    Returns:
        The shares, shape ``[N, S]``.
    """
    return torch.stack([byte_ngram_frequencies(text, size, order) for text in texts])


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[TextReward, ...]:
    """Make one for tests, with random weights.

    Args:
        vocab: Not read: it reads texts.
        width: Not read: it reads texts.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One reward, a classifier over 64 places.
    """
    g = torch.Generator().manual_seed(11)
    return (TextReward(NgramTextClassifier(torch.randn(64, generator=g), 0.1, 2), True),)


def save(path: str | Path, reward: TextReward, about: Mapping[str, Any]) -> None:
    """Write reward.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        reward: The reward, whose judge must be a `NgramTextClassifier`.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        RequestError: The judge is a function, which no file can hold.
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    classifier = reward.judge
    if not isinstance(classifier, NgramTextClassifier):
        raise RequestError("judge is a function: only a classifier can be saved")
    artefact.save_artefact(
        path,
        KIND,
        {"weight": classifier.weight_S.float(), "bias": torch.tensor([classifier.bias])},
        {**about, "size": len(classifier.weight_S), "order": classifier.order},
    )


def load(path: str | Path) -> TextReward:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, t = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(RewardFields, config, artefact.CONFIG)
        weight_S = artefact.read_float_tensor(t, KIND, "weight", c.size)
        bias = float(artefact.read_artefact_tensor(t, KIND, "bias", (1,))[0])
        return TextReward(NgramTextClassifier(weight_S, bias, c.order), True)
