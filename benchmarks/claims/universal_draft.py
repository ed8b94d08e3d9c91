"""Drafts of another tokenizer: tokens per pass and acceptance, beside the same target without them.

`universal-draft` spells what the draft wrote in the target's tokens, `-intersection` holds the draft to the tokens that both
have. `twins`: tokens that the two vocabularies share. The text is the target's in every row.
"""

from __future__ import annotations

from typing import Any

from seen import arguments, interval, lines, part, per_pass, report

from polydec import api
from polydec.methods.speculative.drafters._reader import shared_token_map


def main() -> None:
    parser = arguments(__doc__, tokens=48)
    parser.add_argument("--draft", default="zoo:tiny")
    parser.add_argument("--temperatures", default="0,0.7")
    parser.add_argument(
        "--methods", default="plain,prompt-lookup,universal-draft,universal-draft-intersection"
    )
    args = parser.parse_args()
    lm, out = (
        api.load(args.model, draft=args.draft, dtype=args.dtype, threads=args.threads),
        list[dict[str, Any]](),
    )
    turns = part(
        (r["turns"][0] for r in lines("spec_bench/question.jsonl") if len(r["turns"][0]) < 1000),
        10**6,
        args.tune,
    )
    prompts = turns[:: max(1, len(turns) // args.prompts)][: args.prompts]
    for temperature in map(float, args.temperatures.split(",")):
        got, rates = dict[str, list[tuple[int, int]]](), dict[str, list[tuple[float, float]]]()
        for method in args.methods.split(","):
            for p in prompts:
                whole = {"cost_aware": False} if method == "prompt-lookup" else {}
                c = api.generate(
                    lm,
                    p,
                    method=method,
                    options=whole,
                    max_tokens=args.tokens,
                    seed=args.seed,
                    sampling=lm.sampling_with(temperature=temperature),
                )
                m = c.metrics
                got.setdefault(method, []).append((len(c.token_ids), m["target_passes"]))
                drafted = sum(x["passes"] for x in m["models"] if x["name"] == args.draft)
                rates.setdefault(method, []).append(
                    (len(c.token_ids) - m["target_passes"], drafted)
                )
        for method, pairs in got.items():
            gained, drafted = map(sum, zip(*rates[method], strict=True))
            out.append(
                {
                    "T": temperature,
                    "method": method,
                    "tokens per pass": per_pass(pairs),
                    "over plain": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(pairs, got["plain"])),
                    "draft passes per token": drafted / sum(t for t, _ in pairs),
                    "tokens gained per draft pass": gained / drafted if drafted else float("nan"),
                }
            )
    shared = len(shared_token_map(lm.draft.lm.vocab, lm.checkpoint.lm.vocab))
    report(args, f"draft {args.draft}, {shared} twins of its {lm.draft.lm.vocab.size} tokens", out)


if __name__ == "__main__":
    main()
