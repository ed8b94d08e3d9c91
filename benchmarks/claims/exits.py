"""What the claims about early exits share: documents as prompts, greedy texts with what every exit would have said, the cost of
fixed exits and lengths on them, and counters of the layers that run.

A fixed pair (exit, length) can be replayed exactly on a greedy text: a draft is accepted as far as the exit's likeliest tokens
are those of the text. Its round of g drafts costs L + g E layer passes and g + 1 of the head.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seen import DATA, part, shaped

from polydec.api import LoadedModel
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.kits import build
from polydec.lab.train.data import KINDS, read_documents


def prompts(
    lm: LoadedModel, args: argparse.Namespace, tune: bool
) -> list[tuple[str, tuple[int, ...]]]:
    """(kind, the first --begin tokens) of documents of prose, code and dialogue, in equal numbers."""
    out = list[tuple[str, tuple[int, ...]]]()
    for kind in KINDS:
        texts = [t for _, t in zip(range(4000), read_documents(DATA, kind))][::13]
        for text in part((t for t in texts if len(t) > 8 * args.begin), args.prompts // 3, tune):
            out.append((kind, lm.checkpoint.text.encode(text[: 8 * args.begin])[: args.begin]))
    return out


@dataclass
class Counter:
    """layers: layer passes (a layer run once over any number of positions counts 1); positions: layers times positions;
    heads: passes of the head; shadows: rows of the head for
    tokens that nobody drafts."""

    layers: int = 0
    positions: int = 0
    heads: int = 0
    shadows: int = 0


def counted(network: Any) -> Counter:
    """A counter of all that this network does from now on."""
    c, forward, head = Counter(), network.forward, network.head

    def count_forward(queries: Sequence[Any]) -> Any:
        for q in queries:
            n = network.layers if q.layers is None else len(q.layers)
            c.layers, c.positions = c.layers + n, c.positions + n * len(q)
            c.heads += bool(len(q.rows) and max(q.want.law, q.want.base))
        return forward(queries)

    def count_head(hidden_RH: Any) -> Any:
        c.shadows += len(hidden_RH)
        return head(hidden_RH)

    network.forward, network.head = count_forward, count_head
    return c


def sizes(network: Any) -> tuple[int, int]:
    """Parameters of a layer, and of the head."""
    c = network.config
    return (2 * c.heads + 2 * c.kv_heads) * (
        c.width // c.heads
    ) * c.width + 3 * c.inner * c.width, c.vocab * c.width


def greedy(lm: LoadedModel, prompt: Sequence[int], args: argparse.Namespace) -> tuple[int, ...]:
    decoder, _ = build("plain", shaped(lm, 0.0, repetition_penalty=args.penalty))
    return run_coroutines(
        [answer_one(decoder, Request(tuple(prompt), max_tokens=args.tokens, ignore_eos=True))]
    )[0].token_ids


def hits(
    lm: LoadedModel, prompt: Sequence[int], text: Sequence[int], penalty: float
) -> list[list[bool]]:
    """Of each depth 1 to L whether its likeliest token is the text's, at every position."""
    target, L = shaped(lm, 0.0, repetition_penalty=penalty), lm.network.layers
    session, nodes = target.open_session(prompt), range(len(text))
    scores = run_coroutines(
        [
            session.score_draft(
                Draft.chain_draft(prompt[-1], text[:-1]), ScoreRequest(exits=tuple(range(1, L + 1)))
            )
        ]
    )[0]
    exits = [scores.exit_laws(d, nodes) for d in range(1, L + 1)]
    return [[s.likeliest_token(i) == x for i, x in enumerate(text)] for s in exits]


def replay(
    hit: Sequence[bool], exit: int, length: int, layers: int
) -> tuple[int, int, int, int, int]:
    """(rounds, drafted, accepted, layer passes, passes of the head) of a fixed pair on one text."""
    at = rounds = drafted = accepted = 0
    while at < len(hit):
        g = min(length, len(hit) - at - 1)
        k = next((i for i in range(g) if not hit[at + i]), g)
        at, rounds, drafted, accepted = at + k + 1, rounds + 1, drafted + g, accepted + k
    return rounds, drafted, accepted, rounds * layers + drafted * exit, drafted + rounds


def rate(hit: Sequence[Sequence[bool]], length: int = 6) -> float:
    """Share of drafted tokens that are accepted, of drafts of this length."""
    some = [replay(h, 1, length, 1) for h in hit]
    return sum(s[2] for s in some) / max(1, sum(s[1] for s in some))
