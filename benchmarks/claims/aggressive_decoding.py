"""Input-guided aggressive decoding against prompt lookup on grammar correction and code edits: tokens per pass, greedy.

The source is the span of the prompt that holds the text to be rewritten (or, as a row of its own, the whole prompt). All
methods copy at most --block tokens. `drafted per pass` says what the tokens per pass cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from seen import arguments, decode, interval, lines, model, part, per_pass, report, shaped

from polydec.api import LoadedModel
from polydec.methods.speculative.drafters.input_guided import InputGuidedDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.verifiers.match import MatchVerifier

CORRECT = "Correct the grammar and spelling of this text. Repeat the whole text, corrected, and write nothing else.\n\n"
EDIT = "{}. Write the whole file again, changed.\n\n```python\n"


def span(lm: LoadedModel, before: str, text: str, after: str) -> tuple[tuple[int, ...], int, int]:
    """Ids of the prompt, and the span of `text` in them (negative end)."""
    whole, without = lm.encode_prompt(before + text + after), lm.encode_prompt(before + after)

    def common(a: Sequence[int], b: Sequence[int]) -> int:
        return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

    start = common(whole, without)
    return whole, start, -min(common(whole[::-1], without[::-1]), len(without) - start)


def main() -> None:
    parser = arguments(__doc__, tokens=96, block=10)
    args = parser.parse_args()
    lm = model(args)
    grammar = part((r["source"] for r in lines("gec_jfleg/dev.jsonl")), args.prompts, args.tune)
    edits = part(
        (r for r in lines("code_edits/edits.jsonl.gz") if len(r["before"]) < 1200),
        args.prompts,
        args.tune,
        key=lambda r: r["before"],
    )
    tasks = {
        "grammar": [span(lm, CORRECT, text, "") for text in grammar],
        "code edits": [span(lm, EDIT.format(r["instruction"]), r["before"], "```") for r in edits],
    }
    out = []
    for workload, prompts in tasks.items():
        got, fed = dict[str, list[tuple[int, int]]](), dict[str, int]()
        for ids, start, stop in prompts:
            methods = {
                "prompt-lookup": LookupDrafter(8),
                "prompt-lookup, growth 2": LookupDrafter(8, growth=2),
                "suffix-automaton": SuffixDrafter(),
                "as published": InputGuidedDrafter(start, stop, eager=True, block=args.block),
                "near": InputGuidedDrafter(start, stop, True, True, args.block),
                "near, whole prompt": InputGuidedDrafter(near=True, block=args.block),
            }
            for name, drafter in methods.items():
                r = decode(
                    shaped(lm, 0.0),
                    drafter,
                    MatchVerifier(),
                    ids,
                    args,
                    depth=args.block,
                    nodes=args.block,
                )
                got.setdefault(name, []).append((len(r.token_ids), r.stats.passes))
                fed[name] = fed.get(name, 0) + r.stats.drafted
        for name, pairs in got.items():
            out.append(
                {
                    "workload": workload,
                    "method": name,
                    "tokens per pass": per_pass(pairs),
                    "drafted per pass": fed[name] / sum(p for _, p in pairs),
                    "over prompt-lookup": "{:.3f} [{:.3f}, {:.3f}]".format(
                        *interval(pairs, got["prompt-lookup"])
                    ),
                    "over as published": "{:.3f} [{:.3f}, {:.3f}]".format(
                        *interval(pairs, got["as published"])
                    ),
                }
            )
    report(args, f"greedy, at most {args.block} tokens copied", out)


if __name__ == "__main__":
    main()
