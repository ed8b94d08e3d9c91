"""Every method that promises a law, enumerated on toys: `python benchmarks/enumerated.py > lab/reports/verify-enumerated.csv`.

A row a method: random laws, ways in which draws fell, the largest total variation, tokens that were drafted, accepted and
rejected in all of them, and seconds of a core.
"""

from __future__ import annotations

import csv
import sys
import time

from polydec.core.types import Exactness
from polydec.lab.bench.enumerated_laws import enumerate_output_laws
from polydec.lab.testing.exercised_counts import DRAFT_KINDS
from polydec.methods.registry import registry


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(
        ("method", "laws", "ways", "variation", *DRAFT_KINDS, "seconds", "left_out_because")
    )
    for name, module in registry.recipe_modules().items():
        if module.CARD.guarantee is not Exactness.LAW:
            continue
        began = time.process_time()
        found = enumerate_output_laws(name, {}, module.CARD.family)
        took = time.process_time() - began
        tokens = [getattr(found.exercised, kind) for kind in DRAFT_KINDS]
        figures = found.laws, found.ways, f"{found.apart:.1e}", *tokens, f"{took:.1f}"
        out.writerow((name, *figures, found.unknown))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
