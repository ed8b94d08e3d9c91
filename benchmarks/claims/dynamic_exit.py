"""DEL against every fixed exit and length, greedy: layer passes per token (a layer run once over any number of positions), and
the same with the head's passes counted at what they cost.

Give --model a directory of a network that was trained with an early-exit loss, such as
  polydec train lm --out DIR --start zoo:tiny --layers 8 --early-exit 1 --layer-dropout 0.1 --steps 420
Fixed pairs are replayed exactly on the texts (see exits.py), DEL is run. `chosen` is the pair that is best on the tuning
prompts, `best` the one that is best in hindsight on these. With --time all of them are run and timed as well.
"""

from __future__ import annotations

import argparse
from typing import Any

from exits import counted, greedy, hits, prompts, replay, sizes
from seen import arguments, interval, model, report, shaped

from polydec.api import LoadedModel
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.bench.measure import BenchTask, MethodSetting, bench_table_rows, measure_methods
from polydec.lab.testing.kits import build


def fixed(
    lm: LoadedModel, items: list[Any], args: argparse.Namespace, head: float
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Of every pair, and of (0, 0), plain decoding, the (tokens, cost in thousandths of a layer pass) of each text."""
    L, out = lm.network.layers, dict[tuple[int, int], list[tuple[int, int]]]()
    for text, hit in items:
        for e in range(1, L):
            for g in range(1, args.longest + 1):
                _, _, _, layers, rows = replay(hit[e - 1], e, g, L)
                out.setdefault((e, g), []).append((len(text), round(1000 * (layers + head * rows))))
        out.setdefault((0, 0), []).append((len(text), round(1000 * len(text) * (L + head))))
    return out


def dynamic(
    lm: LoadedModel,
    given: list[Any],
    args: argparse.Namespace,
    head: float,
    count: Any,
    **options: Any,
) -> tuple[list[Any], Any]:
    """DEL's (tokens, cost) of each text, and its stats: drafted, accepted, shadow rows, whether the text is plain's."""
    L, out, seen = lm.network.layers, [], [0, 0, 0, True]
    for (_, prompt), (text, _) in given:
        target = shaped(lm, 0.0, repetition_penalty=args.penalty)
        decoder, _ = build("del", target, given={"head": head, **options})
        before = (count.layers, count.heads, count.shadows)
        r = run_coroutines(
            [answer_one(decoder, Request(prompt, max_tokens=args.tokens, ignore_eos=True))]
        )[0]
        first = L * -(-(len(prompt) - 1) // lm.checkpoint.lm.chunk)  # the prompt's own passes
        layers, rows = count.layers - before[0] - first, count.heads - before[1]
        out.append((len(r.token_ids), round(1000 * (layers + head * rows))))
        seen = [
            seen[0] + r.stats.drafted,
            seen[1] + r.stats.accepted,
            seen[2] + count.shadows - before[2],
            seen[3] and r.token_ids == text,
        ]
    return out, seen


def main() -> None:
    parser = arguments(
        __doc__,
        model="zoo:tiny",
        prompts=30,
        tokens=96,
        begin=96,
        longest=10,
        penalty=1.0,
        head=-1.0,
        repeats=2,
    )
    parser.add_argument(
        "--time", action="store_true", help="tokens per second of plain, DEL and all fixed pairs"
    )
    args = parser.parse_args()
    lm = model(args)
    net, rows, (layer, top) = lm.network, [], sizes(lm.network)
    price = top / layer if args.head < 0 else args.head
    given = {
        tune: [
            (p, (t := greedy(lm, p[1], args), hits(lm, p[1], t, args.penalty)))
            for p in prompts(lm, args, tune)
        ]
        for tune in (False, True)
    }
    count = counted(net)
    for name, head in (
        ("layers only", 0.0),
        (f"with the head at {price:.2f} layers a pass", price),
    ):
        here, there = (fixed(lm, [x for _, x in given[tune]], args, head) for tune in (False, True))

        def cost(pairs: list[tuple[int, int]]) -> float:
            return sum(q for _, q in pairs) / sum(t for t, _ in pairs) / 1000

        best, chosen = (
            min(here, key=lambda k: cost(here[k])),
            min(there, key=lambda k: cost(there[k])),
        )
        tries = {
            "DEL": {},
            "DEL, every 2nd exit": {"every": 2},
            "DEL, no confidence stop": {"by_confidence": False},
            "DEL, stop by confidence only": {"by_length": False},
            "DEL, prompt not counted": {"prompt": 0},
        }
        plain = here[0, 0]
        for label, options in tries.items():
            ours, (drafted, accepted, shadows, same) = dynamic(
                lm, given[False], args, head, count, **options
            )
            rows.append(
                {
                    "cost": name,
                    "method": label,
                    "per token": cost(ours),
                    **{
                        f"over {k}": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(ours, v))
                        for k, v in (
                            ("plain", plain),
                            (f"best {best}", here[best]),
                            (f"chosen {chosen}", here[chosen]),
                        )
                    },
                    "accepted": accepted / max(1, drafted),
                    "drafted per token": drafted / sum(t for t, _ in ours),
                    "shadow rows per token": shadows / sum(t for t, _ in ours),
                    "same text": same,
                }
            )
        rows += [
            {
                "cost": name,
                "method": f"fixed {k}",
                "per token": cost(v),
                "over plain": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(v, plain)),
            }
            for k, v in sorted(here.items(), key=lambda kv: cost(kv[1]))[:5]
        ]
    if args.time:
        rows += timed(lm, args, [p for (_, p), _ in given[False]], price)
    report(args, f"greedy, repetition penalty {args.penalty}", rows)


def timed(
    lm: LoadedModel, args: argparse.Namespace, texts: list[tuple[int, ...]], head: float
) -> list[dict[str, Any]]:
    """Tokens per second against plain decoding, interleaved."""
    pairs = [(e, g) for e in range(1, lm.network.layers) for g in (1, 2, 3, 4, 6, 8)]
    methods = [
        MethodSetting("plain", {}),
        MethodSetting("del", {"head": str(head)}),
        MethodSetting("del", {"head": str(head), "every": "2"}),
        *(MethodSetting("layerskip", {"exit": str(e), "depth": str(g)}) for e, g in pairs),
    ]
    tasks = [BenchTask("documents", (p,), raw=True) for p in texts]
    runs = measure_methods(
        lm,
        methods,
        tasks,
        sampling=lm.sampling_with(temperature=0.0, repetition_penalty=args.penalty),
        max_tokens=args.tokens,
        repeats=args.repeats,
    )
    return sorted(bench_table_rows(lm, runs, tasks), key=lambda r: -r["tokens_per_second"])


if __name__ == "__main__":
    main()
