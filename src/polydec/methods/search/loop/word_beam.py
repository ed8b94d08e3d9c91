"""A beam inside of each word: of the words that may follow, the likeliest as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Exactness, TokenCodec, TokenVocabulary
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.stats import SearchStats

WHITE_SPACE = " \t\r\n"
"""What parts words where nothing else is said."""


@dataclass(frozen=True, eq=False)
class SpeltBeginning:
    """A beginning of a word, behind all words before it.

    Attributes:
        text: The text with it.
        word: Log-probability of the beginning alone.
        total: That of the whole text.
        node: Branch that it continues.
    """

    text: AnswerText
    word: float
    total: float
    node: int


@dataclass(frozen=True, eq=False)
class WholeWord:
    """A word that has ended, and the law behind it.

    Attributes:
        begun: The text with the word; `word` counts that the word ends here.
        scores: Scores that have the law behind it.
        row: Its row there.
        cut: Whether it ended at its length, so that anything may follow.
    """

    begun: SpeltBeginning
    scores: DraftScores
    row: int
    cut: bool = False


@dataclass(frozen=True)
class WordBeamSearch:
    """Writes word by word, each time the likeliest word that a beam finds.

    A word is what is written up to a token that begins the next one: one whose text begins with a
    letter of `apart`, or that writes nothing (a mark, an end). A beginning is as likely as its
    tokens; a word is as likely as its tokens and the chance of all tokens that end it, together.
    Beginnings only get less likely, so one that is no likelier than the best whole word is left.

    Once a word is written it stays: no beam goes over its end. Its last law is that of the next
    word's first token, so that a word costs as many passes as its longest beginning has tokens.

    Attributes:
        target: Model that spells.
        beams: Beginnings of a word that are followed, 1 to 64.
        longest: Tokens of a word, at which it is cut, 1 to 256.
        apart: Letters that part words. "": white space.

    Exact: approximate. A search for the likeliest word; nothing is drawn, so all seeds give one
    text.
    Reduces to: the likeliest of all words, scored one by one, where there are as many beams as
    beginnings.
    Source: after Thawani et al., "Learn your tokens: word-pooled tokenization for language
    modeling" (2023), whose words are spelt unit by unit; whether by a beam could not be read. Where
    a word ends, and all numbers, are ours.
    """

    target: Target
    beams: int = 5
    longest: int = 24
    apart: str = ""
    exactness = Exactness.APPROXIMATE
    unexercised: ClassVar[Mapping[str, str]] = {"tied": "it follows one text, and ranks words only"}

    def __post_init__(self) -> None:
        for name, most in (("beams", 64), ("longest", 256)):
            if not 1 <= getattr(self, name) <= most:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 1 to {most}")
        if self.target.vocab.words is None:
            raise RequestError(
                "a beam inside of words needs a tokenizer: without one nobody knows where a word ends"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write one text.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice; nothing is drawn.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: More than one answer is asked for; nothing was fed yet.
        """
        # One text is followed, so one answer can be had.
        best = NBestAnswers(into, 1)
        tree = await BranchTree.open_tree(self.target, request.prompt, base=request.base_detail)
        run = _WordBeamRun(self, request, best, tree, into.ends)
        try:
            text = await run.write_words(into.open_hypothesis())
        finally:
            tree.close()
        return best.answers_of([text], replace(run.spent, ended=1))


class _WordBeamRun:
    """The run of one request."""

    def __init__(
        self,
        plan: WordBeamSearch,
        request: Request,
        best: NBestAnswers,
        tree: BranchTree,
        ends: frozenset[int],
    ) -> None:
        self._plan = plan
        self._request = request
        self._best = best
        self._tree = tree
        starts_V = word_start_tokens(plan.vocab, plan.apart or WHITE_SPACE)
        # What ends the answer ends a word, whatever it writes.
        starts_V[[x for x in ends if x < len(starts_V)]] = True
        self._starts_V = starts_V
        self.spent = SearchStats()

    async def write_words(self, text: AnswerText) -> AnswerText:
        """Write words behind a text until it ends."""
        scores = await self._score(1)
        # The prompt may end inside of a word, so anything may follow it.
        word = WholeWord(SpeltBeginning(text, 0.0, 0.0, 0), scores, 0, cut=True)
        while word.begun.text.finish_reason is None:
            word = await self._next_word(word)
        return word.begun.text

    async def _score(self, fed: int) -> DraftScores:
        """The law behind all branches. fed: tokens that are new."""
        scores = await self._tree.score_texts()
        self.spent = self.spent.plus_stats(SearchStats(1, scored=fed))
        return scores

    async def _next_word(self, before: WholeWord) -> WholeWord:
        """The likeliest word behind a text."""
        # The law behind the word before is that of this one's first token: no pass is needed.
        scores = before.scores
        live = [(replace(before.begun, word=0.0), before.row)]
        # Behind a word stands what begins the next one.
        open_V = torch.ones_like(self._starts_V) if before.cut else self._starts_V
        found: WholeWord | None = None
        for length in range(1, self._plan.longest + 1):
            grown, found = self._grown(live, scores, open_V, found)
            # From the second token on a word may only go on: what begins another one ends it.
            open_V = ~self._starts_V
            waiting = [] if found is None or found.begun.text.finish_reason else [found.begun.node]
            # The best word's branch stays while others may still beat it.
            nodes = self._tree.extend_by_one([(b.node, b.text.tokens[-1]) for b in grown], waiting)
            if waiting and found is not None:
                found = replace(found, begun=replace(found.begun, node=nodes[-1]))
            begun = [replace(b, node=node) for b, node in zip(grown, nodes)]
            self._best.write_certain_text([b.text for b in (*begun, *_words_of(found))])
            if not begun:
                break
            scores = await self._score(len(begun))
            live = [(b, b.node) for b in begun]
            found = self._ended(live, scores, found, cut=length == self._plan.longest)
        assert found is not None, "a law has a token that may follow"
        return found

    def _grown(
        self,
        live: Sequence[tuple[SpeltBeginning, int]],
        scores: DraftScores,
        open_V: Tensor,
        found: WholeWord | None,
    ) -> tuple[list[SpeltBeginning], WholeWord | None]:
        """Let beginnings grow by a token.

        Args:
            live: Beginnings, each with its row.
            scores: Laws behind them.
            open_V: Tokens that may follow.
            found: The best whole word so far.

        Returns:
            The best beginnings, and the best whole word: a token may end the answer.
        """
        plan = self._plan
        options = list[tuple[float, float, int, SpeltBeginning, int]]()
        for begun, row in live:
            logp_V = scores.logprob_row(row).masked_fill(~open_V, NEG_INF)
            # Ends of the answer stand among them, and are no beginnings.
            count = min(plan.beams + len(begun.text.ends), len(logp_V))
            value_K, token_K = logp_V.topk(count)
            pairs = zip(map(float, value_K), map(int, token_K), strict=True)
            options += [(begun.word + p, p, x, begun, row) for p, x in pairs if p > NEG_INF]
        grown = list[SpeltBeginning]()
        for word, logp, x, begun, row in sorted(options, key=lambda option: -option[0]):
            # All that follow are no likelier.
            if len(grown) == plan.beams or (found is not None and word <= found.begun.word):
                break
            # Beginnings are forked, so that several may go on from one.
            text = begun.text.fork()
            text.write_tokens((x,), logprobs_at_nodes(scores, (row,), (x,), self._request.logprobs))
            self.spent = self.spent.plus_stats(SearchStats(written=1))
            after = SpeltBeginning(text, word, begun.total + logp, begun.node)
            text.score = after.total / len(text.tokens)
            if text.finish_reason is None:
                grown.append(after)
            else:
                # It is likelier than what was found: the others of the row are not looked at.
                found = WholeWord(after, scores, row)
        return grown, found

    def _ended(
        self,
        live: Sequence[tuple[SpeltBeginning, int]],
        scores: DraftScores,
        found: WholeWord | None,
        cut: bool,
    ) -> WholeWord | None:
        """The best word, where each beginning may end now.

        Args:
            live: Beginnings, each with its row.
            scores: Laws behind them.
            found: The best whole word so far.
            cut: Whether they end here, whatever follows.

        Returns:
            The best; None where no beginning can end.
        """
        for begun, row in live:
            # Whichever token begins the next word, this one has ended.
            over = 0.0
            if not cut:
                over = float(scores.logprob_row(row)[self._starts_V].logsumexp(0))
            word = begun.word + over
            if word > (NEG_INF if found is None else found.begun.word):
                found = WholeWord(replace(begun, word=word), scores, row, cut)
        return found


def _words_of(found: WholeWord | None) -> list[SpeltBeginning]:
    if found is None:
        return []
    return [found.begun]


def word_start_tokens(vocab: TokenVocabulary, apart: str) -> Tensor:
    """Which tokens begin a new word, or end the text.

    Args:
        vocab: Vocabulary with a tokenizer.
        apart: Letters that part words, at least one.

    Returns:
        True for tokens whose text begins with one of the letters, and for those that write nothing,
        shape ``[V]``; a copy of its own.
    """
    assert vocab.words is not None
    return _known_starts(vocab.words, vocab.size, apart).clone()


@lru_cache(maxsize=16)
def _known_starts(words: TokenCodec, size: int, apart: str) -> Tensor:
    """A vocabulary has up to 200,000 pieces, which are looked at once."""
    letters = tuple(letter.encode() for letter in apart)
    pieces = [*words.pieces[:size]]
    # Rows behind the tokenizer's last id write nothing.
    pieces += [None] * (size - len(pieces))
    return torch.tensor([not piece or piece.startswith(letters) for piece in pieces])
