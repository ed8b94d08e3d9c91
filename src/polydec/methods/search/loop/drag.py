"""Draw several answers, and answer with what they agree in (DRAG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polydec.base.errors import PolydecError, RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText
from polydec.core.types import Exactness, TextEdit
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    method_target,
    method_vocab,
    search_each_choice,
    side_by_side,
)
from polydec.methods.search.loop.common_statement import (
    AnswerAgreement,
    AnswerStatement,
    asks_when,
)
from polydec.methods.search.loop.model_answers import write_greedy_reply
from polydec.methods.search.loop.rollouts import streams_of
from polydec.methods.search.loop.types import answer_said
from polydec.methods.speculative.loop.walk import SpeculativeMethod

ANSWERS = "{answers}"
"""What a question to the model has where the answers are to stand."""
QUESTION = 400
"""Characters of the prompt's end in which the question is looked for."""


@dataclass(frozen=True)
class ResponseAggregationSearch:
    """Answers with the most exact statement that enough of several drawn texts support.

    `tries` texts are drawn in parallel (for the rules see `AnswerAgreement`). Where they agree in
    nothing the answer is `unknown`.

    The likeliest text that says just this speaks for it. Where none does, the statement alone is
    written, ended by an end of the text; it is no draw, and its log-probabilities are read from the
    law. Where that cannot be written (the vocabulary cannot spell it, a constraint forbids it, it
    is too long, nothing ends it), or no text answers anything, the likeliest text of all is the
    answer. Texts that were cut at the limit count only where none came to an end. The score of an
    answer is the share of texts that support it, by the rules: 0 for a statement of the model that
    none of them does.

    Attributes:
        method: Draws the texts.
        agreed: Rules that find the statement.
        tries: Texts that are drawn, 1 to 256.
        mark: Text that stands before an answer; "": the answer is the last line.
        unknown: Answer where they agree in nothing.
        ask: Question to the model itself after the prompt, with ANSWERS in it where the answers
            stand, a line each: what it says, greedily, is the statement. "": the rules decide. It
            is not asked where all answers are the same, and the rules decide where it says nothing,
            an answer cannot be spelled, or the context has no room.
        context: Tokens that a text may have. None: any number.
        years: Whether bare numbers from 1000 to 2999 may be years. None: where the end of the
            prompt asks when something was (`asks_when`).

    Exact: approximate: each text is drawn from the law, what they agree in is not.
    Reduces to: the method itself at one try, draw for draw.
    Source: Yona, Aharoni and Geva, "Narrowing the knowledge evaluation gap: open-domain question
    answering with multi-granularity answers" (2024).
    """

    method: SpeculativeMethod
    agreed: AnswerAgreement = field(default_factory=AnswerAgreement)
    tries: int = 5
    mark: str = ""
    unknown: str = "I don't know"
    ask: str = ""
    context: int | None = None
    years: bool | None = None
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

    def __post_init__(self) -> None:
        if not 1 <= self.tries <= 256:
            raise RequestError(f"tries is {self.tries}: it must lie in 1 to 256")
        if self.ask and ANSWERS not in self.ask:
            raise RequestError(
                f"ask is {self.ask!r}: it must hold {ANSWERS}, where the answers are to stand"
            )
        # Spelled here only to be refused here, and not after all texts were drawn.
        self.vocab.spell_text(self.ask.replace(ANSWERS, ""), f"ask is {self.ask!r}")

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Draw and aggregate the texts of one answer."""
        request = choice.into.request
        root = choice.root
        # The root stays empty: a statement that no text says is written into it.
        tries = choice.fork_attempts(root, self.tries)
        # The clock of decoding starts; nothing is certain before all have ended.
        choice.answer.edit_tokens(TextEdit())
        streams = streams_of(choice.rng, self.tries)
        await gather_coroutines(*(t.go_on(s) for t, s in zip(tries, streams, strict=True)))
        # Texts that were cut say nothing certain: they count only if there is no other.
        pool = [t for t in tries if t.text.finish_reason == "stop"] or tries
        texts = [t.picker_view(self.vocab.words).said for t in pool]
        answers = [answer_said(text, self.mark) for text in texts]
        agreed = replace(self.agreed, years=self._has_years(request))
        # The rules' statement, which also stands in where the model is not asked or says nothing.
        ladders = agreed.support_ladders(answers)
        statement = agreed.of_answers(answers)
        spent = side_by_side([t.spent for t in tries])
        # Only different answers are worth a question to the model.
        if len({stated.lower() for stated in answers if stated}) > 1 and (
            asked := self._asked(request, answers)
        ):
            tokens, more = await write_greedy_reply(
                self.method, choice, asked, request.max_tokens, choice.rng.child_stream("ask")
            )
            statement = self._read(agreed, tokens, answers, statement)
            spent = spent.plus_stats(more)
        # A text speaks for the statement where it says just that, not merely something more exact.
        supporting = [i for i, ladder in enumerate(ladders) if statement in ladder]
        speaking = [i for i in supporting if ladders[i][0] == statement]
        # By mean, not by sum: a longer text must not lose for its length.
        best = max(speaking or range(len(pool)), key=lambda i: pool[i].mean)
        speaker = pool[best]
        if not speaking and any(ladders):
            # The statement begins with the same white space as a drawn answer, so that it tokenizes
            # alike.
            space = texts[best][: len(texts[best]) - len(texts[best].lstrip())]
            stated = space + (self.unknown if statement is None else statement.said)
            if tokens := self._spelled(request, stated, root.text):
                await root.say_tokens(tokens)
                speaker = root
                spent = spent.plus_stats(root.spent)
        # More exact statements support a coarser one, so more texts count than can speak for it.
        speaker.text.score = len(supporting) / len(pool)
        return choice.finish_search(speaker.text, spent)

    def _asked(self, request: Request, answers: Sequence[str]) -> tuple[int, ...]:
        """The tokens of what the model is asked; none where it is not asked."""
        words = self.vocab.words
        lines = "\n".join(filter(None, answers))
        if not self.ask or words is None:
            return ()
        try:
            asked = words.encode(self.ask.replace(ANSWERS, lines), special=False)
        except PolydecError:
            return ()
        # The reply may be as long as an answer, and needs room for that.
        whole = len(request.prompt) + len(asked) + request.max_tokens
        if self.context is None or whole <= self.context:
            return asked
        return ()

    def _has_years(self, request: Request) -> bool:
        """Whether bare numbers may be years."""
        words = self.vocab.words
        if self.years is not None or words is None:
            # A question that cannot be read may ask for a year, so None counts as yes.
            return self.years is not False
        return asks_when(words.decode(request.prompt)[-QUESTION:])

    def _read(
        self,
        agreed: AnswerAgreement,
        tokens: Sequence[int],
        answers: Sequence[str],
        otherwise: AnswerStatement | None,
    ) -> AnswerStatement | None:
        """Return what the model said of the answers; None where it says that it knows nothing."""
        words = self.vocab.words
        if words:
            reply = answer_said(words.decode(tokens).strip().partition("\n")[0], "")
        else:
            reply = ""
        if not reply:
            return otherwise
        # Read answers come without their full stop, so `unknown` loses its own.
        if reply.lower() == self.unknown.lower().rstrip("."):
            return None
        return agreed.read_claim(reply, answers)

    def _spelled(self, request: Request, answer: str, text: AnswerText) -> tuple[int, ...]:
        """Return the tokens of a complete text; none where it cannot answer the request."""
        words = self.vocab.words
        # The lowest id where there are several: any of them ends the text, and runs must agree.
        ends = sorted(text.ends & self.vocab.eos)
        if words is None or not ends or not answer:
            return ()
        try:
            tokens = (*words.encode(answer, special=False), ends[0])
            # A constraint is asked token by token, before anything is written.
            if request.guard is not None:
                state = request.guard.start_state(request.prompt)
                for x in tokens:
                    state = request.guard.next_states(state, x)
        except PolydecError:
            return ()
        # The spelling must read back as the statement: a tokenizer may lose or change characters.
        if len(tokens) <= text.room and words.decode(tokens[:-1]).strip() == answer.strip():
            return tokens
        return ()
