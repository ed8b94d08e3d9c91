"""FLASH's drafters of a model that reads images beside MSD's: time of a draft and tokens a pass, three seeds.

    python -m benchmarks.studies.flash_drafts --model DIR --out DIR [--each 100] [--steps 800] [--seeds 0,1,2]

For `DIR` of `polydec train vision`, or a name. A seed draws scenes, answers and weights; drafters learn from the model's own
answers: MSD's, FLASH's, and FLASH's without each of its two mechanisms (an image is not compressed; a pass guesses one token),
and with smaller blocks. Measured on held-out scenes, greedy, by trees of 16 nodes and five levels fed whole: tokens a pass, and
milliseconds that the drafter takes for an answer (reading the prompt, drafts, and what it learns of a round), in CPU time of
the process. Answers are written one by one, by all drafters in turns, several times, of which the least counts. Printed are all
figures, means with Student's 95 % interval, and of each seed what a drafter has of MSD's. What was trained and measured in
`--out` stays, so seeds can be run one by one and printed together.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.studies.image_drafts import NODES, measured_sorts
from benchmarks.studies.intervals import mean_with_interval

from polydec import load
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.flash import train_flash
from polydec.lab.train.image_drafting import WIDTH, tokens_per_pass
from polydec.lab.train.image_questions import AnsweredQuestion, answer_questions
from polydec.lab.train.msd import train_msd
from polydec.lab.train.specs.flash import FlashSpec
from polydec.lab.train.specs.msd import MsdSpec
from polydec.methods.speculative.drafters._delegated_guess import DelegatedGuess
from polydec.methods.speculative.drafters.flash import FlashDrafter
from polydec.methods.speculative.drafters.msd import MsdDrafter
from polydec.methods.speculative.loop.protocols import Drafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.models.learned.artefacts import load_artefact
from polydec.models.learned.kinds.flash import FlashModel
from polydec.request.loaded import LoadedModel

TURNS = 2
"""How often all drafters write the answers."""
LONGEST = 48
"""Tokens of an answer, at most."""
FLASH: dict[str, dict[str, Any]] = {
    "FLASH": {},
    "not compressed": {"latents": 0},
    "one token a pass": {"block": 1},
    "three tokens a pass": {"block": 3},
}
"""FLASH's variants, by what differs from the defaults of its training."""
BASE = "MSD"


@dataclass(frozen=True)
class DraftTimer:
    """A drafter of which the time is measured. spent: seconds of its work, in order."""

    drafter: Drafter
    spent: list[float] = field(default_factory=list[float])

    def open_guess(self, prompt: Sequence[int], session: Session) -> TimedGuess:
        """Begin an answer with the measured drafter."""
        return TimedGuess(self.drafter.open_guess(prompt, session), self.spent)


@dataclass(frozen=True)
class TimedGuess(DelegatedGuess):
    """A guess of which the time is measured. spent: seconds of its work, in order."""

    spent: list[float]

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        start = time.process_time()
        draft = await self.guess.propose_draft(root, position, budget, rng)
        self.spent.append(time.process_time() - start)
        return draft

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        start = time.process_time()
        self.guess.learn_round(draft, scores, verdict)
        self.spent.append(time.process_time() - start)


def train_variant(name: str, where: Path, asked: Any, seed: int) -> Drafter:
    """The drafter of a variant, trained unless it stands there already."""
    said: dict[str, Any] = {"each": asked.each, "steps": asked.steps, "seed": seed}
    # A study that was interrupted goes on with the drafter behind this one.
    if not (where / RESULT).exists():
        if name == BASE:
            train_msd(MsdSpec(str(where), asked.model, **said))
        else:
            train_flash(FlashSpec(str(where), asked.model, **said, **FLASH[name]))
    weights = load_artefact(str(where))
    tree = BestFirstTree(WIDTH)
    return (
        FlashDrafter(weights, tree)
        if isinstance(weights, FlashModel)
        else MsdDrafter(weights, tree)
    )


def measure_drafters(
    drafters: dict[str, Drafter], answered: Sequence[AnsweredQuestion]
) -> dict[str, tuple[float, float]]:
    """Tokens a pass of each drafter, and milliseconds that it takes for an answer."""
    tokens = dict[str, float]()
    least = dict[str, float]()
    for _ in range(TURNS):
        for name, drafter in drafters.items():
            timed = DraftTimer(drafter)
            # One by one: answers in company would share their passes.
            for one in answered:
                tokens_per_pass([one], timed, NODES, LONGEST)
            spent = 1e3 * sum(timed.spent) / len(answered)
            least[name] = min(least.get(name, spent), spent)
    for name, drafter in drafters.items():
        tokens[name] = tokens_per_pass(answered, drafter, NODES, LONGEST)
    return {name: (tokens[name], round(least[name], 4)) for name in drafters}


def measure_seed(
    lm: LoadedModel, asked: Any, seed: int
) -> dict[tuple[str, str], tuple[float, float]]:
    """Train the drafters of a seed, and measure them on each sort of questions."""
    kept = asked.out / f"seed-{seed}" / "figures.json"
    if kept.exists():
        rows = json.loads(kept.read_text())
        return {(name, sort): (tokens, ms) for name, sort, tokens, ms in rows}
    drafters = {
        name: train_variant(name, asked.out / f"seed-{seed}" / name.replace(" ", "-"), asked, seed)
        for name in (BASE, *FLASH)
    }
    out = dict[tuple[str, str], tuple[float, float]]()
    sorts = measured_sorts(asked.scenes, seed)
    for sort, questions in sorts.items():
        # Without an image nothing is compressed.
        if not any(question.image for question in questions):
            continue
        answered = answer_questions(lm, questions, max_tokens=LONGEST, temperature=0.0, seed=0)
        for name, figures in measure_drafters(drafters, answered).items():
            out[name, sort] = figures
    kept.write_text(json.dumps([[*key, *figures] for key, figures in out.items()]))
    return out


def main() -> None:
    """All figures, and the means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each", type=int, default=100, help="scenes that are learned from")
    parser.add_argument("--scenes", type=int, default=40, help="held-out scenes")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lm = load(asked.model, draft=None, threads=1)
    told = dict[tuple[str, str, str], list[float]]()
    for seed in map(int, asked.seeds.split(",")):
        found = measure_seed(lm, asked, seed)
        for (name, sort), (tokens, ms) in found.items():
            base_tokens, base_ms = found[BASE, sort]
            figures = {
                "tokens a pass": tokens,
                "draft ms an answer": ms,
                "tokens a pass, of MSD's": tokens / base_tokens,
                "accepted a pass, of MSD's": (tokens - 1) / (base_tokens - 1),
                "draft ms, of MSD's": ms / base_ms,
            }
            print(seed, name, sort, {k: round(v, 3) for k, v in figures.items()}, flush=True)
            for what, value in figures.items():
                told.setdefault((name, sort, what), []).append(value)
    for (name, sort, what), values in told.items():
        mean = mean_with_interval(values) if len(values) > 1 else round(values[0], 3)
        print(name, sort, what, mean, flush=True)


if __name__ == "__main__":
    main()
