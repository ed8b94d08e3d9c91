"""The denoising loop: feed the canvas, fill some gaps of the active block, until the answer has ended."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polydec.core.decoder import Streams
from polydec.core.effects import gather
from polydec.core.protocols import Shaper
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.rng import Rng
from polydec.core.transcript import Text, Transcript
from polydec.core.types import Edit, Exactness, Vocab
from polydec.families.diffusion.events import Unmasked
from polydec.families.diffusion.protocols import Board, Denoiser, Refresh, Unmasker
from polydec.families.diffusion.stats import DenoiseStats
from polydec.families.diffusion.types import Canvas, Look, filled, gaps


@dataclass(frozen=True)
class Denoising:
    """A decoder of the diffusion family.

    The answer's max_tokens positions stand behind the prompt as gaps. They are filled block by block from the left; block:
    positions of one (0: the answer is one block; the last one may be shorter). Tokens are final as soon as no gap stands
    before them. Gaps behind an end (EOS, a stop id) that was written are no part of the answer and are not filled.

    exact: whether `refresh` leaves the model's laws as they are; where not, the text is approximate.
    """
    denoiser: Denoiser
    unmasker: Unmasker[Any]
    refresh: Refresh
    block: int = 0
    shapers: tuple[Shaper[Any], ...] = ()
    exact: bool = True

    @property
    def exactness(self) -> Exactness:
        return self.unmasker.exactness if self.exact else Exactness.APPROXIMATE

    @property
    def vocab(self) -> Vocab:
        return self.denoiser.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """All choices of a request, each on a board of its own: a prompt sees the answer, so nothing can be shared."""
        texts = [into.open(choice) for choice in request.choices]
        length, boards = len(request.prompt) + request.max_tokens, list[Board]()
        try:
            boards += [self.denoiser.open(length) for _ in texts]
            return await gather(*(_write(self, board, text, rng(text.choice or 0), into)
                                  for board, text in zip(boards, texts, strict=True)))
        finally:
            for board in boards:
                board.close()


async def _write(how: Denoising, board: Board, text: Text, rng: Rng, into: Transcript) -> Result:
    """Pass after pass until the text ends."""
    prompt, asked = into.request.prompt, into.request.logprobs
    canvas: Canvas = (*prompt, *(None,) * into.request.max_tokens)
    state, stats, told = how.unmasker.start(canvas), DenoiseStats(), into.told(Unmasked)
    notes = dict[int, TokenLogprob]()
    while True:
        block = _block(how, canvas, len(prompt), text.ends)
        state = how.unmasker.enter(state, len(gaps(canvas, block.start, block.stop)))
        step = 0
        while open_rows := gaps(canvas, block.start, block.stop):
            feed = how.refresh.feed(len(canvas), block, step)
            rows = gaps(canvas, block.start, feed.stop) if how.unmasker.everywhere else open_rows
            logw_RV = await board.score(canvas, rows, feed)
            look = Look(canvas, block, rows, logw_RV, how.shapers, stats.passes, text.ends)
            edit, state = how.unmasker.choose(state, look, rng)
            if not edit.write:
                raise ValueError("the unmasker filled no gap: it would go on for ever")
            canvas = filled(canvas, edit)
            notes |= {} if asked is None else _noted(look, edit, asked)
            new = text.edit(edit, notes=notes)
            stats = stats.seen(len(edit.write), len(feed), new, not step)
            if told:
                into.on(Unmasked(text.choice or 0, look.step, (block.start, block.stop), (feed.start, feed.stop),
                                 tuple(p for p, _ in edit.write), _sure(look, edit),
                                 len(gaps(canvas, block.start, block.stop))))
            if text.finish_reason is not None:
                board.close()                     # at once: what it holds is free for those that go on
                return text.result(stats)
            block, step = _cut(block, canvas, text.ends), step + 1


def _block(how: Denoising, canvas: Canvas, begin: int, ends: frozenset[int]) -> range:
    """The first block that has a gap."""
    size = how.block or len(canvas) - begin
    first = gaps(canvas, begin)[0]
    start = begin + (first - begin) // size * size
    return _cut(range(start, min(start + size, len(canvas))), canvas, ends)


def _cut(block: range, canvas: Canvas, ends: frozenset[int]) -> range:
    """The block up to the first end that stands in it."""
    stop = next((i for i in block if canvas[i] in ends), block.stop)
    return range(block.start, stop)


def _sure(look: Look, edit: Edit) -> tuple[float, ...]:
    """The model's own probability of each token that is written."""
    at = {r: i for i, r in enumerate(look.rows)}
    return tuple(float(look.logp_RV[at[p], token].exp()) for p, token in edit.write)


def _noted(look: Look, edit: Edit, k: int) -> dict[int, TokenLogprob]:
    """Of what is written its log-probabilities, by position, with the k likeliest of the model."""
    out, at = dict[int, TokenLogprob](), {r: i for i, r in enumerate(look.rows)}
    for position, token in edit.write:
        i = at[position]
        row_V, top = look.logp_RV[i], ()
        if k:
            value_K, token_K = row_V.topk(min(k, len(row_V)))
            top = tuple(zip(map(int, token_K), map(float, value_K)))
        out[position] = TokenLogprob(token, float(look.shaped_RV[i][token]), float(row_V[token]), top)
    return out
