"""Draft & Verify: attentions and MLPs to leave out are searched on tuning prompts, then measured on others: share of drafts
that is accepted, layer passes a token (a half counts 1/2), tokens per pass and passes that a token costs by the modelled
price, greedy, beside evenly spaced whole layers of about the same share.

--least N, --most N: so many halves are left out (a small model finds that leaving out next to nothing is cheapest; at most
0: half of them). --row R: what a further row adds to a pass, in the last column (0.4: the native step,
lab/reports/native.md). With
--time tokens per second as well. --skip 3,5a,7m takes these halves and searches nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from exits import prompts
from seen import arguments, interval, model, report, shaped
from studies.skip_search import Found, Price, search

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.bench.measure import BenchTask, MethodSetting, bench_table_rows, measure_methods
from polydec.lab.testing.kits import build
from polydec.methods.economics.depth import format_layer_halves, kept_layers, parse_layer_halves


def counted(network: Any, price: Price) -> dict[str, float]:
    """Layer passes, and passes by the price of their first rows, of all that this network does from now on."""
    total, forward, L = {"layers": 0.0, "passes": 0.0}, network.forward, network.layers

    def count(queries: Any) -> Any:
        for q in queries:
            kept = range(L) if q.layers is None else q.layers
            out = q.without | {h for h in range(2 * L) if h // 2 not in kept}
            total["layers"] += L - len(out) / 2
            total["passes"] += price.draft(out)
        return forward(queries)

    network.forward = count
    return total


def main() -> None:
    parser = arguments(
        __doc__,
        prompts=21,
        tokens=64,
        begin=64,
        tuning=6,
        text=24,
        least=1,
        most=0,
        tries=90,
        row=0.4,
        repeats=2,
        skip="",
    )
    parser.add_argument("--time", action="store_true", help="tokens per second")
    args = parser.parse_args()
    lm = model(args)
    L, target, price = (
        lm.network.layers,
        shaped(lm, 0.0),
        Price.by_size(lm.network, args.begin + args.tokens // 2),
    )
    wanted, args.prompts = args.prompts, args.tuning
    tuning = [p for _, p in prompts(lm, args, True)]
    args.prompts = wanted
    found = Found(args.skip, float("nan"), 4, float("nan"), ())
    if not args.skip:
        found = search(
            target,
            tuning,
            price,
            tokens=args.text,
            least=args.least,
            most=args.most or None,
            tries=args.tries,
            seed=args.seed,
            watch=lambda s: print(s, file=sys.stderr),
        )
    out = parse_layer_halves(found.skip, L)
    some = L - max(1, round((1 - price.draft(out)) / (price.attention + price.mlp)))
    kept = kept_layers(L, L / some - 1e-9, even=True)
    even = format_layer_halves({h for h in range(2 * L) if h // 2 not in kept})
    methods: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("plain", {}),
        "searched": ("draft-and-verify", {"skip": found.skip}),
        f"searched, drafts of {found.length}": (
            "draft-and-verify",
            {"skip": found.skip, "depth": found.length, "threshold": 0.0},
        ),
        "layers evenly spaced": ("draft-and-verify", {"skip": even}),
    }
    texts, total, rows = (
        [p for _, p in prompts(lm, args, False)],
        counted(lm.network, price),
        list[dict[str, Any]](),
    )
    base: list[tuple[int, float]] = []
    for label, (name, options) in methods.items():
        pairs, stats, layers = list[tuple[int, float]](), [], 0.0
        for p in texts:
            decoder, _ = build(name, target, given=options)
            before = dict(total)
            r = run_coroutines(
                [answer_one(decoder, Request(p, max_tokens=args.tokens, ignore_eos=True))]
            )[0]
            pairs.append((len(r.token_ids), total["passes"] - before["passes"]))
            layers += total["layers"] - before["layers"]
            stats.append(r.stats)
        base = base or pairs
        tokens, drafted = sum(t for t, _ in pairs), sum(s.drafted for s in stats)
        gone = parse_layer_halves(options.get("skip", ""), L)
        rows.append(
            {
                "method": label,
                "halves left out": len(gone),
                "a draft's pass": price.draft(gone),
                "accepted": sum(s.accepted for s in stats) / max(1, drafted),
                "tokens per pass": tokens / sum(s.passes for s in stats),
                "layer passes a token": layers / tokens,
                "passes a token": sum(c for _, c in pairs) / tokens,
                "over plain": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(pairs, base)),
                f"rows at {args.row}": (sum(c for _, c in pairs) + args.row * drafted) / tokens,
            }
        )
    if args.time:
        timed = [MethodSetting(n, {k: str(v) for k, v in o.items()}) for n, o in methods.values()]
        tasks = [BenchTask("documents", (p,), raw=True) for p in texts]
        rows += bench_table_rows(
            lm,
            measure_methods(
                lm,
                timed,
                tasks,
                sampling=lm.sampling_with(temperature=0.0),
                max_tokens=args.tokens,
                repeats=args.repeats,
            ),
            tasks,
        )
    report(
        args,
        f"left out {found.skip}: {len(out)} of {2 * L} halves; on tuning prompts {found.price:.3f} passes a token "
        f"with drafts of {found.length}, agreement {found.agreement:.3f}",
        rows,
    )


if __name__ == "__main__":
    main()
