"""Several passes' worth of edits guessed from one pass, and all of them checked in the next (FreeDave)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from polydec.core.decoder import Streams
from polydec.core.effects import gather
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Edit, Exactness, Vocab
from polydec.families.diffusion.denoising import Denoising, Sight
from polydec.families.diffusion.filling import Passed, Spot, Step
from polydec.families.diffusion.types import Look


@dataclass(frozen=True)
class FreeDrafts:
    """Writes what `base` writes, with fewer passes. From one pass's laws the unmasker's next edits are guessed: its edit now,
    and what it would do then if the laws of the gaps that are left stayed as they are. One pass over all these canvases side
    by side gives the laws that each of them really has. A guess stands where the unmasker, shown the laws of the canvas before
    it, makes that very edit.

    drafts: canvases that a pass is given at most, at least 1; they end with the block. base must feed exactly: an approximate
    rule's laws depend on how a canvas came to be.

    Exact: law, in the sense that the text is that of `base` for the same seed, at any temperature: draws have names.
    Reduces to: base, pass for pass, for drafts = 1.
    Source: Wu and Zhang, FreeDave (2025), which has one token a pass, no chance, and canvases that share a cache.
    """

    base: Denoising
    drafts: int = 4

    @property
    def exactness(self) -> Exactness:
        return self.base.exactness

    @property
    def vocab(self) -> Vocab:
        return self.base.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        return await self.base.fill(
            request, rng, into, lambda r, own: _Checked(self, r, own.shared())
        )

    def guesses(self, spot: Spot, look: Look, rng: Rng) -> list[tuple[Edit, Spot]]:
        """What follows a spot while laws stay as `look` has them: edits, and the spots that they lead to."""
        out, block = list[tuple[Edit, Spot]](), spot.block
        while (
            len(out) + 1 < self.drafts
            and spot.block.start == block.start
            and block.start in look.block
        ):
            keep = [i for i, r in enumerate(look.rows) if spot.canvas[r] is None]
            stale = replace(look.only(keep), canvas=spot.canvas, block=spot.block, step=spot.passes)
            edit, state = self.base.unmasker.choose(spot.state, stale, rng)
            spot = self.base.after(spot, edit, state)
            if not spot.block:
                break
            out.append((edit, spot))
        return out


@dataclass(eq=False)
class _Checked:
    """Guess, see, take what stands. sights: one for each canvas of a pass, opened as they are needed; last: the laws of the
    last canvas that stood."""

    how: FreeDrafts
    request: Request
    rng: Rng
    sights: list[Sight] = field(default_factory=list[Sight])
    last: Look | None = None

    async def next(self, spot: Spot) -> Passed:
        guesses = [] if self.last is None else self.how.guesses(spot, self.last, self.rng)
        spots, wanted = [spot, *(s for _, s in guesses)], [*(edit for edit, _ in guesses), None]
        while len(self.sights) < len(spots):
            self.sights.append(self.how.base.open(self.request))
        seen = await gather(*(a.look(s) for a, s in zip(self.sights, spots, strict=False)))
        steps = list[Step]()
        for (look, feed), guess in zip(seen, wanted, strict=True):
            edit, state = self.how.base.unmasker.choose(spot.state, look, self.rng)
            steps.append(self.how.base.step(spot, look, feed, edit, state))
            self.last, spot = look, steps[-1].spot
            if edit != guess:
                break
        return Passed(tuple(steps), sum(len(feed) for _, feed in seen))

    def close(self) -> None:
        for sight in self.sights:
            sight.close()
