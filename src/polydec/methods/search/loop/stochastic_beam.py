"""Stochastic beam search: several texts drawn without replacement, in one beam."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Exactness, TokenVocabulary
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.stats import SearchStats


@dataclass(frozen=True)
class RacingPrefix:
    """A beginning of a text.

    Attributes:
        text: The beginning.
        logp: Its log-probability.
        node: Branch that it continues.
    """

    text: AnswerText
    logp: float
    node: int


@dataclass
class _ArrivedPrefix:
    """A beginning that has arrived, with the law of its children that have not.

    Attributes:
        left_V: Probabilities of these children, not normalised, shape ``[V]``.
        logp_V: Log-probabilities of all children, shape ``[V]``.
    """

    racer: RacingPrefix
    left_V: Tensor
    logp_V: Tensor = field(repr=False)

    @property
    def mass(self) -> float:
        return math.exp(self.racer.logp) * float(self.left_V.sum())


@dataclass(frozen=True)
class StochasticBeamSearch:
    """Draws `width` texts from the law without replacement.

    The answers stand in the order in which they were drawn: the first is a draw of plain sampling,
    each further one is drawn from what the earlier ones left of the law.

    It is Gumbel top-k on whole texts, written as a race: every text arrives after an exponential
    time whose rate is its probability, and a beginning arrives with the first text that begins so.
    Of every length the first `width` arrivals are kept, texts that have ended among them. Between
    arrivals the race has no memory: with S the mass of further children of the beginnings that are
    there, and R that of all texts whose beginning is not, the next arrival is one of the former
    with probability S / (S + R), else the next beginning with its first child. So no noise is kept,
    and the law can be enumerated.

    Attributes:
        target: Model that is sampled from.
        width: Texts that are drawn, 1 to 64; a request's n is at most that.

    Exact: approximate as a whole (draws without replacement are not draws of the law); the first
    answer has the law.
    Reduces to: plain sampling at width 1; all texts where width is at least their number.
    Source: Kool, van Hoof and Welling, "Stochastic beams and where to find them" (2019).
    """

    target: Target
    width: int = 4
    exactness = Exactness.APPROXIMATE
    unexercised: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("scored", "tied"), "its texts are drawn, not ranked"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 64")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Run one search for all choices, drawn in the stream of choice 0.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: More answers are asked for than texts; nothing was fed yet.
        """
        best = NBestAnswers(into, self.width)
        stats = SearchStats()
        # All prefixes race with one stream: drawing without replacement needs a common noise.
        drawn = rng(0)
        tree = await BranchTree.open_tree(self.target, request.prompt, base=request.base_detail)
        try:
            beam: Sequence[RacingPrefix] = [RacingPrefix(into.open_hypothesis(), 0.0, 0)]
            # Ended prefixes stay in the race, but are not fed.
            while fed := {r.node for r in beam if r.text.finish_reason is None}:
                scores = await tree.score_texts()
                after = self._race(beam, scores, request, drawn.child_stream("beam", stats.passes))
                beam = _placed(after, tree)
                ended = sum(r.text.finish_reason is not None for r in beam)
                stats = replace(
                    stats,
                    passes=stats.passes + 1,
                    scored=stats.scored + len(fed),
                    ended=ended,
                    written=stats.written + sum(r.node >= 0 for r in after),
                )
                best.write_certain_text([r.text for r in beam])
        finally:
            tree.close()
        return best.answers_of([r.text for r in beam], stats)

    def _race(
        self, beam: Sequence[RacingPrefix], scores: DraftScores, request: Request, rng: Rng
    ) -> list[RacingPrefix]:
        """Return the first arrivals, one token further on, still at their parents' nodes.

        Node -1 stands for one that had ended.
        """
        # The beginnings arrive in the order of the level before: the last of the reversed list is
        # next.
        waiting = list(beam)[::-1]
        there = list[_ArrivedPrefix]()
        out = list[RacingPrefix]()
        absent = 1.0
        while len(out) < self.width and (waiting or any(a.mass > 0.0 for a in there)):
            here = rng.child_stream(len(out), len(waiting))
            # S: further children of arrived beginnings. R (`absent`): texts whose beginning has not
            # arrived.
            further = sum(a.mass for a in there)
            if further > 0.0:
                share = further / (further + max(absent, 0.0))
            else:
                share = 0.0
            # The next beginning arrives, with its first child; one that has ended arrives as it is.
            if waiting and not (share > 0.0 and here.child_stream("further").draw_bernoulli(share)):
                racer = waiting.pop()
                absent -= math.exp(racer.logp)
                if racer.text.finish_reason is not None:
                    out.append(replace(racer, node=-1))
                    continue
                logp_V = scores.logprob_row(racer.node)
                parent = _ArrivedPrefix(racer, float64_probabilities(logp_V).clone(), logp_V)
                there.append(parent)
            else:
                # Among arrived beginnings the next child's parent is drawn by the mass that is left
                # below it.
                parent = there[
                    here.child_stream("parent").draw_categorical(
                        torch.tensor([a.mass for a in there], dtype=torch.float64)
                    )
                ]
            # Without replacement: the child leaves the parent's law.
            token = here.draw_categorical(parent.left_V)
            parent.left_V[token] = 0.0
            out.append(_child(parent, token, scores, request.logprobs))
        return out


def _child(
    parent: _ArrivedPrefix, token: int, scores: DraftScores, asked: int | None
) -> RacingPrefix:
    """One token further on, at its parent's node."""
    racer = parent.racer
    text = parent.racer.text.fork()
    text.write_tokens((token,), logprobs_at_nodes(scores, (racer.node,), (token,), asked))
    return RacingPrefix(text, racer.logp + float(parent.logp_V[token]), racer.node)


def _placed(beam: Sequence[RacingPrefix], tree: BranchTree) -> list[RacingPrefix]:
    """Return the beginnings with every living one at its own node."""
    nodes = iter(
        tree.extend_by_one(
            [(r.node, r.text.tokens[-1]) for r in beam if r.text.finish_reason is None]
        )
    )
    return [r if r.text.finish_reason is not None else replace(r, node=next(nodes)) for r in beam]
