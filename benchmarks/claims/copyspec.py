"""CopySpec on second turns that repeat much of the first answer: tokens per pass, greedy, alone and over the draft model.

The first turn is answered by plain decoding; what is counted is the second turn only. Nothing is tuned on these questions
(gamma and block are the published ones), so both splits are used.
"""

from __future__ import annotations

from seen import arguments, decode, interval, lines, model, per_pass, report, shaped

from polydec.methods.speculative.drafters.capped import CappedDrafter
from polydec.methods.speculative.drafters.copying import CopySpecDrafter
from polydec.methods.speculative.drafters.first_of import FirstOfDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier


def main() -> None:
    parser = arguments(__doc__, draft="default", depth=3, first_tokens=96)
    args = parser.parse_args()
    lm = model(args, None if args.draft == "none" else args.draft)
    questions = list(lines("mt_bench/question_redundant.jsonl"))[: args.prompts]
    got: dict[str, list[tuple[int, int]]] = {}
    fed: dict[str, int] = {}
    for row in questions:
        first, length = [{"role": "user", "content": row["turns"][0]}], args.tokens
        args.tokens = args.first_tokens
        answer = decode(
            shaped(lm, 0.0), NothingDrafter(), ExactVerifier(), lm.encode_prompt(first), args
        )
        args.tokens = length
        ends = lm.checkpoint.lm.vocab.eos
        text = lm.checkpoint.text.decode([x for x in answer.token_ids if x not in ends])
        prompt = lm.encode_prompt(
            [
                *first,
                {"role": "assistant", "content": text},
                {"role": "user", "content": row["turns"][1]},
            ]
        )
        methods = {
            "copyspec": CopySpecDrafter(),
            "copyspec, latest": CopySpecDrafter(first=False),
            "copyspec, adaptive": CopySpecDrafter(adapt=True),
            "prompt-lookup": LookupDrafter(8, growth=2),
        }
        if lm.draft is not None:
            small = CappedDrafter(
                ModelDrafter(shaped(lm, 0.0, of_draft=True), ChainTree()), args.depth
            )
            methods |= {
                "draft-model": small,
                "copyspec-draft": FirstOfDrafter((CopySpecDrafter(), small)),
                "copyspec-draft, adaptive": FirstOfDrafter((CopySpecDrafter(adapt=True), small)),
            }
        for name, drafter in methods.items():
            r = decode(shaped(lm, 0.0), drafter, ExactVerifier(), prompt, args, depth=10, nodes=10)
            got.setdefault(name, []).append((len(r.token_ids), r.stats.passes))
            fed[name] = fed.get(name, 0) + r.stats.drafted
    out = []
    for name, pairs in got.items():
        row = {
            "method": name,
            "tokens per pass": per_pass(pairs),
            "drafted per pass": fed[name] / sum(p for _, p in pairs),
        }
        for other in ("prompt-lookup", "draft-model"):
            if other in got and other != name:
                row[f"over {other}"] = "{:.3f} [{:.3f}, {:.3f}]".format(
                    *interval(pairs, got[other])
                )
        out.append(row)
    report(
        args,
        f"second turns, greedy, gamma 3, block 10, model drafts of {args.depth} ({args.draft})",
        out,
    )


if __name__ == "__main__":
    main()
