"""Spend more on an answer: try several solutions of a small problem, and let a reward or a vote choose.

    python examples/search.py
    python examples/search.py "24 from 3 3 5 6" --tries 16

Both models travel in the package: a small reasoner, and a reward that judges the steps of a solution.
"""

import argparse

import polydec

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("problem", nargs="?", default="24 from 2 3 4 6")
arguments.add_argument("--tries", type=int, default=8, help="solutions that are drawn")
arguments.add_argument("--max-tokens", type=int, default=96)
given = arguments.parse_args()

model = polydec.load("zoo:reasoner", trained=["zoo:reasoner-prm"])
drawn = model.sampling_with(temperature=0.6)

for title, method, options, sampling in [
    ("the likeliest next token, always", "plain", {}, None),
    ("most solutions agree", "self-consistency", {"tries": given.tries}, drawn),
    ("the reward values it most", "best-of-n", {"tries": given.tries}, drawn),
    ("step by step behind the best beginning", "a-star-decoding", {"width": 2}, drawn),
]:
    answer = polydec.generate(
        model,
        given.problem,
        method=method,
        options=options,
        sampling=sampling,
        max_tokens=given.max_tokens,
    )
    # A search writes more than it answers with; plain decoding writes its answer alone.
    written = answer.metrics.get("tokens_written", answer.usage["completion_tokens"])
    print(f"{method} ({title}), {written} tokens written:")
    print("   ", answer.text.strip().replace("\n", "\n    "), end="\n\n")
