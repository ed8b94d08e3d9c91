"""Prototypes of classes: the states that several prompts give are matched to those of each class by
optimal transport.

Source: "Multi-Prompting Decoder helps better language understanding" (2024); costs, sizes and
regularisation are ours. One prompt and one prototype are DecT's matching by cosine (Cui et al.,
"Decoder tuning", 2023), without its radius.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from polydec.models.nets.transport import sinkhorn_plan
from polydec.request.deciding import ClassifierSettings

TOGETHER = 64
"""Examples of a step."""
PATIENCE = 5
"""Epochs in a row without a lower loss that end the training."""


@dataclass(frozen=True)
class ClassPrototypes:
    """matrix [width, H]; of_class [C, M, width]; sharpness: a number, by its logarithm; averaged: a
    text's mean feature is compared with a class's mean prototype, and nothing is transported."""

    matrix: Tensor
    of_class: Tensor
    log_sharpness: Tensor
    softness: float
    rounds: int
    averaged: bool = False

    def class_features(self, state_NPH: Tensor) -> Tensor:
        """Of length 1, [N, P, width]."""
        return normalize(state_NPH @ self.matrix.T, dim=-1)

    def class_scores(self, state_NPH: Tensor) -> Tensor:
        """How near each text is to each class, [N, C]: minus the transported cost, times the
        sharpness."""
        feature_NPW = self.class_features(state_NPH)
        prototype_CMW = normalize(self.of_class, dim=-1)
        if self.averaged:
            mean_NW = normalize(feature_NPW.mean(1), dim=-1)
            mean_CW = normalize(prototype_CMW.mean(1), dim=-1)
            return (mean_NW @ mean_CW.T - 1.0) * self.log_sharpness.exp()
        # The cost of prompt p and prototype m is the distance by cosine; optimal transport matches them.
        cost_NCPM = 1.0 - torch.einsum("npw,cmw->ncpm", feature_NPW, prototype_CMW)
        moved_NCPM = sinkhorn_plan(cost_NCPM, self.softness, self.rounds)
        return -(moved_NCPM * cost_NCPM).sum((-1, -2)) * self.log_sharpness.exp()


def initial_prototypes(
    state_NPH: Tensor, label_N: Tensor, classes: int, how: ClassifierSettings
) -> ClassPrototypes:
    """The prototypes before training: a random matrix; prototype m of a class is the mean feature
    that prompt m gives of its examples, prompts taken in turn.

    Args:
        state_NPH: Of each example behind each prompt.
        label_N: The class of each example, by number; every class has one.
        classes: How many there are.
        how: Sizes and the seed.

    Returns:
        The prototypes.
    """
    prompts, width = state_NPH.shape[1:]
    dice = torch.Generator().manual_seed(how.seed)
    matrix = torch.randn(how.width, width, generator=dice) / sqrt(width)
    empty = torch.empty(0)
    made = ClassPrototypes(
        matrix,
        empty,
        torch.tensor(log(how.sharpness)),
        how.softness,
        how.rounds,
        how.averaged,
    )
    feature_NPW = made.class_features(state_NPH)
    mean_CPW = torch.stack([feature_NPW[label_N == c].mean(0) for c in range(classes)])
    turn = [m % prompts for m in range(how.prototypes or prompts)]
    return replace(made, of_class=normalize(mean_CPW[:, turn], dim=-1))


def fit_prototypes(
    state_NPH: Tensor, label_N: Tensor, beside_NC: Tensor, how: ClassifierSettings
) -> tuple[ClassPrototypes, list[float]]:
    """Train prototypes on examples.

    Args:
        state_NPH: Of each example behind each prompt.
        label_N: The class of each example, by number; every class has one.
        beside_NC: What is added to the scores.
        how: Sizes, the rate, the epochs and the seed.

    Returns:
        The prototypes, and the loss of each epoch.
    """
    made = initial_prototypes(state_NPH, label_N, beside_NC.shape[1], how)
    learned = [made.matrix, made.of_class, made.log_sharpness]
    for tensor in learned:
        tensor.requires_grad_(True)
    adam = torch.optim.Adam(learned, lr=how.rate)
    losses = list[float]()
    dice = torch.Generator().manual_seed(how.seed)
    for _ in range(how.epochs):
        total = 0.0
        for index in torch.randperm(len(label_N), generator=dice).split(TOGETHER):
            score_NC = made.class_scores(state_NPH[index]) + beside_NC[index]
            loss = cross_entropy(score_NC, label_N[index])
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += float(loss.detach()) * len(index)
        losses.append(total / len(label_N))
        # Training ends where the last epochs brought no lower loss.
        if len(losses) > PATIENCE and min(losses[-PATIENCE:]) >= min(losses[:-PATIENCE]):
            break
    matrix, of_class, sharpness = (tensor.detach() for tensor in learned)
    trained = replace(made, matrix=matrix, of_class=of_class, log_sharpness=sharpness)
    return trained, losses
