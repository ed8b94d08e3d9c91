"""How long an answer will be, from the first state of its prompt (RUM-SUNDAE).

The target reads each question once, and the length of its right answer is learned. Every tenth question
is set aside.

Source: Yoshida, "Making the most of your model" (2024), whose classifier reads its encoder's first state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Denoiser
from polydec.lab.train.diffusion_pairs import read_learned_pairs
from polydec.lab.train.envelope import tensor_digest
from polydec.lab.train.probe import ProbeExamples, ProbeTraining, TrainableProbe
from polydec.lab.train.probes.filter import load_diffusion_model, run_in_batches
from polydec.lab.train.specs.probe.length import LengthSpec
from polydec.lab.train.tasks import draw_task, task_variety
from polydec.methods.diffusion.loop.foretold import first_prompt_state
from polydec.models.learned.kinds import length_head
from polydec.models.learned.kinds.length_head import LengthHead
from polydec.request.loaded import LoadedModel


def prepare_probe(spec: LengthSpec) -> ProbeTraining[ProbeExamples]:
    """Let the target read questions, and count the tokens of their answers.

    Raises:
        RequestError: The target is no masked-diffusion model, or no answer is short enough.
    """
    lm = load_diffusion_model(spec.target)
    model = lm.checkpoint.lm
    state_NH, length_N = read_lengths(lm, model, spec)
    aside_N = torch.arange(len(length_N)) % 10 == 9
    # Of very few questions all are learned, and measured too.
    if bool(aside_N.all()) or not bool(aside_N.any()):
        aside_N = torch.ones(len(length_N), dtype=torch.bool)
    whole = ProbeExamples(state_NH, length_N)
    held = whole.select_rows(aside_N)
    lessons = whole.select_rows(~aside_N) if not bool(aside_N.all()) else whole
    vocab = model.vocab
    start = length_head.new_length_head(state_NH.shape[1], spec.longest, vocab)
    net = TrainableProbe(lambda *t: LengthHead((t[0], t[1]), vocab), out=start.out)

    def part_loss(part: ProbeExamples) -> Tensor:
        return cross_entropy(net.current_probe().length_logits(part.input_NX), part.label_N)

    def loss_aside() -> Tensor:
        return part_loss(held)

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the head as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; it goes into config.json.
        """
        length_head.save(out, net.current_probe(), {"target": spec.target, **result})

    def measure_result() -> Mapping[str, Any]:
        logits_NC = net.current_probe().length_logits(held.input_NX)
        # How far down the list of the likeliest the right length stands.
        right_N = logits_NC.gather(1, held.label_N[:, None])
        rank_N = (logits_NC > right_N).sum(1)
        return {
            "questions": len(length_N),
            "first_right": float((rank_N < 1).double().mean()),
            "of_four_right": float((rank_N < 4).double().mean()),
        }

    return ProbeTraining(
        net,
        lessons,
        part_loss,
        measure_result,
        save_result,
        loss_aside,
        {"lengths": tensor_digest(length_N)},
    )


def read_lengths(lm: LoadedModel, model: Denoiser, spec: LengthSpec) -> tuple[Tensor, Tensor]:
    """First states of prompts, and how long their answers are.

    Args:
        lm: The model whose tokens they are of.
        model: Its law.
        spec: Names the questions.

    Returns:
        States, ``[N, H]``, and lengths in tokens without an end, ``[N]``.

    Raises:
        RequestError: No answer is short enough.
    """
    if spec.pairs is not None:
        asked = [(p.source, p.target) for p in read_learned_pairs(spec.pairs)]
    else:
        of = task_variety(spec.varied)
        tasks = [
            draw_task(name, spec.seed, i, of=of) for i in range(spec.each) for name in spec.tasks
        ]
        asked = [(task.question, task.answer) for task in tasks]
    # The end counts for nothing: it stands behind every answer.
    lengths = [len(lm.checkpoint.text.encode(answer, False)) for _, answer in asked]
    prompts = [lm.encode_prompt(question) for question, _ in asked]
    fitting = [
        i
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        if length <= spec.longest and len(prompt) < model.context
    ]
    if not fitting:
        raise RequestError(
            f"longest is {spec.longest}: none of the {len(asked)} answers is so short behind a prompt that fits"
        )
    # Each question is read once, alone.
    states = run_in_batches([first_prompt_state(model, prompts[i]) for i in fitting])
    return torch.stack(states), torch.tensor([lengths[i] for i in fitting])
