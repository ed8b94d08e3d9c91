"""Drafters trained on a target's states at prompts of growing length: tokens a pass, what each keeps, and what a draft costs.

    python benchmarks/context.py runs/longspec runs/eagle … --csv lab/reports/trained-context.csv

Prompts are beginnings of held-out prose and code (see polydec/lab/train/data.py), cut at each length; the same documents at all
lengths. Intervals are 95 % ones of a bootstrap over the prompts. What a draft costs is this process's own time, of answers
written one by one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from csv_rows import write_csv
from trained import LAWS, METHODS, interval

from polydec.core.decoder import answer_one
from polydec.core.protocols import Session
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.lab.train.data import data_root, split_documents
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.loop.protocols import Drafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.models.learned import artefacts
from polydec.models.sessions import checkpoint
from polydec.models.sessions.checkpoint import ModelBundle

TOKENS = 40
"""Of each answer."""


@dataclass
class Weighed:
    """A drafter, how many bytes its guesses held when their answers ended (most of all), and the seconds of its drafts."""

    inner: Drafter
    most: int = 0
    seconds: list[float] = field(default_factory=list[float])

    def open_guess(self, prompt: Sequence[int], session: Session) -> Any:
        guess: Any = self.inner.open_guess(prompt, session)
        close, inner = guess.close, guess.propose

        async def propose(*asked: Any) -> Draft:
            start = time.process_time()
            draft = await inner(*asked)
            self.seconds.append(time.process_time() - start)
            return draft

        def weighed() -> None:
            held = guess.kv if hasattr(guess, "kv") else guess.cache
            self.most = max(self.most, 0 if held is None else held.nbytes)
            close()

        guess.close, guess.propose = weighed, propose
        return guess


def prompts(point: ModelBundle, longest: int, count: int) -> list[tuple[int, ...]]:
    """Held-out documents of at least so many tokens, prose and code in turn."""
    found = list[tuple[int, ...]]()
    for kind in ("prose", "code"):
        some = (
            point.text.encode(d[: 12 * longest])
            for d in split_documents(data_root(), kind, 0, 400_000).unseen
        )
        found += [tuple(ids) for ids in some if len(ids) >= longest][: count // 2]
    return found


def decoders(
    point: ModelBundle, one: Any, nodes: int
) -> Iterator[tuple[str, str, SpeculativeDecoder]]:
    """Every method that the artefact serves, under each law, with its whole tree fed; the prompt's states are read where a
    method can choose."""
    for name in METHODS[one.kind]:
        for law, shaper in LAWS.items():
            kit = Kit(ShapedTarget(point.lm, shaper), None, (one,))
            options = {"nodes": str(nodes), "cost_aware": "false"}
            decoder, _ = registry.build(name, kit, options)
            assert isinstance(decoder, SpeculativeDecoder)
            yield name, law, decoder


def row(
    decoder: SpeculativeDecoder, texts: Sequence[tuple[int, ...]], plain: Sequence[Any]
) -> dict[str, Any]:
    """What one method did behind these prompts."""
    weighed, alone = Weighed(decoder.drafter), Weighed(decoder.drafter)
    for text in texts[:2]:
        written(replace(decoder, drafter=alone), [text])
    done = written(replace(decoder, drafter=weighed), texts)
    pairs = [(len(r.token_ids), r.stats.passes) for r in done]
    low, high = interval(pairs)
    return {
        "tokens a pass": round(sum(t for t, _ in pairs) / sum(p for _, p in pairs), 3),
        "low": low,
        "high": high,
        "plain's text": sum(r.token_ids == p for r, p in zip(done, plain, strict=True)) / len(done),
        "bytes kept": weighed.most,
        "milliseconds a draft": round(1e3 * median(alone.seconds), 2),
    }


def written(decoder: Any, texts: Sequence[tuple[int, ...]]) -> list[Any]:
    return run_coroutines(
        [answer_one(decoder, Request(t, max_tokens=TOKENS, seed=i)) for i, t in enumerate(texts)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trained", nargs="+", help="directories that `polydec train` made")
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--lengths", default="32,128,256,512,960", help="tokens of a prompt")
    parser.add_argument("--nodes", type=int, default=16, help="tokens of a tree")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--csv", help="file to write")
    args = parser.parse_args()
    point, lengths, rows = (
        checkpoint.load_bundle(args.model),
        [int(n) for n in args.lengths.split(",")],
        list[dict[str, Any]](),
    )
    texts = prompts(point, max(lengths), args.prompts)
    for n in lengths:
        some = [t[:n] for t in texts]
        plain = {
            law: [
                r.token_ids
                for r in written(
                    registry.build("plain", Kit(ShapedTarget(point.lm, shaper)))[0], some
                )
            ]
            for law, shaper in LAWS.items()
        }
        for where in args.trained:
            for name, law, decoder in decoders(
                point, artefacts.bind_artefact(artefacts.load_artefact(where), point.lm), args.nodes
            ):
                rows.append(
                    {
                        "trained": where.rstrip("/").split("/")[-1],
                        "method": name,
                        "law": law,
                        "prompt": n,
                        "prompts": len(some),
                        **row(decoder, some, plain[law]),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    if args.csv and rows:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
