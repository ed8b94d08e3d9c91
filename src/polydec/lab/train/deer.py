"""`polydec train deer`: a masked-diffusion draft learns to continue a target's text (DEER)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train import selfplay
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import (
    TrainableLlama,
    from_weights,
    make_bidirectional,
    save_directory,
)
from polydec.lab.train.own_text import gather_target_text
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.deer import DeerSpec
from polydec.lab.train.target import family_of_config, load_autoregressive_model, require_family
from polydec.methods.registry.family import AUTOREGRESSIVE
from polydec.models.sessions import sources

MARKS = 2
"""Rows behind the target's vocabulary: the mask, and the boundary behind the text that is known."""


def train_deer(spec: DeerSpec) -> dict[str, Any]:
    """Train, and save at spec.out a masked-diffusion model that `--draft` takes.

    Its config names the target, from which the tokenizer comes. See `run_training`.

    Raises:
        RequestError: An option is wrong, data is missing, or the target is outside the Llama
            skeleton.

    Source: DEER (2025). Not established there, and so ours: in the first stage all after the cut is
    masked in half of the rows and a uniform share of it in the others; in the second stage R is
    uniform in 1 to `last`, and weights fall by `decay` a gap. Both stages share one schedule of the
    learning rate; `shifted` and training without a boundary are ours.
    """
    return run_training("deer", spec, _course)


def _course(spec: DeerSpec) -> TrainingRun:
    source = sources.open_source(spec.target)
    require_family(AUTOREGRESSIVE, family_of_config(source.config), spec.target)
    size = source.config["vocab_size"]
    if spec.start is None:
        start = source
    else:
        start = sources.open_source(spec.start)
    # The draft begins with the target's layers, or with those of another model of its vocabulary.
    network = start_deer_network(start.config, start.weights, size, spec)
    # Without a file of texts, the target writes them now; what is held out comes from other
    # prompts.
    if spec.text is None:
        point = load_autoregressive_model(spec.target)
        taught = gather_target_text(spec, point.lm, point.text, False)
        unseen = gather_target_text(spec, point.lm, point.text, True)
    else:
        taught = selfplay.read_fitting_samples(Path(spec.text), size, spec.context)
        held = Path(spec.text).with_name("held.jsonl")
        if held.exists():
            unseen = selfplay.read_samples(held, size)
        else:
            unseen = []
    # A boundary takes one more position.
    shortest = min((len(s.prompt_ids) + len(s.output_ids) for s in taught), default=0)
    taught, unseen = (samples_within_context(some, spec.context) for some in (taught, unseen))
    if not taught:
        raise RequestError(
            f"context is {spec.context}: no answer fits into it with its prompt, so give --context "
            f"{shortest + 1} or more"
        )
    fast = is_bf16_run(Path(spec.out) / STATE)
    lesson = DeerObjective(network, size, spec)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng([spec.seed, 5, step])
        chosen = [taught[i] for i in rng.integers(len(taught), size=spec.rows)]
        # The second stage begins after `steps`.
        rows = [lesson.training_row(s, step >= spec.steps, rng) for s in chosen]
        with bf16_autocast(fast):
            return lesson.gap_loss(rows), sum(len(r.token) for r in rows)

    def measure_result() -> Mapping[str, Any]:
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "samples": len(taught),
            "right_by_gap": lesson.right_by_gap(unseen or taught),
            "out": spec.out,
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write a model directory without a tokenizer: that of the target is used.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        shape = network.s.config_content(
            bos=source.config.get("bos_token_id"),
            eos=source.config.get("eos_token_id"),
            tied=network.lm_head is None,
        )
        # Only ids below `size` are written; mask and boundary lie above.
        own = {
            "polydec_causal": False,
            "polydec_mask": size,
            "polydec_boundary": size + 1 if spec.boundary else None,
            "polydec_shifted": spec.shifted,
            "polydec_written": size,
            "polydec_base": spec.target,
        }
        save_directory(out, network, {**shape, **own}, files={"generation_config.json": {}})

    same = run_identity(spec, bf16=fast, samples=selfplay.samples_fingerprint(taught))
    schedule = TrainingSchedule(spec.steps + spec.refine, spec.rate, muon=spec.muon)
    return TrainingRun(network, step_loss, schedule, same, save_result, measure_result)


def samples_within_context(samples: Sequence[TrainingSample], context: int) -> list[TrainingSample]:
    """The samples that fit into a context, with a boundary mark.

    Args:
        samples: Prompts with answers.
        context: Positions of the network.

    Returns:
        Those that have an answer and are short enough.
    """
    return [s for s in samples if s.output_ids and len(s.prompt_ids) + len(s.output_ids) < context]


def start_deer_network(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], size: int, spec: DeerSpec
) -> TrainableLlama:
    """Make a bidirectional network of a model's first layers, with MARKS more tokens.

    The rows of the new tokens begin as the mean of all others.

    Args:
        config: Fields of the model's config.json.
        weights: The model's tensors by name.
        size: Tokens of the target.
        spec: Options; `layers` (0: all) and `context` are read.

    Returns:
        The network, trainable.

    Raises:
        RequestError: The model has not as many tokens as the target, or fewer layers than asked
            for.
    """
    if config["vocab_size"] != size:
        raise RequestError(
            f"start is {spec.start!r}, of {config['vocab_size']} tokens: the target has {size}"
        )
    if spec.layers > config["num_hidden_layers"]:
        raise RequestError(
            f"layers is {spec.layers}: what it begins with has {config['num_hidden_layers']}"
        )
    depth = spec.layers or config["num_hidden_layers"]
    # Layers beyond the wanted depth are left out by their numbers.
    taken = {
        name: weights[name].float()
        for name in weights
        if not (name.startswith("model.layers.") and int(name.split(".")[2]) >= depth)
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in taken:
            table = taken[name]
            taken[name] = torch.cat([table, table.mean(0, keepdim=True).expand(MARKS, -1)])
    wider = {**config, "vocab_size": size + MARKS, "num_hidden_layers": depth}
    network = from_weights(wider, taken, spec.context + MARKS)
    return make_bidirectional(network).requires_grad_(True).train()


@dataclass(frozen=True)
class GapFillingRow:
    """A text to fill.

    Attributes:
        token: Token ids, with the mask where gaps are.
        gap: Positions of the gaps.
        right: The token that belongs into each gap.
        weight: Weight of each gap in the loss.
    """

    token: tuple[int, ...]
    gap: tuple[int, ...]
    right: tuple[int, ...]
    weight: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class DeerObjective:
    """The loss of a draft that fills the gaps after a text.

    Attributes:
        network: The draft in training.
        size: Number of tokens that may be written; the mask has the id `size`, the boundary `size`
            + 1.
        spec: Options of the training.
    """

    network: TrainableLlama
    size: int
    spec: DeerSpec

    def training_row(
        self, sample: TrainingSample, refine: bool, rng: np.random.Generator
    ) -> GapFillingRow:
        """Cut a sample somewhere within its answer, in the way of the first or the second stage.

        Args:
            sample: A prompt with an answer.
            refine: Whether this is the second stage, which trains short blocks at the cut.
            rng: Source of randomness; it is advanced.

        Returns:
            A text with gaps.
        """
        answer = sample.output_ids
        if refine:
            # Second stage: a short block of gaps anywhere in the answer.
            count = int(rng.integers(1, min(self.spec.last, len(answer)) + 1))
            cut = int(rng.integers(len(answer) - count + 1))
            return self.cut_sample(sample, cut, range(count), count, self.spec.decay)
        # First stage: any cut, and everything up to the end of the answer is read.
        cut = int(rng.integers(len(answer)))
        if rng.random() < 0.5:
            share = 1.0
        else:
            share = rng.random()
        left = len(answer) - cut
        # At least one token is masked.
        gaps = [j for j in range(left) if rng.random() < share] or [int(rng.integers(left))]
        return self.cut_sample(sample, cut, gaps, left)

    def cut_sample(
        self, sample: TrainingSample, at: int, gaps: Sequence[int], length: int, decay: float = 1.0
    ) -> GapFillingRow:
        """Put a boundary after some tokens of the answer, and mask some of the tokens that follow.

        Args:
            sample: A prompt with an answer.
            at: Tokens of the answer before the boundary.
            gaps: Which of the further tokens are masked, counted from 0.
            length: Further tokens that are read.
            decay: Factor between the weights of neighbouring tokens; weights add up to 1. Default
                1: all alike.

        Returns:
            A text with gaps.
        """
        if self.spec.boundary:
            mark = (self.size + 1,)
        else:
            mark = ()
        known = (*sample.prompt_ids, *sample.output_ids[:at], *mark)
        rest = sample.output_ids[at : at + length]
        hidden = set(gaps)
        shown = [self.size if j in hidden else x for j, x in enumerate(rest)]
        # Gaps further from the boundary weigh less: a draft is accepted from its beginning on.
        raw = [decay**j for j in gaps]
        return GapFillingRow(
            (*known, *shown),
            tuple(len(known) + j for j in gaps),
            tuple(rest[j] for j in gaps),
            tuple(w / sum(raw) for w in raw),
        )

    def gap_logits(self, rows: Sequence[GapFillingRow]) -> Tensor:
        """The logits of all gaps over the tokens that may be written, row by row, shape ``[N, V]``."""
        length = max(len(r.token) for r in rows)
        token_BT = torch.tensor([[*r.token, *(0,) * (length - len(r.token))] for r in rows])
        # Padding is seen by no position.
        there_BT = torch.arange(length) < torch.tensor([len(r.token) for r in rows])[:, None]
        see_B1TT = there_BT[:, None, None].expand(-1, 1, length, -1)
        states = self.network.model(token_BT, None, see_B1TT)
        # A shifted network predicts a gap at the position before it.
        back = int(self.spec.shifted)
        at = [(b, i - back) for b, r in enumerate(rows) for i in r.gap]
        # Row and position of each gap, so that the head runs on gaps only.
        b_N, i_N = (torch.tensor(x) for x in zip(*at, strict=True))
        return self.network.token_logits(states[b_N, i_N])[:, : self.size].float()

    def gap_loss(self, rows: Sequence[GapFillingRow]) -> Tensor:
        """Cross-entropy at the gaps, in nats, each text counting alike."""
        right_N = torch.tensor([x for r in rows for x in r.right])
        weight_N = torch.tensor([w for r in rows for w in r.weight])
        loss_N = F.cross_entropy(self.gap_logits(rows), right_N, reduction="none")
        return (loss_N * weight_N).sum() / len(rows)

    @torch.no_grad()
    def right_by_gap(self, samples: Sequence[TrainingSample], most: int = 16) -> list[float]:
        """The share of first, second, ... gaps whose likeliest token is right.

        Args:
            samples: Prompts with answers; the first 200 are used, cut after every fourth token.
            most: Gaps after a cut, at most. Default 16.

        Returns:
            One share for each gap that was met.
        """
        right = np.zeros(most)
        count = np.zeros(most)
        for s in samples[:200]:
            for at in range(0, len(s.output_ids), 4):
                length = min(most, len(s.output_ids) - at)
                # All tokens of the block are gaps, as when the draft begins.
                row = self.cut_sample(s, at, range(length), length)
                same = (self.gap_logits([row]).argmax(-1) == torch.tensor(row.right)).numpy()
                right[:length] += same
                count[:length] += 1
        return [round(float(r / n), 4) for r, n in zip(right, count) if n]
