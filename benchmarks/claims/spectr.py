"""SpecTr: tokens per pass of k independent sequences under k-SEQ against one sequence of equal length and against the same
sequences under plain recursive rejection, sampling at T = 1; and k-SEQ's acceptance beside the linear program's optimum on
the pair's own rows."""
from __future__ import annotations

import torch
from drafted import answers, questions, ratio, row
from seen import arguments, model, report, shaped

from polydec.core.law import probs
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.core.types import Draft, Want
from polydec.drafters.model import FromModel
from polydec.policies.fixed import Fixed
from polydec.registry import build
from polydec.trees.sequences import Sequences
from polydec.verifiers.exact import Exact
from polydec.verifiers.k_seq import KSeq, acceptance, best_acceptance


def rows(lm, prompt, args, temperature):
    """Laws of target and draft after each token of one sampled answer."""
    target, draft = (shaped(lm, temperature, args.seed, of_draft=small) for small in (False, True))
    text = run([build("plain", target)[0].run(Request(tuple(prompt), max_tokens=24, seed=args.seed))])[0].token_ids
    both = [run([t.open(prompt).score(Draft.chain(prompt[-1], text), Want())])[0] for t in (target, draft)]
    return [tuple(probs(s.row(i)) for s in both) for i in range(len(text))]


def main() -> None:
    parser = arguments(__doc__, model="zoo:tiny", dtype="auto", prompts=32, tokens=96, depth=4)
    args = parser.parse_args()
    lm, out = model(args, "default"), []
    prompts = questions(lm, args)
    pairs = [pair for prompt in prompts for pair in rows(lm, prompt, args, 1.0)]
    for k in (1, 2, 4, 8):
        got, best = (torch.tensor([f(p, q, k) for p, q in pairs]) for f in (acceptance, best_acceptance))
        out.append({"candidates": k, "acceptance of k-SEQ": float(got.mean()), "optimum": float(best.mean()),
                    "mean share of the optimum": float((got / best).mean()), "least": float((got / best).min())})
    settings = {"chain": (lambda d: FromModel(d, Sequences(1)), KSeq(), Fixed(args.depth))}
    for k in (2, 4):
        for name, verifier in (("spectr", KSeq()), ("same, rejection one by one", Exact())):
            settings[f"{name}, {k} sequences"] = (lambda d, k=k: FromModel(d, Sequences(k)), verifier,
                                                  Fixed(args.depth, k * args.depth))
    got = answers(lm, settings, prompts, args, 1.0)
    out += [{"T": 1.0, **row(name, runs), "over chain": ratio(runs, got["chain"])} for name, runs in got.items()]
    report(args, f"sequences of {args.depth} tokens; acceptance over {len(pairs)} rows", out)


if __name__ == "__main__":
    main()
