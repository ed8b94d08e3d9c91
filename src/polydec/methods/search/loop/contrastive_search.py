"""Contrastive search: a likely token whose state differs from those of the text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.transcript import Transcript, logprobs_at_nodes
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.stats import SearchStats


@dataclass(frozen=True)
class ContrastiveSearch:
    """Picks likely tokens whose states are unlike those before.

    Of the `width` likeliest tokens v it takes the one with the largest (1 - penalty) p(v) - penalty
    max_j cos(h_v, h_j), where h_v is the state that v gets when it is fed and j runs over all
    tokens before it, the prompt's among them; the likelier one on a tie. All candidates are fed in
    one pass, and the law after the one that is taken comes with it. States are those before the
    final norm (published: behind it).

    Attributes:
        target: Model that gives laws and states.
        width: Candidates k of a token, 1 to 64.
        penalty: Weight alpha of the likeness, 0 to 1.

    Exact: approximate. A search; nothing is drawn, so all seeds give one text.
    Reduces to: greedy decoding at width 1, and at penalty 0. Raises RequestError where the target
    gives no states.
    Source: Su et al., "A contrastive framework for neural text generation", 2022.
    """

    target: Target
    width: int = 5
    penalty: float = 0.6
    exactness = Exactness.APPROXIMATE
    unexercised: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("branched", "pruned", "scored", "tied"), "it follows one text, and ranks tokens only"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64:
            raise RequestError(f"candidates is {self.width}: it must lie in 1 to 64")
        if not 0.0 <= self.penalty <= 1.0:
            raise RequestError(f"penalty is {self.penalty}: it must lie in 0 to 1")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write one text.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: More than one answer is asked for, or the target gives no states.
        """
        best = NBestAnswers(into, 1)
        stats = SearchStats()
        session = self.target.open_session(request.prompt)
        tree = BranchTree(
            session,
            Draft.chain_draft(request.prompt[-1]),
            ScoreRequest(base=request.base_detail, hidden=True),
        )
        try:
            # Candidates are compared with the prompt, too: prefill gives the states of all its
            # tokens but the last.
            before = await session.prefill_prompt(
                ScoreRequest(law=RowDetail.NOTHING, hidden=True, prompt=True)
            )
            scores = await tree.score_texts()
            node = 0
            text = into.open_hypothesis()
            total = 0.0
            if len(request.prompt) == 1:
                seen = []
            else:
                seen = [unit_directions(require_node_states(before))]
            # The prompt's last token is the root: its state comes with the first score.
            seen.append(unit_directions(require_node_states(scores))[:1])
            stats = replace(stats, passes=1, scored=1)
            while text.finish_reason is None:
                # Candidates: all are fed as children of the same node, in one pass.
                tokens, logp = likeliest_tokens(scores, node, self.width)
                nodes = tree.extend_by_one([(node, x) for x in tokens])
                after = await tree.score_texts()
                stats = replace(stats, passes=stats.passes + 1, scored=stats.scored + len(tokens))
                state_KH = unit_directions(require_node_states(after)[nodes])
                # The largest cosine of each candidate with any token before it, K.
                near_K = (state_KH @ torch.cat(seen).T).amax(1)
                worth = [
                    (1 - self.penalty) * math.exp(p) - self.penalty * float(c)
                    for p, c in zip(logp, near_K, strict=True)
                ]
                i = worth.index(max(worth))
                taken = (tokens[i],)
                text.write_tokens(
                    taken, logprobs_at_nodes(scores, (node,), taken, request.logprobs)
                )
                total += logp[i]
                seen.append(state_KH[i : i + 1])
                # The pass that judged the candidates has the law after each: no further pass is
                # needed.
                scores = after
                node = nodes[i]
                best.write_certain_text([text])
        finally:
            tree.close()
        text.score = total / len(text.tokens)
        return best.answers_of([text], replace(stats, ended=1, written=len(text.tokens)))


def likeliest_tokens(
    scores: DraftScores, node: int, width: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Return the likeliest tokens that are possible at all, and their log-probabilities.

    Args:
        scores: Laws of a pass.
        node: Node whose law is read.
        width: Number of tokens at most.
    """
    tokens, logp = scores.likeliest_tokens(node, width)
    possible = [i for i, p in enumerate(logp) if p > -math.inf]
    return [tokens[i] for i in possible], [logp[i] for i in possible]


def require_node_states(scores: DraftScores) -> Tensor:
    """Return the state of each node, shape ``[N, H]``.

    Raises:
        RequestError: The target gives none.
    """
    if scores.hidden_NH is None:
        raise RequestError("contrastive search reads the states of a model: this target gives none")
    return scores.hidden_NH


def unit_directions(state_NH: Tensor) -> Tensor:
    """Return states scaled to length 1, float64; the zero vector stays zero."""
    state_NH = state_NH.double()
    return state_NH / state_NH.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)
