"""Does a method that fills a canvas by draws keep the law of its schedule? Every token against a pass that keeps nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from polydec.api import LM, Prompt, generate
from polydec.core.canvas_law import Canvas, Denoiser
from polydec.core.law import probs
from polydec.core.scheduler import run
from polydec.core.trace import Edited, Event, Opened
from polydec.core.types import Edit
from polydec.lab.bench.chance import beyond
from polydec.lab.bench.forced import Fate, fate
from polydec.lab.bench.places import Place
from polydec.lab.bench.sampled import (
    CELLS,
    Drawn,
    Findings,
    Sample,
    Test,
    concluded,
    pairs,
    spread_over,
    surprises,
    twins,
)
from polydec.lab.bench.sampled import cells as ranks
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.methods.diffusion.loop.events import Unmasked
from polydec.methods.diffusion.loop.types import Look, filled, gaps
from polydec.methods.registry import registry

CLOSE = 1e-3
"""By how much a probability may differ between a method's pass and a fresh one: their shapes round otherwise."""
GAP = -1
"""What stands for a gap in the text before a token."""


@dataclass(frozen=True)
class Written:
    """What one pass wrote into one canvas: the canvas before, the positions that could be filled, the tokens by position, and
    how likely the method's own pass found each."""

    canvas: Canvas
    block: range
    write: tuple[tuple[int, int], ...]
    sure: Mapping[int, float]


@dataclass
class Canvases:
    """An observer that notes every pass of every choice, of canvases that begin as this one."""

    begin: Canvas
    passes: defaultdict[int, list[Written]] = field(
        default_factory=lambda: defaultdict[int, list[Written]](list)
    )
    now: dict[int, Canvas] = field(default_factory=dict[int, Canvas])
    new: defaultdict[int, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict[int, list[tuple[int, int]]](list)
    )
    kinds: ClassVar[tuple[type[Event], ...]] = (Opened, Edited, Unmasked)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Edited):
            self.new[event.choice] += event.edit.write
        elif isinstance(event, Unmasked):
            canvas, write = self.now.get(event.choice, self.begin), self.new.pop(event.choice, [])
            sure = dict(zip(event.position, event.confidence, strict=True))
            mine = tuple((p, x) for p, x in write if p in sure)
            self.passes[event.choice].append(Written(canvas, range(*event.block), mine, sure))
            self.now[event.choice] = filled(canvas, Edit(write=mine))


def unmasked(
    lm: LM,
    prompts: Sequence[tuple[Prompt, bool]],
    method: str,
    options: Mapping[str, Any],
    *,
    samples: int,
    seed: int = 0,
    sampling: Sampling,
    max_tokens: int,
) -> Findings:
    """Draw so many texts behind each prompt, and hold every token against the law that a fresh pass over the same canvas gives
    its position, and every position against the order that the method promises."""
    denoiser: Denoiser = lm.checkpoint.lm
    rng, drawn, texts = np.random.default_rng(seed), list[Drawn](), dict[Any, tuple[int, ...]]()
    turns, stale = list[Turn](), Test("cache", 1.0, 0.0)
    totals, fresh = {"target_passes": 0, "positions_fed": 0}, 0
    seconds = 0.0
    for at, (prompt, raw) in enumerate(prompts):
        begin: Canvas = (*lm.ids(prompt, raw=raw), *(None,) * max_tokens)
        first = len(begin) - max_tokens
        for i, n in enumerate(spread_over(samples)):
            watch = Canvases(begin)
            completion = generate(
                lm,
                prompt,
                method=method,
                options=options,
                raw=raw,
                seed=seed + i,
                n=n,
                sampling=sampling,
                max_tokens=max_tokens,
                on=watch,
            )
            totals = {k: v + int(completion.metrics[k]) for k, v in totals.items()}
            seconds += sum(usage["seconds"] for usage in completion.metrics["models"])
            for choice, answer in enumerate(completion.choices):
                texts[at, seed + i, choice] = answer.token_ids
                shapers = build_shapers(sampling, order="vllm", seed=seed + i, choice=choice)
                count = 0
                for step, written in enumerate(watch.passes[choice], 1):
                    where = f"prompt {at + 1}, seed {seed + i}, answer {choice}, pass {step}"
                    fresh += 1
                    look = _look(denoiser, first, written, shapers)
                    for depth, (p, token) in enumerate(written.write, 1):
                        row = look.rows.index(p)
                        off = abs(float(look.logp_RV[row, token].exp()) - written.sure[p])
                        if off > max(CLOSE, stale.off):
                            what = f"{where}, position {p - first}: its law is not that of a fresh pass"
                            stale = Test("cache", 0.0, off, what)
                        law_V = probs(look.shaped_RV[row]).cpu().numpy()
                        mine: Fate = fate(law_V, token, rng.random())
                        before = tuple(GAP if x is None else x for x in written.canvas[first:])
                        place = Place(step, depth, False)
                        drawn.append(
                            Drawn(at, seed + i, choice, count, token, place, mine, (p, *before))
                        )
                        count += 1
                    turns += _turns(written)
    ours = Sample(tuple(drawn), totals["target_passes"], totals["positions_fed"], seconds, texts)
    possible = [d for d in drawn if d.fate.chance > 0.0]
    never = [d for d in drawn if d.fate.chance <= 0.0]
    tests = [surprises(possible), ranks(possible), pairs(possible), twins(possible), stale]
    tests += (
        [ORDERS[name](turns, rng)] if (name := registry.get(method).CARD.name) in ORDERS else []
    )
    if never:
        d = never[0]
        what = f"prompt {d.prompt + 1}, seed {d.seed}, answer {d.choice}, {d.place}"
        tests.append(Test("impossible", 0.0, float(len(never)), what))
    cost = {"method": ours.cost, "plain": {"passes": float(fresh)}}
    return concluded(tests, (), ours, cost)


def _look(denoiser: Denoiser, begin: int, written: Written, shapers: Any) -> Look:
    """What a pass that keeps nothing sees at the positions that were written."""
    rows, own = tuple(sorted(p for p, _ in written.write)), denoiser.block
    stop = (
        min(len(written.canvas), -(-written.block.stop // own) * own)
        if own
        else len(written.canvas)
    )

    async def ask() -> Tensor:
        board = denoiser.open(len(written.canvas), begin)
        try:
            return await board.score(written.canvas, rows, range(stop))
        finally:
            board.close()

    return Look(written.canvas, written.block, rows, run([ask()])[0], shapers)


# In which order the gaps are filled

Turn = tuple[int, int]
"""Of a position that was filled: which of its block's gaps it was, from the left, and of how many."""


def _turns(written: Written) -> list[Turn]:
    """Of every position of a pass, where there was a choice."""
    left, out = list(gaps(written.canvas, written.block.start, written.block.stop)), list[Turn]()
    for p, _ in written.write:
        if len(left) > 1:
            out.append((left.index(p), len(left)))
        left.remove(p)
    return out


def any_gap(turns: Sequence[Turn], rng: np.random.Generator) -> Test:
    """Whether every gap is as likely as the others to be filled next."""
    each = len(turns) / CELLS
    if each < 5.0:
        return Test("order", 1.0, 0.0)
    shares = [(i + rng.random()) / n for i, n in turns]  # evenly within a gap's own share
    counts = np.bincount([int(x * CELLS) for x in shares], minlength=CELLS)
    x = float(((counts - each) ** 2).sum() / each)
    what = "gaps in the order in which they are filled, from the left"
    return Test("order", beyond(x, CELLS - 1), x, what)


def first_gap(turns: Sequence[Turn], rng: np.random.Generator) -> Test:
    """Whether the leftmost gap is the one that is filled."""
    wrong = sum(i > 0 for i, _ in turns)
    what = f"{wrong} times a gap was filled that is not the leftmost" if wrong else ""
    return Test("order", 0.0 if wrong else 1.0, float(wrong), what)


ORDERS: Mapping[str, Callable[[Sequence[Turn], np.random.Generator], Test]] = {
    "mdlm": any_gap,
    "left-to-right": first_gap,
}
"""What a method promises of the order of gaps."""
