"""What is lost where a prompt is read in fewer, longer tokens (dynamic tokenization).

    python -m benchmarks.studies.merged_tokens OUT --csv lab/reports/merged-tokens.csv

A hypernetwork of each boundary is trained for each of three seeds. Then the first half of held-out
texts is merged, and the second half is foretold token by token. The control is the mean of a unit's
vectors, which is what the network begins with. A seed draws the texts that are learned and those
that are held out, too. Columns: plain: nats a byte of the text as it is; more: what merging adds to
it, the mean over texts, and interval, half of its 95 % interval over them; shorter: of the first
halves, by what share. Prints a row of each network, and writes the file behind each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval

from polydec.lab.train import hypernetwork
from polydec.lab.train.data import BEGIN
from polydec.lab.train.hyperfit import texts_of_length
from polydec.lab.train.hypernetwork import SHARES, HypernetworkModel, next_token_nats
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.specs.hypernetwork import HypernetworkSpec
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.tokens import mark_id
from polydec.models.learned.kinds.hypernetwork import load
from polydec.models.sessions.checkpoint import load_bundle
from polydec.models.text.token_merges import TokenMerger, TokenUnit

TEXTS = 200
"""Held-out texts of each cell."""
TOGETHER = 25
"""Texts of a pass."""


def merged_units(merger: TokenMerger, text: Sequence[int], share: float) -> list[TokenUnit]:
    """Units of a text whose first half is merged by itself."""
    half = len(text) // 2
    (first,) = merger.merge_by_share([text[:half]], share)
    return [*first, *((token,) for token in text[half:])]


@torch.no_grad()
def second_half_nats(
    network: HypernetworkModel, begin: int, rows: Sequence[Sequence[TokenUnit]], half: int
) -> list[float]:
    """Nats of the last `half` units of each text."""
    out = list[float]()
    for at in range(0, len(rows), TOGETHER):
        some = rows[at : at + TOGETHER]
        nats = next_token_nats(network, begin, some)
        out += [float(x[-half:].sum()) for x in nats.split([len(row) for row in some])]
    return out


def network_rows(spec: HypernetworkSpec) -> list[dict[str, Any]]:
    """Rows of a trained network, and of the means that it begins with."""
    made = load(spec.out)
    network = HypernetworkModel(load_directory(spec.target), made.sizes, spec.seed)
    tokenizer = find_tokenizer(LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0)
    begin = mark_id(tokenizer, BEGIN)
    _, texts = texts_of_length(spec, spec.length, tokenizer)
    words = load_bundle(spec.target, dtype="float32").lm.vocab.words
    assert words is not None
    merger = TokenMerger(words.pieces, spec.boundary, spec.longest)
    half = spec.length // 2
    letters = [sum(len(words.pieces[x] or b"") for x in text[half:]) for text in texts]
    units = {share: [merged_units(merger, text, share) for text in texts] for share in SHARES}
    plain = second_half_nats(network, begin, units[0.0], half)
    out = list[dict[str, Any]]()
    for way in ("means", "trained"):
        # A new network adds nothing to the means.
        if way == "trained":
            network.kept.load_state_dict(dict(made.tensors))
        for share in SHARES[1:]:
            nats = second_half_nats(network, begin, units[share], half)
            more = [(a - b) / n for a, b, n in zip(nats, plain, letters, strict=True)]
            row: dict[str, Any] = {"boundary": spec.boundary, "seed": spec.seed, "way": way}
            row |= {"share": share, "texts": len(texts)}
            left = sum(len(row) - half for row in units[share])
            figures = {
                "shorter": 1 - left / (half * len(texts)),
                "plain": sum(plain) / sum(letters),
                "more": mean(more),
                "interval": 1.96 * stdev(more) / len(more) ** 0.5,
            }
            out.append(row | {name: round(value, 4) for name, value in figures.items()})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--boundaries", default="word,sentence")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = list[dict[str, Any]]()
    boundaries = given.boundaries.split(",")
    for seed in map(int, given.seeds.split(",")):
        for boundary in boundaries:
            spec = HypernetworkSpec(
                str(given.out / f"{boundary}-{seed}"),
                target=given.target,
                boundary=boundary,
                steps=given.steps,
                seed=seed,
                # Texts are measured here, text by text; the training itself measures one.
                tries=1,
            )
            hypernetwork.train_hypernetwork(spec)
            rows += network_rows(replace(spec, tries=TEXTS))
            print(*rows[-2 * len(SHARES[1:]) :], sep="\n", flush=True)
            if given.csv:
                merge_csv(given.csv, rows, ("boundary", "way", "share", "seed"))
    for boundary in boundaries:
        for way in ("means", "trained"):
            for share in SHARES[1:]:
                seen = (row for row in rows if (row["way"], row["share"]) == (way, share))
                more = [row["more"] for row in seen if row["boundary"] == boundary]
                told = mean_with_interval(more) if len(more) > 1 else more[0]
                print(boundary, way, share, told, flush=True)


if __name__ == "__main__":
    main()
