"""SpecDec++ against every fixed length from 1 to 10: tokens per pass, drafted tokens that were thrown away, and what
a token costs where a position of the draft costs c passes of the target. With --time tokens per second of whole answers, and
those of goodput by the costs measured here, of a length learned online (additive) and of the target alone beside them.

At every --every-th place of texts that the target wrote alone, one chain of 12 tokens is drawn and verified; each rule says
where it would have ended. The head is trained first, on what the target writes to prompts for training (--head: a directory
that has one); thresholds are those that are cheapest on prompts for tuning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drafted import Run, Setting, answer, plain, questions
from seen import arguments, interval, model, report, shaped

from polydec.api import LoadedModel
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.lab.train.probe import train_probe
from polydec.lab.train.specs.probe.stop_head import StopHeadSpec
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.additive import AdditivePolicy
from polydec.methods.speculative.policies.confidence import ConfidencePolicy
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.policies.goodput import GoodputPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.learned_stop import LearnedStopTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.learned.kinds import stop_head
from polydec.models.learned.kinds.stop_head import StopHead

LONGEST, COINS, PRICES = 12, 4, (0.02, 0.05, 0.1, 0.2)
HEAD = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
SURE = (0.01, 0.03, 0.1, 0.2, 0.4)

Place = tuple[list[float], list[float], list[int]]
"""Of one chain: the head's chances (the last token's left out), the draft's probabilities, and how many tokens were
accepted, for each of several verifications."""
Rule = Callable[[Sequence[float], Sequence[float]], int]


def fixed(k: int) -> Rule:
    return lambda chances, q: min(k, len(q))


def by_head(threshold: float) -> Rule:
    def length(chances: Sequence[float], q: Sequence[float]) -> int:
        all_ = 1.0
        for k in range(1, len(q) + 1):
            if 1 - all_ > threshold:
                return k
            all_ *= chances[k - 1] if k <= len(chances) else 1.0
        return len(q)

    return length


def by_confidence(threshold: float) -> Rule:
    return lambda chances, q: next((k for k, p in enumerate(q, 1) if p < threshold), len(q))


def places(
    lm: LoadedModel, head: StopHead, prompts: Sequence[tuple[int, ...]], args: Any
) -> list[list[Place]]:
    """Of each prompt's text its places."""
    target, draft = (
        shaped(lm, args.temperature, args.seed, of_draft=small) for small in (False, True)
    )
    whole = DraftBudget(LONGEST, LONGEST)

    async def walk(prompt: tuple[int, ...], text: tuple[int, ...]) -> list[Place]:
        large, small, root, out = (
            target.open_session(prompt),
            draft.open_session(prompt),
            prompt[-1],
            list[Place](),
        )
        for session in (large, small):
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        for i, x in enumerate(text):
            at = len(prompt) + i
            if i % args.every == 0:
                chain = await LearnedStopTree(head, 0.5, least=64).grow_tree(
                    small, root, at, whole, Rng.of_choice(args.seed + 1)
                )
                again = await ChainTree().grow_tree(
                    small, root, at, replace(whole, graded=True), Rng.of_choice(args.seed + 1)
                )
                chances, q = chain.chance[1:-1], list(again.chance[1:])
                chain = chain.cut_draft(64, target.vocab.eos)
                scores = await large.score_draft(chain, ScoreRequest())
                got = [
                    len(
                        ExactVerifier()
                        .verify_draft(chain, scores, Rng.of_choice(args.seed + 2, c), at)
                        .path
                    )
                    for c in range(COINS)
                ]
                out.append((list(chances[: len(chain) - 1]), q[: len(chain) - 1], got))
            for session in (large, small):
                session.commit_tokens((root,))
            root = x
        return out

    return [run_coroutines([walk(p, plain(lm, p, args, args.temperature))])[0] for p in prompts]


def replay(rule: Rule, texts: list[list[Place]]) -> list[Run]:
    """Of each text what this rule would have given and taken."""
    out = []
    for text in texts:
        sums = Run(0, 0, 0)
        for chances, q, got in text:
            length = rule(chances, q)
            sums += Run(1 + sum(min(n, length) for n in got) / COINS, 1, length, length)
        out.append(sums)
    return out


def price(runs: list[Run], c: float) -> float:
    all_ = sum(runs[1:], runs[0])
    return (all_.passes + c * all_.draft_passes) / all_.tokens


def cheaper(ours: list[Run], theirs: list[Run], c: float) -> str:
    """Tokens per price, over theirs, with the paired interval."""
    pairs = [[(r.tokens, r.passes + c * r.draft_passes) for r in runs] for runs in (ours, theirs)]
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(*pairs))


def timed(
    lm: LoadedModel, settings: dict[str, Setting], prompts: list[tuple[int, ...]], args: Any
) -> list[dict[str, Any]]:
    """Tokens per second of whole answers, settings in turn."""
    got: dict[str, list[tuple[float, float]]] = {name: [] for name in settings}
    for prompt in prompts:
        for name, setting in settings.items():
            start = time.perf_counter()
            tokens = answer(lm, setting, prompt, args, args.temperature).tokens
            got[name].append((tokens, time.perf_counter() - start))
    speed = {n: sum(t for t, _ in pairs) / sum(s for _, s in pairs) for n, pairs in got.items()}
    best = max((n for n in settings if n.startswith("fixed")), key=speed.__getitem__)
    return [
        {
            "method": n,
            "tokens/s": speed[n],
            f"over {best}": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(got[n], got[best])),
        }
        for n in settings
    ]


def main() -> None:
    parser = arguments(
        __doc__,
        model="zoo:tiny",
        dtype="auto",
        prompts=24,
        tokens=64,
        tuning=12,
        each=30,
        head="",
        every=2,
        price=0.1,
        temperature=1.0,
    )
    parser.add_argument(
        "--time", action="store_true", help="at the thresholds that are cheapest at --price"
    )
    args = parser.parse_args()
    lm, trained = model(args, "default"), None
    with TemporaryDirectory() as folder:
        if not args.head:
            trained = train_probe(
                StopHeadSpec(
                    folder,
                    target=args.model,
                    each=args.each,
                    max_tokens=96,
                    seed=args.seed,
                    temperature=args.temperature,
                )
            )
        head = stop_head.load(Path(args.head or folder))
    lengths = {f"fixed {k}": fixed(k) for k in range(1, 11)}
    rules = {
        "specdec++": {f"specdec++ {h}": by_head(h) for h in HEAD},
        "confidence": {f"confidence {t}": by_confidence(t) for t in SURE},
    }
    texts = places(lm, head, questions(lm, args, tune=True)[: args.tuning], args)
    tuned = {n: replay(rule, texts) for group in rules.values() for n, rule in group.items()}
    if args.time:
        settings: dict[str, Setting] = {
            n: (lambda d: ModelDrafter(d, ChainTree()), ExactVerifier(), FixedPolicy(k))
            for k, n in enumerate(lengths, 1)
        }
        chosen = [min(group, key=lambda n: price(tuned[n], args.price)) for group in rules.values()]
        h, t = (float(n.split()[1]) for n in chosen)
        settings[chosen[0]] = (
            (lambda d: ModelDrafter(d, LearnedStopTree(head, h))),
            ExactVerifier(),
            FixedPolicy(LONGEST),
        )
        settings[chosen[1]] = (
            (lambda d: ModelDrafter(d, ChainTree())),
            ExactVerifier(),
            ConfidencePolicy(t, LONGEST),
        )
        settings["goodput"] = (
            (lambda d: ModelDrafter(d, ChainTree())),
            ExactVerifier(),
            GoodputPolicy(lm.costs),
        )
        settings["additive"] = (
            (lambda d: ModelDrafter(d, ChainTree())),
            ExactVerifier(),
            AdditivePolicy(),
        )
        settings["plain"] = (
            (lambda d: ModelDrafter(d, ChainTree())),
            ExactVerifier(),
            FixedPolicy(0),
        )
        report(
            args,
            f"whole answers, T = {args.temperature}",
            timed(lm, settings, questions(lm, args), args),
        )
        return
    texts = places(lm, head, questions(lm, args), args)
    got = {
        n: replay(rule, texts) for group in (lengths, *rules.values()) for n, rule in group.items()
    }
    out: list[dict[str, Any]] = [{"head": "held out", **trained["held_out"]}] if trained else []
    for name, runs in got.items():
        all_ = sum(runs[1:], runs[0])
        out.append(
            {
                "method": name,
                "tokens per pass": all_.tokens / all_.passes,
                "drafted per pass": all_.drafted / all_.passes,
                "thrown away per token": (all_.drafted + all_.passes - all_.tokens) / all_.tokens,
            }
        )
    for c in PRICES:
        best = min(lengths, key=lambda n: price(got[n], c))
        for group in rules.values():
            mine = min(group, key=lambda n: price(tuned[n], c))
            each = " ".join(
                f"{k}:{price(got[f'fixed {k}'], c) / price(got[mine], c):.2f}" for k in range(1, 11)
            )
            out.append(
                {
                    "c": str(c),
                    "chosen": mine,
                    "tokens per price over each fixed length": each,
                    "best fixed": best,
                    "over it": cheaper(got[mine], got[best], c),
                }
            )
    report(args, f"replayed rounds, T = {args.temperature}, {sum(map(len, texts))} places", out)


if __name__ == "__main__":
    main()
