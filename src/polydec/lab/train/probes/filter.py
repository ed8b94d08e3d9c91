"""Which tokens of a block are right already? From a model's own runs (Learn2PD).

The target answers one token a pass. Each answer is replayed by writing all tokens that are right as
soon as they are the likeliest, and what the confidences were when which were right is learned.
Every tenth run is set aside.
"""

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
from polydec.lab.train.envelope import tensor_digest
from polydec.lab.train.probe import ProbeExamples, ProbeTraining, TrainableProbe
from polydec.lab.train.specs.probe.filter import FilterSpec
from polydec.lab.train.specs.probe.value import ValueSpec
from polydec.lab.train.target import require_family
from polydec.lab.train.tasks import draw_task, task_variety
from polydec.methods.registry.family import MASKED_DIFFUSION, family_of
from polydec.models.learned.kinds import filter as filters
from polydec.models.learned.kinds.filter import ConfidenceFilter
from polydec.request.loaded import LoadedModel
from polydec.request.loading import load

R = TypeVar("R")


def prepare_probe(spec: FilterSpec) -> ProbeTraining[ProbeExamples]:
    """Let the target answer, and replay its answers.

    Raises:
        RequestError: The target is no masked-diffusion model, or no prompt fits.
    """
    lm = load_diffusion_model(spec.target)
    model = lm.checkpoint.lm
    prompts = filter_training_prompts(lm, spec)
    finals = fill_answer_canvases(model, prompts, spec)
    pairs = run_in_batches(
        [_pairs(model, p, final, spec) for p, final in zip(prompts, finals, strict=True)]
    )
    aside = [p for i, p in enumerate(pairs) if i % 10 == 9] or pairs
    # A row is one pass over one block: the confidences there, and which tokens were right already.
    sure_NB, right_NB, _ = (
        torch.cat(t) for t in zip(*(p for i, p in enumerate(pairs) if i % 10 != 9))
    )

    def build(*t: Tensor) -> ConfidenceFilter:
        return ConfidenceFilter(((t[0], t[1]), (t[2], t[3])), spec.written)

    # As many hidden units as positions where nobody says how many.
    start = filters.new_confidence_filter(spec.block, spec.hidden or spec.block, spec.seed)
    net = TrainableProbe(build, p=[t for layer in start.layers for t in layer])

    def part_loss(part: ProbeExamples) -> Tensor:
        return binary_cross_entropy_with_logits(
            net.current_probe().filter_logits(part.input_NX), part.label_N
        )

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the filter as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; it goes into config.json.
        """
        about = {"target": spec.target, "tasks": list(spec.tasks), **result}
        filters.save(out, net.current_probe(), about)

    return ProbeTraining(
        net,
        ProbeExamples(sure_NB, right_NB),
        part_loss,
        lambda: {"pairs": len(sure_NB), **_judge(net.current_probe(), aside)},
        save_result,
        identity={"pairs": tensor_digest(right_NB)},
        schedule={"weight_decay": 0.0},
    )


def load_diffusion_model(name: str) -> LoadedModel:
    """The target of this name. Raises RequestError where it is no masked-diffusion model."""
    lm = load(name, draft=None)
    require_family(MASKED_DIFFUSION, family_of(lm.checkpoint.lm), name)
    return lm


def draw_task_prompts(lm: LoadedModel, spec: FilterSpec | ValueSpec) -> list[tuple[int, ...]]:
    """Prompts of the tasks in turn, none of a question that is held out.

    Args:
        lm: The model whose tokens the prompts are of.
        spec: Names the tasks, how many of each, and the randomness.

    Returns:
        Token ids of each prompt.
    """
    of = task_variety(spec.varied)
    return [
        lm.encode_prompt(draw_task(name, spec.seed, i, of=of).question)
        for i in range(spec.each)
        for name in spec.tasks
    ]


def filter_training_prompts(lm: LoadedModel, spec: FilterSpec) -> list[tuple[int, ...]]:
    """Draw the prompts that the target answers; none is of a question that is held out.

    Args:
        lm: The model whose tokens the prompts are of.
        spec: Names the tasks, or a text of one's own whose prompts are taken instead.

    Returns:
        Token ids of each prompt.

    Raises:
        RequestError: No prompt of one's own text leaves room for its answer.
    """
    if spec.data is not None:
        own = selfplay.draw_prompts(training_data(spec.data), spec.each, seed=spec.seed)
        ids = [lm.encode_prompt(user) for _, user in own]
        fitting = [x for x in ids if len(x) + spec.max_tokens <= lm.network.context]
        if not fitting:
            raise RequestError(
                f"data is {spec.data!r:.100}: no prompt in it leaves room for {spec.max_tokens} tokens in "
                f"a context of {lm.network.context}: give shorter prompts, or a smaller --max-tokens"
            )
        return fitting
    return draw_task_prompts(lm, spec)


def fill_answer_canvases(
    model: Denoiser, prompts: Sequence[Sequence[int]], spec: FilterSpec
) -> list[Canvas]:
    """Let the model answer prompts, many at a time.

    Args:
        model: The target.
        prompts: Token ids of each.
        spec: Says how long an answer and a block are.

    Returns:
        Of each prompt the canvas that `fill_answer_canvas` fills.
    """
    return run_in_batches([fill_answer_canvas(model, prompt, spec) for prompt in prompts])


def run_in_batches(work: Sequence[Coroutine[Any, Any, R]], most: int = 64) -> list[R]:
    """Run coroutines that ask a model, so that some of them share passes.

    Args:
        work: What is to be run.
        most: How many run together.

    Returns:
        What each of them comes to, in their order.
    """
    return [x for i in range(0, len(work), most) for x in run_coroutines(work[i : i + most])]


async def _pairs(
    model: Denoiser, prompt: Sequence[int], final: Canvas, spec: FilterSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Replay one answer: confidences, which tokens were right, and which positions were gaps.

    Each is ``[passes, block]``, blocks one after the other.
    """
    canvas: list[int | None] = [*prompt, *(None,) * spec.max_tokens]
    board = model.open_canvas(len(canvas), len(prompt))
    sure = list[Tensor]()
    right = list[Tensor]()
    gap = list[Tensor]()
    for start in range(len(prompt), len(canvas), spec.block):
        block = range(start, min(start + spec.block, len(canvas)))
        while rows := [i for i in block if canvas[i] is None]:
            asked = block if spec.written else rows
            value_A, token_A = (await _laws(board, canvas, asked)).max(-1)
            # What is not asked counts as sure and right: written places, and those behind the end.
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
            # Where none is right, the whole block is written as it became.
            for r in hits or rows:
                canvas[r] = final[r]
    board.close()
    return torch.stack(sure), torch.stack(right), torch.stack(gap)


async def fill_answer_canvas(model: Denoiser, prompt: Sequence[int], spec: FilterSpec) -> Canvas:
    """Write one token a pass, the surest first, block by block.

    Args:
        model: The target.
        prompt: Token ids that stand first.
        spec: Says how long the answer and a block are.

    Returns:
        The prompt and the answer. Gaps behind an end of text are filled as well.
    """
    canvas: list[int | None] = [*prompt, *(None,) * spec.max_tokens]
    board = model.open_canvas(len(canvas), len(prompt))
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
    return (await board.score_canvas(tuple(canvas), rows, range(len(canvas)))).log_softmax(-1)


def _judge(
    made: ConfidenceFilter, pairs: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> dict[str, float]:
    """Precision and recall of tokens that it finds right at 0.96, in gaps of runs set aside."""
    sure_NB, right_NB, gap_NB = (torch.cat(t) for t in zip(*pairs))
    gap = gap_NB > 0
    kept = (made.filter_logits(sure_NB).sigmoid() > 0.96)[gap]
    right = (right_NB > 0)[gap]
    both = float((kept & right).sum())
    return {
        "precision": both / max(1.0, float(kept.sum())),
        "recall": both / max(1.0, float(right.sum())),
    }
