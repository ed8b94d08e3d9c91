"""Answer many requests at once: each has its own method and options, and they share passes of the model.

    python examples/batch.py
    python examples/batch.py --model zoo:tiny

The default model is fetched once: polydec zoo install smollm2
A file of requests is answered by one command instead: polydec batch IN.jsonl OUT.jsonl
"""

import argparse
import time

import polydec

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("--model", default="zoo:smollm2")
arguments.add_argument("--max-tokens", type=int, default=48)
given = arguments.parse_args()

model = polydec.load(given.model)
engine = polydec.Engine(model)
asks = [
    polydec.Ask("Name three rivers."),
    polydec.Ask("Repeat: red, green, blue, red, green, blue.", method="prompt-lookup"),
    polydec.Ask(
        "Write a haiku.", sampling=model.sampling_with(temperature=0.8, top_p=0.95), seed=7
    ),
    # Two answers to one prompt share the work on the prompt.
    polydec.Ask("Name a colour.", sampling=model.sampling_with(temperature=1.0), n=2),
]

# Nothing is computed here: a wrong field or option would be refused before anything runs.
tickets = [engine.submit(polydec.Ask(**vars(a) | {"max_tokens": given.max_tokens})) for a in asks]

begun = time.perf_counter()
answers = engine.run(tickets)
seconds = time.perf_counter() - begun

for ask, answer in zip(asks, answers, strict=True):
    print(f"\n{ask.prompt}  [{answer.method['name']}]")
    for choice in answer.choices:
        print("  >", choice.text.strip().replace("\n", "\n    "))

tokens = sum(answer.usage["completion_tokens"] for answer in answers)
print(f"\n{tokens} tokens of {len(answers)} requests in {seconds:.1f} seconds")
