"""Token Recycling: the bytes that its table keeps, cold (a table for each request) and hot (one for all), with tokens per pass.

Greedy answers to Spec-Bench's first turns, one after the other in the order of the file, so that what hot gains depends on
that order. `--calibrate` prints the tree shape of the positions that were accepted most often, from a tree of 60 nodes.
"""

from __future__ import annotations

from collections import Counter

from seen import arguments, decode, interval, lines, model, part, per_pass, report, shaped

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.draft_tree import AcceptedPlaceCounter
from polydec.methods.speculative.drafters._tree_shapes import (
    Path,
    most_accepted_paths,
    template_child_counts,
)
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter, RecyclingTable
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier


def positions(prompts: list[tuple[int, ...]], lm, args) -> Counter[Path]:
    """How often each index path was accepted."""
    counter = AcceptedPlaceCounter()
    for prompt in prompts:
        decoder = SpeculativeDecoder(
            shaped(lm, 0.0), RecyclingDrafter(nodes=60), MatchVerifier(), FixedPolicy(64, 60)
        )
        request = Request(prompt, max_tokens=args.tokens)
        run_coroutines([answer_one(decoder, request, on=counter.watch_event)])
    return counter.accepted


def main() -> None:
    parser = arguments(__doc__, nodes=7)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--shape", help="a calibrated shape to measure beside the shipped one")
    args = parser.parse_args()
    lm = model(args)
    prompts = [
        lm.encode_prompt(p)
        for p in part(
            (
                r["turns"][0]
                for r in lines("spec_bench/question.jsonl")
                if len(r["turns"][0]) < 1200
            ),
            args.prompts,
            args.tune or args.calibrate,
        )
    ]
    if args.calibrate:
        accepted = positions(prompts, lm, args)
        for nodes in (args.nodes, 2 * args.nodes):
            print(
                nodes,
                "nodes:",
                ",".join(map(str, template_child_counts(most_accepted_paths(accepted, nodes)))),
            )
        return
    hot = RecyclingTable()
    methods = {
        "cold": RecyclingDrafter(nodes=args.nodes),
        "cold, prompt rows": RecyclingDrafter(nodes=args.nodes, recycle_prefill=True),
        "hot": RecyclingDrafter(nodes=args.nodes, memory=hot),
    }
    if args.shape:
        methods["cold, calibrated"] = RecyclingDrafter(shape=tuple(map(int, args.shape.split(","))))
    got: dict[str, list[tuple[int, int]]] = {}
    held: dict[str, list[int]] = {}
    for prompt in prompts:
        for name, how in methods.items():
            memory = hot if name == "hot" else RecyclingTable()
            drafter = RecyclingDrafter(
                how.k, how.nodes, how.recycle_prefill, memory=memory, shape=how.shape
            )
            r = decode(
                shaped(lm, 0.0), drafter, MatchVerifier(), prompt, args, depth=8, nodes=args.nodes
            )
            got.setdefault(name, []).append((len(r.token_ids), r.stats.passes))
            held.setdefault(name, []).append(memory.nbytes)
    out = [
        {
            "method": name,
            "tokens per pass": per_pass(pairs),
            "bytes at the end (mean)": sum(held[name]) // len(held[name]),
            "bytes (most)": max(held[name]),
            "over cold": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(pairs, got["cold"])),
        }
        for name, pairs in got.items()
    ]
    whole = 4 * 8 * lm.checkpoint.lm.vocab.size
    report(
        args,
        f"greedy, k = 8, trees of {args.nodes} nodes; a table of the whole vocabulary would hold {whole} bytes",
        out,
    )


if __name__ == "__main__":
    main()
