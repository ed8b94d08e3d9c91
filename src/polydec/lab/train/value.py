"""`polydec train value`: what a half-filled canvas will be worth, from a model's own unguided runs (SVDD-MC)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent
from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.value import ValueSpec
from polydec.lab.train.target import require_family
from polydec.lab.train.tasks import draw_task, task_variety
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.types import canvas_with_edit
from polydec.methods.diffusion.loop.worths import AnswerTextReward
from polydec.methods.diffusion.refreshes import exact_refresh
from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker
from polydec.methods.registry.family import MASKED_DIFFUSION, family_of
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import value
from polydec.models.learned.kinds.reward import TextReward
from polydec.models.learned.kinds.value import ValueNetwork
from polydec.request.loaded import LoadedModel
from polydec.request.loading import load

Lesson = tuple[list[Canvas], float]
"""The canvases of one run, and what its answer was worth."""


def train_value(spec: ValueSpec) -> dict[str, Any]:
    """Let the target answer, gaps in random order, and learn from every canvas on the way what the answer was worth (squared
    error); what was measured. Every tenth run is set aside: the weights are those that foretold these best. See `carry_out`.
    Raises RequestError where the target is no masked-diffusion model, or the reward is none of texts."""
    return run_training("value", spec, _course)


def _course(spec: ValueSpec) -> TrainingRun:
    lm = load(spec.target, draft=None)
    require_family(MASKED_DIFFUSION, family_of(lm.checkpoint.lm), spec.target)
    judge = artefacts.load_artefact(spec.reward)
    if not isinstance(judge, TextReward):
        raise RequestError(
            f"reward is {spec.reward!r}: it holds {judge.called}; `{TextReward.made_by}` makes a reward of texts"
        )
    lessons = draw_value_runs(lm, judge, spec)
    kept = [x for i, x in enumerate(lessons) if i % 10 != 9] or lessons
    token_NT, length_N, worth_N = stack_run_canvases(kept)
    mean, spread = float(worth_N.mean()), max(float(worth_N.std(correction=0)), 1e-6)
    net = _TrainableValueNetwork(lm.checkpoint.lm.vocab, spec.width, spec.seed)

    def loss(step: int) -> tuple[Tensor, int]:
        g = torch.Generator().manual_seed(spec.seed * 1_000_003 + step)
        picked = torch.randint(len(worth_N), (spec.rows,), generator=g)
        said_B = net.made().values(token_NT[picked], length_N[picked])
        return mse_loss(said_B, (worth_N[picked] - mean) / spread), spec.rows

    schedule = TrainingSchedule(
        spec.steps, spec.rate, weight_decay=0.0, log_every=min(20, spec.steps)
    )
    token_HT, length_H, worth_H = stack_run_canvases(
        [x for i, x in enumerate(lessons) if i % 10 == 9] or kept
    )

    def aside() -> Tensor:
        return mse_loss(net.made(mean, spread).values(token_HT, length_H), worth_H)

    def measure() -> Mapping[str, Any]:
        with torch.inference_mode():
            error = float(aside()) ** 0.5
        return {
            "canvases": len(worth_N) + len(worth_H),
            "error": error,
            "spread": float(worth_H.std(correction=0)),
        }

    def save(out: Path, result: Mapping[str, Any]) -> None:
        learned = {"target": spec.target, "reward": spec.reward, **result}
        value.save(out, net.made(mean, spread), learned)

    same = run_identity(spec, canvases=len(worth_N))
    return TrainingRun(net, loss, schedule, same, save, measure, aside)


class _TrainableValueNetwork(torch.nn.Module):
    """A value network's numbers, to train."""

    def __init__(self, vocab: TokenVocabulary, width: int, seed: int) -> None:
        super().__init__()
        layers = value.new_value_network(vocab, width, seed)
        self.vocab = vocab
        weights = (layers.embed_VW, *layers.one, *layers.two, *layers.out)
        self.p = torch.nn.ParameterList(torch.nn.Parameter(t) for t in weights)

    def made(self, mean: float = 0.0, spread: float = 1.0) -> ValueNetwork:
        """The network as it is now, whose values are worths of this mean and spread."""
        e, w1, b1, w2, b2, w3, b3 = self.p
        return ValueNetwork(e, (w1, b1), (w2, b2), (w3 * spread, b3 * spread + mean), self.vocab)


def draw_value_runs(lm: LoadedModel, judge: TextReward, spec: ValueSpec) -> list[Lesson]:
    """Answers of the target to the tasks in turn, none of a question that is held out."""
    model = lm.checkpoint.lm
    of = task_variety(spec.varied)
    shapers = build_shapers(Sampling(temperature=spec.temperature), seed=spec.seed, choice=0)
    how = DenoisingDecoder(model, AtRandomUnmasker(), exact_refresh(model.block), 0, shapers)
    prompts = [
        lm.ids(draw_task(name, spec.seed, i, of=of).question)
        for i in range(spec.each)
        for name in spec.tasks
    ]
    return [one_run(how, judge, prompt, spec, i) for i, prompt in enumerate(prompts)]


def one_run(
    how: DenoisingDecoder, judge: TextReward, prompt: tuple[int, ...], spec: ValueSpec, number: int
) -> Lesson:
    """One answer, and the canvas behind each of its passes."""
    events = list[Any]()
    seed = spec.seed * 1_000_003 + number
    request = Request(prompt, spec.max_tokens, seed=seed)
    out = run_coroutines([answer_one(how, request, on=events.append)])[0]
    canvas: Canvas = (*prompt, *(None,) * spec.max_tokens)
    canvases = list[Canvas]()
    for event in events:
        if isinstance(event, EditedEvent) and event.edit.write:
            canvas = canvas_with_edit(canvas, event.edit)
            canvases.append(canvas)
    asked = AnswerTextReward(judge.judge).open(prompt, how.vocab)
    return canvases, run_coroutines([asked.worth(out.token_ids)])[0]


def stack_run_canvases(lessons: list[Lesson]) -> tuple[Tensor, Tensor, Tensor]:
    """Canvases [N, T], -1 at gaps and behind them, their lengths [N], and what their answers were worth [N]."""
    every = [(canvas, worth) for canvases, worth in lessons for canvas in canvases]
    token_NT = torch.full((len(every), max(len(c) for c, _ in every)), -1)
    for i, (canvas, _) in enumerate(every):
        token_NT[i, : len(canvas)] = torch.tensor([-1 if x is None else x for x in canvas])
    lengths = torch.tensor([len(c) for c, _ in every])
    return token_NT, lengths, torch.tensor([worth for _, worth in every])
