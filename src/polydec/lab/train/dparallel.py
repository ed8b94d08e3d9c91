"""`polydec train dparallel`: a masked-diffusion model learns from its own answers to be sure of more tokens at once."""

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
from polydec.lab.train.specs.probe import FilterSpec
from polydec.lab.train.target import of_one_canvas
from polydec.models.sessions import sources
from polydec.request.loading import load

COOL = 0.5
"""The temperature of the laws whose entropy is pressed down."""


def train_dparallel(spec: DParallelSpec) -> dict[str, Any]:
    """Certainty-forcing distillation; see `carry_out`.

    Source: Chen et al., dParallel (2025). There LoRA is trained (`lora`) and half of one block masked (`half`, `block`); here,
    unless told so, all weights, and any share of the answer."""
    return run_training("dparallel", spec, _course)


def _course(spec: DParallelSpec) -> TrainingRun:
    lm = load(spec.target, draft=None)
    of_one_canvas(lm.checkpoint.lm, spec.target)
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
    own = [
        (len(p), [x or 0 for x in canvas])
        for p, canvas in zip(
            prompts, fill_answer_canvases(lm.checkpoint.lm, prompts, asking), strict=True
        )
    ]
    source = sources.open_source(spec.target)
    mask = lm.checkpoint.lm.mask
    network = (
        make_bidirectional(from_weights(source.config, source.weights)).requires_grad_(True).train()
    )
    if spec.lora:
        add_lora_adapters(network, spec.lora, spec.seed)
    end, bf16 = next(iter(lm.checkpoint.lm.vocab.eos)), is_bf16_run(Path(spec.out) / STATE)

    def loss(step: int) -> tuple[Tensor, int]:
        rng = torch.Generator().manual_seed(spec.seed * 1_000_003 + step)
        picked = [own[int(i)] for i in torch.randint(len(own), (spec.rows,), generator=rng)]
        size = max(len(row) for _, row in picked)
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

    def kept(out: Path, result: Mapping[str, Any]) -> None:
        merge_lora_adapters(network)
        config = {k: v for k, v in source.config.items() if k != "polydec_base"}
        half = {name: t.half() for name, t in network.state_dict().items()}
        sources.save_checkpoint(
            out, {**config, "torch_dtype": "float16"}, half, source.text, source.generation
        )

    return TrainingRun(
        network,
        loss,
        TrainingSchedule(spec.steps, spec.rate, log_every=min(20, spec.steps)),
        run_identity(
            spec, bf16=bf16, answers=tensor_digest(*(torch.tensor(row) for _, row in own))
        ),
        kept,
        lambda: {"answers": len(own)},
    )


def split_answer_blocks(
    answer_BT: Tensor, block: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Of each answer the positions of one of its blocks, drawn, and those behind it; without blocks all, and none. The last
    block may be shorter."""
    if not block:
        return answer_BT, torch.zeros_like(answer_BT)
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
    """A share of each answer masked, and in a second copy the rest: the cross-entropy to the model's own tokens, and `beta`
    times the entropy (of laws at temperature COOL) where the likeliest token is that one. A wrong token is never made surer.

    Shares are uniform in 0 to 1, spread evenly over the batch: decoding begins with an empty canvas, which half of an answer
    never shows. half: half of it all the same. later_BT: gaps as well, in both copies, of which nothing is learned. canvas_BT:
    positions of a row; nothing sees the others, so a row is as in decoding."""
    B, T = token_BT.shape
    share_B1 = ((torch.rand((), generator=rng) + torch.randperm(B, generator=rng)) / B)[:, None]
    if half:
        share_B1 = torch.full_like(share_B1, 0.5)
    first_BT = (torch.rand(B, T, generator=rng) < share_B1) & answer_BT
    see_B1TT = canvas_BT[:, None, None].expand(-1, 1, T, -1)
    total = torch.zeros(())
    for hidden_BT in (first_BT, answer_BT & ~first_BT):
        if later_BT is None:
            gap_BT = hidden_BT
        else:
            gap_BT = hidden_BT | later_BT
        logits = network(token_BT.masked_fill(gap_BT, mask), None, see_B1TT).float()
        logits = logits.index_fill(-1, torch.tensor([mask]), -1e9)[hidden_BT]
        label = token_BT[hidden_BT]
        if not len(label):
            continue
        total = total + F.cross_entropy(logits, label)
        logp = (logits / COOL).log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1)[logits.argmax(-1) == label]
        if beta and len(entropy):
            total = total + beta * entropy.mean()
    return total
