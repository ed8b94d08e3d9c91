"""FreeDave and FreeDave++ beside the threshold that both are held to: passes, positions fed, right answers.

    python -m benchmarks.studies.free_drafts [--model zoo:diffusion] [--each 20] [--seeds 3] [--threshold 0.9]

Fresh held-out tasks whose answers have six digits, drawn anew for each seed, greedy, on a canvas of 13. FreeDave writes the
text of the threshold; FreeDave++ (`subset=true`) accepts a guess whose tokens are among those that would be written. Four
canvases a pass. A line of each seed's figures, and their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.studies.six_digits import print_ways

from polydec import load


def ways_to_fill(threshold: float) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """By name a method and its options."""
    # All but the first are held to the same threshold, so they differ in passes alone.
    held = {"threshold": threshold}
    return {
        "one a pass": ("llada", {}),
        "threshold": ("fast-dllm", held),
        **{
            f"{name}{cached}": ("freedave", {**held, **own, **cache})
            for name, own in (("FreeDave", {}), ("FreeDave++", {"subset": True}))
            for cached, cache in (("", {}), (", dual cache", {"cache": 2}))
        },
    }


def main() -> None:
    """One line of JSON a way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:diffusion")
    parser.add_argument("--each", type=int, default=20, help="tasks of each kind and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threshold", type=float, default=0.9)
    asked = parser.parse_args()
    model = load(asked.model, draft=None, threads=1)
    print_ways(model, ways_to_fill(asked.threshold), asked.each, asked.seeds)


if __name__ == "__main__":
    main()
