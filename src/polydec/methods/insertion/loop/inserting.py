"""Insertion: an answer grows by one or some tokens in each pass until nothing is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.insertion_law import Inserter, InsertionScores, InsertionSession
from polydec.core.law import NEG_INF, float64_probabilities, normalise_log_weights
from polydec.core.protocols import Shaper
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.insertion.loop.stats import InsertStats
from polydec.methods.insertion.loop.types import InsertionSheet

Put = tuple[int, int]
"""A slot (an index into those that were offered) and the token that is put there."""


@dataclass(frozen=True)
class InsertionDecoder:
    """A decoder of the insertion family.

    Each pass feeds prompt, answer and, unless it is ignored, the end after them. A slot (a place
    between two tokens) is chosen by how likely the next token comes there, then a token from the
    slot's own law, as `shapers` bend it. Nothing is final before the whole answer is. An answer
    with gaps (`Request.given`) keeps what is given, and each gap takes as many tokens as the model
    puts there, up to as many as stand for it. Without an end (ignore_eos, or none in the
    vocabulary) every gap is filled up.

    Attributes:
        model: Insertion model: a law over slots, and a law of the token at each slot.
        shapers: Rules that change the law that tokens are drawn from, applied in order.
        count: Tokens of a pass, at least 1, in as many slots; they do not see each other.
        least: Probability, 0 to 1, that nothing is missing from which on the answer is complete;
            without `draw`.
        draw: Slots are drawn, and so is whether anything is missing; else the likeliest slot is
            taken.
        share: Probability, 0 to 1, that the next token comes to a slot which the slots after the
            first one need: in others nothing may be missing.

    Exact: law, of the model's own process, where slots are drawn, count is 1 and nothing is shaped:
    a slot and then its token is a draw from the law over both.
    Reduces to: plain, in law, for a model whose only slot is the last one: slots drawn, count 1.
    Source: ILM, insertion language models (2025); there no end stands behind the text.
    """

    model: Inserter
    shapers: tuple[Shaper[Any], ...] = ()
    count: int = 1
    least: float = 0.5
    draw: bool = False
    share: float = 0.3

    def __post_init__(self) -> None:
        if self.count < 1:
            raise RequestError(f"count is {self.count}: it must be at least 1")
        for name in ("least", "share"):
            if not 0 <= getattr(self, name) <= 1:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 0 to 1")

    @property
    def exactness(self) -> Exactness:
        if self.draw and self.count == 1:
            return Exactness.LAW
        return Exactness.APPROXIMATE

    @property
    def vocab(self) -> TokenVocabulary:
        return self.model.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request, each in a session of its own.

        Positions of the prompt attend to the answer, so nothing can be shared.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        texts = [into.open_answer(choice) for choice in request.choices]
        slates = list[InsertionSession]()
        try:
            slates += [
                self.model.open_slate(len(request.prompt) + request.max_tokens) for _ in texts
            ]
            return await gather_coroutines(
                *(
                    _write(self, request, slate, text, rng(text.choice or 0))
                    for slate, text in zip(slates, texts, strict=True)
                )
            )
        finally:
            for slate in slates:
                slate.close()

    def end_token(self, request: Request) -> int | None:
        """Return the token that ends an answer and stands after it.

        None where there is none, or where a shaper forbids it.
        """
        if request.ignore_eos:
            end = None
        else:
            end = min(self.vocab.eos, default=None)
        # A shaper that masks tokens may forbid the end: the model then never finds the answer
        # complete.
        masks: list[Any] = [s for s in self.shapers if hasattr(s, "forbids_token")]
        if any(m.forbids_token(m.start_state(()), end) for m in masks):
            return None
        return end

    def start_state(self, request: Request) -> InsertionSheet:
        """Return the state before the first pass.

        A given end is left out: it stands after the answer anyway.
        """
        answer = request.given or (None,) * request.max_tokens
        ended = answer[-1] is not None and answer[-1] == self.end_token(request)
        return InsertionSheet.of_answer(answer[:-1] if ended else answer)

    def is_complete(self, offer: InsertionScores, rng: Rng, step: int) -> bool:
        """Decide whether nothing is missing.

        Args:
            offer: Scores of the pass.
            rng: Random stream of the answer.
            step: Number of the pass, from 0; it names the draw.
        """
        if self.draw:
            return bool(
                rng.child_stream("whole", step).draw_categorical(
                    torch.tensor([1 - offer.whole, offer.whole], dtype=torch.float64)
                )
            )
        return offer.whole >= self.least

    def choose_slots(self, offer: InsertionScores, most: int, rng: Rng, step: int) -> list[Put]:
        """Choose the slots of a pass and their tokens.

        Args:
            offer: Scores of the pass.
            most: Tokens that the gaps still take.
            rng: Random stream of the answer.
            step: Number of the pass, from 0; it names the draws.

        Returns:
            Pairs of a slot's index and a token: up to `count`, at most `most`, each slot once.
        """
        logp_S = offer.logp_S.clone()
        out = list[Put]()
        for i in range(min(self.count, most)):
            # The first slot is taken anyway; further ones only where a token is likely missing.
            if out:
                logp_S = logp_S.masked_fill(offer.logp_S.exp() < self.share, NEG_INF)
            if bool((logp_S == NEG_INF).all()):
                break
            if self.draw:
                slot = rng.child_stream("slot", step, i).draw_categorical(
                    float64_probabilities(normalise_log_weights(logp_S))
                )
            else:
                slot = int(logp_S.argmax())
            # A slot takes one token a pass: two would be drawn blind to each other's order.
            logp_S[slot] = NEG_INF
            out.append(
                (
                    slot,
                    rng.child_stream("token", step, i).draw_categorical(
                        float64_probabilities(self.slot_law(offer.logw_SV[slot]))
                    ),
                )
            )
        return out

    def slot_law(self, logw_V: Tensor) -> Tensor:
        """Return the normalised law that a slot's token is drawn from, shape ``[V]``."""
        for s in self.shapers:
            logw_V = s.shape_law(s.start_state(()), logw_V)
        return normalise_log_weights(logw_V)


async def _write(
    how: InsertionDecoder, request: Request, slate: InsertionSession, text: AnswerText, rng: Rng
) -> Result:
    """Pass after pass until nothing is missing, or no slot is open."""
    begin = len(request.prompt)
    sheet = how.start_state(request)
    end = how.end_token(request)
    stats = InsertStats()
    notes = [TokenLogprob(x, 0.0, 0.0, ()) for x in sheet.token]
    done = TokenLogprob(0 if end is None else end, 0.0, 0.0, ())
    # Given tokens are written first, so that the text holds them while it grows.
    if sheet.token:
        text.edit_tokens(TextEdit(insert=tuple(enumerate(sheet.token, begin))), final=0)
    while slots := sheet.slots:
        # Slot i lies after fed position begin - 1 + i: the prompt's last token is slot 0's left
        # neighbour.
        fed = (*request.prompt, *sheet.token, *(() if end is None else (end,)))
        offer = await slate.score_slots(fed, [begin - 1 + i for i in slots])
        whole = end is not None and how.is_complete(offer, rng, stats.passes)
        if whole:
            puts = []
        else:
            puts = how.choose_slots(offer, sum(sheet.room), rng, stats.passes)
        # The mark before the text runs too, hence one position more than was fed.
        stats = stats.with_pass(len(puts), len(fed) + 1)
        if whole:
            logp = float(torch.tensor(offer.whole).log())
            done = TokenLogprob(done.token, logp if how.draw else 0.0, logp, ())
            break
        if not puts:
            raise RequestError("the model offers no token for any slot: the answer cannot go on")
        sheet, edit = _put(how, request, sheet, slots, offer, puts, notes)
        text.edit_tokens(TextEdit(insert=tuple((begin + at, x) for at, x in edit)), final=0)
    # Only now all tokens are final. The end is written where the answer has room for it.
    last = begin + len(sheet.token)
    ends = end is not None and len(sheet.token) < request.max_tokens
    text.edit_tokens(
        TextEdit(write=((last, done.token),) if ends else ()),
        notes=dict(enumerate((*notes, done), begin)),
    )
    return text.finished_answer(stats)


def _put(
    how: InsertionDecoder,
    request: Request,
    sheet: InsertionSheet,
    slots: tuple[int, ...],
    offer: InsertionScores,
    puts: list[Put],
    notes: list[TokenLogprob],
) -> tuple[InsertionSheet, list[tuple[int, int]]]:
    """Return the sheet with these tokens, and where they stand then, ascending.

    Their log-probabilities go among the others.
    """
    out = list[tuple[int, int]]()
    for slot, token in sorted(puts):
        # Slots are numbered as before the pass; tokens put in before this one have moved it.
        at = slots[slot] + len(out)
        # Two tokens of the pass may share a gap that has room for one.
        if at not in sheet.slots:
            continue
        sheet = sheet.with_token(at, token)
        notes.insert(at, _note(how, offer.logw_SV[slot], token, request.logprobs))
        out.append((at, token))
    return sheet, out


def _note(how: InsertionDecoder, logw_V: Tensor, token: int, k: int | None) -> TokenLogprob:
    """Return a token's log-probability in its slot, with the model's k likeliest there.

    `k` None: nobody asks for any.
    """
    if k is None:
        return TokenLogprob(token, 0.0, 0.0, ())
    row_V = normalise_log_weights(logw_V)
    top = ()
    if k:
        value_K, token_K = row_V.topk(min(k, len(row_V)))
        top = tuple(zip(map(int, token_K), map(float, value_K)))
    return TokenLogprob(token, float(how.slot_law(logw_V)[token]), float(row_V[token]), top)
