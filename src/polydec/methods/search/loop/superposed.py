"""Superposed decoding: several texts for the passes of one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.law import normalise_log_weights
from polydec.core.protocols import Session, Target
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Draft, DrawKind, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.protocols import ContinuationTable
from polydec.methods.search.loop.stats import SearchStats

SHARE = 0.54
"""Of a table, as published."""
UNKNOWN = 0.01
"""What a token counts that the table does not name."""
LEVELS = (0.01, 0.04, 0.15, 0.18, 0.12)
"""What the tables of 2 to 6 tokens weigh, as published."""
OUTSIDE = 200.0
"""What a step costs a text of which the tables know no token that is kept, as published."""


@dataclass(frozen=True)
class SuperposedText:
    """One of the texts.

    Attributes:
        text: The text so far.
        total: Sum of its steps' mixed scores.
    """

    text: AnswerText
    total: float

    @property
    def score(self) -> float:
        return self.total / max(1, len(self.text.tokens))


@dataclass(frozen=True)
class SuperposedSearch:
    """Keeps `width` texts and runs the model once a step, on one cache.

    What enters is the mean of the embeddings of their last tokens, weighted by the softmax of their
    totals. Of the law that comes out, at `temperature`, the `kept` likeliest tokens continue every
    text, and a table of what follows the text's own last tokens tells the texts apart: a step
    scores (1 - alpha) log P(token) + alpha log N(token). The best `width` go on; one that ends is
    kept as a result if it is among these. The answers are the best by mean score, once `width` have
    ended and none that goes on is better. A score is of this mixture, and no log-probability. A
    request's rules (penalties, masks) that look back see the tokens of the leading text.

    Attributes:
        target: Model that reads the mixture; it needs an embedding table.
        width: Texts, 1 to 64.
        temperature: Temperature of the law, above 0.
        kept: Tokens of the law that may continue a text, at least `width`.
        alpha: Weight of the table, 0 to 1. None: SHARE. Without a table the law alone counts.
        table: Counts of what follows some tokens. None: there is none.
        levels: What contexts of 1, 2, 3 ... tokens weigh, each 0 to 1: N is the sum of their
            chances then, a token that none of them names is dropped, and a text of which no token
            is left scores (1 - alpha) log P(token) - OUTSIDE. Without levels N is the chance after
            the longest context that was counted, and a token that the table does not name counts 1
            in 100.
        late: Whether ends are looked for among the best 2 x width pairs, and the search goes on to
            the last token, as published. Default: among the best `width`, until as many have ended
            and none that goes on is better.

    Exact: approximate: one cache stands for several texts.
    Reduces to: greedy decoding at width 1 without a table.
    Source: Shen et al., "Superposed decoding: multiple generations from a single autoregressive
    inference pass" (2024), with LEVELS, `late` and counts of all that follows 1 to 5 tokens
    (`NgramCounts`). Our usual table holds the few likeliest tokens of each context, their chances
    discounted and interpolated while it was counted.
    """

    target: Target
    width: int = 3
    temperature: float = 0.06
    kept: int = 9
    alpha: float | None = None
    table: ContinuationTable | None = field(default=None, repr=False)
    levels: tuple[float, ...] = ()
    late: bool = False
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 64")
        if self.kept < self.width:
            raise RequestError(
                f"kept is {self.kept}: it must be at least width, which is {self.width}"
            )
        if not self.temperature > 0.0:
            raise RequestError(f"temperature is {self.temperature}: it must be above 0")
        # The share follows from alpha, so the sentence names what the user gave.
        if not 0.0 <= self.share <= 1.0:
            raise RequestError(f"alpha is {self.alpha}: it must lie in 0 to 1")
        if self.alpha and self.table is None:
            raise RequestError(
                f"alpha is {self.alpha}, a share of an n-gram table, and there is none that fits: name one (--with "
                "DIR; `polydec train ngrams` makes one), or leave alpha out"
            )

        if any(not 0.0 <= x <= 1.0 for x in self.levels):
            raise RequestError(f"levels is {self.levels}: each must lie in 0 to 1")
        if self.levels and self.table is None:
            raise RequestError(
                f"levels is {self.levels}, weights of an n-gram table, and there is none that fits: name one (--with "
                "DIR; `polydec train ngrams --order 5` makes one), or leave them out"
            )

    @property
    def share(self) -> float:
        """Weight of the table in a score."""
        if self.alpha is None:
            return SHARE
        return self.alpha

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
            RequestError: More answers are asked for than texts; nothing was fed yet.
            PolydecError: The model has no embeddings to mix.
        """
        best = NBestAnswers(into, self.width)
        passes = 0
        written = 0
        session = self.target.open_session(request.prompt)
        try:
            draft = Draft.chain_draft(request.prompt[-1])
            live = [SuperposedText(into.open_hypothesis(), 0.0)]
            ended = list[SuperposedText]()
            # A model without an embedding table is refused here, before the prompt is fed.
            session.embed_tokens(request.prompt[-1:])
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            while live:
                # The draft is the whole way since the prompt; a pass feeds its new node alone.
                scores = await session.score_draft(draft, ScoreRequest())
                live, over = self._step(live, scores.logprob_row(len(draft) - 1), request.prompt)
                passes += 1
                written = written + len(live) + len(over)
                ended = sorted([*ended, *over], key=lambda m: -m.score)[: self.width]
                # Enough texts ended, and the best living one is no better than the worst of them.
                settled = len(ended) == self.width and not self.late
                if settled and live and live[0].score <= ended[-1].score:
                    live = []
                # With log-probabilities each text is read once more in the end, so nothing is
                # certain before.
                best.write_certain_text(
                    [] if request.logprobs is not None else [m.text for m in (*live, *ended)]
                )
                # The mixture enters as a state; the token beside it is the leading text's.
                if live:
                    mixed_H = self._mixture(live, session)
                    draft = longer_chain(draft, live[0].text.tokens[-1], mixed_H)
            # Scores are set at the end: every step still changes them.
            for m in ended:
                m.text.score = m.score
            texts = [m.text for m in ended]
            # One mixed pass served all texts, so log-probabilities of each need a pass of its own.
            if request.logprobs is not None:
                texts = [await note_text_logprobs(t, session, into) for t in texts]
        finally:
            session.close()
        if request.logprobs is None:
            noted = []
        else:
            noted = texts
        fed = passes + sum(len(t.tokens) for t in noted)
        return best.answers_of(texts, SearchStats(passes + len(noted), 0, fed, len(texts), written))

    def _step(
        self, live: Sequence[SuperposedText], logp_V: Tensor, prompt: Sequence[int]
    ) -> tuple[list[SuperposedText], list[SuperposedText]]:
        """The texts that go on, the best first, and those that end."""
        # Cut first and normalised after: the table is mixed with a law over these tokens alone.
        value_K, token_K = (logp_V.double() / self.temperature).topk(min(self.kept, len(logp_V)))
        law = {
            int(x): float(p)
            for x, p in zip(token_K, normalise_log_weights(value_K), strict=True)
            if p > -math.inf
        }
        # All pairs of a text and a token of the one law, scored with each text's own table entries.
        options = [
            (m.total + gain, m, x) for m in live for x, gain in self._gains(m, law, prompt).items()
        ]
        going = list[SuperposedText]()
        over = list[SuperposedText]()
        ending_ranks = 2 * self.width if self.late else self.width
        for rank, (total, m, x) in enumerate(sorted(options, key=lambda option: -option[0])):
            # Texts that go on are full; late, further ends are still looked for.
            if len(going) == self.width and (not self.late or rank >= ending_ranks):
                break
            # Several options may go on from one text, so each gets a copy to write to.
            after = SuperposedText(m.text.fork(), total)
            after.text.write_tokens((x,))
            if after.text.finish_reason is None:
                if len(going) < self.width:
                    going.append(after)
            # An end counts only among the best options.
            elif rank < ending_ranks:
                over.append(after)
        return going, over

    def _gains(
        self, mixed: SuperposedText, law: dict[int, float], prompt: Sequence[int]
    ) -> dict[int, float]:
        """What each token adds to a text's total."""
        if self.table is None:
            return law
        # The table looks at the text's own last tokens, which the shared cache does not hold.
        text = (*prompt, *mixed.text.tokens)
        if self.levels:
            return self._interpolated(law, self.table.followers_by_level(text))
        # No token is dropped here: the usual table holds only a few followers, and a text whose
        # next token it lacks may still be good.
        known = {x: chance for chance, x in self.table.followers_of(text)}
        return {
            x: (1.0 - self.share) * p + self.share * math.log(max(known.get(x, 0.0), UNKNOWN))
            for x, p in law.items()
        }

    def _interpolated(
        self, law: dict[int, float], looked_up: Sequence[Sequence[tuple[float, int]]]
    ) -> dict[int, float]:
        """Return what each token adds that the table knows after some context.

        Where it knows none of them, each token is charged OUTSIDE.
        """
        known = defaultdict[int, float](float)
        # Contexts that are too long for the text, or were never seen, add nothing; what is left
        # is not divided by its weights, as published.
        for weight, followers in zip(self.levels, looked_up, strict=False):
            for chance, x in followers:
                known[x] += weight * chance
        # A table that weighs nothing must not drop tokens either.
        if self.share == 0.0:
            return law
        return {
            x: (1.0 - self.share) * p + self.share * math.log(known[x])
            for x, p in law.items()
            if known.get(x, 0.0) > 0.0
        } or {x: (1.0 - self.share) * p - OUTSIDE for x, p in law.items()}

    def _mixture(self, live: Sequence[SuperposedText], session: Session) -> Tensor:
        """What enters the model (H)."""
        # The better a text has scored, the more of the input is its token's embedding.
        weight_N = torch.tensor([m.total for m in live], dtype=torch.float64).softmax(0)
        embedded_NH = session.embed_tokens([m.text.tokens[-1] for m in live])
        if len(live) > 1:
            return (weight_N[:, None].to(embedded_NH) * embedded_NH).sum(0)
        return embedded_NH[0]


def longer_chain(draft: Draft, token: int, state_H: Tensor) -> Draft:
    """Put one more node at the end of a chain, which brings its own state.

    Args:
        draft: The chain.
        token: What stands in the node's place to whoever reads tokens.
        state_H: What enters the model there.

    Returns:
        The longer chain.
    """
    n = len(draft)
    return Draft(
        (*draft.token, token),
        (*draft.parent, n - 1),
        (*draft.draw, DrawKind.CERTAIN),
        (*draft.law, None),
        # A node that carries a state is fed as a probe: no token stands for it in the vocabulary.
        (*(draft.probe or (False,)), True),
        None,
        (*(draft.state or (None,)), state_H),
    )


async def note_text_logprobs(text: AnswerText, session: Session, into: Transcript) -> AnswerText:
    """Read a text once more, token by token, in a pass of its own.

    Args:
        text: The text.
        session: The session on its prompt.
        into: Record of the request.

    Returns:
        The text with the log-probabilities of its tokens.
    """
    request = into.request
    out = into.open_hypothesis()
    scores = await session.score_draft(
        # A plain chain of tokens, beside the mixed one: this is the law of the text itself.
        Draft.chain_draft(request.prompt[-1], text.tokens[:-1]),
        ScoreRequest(base=RowDetail.ROW),
    )
    out.write_tokens(
        text.tokens,
        logprobs_at_nodes(scores, range(len(text.tokens)), text.tokens, request.logprobs),
    )
    out.score = text.score
    return out
