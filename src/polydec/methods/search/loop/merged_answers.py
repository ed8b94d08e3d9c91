"""Answers in merged tokens: units of several tokens that are written in one pass, and read as one vector
(dynamic tokenization)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.law import NEG_INF
from polydec.core.protocols import Session, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.row_scores import PickedScores
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.laws.targets.thinking import state_behind
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.search.loop.superposed import longer_chain, note_text_logprobs
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores

UNSURE = -30.0
"""Log-weight of all other tokens where a rule is asked whether it forbids one."""

STATES_AND_ROW = ScoreRequest(law=RowDetail.NOTHING, base=RowDetail.ROW, hidden=True)
"""What is read of a pass: the model's own law, which the rules bend afterwards, and states."""


class AnswerUnitMaker(Protocol):
    """Make what a model reads of units, and what foretells them (models/learned/kinds/hypernetwork.py)."""

    @property
    def answer_units(self) -> tuple[tuple[int, ...], ...]: ...
    def answer_vectors(self, embed: Callable[[Sequence[int]], Tensor]) -> tuple[Tensor, Tensor]:
        """Make what is read of all units, and their states.

        Args:
            embed: Gives what enters the model for some tokens, shape ``[K, H]``.

        Returns:
            Vectors, shape ``[N, H]``, and states, shape ``[N, W]``.
        """
        ...

    def answer_rises(self, unit_NW: Tensor, state_H: Tensor) -> Tensor:
        """How much likelier each unit is than its first token is.

        Args:
            unit_NW: States of units.
            state_H: State of the model, as its head reads it.

        Returns:
            What is added to the log-weight of the first token, shape ``[N]``.
        """
        ...


@dataclass(frozen=True)
class MergedTokenWriter:
    """Writes tokens and units of several tokens, one of them in a pass.

    A unit is as likely as the law makes its first token, times what its state and the model's say. Of
    tokens and units together the `width` likeliest are left. What was written is read as one vector,
    that of the unit or of the token. The request's rules see every token: a unit that holds a forbidden
    one is left out, and what else they make of a token they make of a unit's first one.

    Attributes:
        target: Model that gives laws and states, and reads vectors.
        maker: Makes vectors of units.
        width: Tokens and units that are left to choose from, 1 to 4096.
        units: How many of the maker's units may be written, the first ones; 0: tokens alone.
        heat: Temperature of the choice; 0: the likeliest.

    Exact: approximate. A text has many ways to be written in units, and each is a law of its own.
    Reduces to: greedy decoding without units, at heat 0.
    Source: Feher, Vulić and Minixhofer, "Retrofitting large language models with dynamic
    tokenization" (2024). That a unit's chance is told beside that of its first token is ours, and
    so is that all units are compared (published: the nearest of a million, by an index).
    """

    target: Target
    maker: AnswerUnitMaker
    width: int = 20
    units: int = 1 << 20
    heat: float = 0.0
    exactness = Exactness.APPROXIMATE
    unexercised: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("branched", "pruned", "scored", "tied"), "each answer is one text"
    )

    def __post_init__(self) -> None:
        if not self.maker.answer_units:
            raise RequestError(
                "method merged-answers needs a hypernetwork with units for answers: train it with --answers"
            )
        if not 1 <= self.width <= 4096:
            raise RequestError(f"candidates is {self.width}: it must lie in 1 to 4096")
        if self.units < 0 or not 0 <= self.heat < float("inf"):
            raise RequestError(
                f"units is {self.units} and heat {self.heat}: both must be at least 0, and heat finite"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices, each with draws of its own.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            PolydecError: The model shows no states, or has no embeddings.
        """
        answers = [into.open_answer(choice) for choice in request.choices]
        session = self.target.open_session(request.prompt)
        sessions = [session]
        try:
            # Made once for a model, and refused where it has no embeddings.
            vectors_NH, states_NW = self.maker.answer_vectors(session.embed_tokens)
            chosen = _AnswerUnits(
                self.maker, self.maker.answer_units[: self.units], vectors_NH, states_NW
            )
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            runs = list[_MergedRun]()
            for answer in answers:
                choice = answer.choice or 0
                # One reads vectors, the other one only knows which tokens were written.
                pair = (session.fork(choice), session.fork(choice))
                sessions += pair
                runs.append(_MergedRun(self, chosen, answer, pair, rng(choice), into))
            # All answers run at once and share passes.
            return await gather_coroutines(*(run.write_answer(request) for run in runs))
        finally:
            for each in sessions:
                each.close()


@dataclass(frozen=True, eq=False)
class _AnswerUnits:
    """Units of answers with what was made of them; those behind the first ones of `made` are not used."""

    maker: AnswerUnitMaker
    made: tuple[tuple[int, ...], ...]
    vectors_NH: Tensor
    states_NW: Tensor

    def extended_weights(self, logp_V: Tensor, state_H: Tensor) -> Tensor:
        """Weigh tokens and units behind one text.

        Args:
            logp_V: The law of the next token, log-probabilities.
            state_H: State of the model, as its head reads it.

        Returns:
            Log-weights of all tokens, and behind them of all units, shape ``[V + N]``.
        """
        if not self.made:
            return logp_V
        # What was made of units beyond the first ones stays unused.
        count = len(self.made)
        rise_N = self.maker.answer_rises(self.states_NW[:count], state_H)
        first_N = torch.tensor([unit[0] for unit in self.made])
        return torch.cat([logp_V, logp_V[first_N] + rise_N.to(logp_V)])


class _MergedRun:
    """The run of one answer."""

    def __init__(
        self,
        plan: MergedTokenWriter,
        units: _AnswerUnits,
        answer: AnswerText,
        sessions: tuple[Session, Session],
        rng: Rng,
        into: Transcript,
    ) -> None:
        self._plan = plan
        self._units = units
        self._answer = answer
        self._session, self._rules = sessions
        self._root = into.request.prompt[-1]
        self._rng = rng
        self._into = into

    async def write_answer(self, request: Request) -> Result:
        """Write the answer, a token or a unit in each pass."""
        draft = Draft.chain_draft(request.prompt[-1])
        text = self._into.open_hypothesis()
        spent = SearchStats()
        while text.finish_reason is None:
            # The draft is the whole way since the prompt; a pass feeds its new node alone.
            scores = await self._session.score_draft(draft, STATES_AND_ROW)
            # The rules are asked behind the tokens as they were written.
            row = PickedScores.rows_of(scores.base, (len(draft) - 1,))
            law = self._rules.bend_scores(Draft.chain_draft(self._root), row)
            weight_C = self._units.extended_weights(
                law.logprob_row(0), state_behind(scores, self._session)
            )
            place = self._choose(weight_C, len(text.tokens))
            unit, vector_H = self._unit_at(place)
            # All of its tokens but the last, which is the next root.
            self._rules.commit_tokens((self._root, *unit[:-1]))
            self._root = unit[-1]
            written = text.write_tokens(unit)
            first = 0 if spent.passes else written
            spent = spent.plus_stats(SearchStats(1, first, 1, 0, written))
            # With log-probabilities the text is read once more in the end.
            if request.logprobs is None:
                self._answer.follow_text(text, len(text.tokens))
            # The vector enters; of what it stands for the last token stands beside it.
            if text.finish_reason is None:
                draft = longer_chain(draft, unit[-1], vector_H)
        text.score = 0.0
        if request.logprobs is not None:
            text = await note_text_logprobs(text, self._session, self._into)
            spent = spent.plus_stats(SearchStats(1, scored=len(text.tokens)))
        self._answer.follow_text(text)
        return self._answer.finished_answer(replace(spent, ended=1))

    def _choose(self, weight_C: Tensor, at: int) -> int:
        """The place of a token or a unit among all of them. at: tokens that were written."""
        width = self._plan.width if self._plan.heat else 1
        left_C = weight_C.clone()
        while True:
            # Of equal weights the lowest place comes first: a token before a unit. One needs no order.
            if width == 1:
                places = [int(left_C.argmax())]
            else:
                order_C = left_C.argsort(descending=True, stable=True)
                places = [int(x) for x in order_C[:width]]
            banned = [x for x in places if not self._allows(x)]
            if not banned:
                break
            left_C[banned] = NEG_INF
        # At heat 0 one is left, and the draw is no choice.
        chance_K = (left_C[places].double() / (self._plan.heat or 1.0)).softmax(-1)
        return places[self._rng.child_stream("unit", at).draw_categorical(chance_K)]

    def _allows(self, place: int) -> bool:
        """Whether the request's rules leave every token of a unit possible; of a token its law says so."""
        size = self._plan.vocab.size
        if place < size:
            return True
        unit = self._units.made[place - size]
        # Rows in which its own tokens are the likeliest by far: a rule that cuts unlikely ones leaves
        # these, so what is impossible then is forbidden.
        sure_KV = torch.full((len(unit), size), UNSURE)
        sure_KV[torch.arange(len(unit)), torch.tensor(unit)] = 0.0
        rows = LogitScores([NetworkAnswer(sure_KV)])
        bent = self._rules.bend_scores(Draft.chain_draft(self._root, unit[:-1]), rows)
        return all(float(bent.logprob_row(i)[x]) > NEG_INF for i, x in enumerate(unit))

    def _unit_at(self, place: int) -> tuple[tuple[int, ...], Tensor]:
        """What is written at a place, and the vector that is read of it."""
        size = self._plan.vocab.size
        if place < size:
            return (place,), self._session.embed_tokens((place,))[0]
        return self._units.made[place - size], self._units.vectors_NH[place - size]
