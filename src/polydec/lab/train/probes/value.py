"""What a half-filled canvas will be worth, from a model's own unguided runs (SVDD-MC).

The target answers, gaps in random order, and from every canvas on the way is learned what the
answer was worth (squared error). Every tenth run is set aside: the weights that foretell these best
are saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import mse_loss

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent
from polydec.lab.train.probe import ProbeExamples, ProbeTraining, TrainableProbe
from polydec.lab.train.probes.filter import draw_task_prompts, load_diffusion_model
from polydec.lab.train.specs.probe.value import ValueSpec
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.methods.diffusion.loop.canvas_rewards import AnswerTextReward
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.types import canvas_with_edit
from polydec.methods.diffusion.refreshes import exact_refresh
from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import value
from polydec.models.learned.kinds.reward import TextReward
from polydec.models.learned.kinds.value import ValueNetwork
from polydec.request.loaded import LoadedModel

ValueRun = tuple[list[Canvas], float]
"""The canvases of one run, and what its answer was worth."""


@dataclass(frozen=True, eq=False)
class CanvasExamples(ProbeExamples):
    """Canvases of tokens, -1 at gaps and behind them, and what their answers were worth.

    Attributes:
        length_N: Positions of each canvas.
    """

    length_N: Tensor


def prepare_probe(spec: ValueSpec) -> ProbeTraining[CanvasExamples]:
    """Let the target answer, and value what it wrote.

    Raises:
        RequestError: The target is no masked-diffusion model, or the reward is none of texts.
    """
    lm = load_diffusion_model(spec.target)
    judge = artefacts.load_artefact(spec.reward)
    if not isinstance(judge, TextReward):
        raise RequestError(
            f"reward is {spec.reward!r}: it holds {judge.called}; `{TextReward.made_by}` makes a reward of texts"
        )
    runs = draw_value_runs(lm, judge, spec)
    learned = [x for i, x in enumerate(runs) if i % 10 != 9] or runs
    lessons = stack_run_canvases(learned)
    held = stack_run_canvases([x for i, x in enumerate(runs) if i % 10 == 9] or learned)
    vocab = lm.checkpoint.lm.vocab
    # The network learns values of mean 0 and spread 1; the saved one gives them as they were.
    mean = float(lessons.label_N.mean())
    spread = max(float(lessons.label_N.std(correction=0)), 1e-6)

    def build(*t: Tensor) -> ValueNetwork:
        return ValueNetwork(t[0], (t[1], t[2]), (t[3], t[4]), (t[5], t[6]), vocab)

    start = value.new_value_network(vocab, spec.width, spec.seed)
    net = TrainableProbe(build, p=(start.embed_VW, *start.one, *start.two, *start.out))

    def in_units() -> ValueNetwork:
        now = net.current_probe()
        weight, bias = now.out
        return replace(now, out=(weight * spread, bias * spread + mean))

    def part_loss(part: CanvasExamples) -> Tensor:
        said_N = net.current_probe().canvas_values(part.input_NX, part.length_N)
        return mse_loss(said_N, (part.label_N - mean) / spread)

    def loss_aside() -> Tensor:
        return mse_loss(in_units().canvas_values(held.input_NX, held.length_N), held.label_N)

    # Its rows have seeds of their own, by which runs of earlier releases go on.
    def make_generator(step: int) -> Generator:
        # A prime factor, so that streams of neighbouring seeds do not meet.
        return torch.Generator().manual_seed(spec.seed * 1_000_003 + step)

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the network as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; it goes into config.json.
        """
        value.save(out, in_units(), {"target": spec.target, "reward": spec.reward, **result})

    return ProbeTraining(
        net,
        lessons,
        part_loss,
        lambda: {
            "canvases": len(lessons) + len(held),
            # The root of the mean square, in the units of the reward.
            "error": float(loss_aside()) ** 0.5,
            "spread": float(held.label_N.std(correction=0)),
        },
        save_result,
        loss_aside,
        {"canvases": len(lessons)},
        {"weight_decay": 0.0},
        make_generator,
    )


def draw_value_runs(lm: LoadedModel, judge: TextReward, spec: ValueSpec) -> list[ValueRun]:
    """Let the target answer the tasks in turn, none of a question that is held out.

    Args:
        lm: The target.
        judge: Values the answers.
        spec: Names the tasks, how many answers of each, and the randomness.

    Returns:
        A run for each answer.
    """
    model = lm.checkpoint.lm
    shapers = build_shapers(Sampling(temperature=spec.temperature), seed=spec.seed, choice=0)
    how = DenoisingDecoder(model, AtRandomUnmasker(), exact_refresh(model.block), 0, shapers)
    prompts = draw_task_prompts(lm, spec)
    return [one_run(how, judge, prompt, spec, i) for i, prompt in enumerate(prompts)]


def one_run(
    how: DenoisingDecoder, judge: TextReward, prompt: tuple[int, ...], spec: ValueSpec, number: int
) -> ValueRun:
    """Let the target write one answer, and keep the canvas behind each of its passes.

    Args:
        how: Decodes, gaps in random order.
        judge: Values the answer.
        prompt: Token ids that stand first.
        spec: Says how long the answer is, and names the randomness.
        number: Of this run, which names its draws.

    Returns:
        The canvases, and what the answer is worth.
    """
    events = list[Any]()
    seed = spec.seed * 1_000_003 + number
    request = Request(prompt, spec.max_tokens, seed=seed)
    out = run_coroutines([answer_one(how, request, on=events.append)])[0]
    # The trace of the run says what each pass wrote: its canvases are made anew from it.
    canvas: Canvas = (*prompt, *(None,) * spec.max_tokens)
    canvases = list[Canvas]()
    for event in events:
        if isinstance(event, EditedEvent) and event.edit.write:
            canvas = canvas_with_edit(canvas, event.edit)
            canvases.append(canvas)
    asked = AnswerTextReward(judge.judge).open_judge(prompt, how.vocab)
    return canvases, run_coroutines([asked.answer_worth(out.token_ids)])[0]


def stack_run_canvases(runs: Sequence[ValueRun]) -> CanvasExamples:
    """Every canvas of these runs, with what its run's answer was worth."""
    every = [(canvas, worth) for canvases, worth in runs for canvas in canvases]
    token_NT = torch.full((len(every), max(len(c) for c, _ in every)), -1)
    for i, (canvas, _) in enumerate(every):
        token_NT[i, : len(canvas)] = torch.tensor([-1 if x is None else x for x in canvas])
    worth_N = torch.tensor([worth for _, worth in every])
    return CanvasExamples(token_NT, worth_N, torch.tensor([len(c) for c, _ in every]))
