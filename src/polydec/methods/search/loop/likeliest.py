"""The most probable text of a language, exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Exactness, TokenVocabulary
from polydec.laws.constraints import pieces
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.laws.constraints.span_of import SpanLanguage
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.stats import SearchStats

MOST = 20_000
"""Texts that are followed at once."""


@dataclass(frozen=True)
class LikeliestPrefix:
    """A beginning of a text.

    Attributes:
        text: The beginning.
        total: Its log-probability.
        state: State of the language after it.
        node: Its branch.
    """

    text: AnswerText
    total: float
    state: Any
    node: int


@dataclass(frozen=True)
class LikeliestTextSearch:
    """Finds the text of `language` that has the highest probability under the target.

    For n answers it gives the n best. Without a language: of the spans of the prompt. A text is
    complete with an end of the text.

    All texts grow together, one token a pass, and what they begin with is computed once. A text
    that is already less probable than as many ended ones as are asked for is dropped: it can only
    lose. So there are at most as many passes as tokens in the longest text, and for spans of N
    tokens at most N + 1 passes and N (N + 1) / 2 positions.

    Attributes:
        target: Model whose probabilities count.
        language: Texts that are allowed. None: spans of the prompt.
        width: Most answers that can be asked for.

    Exact: approximate to the target's law: an argmax over the language, which is found exactly;
    nothing is drawn.
    Reduces to: scoring all texts one by one.
    Source: Castel et al., "How optimal is greedy decoding for extractive question answering?"
    (2021), for spans of a passage.
    """

    target: Target
    language: TokenLanguage[Any] | None = None
    width: int = 16
    exactness = Exactness.APPROXIMATE

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Run one search for all choices.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: No text fits into max_tokens, the law leaves none any probability, or more
                than 20,000 have to be followed at once.
        """
        best = NBestAnswers(into, self.width)
        stats = SearchStats()
        keep = request.choices.stop
        if self.language is None:
            language = self._spans(request, into.ends)
        else:
            language = self.language
        tree = await BranchTree.open_tree(self.target, request.prompt, base=request.base_detail)
        # A prefix, its log-probability, the constraint's state, and the node that it stands on.
        live = [LikeliestPrefix(into.open_hypothesis(), 0.0, language.start_state(), 0)]
        ended = list[LikeliestPrefix]()
        cut = False
        try:
            while live:
                scores = await tree.score_texts()
                # Prefixes may share a node: each is fed once.
                fed = len({b.node for b in live})
                live, ended, short, new = self._step(live, ended, keep, language, scores, request)
                cut = cut or short
                nodes = tree.extend_by_one([(b.node, b.text.tokens[-1]) for b in live])
                live = [replace(b, node=node) for b, node in zip(live, nodes, strict=True)]
                stats = stats.plus_stats(SearchStats(1, scored=fed, written=new))
                if live or ended:
                    # What all texts that are left begin with is final, and can be shown.
                    best.write_certain_text([b.text for b in (*ended, *live)])
        finally:
            tree.close()
        # Nothing ended though nothing was cut: the law gives every legal text probability 0.
        if not ended and not cut:
            raise RequestError(
                "every text of the constraint has probability 0 here: what cuts unlikely tokens off (a rule, or "
                "the head of a steering) leaves none of them, so loosen it"
            )
        if not ended:
            raise RequestError(
                f"max_tokens is {request.max_tokens}: no text of the constraint ends within so many tokens"
            )
        return best.answers_of([b.text for b in ended], replace(stats, ended=len(ended)))

    def _spans(self, request: Request, ends: frozenset[int]) -> SpanLanguage:
        """Return the language of the prompt's spans.

        Raises:
            RequestError: The prompt has no text.
        """
        # With the tokens' bytes known, a span's first token may also be written without its space.
        known = self.vocab.words is not None and any(self.vocab.words.pieces)
        if known:
            spelled = pieces.token_byte_pieces(self.vocab, ends)
        else:
            spelled = None
        spans = SpanLanguage.of_tokens(
            request.prompt, spelled, ends | self.vocab.eos, self.vocab.size
        )
        if not spans.allowed_followers(spans.start_state()):
            raise RequestError("prompt holds no text: there is no span to answer with")
        return spans

    def _step(
        self,
        live: list[LikeliestPrefix],
        ended: list[LikeliestPrefix],
        keep: int,
        language: TokenLanguage[Any],
        scores: DraftScores,
        request: Request,
    ) -> tuple[list[LikeliestPrefix], list[LikeliestPrefix], bool, int]:
        """Return the state of the search after one more token.

        These are the texts that may be among the `keep` best, still at their parents' nodes; the
        best that have ended, the likeliest first; whether max_tokens cut one off; and how many
        tokens were written.
        """
        # Every token that the language allows after every text, with the path's log-probability.
        options = list[tuple[float, int, int]]()
        for i, b in enumerate(live):
            # Only what the language allows is read of the row.
            tokens = language.token_mask(b.state).nonzero()[:, 0]
            logp_K = scores.logprob_row(b.node).cpu()[tokens]
            options += [
                (b.total + float(lp), i, int(x))
                for x, lp in zip(tokens, logp_K, strict=True)
                if float(lp) > NEG_INF
            ]
        options.sort(key=lambda option: -option[0])
        grown = list[LikeliestPrefix]()
        cut = False
        new = 0
        # Best first: once as many texts ended as are asked for, the worst of them is a bound for
        # the rest.
        for total, i, x in options:
            if len(ended) >= keep and total <= ended[keep - 1].total:
                # All options that follow are no likelier.
                break
            b = live[i]
            # A fork, since several tokens may follow one prefix.
            text = live[i].text.fork()
            new += 1
            text.write_tokens((x,), logprobs_at_nodes(scores, (b.node,), (x,), request.logprobs))
            after = LikeliestPrefix(text, total, language.next_state(b.state, x), b.node)
            if text.finish_reason is None:
                grown.append(after)
                # A guard of memory: the constraint was taken for a short list, and is none.
                if len(grown) > MOST:
                    raise RequestError(
                        f"constraint allows more than {MOST} texts that have to be followed at once: take one "
                        "that holds fewer, or another method"
                    )
            elif text.finish_reason == "stop":
                text.score = total
                # Only the best `keep` can still matter.
                ended = sorted((*ended, after), key=lambda e: -e.total)[:keep]
            else:
                cut = True
        # No prefix below the worst of these can come back, as log-probabilities only fall.
        if len(ended) >= keep:
            limit = ended[keep - 1].total
        else:
            limit = NEG_INF
        # Texts that ended in this step may have raised the bound above texts that grew before them.
        return [b for b in grown if b.total > limit], ended, cut, new
