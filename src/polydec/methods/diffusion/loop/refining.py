"""Texts that begin as noise and are rewritten as a whole, round after round, until nothing changes
(RUM-SUNDAE)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from polydec.base.errors import RequestError
from polydec.base.options import at_least_one
from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import Shaper
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.filling import (
    CanvasPass,
    FillingState,
    FillingStep,
    fill_canvases,
)
from polydec.methods.diffusion.loop.foretold import (
    LengthForetelling,
    first_prompt_state,
    with_foretold_length,
)
from polydec.methods.diffusion.loop.types import (
    UnmaskerView,
    best_indices,
    canvas_with_edit,
    gap_positions,
)


@dataclass(frozen=True)
class RefiningDecoder:
    """Rewrites whole answers under the laws that a model gives at their own tokens.

    Each of `starts` texts begins as random tokens, or as gaps. In a round one pass gives the law at
    every position of the answer, and a token is drawn from each. Of the positions where it is
    another one than stands there, those whose token the model finds least likely take it, a share
    of all positions at most. A text that no round changes any more is finished. In the last round
    whatever is left of the noise goes. Then the text is answered whose tokens the model finds
    likeliest, a token, up to its end.

    Where lengths are foretold, a head says from the first state of the prompt how long the answer
    will be, and `starts` texts begin for each of the `lengths` likeliest ones: such a text has its
    end there and nowhere before.

    Under a constraint every round writes all positions, so that each text is one that is allowed.

    Attributes:
        denoiser: Model that gives a law at each position, also where a token stands.
        rounds: Passes at most, 1 or more.
        share: Part of the positions that a round may write, above 0 to 1.
        starts: Texts that are refined side by side, 1 or more.
        noise: Whether they begin as random tokens; else as gaps.
        shapers: Rules that change the law that tokens are drawn from, applied in order.
        lengths: Lengths that are tried. 0: each text's own end tells its length.
        foretelling: Says which; it is there where lengths are tried.

    Exact: no.
    Reduces to: one pass that fills all gaps with likeliest tokens, for one round, one start and no
    noise, where tokens are not drawn.
    Source: Yoshida, "Making the most of your model" (2024), RUM-SUNDAE; Savinov et al.,
    "Step-unrolled denoising autoencoders for text generation" (2022). There the length is foretold
    before; here that is a choice.
    """

    denoiser: Denoiser
    rounds: int = 10
    share: float = 0.5
    starts: int = 1
    noise: bool = True
    shapers: tuple[Shaper[Any], ...] = ()
    lengths: int = 0
    foretelling: LengthForetelling | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "rounds", "starts")
        if self.lengths < 0:
            raise RequestError(f"lengths is {self.lengths}: it must be at least 0")
        if self.lengths and self.foretelling is None:
            raise RequestError(f"lengths is {self.lengths}: nothing foretells them")

    @property
    def exactness(self) -> Exactness:
        return Exactness.APPROXIMATE

    @property
    def vocab(self) -> TokenVocabulary:
        return self.denoiser.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request, each from texts of its own.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        return await fill_canvases(
            self.vocab,
            request,
            rng,
            into,
            _begun,
            lambda asked, own: _RefiningPasses(self, asked, own),
        )


def _begun(request: Request, ends: frozenset[int]) -> FillingState:
    """The state before the first pass. Nothing is final before the last one."""
    answer = request.given or (None,) * request.max_tokens
    canvas: Canvas = (*request.prompt, *answer)
    begin = len(request.prompt)
    return FillingState(canvas, None, range(begin, len(canvas)), 0, 0, begin, ends, begin)


@dataclass(frozen=True)
class RefinedText:
    """One of the texts.

    Attributes:
        tokens: Of the answer's gaps, in order; None: a gap.
        noise: Indices of those that no law has written or confirmed yet.
        worth: Mean log-probability of its tokens up to its end, under the pass that it was made of.
        settled: Whether the last round left it as it was.
        length: Tokens before its end, where that is foretold.
    """

    tokens: tuple[int | None, ...]
    noise: frozenset[int]
    worth: float = -math.inf
    settled: bool = False
    length: int | None = None


@dataclass(eq=False)
class _RefiningPasses:
    """Rounds of one answer.

    Attributes:
        how: The decoder.
        request: What is asked.
        rng: Random stream of the answer.
        texts: The texts as they are now; empty before the first round.
        boards: A session over the canvas for each of them.
        shown: What stands in the transcript, by position.
    """

    how: RefiningDecoder
    request: Request
    rng: Rng
    texts: list[RefinedText] = field(default_factory=list[RefinedText])
    boards: list[CanvasSession] = field(default_factory=list[CanvasSession])
    shown: dict[int, int] = field(default_factory=dict[int, int])

    async def next_pass(self, spot: FillingState) -> CanvasPass:
        how = self.how
        rows = gap_positions(spot.canvas, spot.begin)
        feed = range(len(spot.canvas))
        asked = 0
        if not self.texts:
            lengths = await self._foretold_lengths(spot, rows)
            # What foretells them reads the prompt once.
            asked = spot.begin + 1 if how.lengths else 0
            self._open_texts(spot, len(rows), lengths)
        # A text that has settled would be read as before.
        moving = [i for i, text in enumerate(self.texts) if not text.settled]
        laws = await gather_coroutines(
            *(
                self.boards[i].score_canvas(
                    _filled_canvas(spot.canvas, rows, self.texts[i].tokens), rows, feed
                )
                for i in moving
            )
        )
        last = spot.passes + 1 >= how.rounds
        looks = dict[int, UnmaskerView]()
        for i, logw_RV in zip(moving, laws, strict=True):
            length = self.texts[i].length
            if length is not None:
                logw_RV = with_foretold_length(logw_RV, length, spot.ends)
            looks[i] = UnmaskerView(
                spot.canvas,
                spot.block,
                rows,
                logw_RV,
                how.shapers,
                spot.passes,
                spot.ends,
                allowed=how.denoiser.allowed_canvases,
                begin=spot.begin,
            )
            self.texts[i] = self._refine_text(i, looks[i], last)
        done = last or all(text.settled for text in self.texts)
        # The best of those that this pass moved is shown; the best of all is answered.
        among = range(len(self.texts)) if done else moving
        best = max(among, key=lambda i: self.texts[i].worth)
        look = looks.get(best, looks[moving[0]])
        step = self._written(spot, look, feed, best, done)
        return CanvasPass((step,), len(feed) * len(moving) + asked)

    async def _foretold_lengths(
        self, spot: FillingState, rows: Sequence[int]
    ) -> Sequence[int | None]:
        """Lengths that are tried, the likeliest first; None: a text's own end tells it."""
        how = self.how
        # Given tokens of an answer, or texts that no token ends, have no one length.
        if how.foretelling is None or not how.lengths or not spot.ends:
            return [None]
        if len(rows) < len(spot.canvas) - spot.begin:
            return [None]
        state_H = await first_prompt_state(how.denoiser, self.request.prompt)
        return how.foretelling.likeliest_lengths(state_H, how.lengths, len(rows))

    def _open_texts(self, spot: FillingState, count: int, lengths: Sequence[int | None]) -> None:
        """Begin all texts, as many of each length."""
        how = self.how
        for i, length in enumerate(length for length in lengths for _ in range(how.starts)):
            self.boards.append(how.denoiser.open_canvas(len(spot.canvas), spot.begin))
            tokens = self._noise_tokens(i, count) if how.noise else (None,) * count
            # Behind its length a text is its end from the beginning.
            if length is not None:
                tokens = (*tokens[:length], *[min(spot.ends)] * (count - length))
            self.texts.append(RefinedText(tokens, frozenset(range(count)), length=length))

    def _noise_tokens(self, start: int, count: int) -> tuple[int, ...]:
        """Tokens that are drawn evenly, as the model was trained to mend them."""
        even_V = torch.ones(self.how.vocab.size, dtype=torch.float64)
        # A slice: it is empty where the mask lies behind the vocabulary.
        gap = self.how.denoiser.gap_token
        even_V[gap : gap + 1] = 0.0
        even_V /= even_V.sum()
        own = self.rng.child_stream("start", start)
        return tuple(own.child_stream("noise", at).draw_categorical(even_V) for at in range(count))

    def _refine_text(self, i: int, look: UnmaskerView, last: bool) -> RefinedText:
        """One round of a text; in the last one nothing is left of the noise."""
        text = self.texts[i]
        before = text.tokens
        drawn = look.draw_tokens(self.rng.child_stream("start", i))
        if look.allowed is None:
            count = max(1, math.ceil(self.how.share * len(before)))
        else:
            # Tokens of one pass are allowed together, not beside older ones.
            count = len(before)
        sure_R = look.token_confidence([0 if token is None else token for token in before])
        # Gaps are written in any case; of other tokens than were drawn the least likely ones.
        chosen = {at for at, token in enumerate(before) if token is None}
        other = [at for at, token in enumerate(before) if token is not None and token != drawn[at]]
        chosen |= {other[k] for k in best_indices(-sure_R[other], count)}
        if last:
            chosen |= text.noise.intersection(other)
        after = tuple(drawn[at] if at in chosen else token for at, token in enumerate(before))
        # A token that is drawn where it stands is no noise any more.
        noise = text.noise.intersection(other) - chosen
        return RefinedText(after, noise, _worth(look, after), after == before, text.length)

    def _written(
        self, spot: FillingState, look: UnmaskerView, feed: Sequence[int], best: int, done: bool
    ) -> FillingStep:
        """The step that writes one of the texts."""
        write = {
            position: token
            for position, token in zip(look.rows, self.texts[best].tokens, strict=True)
            if token is not None
        }
        changed = {p: x for p, x in write.items() if self.shown.get(p) != x}
        # The last pass writes all that becomes final, and every pass something.
        if done or not changed:
            changed = write
        self.shown |= changed
        edit = TextEdit(write=tuple(sorted(changed.items())))
        after = replace(spot, passes=spot.passes + 1, step=spot.step + 1)
        if done:
            canvas = canvas_with_edit(spot.canvas, edit)
            after = replace(after, canvas=canvas, block=range(len(canvas), len(canvas)), final=None)
        return FillingStep(look, feed, edit, after)

    def close(self) -> None:
        for board in self.boards:
            board.close()


def _filled_canvas(canvas: Canvas, rows: Sequence[int], tokens: Sequence[int | None]) -> Canvas:
    """A canvas with a text in its gaps."""
    out = list(canvas)
    for position, token in zip(rows, tokens, strict=True):
        out[position] = token
    return tuple(out)


def _worth(look: UnmaskerView, tokens: Sequence[int | None]) -> float:
    """The mean log-probability of a text's tokens up to its first end."""
    ends = [at for at, token in enumerate(tokens) if token in look.ends]
    last = ends[0] + 1 if ends else len(tokens)
    return float(
        sum(look.logp_RV[at, token] for at, token in enumerate(tokens[:last]) if token is not None)
    ) / max(1, last)
