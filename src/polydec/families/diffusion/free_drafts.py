"""Several passes' worth of edits guessed from one pass, and all of them checked in the next (FreeDave)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polydec.core.decoder import Streams
from polydec.core.effects import gather
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Text, Transcript
from polydec.core.types import Edit, Exactness, Vocab
from polydec.families.diffusion.denoising import Denoising, Spot, given, noted, unmasked
from polydec.families.diffusion.events import Unmasked
from polydec.families.diffusion.protocols import Board, Denoiser
from polydec.families.diffusion.stats import DenoiseStats
from polydec.families.diffusion.types import Canvas, Look


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
        """All choices of a request, each with boards of its own."""
        texts, desks = [into.open(choice) for choice in request.choices], list[_Desk]()
        try:
            desks += [
                _Desk(
                    self.base.denoiser,
                    len(request.prompt) + request.max_tokens,
                    len(request.prompt),
                )
                for _ in texts
            ]
            return await gather(
                *(
                    _write(self, desk, text, rng(text.choice or 0), into)
                    for desk, text in zip(desks, texts, strict=True)
                )
            )
        finally:
            for desk in desks:
                desk.close()


@dataclass(eq=False)
class _Desk:
    """The boards of one answer, opened as they are needed, and of each the canvas that it was given last."""

    denoiser: Denoiser
    length: int
    prompt: int
    boards: list[Board] = field(default_factory=list[Board])
    before: list[Canvas] = field(default_factory=list[Canvas])

    def board(self, i: int) -> tuple[Board, Canvas | None]:
        if i == len(self.boards):
            self.boards.append(self.denoiser.open(self.length, self.prompt))
        return self.boards[i], self.before[i] if i < len(self.before) else None

    def gave(self, i: int, canvas: Canvas) -> None:
        self.before[i : i + 1] = [canvas]

    def close(self) -> None:
        for board in self.boards:
            board.close()


async def _see(how: Denoising, desk: _Desk, i: int, spot: Spot) -> tuple[Look, Sequence[int]]:
    """The laws of a canvas on board i, and what was fed for them."""
    board, before = desk.board(i)
    feed = how.feed(spot, before)
    rows = how.rows(spot, feed)
    desk.gave(i, spot.canvas)
    return how.look(spot, rows, await board.score(spot.canvas, rows, feed)), feed


def _guesses(how: FreeDrafts, spot: Spot, look: Look, rng: Rng) -> list[tuple[Edit, Spot]]:
    """What follows a spot while laws stay as `look` has them: edits, and the spots that they lead to."""
    out = list[tuple[Edit, Spot]]()
    first, block = spot, spot.block
    while (
        len(out) + 1 < how.drafts and spot.block.start == block.start and block.start in look.block
    ):
        keep = [i for i, r in enumerate(look.rows) if spot.canvas[r] is None]
        stale = replace(look.only(keep), canvas=spot.canvas, block=spot.block, step=spot.passes)
        edit, state = how.base.unmasker.choose(spot.state, stale, rng)
        spot = how.base.after(spot, edit, state)
        if not spot.block:
            break
        out.append((edit, spot))
    return out if first.block else []


async def _write(how: FreeDrafts, desk: _Desk, text: Text, rng: Rng, into: Transcript) -> Result:
    """Guess, see, take what stands; until the text ends."""
    asked, told, stats, rng = (
        into.request.logprobs,
        into.told(Unmasked),
        DenoiseStats(),
        rng.shared(),
    )
    spot, guesses = how.base.start(into.request, text.ends), list[tuple[Edit, Spot]]()
    new, notes = given(text, spot)
    while text.finish_reason is None:
        canvases = [spot, *(s for _, s in guesses)]
        seen = await gather(*(_see(how.base, desk, i, s) for i, s in enumerate(canvases)))
        events, blocks, wanted, look = (
            list[Unmasked](),
            0,
            [*(e for e, _ in guesses), None],
            seen[0][0],
        )
        for (look, feed), guess in zip(seen, wanted, strict=True):
            edit, state = how.base.unmasker.choose(spot.state, look, rng)
            blocks += not spot.step
            notes |= {} if asked is None else noted(look, edit, asked)
            events.append(unmasked(how.base, text, look, feed, edit))
            new += text.edit(edit, notes=notes)
            spot = how.base.after(spot, edit, state)
            if text.finish_reason is not None or edit != guess:
                break
        stats = stats.seen(
            sum(len(e.position) for e in events), sum(len(feed) for _, feed in seen), new, blocks
        )
        new = 0
        if told:
            into.on(
                replace(
                    events[-1],
                    step=events[0].step,
                    position=sum((e.position for e in events), ()),
                    confidence=sum((e.confidence for e in events), ()),
                    piece=sum((e.piece for e in events), ()),
                )
            )
        guesses = _guesses(how, spot, look, rng) if text.finish_reason is None else []
    desk.close()
    return text.result(stats)
