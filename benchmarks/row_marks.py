"""Marks at the ends of a picture's rows: what they cost in passes where the layout writes them, and where they are guessed.

    python benchmarks/row_marks.py --images FOLDER --out DIR --csv FILE [--steps 300] [--each 34]

Of each of three seeds two models are trained in DIR, of equal sizes and for equal steps: one draws the 49 tokens of a picture,
and with the other a mark stands behind each of the seven rows, so that 56 are written. Windows of speculative Jacobi draw
with both: with the marks as the command line does, where the layout says which places have one, and with a window that does
not know it. There a place that no pass has seen copies the token on its left, as others do; the model's law says the mark in
either.

passes: of a picture; tokens: written a pass, marks among them; nats: of a token under zoo:digits, in its tiles; distance:
Fréchet's between drawn and learned pictures, as in benchmarks/digits.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from csv_rows import merge_csv
from digits import WORDS, feature_map, trained
from enat import JUDGE, SIZES, PictureJudges

import polydec
from polydec.core.decoder import Decoder, run_decoder
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.picture_data import read_pictures
from polydec.laws.shapers.row_ends import RowEndRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.speculative_jacobi import SpeculativeJacobiDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

SEEDS = (0, 1, 2)
WINDOWS = (4, 8, 16)


@dataclass(frozen=True)
class MarkRow:
    """A way to draw.

    Attributes:
        name: Of its row.
        window: Places that are drawn at once; 0: one token a pass.
        marked: Whether a mark stands behind each row of the picture.
        laid_out: Whether the window proposes the marks that the layout says.
    """

    name: str
    window: int
    marked: bool
    laid_out: bool = False

    def decoder_over(self, law: Target, ends: RowEndRule | None) -> Decoder:
        """What draws.

        Args:
            law: Of the model, with its marks.
            ends: Where they stand. None: nowhere.

        Returns:
            The decoder.
        """
        if not self.window:
            return SpeculativeDecoder(law, NothingDrafter(), MatchVerifier(), FixedPolicy(0))
        drafter = SpeculativeJacobiDrafter(self.window, rows=ends if self.laid_out else None)
        return SpeculativeDecoder(law, drafter, ExactVerifier(), FixedPolicy(self.window))


def rows_to_measure() -> list[MarkRow]:
    """All ways to draw, those without marks first."""
    out = [MarkRow("plain, no marks", 0, False)]
    out += [MarkRow(f"window {w}, no marks", w, False) for w in WINDOWS]
    out.append(MarkRow("plain", 0, True))
    for window in WINDOWS:
        out.append(MarkRow(f"window {window}", window, True, True))
        out.append(MarkRow(f"window {window}, guessed", window, True))
    return out


def drawn_row(
    lm: polydec.LoadedModel, how: MarkRow, judges: PictureJudges, seed: int, each: int
) -> dict[str, Any]:
    """Draw pictures of every class in one way, count, and judge them."""
    view = lm.checkpoint.view
    assert view is not None and how.marked == (view.row_end is not None)
    ends = None if view.row_end is None else RowEndRule(view.width, view.row_end)
    law = lm.checkpoint.lm if ends is None else ShapedTarget(lm.checkpoint.lm, ends)
    decoder = how.decoder_over(law, ends)
    length = view.token_count
    requests = [
        Request(tuple(lm.encode(word)), length, ignore_eos=True, seed=1000 * seed + at, n=each)
        for at, word in enumerate(WORDS)
    ]
    answers = run_coroutines([run_decoder(decoder, request) for request in requests])
    made = [one for results in answers for one in results]
    assert all(len(one.token_ids) == length for one in made)
    passes = sum(one.stats.passes for one in made) / len(made)
    pixels = np.stack([view.draw_tokens(one.token_ids).pixels for one in made])
    words: Sequence[str] = [word for word in WORDS for _ in range(each)]
    return {
        "name": how.name,
        "seed": seed,
        "passes": round(passes, 2),
        "tokens": round(length / passes, 3),
        **judges.judged(words, pixels),
    }


def main() -> None:
    """Train, draw, judge, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--each", type=int, default=34)
    asked = parser.parse_args()
    given = read_pictures(asked.images, SIZES["side"] * SIZES["patch"], WORDS)
    learned = given.pixels[given.is_learned()]
    features = feature_map(learned)
    judges = PictureJudges(polydec.load(JUDGE, threads=1), features, features(learned))
    for seed in SEEDS:
        loaded = dict[bool, polydec.LoadedModel]()
        for marked in (False, True):
            out = asked.out / f"{'marks' if marked else 'none'} {seed}"
            options = {**SIZES, "layers": 2, "steps": asked.steps, "seed": seed}
            at = trained(out, asked.images, options, row_ends=marked)
            loaded[marked] = polydec.load(str(at), draft=None, threads=1)
        for how in rows_to_measure():
            row = drawn_row(loaded[how.marked], how, judges, seed, asked.each)
            print(row, flush=True)
            merge_csv(asked.csv, [row], ("name", "seed"))


if __name__ == "__main__":
    main()
