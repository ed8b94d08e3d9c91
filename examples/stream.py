"""Print an answer while it is being written, drafted tokens in green.

    python examples/stream.py "Why is the sky blue?"
    python examples/stream.py "Once upon a time" --model zoo:tiny

The default model is fetched once: polydec zoo install smollm2
"""

import argparse
import sys

import polydec

GREEN, PLAIN = "\033[32m", "\033[0m"

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("prompt", nargs="?", default="Why is the sky blue?")
arguments.add_argument("--model", default="zoo:smollm2")
arguments.add_argument("--method", default="merged-drafts")
arguments.add_argument("--max-tokens", type=int, default=128)
given = arguments.parse_args()

model = polydec.load(given.model)
coloured = sys.stdout.isatty()
drafted = written = 0
for piece in polydec.stream(model, given.prompt, method=given.method, max_tokens=given.max_tokens):
    written += 1
    drafted += piece.drafted
    # A piece is the text that one token made certain. A drafted token cost no pass of its own.
    text = f"{GREEN}{piece.text}{PLAIN}" if coloured and piece.drafted else piece.text
    print(text, end="", flush=True)

print(f"\n\n{written} tokens, of which {drafted} were drafted and accepted")
