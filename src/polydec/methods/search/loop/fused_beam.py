"""Beam search of a recogniser, fused with a language model over bytes (GFD)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.stats import SearchStats

NEVER = -1e5
"""What is said of a text that has no bytes yet, and of one that the language model cannot spell."""


class ByteSession(Session, Protocol):
    """A session over bytes that tells how likely a text begins so."""

    def spelled_logprob(self, node: int) -> tuple[float, int]:
        """Return what is known of the text up to a node of the draft that was scored last.

        Returns:
            Its log-probability as a beginning of texts, and the tokens of its likeliest spelling.
        """
        ...


class ByteLaw(Protocol):
    """A language model over bytes."""

    def open_session(self, prompt: Sequence[int]) -> ByteSession: ...


@dataclass(frozen=True)
class FusionReader:
    """The language model that reads along.

    Attributes:
        law: Language model over bytes.
        empty: Prompt that stands for no text.
        lead: Bytes that the recogniser's tokenizer writes before every text, which are not read.
        before: Text that is read first.
        most: Bytes that it can read; after these what it said last stays.
    """

    law: ByteLaw
    empty: tuple[int, ...]
    lead: bytes = b""
    before: str = ""
    most: int = 1 << 20


@dataclass(frozen=True)
class FusedHypothesis:
    """A text of the beam.

    Attributes:
        text: The text so far.
        total: Its log-probability to the recogniser.
        node: Its branch there.
        read: Its branch in the language model's tree.
        size: Its bytes.
        verdict: What the language model says of them, in nats.
    """

    text: AnswerText
    total: float = 0.0
    node: int = 0
    read: int = 0
    size: int = 0
    verdict: float = NEVER


@dataclass(frozen=True)
class FusedCandidate:
    """A hypothesis and one more token.

    Attributes:
        of: The hypothesis.
        token: The token.
        total: Log-probability to the recogniser, the token counted.
        piece: Bytes of the token.
        score: What candidates are compared by.
    """

    of: FusedHypothesis
    token: int
    total: float
    piece: bytes
    score: float = 0.0


@dataclass(frozen=True)
class FusedBeamSearch:
    """Beam search over the recogniser's tokens by (1 - share) R + share L.

    R is the log-probability of a text to the recogniser; L that of its bytes to the language model,
    as the beginning of any text: all tokens that continue them are summed, so the two may have
    different tokenizers.

    Where the end of the text is a beam's likeliest next token, nothing else follows it; else it may
    not end. Ended texts stay in the beam and compete as they are; the search ends when all of it
    has ended.

    Attributes:
        target: The recogniser.
        reader: The language model.
        width: Beams, 1 to 64.
        share: Weight of the language model, 0 to 1.
        lagging: L is that of the text without its newest token, so one pass of one row a beam tells
            it; else the language model reads all width * width candidates, in one pass as well.
        mean: R and L are divided by the tokens of each model, as published; else they are sums.
        apart: The search ends, with the texts that have ended, where one that goes on has so many
            tokens more than one of them, and one beyond. 0: it goes on.

    Exact: approximate. A search for the text of the best score; nothing is drawn. L is the exact
    probability of these bytes where the reader follows all spellings, and below it where it follows
    some.
    Reduces to: greedy decoding at width 1 while the verdict lags, beam search with the rule of ends
    above at share 0.
    Source: Hsu et al., "Let's fuse step by step: a generative fusion decoding algorithm with LLMs
    for multi-modal text recognition" (2024). Their reader follows the tokenizer's own spelling
    only, and they stop when lengths differ by more than 20 tokens, with the best text whether or not
    it has ended.
    """

    target: Target
    reader: FusionReader
    width: int = 5
    share: float = 0.2
    lagging: bool = True
    mean: bool = True
    apart: int = 0
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 64")
        if not 0.0 <= self.share <= 1.0:
            raise RequestError(f"share is {self.share}: it must lie in 0 to 1")
        words = self.target.vocab.words
        if words is None or not any(words.pieces):
            raise RequestError("the model has no tokens of which the bytes are known to be read")

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
            RequestError: More answers are asked for than there are beams; nothing was fed yet.
        """
        best = NBestAnswers(into, self.width)
        tree = await BranchTree.open_tree(self.target, request.prompt, base=request.base_detail)
        opened: list[BranchTree | FusionTree] = [tree]
        try:
            # Without a share the language model is not asked at all, and not opened.
            reading = None
            if self.share:
                reading = await FusionTree.open_tree(
                    self.reader, self._read_first(request), self.mean
                )
                opened.append(reading)
            search = _FusedBeamRun(self, request, tree, reading)
            beam = [FusedHypothesis(into.open_hypothesis())]
            stats = SearchStats()
            while live := [h for h in beam if h.text.finish_reason is None]:
                # Ended texts stay in the beam and compete as they are.
                over = [h for h in beam if h.text.finish_reason is not None]
                beam = await search.extend_beam(live, over)
                fed = len({h.node for h in live})
                stats = stats.plus_stats(SearchStats(1, scored=fed, written=len(beam) - len(over)))
                best.write_certain_text([h.text for h in beam])
                if self._is_over(beam):
                    beam = [h for h in beam if h.text.finish_reason is not None]
                    best.write_certain_text([h.text for h in beam])
        finally:
            for each in opened:
                each.close()
        return best.answers_of([h.text for h in beam], replace(stats, ended=len(beam)))

    def _is_over(self, beam: Sequence[FusedHypothesis]) -> bool:
        """Whether texts that go on are too much longer than one that has ended."""
        ended = [len(h.text.tokens) for h in beam if h.text.finish_reason is not None]
        going = [len(h.text.tokens) for h in beam if h.text.finish_reason is None]
        if not (self.apart and ended and going):
            return False
        return max(going) - min(ended) > self.apart

    def _read_first(self, request: Request) -> bytes:
        """What the language model reads before the answer."""
        words = self.target.vocab.words
        if words is None:
            said = ""
        else:
            said = words.decode(request.prompt)
        return (self.reader.before + said).encode()

    def fused_score(self, total: float, length: int, verdict: float) -> float:
        """Return the fused score of a text.

        Args:
            total: Its log-probability to the recogniser.
            length: Its tokens there, at least 1.
            verdict: What the language model says of it.
        """
        # Per token of the recogniser; the verdict is per token of the language model already.
        if self.mean:
            heard = total / length
        else:
            heard = total
        return (1.0 - self.share) * heard + self.share * verdict


@dataclass(frozen=True)
class _FusedBeamRun:
    """What all steps of one search share."""

    plan: FusedBeamSearch
    request: Request
    tree: BranchTree
    reading: FusionTree | None

    async def extend_beam(
        self, live: list[FusedHypothesis], over: list[FusedHypothesis]
    ) -> list[FusedHypothesis]:
        """Return the beam after one more token of each live text, the best first.

        Args:
            live: Texts that go on.
            over: Texts that have ended, which compete as they are.
        """
        plan = self.plan
        reading = self.reading
        # Lagging: both models read the beams as they are, in one pass.
        if reading is not None and plan.lagging:
            scores, _ = await gather_coroutines(self.tree.score_texts(), reading.score_texts())
            live = [replace(h, verdict=reading.branch_verdict(h)) for h in live]
        else:
            scores = await self.tree.score_texts()
        options = [option for h in live for option in self._options(h, scores)]
        # Otherwise the language model reads every candidate's bytes before they are compared.
        if reading is not None and not plan.lagging:
            read = reading.extend_texts([(o.of, o.piece) for o in options])
            await reading.score_texts()
            told = [replace(h, verdict=reading.branch_verdict(h)) for h in read]
            options = [replace(o, of=h) for o, h in zip(options, told, strict=True)]
        options = [replace(o, score=self._score(o)) for o in options]
        # The new beam: ended texts and candidates, ranked together.
        ranked: list[tuple[float, FusedCandidate | FusedHypothesis]] = [
            (h.text.score or 0.0, h) for h in over
        ]
        ranked += [(o.score, o) for o in options]
        ranked.sort(key=lambda pair: -pair[0])
        kept = [each for _, each in ranked[: plan.width]]
        grown = {id(o): self._written(o, scores) for o in kept if isinstance(o, FusedCandidate)}
        # Only texts that go on get a branch in the two trees.
        going = [o for o in kept if isinstance(o, FusedCandidate) and _lives(grown[id(o)])]
        nodes = self.tree.extend_by_one([(o.of.node, o.token) for o in going])
        placed = [replace(grown[id(o)], node=n) for o, n in zip(going, nodes)]
        if reading is not None and plan.lagging and going:
            placed = reading.extend_texts([(h, o.piece) for h, o in zip(placed, going)])
        grown |= {id(o): h for o, h in zip(going, placed)}
        return [grown[id(x)] if isinstance(x, FusedCandidate) else x for x in kept]

    def _options(self, h: FusedHypothesis, scores: DraftScores) -> list[FusedCandidate]:
        """Return the `width` likeliest tokens after a text.

        An end that is the likeliest stands alone; any other end is left out.
        """
        tokens, logp = scores.likeliest_tokens(h.node, self.plan.width)
        ends = h.text.ends
        # The text ends where the recogniser finds the end likeliest, and nowhere else.
        if tokens[0] in ends:
            tokens = tokens[:1]
            logp = logp[:1]
        else:
            tokens, logp = zip(*((x, p) for x, p in zip(tokens, logp) if x not in ends))
        return [
            FusedCandidate(h, x, h.total + p, self._piece(h, x))
            for x, p in zip(tokens, logp)
            if p > -math.inf
        ]

    def _piece(self, h: FusedHypothesis, token: int) -> bytes:
        """The bytes that a token adds."""
        words = self.plan.target.vocab.words
        if words is None:
            piece = None
        else:
            piece = words.pieces[token]
        if words is None or piece is None or self.reading is None:
            return b""
        # Only the first token with bytes may carry the leading space, which is not read.
        begun = any(words.pieces[x] for x in h.text.tokens)
        if begun:
            return piece
        return self.reading.first_reading(piece)

    def _score(self, o: FusedCandidate) -> float:
        return self.plan.fused_score(o.total, len(o.of.text.tokens) + 1, o.of.verdict)

    def _written(self, o: FusedCandidate, scores: DraftScores) -> FusedHypothesis:
        """An option as a hypothesis, at the branches of the one that it goes on from."""
        text = o.of.text.fork()
        token = (o.token,)
        text.write_tokens(
            token, logprobs_at_nodes(scores, (o.of.node,), token, self.request.logprobs)
        )
        text.score = o.score
        return replace(o.of, text=text, total=o.total)


def _lives(h: FusedHypothesis) -> bool:
    return h.text.finish_reason is None


class FusionTree:
    """The language model's tree of what the hypotheses say."""

    __slots__ = ("_begun", "_lead", "_mean", "_most", "_session", "_tree")

    def __init__(self, session: ByteSession, root: int, lead: bytes, most: int, mean: bool) -> None:
        """Begin with a session.

        Args:
            session: Session of the language model; closed with the tree.
            root: Last byte that was read before the answer.
            lead: Bytes that an answer's first token may begin with and that are not read.
            most: Bytes of an answer that can be read.
            mean: Whether verdicts are divided by tokens, as of `FusedBeamSearch`.
        """
        self._session = session
        self._lead = lead
        self._most = most
        self._mean = mean
        self._tree = BranchTree(
            session, Draft.chain_draft(root), ScoreRequest(law=RowDetail.NOTHING)
        )
        self._begun = (0.0, 0)

    @staticmethod
    async def open_tree(reader: FusionReader, first: bytes, mean: bool) -> FusionTree:
        """Read the text before the answer, and return the tree that begins with it.

        Args:
            reader: The language model.
            first: Bytes of that text; of a long one only its end is read.
            mean: Whether verdicts are divided by tokens, as of `FusedBeamSearch`.
        """
        # At most half of what the model can read goes to the text before the answer.
        first = first[max(0, len(first) - reader.most // 2) :]
        prompt = tuple(first) or reader.empty
        session = reader.law.open_session(prompt)
        lead = b"" if first else reader.lead
        reading = FusionTree(session, prompt[-1], lead, reader.most - len(first), mean)
        try:
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            await reading.score_texts()
        except BaseException:
            session.close()
            raise
        reading._begun = session.spelled_logprob(0)
        return reading

    def first_reading(self, piece: bytes) -> bytes:
        """Return what is read of a text's first token that has bytes."""
        return piece.removeprefix(self._lead)

    async def score_texts(self) -> None:
        """Run a pass over the bytes that are new."""
        await self._tree.score_texts()

    def branch_verdict(self, h: FusedHypothesis) -> float:
        """Return what the language model says of a hypothesis at its branch."""
        # A text without bytes, or a first text that cannot be spelled, has no verdict to compare.
        if not h.size or self._begun[0] == -math.inf:
            return NEVER
        total, tokens = self._session.spelled_logprob(h.read)
        if total == -math.inf:
            return NEVER
        # The text that was read first is divided out: log p(first + answer) - log p(first).
        nats = total - self._begun[0]
        if self._mean:
            return nats / max(1, tokens - self._begun[1])
        return nats

    def extend_texts(self, texts: Sequence[tuple[FusedHypothesis, bytes]]) -> list[FusedHypothesis]:
        """Continue these hypotheses, and no others, with as many bytes as there is room for.

        Each is given with the bytes that it goes on with; at least one.
        """
        # Beyond the context nothing more is read: the last verdict stays.
        pieces = [p[: self._most - h.size] for h, p in texts]
        nodes = self._tree.extend_texts([(h.read, p) for (h, _), p in zip(texts, pieces)])
        return [
            replace(h, read=node, size=h.size + len(p))
            for (h, _), p, node in zip(texts, pieces, nodes)
        ]

    def close(self) -> None:
        """Give the session back."""
        self._tree.close()
