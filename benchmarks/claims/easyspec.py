"""EasySpec's claim that groups of attentions cost a draft little: a model drafts for itself, so that all that is refused is due
to groups."""

from __future__ import annotations

from typing import Any

from exits import prompts
from seen import arguments, model, report

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.grouped import GroupedDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.formats.architectures import TransformerConfig

WORKERS = 4
LAWS = {"greedy": GreedyRule(), "T = 0.8": TemperatureRule(0.8)}


def drafting(c: TransformerConfig, together: int) -> float:
    """By how much drafting is faster with WORKERS devices, where a pass takes as long as its weights are read and devices wait
    for nothing: by the numbers of weights, nothing is timed."""
    attention = c.width * c.head * (2 * c.heads + 2 * c.kv_heads)
    mlp, head = 3 * c.width * c.inner, c.vocab * c.width
    whole, middle = c.layers * (attention + mlp) + head, c.layers - 2
    steps, at = 0, 0
    while at < middle:  # a group waits for as many rounds as its layers fill the workers
        group = min(together, middle - at)
        steps, at = steps + -(-group // WORKERS), at + group
    return whole / (whole - attention * (middle - steps))


def main() -> None:
    parser = arguments(__doc__, model="zoo:smollm2", prompts=9, tokens=48, begin=64, dtype="torch")
    args, rows = parser.parse_args(), list[dict[str, Any]]()
    lm = model(args)
    network, given = lm.checkpoint.lm.network, prompts(lm, args, args.tune)
    for law, shaper in LAWS.items():
        target = ShapedTarget(lm.checkpoint.lm, shaper)
        for together, calibrated in ((1, True), (2, True), (4, True), (8, True), (4, False)):
            decoder = SpeculativeDecoder(
                target,
                GroupedDrafter(target, ChainTree(), together, calibrated),
                ExactVerifier(),
                FixedPolicy(4),
            )
            done = run_coroutines(
                [
                    answer_one(decoder, Request(p, max_tokens=args.tokens, seed=i))
                    for i, (_, p) in enumerate(given)
                ]
            )
            tokens, passes = sum(len(r.token_ids) for r in done), sum(r.stats.passes for r in done)
            rows.append(
                {
                    "law": law,
                    "together": together,
                    "calibrated": calibrated,
                    "tokens a pass": round(tokens / passes, 3),
                    "passes": passes,
                    "drafting on four": round(drafting(network.config, together), 3),
                }
            )
    report(args, "drafts of four, the model drafts for itself", rows)


if __name__ == "__main__":
    main()
