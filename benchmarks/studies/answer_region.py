"""Prophet where the place of the answer is known: how much sooner a text ends, and what that costs.

    python -m benchmarks.studies.answer_region [--model zoo:diffusion] [--each 20] [--seeds 3]

Answers of six digits have one token a digit; what is asked for is the last two. A way ends early by the published bounds (7.5,
5 and 2.5 logits) or by higher ones (12, 9, 6), looking at all gaps, at the gaps of these two places, or at both with whatever
stands there already (published). passes: of the model; right: share of answers that are right as a whole. A line of each seed's
figures, in which tasks are drawn anew, and their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.studies.six_digits import DIGITS, print_ways

from polydec import load

SPAN = 2
PUBLISHED = {"early": 7.5, "middle": 5.0, "late": 2.5}
HIGHER = {"early": 12.0, "middle": 9.0, "late": 6.0}
PLACE = {"region": DIGITS - SPAN, "span": SPAN}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "one a pass": ("llada", {}),
    **{
        f"prophet, {bounds}, {where}": ("prophet", {**values, **place})
        for bounds, values in (("published bounds", PUBLISHED), ("higher bounds", HIGHER))
        for where, place in (
            ("all gaps", {}),
            ("gaps of the place", PLACE),
            ("all of the place", {**PLACE, "counted": True}),
        )
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
    asked = parser.parse_args()
    model = load(asked.model, draft=None, threads=1)
    print_ways(model, WAYS, asked.each, asked.seeds)


if __name__ == "__main__":
    main()
