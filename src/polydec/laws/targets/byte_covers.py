"""Ways in which tokens can spell some bytes, each with the tokens that may come behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores
from polydec.laws.targets.spelling import VocabularySpelling

TAIL = 12
"""Last tokens of a sequence of which it is asked whether the tokenizer would write them so."""

BYTES = 256
"""Symbols below this are bytes; those from here on stand for tokens that no bytes spell."""


class TokenSequenceTip:
    """A sequence of tokens, named by its last one.

    What the law says behind it is known once a pass has answered, and is the same whoever asked:
    sessions share tips.

    Args:
        token: Id of the last token.
        odd: At how many places the tokenizer would not have written two neighbours so. Default 0.
        size: How many tokens it has behind what the session was opened with. Default 0.
        tail: Its last tokens, this one left out. Default none.
    """

    __slots__ = ("_node", "_row_V", "_scores", "allowed_V", "logp", "odd", "size", "tail", "token")

    def __init__(self, token: int, odd: int = 0, size: int = 0, tail: tuple[int, ...] = ()) -> None:
        self.token = token
        self.tail = (*tail, token)[-TAIL:]
        self.allowed_V: Tensor | None = None
        self.odd = odd
        self.size = size
        self.logp = 0.0
        self._scores: DraftScores | None = None
        self._row_V: Tensor | None = None
        self._node = -1

    def is_beginning_of(self, longer: TokenSequenceTip) -> bool:
        """Return whether a longer sequence begins with this one, as far as its last tokens show."""
        more = longer.size - self.size
        if not 0 < more < len(longer.tail):
            return False
        both = longer.tail[: len(longer.tail) - more]
        return self.tail[-len(both) :] == both[-len(self.tail) :]

    @property
    def known(self) -> bool:
        return self._scores is not None or self._row_V is not None

    def note_scores(self, scores: DraftScores, node: int, above: TokenSequenceTip | None) -> None:
        """Note what a pass says behind the sequence.

        Args:
            scores: Scores of the pass.
            node: The node of the last token.
            above: The sequence without its last token, which has learned already; None: it is what
                the session was opened with.
        """
        self._scores = scores
        self._node = node
        if above is not None:
            # log p(sequence) = log p(all but the last token) + log p(last token | the others).
            self.logp = above.logp + float(above.row_V[self.token])

    @property
    def row_V(self) -> Tensor:
        """Log-probabilities of the token behind it."""
        if self._row_V is None:
            assert self._scores is not None, "a tip is read before a pass has answered"
            self._row_V = self._scores.logprob_row(self._node)
            # The scores hold tensors of the complete pass; the row is all that is needed of them.
            self._scores = None
        return self._row_V


@dataclass(frozen=True, eq=False)
class ByteCover:
    """Bytes spelled by the tokens of `tip` and, where `depth` is above 0, by the first bytes of one
    more token that is not written yet.

    Attributes:
        tip: The complete tokens.
        lo: First place, in the spelling's order, of the tokens that may come next.
        hi: Place behind the last of them.
        depth: How many bytes of that next token are fixed. Default 0.
    """

    tip: TokenSequenceTip
    lo: int
    hi: int
    depth: int = 0


Covers = tuple[ByteCover, ...]


@dataclass(frozen=True, eq=False)
class ByteAlphabet:
    """The symbols of a text: bytes, and marks that no bytes spell.

    Attributes:
        spelling: The tokens of the model in the order of their bytes.
        marks: For each mark the tokens that mean it; none where the model has no such token.
        width: How many sequences of tokens are followed that end with the same byte. 0: those alone
            that the tokenizer itself writes (canonical ones).
    """

    spelling: VocabularySpelling
    marks: tuple[tuple[int, ...], ...]
    width: int

    @property
    def size(self) -> int:
        return BYTES + len(self.marks)

    @cached_property
    def _marked(self) -> tuple[Tensor, Tensor]:
        """The tokens of all marks, and the symbol of each."""
        pairs = [(x, BYTES + k) for k, tokens in enumerate(self.marks) for x in tokens]
        return torch.tensor([x for x, _ in pairs], dtype=torch.long), torch.tensor(
            [k for _, k in pairs], dtype=torch.long
        )

    def tip_tokens(self, tip: TokenSequenceTip) -> ByteCover:
        """Nothing but the tokens of a tip."""
        return ByteCover(tip, 0, len(self.spelling))

    def follow_symbol(
        self, covers: Covers, symbol: int
    ) -> tuple[Covers, list[tuple[TokenSequenceTip, TokenSequenceTip]]]:
        """Follow one more symbol.

        Of the sequences that end with the symbol, `width` are followed: those that are odd in the
        fewest places, then those of the fewest tokens. That is decided by the bytes alone, so
        nobody has to wait for a pass to know it.

        Args:
            covers: Covers of the text so far.
            symbol: The symbol that follows: a byte, or a mark from 256 on.

        Returns:
            The covers behind the symbol, and the tips among them that are new, each with the tip
            that it extends.
        """
        spelling = self.spelling
        going = list[ByteCover]()
        new = list[tuple[TokenSequenceTip, TokenSequenceTip]]()

        def add_ending(token: int, above: TokenSequenceTip, odd: bool) -> None:
            """Collect a sequence that ends with the symbol.

            Args:
                token: Its last token.
                above: The sequence without that token.
                odd: Whether the tokenizer would not write the two last tokens so.
            """
            if self._follows(above, token):
                tip = TokenSequenceTip(token, above.odd + odd, above.size + 1, above.tail)
                new.append((tip, above))

        if symbol >= BYTES:
            # A mark comes between tokens: a cover with half a token cannot go on with it.
            for c in covers:
                for token in self.marks[symbol - BYTES] if not c.depth else ():
                    add_ending(token, c.tip, False)
        else:
            for c in covers:
                entry = spelling.run(c.lo, c.hi, c.depth).ends.get(symbol)
                if entry is None:
                    continue
                # Of the tokens that go on with the byte, the first end with it and the others go
                # on.
                lo, ended, hi = entry
                for token in spelling.id[lo:ended]:
                    add_ending(token, c.tip, not spelling.usual(c.tip.token, token))
                if hi > ended:
                    going.append(ByteCover(c.tip, ended, hi, c.depth + 1))
        # Spellings of the tokenizer come first, then those of fewer tokens; ids break ties.
        new.sort(key=lambda pair: (pair[0].odd, pair[0].size, pair[0].token))
        # Canonical sequences are all followed: one, or some that end inside of a character.
        if self.width:
            del new[self.width :]
        return (*going, *(self.tip_tokens(tip) for tip, _ in new)), new

    def _follows(self, tip: TokenSequenceTip, token: int) -> bool:
        """Whether a sequence may go on with a token: with any, or canonically."""
        return self.width > 0 or self.spelling.is_canonical((*tip.tail, token))

    def _allowed_row(self, tip: TokenSequenceTip) -> Tensor:
        """Log-probabilities of the token behind a tip, -inf at those it may not go on with.

        They are not normalised anew: what is left out is missing from the probability of the text,
        as in the sum over canonical sequences.
        """
        if self.width:
            return tip.row_V
        # The tokenizer is asked about every token, once for each tip.
        if tip.allowed_V is None:
            allowed_V = torch.ones(len(tip.row_V), dtype=torch.bool)
            refused = [x for x in self.spelling.id if not self._follows(tip, x)]
            allowed_V[refused] = False
            tip.allowed_V = allowed_V
        return tip.row_V.masked_fill(~tip.allowed_V, NEG_INF)

    def own_spelling(self, covers: Covers) -> Covers:
        """Return the covers that the tokenizer's own spelling of a text makes, as GFD sums them.

        That spelling itself, and of those with an open token the ones whose complete tokens it
        begins with. All covers where no complete tokens spell the text.

        Args:
            covers: Covers of the text.
        """
        # Of complete spellings the tokenizer's own stands first.
        own = next((c for c in covers if not c.depth), None)
        if own is None:
            return covers
        return tuple(c for c in covers if c is own or (c.depth and c.tip.is_beginning_of(own.tip)))

    def prefix_logprob(self, covers: Covers) -> tuple[float, int]:
        """The log-probability that a text begins with the bytes of these covers, behind what the
        session was opened with, and how many tokens their likeliest spelling has there, one that
        has not ended counted. -inf and 0: nothing spells them.
        """
        logp = list[float]()
        for c in covers:
            going = 0.0
            # The open token adds the probability of all tokens that begin so.
            if c.depth:
                row_V = self._allowed_row(c.tip)
                chance_R = row_V[self.spelling.order[c.lo : c.hi]].double()
                going = float(chance_R.logsumexp(0))
            logp.append(c.tip.logp + going)
        top = max(logp, default=NEG_INF)
        if top == NEG_INF:
            return NEG_INF, 0
        best = covers[logp.index(top)]
        # log-sum-exp over the covers: the spellings are disjoint events.
        total = top + math.log(sum(math.exp(x - top) for x in logp))
        return total, best.tip.size + (best.depth > 0)

    def symbol_weights(self, covers: Covers) -> Tensor:
        """Log-weights of the next symbol, float64: the log-probabilities of the text with that
        symbol at its end, behind what the session was opened with. Where nothing spells the text
        every symbol has the same.
        """
        mass = torch.zeros(self.size, dtype=torch.float64)
        # Weights are taken relative to the likeliest cover, so that exp does not underflow.
        top = max((c.tip.logp for c in covers), default=NEG_INF)
        for c in covers if top > NEG_INF else ():
            share = math.exp(c.tip.logp - top)
            if not share:
                continue
            row_V = self._allowed_row(c.tip)
            # Every token that may come next gives its probability to its next byte.
            chance_R = row_V[self.spelling.order[c.lo : c.hi]].double().exp()
            run = self.spelling.run(c.lo, c.hi, c.depth)
            mass.index_add_(0, run.next_R, share * chance_R)
            # Marks follow complete tokens only.
            if not c.depth:
                token, symbol = self._marked
                mass.index_add_(0, symbol, share * row_V[token].double().exp())
        # Nothing spells the text: a uniform law stands for an undefined one.
        if not float(mass.sum()) > 0.0:
            return torch.zeros_like(mass)
        return mass.log() + top
