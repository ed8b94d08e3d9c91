"""Drafters trained on a target's states beside each other: how deep their guesses are accepted, tokens a pass, what a draft
costs, training seconds and size; on held-out prompts, at equal nodes, greedy and at T = 0.7.

    polydec train heads --kind hydra --out runs/hydra --text runs/text.jsonl …      (and so on: the same text and steps for
    each) python benchmarks/trained.py runs/medusa runs/hydra … --held runs/held.jsonl --csv docs/trained.csv

Text is one JSON object a line (see polydec/train/selfplay.py). Intervals are 95 % ones of a bootstrap over the
prompts. What a draft costs is measured in this process's time, and so is training.
"""
from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polydec import registry
from polydec.core.decoder import Decoder, answer_one
from polydec.core.request import Request, Result
from polydec.core.scheduler import run
from polydec.core.types import Exactness
from polydec.families.ar.protocols import Verifier
from polydec.families.ar.speculative import Speculative
from polydec.families.ar.types import Verdict
from polydec.kit import Kit
from polydec.models import artefacts, checkpoint, zoo
from polydec.shapers.greedy import Greedy
from polydec.shapers.temperature import Temperature
from polydec.targets.shaped import Shaped
from polydec.train.judge import same
from polydec.train.selfplay import read
from polydec.train.states import cost_of

METHODS = {"heads": ("medusa", "hydra", "hydra-plus-plus"), "clover": ("clover",), "eagle": ("eagle", "eagle-2"),
           "eagle-3": ("eagle-3",), "chimera": ("chimera",), "probes": ("ppd", "hidden-transfer", "lexical-unit-decoding", "lexical-unit-decoding-verified"),
           "judge": ("judge-decoding",)}
"""The methods that each kind of artefact may serve."""
LAWS = {"greedy": Greedy(), "T = 0.7": Temperature(0.7)}


@dataclass
class Counted:
    """A verifier, and how much it accepted in each round."""
    inner: Verifier
    exactness = Exactness.APPROXIMATE
    accepted: list[int] = field(default_factory=list[int])

    def verify(self, *given: Any) -> Verdict:
        verdict = self.inner.verify(*given)
        self.accepted.append(len(verdict.path))
        return verdict


def interval(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Of (tokens, passes) of each prompt, tokens a pass."""
    rng, found = random.Random(0), list[float]()
    for _ in range(1000):
        some = rng.choices(pairs, k=len(pairs))
        found.append(sum(t for t, _ in some) / sum(p for _, p in some))
    found.sort()
    return round(found[25], 3), round(found[974], 3)


def agree(texts: Sequence[Any], others: Sequence[Any], like: Callable[[Any, Any], bool]) -> float:
    """The share of pairs that are alike."""
    return round(sum(map(like, others, texts)) / len(texts), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", nargs="+", help="directories that `polydec train` made")
    parser.add_argument("--held", required=True, help="JSON lines whose prompts measure")
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--nodes", default="4,16", help="tokens of a tree")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--csv", help="file to write")
    args = parser.parse_args()
    point, rows, drafted = checkpoint.load(args.model), list[dict[str, Any]](), zoo.default_draft(args.model)
    lm, small = point.lm, None if drafted is None else checkpoint.load(drafted).lm
    samples = read(Path(args.held), lm.vocab.size)[:args.prompts]

    def written(decoder: Decoder) -> list[Result]:
        return run([answer_one(decoder, Request(s.prompt_ids, max_tokens=args.tokens, seed=i)) for i, s in enumerate(samples)])
    plain = {law: [r.token_ids for r in written(registry.build("plain", Kit(Shaped(lm, shaper)))[0])]
             for law, shaper in LAWS.items()}
    for where in args.trained:
        one, said = artefacts.read(where), json.loads((Path(where) / "training.json").read_text())
        size = sum(p.stat().st_size for p in Path(where).glob("*.safetensors"))
        for name in METHODS[one.kind]:
            for law, shaper in LAWS.items():
                kit = Kit(Shaped(lm, shaper), None if small is None else Shaped(small, shaper), (one,))
                for nodes in map(int, args.nodes.split(",")):
                    known, options = registry.describe(name)["options"], {"nodes": str(nodes), "rows": str(3 * nodes)}
                    options = {key: value for key, value in options.items() if key in known}
                    try:
                        decoder, _ = registry.build(name, kit, options)
                    except ValueError:            # made for another method of the kind
                        continue
                    assert isinstance(decoder, Speculative)
                    cost = cost_of(lm, decoder.drafter, samples[:2], 3 * nodes if "rows" in options else nodes)
                    counted = Counted(decoder.verifier)
                    decoder = replace(decoder, verifier=counted)
                    done = written(decoder)
                    pairs = [(len(r.token_ids), r.stats.passes) for r in done]
                    low, high = interval(pairs)
                    rounds, texts = counted.accepted, [r.token_ids for r in done]
                    rows.append({
                        "method": name, "law": law, "nodes": nodes,
                        "tokens a pass": round(sum(t for t, _ in pairs) / sum(p for _, p in pairs), 3),
                        "low": low, "high": high,
                        **{f"accepted {d} deep": round(sum(n >= d for n in rounds) / len(rounds), 3) for d in (1, 2, 3, 4)},
                        "rows a pass": round(1 + sum(r.stats.drafted for r in done) / sum(p for _, p in pairs), 1),
                        "plain's text": agree(texts, plain[law], lambda a, b: a == b),
                        "plain's result": agree(texts, plain[law], lambda a, b: same(*map(point.text.decode, (a, b)))),
                        "draft in passes": cost,
                        "training seconds": said["seconds"], "bytes": size})
                    print(json.dumps(rows[-1]), flush=True)
    if args.csv and rows:
        with open(args.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
