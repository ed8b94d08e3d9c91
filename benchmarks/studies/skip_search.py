"""Which attentions and MLPs a model can leave out while it drafts for itself: a search on a few prompts, decided by a modelled
price, so that no clock has a say.

The model's own greedy texts are scored once under each set of halves (2 i: the attention of layer i, 2 i + 1: its MLP) that
is tried, all prompts in one call. Which of their tokens the drafter would have said gives what every draft length would
have cost; the best of them is the set's price. Sets are tried by expected improvement, as by Zhang et al., "Draft & verify"
(2023), who take the clock's time; the first and the last layer stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.depth import format_layer_halves, remaining_layer_halves
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from studies.surrogate import Mask, minimise

_WANT, _SILENT = ScoreRequest(law=RowDetail.ARGMAX), ScoreRequest(law=RowDetail.NOTHING)


@dataclass(frozen=True)
class Price:
    """Shares of a pass of the whole model over one row, each above 0 and all layers' together below 1 (the rest is the
    head): one attention, one MLP; row: what every further row adds to a pass, at least 0 (0: the weights' trip from memory
    is all that counts, as in the published setting)."""

    attention: float
    mlp: float
    row: float = 0.0

    def __post_init__(self) -> None:
        if not (self.attention > 0 and self.mlp > 0 and self.row >= 0):
            raise RequestError(
                f"attention, mlp and row are {self.attention}, {self.mlp} and {self.row}: they must be above 0, "
                "above 0 and at least 0"
            )

    @staticmethod
    def by_size(network: Any, context: int = 0, row: float = 0.0) -> Price:
        """Of a network of the Llama skeleton, by the numbers that a pass reads: parameters, and the cache's of `context`
        tokens."""
        c = network.config
        D = c.head
        attention = 2 * (c.heads + c.kv_heads) * D * c.width + 2 * c.kv_heads * D * context
        mlp, head = 3 * c.width * c.inner, c.vocab * c.width
        whole = c.layers * (attention + mlp) + head
        return Price(attention / whole, mlp / whole, row)

    def draft(self, out: Mask) -> float:
        """A drafted token without these halves, in passes."""
        return 1.0 - sum(self.mlp if h % 2 else self.attention for h in out)

    def token(self, out: Mask, hits: Sequence[Sequence[bool]], length: int) -> float:
        """A token of the text, in passes, with drafts of this length; hits: of each text, which of its tokens the drafter
        would have said."""
        cost = 0.0
        for hit in hits:
            at = 0
            while at < len(hit):
                g = min(length, len(hit) - at - 1)
                cost += 1.0 + g * (self.row + self.draft(out))
                at += next((i for i in range(g) if not hit[at + i]), g) + 1
        return cost / sum(map(len, hits))


@dataclass(frozen=True)
class Found:
    """skip: what is left out, as draft-and-verify takes it; price: of a token, in passes; length: of the drafts at that
    price; agreement: share of the texts' tokens that the drafter would have said; tried: (skip, price) of all sets, in
    order."""

    skip: str
    price: float
    length: int
    agreement: float
    tried: tuple[tuple[str, float], ...]


def search(
    target: Target,
    prompts: Sequence[Sequence[int]],
    price: Price,
    *,
    tokens: int = 32,
    least: int = 1,
    most: int | None = None,
    longest: int = 12,
    tries: int = 100,
    seed: int = 0,
    watch: Callable[[str], None] = lambda s: None,
) -> Found:
    """target: greedy (shape it so); prompts: at least one; tokens: of a text, 2 and more; least, most: halves left out
    (None: half of them), 1 to those of all layers but two; longest: draft, 1 and more; tries: sets, 1 and more. Raises
    RequestError where the target's layers cannot run alone, there are fewer than three, or a value is out of range."""
    L = target.layers
    if L < 3:
        raise RequestError(
            f"layers is {L}: a model of at least 3 layers that can run alone is needed"
        )
    if not prompts or tokens < 2 or longest < 1 or tries < 1:
        raise RequestError(
            f"prompts, tokens, longest and tries are {len(prompts)}, {tokens}, {longest} and {tries}: they must "
            "be at least 1, 2, 1 and 1"
        )
    most = max(least, L - 2) if most is None else most
    if not 1 <= least <= most <= 2 * L - 4:
        raise RequestError(
            f"least and most are {least} and {most}: they must lie in 1 to {2 * L - 4}, in this order"
        )
    cases, seen = _cases(target, prompts, tokens), dict[Mask, tuple[float, int, float]]()

    def cost(out: Mask) -> float:
        hits = agreed(cases, out, L)
        at, length = min((price.token(out, hits, g), g) for g in range(1, longest + 1))
        seen[out] = at, length, sum(map(sum, hits)) / sum(map(len, hits))
        watch(
            f"{len(seen)}: without {format_layer_halves(out)}: {at:.3f} passes a token, agreement {seen[out][2]:.3f}"
        )
        return at

    minimise(
        cost,
        range(2, 2 * L - 2),
        least=least,
        most=most,
        tries=tries,
        seed=seed,
        given={frozenset(): 1.0},
    )
    best = min(seen, key=lambda out: seen[out][0])
    for session, *_ in cases:
        session.close()
    return Found(
        format_layer_halves(best),
        *seen[best],
        tuple((format_layer_halves(out), value[0]) for out, value in seen.items()),
    )


Case = tuple[Any, Draft, tuple[int, ...]]
"""A session behind a prompt that all layers have seen, the text behind it as a draft, and the text."""


def _cases(target: Target, prompts: Sequence[Sequence[int]], tokens: int) -> list[Case]:
    decoder, _ = registry.build("plain", Kit(target))
    texts = run_coroutines(
        [
            answer_one(decoder, Request(tuple(p), max_tokens=tokens, ignore_eos=True))
            for p in prompts
        ]
    )
    sessions = [target.open_session(p) for p in prompts]
    run_coroutines([s.prefill_prompt(_SILENT) for s in sessions])
    return [
        (s, Draft.chain_draft(p[-1], t.token_ids[:-1]), t.token_ids)
        for s, p, t in zip(sessions, prompts, texts, strict=True)
    ]


def agreed(cases: Sequence[Case], out: Mask, layers: int) -> list[list[bool]]:
    """Of each text which tokens the model without these halves would have said, after its own reading of those before."""
    for session, *_ in cases:
        session.rewind_tokens(0)  # nothing staged: rows that others have left would stand
    scores = run_coroutines(
        [
            s.open_part(*remaining_layer_halves(out, layers)).score_draft(draft, _WANT)
            for s, draft, _ in cases
        ]
    )
    return [
        [row.likeliest_token(i) == x for i, x in enumerate(text)]
        for row, (*_, text) in zip(scores, cases, strict=True)
    ]
