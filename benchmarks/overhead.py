"""The Python around each pass: microseconds of the loop, scheduler, session, query, verifier, writer and drafter.

The engine runs as it is, with the model's tokenizer and its table of n-grams, over a network that answers at once from a
fixed text, so that nothing but Python is left. Before it answers it walks through 64 MB: a real pass leaves the processor's
caches full of weights, and all that Python touches has to come back from memory; `warm` is the same without that walk. The
clock is the thread's own, stopped while the network answers and not begun before the first pass has ended; the least of
several runs counts.

    OMP_NUM_THREADS=1 python benchmarks/overhead.py --methods plain,auto --batches 1,8
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polydec import api
from polydec.core.types import TokenVocabulary
from polydec.methods.economics.costs import PassCosts
from polydec.models.formats.zoo import default_ngrams
from polydec.models.learned import artefacts
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.query import NetworkAnswer, NetworkQuery
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.sources import open_source
from polydec.request import machine

COSTS = PassCosts(
    (4.2, 4.9, 6.0, 7.5, 9.5, 11.0, 12.6, 14.1, 16.0, 17.8, 19.4, 20.9, 22.4, 24.0, 25.5, 27.0), 0.4
)
"""t(m) of zoo:smollm2 on two cores of Zen 4."""


class FixedText:
    """A network of models/nets/query.py whose likeliest token at a place is the one that stands there in `text`."""

    cost, layers, context = 1.0, 1, 8192
    tree = rollback = partial = True

    def __init__(self, text: Sequence[int], cold: bool) -> None:
        self.text, self.size = text, max(text) + 1
        self.walk = np.ones(1 << 23 if cold else 1)
        self.passes, self.outside, self.since = 0, 0.0, -1.0

    def new_cache(self) -> KVCache:
        return KVCache(torch.empty(1, 2, 1, 256, 1))

    def head_logits(self, hidden_RH: Any) -> Any:
        raise NotImplementedError("no hidden states here")

    def embed_tokens(self, tokens_N: Any) -> Any:
        raise NotImplementedError("no embeddings here")

    def forward(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        now = time.thread_time()
        if self.since >= 0.0:
            self.passes, self.outside = self.passes + 1, self.outside + now - self.since
        answers = [
            NetworkAnswer(
                None, argmax=[self.text[p + 1] for p in self.places(q)], later=self.nothing
            )
            for q in queries
        ]
        self.walk.sum()
        self.since = time.thread_time()
        return answers

    @staticmethod
    def nothing() -> Any:
        raise NotImplementedError("no logits here")

    @staticmethod
    def places(q: NetworkQuery) -> list[int]:
        length, depth = q.cache.length, list[int]()
        for p in q.cache.parent:
            depth.append(0 if p < 0 else depth[p] + 1)
        return [
            s if s < length else length + depth[s - length] for s in (q.first + r for r in q.rows)
        ]


def run(
    source: Any,
    ids: Sequence[int],
    method: str,
    batch: int,
    tokens: int,
    cold: bool,
    trained: tuple[Any, ...] = (),
) -> tuple[float, float]:
    """Microseconds around a pass, and tokens a pass and request. trained: what goes with the model."""
    net = FixedText(ids, cold)
    point = ModelBundle(
        "fixed",
        CausalLaw(net, TokenVocabulary(49152, frozenset(), source.text.fingerprint, source.text)),
        source.text,
        {},
        "",
        "",
        "",
    )
    lm = api.LoadedModel(point, None, trained)
    vars(lm)["costs"] = COSTS
    engine, prompt = api.Engine(lm), tuple(ids[: len(ids) - tokens])
    tickets = [
        engine.submit(prompt, method=method, max_tokens=tokens, ignore_eos=True, raw=True)
        for _ in range(batch)
    ]
    answers = engine.run(tickets)
    assert all(a.token_ids == tuple(ids[len(prompt) :]) for a in answers), (
        "the text is not the one that was fixed"
    )
    return net.outside / net.passes * 1e6, tokens / (net.passes + 1)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="zoo:smollm2", help="whose tokenizer and table it is")
    p.add_argument("--methods", default="plain,auto")
    p.add_argument("--batches", default="1,8")
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument(
        "--text", type=Path, default=Path(__file__).parent.parent / "src/polydec/core/protocols.py"
    )
    args = p.parse_args()
    torch.set_num_threads(1)
    source, table = open_source(args.model), default_ngrams(args.model)
    trained = () if table is None else (artefacts.load_artefact(table),)
    ids = source.text.encode(args.text.read_text())[: 160 + args.tokens]
    print(
        f"Microseconds of the thread around a pass, least of {args.repeats} runs; {machine.describe_machine()}\n"
    )
    print(
        "| method | batch | tokens a pass | cold | warm | cold, a request |\n|---|---|---|---|---|---|"
    )
    for batch in map(int, args.batches.split(",")):
        for method in args.methods.split(","):
            cold, warm = (
                [
                    run(source, ids, method, batch, args.tokens, c, trained)
                    for _ in range(args.repeats)
                ]
                for c in (True, False)
            )
            (best, per), (hot, _) = min(cold), min(warm)
            print(
                f"| {method} | {batch} | {per:.2f} | {best:.0f} | {hot:.0f} | {best / batch:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
