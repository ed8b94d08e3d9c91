"""Draft & Verify: layers to leave out are searched on tuning prompts, then measured on others: share of drafts that is
accepted, layer passes per token and tokens per pass, greedy, beside evenly spaced layers of the same number.

--left-out N fixes how many layers are left out (0: what was fastest on the tuning prompts, by this machine's clock). With
--time tokens per second as well. --keep 0,1,2,… takes these layers and searches nothing.
"""
from __future__ import annotations

import sys
from typing import Any

from exits import counted, prompts
from seen import arguments, interval, model, report, shaped

from polydec import registry
from polydec.bench.measure import Method, Task, measure, table
from polydec.bench.skip_search import Found, search
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.models.depth import kept_layers


def main() -> None:
    parser = arguments(__doc__, prompts=21, tokens=64, begin=64, tuning=6, left_out=0, most=12, repeats=2, keep="")
    parser.add_argument("--time", action="store_true", help="tokens per second")
    args = parser.parse_args()
    lm = model(args)
    L, target = lm.network.layers, shaped(lm, 0.0)
    wanted, args.prompts = args.prompts, args.tuning
    tuning = [p for _, p in prompts(lm, args, True)]
    args.prompts = wanted
    if args.keep:
        found = Found(tuple(map(int, args.keep.split(","))), float("nan"), float("nan"), (), ())
    else:
        found = search(target, tuning, tokens=args.tokens // 2, most=args.left_out or args.most,
                       step=0 if args.left_out else 2, watch=lambda s: print(s, file=sys.stderr))
    keep = found.keep
    even = kept_layers(L, L / len(keep) - 1e-9 if len(keep) < L else 1.0, even=True)
    texts, count, rows = [p for _, p in prompts(lm, args, False)], counted(lm.network), list[dict[str, Any]]()
    ours, theirs = (",".join(str(i) for i in range(L) if i not in some) for some in (keep, even))
    methods: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("plain", {}), "searched": ("layer-skip", {"skip": ours}), "evenly spaced": ("layer-skip", {"skip": theirs}),
        "searched, drafts of four": ("layer-skip", {"skip": ours, "depth": 4, "threshold": 0.0})}
    base: list[tuple[int, int]] = []
    for label, (name, options) in methods.items():
        pairs, stats = list[tuple[int, int]](), []
        for p in texts:
            decoder, _ = registry.build(name, target, given=options)
            before = count.layers
            r = run([decoder.run(Request(p, max_tokens=args.tokens, ignore_eos=True))])[0]
            pairs.append((len(r.token_ids), count.layers - before))
            stats.append(r.stats)
        base = base or pairs
        tokens, passes = sum(t for t, _ in pairs), sum(s.passes for s in stats)
        rows.append({"method": label, "layers": L if name == "plain" else len(keep),
                     "layer passes a token": sum(c for _, c in pairs) / tokens,
                     "over plain": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(pairs, base)), "tokens per pass": tokens / passes,
                     "accepted": sum(s.accepted for s in stats) / max(1, sum(s.drafted for s in stats))})
    if args.time:
        some = [Method(n, {k: str(v) for k, v in o.items()}) for n, o in methods.values()]
        tasks = [Task("documents", (p,), raw=True) for p in texts]
        rows += table(lm, measure(lm, some, tasks, sampling=lm.sampling(temperature=0.0), max_tokens=args.tokens,
                                  repeats=args.repeats), tasks)
    left = sorted(set(range(L)) - set(keep))
    report(args, f"left out {left}; in the order {[i for i, _ in found.order]}, agreement "
                 f"{[round(a, 3) for _, a in found.order]}; seconds per token on tuning prompts {found.times}, plain "
                 f"{found.plain:.4f}", rows)


if __name__ == "__main__":
    main()
