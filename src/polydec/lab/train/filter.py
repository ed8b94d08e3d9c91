"""`polydec train filter`: which tokens of a block are right already? From a model's own runs (Learn2PD)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas, Denoiser
from polydec.core.scheduler import run_coroutines
from polydec.lab.train import selfplay
from polydec.lab.train.data import training_data
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.filter import FilterSpec
from polydec.lab.train.target import require_family
from polydec.lab.train.tasks import draw_task, task_variety
from polydec.methods.registry.family import MASKED_DIFFUSION, family_of
from polydec.models.learned.kinds import filter as filters
from polydec.request.loaded import LoadedModel
from polydec.request.loading import load

R = TypeVar("R")


def train_filter(spec: FilterSpec) -> dict[str, Any]:
    """Let the target answer one token a pass, replay each answer by writing all tokens that are right as soon as they are the
    likeliest, and learn from what the confidences were when which were right. Every tenth run is set aside. See
    `carry_out`."""
    return run_training("filter", spec, _course)


def _course(spec: FilterSpec) -> TrainingRun:
    lm = load(spec.target, draft=None)
    require_family(MASKED_DIFFUSION, family_of(lm.checkpoint.lm), spec.target)
    prompts = filter_training_prompts(lm, spec)
    finals = fill_answer_canvases(lm.checkpoint.lm, prompts, spec)
    pairs = run_in_batches(
        [_pairs(lm.checkpoint.lm, p, final, spec) for p, final in zip(prompts, finals, strict=True)]
    )
    aside = [p for i, p in enumerate(pairs) if i % 10 == 9]
    sure_NB, right_NB, _ = (
        torch.cat(t) for t in zip(*(p for i, p in enumerate(pairs) if i % 10 != 9))
    )
    net = _TrainableFilter(spec.block, spec.hidden or spec.block, spec.seed)

    def loss(step: int) -> tuple[Tensor, int]:
        return binary_cross_entropy_with_logits(net.filter().logits(sure_NB), right_NB), len(
            sure_NB
        )

    schedule = TrainingSchedule(
        spec.steps, spec.rate, weight_decay=0.0, log_every=min(20, spec.steps)
    )

    def made() -> filters.ConfidenceFilter:
        layers = tuple((w.detach(), b.detach()) for w, b in net.filter().layers)
        return filters.ConfidenceFilter(layers, spec.written)  # pyright: ignore

    def save(out: Path, result: Mapping[str, Any]) -> None:
        filters.save(out, made(), {"target": spec.target, "tasks": list(spec.tasks), **result})

    def measure() -> dict[str, Any]:
        return {"pairs": len(sure_NB), **_judge(made(), aside or pairs)}

    known_as = run_identity(spec, pairs=tensor_digest(right_NB))
    return TrainingRun(net, loss, schedule, known_as, save, measure)


class _TrainableFilter(torch.nn.Module):
    """A filter's numbers, to train."""

    def __init__(self, size: int, hidden: int, seed: int) -> None:
        super().__init__()
        self.p = torch.nn.ParameterList(
            t for layer in filters.new_confidence_filter(size, hidden, seed).layers for t in layer
        )

    def filter(self) -> filters.ConfidenceFilter:
        return filters.ConfidenceFilter(((self.p[0], self.p[1]), (self.p[2], self.p[3])))


def filter_training_prompts(lm: LoadedModel, spec: FilterSpec) -> list[tuple[int, ...]]:
    """Prompts of the tasks, in turn, or of one's own text; none of a question that is held out. Raises RequestError where no
    prompt of one's own leaves room for its answer."""
    if spec.data is not None:
        own = selfplay.draw_prompts(training_data(spec.data), spec.each, seed=spec.seed)
        ids = [lm.ids(user) for _, user in own]
        fitting = [x for x in ids if len(x) + spec.max_tokens <= lm.network.context]
        if not fitting:
            raise RequestError(
                f"data is {spec.data!r:.100}: no prompt in it leaves room for {spec.max_tokens} tokens in "
                f"a context of {lm.network.context}"
            )
        return fitting
    of = task_variety(spec.varied)
    return [
        lm.ids(draw_task(name, spec.seed, i, of=of).question)
        for i in range(spec.each)
        for name in spec.tasks
    ]


def fill_answer_canvases(
    model: Denoiser, prompts: Sequence[Sequence[int]], spec: FilterSpec
) -> list[Canvas]:
    """The canvases that `answer` fills, many at a time."""
    return run_in_batches([fill_answer_canvas(model, prompt, spec) for prompt in prompts])


def run_in_batches(work: Sequence[Coroutine[Any, Any, R]], most: int = 64) -> list[R]:
    """What these come to; `most` of them share passes."""
    return [x for i in range(0, len(work), most) for x in run_coroutines(work[i : i + most])]


async def _pairs(
    model: Denoiser, prompt: Sequence[int], final: Canvas, spec: FilterSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Of one prompt and its answer the confidences, which tokens were right, and which positions were gaps, [passes, block]
    each: blocks one after the other."""
    canvas: list[int | None] = [*prompt, *(None,) * spec.max_tokens]
    board = model.open(len(canvas), len(prompt))
    sure = list[Tensor]()
    right = list[Tensor]()
    gap = list[Tensor]()
    for start in range(len(prompt), len(canvas), spec.block):
        block = range(start, min(start + spec.block, len(canvas)))
        while rows := [i for i in block if canvas[i] is None]:
            asked = block if spec.written else rows
            value_A, token_A = (await _laws(board, canvas, asked)).max(-1)
            u = torch.ones(spec.block)
            z = torch.ones(spec.block)
            g = torch.zeros(spec.block)
            for r, c, x in zip(asked, value_A.exp().tolist(), token_A.tolist(), strict=True):
                u[r - start], z[r - start] = c, float(x == final[r])
            g[[r - start for r in rows]] = 1.0
            hits = [r for r in rows if z[r - start]]
            sure.append(u)
            right.append(z)
            gap.append(g)
            for r in hits or rows:  # none is right: the whole block is written as it became
                canvas[r] = final[r]
    board.close()
    return torch.stack(sure), torch.stack(right), torch.stack(gap)


async def fill_answer_canvas(model: Denoiser, prompt: Sequence[int], spec: FilterSpec) -> Canvas:
    """One token a pass, the surest first, block by block; gaps behind an end are filled as well."""
    canvas: list[int | None] = [*prompt, *(None,) * spec.max_tokens]
    board = model.open(len(canvas), len(prompt))
    for start in range(len(prompt), len(canvas), spec.block):
        while rows := [
            i for i in range(start, min(start + spec.block, len(canvas))) if canvas[i] is None
        ]:
            value_R, token_R = (await _laws(board, canvas, rows)).max(-1)
            best = int(value_R.argmax())
            canvas[rows[best]] = int(token_R[best])
    board.close()
    return tuple(canvas)


async def _laws(board: Any, canvas: Sequence[int | None], rows: Sequence[int]) -> Tensor:
    return (await board.score(tuple(canvas), rows, range(len(canvas)))).log_softmax(-1)


def _judge(
    made: filters.ConfidenceFilter, pairs: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> dict[str, float]:
    """On runs that were set aside: of tokens that it finds right at 0.96 the share that is, and of right ones the share that it
    finds; gaps only."""
    sure_NB, right_NB, gap_NB = (torch.cat(t) for t in zip(*pairs))
    gap = gap_NB > 0
    kept = (made.logits(sure_NB).sigmoid() > 0.96)[gap]
    right = (right_NB > 0)[gap]
    both = float((kept & right).sum())
    return {
        "precision": both / max(1.0, float(kept.sum())),
        "recall": both / max(1.0, float(right.sum())),
    }
