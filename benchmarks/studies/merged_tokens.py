"""What is lost where a prompt is read in fewer, longer tokens (dynamic tokenization).

    python -m benchmarks.studies.merged_tokens OUT --csv lab/reports/merged-tokens.csv
    python -m benchmarks.studies.merged_tokens OUT --answers 500 --csv lab/reports/merged-answers.csv

A hypernetwork of each boundary is trained for each of three seeds. Then the first half of held-out
texts is merged, and the second half is foretold token by token. The control is the mean of a unit's
vectors, which is what the network begins with. A seed draws the texts that are learned and those
that are held out, too. Columns: plain: nats a byte of the text as it is; more: what merging adds to
it, the mean over texts, and interval, half of its 95 % interval over them; shorter: of the first
halves, by what share. Prints a row of each network, and writes the file behind each.

--answers: of networks with so many units for answers (boundary word) held-out texts in units and in tokens, as the training
measures them, and greedy answers of 48 tokens behind the first half of 24 held-out texts. units: for each token of a text;
answer, token: nats a token of texts foretold in units and in tokens; passes: for each token of an answer; nats: of an
answer's tokens by the model itself, a token; plain: of plain greedy answers; same: answers that are the plain ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval

from polydec import generate
from polydec import load as load_model
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
ASKED, WRITTEN = 24, 48
"""Prompts of answers, and tokens of each."""


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


def answer_row(spec: HypernetworkSpec, told: Mapping[str, Any]) -> dict[str, Any]:
    """What answers in merged tokens save and lose beside plain greedy ones."""
    model = load_model(spec.target, draft=None, ngrams=None, trained=[spec.out], threads=1)
    tokenizer = find_tokenizer(LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0)
    begin = mark_id(tokenizer, BEGIN)
    _, texts = texts_of_length(spec, spec.length, tokenizer)
    prompts = [(begin, *text[: spec.length // 2]) for text in texts[:ASKED]]
    figures = dict[str, list[float]]()
    wrote = dict[str, list[tuple[int, ...]]]()
    ways: Mapping[str, dict[str, Any]] = {
        "plain": {"method": "plain"},
        "merged": {"method": "merged-answers"},
    }
    for name, way in ways.items():
        for prompt in prompts:
            answer = generate(
                model, prompt, raw=True, temperature=0.0, max_tokens=WRITTEN, ignore_eos=True,
                logprobs=0, **way,
            )  # fmt: skip
            (choice,) = answer.choices
            notes = [note.model_logp for note in choice.logprobs or ()]
            figures.setdefault(f"nats {name}", []).append(-mean(notes))
            # With log-probabilities a merged answer is read once more.
            passes = answer.metrics["target_passes"] - (name == "merged")
            figures.setdefault(f"passes {name}", []).append(passes / len(choice.token_ids))
            wrote.setdefault(name, []).append(choice.token_ids)
    same = mean(a == b for a, b in zip(wrote["plain"], wrote["merged"], strict=True))
    row: dict[str, Any] = {"seed": spec.seed, "answers": spec.answers, "texts": len(prompts)}
    row |= {"units": told["units_a_token"], "answer": told["answer_nats"]}
    row |= {"token": told["token_nats"], "passes": round(mean(figures["passes merged"]), 4)}
    row |= {"nats": round(mean(figures["nats merged"]), 4)}
    return row | {"plain": round(mean(figures["nats plain"]), 4), "same": round(same, 4)}


def of_answers(given: argparse.Namespace) -> None:
    """A network with units for answers of each seed."""
    found = list[dict[str, Any]]()
    for seed in map(int, given.seeds.split(",")):
        spec = HypernetworkSpec(
            str(given.out / f"answers-{seed}"),
            target=given.target,
            steps=given.steps,
            answers=given.answers,
            seed=seed,
        )
        told = hypernetwork.train_hypernetwork(spec)
        found.append(answer_row(spec, told))
        print(found[-1], flush=True)
        merge_csv(given.csv, found[-1:], ("seed", "answers"))
    if len(found) > 1:
        for name in ("units", "answer", "token", "passes", "nats", "plain"):
            print(name, mean_with_interval([row[name] for row in found]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--boundaries", default="word,sentence")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--answers", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.answers:
        of_answers(given)
        return
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
