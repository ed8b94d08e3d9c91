"""`polydec train reward`: a classifier that tells texts of one file from those of another, as a reward (SVDD)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from polydec.base import edge
from polydec.base.errors import FileError
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.reward import RewardSpec
from polydec.models.learned.kinds import reward
from polydec.models.learned.kinds.reward import NgramTextClassifier, TextReward


def train_reward(spec: RewardSpec) -> dict[str, Any]:
    """Learn from lines of two files which of them a text is like; what was measured. Every tenth line of each is set aside.
    See `carry_out`. Raises FileError for a file without text."""
    return run_training("reward", spec, _course)


def _course(spec: RewardSpec) -> TrainingRun:
    texts = [read_nonempty_lines(Path(path), spec.most) for path in (spec.good, spec.bad)]
    share_NS = reward.stack_ngram_frequencies(
        [t for lines in texts for t in lines], spec.size, spec.order
    )
    good_N = torch.tensor([1.0] * len(texts[0]) + [0.0] * len(texts[1]))
    aside_N = torch.tensor([i % 10 == 9 for lines in texts for i in range(len(lines))])
    even_N = torch.where(good_N > 0, 0.5 / len(texts[0]), 0.5 / len(texts[1])) * len(good_N)
    net = torch.nn.Linear(spec.size, 1)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.zeros_(net.bias)

    def loss(step: int) -> tuple[Tensor, int]:
        logit_N = net(share_NS[~aside_N])[:, 0]
        return binary_cross_entropy_with_logits(
            logit_N, good_N[~aside_N], weight=even_N[~aside_N]
        ), len(logit_N)

    def made() -> NgramTextClassifier:
        weight_1S, bias_1 = (t.detach() for t in (net.weight, net.bias))
        return NgramTextClassifier(weight_1S[0].clone(), float(bias_1[0]), spec.order)

    def measure() -> Mapping[str, Any]:
        now = made()
        if aside_N.any():
            held_N = aside_N
        else:
            held_N = ~aside_N
        right_N = (share_NS[held_N] @ now.weight_S + now.bias > 0) == (good_N[held_N] > 0)
        return {"texts": len(good_N), "right": float(right_N.float().mean())}

    def save(out: Path, result: Mapping[str, Any]) -> None:
        reward.save(out, TextReward(made(), True), result)

    schedule = TrainingSchedule(
        spec.steps, spec.rate, weight_decay=1e-3, log_every=min(20, spec.steps)
    )
    same = run_identity(spec, texts=len(good_N))
    return TrainingRun(net, loss, schedule, same, save, measure)


def read_nonempty_lines(path: Path, most: int) -> list[str]:
    """The first lines of a file that are not empty. Raises FileError where there is none."""
    text = edge.read_bytes(path).decode("utf-8", "replace")
    kept = list(islice((line for line in text.splitlines() if line.strip()), most))
    if not kept:
        raise FileError(
            edge.error_sentence(f"{path} holds no text: give a file with one text a line")
        )
    return kept
