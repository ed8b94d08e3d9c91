"""Every method that promises a law, enumerated on toys: `python benchmarks/enumerated.py > docs/verify-enumerated.csv`.

A row a method: random laws, ways in which draws fell, the largest total variation, and seconds of a core.
"""

from __future__ import annotations

import csv
import sys
import time

from polydec.bench.enumerated import enumerated
from polydec.core.types import Exactness
from polydec.methods import registry


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("method", "laws", "ways", "variation", "seconds", "left_out_because"))
    for name, module in registry.recipes().items():
        if module.CARD.guarantee is not Exactness.LAW:
            continue
        began = time.process_time()
        found = enumerated(name, {}, module.CARD.family)
        took = time.process_time() - began
        out.writerow(
            (name, found.laws, found.ways, f"{found.apart:.1e}", f"{took:.1f}", found.unknown)
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
