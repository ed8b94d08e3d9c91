"""What is lost where a prompt is read in fewer, longer tokens (dynamic tokenization).

    python -m benchmarks.studies.merged_tokens OUT --target zoo:tiny

A hypernetwork of each boundary is trained for each of three seeds. Then the first half of held-out
texts is merged, and the second half is foretold token by token: nats a byte, and the difference to
the text as it is with its interval over texts (95 %). The control is the mean of a unit's vectors,
which is what the network begins with. Prints JSON lines, a summary last.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torch

from polydec.lab.train import hypernetwork
from polydec.lab.train.data import BEGIN
from polydec.lab.train.hyperfit import texts_of_length
from polydec.lab.train.hypernetwork import SHARES, HypernetworkModel, merged_half_nats
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.specs.hypernetwork import HypernetworkSpec
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.tokens import mark_id
from polydec.models.learned.kinds.hypernetwork import load
from polydec.models.sessions.checkpoint import load_bundle
from polydec.models.text.token_merges import TokenMerger

TEXTS = 200
"""Held-out texts of each cell."""


def measured(spec: HypernetworkSpec, trained: bool) -> list[dict[str, float]]:
    """Cells of one trained network, or of the means that it begins with."""
    made = load(spec.out)
    network = HypernetworkModel(load_directory(spec.target), made.sizes, spec.seed)
    if trained:
        network.kept.load_state_dict(dict(made.tensors))
    tokenizer = find_tokenizer(LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0)
    begin = mark_id(tokenizer, BEGIN)
    _, texts = texts_of_length(spec, tokenizer)
    words = load_bundle(spec.target, dtype="float32").lm.vocab.words
    assert words is not None
    merger = TokenMerger(words.pieces, spec.boundary, spec.longest)
    half = spec.length // 2
    letters = [sum(len(words.pieces[x] or b"") for x in text[half:]) for text in texts]
    plain = [merged_half_nats(network, merger, begin, text, 0.0)[1] for text in texts]
    out = list[dict[str, float]]()
    for share in SHARES[1:]:
        told = [merged_half_nats(network, merger, begin, text, share) for text in texts]
        more = [
            (nats - own) / count for (_, nats), own, count in zip(told, plain, letters, strict=True)
        ]
        each = {
            "texts": len(texts),
            "share": share,
            "shorter": 1 - sum(units for units, _ in told) / (half * len(texts)),
            "plain": sum(plain) / sum(letters),
            "more": mean(more),
            "interval": 1.96 * stdev(more) / len(more) ** 0.5,
        }
        out.append({name: round(value, 4) for name, value in each.items()})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--boundaries", default="word,sentence")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for boundary in given.boundaries.split(","):
        seen = list[list[dict[str, float]]]()
        for seed in map(int, given.seeds.split(",")):
            spec = HypernetworkSpec(
                str(given.out / f"{boundary}-{seed}"),
                target=given.target,
                boundary=boundary,
                steps=given.steps,
                seed=seed,
                tries=TEXTS,
            )
            hypernetwork.train_hypernetwork(spec)
            # The means that a network begins with are the same by every seed.
            for name in ("trained",) if seen else ("means", "trained"):
                cells = measured(spec, name == "trained")
                for cell in cells:
                    print(json.dumps({"boundary": boundary, "seed": seed, "what": name, **cell}))
            seen.append(cells)
        for at, share in enumerate(SHARES[1:]):
            more = [cells[at]["more"] for cells in seen]
            told = {"share": share, "more": round(mean(more), 4), "by seed": more}
            print(json.dumps({"boundary": boundary, "what": "summary", **told}))


if __name__ == "__main__":
    main()
