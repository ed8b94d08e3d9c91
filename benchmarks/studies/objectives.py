"""Objectives of `polydec train lm` and hyperfitting, each with three seeds on small networks: prints one line a run.

    python -m benchmarks.studies.objectives --kind meap --out out/objectives

kinds: meap (recall of a key's value among many, and clean text), cm3 (gaps filled from both sides beside from the left alone),
tokenunify (tokens foretold 2 to 5 further on), hyperfit (zoo:tiny's greedy text), citations (the same model's, with runs of
five learned tokens banned and without). --csv FILE keeps the last one's figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.csv_rows import merge_csv
from tokenizers import Tokenizer
from torch.nn import functional as F

from polydec import Ask, generate, load
from polydec.lab.train.data import BEGIN
from polydec.lab.train.hyperfit import (
    COPIED,
    repeated_ngram_fraction,
    texts_of_length,
    token_ngrams,
    train_hyperfit,
)
from polydec.lab.train.lm import train_lm
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.objectives.cm3 import FILLED, GAPS
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.hyperfit import HyperfitSpec
from polydec.lab.train.specs.lm import LMSpec

SEEDS = (0, 1, 2)
SHAPE = LlamaShape(512, width=64, layers=2, heads=2, kv_heads=2, inner=192, context=128)


def trained(out: Path, name: str, seed: int, steps: int, **fields: Any) -> tuple[Path, dict]:
    """A model of one objective, and what was measured of it; at once where it stands already."""
    at = out / f"{name}-{seed}"
    spec = LMSpec(
        str(at),
        kinds=("prose",),
        shares=(1,),
        train_mb=(2.0,),
        held_kb=40.0,
        bf16=False,
        long=0.0,
        seed=seed,
        shape=SHAPE,
        schedule=TrainingSchedule(steps, 4e-3, muon=0.02, save_every=10_000),
        **fields,
    )
    return at, train_lm(spec)


def recall_text(rng: np.random.Generator) -> str:
    """Pairs of a key and a value, and a key that is asked again."""
    keys = rng.permutation(90)[:5] + 10
    values = rng.integers(10, 100, 5)
    asked = rng.permutation(5)[:3]
    pairs = "".join(f"k{k}={v};" for k, v in zip(keys, values))
    return pairs + "".join(f"?k{keys[i]}={values[i]};" for i in asked)


@torch.no_grad()
def recall(at: Path, count: int = 200) -> float:
    """How often every token of the value asked first is the likeliest, on texts that nothing was learned from."""
    network, tokenizer = load_directory(str(at)), Tokenizer.from_file(str(at / "tokenizer.json"))
    rng, right = np.random.default_rng(12345), 0
    for _ in range(count):
        text = recall_text(rng).split("?")
        head, value = ("?".join(text[:2])).rsplit("=", 1)
        ids = tokenizer.encode(f"{head}={value}").ids
        begun = len(tokenizer.encode(f"{head}=").ids)
        guess = network(torch.tensor([ids]))[0].argmax(-1)[begun - 1 : -1]
        right += guess.tolist() == ids[begun:]
    return right / count


def meap(out: Path, seed: int, steps: int) -> dict[str, Any]:
    """Recall and clean bits per byte with and without holes."""
    rng, path = np.random.default_rng(seed), out / f"recall-{seed}.jsonl"
    path.write_text("\n".join(json.dumps({"text": recall_text(rng)}) for _ in range(20_000)))
    row = dict[str, Any]()
    for share in (None, 0.15):
        fields = {} if share is None else {"objective": "meap", "mask": share}
        at, result = trained(out, f"meap-{share}", seed, steps, data=str(path), **fields)
        row[f"recall {share}"] = recall(at)
        row[f"bits {share}"] = round(result["bits_per_byte"]["prose"], 4)
    return row


@torch.no_grad()
def span_nats(network: TrainableLlama, row: list[int], begun: int) -> float:
    """Nats of the tokens from `begun` on."""
    logits = network(torch.tensor([row[:-1]]))[0, begun - 1 :].float()
    return float(F.cross_entropy(logits, torch.tensor(row[begun:]), reduction="sum"))


def cm3(out: Path, seed: int, steps: int, data: str | None) -> dict[str, Any]:
    """Bits per byte from left to right, and nats a token of gaps of 4 to 16 tokens in held-out text."""
    row, texts = dict[str, Any](), None
    for spans in (None, 1.0):
        fields = {} if spans is None else {"objective": "cm3", "spans": spans}
        at, result = trained(out, f"cm3-{spans}", seed, steps, data=data, **fields)
        network, tokenizer = (
            load_directory(str(at)),
            Tokenizer.from_file(str(at / "tokenizer.json")),
        )
        row[f"bits {spans}"] = round(result["bits_per_byte"]["prose"], 4)
        texts = held(data) if texts is None else texts
        rng, sums = np.random.default_rng(7), np.zeros(3)
        for text in texts[:300]:
            ids = tokenizer.encode(text).ids[:110]
            size = int(rng.integers(4, 17))
            if len(ids) < 60:
                continue
            first = int(rng.integers(10, len(ids) - size - 10))
            span = ids[first : first + size]
            sums += [size, span_nats(network, ids[: first + size], first), 0]
            if spans:
                gap, end = (tokenizer.token_to_id(t) for t in (GAPS[0], FILLED))
                before = [*ids[:first], gap, *ids[first + size :], gap]
                sums[2] += span_nats(network, [*before, *span], len(before))
                assert end is not None
        row[f"left only {spans}"] = round(sums[1] / sums[0], 4)
        if spans:
            row["both sides"] = round(sums[2] / sums[0], 4)
    return row


def held(data: str | None) -> list[str]:
    """Held-out texts, as `train lm` splits them."""
    from polydec.lab.train.data import split_documents, training_data

    return list(split_documents(training_data(data), "prose", 0, 2_000_000, 99).unseen)


def tokenunify(out: Path, seed: int, steps: int, data: str | None) -> dict[str, Any]:
    """Bits per byte beside plain training, and how often a token some way on is foretold."""
    _, plain = trained(out, "cm3-None", seed, steps, data=data)
    at, result = trained(out, "tokenunify", seed, steps, data=data, objective="tokenunify")
    log = json.loads((at / "training.json").read_text())
    bits = [round(r["bits_per_byte"]["prose"], 4) for r in (plain, result)]
    return {"bits None": bits[0], "bits": bits[1], **log["right_at_offset"]}


def hyperfit(out: Path, seed: int, data: str | None, epochs: int) -> dict[str, Any]:
    """zoo:tiny before and after."""
    result = train_hyperfit(hyperfit_spec(out, seed, data, epochs))
    return {"loss": result["loss"], "before": result["before"], "after": result["after"]}


def hyperfit_spec(out: Path, seed: int, data: str | None, epochs: int) -> HyperfitSpec:
    """Texts of zoo:tiny that are learned by heart, and counted for the blocker."""
    return HyperfitSpec(
        str(out / f"hyperfit-{seed}"),
        "zoo:tiny",
        data,
        200,
        128,
        epochs,
        8,
        1e-3,
        citations=COPIED,
        seed=seed,
    )


def citations(out: Path, seed: int, data: str | None, epochs: int) -> dict[str, Any]:
    """Greedy texts of the hyperfitted model without and with the blocker.

    copied: share of their runs of five tokens that stand in a learned text; distinct: different tokens over all; repeated:
    4-grams that stood before in the same text; nats: a token, under zoo:tiny as it was.
    """
    spec = hyperfit_spec(out, seed, data, epochs)
    train_hyperfit(spec)
    judge = load_directory(spec.target)
    tokenizer = find_tokenizer(LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0)
    learned, unseen = texts_of_length(spec, spec.length, tokenizer)
    known = {run for row in learned for run in token_ngrams(row, COPIED)}
    model = load(spec.out, ngrams=None, trained=str(Path(spec.out) / "citations"))
    begin = tokenizer.token_to_id(BEGIN)
    prompts = [(begin, *row[: spec.context]) for row in unseen]
    row = dict[str, Any]()
    for name, steer in (("greedy", None), ("blocked", "citation-blocker")):
        asks = [
            Ask(ids, method="plain", steer=steer, max_tokens=spec.ahead, ignore_eos=True)
            for ids in prompts
        ]
        texts = [list(answer.token_ids) for answer in generate(model, asks)]
        row[name] = {
            "copied": mean([run in known for text in texts for run in token_ngrams(text, COPIED)]),
            "distinct": mean([len(set(text)) / len(text) for text in texts]),
            "repeated": mean([repeated_ngram_fraction(text, 4) for text in texts]),
            "nats": mean(
                [
                    span_nats(judge, [*ids, *text], len(ids)) / len(text)
                    for ids, text in zip(prompts, texts, strict=True)
                ]
            ),
        }
    return row


def mean(values: Sequence[float]) -> float:
    """Rounded to three places."""
    return round(float(np.mean(values)), 3)


def main() -> None:
    """One line of JSON a seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--csv", type=Path, help="of citations: a row of every text and seed")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    runs: Mapping[str, Callable[[int], dict[str, Any]]] = {
        "meap": lambda seed: meap(asked.out, seed, asked.steps),
        "cm3": lambda seed: cm3(asked.out, seed, asked.steps, asked.data),
        "tokenunify": lambda seed: tokenunify(asked.out, seed, asked.steps, asked.data),
        "citations": lambda seed: citations(asked.out, seed, asked.data, asked.epochs),
        "hyperfit": lambda seed: hyperfit(asked.out, seed, asked.data, asked.epochs),
    }
    for seed in map(int, asked.seeds.split(",")):
        row = runs[asked.kind](seed)
        print(json.dumps({"kind": asked.kind, "seed": seed, **row}), flush=True)
        if asked.csv:
            rows = [{"text": name, "seed": seed, **cell} for name, cell in row.items()]
            merge_csv(asked.csv, rows, ("text", "seed"))


if __name__ == "__main__":
    main()
