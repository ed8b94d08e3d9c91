"""Steps of a small reasoner and of a large one: accuracy against the share that the large one writes.

    python benchmarks/arbitrage.py --draft DIR [--router DIR] [--reads DIR ...] [--model zoo:reasoner]
        [--reward zoo:reasoner-prm] [--only WORD ...] [--problems 40] [--seed 78] [--csv FILE]
    python benchmarks/arbitrage.py --draft DIR --reads DIR ... --steps

--router is one of `train probe --recipe router`, --reads some of `train probe --recipe
text-router`; --only takes the ways whose names hold one of these words. --steps tells, of the
held-out steps that lie beside each of --reads, how well the router and the reward of the draft
model's step (what reward-guided looks at) say where the target's is the better one: the area under
the curve, and Spearman's correlation with the difference of both steps' values by the checker, each
with a 95 % interval over problems.

Held-out problems (lab/train/problems.py: SHA-1 of the question), as many of each kind; an answer
counts where the checker accepts every step. "random" gives the large model as many steps as it is
told to, whatever they are: what a rule has to beat. All see the same problems; intervals are of a
bootstrap over them (95 %). Tokens of the target are those that it writes, the ones that are only
judged included; it reads the others. Seconds are CPU seconds of the process."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from csv_rows import write_csv

from polydec.core.decoder import Decoder, answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.train.auc import roc_auc
from polydec.lab.train.probes.text_router import build_step_checker
from polydec.lab.train.problems import KINDS, ReasoningProblem, draw_problem, is_right_solution
from polydec.lab.train.solutions import LONGEST
from polydec.lab.train.spearman import spearman_correlation
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.arbiters import (
    AdvantageArbiter,
    ChanceArbiter,
    ReadingArbiter,
    RouterArbiter,
    ValueArbiter,
)
from polydec.methods.search.loop.arbitrage import ArbitrageSearch, StepReader
from polydec.methods.search.loop.protocols import ArbiterCase
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.formats import zoo
from polydec.models.learned.kinds import router, step_reward, text_router
from polydec.models.sessions import checkpoint
from polydec.models.sessions.lm import CausalLaw
from polydec.models.text.tokenizer import Tokenizer

Asked = Sequence[tuple[ReasoningProblem, tuple[int, ...]]]
"""Problems, and their prompts."""


@dataclass(frozen=True)
class Checked:
    """The oracle of a problem's checker: the target writes a step where its own may begin a right solution and the draft
    model's may not."""

    worth: Callable[[Sequence[int], Sequence[int]], float]

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        *before, drafted = case.steps
        stood = [x for step in before for x in step.tokens]
        if self.worth(stood, drafted.tokens) == 1.0:
            return False
        return self.worth(stood, await case.target_step()) == 1.0


def ways(
    big: SpeculativeDecoder,
    small: SpeculativeDecoder,
    learned: router.DraftStateRouter | None,
    reading: Sequence[text_router.TextRouter],
    reward: step_reward.StepReward,
    text: Tokenizer,
) -> dict[str, Callable[[ReasoningProblem], Decoder]]:
    """By name, in the order of the table: what solves a problem."""

    def always(decoder: Decoder) -> Callable[[ReasoningProblem], Decoder]:
        return lambda problem: decoder

    def routed(arbiter: Any) -> Callable[[ReasoningProblem], Decoder]:
        return always(ArbitrageSearch(big, small, arbiter))

    def by_checker(problem: ReasoningProblem) -> Decoder:
        return ArbitrageSearch(
            big, small, Checked(build_step_checker(problem, text, big.vocab.eos))
        )

    def told(reads: text_router.TextRouter, tau: float) -> Callable[[ReasoningProblem], Decoder]:
        law = SpeculativeDecoder(reads.law, NothingDrafter(), MatchVerifier(), FixedPolicy(0))
        reader = StepReader(law, *reads.marks, reads.law.context)
        return always(ArbitrageSearch(big, small, ReadingArbiter(reads, tau), reader=reader))

    return {
        "target": always(big),
        "draft": always(small),
        **{
            f"router {t}": routed(RouterArbiter(learned, t))
            for t in (0.1, 0.2, 0.3, 0.4, 0.5)
            if learned is not None
        },
        **{
            f"reading {number}, {t}": told(reads, t)
            for number, reads in enumerate(reading)
            for t in (0.3, 0.5, 0.7)
        },
        **{
            f"reward-guided {t}": routed(ValueArbiter(reward, t)) for t in (0.1, 0.3, 0.5, 0.7, 0.9)
        },
        "oracle": routed(AdvantageArbiter(reward)),
        "oracle by the checker": by_checker,
        **{f"random {s}": routed(ChanceArbiter(s)) for s in (0.2, 0.4, 0.6, 0.8)},
    }


def measure(
    name: str, decoder_of: Callable[[ReasoningProblem], Decoder], asked: Asked, text: Tokenizer
) -> dict[str, Any]:
    began = time.process_time()
    results = run_coroutines(
        [
            answer_one(decoder_of(problem), Request(ids, max_tokens=LONGEST, seed=i))
            for i, (problem, ids) in enumerate(asked)
        ]
    )
    seconds = time.process_time() - began
    ends = decoder_of(asked[0][0]).vocab.eos
    said = [text.decode([x for x in r.token_ids if x not in ends]) for r in results]
    right = np.array(
        [is_right_solution(p, s) for (p, _), s in zip(asked, said, strict=True)], float
    )
    again = np.random.default_rng(0).choice(right, (2000, len(right))).mean(1)
    low, high = np.quantile(again, (0.025, 0.975))
    sums = {
        k: sum(r.stats.metrics().get(k, 0) for r in results)
        for k in ("steps", "steps_of_target", "tokens_of_target", "tokens_drafted", "tokens_kept")
    }
    tokens = sum(len(r.token_ids) for r in results)
    alone = {"target": (1.0, tokens), "draft": (0.0, 0)}
    share, own = alone.get(
        name, (sums["steps_of_target"] / max(1, sums["steps"]), sums["tokens_of_target"])
    )
    return {
        "way": name,
        "accuracy": round(100 * right.mean(), 1),
        "interval": f"{100 * low:.1f} to {100 * high:.1f}",
        **{
            k: round(
                100
                * float(
                    np.mean([r for r, (p, _) in zip(right, asked, strict=True) if p.kind == k])
                ),
                1,
            )
            for k in KINDS
        },
        "share of target": round(share, 3),
        "target tokens": round(own / len(asked), 1),
        "drafted, dropped": round((sums["tokens_drafted"] - sums["tokens_kept"]) / len(asked), 1),
        "CPU seconds": round(seconds, 1),
    }


def rewarded(target: CausalLaw, reward: step_reward.StepReward, text: Sequence[int]) -> float:
    """What the reward says of a text's end, on the target's states."""

    async def read() -> float:
        session = target.open_session(text)
        await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        scores = await session.score_draft(
            Draft.chain_draft(text[-1]), ScoreRequest(law=RowDetail.NOTHING, hidden=True)
        )
        session.close()
        return reward.success_chance(scores.hidden_NH[0])

    return run_coroutines([read()])[0]


def told_of_steps(
    name: str, reads: text_router.TextRouter, target: CausalLaw, reward: step_reward.StepReward
) -> dict[str, Any]:
    """Of the held-out steps beside a router: the area, and the rank correlation, of it and of the reward."""
    rows = json.loads((Path(name) / "held.json").read_text())["lessons"]
    small, big = reads.marks
    gain_N = torch.tensor([own - value for _, _, value, own in rows])
    problem_N = np.array([problem for _, problem, _, _ in rows])
    law = reads.law
    score_N = {
        "router": torch.tensor([rewarded(law, reads.head, text) for text, *_ in rows]),
        "reward": torch.tensor(
            [
                -rewarded(target, reward, [x for x in text if x not in (small, big)])
                for text, *_ in rows
            ]
        ),
        "checker": torch.tensor([-value for _, _, value, _ in rows]),
    }
    order, dice = list(dict.fromkeys(problem_N.tolist())), np.random.default_rng(0)
    places = {p: np.flatnonzero(problem_N == p) for p in order}
    again = [
        torch.from_numpy(np.concatenate([places[p] for p in dice.choice(order, len(order))]))
        for _ in range(500)
    ]
    out: dict[str, Any] = {
        "router": name,
        "steps": len(rows),
        "better": float((gain_N > 0).float().mean()),
    }
    for who, s_N in score_N.items():
        for what, figure in (
            ("area", lambda s, g: roc_auc(s, g > 0)),
            ("spearman", spearman_correlation),
        ):
            low, high = np.quantile(
                [figure(s_N[at], gain_N[at]) or 0.0 for at in again], (0.025, 0.975)
            )
            out[f"{who}, {what}"] = [
                figure(s_N, gain_N),
                round(float(low), 3),
                round(float(high), 3),
            ]
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("model", "zoo:reasoner"),
        ("draft", None),
        ("reward", "zoo:reasoner-prm"),
    ):
        parser.add_argument(f"--{name}", default=default, required=default is None)
    parser.add_argument("--router")
    parser.add_argument("--reads", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--seed", type=int, default=78)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--csv")
    parser.add_argument("--steps", action="store_true")
    args = parser.parse_args()
    target, draft = checkpoint.load_bundle(args.model), checkpoint.load_bundle(args.draft)
    reward = step_reward.load(
        zoo.zoo_model_path(args.reward) if args.reward.startswith("zoo:") else args.reward
    )
    shapers = build_shapers(Sampling(temperature=args.temperature), eos=target.lm.vocab.eos)
    big, small = (
        SpeculativeDecoder(
            ShapedTarget(p.lm, *shapers), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
        )
        for p in (target, draft)
    )
    problems = [
        draw_problem(kind, args.seed, i, True) for i in range(args.problems) for kind in KINDS
    ]
    asked = [
        (p, target.text.chat_prompt([{"role": "user", "content": p.question}])) for p in problems
    ]
    lines = list[dict[str, Any]]()
    learned = None if args.router is None else router.load(args.router)
    reading = [text_router.load(name) for name in args.reads]
    if args.steps:
        for name, reads in zip(args.reads, reading, strict=True):
            print(json.dumps(told_of_steps(name, reads, target.lm, reward)), flush=True)
        return
    for name, decoder_of in ways(big, small, learned, reading, reward, target.text).items():
        if not any(word in name for word in args.only):
            continue
        lines.append(measure(name, decoder_of, asked, target.text))
        print(*lines[-1].values(), sep=" | ", flush=True)
    if args.csv:
        write_csv(args.csv, lines)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
