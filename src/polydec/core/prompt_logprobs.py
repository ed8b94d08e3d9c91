"""How likely a prompt is, token by token, beside the answer to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.decoder import Decoder, Streams
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import PromptLogprob, Request, Result
from polydec.core.transcript import Transcript
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary

PART = 128
"""Tokens whose laws are looked at together: of so many rows the memory is taken, whatever the
prompt's length.
"""


@dataclass(frozen=True)
class PromptLogprobs:
    """A decoder that first notes the log-probabilities of the prompt's tokens under `target`, in
    parts of `part` tokens (at least 1), with the `top` (0 or more) likeliest ones beside each. They
    go into `Transcript.prompt`; the answers are those of `decoder`, and share the prompt's cache
    entries.

    Exact: a token's law is the one that the target has at this place when the text is fed a token
    at a time.
    Reduces to: `decoder`, where nobody reads `Transcript.prompt`.
    """

    decoder: Decoder
    target: Target
    top: int
    part: int = PART

    @property
    def exactness(self) -> Exactness:
        return self.decoder.exactness

    @property
    def vocab(self) -> TokenVocabulary:
        return self.decoder.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Note the log-probabilities of the prompt's tokens, then run the inner decoder.

        Args:
            request: The prompt, and what the inner decoder writes.
            rng: Gives the random stream of a choice by its number.
            into: Gets the notes as `prompt`, and the answers.

        Returns:
            The results of the inner decoder.
        """
        prompt = request.prompt
        # The first token follows no other, so it has no law.
        notes = [PromptLogprob(request.prompt[0])]
        session = self.target.open_session(prompt[:1])
        try:
            for start in range(0, len(prompt) - 1, self.part):
                # The last token of the prompt is not fed: it is the pending root of the answers.
                fed = prompt[start : start + self.part][: len(prompt) - 1 - start]
                # Row i of the part is the law behind its token i, so it belongs to the prompt's
                # next token.
                next_ = prompt[start + 1 : start + self.part + 1]
                scores = await session.score_draft(
                    Draft.chain_draft(fed[0], fed[1:]),
                    ScoreRequest(RowDetail.NOTHING, base=RowDetail.ROW),
                )
                notes += _notes(scores.base, next_, self.top)
                session.commit_tokens(fed)
            into.prompt = tuple(notes)
            return await self.decoder.write_choices(
                request, rng, into
            )  # the session lives on: what it holds is not fed again
        finally:
            session.close()


def _notes(scores: DraftScores, tokens: Sequence[int], k: int) -> list[PromptLogprob]:
    """Of the tokens that follow the nodes of a chain."""
    out = list[PromptLogprob]()
    for node, token in enumerate(tokens):
        row_V = scores.logprob_row(node)
        if k:
            top = zip(*scores.likeliest_tokens(node, k), strict=True)
        else:
            top = ()
        out.append(
            # Rank 1 is the likeliest token: one more than the number of tokens above it.
            PromptLogprob(
                token, float(row_V[token]), int((row_V > row_V[token]).sum()) + 1, tuple(top)
            )
        )
    return out
