"""Does a method that fills a canvas by draws keep the law of its schedule? Every token against a
pass that keeps nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from polydec.core.canvas_law import Canvas, Denoiser
from polydec.core.law import float64_probabilities
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent, OpenedEvent, TraceEvent
from polydec.core.types import TextEdit
from polydec.lab.bench.chance import chi_square_tail
from polydec.lab.bench.forced import token_fate
from polydec.lab.bench.places import TokenPlace
from polydec.lab.bench.sampled_laws import CELLS, LawTest, SampledToken, SamplingFindings
from polydec.lab.bench.trials import MethodTrial
from polydec.lab.bench.watched_samples import conclude_watched_law, watch_method
from polydec.methods.diffusion.loop.events import UnmaskedEvent
from polydec.methods.diffusion.loop.types import UnmaskerView, canvas_with_edit, gap_positions
from polydec.methods.registry import registry

CLOSE = 1e-3
"""By how much a probability may differ between a method's pass and a fresh one: their shapes round
otherwise."""
GAP = -1
"""What stands for a gap in the text before a token."""


@dataclass(frozen=True)
class CanvasWrite:
    """What one pass wrote into one canvas.

    Attributes:
        canvas: The canvas before the pass, None for a gap.
        block: Positions that could be filled.
        write: Position and token id of each gap that was filled, in the order of writing.
        sure: How likely the method's own pass found each token, by position.
    """

    canvas: Canvas
    block: range
    write: tuple[tuple[int, int], ...]
    sure: Mapping[int, float]


@dataclass
class CanvasWriteObserver:
    """An observer that notes every pass of every choice.

    Attributes:
        begin: The canvas that every choice starts from.
        passes: What the passes of each choice wrote, in order.
        now: The present canvas of each choice.
        new: Writes of each choice that no pass has claimed yet.
        kinds: The events that it listens to.
    """

    begin: Canvas
    passes: defaultdict[int, list[CanvasWrite]] = field(
        default_factory=lambda: defaultdict[int, list[CanvasWrite]](list)
    )
    now: dict[int, Canvas] = field(default_factory=dict[int, Canvas])
    new: defaultdict[int, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict[int, list[tuple[int, int]]](list)
    )
    kinds: ClassVar[tuple[type[TraceEvent], ...]] = (OpenedEvent, EditedEvent, UnmaskedEvent)

    def __call__(self, event: TraceEvent) -> None:
        if isinstance(event, EditedEvent):
            self.new[event.choice] += event.edit.write
        elif isinstance(event, UnmaskedEvent):
            canvas = self.now.get(event.choice, self.begin)
            write = self.new.pop(event.choice, [])
            sure = dict(zip(event.position, event.confidence, strict=True))
            # Tokens that the request gave are written as well: no pass has a confidence for them.
            mine = tuple((p, x) for p, x in write if p in sure)
            self.passes[event.choice].append(CanvasWrite(canvas, range(*event.block), mine, sure))
            self.now[event.choice] = canvas_with_edit(canvas, TextEdit(write=mine))


def sample_canvas_law(trial: MethodTrial) -> SamplingFindings:
    """Draw texts and test every token against the law that a fresh pass over the same canvas gives
    its position, and every position against the order that the method promises.

    Args:
        trial: A method that fills a canvas by draws, on a masked-diffusion model, and the requests
            for its texts.

    Returns:
        The tests and what they come to.
    """
    denoiser: Denoiser = trial.lm.checkpoint.lm
    gaps = (None,) * trial.request["max_tokens"]
    # The canvases as they stand before the first pass: the prompt and nothing but gaps.
    begins: list[Canvas] = [
        (*trial.lm.encode_prompt(prompt, raw=raw), *gaps) for prompt, raw in trial.prompts
    ]
    watched = watch_method(trial, lambda at: CanvasWriteObserver(begins[at]))
    rng = np.random.default_rng(trial.seed)
    drawn = list[SampledToken]()
    turns = list[Turn]()
    stale = LawTest("cache", 1.0, 0.0)
    fresh = 0
    for answer in watched.answers:
        first = len(begins[answer.prompt]) - len(gaps)
        count = 0
        # Each pass of the method against a fresh one over the canvas as it was then.
        for step, written in enumerate(answer.watch.passes[answer.choice], 1):
            fresh += 1
            look = _look(denoiser, first, written, answer.shapers)
            for depth, (p, token) in enumerate(written.write, 1):
                # The method's own confidence shows whether its pass saw the law that a fresh pass
                # gives.
                row = look.rows.index(p)
                off = abs(float(look.logp_RV[row, token].exp()) - written.sure[p])
                if off > max(CLOSE, stale.off):
                    where = f"{answer.place_words}, pass {step}, position {p - first}"
                    what = f"{where}: its law is not that of a fresh pass"
                    stale = LawTest("cache", 0.0, off, what)
                law_V = float64_probabilities(look.shaped_RV[row]).cpu().numpy()
                fate = token_fate(law_V, token, rng.random())
                # Draws of equal canvases and position are compared with each other: together they
                # name the law.
                before = (p, *(GAP if x is None else x for x in written.canvas[first:]))
                place = TokenPlace(step, depth, False)
                drawn.append(answer.sampled_token(count, token, place, fate, before))
                count += 1
            turns += _turns(written)
    more = [stale]
    if (name := registry.get_recipe_module(trial.method).CARD.name) in ORDERS:
        more.append(ORDERS[name](turns, rng))
    return conclude_watched_law(watched.sample_of(drawn), more, fresh)


def _look(denoiser: Denoiser, begin: int, written: CanvasWrite, shapers: Any) -> UnmaskerView:
    """What a pass that keeps nothing sees at the positions that were written."""
    rows = tuple(sorted(p for p, _ in written.write))
    # A block-causal model sees up to the end of the block that is filled.
    own = denoiser.block
    if own:
        stop = min(len(written.canvas), -(-written.block.stop // own) * own)
    else:
        stop = len(written.canvas)

    async def ask_once() -> Tensor:
        board = denoiser.open_canvas(len(written.canvas), begin)
        try:
            return await board.score_canvas(written.canvas, rows, range(stop))
        finally:
            board.close()

    return UnmaskerView(
        written.canvas, written.block, rows, run_coroutines([ask_once()])[0], shapers
    )


# In which order the gaps are filled

Turn = tuple[int, int]
"""Of a position that was filled: which of its block's gaps it was, from the left, and of how many.
"""


def _turns(written: CanvasWrite) -> list[Turn]:
    """Of every position of a pass, where there was a choice."""
    left = list(gap_positions(written.canvas, written.block.start, written.block.stop))
    out = list[Turn]()
    for p, _ in written.write:
        # The last gap of a block leaves no choice and tells nothing of the order.
        if len(left) > 1:
            out.append((left.index(p), len(left)))
        left.remove(p)
    return out


def any_gap(turns: Sequence[Turn], rng: np.random.Generator) -> LawTest:
    """Test whether every gap is as likely as the others to be filled next.

    Args:
        turns: Of each filled position its number among the gaps from the left, and how many gaps
            there were.
        rng: Spreads each turn evenly over its gap's share, so that blocks of any number of gaps
            fill the same cells.

    Returns:
        A chi-square test of even cells; with p = 1 where there are too few turns.
    """
    each = len(turns) / CELLS
    if each < 5.0:
        return LawTest("order", 1.0, 0.0)
    shares = [(i + rng.random()) / n for i, n in turns]  # evenly within a gap's own share
    counts = np.bincount([int(x * CELLS) for x in shares], minlength=CELLS)
    x = float(((counts - each) ** 2).sum() / each)
    what = "gaps in the order in which they are filled, from the left"
    return LawTest("order", chi_square_tail(x, CELLS - 1), x, what)


def first_gap(turns: Sequence[Turn], rng: np.random.Generator) -> LawTest:
    """Test whether the leftmost gap is always the one that is filled.

    Args:
        turns: Of each filled position its number among the gaps from the left, and how many gaps
            there were.
        rng: Unused; it is there as all tests of an order are called alike.

    Returns:
        A test with p = 0 where any other gap was filled, else 1.
    """
    wrong = sum(i > 0 for i, _ in turns)
    if wrong:
        what = f"{wrong} times a gap was filled that is not the leftmost"
    else:
        what = ""
    return LawTest("order", 0.0 if wrong else 1.0, float(wrong), what)


ORDERS: Mapping[str, Callable[[Sequence[Turn], np.random.Generator], LawTest]] = {
    "mdlm": any_gap,
    "left-to-right": first_gap,
}
"""What a method promises of the order of gaps."""
