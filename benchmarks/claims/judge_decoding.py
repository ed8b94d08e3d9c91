"""Judge decoding on problems that a checker judges: tokens a pass and solved problems, beside a judge that decides by chance.

    polydec train reasoner --out out/small --width 128 --layers 2 --steps 700 --seed 3
    polydec train probe --recipe judge --target zoo:reasoner --draft out/small --kinds chain,make,order \
        --each 250 --out out/judge
    python benchmarks/claims/judge_decoding.py --draft out/small --judge out/judge [--problems 67] [--seed 78]

Held-out problems (SHA-1 of the question), as many of each kind, greedy. "chance" keeps as large a share of the tokens that the
judge is asked of as the judge does at that threshold, whichever they are. Several directories after --judge are several
trainings: figures are their means, and intervals (95 %) are of a bootstrap over problems of the difference to the target alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.core.decoder import Decoder, answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.probe import ProbeExamples
from polydec.lab.train.probes import judge as training
from polydec.lab.train.problems import KINDS, draw_problem, is_right_solution
from polydec.lab.train.solutions import LONGEST, draw_solutions
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.with_states import WithStatesDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.verifiers.judged import JudgeVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import judge as trained
from polydec.models.sessions import checkpoint

THRESHOLDS = (0.99, 0.9, 0.7, 0.5, 0.3)


@dataclass
class Counted:
    """A judge, and of how many tokens it was asked and let stand."""

    says: Callable[[Tensor], bool]
    asked: int = 0
    kept: int = 0

    def token_chance(self, state_H: Tensor) -> float:
        yes = self.says(state_H)
        self.asked, self.kept = self.asked + 1, self.kept + yes
        return float(yes)


@dataclass
class Row:
    """Of one way, each training's answers. right: of each problem."""

    right: list[np.ndarray] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)


def measure(row: Row, decoder: Decoder, asked: Sequence[Any], text: Any, judge: Any) -> None:
    results = run_coroutines(
        [answer_one(decoder, Request(ids, max_tokens=LONGEST)) for _, ids in asked]
    )
    texts = [text.decode([x for x in r.token_ids if x not in decoder.vocab.eos]) for r in results]
    row.right.append(np.array([is_right_solution(p, t) for (p, _), t in zip(asked, texts)], float))
    row.tokens.append(sum(len(r.token_ids) for r in results) / len(asked))
    row.passes.append(sum(r.stats.passes for r in results) / len(asked))
    row.judged.append(sum(r.stats.judged for r in results) / len(asked))
    row.share.append(judge.kept / max(1, judge.asked) if judge else 0.0)


def line(name: str, row: Row, plain: np.ndarray) -> dict[str, Any]:
    right = np.mean(row.right, 0)
    apart = np.random.default_rng(0).choice(right - plain, (2000, len(right))).mean(1)
    low, high = 100 * np.quantile(apart, (0.025, 0.975))
    return {
        "way": name,
        "solved": round(100 * right.mean(), 1),
        "each": ", ".join(f"{100 * r.mean():.1f}" for r in row.right),
        "over the target": f"{100 * (right - plain).mean():+.1f} [{low:+.1f}, {high:+.1f}]",
        "tokens a pass": round(float(np.sum(row.tokens) / np.sum(row.passes)), 3),
        "judged an answer": round(float(np.mean(row.judged)), 2),
        "let stand": round(float(np.mean(row.share)), 3),
    }


def held_out_auc(target: Any, draft: Any, judge: Any, kinds: Sequence[str], out: Path) -> str:
    """Of held-out solutions of the draft: behind each token, one place too early, and of the draft's tokens where the target
    would put others."""
    drawn = draw_solutions(
        out / "auc.jsonl", draft, kinds, 100, temperature=training.TEMPERATURE, seed=5, unseen=True
    )
    lessons = training.label_checked_tokens(target.lm, drawn)
    early = ProbeExamples(lessons.input_NX.roll(1, 0), lessons.label_N)
    asked = training.label_differing_tokens(target, draft.lm, drawn)
    return (
        f"auc {training.token_judge_auc(judge, lessons)}, one place early "
        f"{training.token_judge_auc(judge, early)}; where the models differ "
        f"{training.token_judge_auc(judge, asked)}, of {len(asked.label_N)} tokens {float(asked.label_N.mean()):.3f} right"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="zoo:reasoner")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--judge", required=True, nargs="+")
    parser.add_argument("--problems", type=int, default=67)
    parser.add_argument("--seed", type=int, default=78)
    parser.add_argument("--depth", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    target, draft = checkpoint.load_bundle(args.model), checkpoint.load_bundle(args.draft)
    big, small = (ShapedTarget(p.lm, GreedyRule()) for p in (target, draft))
    problems = [
        draw_problem(kind, args.seed, i, True) for i in range(args.problems) for kind in KINDS
    ]
    asked = [
        (p, target.text.chat_prompt([{"role": "user", "content": p.question}])) for p in problems
    ]
    chain = RankedTree(tuple((0,) * n for n in range(1, args.depth + 1)))
    ends, rows = frozenset(big.vocab.eos), dict[str, Row]()

    def way(name: str, verifier: Any, judge: Any = None) -> None:
        drafter = ModelDrafter(small, chain)
        drafter = drafter if judge is None else WithStatesDrafter(drafter)
        decoder = SpeculativeDecoder(big, drafter, verifier, FixedPolicy(args.depth))
        measure(rows.setdefault(name, Row()), decoder, asked, target.text, judge)

    for name, law in (("target", big), ("draft", small)):
        alone = SpeculativeDecoder(law, NothingDrafter(), MatchVerifier(), FixedPolicy(0))
        measure(rows.setdefault(name, Row()), alone, asked, target.text, None)
    way("match", MatchVerifier())
    for seed, where in enumerate(args.judge):
        judge = trained.load(where)
        print(where, held_out_auc(target, draft, judge, tuple(KINDS), Path(where)), flush=True)
        for threshold in THRESHOLDS:

            def right(state_H: Tensor, judge: Any = judge, least: float = threshold) -> bool:
                return judge.token_chance(state_H) > least

            counted = Counted(right)
            way(f"judge {threshold}", JudgeVerifier(counted, 0.5, ends), counted)  # pyright: ignore
            share, coin = counted.kept / max(1, counted.asked), Random(seed)
            blind = Counted(lambda _, share=share, coin=coin: coin.random() < share)
            way(f"chance {threshold}", JudgeVerifier(blind, 0.5, ends), blind)  # pyright: ignore
    for name, row in rows.items():
        print(json.dumps(line(name, row, rows["target"].right[0])), flush=True)


if __name__ == "__main__":
    main()
