"""A recogniser and a language model: errors by the share of the second, the published score beside the law.

    python -m benchmarks.studies.fusion [--model DIR] [--count 24] [--noise 0.2] [--widths 5]

The recogniser is a channel of which the law is known: of each letter it hears the letter itself, or with chance `noise` one
that lies beside it on a keyboard; what it says of a letter is the posterior of that under a uniform prior. It writes letters,
the language model tokens. Sentences are those of text_tinystories_slice (POLYDEC_DATA) of 26 to 46 letters. Shares are chosen
by sentences whose SHA-1 is below 7 modulo 10 ("tuned"), errors told of the others ("held out"). An error is a letter to change,
insert or leave out (Levenshtein), over the letters of the sentences.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polydec import generate, load
from polydec.core.decoder import Decoder, run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import TextCache
from polydec.lab.train.data import data_root, hash_bucket, read_rows
from polydec.laws.contrasts.product import ProductContrast
from polydec.laws.targets.contrast import ContrastTarget
from polydec.laws.targets.read_as_bytes import EMPTY, ByteWords, read_as_bytes
from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
from polydec.methods.search.loop.fused_beam import FusedBeamSearch, FusionReader
from polydec.models.nets.query import NetworkAnswer, NetworkQuery
from polydec.models.sessions.lm import CausalLaw

ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
END = 256
PLACE = {x: (r, c + (0.0, 0.3, 0.8)[r]) for r, line in enumerate(ROWS) for c, x in enumerate(line)}
BESIDE = {x: [y for y in PLACE if y != x and math.dist(PLACE[x], PLACE[y]) < 1.35] for x in PLACE}
"""Of each letter those beside it."""


def chance(heard: str, letter: str, noise: float) -> float:
    """That this letter is heard so."""
    if letter == heard:
        return 1.0 - noise
    return noise / len(BESIDE[letter]) if heard in BESIDE[letter] else 0.0


def misheard(text: str, noise: float, turn: int = 0) -> str:
    """A sentence through the channel; its draws are made of its letters, other ones each turn. The first letter, spaces and
    marks are heard right."""
    draw = random.Random(f"{turn} {text}" if turn else text)
    wrong = (
        draw.choice(BESIDE[x]) if i and x in BESIDE and draw.random() < noise else x
        for i, x in enumerate(text)
    )
    return "".join(wrong)


class Channel:
    """The recogniser, behind a sentence as it was heard: its law of the next letter depends on the place alone."""

    cost, layers, context, tree, partial, rollback = 0.1, 1, 4096, True, True, True
    grouped, size = False, END + 1

    def __init__(self, heard: str, noise: float) -> None:
        self.rows = [self._row(x, noise if i else 0.0) for i, x in enumerate(heard)]
        self.rows.append(self._row(None, noise))

    def _row(self, heard: str | None, noise: float) -> torch.Tensor:
        logw_V = torch.full((END + 1,), -math.inf, dtype=torch.float64)
        if heard is None:
            logw_V[END] = 0.0
        elif heard not in BESIDE or not noise:
            logw_V[ord(heard)] = 0.0
        else:
            for x in (heard, *BESIDE[heard]):
                logw_V[ord(x)] = math.log(chance(heard, x, noise))
        return logw_V

    def new_cache(self) -> TextCache:
        return TextCache()

    def head_logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        raise ValueError("a channel has no states")

    def forward(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        return [self._answer(q) for q in queries]

    def _answer(self, q: NetworkQuery) -> NetworkAnswer:
        cache, depth = q.cache, list[int]()
        for slot, x in enumerate(q.token, q.first):
            staged = slot - cache.length
            before = slot - 1 if staged < 0 else cache.length + cache.parent[staged]
            above = cache.text[before][0] if before >= 0 else ()
            cache.text[slot] = ((*above, x), (0,))
            depth.append(min(len(above), len(self.rows) - 1))
        return NetworkAnswer(torch.stack([self.rows[depth[r]] for r in q.rows]), None)


def recogniser(heard: str, noise: float) -> CausalLaw:
    """The channel's law; its prompt is EMPTY."""
    vocab = TokenVocabulary(END + 1, frozenset({END}), "bytes", ByteWords())
    return CausalLaw(Channel(heard, noise), vocab)  # pyright: ignore[reportArgumentType]


def distance(a: str, b: str) -> int:
    """Letters to change, insert or leave out."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]


Make = Callable[[CausalLaw, float], Decoder]
"""(the recogniser, a share) -> what writes."""


def error(make: Make, share: float, sentences: Sequence[str], noise: float) -> float:
    """Errors a letter."""
    wrong = 0
    for text in sentences:
        law = recogniser(misheard(text, noise), noise)
        request = Request(EMPTY, len(text) + 4)
        tokens = run_coroutines([run_decoder(make(law, share), request)])[0][0].token_ids
        wrong += distance(bytes(x for x in tokens if x < END).decode(), text)
    return wrong / sum(map(len, sentences))


def sentences(count: int | None) -> tuple[list[str], list[str]]:
    """(tuned, held out), so many of each; None: all."""
    folder = data_root() / "text_tinystories_slice" / "train.jsonl.gz"
    every = dict.fromkeys(
        s for r in read_rows(folder) for s in re.findall(r"[A-Z][a-z ]{25,45}\.", r["text"])
    )
    tuned = [s for s in every if hash_bucket(s) < 7][:count]
    return tuned, [s for s in every if hash_bucket(s) >= 7][:count]


def write_pairs(path: Path, noise: float, turns: int, apart: int) -> None:
    """Pairs of what was heard and what it was, of all tuned sentences but the first `apart`, `turns` of each."""
    texts = sentences(None)[0][apart:]
    lines = (
        json.dumps({"source": misheard(t, noise, turn), "target": t})
        for turn in range(1, turns + 1)
        for t in texts
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{turns * len(texts)} pairs of {len(texts)} sentences in {path}")


def trained(asked: argparse.Namespace, at: str) -> None:
    """The same of a recogniser that was trained, by its name and that of the language model."""
    lm = load(asked.recogniser, draft=at, ngrams=None, threads=1)
    tuned, held = sentences(asked.count)

    def wrong(texts: Sequence[str], **options: Any) -> float:
        said = [
            generate(
                lm,
                misheard(text, asked.noise),
                method="gfd",
                options={"width": asked.widths[0], "covers": asked.covers, **options},
                max_tokens=len(text) + 8,
            )
            for text in texts
        ]
        off = sum(distance(a.choices[0].text.strip(), t) for a, t in zip(said, texts, strict=True))
        return off / sum(map(len, texts))

    alone = wrong(held, share=0.0)
    print(json.dumps({"way": "alone", "held_out": round(alone, 4)}), flush=True)
    for name, options in {
        "published": {},
        "sums": {"mean": False, "lagging": False},
    }.items():
        by_share = {s: wrong(tuned, share=s, **options) for s in asked.shares}
        best = min(by_share, key=lambda s: by_share[s])
        found = wrong(held, share=best, **options)
        row = {
            "tuned": {s: round(e, 4) for s, e in by_share.items()},
            "share": best,
            "held_out": round(found, 4),
            "of_alone": round(found / alone, 3),
        }
        print(json.dumps({"way": name, **row}), flush=True)


def main() -> None:
    """One line of JSON a setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="default: model_stories260k of POLYDEC_DATA")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--widths", type=int, nargs="+", default=[5])
    parser.add_argument("--covers", type=int, default=1)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4, 0.5, 0.7])
    parser.add_argument("--pairs", type=Path, help="only write pairs to train a recogniser on")
    parser.add_argument("--turns", type=int, default=12, help="pairs of each sentence")
    parser.add_argument("--recogniser", help="directory of one that was trained on such pairs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.pairs is not None:
        return write_pairs(asked.pairs, asked.noise, asked.turns, asked.count)
    at = asked.model or str(data_root() / "model_stories260k" / "hf")
    if asked.recogniser:
        return trained(asked, at)
    lm: Any = load(at, draft=None, ngrams=None, threads=1)
    known: Any = read_as_bytes(lm.checkpoint.lm, asked.covers, Path(at).name)
    reader = FusionReader(known, EMPTY)

    def published(law: CausalLaw, share: float, width: int, lagging: bool, mean: bool) -> Decoder:
        return FusedBeamSearch(law, reader, width, share, lagging, mean)

    def normalised(law: CausalLaw, share: float, width: int) -> Decoder:
        return DiverseBeamSearch(
            ContrastTarget(law, (known,), ProductContrast(share)), width, 1, 0.0
        )

    tuned, held = sentences(asked.count)
    for width in asked.widths:
        ways: dict[str, Make] = {
            "law": partial(normalised, width=width),
            "score, sums": partial(published, width=width, lagging=False, mean=False),
            "score, sums, lagging": partial(published, width=width, lagging=True, mean=False),
            "score, means": partial(published, width=width, lagging=False, mean=True),
            "published": partial(published, width=width, lagging=True, mean=True),
        }
        alone = {
            "tuned": error(ways["published"], 0.0, tuned, asked.noise),
            "held_out": error(ways["published"], 0.0, held, asked.noise),
        }
        print(json.dumps({"width": width, "way": "alone", **alone}), flush=True)
        for name, way in ways.items():
            began = time.process_time()
            by_share = {s: error(way, s, tuned, asked.noise) for s in asked.shares}
            best = min(by_share, key=lambda s: by_share[s])
            found = error(way, best, held, asked.noise)
            row = {
                "tuned": {s: round(e, 4) for s, e in by_share.items()},
                "share": best,
                "held_out": round(found, 4),
                "of_alone": round(found / alone["held_out"], 3),
                "cpu_s": round(time.process_time() - began),
            }
            print(json.dumps({"width": width, "way": name, **row}), flush=True)


if __name__ == "__main__":
    main()
