"""Texts are sorted into classes by a frozen model that reads each of them behind several prompts
(Multi-Prompting Decoder).

Source: "Multi-Prompting Decoder helps better language understanding" (2024). Two scores of each
class are added: how near the states behind the prompts are to the class's prototypes
(prototypes.py), and how likely the class's words are there, divided by how likely they are behind
the same prompt with no text in it. Without examples the second one stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.effects import gather_coroutines
from polydec.core.scheduler import run_coroutines
from polydec.request.deciding import (
    MOST_CLASSES,
    TEXT,
    ClassifierSettings,
    check_classifier_prompts,
)
from polydec.request.embedding import (
    EmbeddableModel,
    EmbeddingInput,
    group_embedding_inputs,
    last_state,
    prepare_embedding_inputs,
)
from polydec.request.prototypes import ClassPrototypes, fit_prototypes
from polydec.request.reading import EmbeddingSettings

ROWS = 64
"""Laws that stand in memory at a time."""


@dataclass(frozen=True)
class LabelledText:
    """A text and the name of its class."""

    text: str
    label: str


@dataclass(frozen=True)
class ClassDecision:
    """label: the likeliest class; chances: of all classes, by name; they sum to 1."""

    label: str
    chances: dict[str, float]


@dataclass(frozen=True)
class ClassWords:
    """Tokens that stand for classes: [C, n], the rest of a row where fewer do being 0, and which
    are there."""

    token_Cn: Tensor
    there_Cn: Tensor

    def class_means(self, ratio_NV: Tensor) -> Tensor:
        """The logarithm of the mean over a class's tokens, [N, C], of numbers that are given by
        their logarithms."""
        # Missing words weigh nothing: their logarithm is minus infinity.
        ratio_NCn = ratio_NV[:, self.token_Cn].masked_fill(~self.there_Cn, float("-inf"))
        return ratio_NCn.logsumexp(-1) - self.there_Cn.sum(-1).log()


@dataclass(frozen=True)
class TextClassifier:
    """Sorts texts into classes; made by `lm.classifier`.

    Exact: approximate: a classifier promises nothing of its answers.
    Reduces to: matching by cosine to one prototype, with one prompt, one prototype and weight 0;
    the calibrated words alone without examples.
    """

    model: EmbeddableModel
    labels: tuple[str, ...]
    prompts: tuple[str, ...]
    words: ClassWords
    calm_PV: Tensor
    """The laws behind prompts without a text."""
    weight: float
    prototypes: ClassPrototypes | None
    losses: tuple[float, ...] = ()

    def classify(self, texts: str | Sequence[str]) -> list[ClassDecision]:
        """The class of each text. Raises RequestError for an empty text and one that is longer than
        the context."""
        score_NC = self.class_scores([texts] if isinstance(texts, str) else texts)
        best = score_NC.argmax(-1).tolist()
        chances = torch.softmax(score_NC, -1).tolist()
        return [
            ClassDecision(self.labels[c], dict(zip(self.labels, row, strict=True)))
            for c, row in zip(best, chances, strict=True)
        ]

    def class_scores(self, texts: Sequence[str]) -> Tensor:
        """Of each class, [N, C], as logarithms up to a constant."""
        return self.of_states(last_token_states(self.model, texts, self.prompts))

    def of_states(self, state_NPH: Tensor) -> Tensor:
        """The same from states that were read before."""
        # Both are logarithms, so adding them multiplies two opinions.
        words_NC = self.weight * calibrated_class_scores(
            self.model, state_NPH, self.calm_PV, self.words
        )
        if self.prototypes is None:
            return words_NC
        return self.prototypes.class_scores(_normed(self.model, state_NPH)) + words_NC


def build_text_classifier(
    model: EmbeddableModel,
    examples: Sequence[LabelledText],
    labels: Sequence[str],
    prompts: Sequence[str],
    how: ClassifierSettings,
) -> TextClassifier:
    """What sorts texts into classes.

    Args:
        model: Reads the texts.
        examples: Any number, of which each class has one, or none at all.
        labels: The classes. Empty: those of the examples.
        prompts: What stands around a `{text}`.
        how: Weights, sizes and training.

    Returns:
        The classifier.

    Raises:
        RequestError: Classes, examples or prompts do not go together.
    """
    names = _named(examples, labels)
    templates = check_classifier_prompts(tuple(prompts))
    state_NPH = last_token_states(model, [e.text for e in examples], templates)
    return of_states(model, state_NPH, [e.label for e in examples], names, templates, how)


def of_states(
    model: EmbeddableModel,
    state_NPH: Tensor,
    labels: Sequence[str],
    names: tuple[str, ...],
    prompts: tuple[str, ...],
    how: ClassifierSettings,
) -> TextClassifier:
    """Make a classifier from states that `last_token_states` read, for instance of many drawings of
    examples from the same texts.

    Args:
        model: Read the states.
        state_NPH: Of each example behind each prompt, before the final norm.
        labels: The class of each example, by name.
        names: All classes, in their order.
        prompts: What stood around a `{text}`.
        how: Weights, sizes and training.

    Returns:
        The classifier.
    """
    label_N = torch.tensor([names.index(label) for label in labels], dtype=torch.long)
    calm_PV = _laws(model, _calm(model, prompts))
    words = _words(model, names, _typical(model, state_NPH, label_N, len(names)), how.words)
    # The more examples a class has, the less its words count beside its prototypes.
    most = max(1.0, len(labels) / len(names))
    if how.weight is None:
        weight = 1.0 / most
    else:
        weight = how.weight
    # Without examples there is nothing to fit: the calibrated words decide alone.
    if not labels:
        return TextClassifier(model, names, prompts, words, calm_PV, weight, None)
    # Prototypes are fitted on top of the words, as they are used later.
    beside_NC = weight * calibrated_class_scores(model, state_NPH, calm_PV, words)
    made, losses = fit_prototypes(_normed(model, state_NPH), label_N, beside_NC, how)
    return TextClassifier(model, names, prompts, words, calm_PV, weight, made, tuple(losses))


def last_token_states(
    model: EmbeddableModel, texts: Sequence[str], prompts: Sequence[str]
) -> Tensor:
    """Read the states of texts, in passes that they share.

    Args:
        model: Reads them.
        texts: Any number.
        prompts: What stands around a `{text}`, one after the other.

    Returns:
        The state of the last token of each text behind each prompt, before the final norm, shape
        ``[N, P, H]``, float32.
    """
    width = model.checkpoint.lm.network.embed_tokens((0,)).shape[1]
    if not texts:
        return torch.zeros(0, len(prompts), width)
    asked = [
        prepare_embedding_inputs(model, texts, EmbeddingSettings(template=prompt))
        for prompt in prompts
    ]
    # Text by text, so that the states can be shaped into [N, P, H] afterwards.
    in_turn = [of_prompt[at] for at in range(len(texts)) for of_prompt in asked]
    return run_coroutines([_read(model, in_turn)])[0].reshape(len(texts), len(prompts), width)


async def _read(model: EmbeddableModel, texts: Sequence[EmbeddingInput]) -> Tensor:
    out = list[Tensor]()
    for group in group_embedding_inputs(texts):
        rows = await gather_coroutines(*(last_state(model.checkpoint.lm, text) for text in group))
        # A copy: a row alone would keep all of its pass in memory.
        out.append(torch.stack(rows).float())
    return torch.cat(out)


def calibrated_class_scores(
    model: EmbeddableModel, state_NPH: Tensor, calm_PV: Tensor, words: ClassWords
) -> Tensor:
    """How much likelier a class's words are behind a text than without one.

    Args:
        model: Has the head.
        state_NPH: Of the last token of each text behind each prompt, before the final norm.
        calm_PV: Log-probabilities behind each prompt with no text in it.
        words: The tokens of each class.

    Returns:
        The logarithm of the mean over a class's words, its mean over prompts, shape ``[N, C]``; 0
        for all classes where a text says nothing.
    """
    # An empty part first, so that no texts at all give a tensor of the right shape.
    out = [state_NPH.new_zeros(0, len(words.token_Cn))]
    for part_NPH in state_NPH.split(max(1, ROWS // max(1, len(calm_PV)))):
        # How much likelier each token is than behind the prompt with no text in it.
        ratio_NPV = _laws(model, part_NPH.flatten(0, 1)).unflatten(0, part_NPH.shape[:2]) - calm_PV
        mean_NPC = words.class_means(ratio_NPV.flatten(0, 1)).unflatten(0, part_NPH.shape[:2])
        out.append(mean_NPC.mean(1))
    return torch.cat(out)


def _named(examples: Sequence[LabelledText], labels: Sequence[str]) -> tuple[str, ...]:
    """The classes, in the order in which they are first named."""
    # A dict keeps the first of each name, in order.
    names = tuple(dict.fromkeys(labels or [e.label for e in examples]))
    if not 2 <= len(names) <= MOST_CLASSES:
        raise RequestError(f"classes are {len(names)}: give 2 to {MOST_CLASSES}")
    known = {e.label for e in examples}
    for name in names:
        if not name.strip():
            raise RequestError("a class's name is empty: give at least one character")
        if examples and name not in known:
            raise RequestError(
                f"class {short_repr(name)} has no example: give one of each, or none"
            )
    if beyond := known - set(names):
        raise RequestError(
            f"an example is of class {short_repr(min(beyond))}: labels do not name it"
        )
    return names


def _calm(model: EmbeddableModel, prompts: Sequence[str]) -> Tensor:
    """The states behind prompts without a text, [P, H]."""
    encode = model.checkpoint.text.encode
    return run_coroutines(
        [_read(model, [EmbeddingInput(tuple(encode(p.replace(TEXT, ""))), None) for p in prompts])]
    )[0]


def _normed(model: EmbeddableModel, state_NPH: Tensor) -> Tensor:
    flat = model.checkpoint.lm.network.normed_states(state_NPH.flatten(0, 1)).float().cpu()
    return flat.unflatten(0, state_NPH.shape[:2]).clone()


def _laws(model: EmbeddableModel, state_NH: Tensor) -> Tensor:
    """Log-probabilities of the next token, [N, V]."""
    return torch.log_softmax(model.checkpoint.lm.network.head_logits(state_NH).float().cpu(), -1)


def _typical(
    model: EmbeddableModel, state_NPH: Tensor, label_N: Tensor, classes: int
) -> list[Tensor]:
    """For each class the mean law behind its examples, [V]; none without examples."""
    out = list[Tensor]()
    for c in range(classes if len(label_N) else 0):
        state_RH = state_NPH[label_N == c].flatten(0, 1)
        # In parts: laws over the whole vocabulary for all examples would not fit into memory.
        total = sum(_laws(model, rows).exp().sum(0) for rows in state_RH.split(ROWS))
        assert isinstance(total, Tensor)
        out.append(total / len(state_RH))
    return out


def _words(
    model: EmbeddableModel, names: Sequence[str], typical: Sequence[Tensor], more: int
) -> ClassWords:
    """The first token of each word of a class's name, and those likeliest behind its examples."""
    encode = model.checkpoint.text.encode
    rows = list[list[int]]()
    for at, name in enumerate(names):
        # "sci-fi" or "very_good" are several words; a name of signs only stays as it is.
        parts = [part for part in re.split(r"[\W_]+", name) if part] or [name]
        # With a space before it, as a word has within a text.
        row = list(dict.fromkeys(encode(f" {part}", special=False)[0] for part in parts))
        if typical and more:
            # As many more as may repeat the name's own tokens.
            likeliest = typical[at].topk(min(more + len(row), len(typical[at]))).indices.tolist()
            row += [token for token in likeliest if token not in row][:more]
        rows.append(row)
    n = max(len(row) for row in rows)
    return ClassWords(
        torch.tensor([row + [0] * (n - len(row)) for row in rows]),
        torch.tensor([[True] * len(row) + [False] * (n - len(row)) for row in rows]),
    )
