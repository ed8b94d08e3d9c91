"""A classifier that tells texts of one file from those of another, as a reward (SVDD).

Every tenth line of each file is set aside.
"""

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
from polydec.lab.train.probe import ProbeExamples, ProbeTraining
from polydec.lab.train.specs.probe.reward import RewardSpec
from polydec.models.learned.kinds import reward
from polydec.models.learned.kinds.reward import NgramTextClassifier, TextReward


def prepare_probe(spec: RewardSpec) -> ProbeTraining[ProbeExamples]:
    """Read the lines of both files.

    Raises:
        FileError: A file has no text.
    """
    texts = [read_nonempty_lines(Path(path), spec.most) for path in (spec.good, spec.bad)]
    lines = [line for part in texts for line in part]
    good_N = torch.tensor([1.0] * len(texts[0]) + [0.0] * len(texts[1]))
    every = ProbeExamples(reward.stack_ngram_frequencies(lines, spec.size, spec.order), good_N)
    aside_N = torch.tensor([i % 10 == 9 for part in texts for i in range(len(part))])
    lessons = every.select_rows(~aside_N)
    held = every.select_rows(aside_N if aside_N.any() else ~aside_N)
    # Both files weigh the same, however many lines they have.
    even_N = torch.where(good_N > 0, 0.5 / len(texts[0]), 0.5 / len(texts[1])) * len(good_N)
    net = torch.nn.Linear(spec.size, 1)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.zeros_(net.bias)

    def part_loss(part: ProbeExamples) -> Tensor:
        return binary_cross_entropy_with_logits(
            net(part.input_NX)[:, 0], part.label_N, weight=even_N[~aside_N]
        )

    def make_classifier() -> NgramTextClassifier:
        weight_S = net.weight.detach()[0].clone()
        return NgramTextClassifier(weight_S, float(net.bias.detach()[0]), spec.order)

    def measure_result() -> Mapping[str, Any]:
        now = make_classifier()
        right_N = (held.input_NX @ now.weight_S + now.bias > 0) == (held.label_N > 0)
        return {"texts": len(every), "right": float(right_N.float().mean())}

    return ProbeTraining(
        net,
        lessons,
        part_loss,
        measure_result,
        lambda out, result: reward.save(out, TextReward(make_classifier(), True), result),
        identity={"texts": len(every)},
        schedule={"weight_decay": 1e-3},
    )


def read_nonempty_lines(path: Path, most: int) -> list[str]:
    """Read the first lines of a file that are not empty.

    Args:
        path: The file.
        most: Lines at most.

    Returns:
        At least one line.

    Raises:
        FileError: There is none.
    """
    text = edge.read_bytes(path).decode("utf-8", "replace")
    kept = list(islice((line for line in text.splitlines() if line.strip()), most))
    if not kept:
        raise FileError(
            edge.error_sentence(f"{path} holds no text: give a file with one text a line")
        )
    return kept
