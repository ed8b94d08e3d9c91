"""An encoder-decoder model beside one without an encoder, of equal size, and taught by a larger one.

    python -m benchmarks.studies.encoder_decoder --data DIR --out DIR --csv lab/reports/encoder-decoder.csv

DIR/data2text_e2e/dev.jsonl.gz: facts of a restaurant (`mr`) and a sentence that says them (`ref`). A larger model without
an encoder is trained once (seed 0) and brings its tokens; then for each seed a decoder-only model, an encoder-decoder of about
as many weights, and that model taught on texts that it draws. weights; nats and right: of the tokens of held-out targets,
behind the right ones; first: milliseconds of processor time to the first token of a text, next: of each further one, one
thread, where the model without an encoder has the compiled step and the other one is computed in torch; train: seconds of
processor time of a run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import nll_loss

from polydec import generate, load
from polydec.lab.train.data import held_out
from polydec.lab.train.lm import train_lm
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.pairs import TextPair, read_text_pairs
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.seq2seq import _tokenizer, encode_pairs, train_seq2seq
from polydec.lab.train.source_teacher import SourceTeacher
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec

sys.path.append(str(Path(__file__).parents[1]))
from csv_rows import merge_csv

SEEDS = (0, 1, 2)
VOCAB = 512
LONGEST = 96
JUDGED = 512
TIMED = 12
"""Held-out sources that are timed."""
MORE = 16
"""Further tokens of each."""


def decoder_spec(
    out: Path, pairs: str, steps: int, seed: int, large: bool, tokens: str | None
) -> LMSpec:
    """A model without an encoder: the teacher, or one of the student's size."""
    sizes = {True: (128, 5, 4, 384), False: (64, 6, 2, 192)}
    width, layers, heads, inner = sizes[large]
    return LMSpec(
        str(out),
        pairs=pairs,
        tokenizer=tokens,
        schedule=TrainingSchedule(steps, 3e-3, muon=0.02, save_every=1000),
        shape=LlamaShape(VOCAB, width, layers, heads, heads, inner, context=256),
        seed=seed,
        bf16=False,
    )


def write_pairs(path: Path, to: Path) -> None:
    """Lines of facts and sentences, as lines of sources and targets."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "rt", encoding="utf-8") as file, open(to, "w", encoding="utf-8") as out:
        for line in file:
            row = json.loads(line)
            out.write(json.dumps({"source": row["mr"], "target": row["ref"]}) + "\n")


def milliseconds(name: str, texts: Sequence[TextPair], chat: bool) -> tuple[float, float]:
    """Processor time to the first token, and of each further one: medians over texts."""
    lm = load(name, threads=1, draft=None)
    first = list[float]()
    after = list[float]()
    for pair in texts:
        spent = list[float]()
        for most in (1, 1 + MORE):
            began = time.process_time()
            generate(
                lm, pair.source, raw=not chat, temperature=0.0, max_tokens=most, ignore_eos=True
            )
            spent.append(1000 * (time.process_time() - began))
        first.append(spent[0])
        after.append((spent[1] - spent[0]) / MORE)
    return round(median(first), 3), round(median(after), 3)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    pairs = asked.out / "pairs.jsonl"
    write_pairs(asked.data / "data2text_e2e" / "dev.jsonl.gz", pairs)
    texts = list(read_text_pairs(pairs))
    teacher = str(asked.out / "teacher")
    rows = list[dict[str, Any]]()

    def add_row(
        kind: str, seed: int, told: dict[str, Any], spent: float, name: str, chat: bool
    ) -> None:
        """Measure a model, and keep its row."""
        tokenizer = _tokenizer(Seq2SeqSpec(name, str(pairs), tokenizer=teacher), asked.out, [])
        unseen = encode_pairs(texts, tokenizer, LONGEST).unseen[:JUDGED]
        nats, right = told.get("held_out_nats"), told.get("held_out_right")
        if chat:
            reader = SourceTeacher.of_name(name, tokenizer, False)
            logp_NV = torch.cat([reader.target_logprobs([pair]) for pair in unseen])
            right_N = torch.tensor([x for _, target in unseen for x in target])
            nats = float(nll_loss(logp_NV, right_N))
            right = float((logp_NV.argmax(-1) == right_N).double().mean())
        first, after = milliseconds(name, [p for p in texts if held_out(p.source)][:TIMED], chat)
        row = {
            "kind": kind,
            "seed": seed,
            "weights": told["parameters"],
            "nats": round(float(nats or 0), 4),
            "right": round(float(right or 0), 4),
            "first": first,
            "next": after,
            "train": round(spent, 1),
        }
        rows.append(row)
        print(row, flush=True)
        merge_csv(asked.csv, [row], ("kind", "seed"))

    began = time.process_time()
    told = train_lm(decoder_spec(Path(teacher), str(pairs), 2 * asked.steps, 0, True, None))
    add_row("teacher", 0, told, time.process_time() - began, teacher, True)
    for seed in asked.seeds:
        name = asked.out / f"decoder-{seed}"
        began = time.process_time()
        told = train_lm(decoder_spec(name, str(pairs), asked.steps, seed, False, teacher))
        add_row("decoder-only", seed, told, time.process_time() - began, str(name), True)
        for kind, more in (
            ("encoder-decoder", {"tokenizer": teacher}),
            ("taught", {"teacher": teacher}),
        ):
            name = asked.out / f"{kind}-{seed}"
            spec = Seq2SeqSpec(
                str(name), str(pairs), steps=asked.steps, tokens=4096, encoder=4, decoder=2, width=64,
                inner=240, longest=LONGEST, seed=seed, **more,
            )  # fmt: skip
            began = time.process_time()
            told = train_seq2seq(spec)
            add_row(kind, seed, told, time.process_time() - began, str(name), False)


if __name__ == "__main__":
    main()
