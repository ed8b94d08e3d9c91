"""Superposed decoding beside sampling, at equal compute and at three times as much: quality of short continuations.

    python benchmarks/superposed.py --out DIR [--model zoo:smollm2] [--prompts 200] [--csv FILE]

Fifteen tokens from the middle of a story (POLYDEC_DATA, `text_stories`; SHA-1 of its prompt modulo 10 at least 7) are gone on
with for ten. The n-gram table is counted in other stories (below 7), as `polydec train ngrams --corpus FILE --order 5 --top 16
--least 1` counts: contexts of one to five tokens, so 2- to 6-grams; `counts` has every continuation of the same text as often
as it stands there (`--as-counted`), nothing discounted and nothing left out.

Columns: positions: fed behind the prompt, for all texts of a prompt; best, mean: perplexity of a prompt's best text and of all
its texts under the model itself, a geometric mean over prompts; words of best, of mean: the share of the story's own next ten
tokens that stand in the text, of the best text and of all; different: texts of a prompt. "times": over one nucleus sample of
the same seeds, 95 % intervals from 2,000 resamplings of prompts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from bootstrap import central_interval, drawn_again
from csv_rows import write_csv

from polydec.core.decoder import run_decoder
from polydec.core.request import Request, Result
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.data import held_out
from polydec.lab.train.ngrams import train_ngrams
from polydec.lab.train.specs.ngrams import NGramSpec
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.models.learned.kinds import ngram_counts, ngrams
from polydec.models.sessions import checkpoint
from polydec.models.sessions.checkpoint import ModelBundle

DATA = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
GIVEN, WRITTEN, SKIPPED = 15, 10, 40
"""Tokens of a prompt, of an answer, and of the story before the prompt."""
COUNTED = 4
"""Prompts whose positions are counted, without log-probabilities, which take passes of their own."""
ONE = "nucleus, one sample"


@dataclass(frozen=True)
class Way:
    """A row. sampling: how tokens are drawn; texts: of a prompt; seeds: draws that are averaged over; table: "" none,
    "likeliest" the usual n-gram table, "counts" every continuation as it was counted."""

    name: str
    method: str
    texts: int
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    seeds: int = 1
    table: str = ""


NUCLEUS = Sampling(temperature=1.0, top_p=0.9)
PUBLISHED = {"interpolated": True}
COUNTED_ROWS = {"interpolated": True, "as_counted": True}
WAYS = (
    Way(ONE, "plain", 1, sampling=NUCLEUS, seeds=3),
    Way("nucleus, three samples", "plain", 3, sampling=NUCLEUS, seeds=3),
    Way("greedy", "plain", 1),
    Way("beam of three", "beam", 3, {"width": 3}),
    Way("superposed 3, no table", "superposed-decoding", 3),
    Way("superposed 3, longest context", "superposed-decoding", 3, table="likeliest"),
    Way("superposed 3, levels added up", "superposed-decoding", 3, PUBLISHED, table="likeliest"),
    Way("the same of counts", "superposed-decoding", 3, COUNTED_ROWS, table="counts"),
    Way(
        "the same, alpha 0.2",
        "superposed-decoding",
        3,
        {**COUNTED_ROWS, "alpha": 0.2},
        table="counts",
    ),
    Way(
        "superposed 3, as published", "superposed-decoding", 3, {"published": True}, table="counts"
    ),
    Way(
        "superposed 2, as published",
        "superposed-decoding",
        2,
        {"published": True, "width": 2, "alpha": 0.62},
        table="counts",
    ),
)


@dataclass(frozen=True)
class Told:
    """Of a prompt: mean log-probability a token of each text, its share of the story's own tokens, positions, how many
    different texts."""

    logp: Sequence[float]
    shared: Sequence[float]
    positions: float
    different: int


def stories(unseen: bool) -> Iterator[str]:
    for path in sorted((DATA / "text_stories").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = map(json.loads, lines)
            yield from (row["text"] for row in rows if held_out(row["prompt"]) == unseen)


def counted(out: Path, model: str, size: int) -> dict[str, Any]:
    """The tables of so many characters of stories, by name."""
    corpus, texts, length = out / "corpus.txt", list[str](), 0
    for text in stories(False):
        texts.append(text)
        length += len(text)
        if length >= size:
            break
    out.mkdir(parents=True, exist_ok=True)
    corpus.write_text("\n\n".join(texts), encoding="utf-8")
    told = train_ngrams(NGramSpec(str(out), model, order=5, top=16, least=1, corpus=str(corpus)))
    print(json.dumps(told), flush=True)
    raw = str(out / "counts")
    train_ngrams(NGramSpec(raw, model, order=5, corpus=str(corpus), as_counted=True))
    return {"likeliest": ngrams.load(str(out)), "counts": ngram_counts.load(raw)}


def told(
    way: Way,
    point: ModelBundle,
    tables: Mapping[str, Any],
    asked: Sequence[tuple[tuple[int, ...], ...]],
) -> list[list[Told]]:
    """For each seed, of each prompt."""
    shapers = build_shapers(way.sampling, eos=point.lm.vocab.eos)
    artefacts = (tables[way.table],) if way.table else ()
    kit = Kit(ShapedTarget(point.lm, *shapers), None, artefacts)
    decoder = registry.build(way.method, kit, way.options)[0]
    out = list[list[Told]]()
    for seed in range(way.seeds):
        requests = [
            Request(ids, WRITTEN, ignore_eos=True, seed=1000 * seed + i, n=way.texts)
            for i, (ids, _) in enumerate(asked)
        ]
        counted_ones = run_coroutines([run_decoder(decoder, r) for r in requests[:COUNTED]])
        positions = [sum(fed(r) for r in results) for results in counted_ones]
        done = run_coroutines([run_decoder(decoder, replace(r, logprobs=0)) for r in requests])
        out.append(
            [
                Told(
                    [float(np.mean([t.model_logp for t in r.logprobs or ()])) for r in results],
                    [common(r.token_ids, true) for r in results],
                    sum(positions) / len(positions),
                    len({r.token_ids for r in results}),
                )
                for (_, true), results in zip(asked, done, strict=True)
            ]
        )
    return out


def fed(result: Result) -> int:
    """Positions behind the prompt."""
    return result.stats.metrics().get("tokens_scored", result.stats.passes)


def common(text: Sequence[int], true: Sequence[int]) -> float:
    return sum((Counter(text) & Counter(true)).values()) / len(true)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean, and its interval over prompts."""
    return float(values.mean()), *central_interval(drawn_again(values).mean(1))


def line(way: Way, got: Sequence[Sequence[Told]], one: Sequence[Sequence[Told]]) -> dict[str, Any]:
    """A row of the table, of all seeds together."""

    def each(of: Sequence[Sequence[Told]], what: Any) -> np.ndarray:
        return np.array([[what(t) for t in seed] for seed in of]).mean(0)

    best = each(got, lambda t: -max(t.logp))
    over = [math.exp(x) for x in interval(best - each(one, lambda t: -max(t.logp)))]
    words = each(got, lambda t: max(t.shared))
    more = [100 * x for x in interval(words - each(one, lambda t: max(t.shared)))]
    return {
        "way": way.name,
        "prompts": len(best),
        "positions": f"{each(got, lambda t: t.positions).mean():.1f}",
        "best": f"{math.exp(best.mean()):.2f}",
        "mean": f"{math.exp(each(got, lambda t: -np.mean(t.logp)).mean()):.2f}",
        "times": f"{over[0]:.2f}",
        "times low": f"{over[1]:.2f}",
        "times high": f"{over[2]:.2f}",
        "words of best": f"{100 * words.mean():.1f}",
        "words of mean": f"{100 * each(got, lambda t: np.mean(t.shared)).mean():.1f}",
        "more": f"{more[0]:+.1f}",
        "more low": f"{more[1]:+.1f}",
        "more high": f"{more[2]:+.1f}",
        "different": f"{each(got, lambda t: t.different).mean():.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for the table")
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--corpus", type=int, default=4_000_000, help="characters that are counted")
    parser.add_argument("--csv")
    args = parser.parse_args()
    point = checkpoint.load_bundle(args.model)
    tables = counted(args.out, args.model, args.corpus)
    asked = list[tuple[tuple[int, ...], ...]]()
    for text in stories(True):
        ids = tuple(point.text.encode(text[:1200], special=False))[SKIPPED:]
        if len(ids) >= GIVEN + WRITTEN:
            asked.append((ids[:GIVEN], ids[GIVEN : GIVEN + WRITTEN]))
        if len(asked) == args.prompts:
            break
    one, lines = list[list[Told]](), list[dict[str, Any]]()
    for way in WAYS:
        got = told(way, point, tables, asked)
        one = one or got
        lines.append(line(way, got, one))
        print(*lines[-1].values(), sep=" | ", flush=True)
    if args.csv:
        write_csv(args.csv, lines)


if __name__ == "__main__":
    main()
