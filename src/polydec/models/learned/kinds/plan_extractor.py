"""A plan extractor: it points at the clauses that a summary is to say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.fields import StrictFields
from polydec.models.learned import artefact
from polydec.models.nets.plan_pointer import (
    FIRST,
    LAYER,
    MOST,
    STOP,
    PointerSizes,
    pointer_logits,
    pointer_tensor_shapes,
    read_clause_items,
)
from polydec.models.text.clauses import ClauseSpan, clause_spans, mark_clauses

KIND = artefact.ArtefactKind(
    "plan-extractor", "plan extractor", "plan_extractor.safetensors", "plan-extractor"
)


class PlanExtractorFields(StrictFields):
    """config.json of a plan extractor.

    Attributes:
        opens: Token before a clause that is marked.
        closes: Token behind it.
    """

    vocab_size: Annotated[int, Field(ge=2, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    width: Annotated[int, Field(ge=16, le=1 << 12, multiple_of=LAYER.head)]
    reading: Annotated[int, Field(ge=1, le=64)]
    items: Annotated[int, Field(ge=1, le=64)]
    pointing: Annotated[int, Field(ge=1, le=64)]
    opens: Annotated[int, Field(ge=0, lt=1 << 24)]
    closes: Annotated[int, Field(ge=0, lt=1 << 24)]


@dataclass(frozen=True)
class ClausePlan:
    """Clauses that a text is to say.

    Attributes:
        clauses: Their numbers, in the order in which they were pointed at, each once.
        score: Log-probability of the plan and its stop, over a power of their number.
    """

    clauses: tuple[int, ...]
    score: float


@dataclass(frozen=True, eq=False)
class ClauseReader:
    """Reads texts, as a model of the scheduler's: a query is (token ids, clauses), an answer its
    items.

    Attributes:
        sizes: Of the network.
        weights: Of the network, by name.
        marks: Tokens before and behind a clause.
        cost: Of a pass; 0: before any other model's.
    """

    sizes: PointerSizes
    weights: Mapping[str, Tensor]
    marks: tuple[int, int]
    cost: float = 0.0

    @torch.no_grad()
    def forward(
        self, queries: Sequence[tuple[tuple[int, ...], tuple[ClauseSpan, ...]]]
    ) -> list[Tensor]:
        """Read texts one by one; an answer has items of shape ``[1, 2 + N, W]``."""
        out = list[Tensor]()
        # Not side by side: padding would change the last bits of an answer with the company it has.
        for ids, spans in queries:
            id_1T, there_1T, share_1NT = clause_batch([(ids, spans)], self.marks)
            items, _ = read_clause_items(self.sizes, self.weights, id_1T, there_1T, share_1NT)
            out.append(items)
        return out


@dataclass(frozen=True, eq=False)
class PlanExtractor:
    """Points at the clauses of a text that another text is to say. Arithmetic is fp32.

    Attributes:
        vocab: Of the model that writes.
        sizes: Of the network.
        marks: Tokens before and behind a clause of a plan, which the model that writes was trained
            with.
        tensors: Of the network, by name.
    """

    called: ClassVar[str] = "a plan extractor"
    kind: ClassVar[str] = "plan-extractor"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    sizes: PointerSizes
    marks: tuple[int, int]
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        # It reads tokens by a network of its own, so widths need not agree.
        target.vocab.require_same(self.vocab, "the target of the plan extractor")

    @cached_property
    def clause_reader(self) -> ClauseReader:
        """What reads a text before plans are made of it."""
        return ClauseReader(self.sizes, self.tensors, self.marks)

    def clauses_of(self, ids: Sequence[int], vocab: TokenVocabulary) -> tuple[ClauseSpan, ...]:
        """The clauses of a text.

        Args:
            ids: Its token ids.
            vocab: Says what tokens mean, where anything does.
        """
        pieces = None if vocab.words is None else vocab.words.pieces
        return clause_spans(ids, pieces, MOST)

    @torch.no_grad()
    def likeliest_plans(
        self, item_1NW: Tensor, count: int, shortest: int, longest: int, penalty: float
    ) -> tuple[ClausePlan, ...]:
        """Find plans by beam search over the numbers of clauses.

        A clause stands in a plan once. Plans of the same clauses count once, the better one.

        Args:
            item_1NW: Items of a text, as the reader gives them.
            count: Beams, and plans at most.
            shortest: Clauses of a plan at least; all where the text has fewer.
            longest: Clauses of a plan at most.
            penalty: Power of the length, its stop counted, that divides a plan's log-probability.

        Returns:
            Plans of different clauses, the best first, at least one.
        """
        clauses = item_1NW.shape[1] - FIRST
        shortest = min(shortest, clauses)
        # No clause stands twice, so a text with few clauses has short plans only.
        longest = min(max(longest, shortest), clauses)
        live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended = list[ClausePlan]()
        for length in range(longest + 1):
            options = list[tuple[float, tuple[int, ...]]]()
            for total, plan, logp_N in self._next_laws(item_1NW, live, length, shortest, longest):
                # Ended plans wait outside of the beams: plans of different lengths compare only
                # once their lengths are paid for.
                if float(logp_N[STOP]) > -math.inf:
                    whole = total + float(logp_N[STOP])
                    ended.append(ClausePlan(plan, whole / (length + 1) ** penalty))
                value_K, item_K = logp_N[FIRST:].topk(min(count, clauses))
                found = zip(value_K.tolist(), item_K.tolist(), strict=True)
                options += [(total + v, (*plan, i)) for v, i in found if v > -math.inf]
            # All beams have one length, so their totals compare as they are.
            live = sorted(options, key=lambda option: -option[0])[:count]
        # Marks stand in the order of the text, so two orders of the same clauses would give one
        # text.
        best = dict[frozenset[int], ClausePlan]()
        for plan in sorted(ended, key=lambda plan: -plan.score):
            best.setdefault(frozenset(plan.clauses), plan)
        return tuple(best.values())[:count]

    def _next_laws(
        self,
        item_1NW: Tensor,
        live: Sequence[tuple[float, tuple[int, ...]]],
        length: int,
        shortest: int,
        longest: int,
    ) -> list[tuple[float, tuple[int, ...], Tensor]]:
        """Of each beginning its total, its clauses, and log-probabilities of the next item."""
        if not live:
            return []
        item_BNW = item_1NW.expand(len(live), -1, -1)
        plan_BP = torch.tensor([plan for _, plan in live], dtype=torch.long).view(len(live), length)
        # Beginnings of one text are as long as each other: nothing is padded.
        there_BN = torch.ones(item_BNW.shape[:2], dtype=torch.bool)
        logits_BN = pointer_logits(self.sizes, self.tensors, item_BNW, there_BN, plan_BP + FIRST)[
            :, -1
        ]
        # A clause is said once, and a plan ends neither too early nor too late.
        logits_BN = logits_BN.scatter(1, plan_BP + FIRST, -math.inf)
        if length < shortest:
            logits_BN[:, STOP] = -math.inf
        if length >= longest:
            logits_BN[:, FIRST:] = -math.inf
        # After the bounds: what they exclude leaves its share to the rest, and an end that they
        # force costs nothing.
        rows = logits_BN.log_softmax(-1)
        return [(total, plan, row) for (total, plan), row in zip(live, rows, strict=True)]


def clause_batch(
    texts: Sequence[tuple[Sequence[int], Sequence[ClauseSpan]]], marks: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Texts with marks around every clause, side by side.

    Args:
        texts: Token ids and clauses of each.
        marks: Tokens before and behind a clause.

    Returns:
        Token ids and which of them are there, ``[B, T]``; and of each clause the share of each
        token, ``[B, N, T]``.
    """
    # Every clause has marks here; those of a plan alone are for the model that writes.
    marked = [mark_clauses(ids, spans, range(len(spans)), marks) for ids, spans in texts]
    T = max(map(len, marked))
    N = max(len(spans) for _, spans in texts)
    id_BT = torch.zeros(len(texts), T, dtype=torch.long)
    there_BT = torch.zeros(len(texts), T, dtype=torch.bool)
    share_BNT = torch.zeros(len(texts), N, T)
    for b, (ids, (_, spans)) in enumerate(zip(marked, texts, strict=True)):
        id_BT[b, : len(ids)] = torch.tensor(ids)
        there_BT[b, : len(ids)] = True
        for i, (begin, stop) in enumerate(spans):
            # Each clause before this one has added two marks; its own belong to it.
            share_BNT[b, i, begin + 2 * i : stop + 2 * i + 2] = 1 / (stop - begin + 2)
    return id_BT, there_BT, share_BNT


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[PlanExtractor, ...]:
    """Make a random one for tests, whose plans depend on the text.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Not read: it draws nothing from states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One extractor.
    """
    # Small, and of weights that leave plans uncertain: several of them are then worth a try.
    sizes = PointerSizes(vocab.size, 16, 1, 1, 1)
    draw = torch.Generator().manual_seed(6)
    # Vectors are norm weights, which begin as ones.
    tensors = {
        name: torch.ones(*shape) if "norm" in name else torch.randn(*shape, generator=draw) * 0.5
        for name, shape in pointer_tensor_shapes(sizes).items()
    }
    return (PlanExtractor(vocab, sizes, (0, 1), tensors),)


def save(path: str | Path, extractor: PlanExtractor, about: Mapping[str, Any]) -> None:
    """Write plan_extractor.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        extractor: The extractor.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    sizes = {k: v for k, v in asdict(extractor.sizes).items() if k != "vocab"}
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float() for name, t in extractor.tensors.items()},
        {
            **about,
            "vocab_size": extractor.sizes.vocab,
            "tokenizer": extractor.vocab.tokenizer,
            **sizes,
            "opens": extractor.marks[0],
            "closes": extractor.marks[1],
        },
    )


def load(path: str | Path) -> PlanExtractor:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(PlanExtractorFields, config, artefact.CONFIG)
        # Marks are rows of the embedding table: beyond it, the first request would fail on them.
        if max(c.opens, c.closes) >= c.vocab_size:
            raise FileError(
                f"opens and closes must lie below vocab_size, {c.vocab_size}: they are {c.opens} and {c.closes}"
            )
        sizes = PointerSizes(c.vocab_size, c.width, c.reading, c.items, c.pointing)
        whole = artefact.read_float_tensors(tensors, KIND, pointer_tensor_shapes(sizes))
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return PlanExtractor(vocab, sizes, (c.opens, c.closes), whole)
