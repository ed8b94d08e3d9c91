"""SpecTr: tokens per pass of k independent sequences under k-SEQ against one sequence of equal length and against the same
sequences under plain recursive rejection, sampling at T = 1; and k-SEQ's acceptance beside the linear program's optimum on
the pair's own rows."""

from __future__ import annotations

import torch
from drafted import plain, questions, ratio, rounds, row
from seen import arguments, model, report, shaped

from polydec.core.law import float64_probabilities
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees.sequences import SequencesTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.k_seq import (
    KSeqVerifier,
    best_acceptance,
    k_trial_acceptance,
)


def rows(lm, prompt, args):
    """Laws of target and draft at some places of one sampled answer."""
    target, draft = (shaped(lm, 1.0, args.seed, of_draft=small) for small in (False, True))
    text = plain(lm, prompt, args, 1.0)
    both = [
        run_coroutines(
            [
                t.open_session(prompt).score_draft(
                    Draft.chain_draft(prompt[-1], text), ScoreRequest()
                )
            ]
        )[0]
        for t in (target, draft)
    ]
    return [
        tuple(float64_probabilities(s.logprob_row(i)) for s in both)
        for i in range(0, len(text), 2 * args.every)
    ]


def main() -> None:
    parser = arguments(
        __doc__, model="zoo:tiny", dtype="auto", prompts=24, tokens=64, depth=4, every=4, draws=2
    )
    args = parser.parse_args()
    lm, out = model(args, "default"), []
    prompts = questions(lm, args)
    pairs = [pair for prompt in prompts for pair in rows(lm, prompt, args)]
    for k in (1, 2, 4, 8):
        got, best = (
            torch.tensor([f(p, q, k) for p, q in pairs])
            for f in (k_trial_acceptance, best_acceptance)
        )
        out.append(
            {
                "candidates": k,
                "acceptance of k-SEQ": float(got.mean()),
                "optimum": float(best.mean()),
                "mean share of the optimum": float((got / best).mean()),
                "least": float((got / best).min()),
            }
        )
    trees = {"chain": (SequencesTree(1), KSeqVerifier(), DraftBudget(args.depth, args.depth))}
    for k in (2, 4):
        for name, verifier in (("spectr", KSeqVerifier()), ("one by one", ExactVerifier())):
            trees[f"{name}, {k} sequences"] = (
                SequencesTree(k),
                verifier,
                DraftBudget(args.depth, k * args.depth),
            )
    got = rounds(lm, trees, prompts, args, 1.0)
    out += [
        {"T": 1.0, **row(name, runs), "over chain": ratio(runs, got["chain"])}
        for name, runs in got.items()
    ]
    report(
        args, f"rounds; sequences of {args.depth} tokens; acceptance over {len(pairs)} rows", out
    )


if __name__ == "__main__":
    main()
