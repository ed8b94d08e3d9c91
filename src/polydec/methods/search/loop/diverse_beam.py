"""Diverse beam search: groups of beams that avoid each other's tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Exactness, TokenVocabulary
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.protocols import BeamCondition
from polydec.methods.search.loop.ranking import LIKELIEST, LengthRanking
from polydec.methods.search.loop.stats import SearchStats


@dataclass(frozen=True)
class BeamHypothesis:
    """A text that may win.

    Attributes:
        text: The text so far.
        total: Sum of its log-probabilities, less the charges.
        node: Branch that it continues.
        chance: Log-probability that it meets the condition; 0 where there is none.
    """

    text: AnswerText
    total: float
    node: int
    chance: float = 0.0


@dataclass(frozen=True)
class BeamGroup:
    """The beams of a group.

    Attributes:
        live: Beams that go on, the likeliest first.
        ended: Texts that ended, the best by score first.
    """

    live: tuple[BeamHypothesis, ...]
    ended: tuple[BeamHypothesis, ...] = ()


@dataclass(frozen=True)
class DiverseBeamSearch:
    """Beam search in groups; each is charged for the tokens that earlier groups chose.

    At every step the groups choose one after another. Each keeps the `width / groups` best
    continuations of its own beams, where a token that earlier groups have chosen c times at this
    step scores `strength` * c less. A continuation that ends is kept as a result if it is among the
    best `width / groups`. The answers are the best texts of all groups.

    With a condition a text ranks by its own log-probability and that of the condition behind it. The
    latter is the newest one, not a sum over steps: it is the chance of one event, foretold ever
    better. Texts that end without meeting it are no results.

    Attributes:
        target: Model whose likely texts are searched.
        width: Beams in all, 1 to 64.
        groups: Number of groups, at least 1; divides `width`.
        strength: Charge lambda for a token that another group chose, 0 to 100, in nats.
        ranking: How texts of different lengths compare, and when a group is done.
        condition: What is wanted of a finished text. None: nothing.
        candidates: Likeliest tokens of a beam that the condition is asked of, at least; 1 to 4096.

    Exact: approximate. A search for the likeliest text; nothing is drawn, so all seeds give one
    text.
    Reduces to: beam search with one group, or with strength 0 (of width / groups beams); greedy
    decoding at width 1; the same without a condition where it always holds.
    Source: Vijayakumar et al., "Diverse beam search" (2016), with Hamming diversity. Ended texts
    count where they end. Conditions: Yoshida, "Making the most of your model: methods for
    finetuning and applying pretrained transformers" (2024).
    """

    target: Target
    width: int = 10
    groups: int = 5
    strength: float = 0.5
    ranking: LengthRanking = LIKELIEST
    condition: BeamCondition | None = None
    candidates: int = 50
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 1 <= self.candidates <= 4096:
            raise RequestError(f"candidates is {self.candidates}: it must lie in 1 to 4096")
        if self.groups < 1 or self.width % self.groups:
            raise RequestError(
                f"groups is {self.groups}: it must be at least 1 and divide width, which is {self.width}"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def beams(self) -> int:
        """Beams of each group."""
        return self.width // self.groups

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Run one search for all choices.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: More answers are asked for than there are beams; nothing was fed yet.
        """
        best = NBestAnswers(into, self.width)
        ended, stats = await self.search_texts(request, into, best.write_certain_text)
        return best.answers_of([b.text for b in ended], replace(stats, ended=len(ended)))

    async def search_texts(
        self,
        request: Request,
        into: Transcript,
        follow: Callable[[Sequence[AnswerText]], None] = lambda texts: None,
    ) -> tuple[list[BeamHypothesis], SearchStats]:
        """Search, and write no answer.

        Args:
            request: What is asked.
            into: Record of the request, which gets the texts that are tried.
            follow: Called after every pass with all texts that may still win.

        Returns:
            Texts that ended, the best first, at least one, and what the search took.

        Raises:
            RequestError: No text that ended meets the condition.
        """
        stats = SearchStats()
        tree = await BranchTree.open_tree(
            self.target,
            request.prompt,
            base=request.base_detail,
            hidden=self.condition is not None,
        )
        try:
            groups: Sequence[BeamGroup] = [
                BeamGroup((BeamHypothesis(into.open_hypothesis(), 0.0, 0),))
            ] * self.groups
            while fed := {b.node for g in groups for b in g.live}:
                scores = await tree.score_texts()
                # Groups choose in turn from the same laws; `chosen` counts the tokens of the
                # earlier ones.
                chosen = Counter[int]()
                grown = list[BeamGroup]()
                for g in groups:
                    after, tokens = self._step(g, scores, chosen, request)
                    grown.append(after)
                    chosen.update(tokens)
                stats = stats.plus_stats(SearchStats(1, scored=len(fed), written=chosen.total()))
                groups = _placed(grown, tree)
                follow([b.text for g in groups for b in (*g.live, *g.ended)])
        finally:
            tree.close()
        ended = sorted((b for g in groups for b in g.ended), key=self._score, reverse=True)
        if not ended:
            raise RequestError(
                f"condition: none of the texts that {self.width} beams found meets it: take a larger width, or more max_tokens"
            )
        return ended, stats

    def _step(
        self, group: BeamGroup, scores: DraftScores, chosen: Mapping[int, int], request: Request
    ) -> tuple[BeamGroup, list[int]]:
        """Return the group after its choice, and the tokens that it chose.

        Live beams still stand at their parents' nodes.
        """
        live = list[BeamHypothesis]()
        ended = list(group.ended)
        tokens = list[int]()
        # From the best continuation down, until as many go on as there are beams.
        for rank, (total, chance, beam, x) in enumerate(self._continuations(group, scores, chosen)):
            if len(live) == self.beams:
                break
            after = BeamHypothesis(beam.text.fork(), total, beam.node, chance)
            after.text.write_tokens(
                (x,), logprobs_at_nodes(scores, (beam.node,), (x,), request.logprobs)
            )
            over = after.text.finish_reason is not None
            if over and rank >= self.beams:
                # An end counts only among the best continuations, as many as there are beams.
                continue
            # What is certain takes the place of what was foretold.
            if over and self.condition is not None:
                words = self.vocab.words
                said = "" if words is None else words.decode(after.text.tokens)
                if not self.condition.is_met(said, len(after.text.tokens)):
                    continue
                after = replace(after, chance=0.0)
            after.text.score = self._score(after)
            (ended if over else live).append(after)
            tokens.append(x)
        best = sorted(ended, key=self._score, reverse=True)[: self.beams]
        done = self._done(live, best, request.max_tokens)
        return BeamGroup(() if done else tuple(live), tuple(best)), tokens

    def _continuations(
        self, group: BeamGroup, scores: DraftScores, chosen: Mapping[int, int]
    ) -> list[tuple[float, float, BeamHypothesis, int]]:
        """Return (total, chance of the condition, beam, token) of the continuations, the best first.

        There are enough of each beam that as many go on as there are beams.
        """
        out = list[tuple[float, float, BeamHypothesis, int]]()
        for beam in group.live:
            logp_V = scores.logprob_row(beam.node)
            if chosen and self.strength:
                logp_V = logp_V.clone()
                for x, count in chosen.items():
                    logp_V[x] -= self.strength * count
            # At most `ends` tokens of a beam end its text, so with this many at least `beams` of
            # them go on.
            enough = (1 + max(1, len(beam.text.ends))) * self.beams
            if self.condition is not None:
                enough = max(enough, self.candidates)
            value_K, token_K = logp_V.topk(min(enough, len(logp_V)))
            tokens = [int(x) for x in token_K]
            chances: Sequence[float] = [0.0] * len(tokens)
            if self.condition is not None:
                states = scores.hidden_NH
                state = None if states is None else states[beam.node]
                chances = self.condition.log_chances(state, tokens)
            options = zip(map(float, value_K), chances, tokens, strict=True)
            out += [(beam.total + v, chance, beam, x) for v, chance, x in options if v > -math.inf]
        return sorted(out, key=lambda option: -(option[0] + option[1]))

    def _score(self, beam: BeamHypothesis) -> float:
        return self.ranking.ranked_score(beam.total + beam.chance, len(beam.text.tokens))

    def _done(
        self, live: Sequence[BeamHypothesis], ended: Sequence[BeamHypothesis], limit: int
    ) -> bool:
        """Whether the group's beams can be left where they are."""
        # A group with too few results goes on while it can.
        if not live or len(ended) < self.beams:
            return not live
        # A condition may come to hold for certain, so its chance bounds nothing.
        most = max(b.total for b in live)
        return self.ranking.is_settled(
            self._score(ended[-1]), most, len(live[0].text.tokens), limit
        )


def _placed(groups: Sequence[BeamGroup], tree: BranchTree) -> list[BeamGroup]:
    """The groups, every live beam at its own node."""
    nodes = iter(tree.extend_by_one([(b.node, b.text.tokens[-1]) for g in groups for b in g.live]))
    return [replace(g, live=tuple(replace(b, node=next(nodes)) for b in g.live)) for g in groups]
