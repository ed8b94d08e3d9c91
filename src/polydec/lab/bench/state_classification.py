"""Classification by hidden-state optimisation: the keys and values of a prompt of examples take steps down its own loss, and
then classes are compared behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.bench.hidden_states import StateReader, StateSteps
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.prefix_network import Past, forward_with_past

Labelled = tuple[str, str]
"""A text and its class."""


@dataclass(frozen=True)
class ClassificationTask:
    """Examples that are shown, and questions that are asked.

    Attributes:
        classes: Names of the classes, in order.
        shown: Examples of the prompt, in order.
        asked: Questions with their classes.
    """

    classes: tuple[str, ...]
    shown: tuple[Labelled, ...]
    asked: tuple[Labelled, ...]

    @property
    def shown_prompt(self) -> str:
        """The examples as the model reads them."""
        return "".join(f"{class_question(text)} {label}\n\n" for text, label in self.shown)


def class_question(text: str) -> str:
    """What stands before a class."""
    return f"Text: {text}\nClass:"


def draw_classification_task(
    rows: Sequence[Labelled], shots: int, asked: int, seed: int
) -> ClassificationTask:
    """Draw examples and questions.

    Args:
        rows: Texts with their classes.
        shots: Examples of each class.
        asked: Questions, at most.
        seed: Of the draw, and of the order.

    Returns:
        The task; no question is among the examples.

    Raises:
        RequestError: There is one class alone, or one has too few texts.
    """
    classes = tuple(sorted({label for _, label in rows}))
    if len(classes) < 2:
        raise RequestError(f"from has {len(classes)} class: two at least are needed")
    # One order decides both which examples are shown and how they stand.
    order = np.random.default_rng(seed).permutation(len(rows))
    shown = list[Labelled]()
    left = list[Labelled]()
    for i in map(int, order):
        # Each class fills up its own examples; what is left asks.
        taken = sum(label == rows[i][1] for _, label in shown)
        (shown if taken < shots else left).append(rows[i])
    if len(shown) < shots * len(classes) or not left:
        raise RequestError(
            f"from has {len(rows)} texts of {len(classes)} classes: each class needs {shots}, and one more must be left"
        )
    return ClassificationTask(classes, tuple(shown), tuple(left[:asked]))


def read_examples(network: TrainableLlama, token_T: Tensor, how: StateSteps) -> Past:
    """Read a prompt in segments; behind each all entries take a step.

    Args:
        network: The model; it is not changed.
        token_T: Token ids of the prompt.
        how: Rates and bounds; at rate 0 nothing changes.

    Returns:
        Keys and values of all tokens but the last, by layer.
    """
    # Each segment is scored before its entries change, as in a measurement of text.
    reader = StateReader(network, how)
    for at in range(0, len(token_T) - 1, how.segment):
        reader.read_segment(token_T[at : at + how.segment + 1])
    return reader.past


@torch.no_grad()
def class_logprobs(
    network: TrainableLlama, past: Past, question_T: Tensor, labels: Sequence[Tensor]
) -> Tensor:
    """How likely each class is behind a question.

    Args:
        network: The model.
        past: Keys and values of what was read; they stay as they are.
        question_T: Token ids from the last one that was not read on.
        labels: Token ids of each class.

    Returns:
        Log-probabilities of the texts of the classes, shape ``[C]``, not divided by their lengths.
    """
    trunk = network.model

    def laws(token_T: Tensor, before: Past) -> tuple[Tensor, Past]:
        """Read some tokens behind a past.

        Args:
            token_T: Token ids.
            before: Keys and values of what stands before them.

        Returns:
            The law behind each, log-probabilities, and the past with them.
        """
        hidden, kept = forward_with_past(trunk, trunk.embed_tokens(token_T[None]), before)
        return network.token_logits(trunk.norm(hidden))[0].float().log_softmax(-1), kept

    # A question is read once, and each class behind it.
    first_TV, behind = laws(question_T, past)
    out = list[Tensor]()
    for label_T in labels:
        # The question's last token foretells the class's first one.
        row_LV = first_TV[-1:]
        if len(label_T) > 1:
            row_LV = torch.cat([row_LV, laws(label_T[:-1], behind)[0]])
        out.append(-F.nll_loss(row_LV, label_T, reduction="sum"))
    return torch.stack(out)


def rate_steps(
    network: TrainableLlama,
    task: ClassificationTask,
    encode: Any,
    rates: Sequence[float],
    segment: int,
) -> Iterator[dict[str, Any]]:
    """How many questions are sorted right at each rate.

    Args:
        network: The model.
        task: Examples and questions.
        encode: Makes token ids of a text; the second argument says whether marks are put around it.
        rates: Rates of `StateSteps`; the first is what the others are held against.
        segment: Tokens of a segment.

    Yields:
        By rate the share that is right, the difference to the first rate with its 95 % interval over
        questions, and the mean log-probability of the right class among the classes.

    Raises:
        RequestError: The prompt and a question do not fit into the context.
    """
    prompt = list(encode(task.shown_prompt, True))
    labels = [torch.tensor(encode(f" {name}", False)) for name in task.classes]
    asked = [list(encode(class_question(text), False)) for text, _ in task.asked]
    longest = len(prompt) + max(map(len, asked)) + max(map(len, labels))
    if longest > network.s.context:
        raise RequestError(
            f"the examples and a question have {longest} tokens: the model reads {network.s.context}; give shorter "
            "texts or fewer classes"
        )
    right = [task.classes.index(label) for _, label in task.asked]
    base_N: Tensor | None = None
    for rate in rates:
        # Read once for all questions, so none of them can change another one's.
        past = read_examples(network, torch.tensor(prompt), StateSteps(rate, segment))
        score_NC = torch.stack(
            [
                class_logprobs(network, past, torch.tensor([prompt[-1], *ids]), labels)
                for ids in asked
            ]
        )
        # The likeliest class's text, whatever its length.
        hit_N = (score_NC.argmax(-1) == torch.tensor(right)).double()
        # Differences are over the same questions, so that hard ones do not widen the interval.
        base_N = hit_N if base_N is None else base_N
        change_N = hit_N - base_N
        half = 1.96 * float(change_N.std()) / math.sqrt(len(hit_N)) if len(hit_N) > 1 else 0.0
        chance_N = score_NC.log_softmax(-1)[range(len(right)), right]
        yield {
            "rate": rate,
            "right": round(float(hit_N.mean()), 4),
            "change": round(float(change_N.mean()), 4),
            "interval": (
                round(float(change_N.mean()) - half, 4),
                round(float(change_N.mean()) + half, 4),
            ),
            "nats": round(-float(chance_N.mean()), 4),
        }
