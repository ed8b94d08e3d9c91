"""What a drafted level of EAGLE-3's narrow layer costs beside a pass of its target, grown in one call of the compiled step and
level by level, and how fast both write beside plain decoding: in turns, prompt by prompt, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from seen import DATA, arguments, decode, model, report, shaped

from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.lab.train.selfplay import draw_prompts
from polydec.methods.speculative.drafters._states import StateGuess
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds.eagle3 import Eagle3Model
from polydec.request.passes import PassTimer


@dataclass(frozen=True)
class Timed:
    """The drafter, its proposals timed, in one call or level by level."""

    drafter: EagleDrafter
    one_call: bool
    clock: Callable[[], float]
    took_ms: list[float] = field(default_factory=list[float])

    def open_guess(self, prompt: Any, session: Any) -> TimedGuess:
        guess = self.drafter.open_guess(prompt, session)
        return TimedGuess(self, guess if self.one_call else replace(guess, grower=None))


@dataclass(frozen=True)
class TimedGuess:
    config: Timed
    guess: StateGuess
    price = 0.0

    @property
    def want(self) -> Any:
        return self.guess.want

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        start = self.config.clock()
        draft = await self.guess.propose_draft(root, position, budget, rng)
        self.config.took_ms.append(1e3 * (self.config.clock() - start))
        return draft

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.guess.learn_round(draft, scores, verdict)

    def fork_guess(self, session: Any, choice: int | None = None) -> TimedGuess:
        return TimedGuess(self.config, self.guess.fork_guess(session, choice))

    def close(self) -> None:
        self.guess.close()


def over(ours: list[float], plain: list[float]) -> str:
    """Seconds of plain decoding over ours, with the 95 % interval of a bootstrap over prompts."""
    pairs = np.array([plain, ours])
    at = np.random.default_rng(0).integers(0, len(plain), (2000, len(plain)))
    low, high = np.quantile(pairs[0][at].sum(1) / pairs[1][at].sum(1), (0.025, 0.975))
    return f"{sum(plain) / sum(ours):.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = arguments(__doc__, prompts=2, tokens=64, seed=9)
    parser.add_argument("--trained", default="zoo:smollm2-states")
    parser.add_argument("--depth", type=int, default=4, help="levels")
    parser.add_argument("--width", type=int, default=1, help="of the tree; 1: a chain")
    parser.add_argument("--nodes", type=int, default=4, help="of the tree")
    parser.add_argument("--longest", type=int, default=800, help="characters of a prompt")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="the CPU time of this thread, for a machine that others use; with --threads 1",
    )
    args = parser.parse_args()
    clock = time.thread_time if args.cpu else time.perf_counter
    lm = model(args, trained=(args.trained,))
    target, tree = shaped(lm, 0.0, args.seed), BestFirstTree(args.width)
    eagle = lm.recipe_kit().needed_artefact(Eagle3Model)
    sides: dict[str, Any] = {
        "plain": NothingDrafter(),
        "level by level": Timed(EagleDrafter(eagle, tree), False, clock),
        "one call": Timed(EagleDrafter(eagle, tree), True, clock),
    }
    took: dict[str, list[float]] = {name: [] for name in sides}
    passes = {name: [0, 0] for name in sides}
    given = [
        lm.encode_prompt(text)
        for _, text in draw_prompts(
            DATA, args.prompts, unseen=True, seed=args.seed, longest=args.longest
        )
    ]
    one_row, row_ms = PassTimer(lm.checkpoint.lm.network, 200), list[float]()
    for number, ids in enumerate((given[0], *given)):  # the first one once more: it warms up
        texts = set[tuple[int, ...]]()
        for name, drafter in sides.items():
            start = clock()
            done = decode(
                target, drafter, MatchVerifier(), ids, args, depth=args.depth, nodes=args.nodes
            )
            if number:
                took[name].append(clock() - start)
                passes[name][0] += len(done.token_ids)
                passes[name][1] += done.stats.passes
            elif isinstance(drafter, Timed):
                drafter.took_ms.clear()
            texts.add(tuple(done.token_ids))
        for _ in range(8):
            start = clock()
            one_row(1)
            row_ms.append(1e3 * (clock() - start))
        assert len(texts) == 1, "speculation has changed a text"
    pass_ms = median(row_ms)
    rows: list[dict[str, Any]] = []
    for name, drafter in sides.items():
        tokens, count = passes[name]
        row = {"side": name, "tokens a pass": round(tokens / count, 2)}
        if isinstance(drafter, Timed):
            ms = median(drafter.took_ms)
            row |= {
                "ms a draft": round(ms, 2),
                "ms a level": round(ms / args.depth, 2),
                "passes a draft": round(ms / pass_ms, 2),
            }
        rows.append(row | {"over plain": over(took[name], took["plain"])})
    what = (
        f"width {args.width}, {args.depth} levels, {args.nodes} nodes; a pass of one row: {pass_ms:.2f} ms"
        f"{' of CPU' if args.cpu else ''}; {len(given)} held-out prompts"
    )
    report(args, what, rows)


if __name__ == "__main__":
    main()
