"""Entropy Adaptive Decoding against random switching at an equal share of the large model, cache catch-up counted.

On held-out text, read as it stands: how often the likeliest token is the text's own (right), how often it is the large model's
(agreement), and bits per token where the small model gives every token weight. On greedy answers: how often the token written
is the large model's choice after the same text. `share`: tokens that the large model speaks; `fed`: positions that it is fed
for that, catch-up and prompt included, over tokens; `cost`: parameters times positions of both, over those of the large model
alone. Random switching draws runs of --hold tokens; `over random` is the difference from it with its 95 % interval over
documents.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from seen import arguments, lines, model, part, report, shaped

from polydec.api import LoadedModel
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.laws.targets.switch import (
    EntropySwitchRule,
    RandomSwitchRule,
    SwitchRule,
    SwitchTarget,
    law_entropy_bits,
)
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier

SOURCES = (
    "text_books/books-0.jsonl.gz",
    "text_tldr/pages_en.jsonl.gz",
    "text_python/python-0.jsonl.gz",
)
BEGIN = 32


def documents(lm: LoadedModel, args: argparse.Namespace, size: int) -> list[tuple[int, ...]]:
    """The first `size` ids of documents of three kinds."""
    out: list[tuple[int, ...]] = []
    for name in SOURCES:
        texts = part((r["text"] for r in lines(name) if len(r["text"]) > 800), 300, args.tune)
        out += [
            lm.encode_prompt(t[: 6 * size], raw=True)[:size]
            for t in texts[:: max(1, len(texts) // (args.prompts // 3))]
        ]
    return out[: args.prompts]


@dataclass(frozen=True)
class Read:
    """Of every token behind the first BEGIN of a document, for the small and the large model: bits, the likeliest token, and
    the entropy of the row."""

    ids: Sequence[int]
    bits: dict[bool, list[float]]
    best: dict[bool, list[int]]
    entropy: dict[bool, list[float]]

    @staticmethod
    def of(lm: LoadedModel, ids: Sequence[int]) -> Read:
        bits, best, entropies = (
            dict[bool, list[float]](),
            dict[bool, list[int]](),
            dict[bool, list[float]](),
        )
        for large, checkpoint in ((False, lm.draft), (True, lm.checkpoint)):

            async def score(target: Any = checkpoint.lm) -> Any:
                return await target.open_session(ids[:BEGIN]).score_draft(
                    Draft.chain_draft(ids[BEGIN - 1], ids[BEGIN:-1]), ScoreRequest()
                )

            scores = run_coroutines([score()])[0]
            bits[large] = [
                -scores.token_logprobs(i, (x,))[0] / np.log(2.0) for i, x in enumerate(ids[BEGIN:])
            ]
            best[large] = [scores.likeliest_token(i) for i in range(len(ids) - BEGIN)]
            entropies[large] = [
                law_entropy_bits(scores.logprob_row(i)) for i in range(len(ids) - BEGIN)
            ]
        return Read(ids[BEGIN:], bits, best, entropies)

    def turns(self, rule: SwitchRule[Any]) -> list[bool]:
        state, out = rule.start_state(), list[bool]()
        for i in range(len(self.ids)):
            out.append(rule.is_large(state))
            state = rule.next_state(state, self.entropy[out[-1]][i])
        return out

    def measure(self, turns: Sequence[bool]) -> tuple[float, int, int]:
        """(bits, tokens that are right, tokens that are the large model's)."""
        best = [self.best[t][i] for i, t in enumerate(turns)]
        return (
            sum(self.bits[t][i] for i, t in enumerate(turns)),
            sum(a == b for a, b in zip(best, self.ids, strict=True)),
            sum(a == b for a, b in zip(best, self.best[True], strict=True)),
        )


def account(turns: Sequence[bool], begin: int, large: float) -> np.ndarray:
    """[tokens, tokens of the large model, positions fed to it, cost, cost of the large one alone]; it is fed all text up to
    its last turn, the beginning too, the small one likewise. large: parameters over the small model's."""
    fed = {
        who: max((begin + i for i, t in enumerate(turns) if t is who), default=0)
        for who in (False, True)
    }
    return np.array(
        [
            len(turns),
            sum(turns),
            fed[True],
            fed[False] + large * fed[True],
            large * (begin + len(turns) - 1),
        ]
    )


def difference(
    ours: np.ndarray, theirs: np.ndarray, weight: np.ndarray, weight0: np.ndarray
) -> str:
    """The difference of two means over documents (sums over sums of weights), with its paired 95 % bootstrap interval."""
    at = np.random.default_rng(0).integers(0, len(ours), (2000, len(ours)))
    d = ours[at].sum(1) / weight[at].sum(1) - theirs[at].sum(1) / weight0[at].sum(1)
    low, high = np.quantile(d, (0.025, 0.975))
    return (
        f"{ours.sum() / weight.sum() - theirs.sum() / weight0.sum():+.3f} [{low:+.3f}, {high:+.3f}]"
    )


def row(name: str, costs: np.ndarray) -> dict[str, Any]:
    tokens, spoke, fed, cost, alone = costs.sum(0)
    return {"rule": name, "share": spoke / tokens, "fed": fed / tokens, "cost": cost / alone}


def reading(lm: LoadedModel, args: argparse.Namespace, ratio: float) -> list[dict[str, Any]]:
    reads = [Read.of(lm, ids) for ids in documents(lm, args, 256)]
    n, out = np.array([len(r.ids) for r in reads]), list[dict[str, Any]]()

    def measure(rule: Callable[[int], SwitchRule[Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Per document its measures, and its costs."""
        turns = [r.turns(rule(i)) for i, r in enumerate(reads)]
        return (
            np.array([r.measure(ts) for r, ts in zip(reads, turns, strict=True)]),
            np.array([account(ts, BEGIN, ratio) for ts in turns]),
        )

    def add(name: str, got: np.ndarray, costs: np.ndarray, chance: np.ndarray | None) -> None:
        bits, right, same = got.sum(0) / n.sum()
        line = {
            "measure": "held-out text",
            **row(name, costs),
            "bits": bits,
            "right": right,
            "agreement": same,
        }
        if chance is not None:
            line |= {
                "right over random": difference(got[:, 1], chance[:, 1], n, n),
                "agreement over random": difference(got[:, 2], chance[:, 2], n, n),
            }
            line |= (
                {"bits over random": difference(got[:, 0], chance[:, 0], n, n)}
                if np.isfinite(bits)
                else {}
            )
        out.append(line)

    for name, share in (("small alone", 0.0), ("large alone", 1.0)):
        add(name, *measure(lambda i, s=share: RandomSwitchRule(s)), None)
    for tau in map(float, args.taus.split(",")):
        got, costs = measure(lambda i, t=tau: EntropySwitchRule(t, None, args.window, args.hold))
        share = float(costs[:, 1].sum() / costs[:, 0].sum())
        draws = [
            measure(lambda i, s=share, d=d: RandomSwitchRule(s, args.hold, 1000 * d + i))
            for d in range(8)
        ]
        chance, chance_costs = np.mean([b for b, _ in draws], 0), np.mean([c for _, c in draws], 0)
        add(f"tau {tau}", got, costs, chance)
        add(f"random, as tau {tau}", chance, chance_costs, None)
    return out


def writing(lm: LoadedModel, args: argparse.Namespace, ratio: float) -> list[dict[str, Any]]:
    prompts, out = [ids[:BEGIN] for ids in documents(lm, args, 64)], list[dict[str, Any]]()
    big, small = shaped(lm, 0.0), shaped(lm, 0.0, of_draft=True)

    def measure(
        rule: Callable[[int], SwitchRule[Any]],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        same, costs = list[int](), list[np.ndarray]()
        for i, ids in enumerate(prompts):
            scheduler = Scheduler()
            task = scheduler.submit_coroutine(
                answer_one(
                    SpeculativeDecoder(
                        SwitchTarget(small, big, rule(i)),
                        NothingDrafter(),
                        MatchVerifier(),
                        FixedPolicy(0),
                    ),
                    Request(ids, args.tokens),
                )
            )
            while scheduler.step():
                pass
            text, use = task.result.token_ids, task.usage
            fed = [
                use[c.lm.network].positions if c.lm.network in use else 0
                for c in (lm.draft, lm.checkpoint)
            ]

            async def score(ids: Any = ids, text: Any = text) -> Any:
                return await lm.checkpoint.lm.open_session(ids).score_draft(
                    Draft.chain_draft(ids[-1], text[:-1]), ScoreRequest()
                )

            scores = run_coroutines([score()])[0]
            same.append(sum(scores.likeliest_token(j) == x for j, x in enumerate(text)))
            passes = use[lm.checkpoint.lm.network].passes if lm.checkpoint.lm.network in use else 0
            costs.append(
                np.array(
                    [
                        len(text),
                        passes,
                        fed[1],
                        fed[0] + ratio * fed[1],
                        ratio * (len(ids) + len(text) - 1),
                    ]
                )
            )
        return np.array(same), np.array([c[0] for c in costs]), np.array(costs)

    for tau in map(float, filter(None, args.write_taus.split(","))):
        ours, n, costs = measure(
            lambda i, t=tau: EntropySwitchRule(t, None, args.window, args.hold)
        )
        share = min(1.0, costs[:, 1].sum() / costs[:, 0].sum())
        draws = [
            measure(lambda i, s=share, d=d: RandomSwitchRule(s, args.hold, 1000 * d + i))
            for d in range(2)
        ]
        theirs, n0, costs0 = (np.mean([d[k] for d in draws], 0) for k in range(3))
        for name, same, m, c in (
            (f"tau {tau}", ours, n, costs),
            (f"random, as tau {tau}", theirs, n0, costs0),
        ):
            out.append(
                {
                    "measure": "greedy answers",
                    **row(name, c),
                    "agreement": same.sum() / m.sum(),
                    "over random": difference(same, theirs, m, n0),
                }
            )
    return out


def main() -> None:
    parser = arguments(__doc__, model="zoo:tiny", dtype="auto", prompts=30, tokens=64)
    parser.add_argument("--taus", default="1,2,3,4,5,6")
    parser.add_argument("--write-taus", default="1,2,3")
    parser.add_argument("--hold", type=int, default=10, help="least tokens between two switches")
    parser.add_argument("--window", type=int, default=5, help="tokens of the mean entropy")
    args = parser.parse_args()
    lm = model(args, "default")
    big, small = lm.checkpoint.lm.network.cost, lm.draft.lm.network.cost
    report(
        args,
        f"window {args.window}, hold {args.hold}; parameters a position reads, large over small: {big / small:.1f}",
        reading(lm, args, big / small) + writing(lm, args, big / small),
    )


if __name__ == "__main__":
    main()
