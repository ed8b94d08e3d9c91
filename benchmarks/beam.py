"""Seconds, peak memory and positions fed of plain decoding and beam search on a real model, each in a process of its own.

    python benchmarks/beam.py [model] [width] [tokens]

The prompt is one sentence, over and over. Ratios are to plain decoding of the same length.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

WORDS = "The old river ran past the mill and the quiet town where nobody asked why. "
TIMES = 45


def one(model: str, method: str, options: dict[str, Any], tokens: int) -> dict[str, Any]:
    """One request in this process; the second of two, so that nothing is loaded while it is timed."""
    from polydec import api

    lm = api.load(model, draft=None, threads=1)
    ask = {
        "raw": True,
        "method": method,
        "options": options,
        "ignore_eos": True,
        "sampling": lm.sampling_with(temperature=0.0),
    }
    api.generate(lm, "The", max_tokens=2, **ask)
    start = time.perf_counter()
    out = api.generate(lm, WORDS * TIMES, max_tokens=tokens, **ask)
    return {
        "method": method,
        "prompt": out.usage["prompt_tokens"],
        "seconds": time.perf_counter() - start,
        "positions": out.metrics["positions_fed"],
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "text": out.token_ids,
    }


def main(model: str = "zoo:smollm2", width: str = "8", tokens: str = "32") -> None:
    rows = []
    for method, options in (("plain", {}), ("beam", {"width": int(width)})):
        ask = json.dumps([model, method, options, int(tokens)])
        done = subprocess.run(
            [sys.executable, __file__, "--one", ask], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    for row in rows:
        print(
            f"{row['method']:8} prompt {row['prompt']}  {row['seconds']:6.2f} s ({row['seconds'] / rows[0]['seconds']:.2f})  "
            f"{row['peak MB']:6.0f} MB ({row['peak MB'] / rows[0]['peak MB']:.2f})  {row['positions']} positions"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*json.loads(sys.argv[2]))))
    else:
        main(*sys.argv[1:])
