"""Lenience: tokens a pass where a drawn token passes with probability p / (lenience q), and what that costs: nats a token of
the text under the model's own law at the temperature it was drawn at (exact sampling comes to the law's entropy there)."""

from __future__ import annotations

from drafted import questions
from seen import arguments, interval, model, per_pass, report, shaped

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.lenient import LenientVerifier


def main() -> None:
    parser = arguments(__doc__, model="zoo:tiny", dtype="auto", prompts=16, tokens=48, depth=5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--draws", type=int, default=3, help="texts of each prompt")
    args = parser.parse_args()
    lm = model(args, "default")
    target, small = (
        shaped(lm, args.temperature, args.seed, of_draft=draft) for draft in (False, True)
    )

    async def nats(prompt: tuple[int, ...], text: tuple[int, ...]) -> float:
        session = target.open_session(prompt)
        scores = await session.score_draft(Draft.chain_draft(prompt[-1], text[:-1]), ScoreRequest())
        total = -sum(scores.token_logprobs(i, (x,))[0] for i, x in enumerate(text))
        session.close()
        return total

    pairs: dict[float, list[tuple[int, int]]] = {}
    costs: dict[float, float] = {}
    prompts = [tuple(x) for x in questions(lm, args)]
    for lenience in (1.0, 0.7, 0.5, 0.3, 0.1):
        how = SpeculativeDecoder(
            target,
            ModelDrafter(small, ChainTree()),
            LenientVerifier(lenience),
            FixedPolicy(args.depth),
        )
        pairs[lenience], costs[lenience] = [], 0.0
        for prompt in prompts:
            for draw in range(args.draws):
                request = Request(prompt, max_tokens=args.tokens, seed=args.seed + draw)
                result = run_coroutines([answer_one(how, request)])[0]
                pairs[lenience].append((len(result.token_ids), result.stats.passes))
                costs[lenience] += run_coroutines([nats(prompt, result.token_ids)])[0]
    rows = [
        {
            "lenience": lenience,
            "tokens per pass": per_pass(got),
            "over exact": "{:.3f} [{:.3f}, {:.3f}]".format(*interval(got, pairs[1.0])),
            "nats a token": costs[lenience] / sum(t for t, _ in got),
        }
        for lenience, got in pairs.items()
    ]
    report(args, f"drafts of {args.depth}, temperature {args.temperature}", rows)


if __name__ == "__main__":
    main()
