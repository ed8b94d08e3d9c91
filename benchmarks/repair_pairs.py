"""Pairs for text repair with made noise: sentences of Tatoeba, of which some words were spoiled.

    python benchmarks/repair_pairs.py OUT.jsonl [--count 60000]

Reads translation_tatoeba of POLYDEC_DATA. Each English sentence gives one pair: `source` is spoiled, `target` is as it
was. A tenth of the sentences stay right. What is spoiled is drawn from the sentence's own SHA-1, so the same sentences give
the same pairs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from pathlib import Path

from polydec.lab.train.data import data_root, read_rows

SHORTEST, LONGEST = 24, 90
"""Characters of a sentence."""
CONFUSED = {"a": "an", "an": "a", "their": "there", "there": "their", "its": "it's", "to": "too"}
"""Words and what is mistaken for them."""


def twice(words: list[str], at: int) -> list[str]:
    return [*words[: at + 1], words[at], *words[at + 1 :]]


def confused(words: list[str], at: int) -> list[str]:
    return [*words[:at], CONFUSED.get(words[at], words[at].replace("'", "")), *words[at + 1 :]]


def small(words: list[str], at: int) -> list[str]:
    at = next((i for i, w in enumerate(words) if i >= at and w != w.lower()), 0)
    return [*words[:at], words[at].lower(), *words[at + 1 :]]


def doubled(words: list[str], at: int) -> list[str]:
    middle = len(words[at]) // 2
    return [*words[:at], words[at][:middle] + words[at][max(0, middle - 1) :], *words[at + 1 :]]


def joined(words: list[str], at: int) -> list[str]:
    return [*words[:at], "".join(words[at : at + 2]), *words[at + 2 :]]


def unended(words: list[str], at: int) -> list[str]:
    return [*words[:-1], words[-1].rstrip(".!?")]


KINDS = (twice, confused, small, doubled, joined, unended)


def spoiled(sentence: str) -> str:
    """The sentence with none (one time in ten), one or two mistakes."""
    draw = random.Random(hashlib.sha1(sentence.encode()).digest())
    words = sentence.split(" ")
    for _ in range(draw.choices((0, 1, 2), (1, 6, 3))[0]):
        words = draw.choice(KINDS)(words, draw.randrange(len(words)))
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=60_000)
    args = parser.parse_args()
    rows = read_rows(data_root() / "translation_tatoeba" / "en_de.jsonl.gz")
    sentences = dict.fromkeys(r["en"] for r in rows if SHORTEST <= len(r["en"]) <= LONGEST)
    order = sorted(sentences, key=lambda s: hashlib.sha1(s.encode()).digest())[: args.count]
    lines = (json.dumps({"source": spoiled(s), "target": s}, ensure_ascii=False) for s in order)
    Path(args.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(order)} pairs in {args.out}")


if __name__ == "__main__":
    main()
