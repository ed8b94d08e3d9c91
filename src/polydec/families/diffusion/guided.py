"""An autoregressive model says how much of a pass's draft may be written at once (guided diffusion)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from polydec.core.decoder import Streams
from polydec.core.protocols import Scores, Session, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Text, Transcript
from polydec.core.types import Draft, Edit, Exactness, Vocab, Want
from polydec.families.diffusion.denoising import Denoising, each, given, noted, unmasked
from polydec.families.diffusion.events import Unmasked
from polydec.families.diffusion.protocols import Board
from polydec.families.diffusion.stats import DenoiseStats


@dataclass(frozen=True)
class Guided:
    """A token is drawn for every gap of the block of `base`, and an autoregressive model reads them from the left in one pass.
    Written are the first of them that it finds likely, at least one: no token is ever its own.

    chunk: tokens that it reads at most, at least 1; top: a likely token is among its so many likeliest (0: wherever it stands);
    least: and has at least this probability, 0 to 1.

    Exact: no: drafts of one pass do not see each other.
    Reduces to: left-to-right, one a pass, for chunk = 1; one pass a block for top = 0 and least = 0 and a large chunk.
    Source: Hu et al., FlashDLM (2025).
    """

    base: Denoising
    guide: Target
    chunk: int = 32
    top: int = 1
    least: float = 0.0

    @property
    def exactness(self) -> Exactness:
        return Exactness.APPROXIMATE

    @property
    def vocab(self) -> Vocab:
        return self.base.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """All choices of a request, each on a board and in a session of its own."""

        async def write(board: Board, text: Text) -> Result:
            session = self.guide.open(request.prompt)
            try:
                return await _write(self, board, session, text, rng(text.choice or 0), into)
            finally:
                session.close()

        return await each(self.base.denoiser, request, into, write)

    def accepted(self, scores: Scores, tokens: Sequence[int | None]) -> int:
        """How many of these, from the first, it finds likely; a None stands for what is known anyway."""
        for j, x in enumerate(tokens):
            if x is not None and not self._likely(scores, j, x):
                return j
        return len(tokens)

    def _likely(self, scores: Scores, j: int, x: int) -> bool:
        if self.top and x not in scores.topk(j, self.top)[0]:
            return False
        return not self.least or scores.logp(j, (x,))[0] >= log(self.least)


async def _write(
    how: Guided, board: Board, session: Session, text: Text, rng: Rng, into: Transcript
) -> Result:
    """Draft, read, write; until the text ends."""
    base, asked, told, stats, before = (
        how.base,
        into.request.logprobs,
        into.told(Unmasked),
        DenoiseStats(),
        None,
    )
    spot, read = base.start(into.request, text.ends), len(into.request.prompt) - 1
    new, notes = given(text, spot)
    while text.finish_reason is None:
        feed = base.feed(spot, before)
        rows = base.rows(spot, feed)
        look = base.look(spot, rows, await board.score(spot.canvas, rows, feed))
        drawn = dict(zip(rows, look.tokens(rng), strict=True))
        known = [
            x for x in spot.canvas[read : rows[0]] if x is not None
        ]  # the root, and what came behind it
        session.commit(known[:-1])
        read = rows[0] - 1
        chain = range(rows[0], min(rows[0] + how.chunk, spot.block.stop))
        tokens = [drawn[p] if (x := spot.canvas[p]) is None else x for p in chain]
        scores = await session.score(Draft.chain(known[-1], tokens[:-1]), Want())
        count = max(1, how.accepted(scores, [drawn.get(p) for p in chain]))
        edit = Edit(write=tuple((p, drawn[p]) for p in chain[:count] if p in drawn))
        before, opened, spot = spot.canvas, not spot.step, base.after(spot, edit, spot.state)
        notes |= {} if asked is None else noted(look, edit, asked)
        new += text.edit(edit, notes=notes)
        stats, new = stats.seen(len(edit.write), len(feed), new, opened), 0
        if told:
            into.on(unmasked(base, text, look, feed, edit))
    board.close()
    return text.result(stats)
