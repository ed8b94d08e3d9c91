"""Models over bytes and words: the likeliest word beside the likeliest letters, and symbols that mean nothing before a text.

    python -m benchmarks.studies.word_units beam --out DIR --csv lab/reports/word-beam.csv [--data DIR]
    python -m benchmarks.studies.word_units symbols --out DIR --csv lab/reports/lexinvariant.csv [--data DIR] [--steps 1500]

beam: next words of held-out texts, written greedily and by `word-beam`. right: they are the text's own; nats: of the word
that is written, its end counted; passes: of the model, a word.

symbols: bits a byte of held-out rows by the directory's table (own), by the mean over tables drawn anew (drawn_4, drawn_16)
and over tables dealt anew (dealt_4, dealt_16), as `--steer lexinvariant` deals them; early, late: own, of the first 20 bytes
and from byte 200 on; right: share of renamed texts of 255 bytes that is read right from the model's states; counts: the same
by counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydec import generate, load
from polydec.core.types import TokenVocabulary
from polydec.lab.bench.deciphering import learn_reader, rate_lengths
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.words import read_texts, train_words
from polydec.laws.targets.renamed import TokenRenaming, deal_names
from polydec.models.sessions import sources

sys.path.append(str(Path(__file__).parents[1]))
from csv_rows import merge_csv

SEEDS = (0, 1, 2)
WORDS = 100
"""Next words of held-out texts."""
BEFORE = 30
"""Words before each."""
READ = 16
"""Pieces of held-out texts whose bits are counted, and which are deciphered."""
LEARNED = 128
"""Other pieces, of which is learned what states mean."""


def next_words(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Some words of texts with a space behind them, and the word that follows.

    Args:
        texts: Held-out texts.

    Returns:
        WORDS of them, spread evenly over the texts.
    """
    found = list[tuple[str, str]]()
    for text in texts:
        words = text.split(" ")
        for at in range(BEFORE, len(words), BEFORE):
            # A line break within a word would be another end.
            if words[at].isalpha():
                found.append((" ".join(words[at - BEFORE : at]) + " ", words[at]))
    return found[:: max(1, len(found) // WORDS)][:WORDS]


def beam_rows(spec: WordsSpec, seed: int) -> list[dict[str, Any]]:
    """Next words of a model, greedily and by beams of several widths."""
    train_words(spec)
    lm = load(spec.out, threads=1)
    asked = next_words(read_texts(spec)["prose"].unseen)
    rows = list[dict[str, Any]]()
    for beams in (0, 1, 5):
        method = (
            {"method": "word-beam", "options": {"beams": beams}} if beams else {"method": "plain"}
        )
        # All words at once: their passes are shared.
        answers = generate(
            lm, [prompt for prompt, _ in asked], raw=True, temperature=0.0, max_tokens=20,
            stop=[" ", "\n"], include_stop=True, logprobs=0, **method,
        )  # fmt: skip
        right = sum(
            answer.text.rstrip(" \n") == word
            for answer, (_, word) in zip(answers, asked, strict=True)
        )
        notes = [answer.choices[0].logprobs or () for answer in answers]
        nats = -sum(t.model_logp for each in notes for t in each)
        passes = sum(answer.metrics["target_passes"] for answer in answers)
        rows.append(
            {
                "kind": spec.kind,
                "seed": seed,
                "beams": beams,
                "words": len(asked),
                "right": round(right / len(asked), 4),
                "nats": round(nats / len(asked), 4),
                "passes": round(passes / len(asked), 3),
            }
        )
    return rows


@torch.no_grad()
def dealt_bits(network: TrainableLlama, row_BT: Tensor, names: Sequence[TokenRenaming]) -> float:
    """Bits a byte by the mean of the laws under several renamings."""
    right_BT1 = row_BT[:, 1:, None]
    chance_BT = torch.zeros(right_BT1.shape[:2])
    for renaming in names:
        logp_BTV = network(renaming.index_V[row_BT[:, :-1]]).log_softmax(-1)
        chance_BT += logp_BTV.gather(-1, renaming.index_V[right_BT1])[..., 0].exp()
    return float(-(chance_BT / len(names)).log2().mean())


def symbol_row(spec: WordsSpec, seed: int) -> dict[str, Any]:
    """What a model makes of symbols that mean nothing before the text."""
    told = train_words(spec)
    source = sources.open_source(spec.out)
    network = from_weights(source.config, source.weights)
    # Pieces of texts, each behind the mark that begins one.
    begin = source.config["bos_token_id"]
    size = spec.length - 1
    texts = [
        (begin, *ids[at : at + size])
        for ids in (source.text.encode(t, False) for t in read_texts(spec)["prose"].unseen)
        for at in range(0, len(ids) - size + 1, size)
    ]
    vocab = TokenVocabulary(source.config["vocab_size"], frozenset(), words=source.text)
    row_BT = torch.tensor([list(t) for t in texts[:READ]])
    reader = learn_reader(network, texts[READ : READ + LEARNED], lambda n: deal_names(vocab, 1, n))
    (read,) = rate_lengths(
        network, reader, texts[:READ], (spec.length - 1,), lambda n: deal_names(vocab, 0, n)
    )
    dealt = {
        f"dealt_{n}": round(
            dealt_bits(network, row_BT, [deal_names(vocab, 0, i) for i in range(n)]), 4
        )
        for n in (1, 4, 16)
    }
    drawn = {f"drawn_{n}": round(bits, 4) for n, bits in told.get("bits_by_tables", {}).items()}
    return {
        "kind": spec.kind,
        "seed": seed,
        "steps": spec.steps,
        "own": round(told["bits_per_byte"]["prose"], 4),
        "early": round(told["bits_from"]["0"], 4),
        "late": round(told["bits_from"]["200"], 4),
        **{f"drawn_{n}": drawn.get(f"drawn_{n}", "") for n in (1, 4, 16)},
        **dealt,
        "right": read["right"],
        "counts": read["by_counts"],
        "texts": len(texts[:READ]),
    }


def main() -> None:
    """Write one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("beam", "symbols"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--kinds", nargs="+")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    usual = {"beam": ("word-pooled", "bytes"), "symbols": ("lexinvariant", "bytes")}
    kinds = asked.kinds or usual[asked.table]
    for seed in asked.seeds:
        for kind in kinds:
            spec = WordsSpec(
                str(asked.out / f"{kind}-{seed}"), asked.data, kind=kind, steps=asked.steps,
                rows=asked.rows, width=asked.width, layers=asked.layers, slots=2, train_mb=0.5,
                held_kb=90.0 if asked.table == "symbols" else 60.0, seed=seed,
            )  # fmt: skip
            if asked.table == "beam":
                rows, keys = beam_rows(spec, seed), ("kind", "seed", "beams")
            else:
                rows, keys = [symbol_row(spec, seed)], ("kind", "seed")
            for row in rows:
                print(row, flush=True)
            merge_csv(asked.csv, rows, keys)


if __name__ == "__main__":
    main()
