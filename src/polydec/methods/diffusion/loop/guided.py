"""An autoregressive model decides how much of a pass's draft is written (guided diffusion)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from polydec.core.decoder import Streams
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Draft, Exactness, ScoreRequest, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import BoardReader, DenoisingDecoder
from polydec.methods.diffusion.loop.filling import CanvasPass, FillingState


@dataclass(frozen=True)
class GuidedDenoising:
    """Drafts a token for every gap of the block, and writes the prefix that a guide accepts.

    The guide is an autoregressive model that reads the drafted tokens from the left in one pass.
    The first of them that it finds likely are written, at least one: no token is ever the guide's
    own.

    Attributes:
        base: Decoder that makes the canvas and its passes.
        guide: Autoregressive model of the same vocabulary.
        chunk: Tokens that the guide reads at most, at least 1.
        top: A token is likely if it is among the guide's `top` likeliest (0: wherever it stands);
        least: and has at least this probability, 0 to 1;
        relative: and at least this share of the likeliest token's probability, 0 to 1;
        chance: and is accepted by a draw, with the probability that it has.

    Exact: no: drafts of one pass do not see each other.
    Reduces to: left-to-right, one a pass, for chunk = 1; one pass a block for top = 0, nothing else
    and a large chunk.
    Source: Hu et al., FlashDLM (2025): deterministic (top = 1), threshold (least), top-k, top-k
    relative (top and relative) and stochastic (chance alone) acceptance.
    """

    base: DenoisingDecoder
    guide: Target
    chunk: int = 32
    top: int = 1
    least: float = 0.0
    relative: float = 0.0
    chance: bool = False

    @property
    def exactness(self) -> Exactness:
        return Exactness.APPROXIMATE

    @property
    def vocab(self) -> TokenVocabulary:
        return self.base.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request, each with a session of the guide.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        return await self.base.fill_canvases(request, rng, into, self._begin)

    def _begin(self, request: Request, rng: Rng) -> _GuidedPasses:
        sight = self.base.open_passes(request)
        return _GuidedPasses(
            self, sight, rng, self.guide.open_session(request.prompt), len(request.prompt) - 1
        )

    def accepted_count(self, scores: DraftScores, tokens: Sequence[int | None], rng: Rng) -> int:
        """Count the drafted tokens, from the first, that the guide finds likely.

        Args:
            scores: Laws of the guide; row j is that of token j.
            tokens: Drafted tokens in order; None stands for a token that is known anyway.
            rng: Random stream of this pass, for acceptance by chance.
        """
        for j, x in enumerate(tokens):
            if x is not None and not self._likely(scores, j, x, rng.child_stream(j)):
                return j
        return len(tokens)

    def _likely(self, scores: DraftScores, j: int, x: int, rng: Rng) -> bool:
        if self.top and x not in scores.likeliest_tokens(j, self.top)[0]:
            return False
        # The tests go from cheap to dear: the rank alone, then the bar, then the probability
        # itself.
        bar = self.least
        if self.relative:
            likeliest = scores.likeliest_tokens(j, 1)[0]
            bar = max(bar, self.relative * exp(scores.token_logprobs(j, likeliest)[0]))
        if not bar and not self.chance:
            return True
        probability = exp(scores.token_logprobs(j, (x,))[0])
        return probability >= bar and (not self.chance or rng.draw_bernoulli(probability))


@dataclass(eq=False)
class _GuidedPasses:
    """Draft, read, write: the passes of one answer.

    Attributes:
        session: Session of the guide.
        read: Last position that the guide knows, its root.
    """

    how: GuidedDenoising
    sight: BoardReader
    rng: Rng
    session: Session
    read: int

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        how = self.how
        look, feed = await self.sight.look_at_board(spot)
        # The draft: an independent token for each gap that has a law.
        drawn = dict(zip(look.rows, look.draw_tokens(self.rng), strict=True))
        first = look.rows[0]
        # The guide's session moves up to the first gap: its root is the last token before it.
        known = [x for x in spot.canvas[self.read : first] if x is not None]
        # `commit` takes the root first, then the tokens that were written since; the last one is
        # the new root.
        self.session.commit_tokens(known[:-1])
        self.read = first - 1
        # Known tokens inside the chain are read as they are, as context of the drafted ones.
        chain = range(first, min(first + how.chunk, spot.block.stop))
        tokens = [drawn[p] if (x := spot.canvas[p]) is None else x for p in chain]
        scores = await self.session.score_draft(
            Draft.chain_draft(known[-1], tokens[:-1]), ScoreRequest()
        )
        draws = self.rng.child_stream("accept", spot.passes)
        # The first draft is always written: else a pass could end without progress.
        count = max(1, how.accepted_count(scores, [drawn.get(p) for p in chain], draws))
        edit = TextEdit(write=tuple((p, drawn[p]) for p in chain[:count] if p in drawn))
        return CanvasPass((how.base.apply_edit(spot, look, feed, edit, spot.state),), len(feed))

    def close(self) -> None:
        self.sight.close()
        self.session.close()
