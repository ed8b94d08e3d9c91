"""`polydec train dparallel`: a masked-diffusion model learns to be sure of more tokens at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.lora import add_lora_adapters, merge_lora_adapters
from polydec.lab.train.network import TrainableLlama, from_weights, make_bidirectional
from polydec.lab.train.probes.filter import fill_answer_canvases, filter_training_prompts
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.dparallel import DParallelSpec
from polydec.lab.train.specs.probe.filter import FilterSpec
from polydec.lab.train.target import of_one_canvas
from polydec.models.sessions import sources
from polydec.request.loading import load

COOL = 0.5
"""The temperature of the laws whose entropy is pressed down."""


def train_dparallel(spec: DParallelSpec) -> dict[str, Any]:
    """Certainty-forcing distillation: a masked-diffusion model learns from its own answers.

    See `run_training` for what is returned and how an interrupted run goes on.

    Source: Chen et al., dParallel (2025). There LoRA is trained (`lora`) and half of one block
    masked (`half`, `block`); here, unless told so, all weights, and any share of the answer.
    """
    return run_training("dparallel", spec, _course)


def _course(spec: DParallelSpec) -> TrainingRun:
    lm = load(spec.target, draft=None)
    of_one_canvas(lm.checkpoint.lm, spec.target)
    # The target fills one canvas for each prompt before training; these answers are the labels.
    asking = FilterSpec(
        "",
        spec.target,
        spec.tasks,
        spec.each,
        spec.max_tokens,
        spec.max_tokens,
        seed=spec.seed,
        varied=spec.varied,
        data=spec.data,
    )
    prompts = filter_training_prompts(lm, asking)
    # Of each answer: tokens of the prompt, and the filled canvas.
    own = [
        (len(p), [x or 0 for x in canvas])
        for p, canvas in zip(
            prompts, fill_answer_canvases(lm.checkpoint.lm, prompts, asking), strict=True
        )
    ]
    source = sources.open_source(spec.target)
    mask = lm.checkpoint.lm.mask
    # The trainable copy has the target's weights; the loaded model only wrote the answers.
    network = (
        make_bidirectional(from_weights(source.config, source.weights)).requires_grad_(True).train()
    )
    if spec.lora:
        add_lora_adapters(network, spec.lora, spec.seed)
    end, bf16 = next(iter(lm.checkpoint.lm.vocab.eos)), is_bf16_run(Path(spec.out) / STATE)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rng = torch.Generator().manual_seed(spec.seed * 1_000_003 + step)
        picked = [own[int(i)] for i in torch.randint(len(own), (spec.rows,), generator=rng)]
        size = max(len(row) for _, row in picked)
        # Rows of different length are filled up with the end token, which nothing sees.
        token_BT = torch.tensor([row + [end] * (size - len(row)) for _, row in picked])
        canvas_BT = torch.tensor([[i < len(row) for i in range(size)] for _, row in picked])
        answer_BT = torch.tensor([[i >= n for i in range(size)] for n, _ in picked]) & canvas_BT
        part_BT, later_BT = split_answer_blocks(answer_BT, spec.block, rng)
        with bf16_autocast(bf16):
            return certain_loss(
                network,
                token_BT,
                canvas_BT,
                part_BT,
                mask,
                rng,
                spec.beta,
                later_BT,
                spec.half,
            ), token_BT.numel()

    def save_model(out: Path, result: Mapping[str, Any]) -> None:
        """Save the trained model as a checkpoint in float16.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        merge_lora_adapters(network)
        # The weights are complete now: the checkpoint no longer takes any from another model.
        config = {k: v for k, v in source.config.items() if k != "polydec_base"}
        half = {name: t.half() for name, t in network.state_dict().items()}
        sources.save_checkpoint(
            out, {**config, "torch_dtype": "float16"}, half, source.text, source.generation
        )

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, log_every=min(20, spec.steps)),
        run_identity(
            spec, bf16=bf16, answers=tensor_digest(*(torch.tensor(row) for _, row in own))
        ),
        save_model,
        lambda: {"answers": len(own)},
    )


def split_answer_blocks(
    answer_BT: Tensor, block: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw one block of each answer.

    Args:
        answer_BT: Which positions belong to the answer, shape ``[B, T]``.
        block: Tokens of a block, the last of which may be shorter; 0: the answer is one block.
        rng: Source of the choice; it is advanced.

    Returns:
        The positions of the drawn block, and those of the answer after it, both of shape ``[B,
        T]``.
    """
    if not block:
        return answer_BT, torch.zeros_like(answer_BT)
    # The number of the block of each position, from 0.
    at_BT = (answer_BT.cumsum(-1) - 1).clamp(min=0) // block
    count_B = (answer_BT.sum(-1) + block - 1) // block
    drawn_B = (torch.rand(len(answer_BT), generator=rng) * count_B).long()
    return (
        answer_BT & (at_BT == drawn_B[:, None]),
        answer_BT & (at_BT > drawn_B[:, None]),
    )


def certain_loss(
    network: TrainableLlama,
    token_BT: Tensor,
    canvas_BT: Tensor,
    answer_BT: Tensor,
    mask: int,
    rng: torch.Generator,
    beta: float,
    later_BT: Tensor | None = None,
    half: bool = False,
) -> Tensor:
    """Cross-entropy to the model's own tokens, and an entropy term that makes right guesses surer.

    A share of each answer is masked, and in a second copy the rest. Where the likeliest token is
    the model's own, `beta` times the entropy (of laws at temperature COOL) is added: a wrong token
    is never made surer. Shares are uniform in 0 to 1, spread evenly over the batch, as decoding
    begins with an empty canvas, which half of an answer never shows.

    Args:
        network: The network in training.
        token_BT: Token ids of prompt and answer, shape ``[B, T]``.
        canvas_BT: Which positions belong to a row, shape ``[B, T]``; nothing sees the others, so a
            row is as in decoding.
        answer_BT: Which positions are learned, shape ``[B, T]``.
        mask: Id of a gap.
        rng: Source of the masks; it is advanced.
        beta: Weight of the entropy, 0 or more.
        later_BT: Positions that are gaps in both copies, of which nothing is learned, shape ``[B,
            T]``; None: there are none.
        half: Whether half of each answer is masked in every row. Default False.

    Returns:
        The loss in nats, summed over both copies.
    """
    B, T = token_BT.shape
    # One draw for the batch, and a permutation that gives each row its own stratum.
    share_B1 = ((torch.rand((), generator=rng) + torch.randperm(B, generator=rng)) / B)[:, None]
    if half:
        share_B1 = torch.full_like(share_B1, 0.5)
    first_BT = (torch.rand(B, T, generator=rng) < share_B1) & answer_BT
    see_B1TT = canvas_BT[:, None, None].expand(-1, 1, T, -1)
    total = torch.zeros(())
    # Both copies see the same canvas; each predicts what the other shows.
    for hidden_BT in (first_BT, answer_BT & ~first_BT):
        if later_BT is None:
            gap_BT = hidden_BT
        else:
            gap_BT = hidden_BT | later_BT
        logits = network(token_BT.masked_fill(gap_BT, mask), None, see_B1TT).float()
        # Only masked positions are learned; the mask itself is never predicted.
        logits = logits.index_fill(-1, torch.tensor([mask]), -1e9)[hidden_BT]
        label = token_BT[hidden_BT]
        # Nothing to learn: an empty sum is 0 and has a gradient, so that a batch without answers can
        # be trained on.
        if not len(label):
            total = total + logits.sum()
            continue
        total = total + F.cross_entropy(logits, label)
        logp = (logits / COOL).log_softmax(-1)
        # Only right guesses are made surer.
        entropy = -(logp.exp() * logp).sum(-1)[logits.argmax(-1) == label]
        if beta and len(entropy):
            total = total + beta * entropy.mean()
    return total
