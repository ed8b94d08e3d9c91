"""Let a masked-diffusion model fill a canvas in any order, and watch it.

    python examples/diffusion.py
    python examples/diffusion.py "count: 427135"

The model travels in the package. It does small tasks with lists and sentences.
"""

import argparse

import polydec

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("prompt", nargs="?", default="slots: Eva, Kyoto, 61")
arguments.add_argument("--model", default="zoo:diffusion")
arguments.add_argument("--max-tokens", type=int, default=24)
given = arguments.parse_args()

model = polydec.load(given.model)


def watch(event):
    """Print the canvas after every pass: gaps are dots. Events say what was filled, and how sure the model was."""
    if type(event).__name__ == "UnmaskedEvent":
        filled = dict(zip(event.position, event.piece, strict=True))
        canvas.update(filled)
        line = "".join(canvas.get(at, "·") for at in range(*event.block))
        print(f"  pass {event.step + 1:2}, {len(filled):2} filled   {line}")


for method in ("llada", "fast-dllm"):  # one token a pass; all tokens that the model is sure of
    canvas = {}
    print(method)
    answer = polydec.generate(
        model, given.prompt, method=method, max_tokens=given.max_tokens, on=watch
    )
    print(f"  {answer.text!r} in {answer.metrics['target_passes']} passes\n")
