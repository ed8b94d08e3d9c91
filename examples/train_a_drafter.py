"""Train a drafter for a model on what that model writes itself, and decode with it.

    python examples/train_a_drafter.py
    python examples/train_a_drafter.py --model zoo:smollm2 --data FILE.jsonl --each 2000

The drafter is a table of what the model writes after up to four tokens. It is made in minutes and costs no pass.
docs/trained.md has those that learn from the model's states. An interrupted run goes on where it was.
"""

import argparse
import subprocess
import sys

import polydec

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("--model", default="zoo:tiny")
arguments.add_argument("--data", default="sample", help="prompts; `sample` travels in the package")
arguments.add_argument("--each", type=int, default=100, help="prompts that the model answers")
arguments.add_argument("--out", default="out/my-ngrams")
arguments.add_argument("--max-tokens", type=int, default=64)
given = arguments.parse_args()

# Training is a command, so that it can be stopped, go on and be repeated: `polydec train ngrams --help`.
train = [sys.executable, "-m", "polydec", "train", "ngrams", "--target", given.model]
train += ["--data", given.data, "--each", str(given.each), "--out", given.out]
subprocess.run([*train, "--max-tokens", str(given.max_tokens)], check=True)

model = polydec.load(given.model, ngrams=given.out)
for prompt in ("Tell me about the weather.", "Where can I eat tonight?"):
    plain = polydec.generate(model, prompt, method="plain", max_tokens=given.max_tokens)
    fast = polydec.generate(model, prompt, method="ngram-draft", max_tokens=given.max_tokens)
    assert fast.text == plain.text  # a draft changes how fast a text comes, and never the text
    print(f"\n{prompt}\n  > {fast.text}")
    before, after = plain.metrics["target_passes"], fast.metrics["target_passes"]
    print(f"  {before} passes by plain decoding, {after} with the table")
