"""A draft model with another tokenizer: its continuation is spelled again in the target's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.speculative.drafters._reader import (
    OtherTokenizerReader,
    check_draft_vocabularies,
    retokenise_addition,
    words_of,
)
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class OtherTokenizerDrafter:
    """Give the text to the draft in its own tokens, let it go on greedily (under its shaping) for as many of them as the
    budget has levels, and propose the target's spelling of what it wrote, with certainty.

    The text is spelled anew in each round; where the draft's tokens of it change, its cache goes back to there. Special
    tokens are not in the text. An end of the draft stands for the target's. vocab: the target's; context: the most tokens
    that the draft reads, 16 to 65536 (beyond, it begins again with the last half). Both vocabularies must know their
    words.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` where the draft's words are none of the target's next ones; a greedy draft chain where the two
    tokenizers are one.
    Source: universal assisted decoding (Wolf et al., transformers, 2024; Timor et al., "Accelerating LLM inference with
    lossless speculative decoding algorithms for heterogeneous vocabularies", 2025, "string-level exact match").
    """

    draft: Target
    vocab: TokenVocabulary
    context: int = 512

    def __post_init__(self) -> None:
        check_draft_vocabularies(self.draft, self.vocab, self.context)

    def open(self, prompt: Sequence[int], session: Session) -> OtherTokenizerGuess:
        return OtherTokenizerGuess(
            self, OtherTokenizerReader.of(self.draft, self.vocab, self.context, prompt)
        )


@dataclass(frozen=True)
class OtherTokenizerGuess(DraftGuess):
    """The draft, reading along."""

    config: OtherTokenizerDrafter
    reader: OtherTokenizerReader

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        most = min(budget.depth, budget.nodes)
        if most > 0:
            place = await self.reader.catch_up()
        else:
            place = None
        if place is None:
            return Draft.chain(root)
        (session, first), draft = place, self.config.draft.vocab
        chain = Draft.chain(first)
        end = False
        for depth in range(1, most + 1):
            scores = await session.score(chain, ScoreRequest(law=RowDetail.ARGMAX))
            token = scores.argmax(depth - 1)
            end = token in draft.eos
            if end:
                break
            chain = chain.grown(token, depth - 1, DrawKind.CERTAIN, None)
            if not budget.go_on(depth, 1.0):
                break
        words = self.reader.words
        spell = words_of(draft, "the draft")
        known = spell.decode((*self.reader.fed, first))
        whole = spell.decode((*self.reader.fed, *chain.token))
        if whole.startswith(known):
            ids = retokenise_addition(words, self.reader.text, whole[len(known) :].rstrip("\ufffd"))
        else:
            ids = ()
        if end:
            ends = sorted(self.config.vocab.eos)[:1]
        else:
            ends = []
        return Draft.chain(root, [*ids, *ends][:most])

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.reader.text += verdict.tokens(draft)

    def fork(self, session: Session, choice: int | None = None) -> OtherTokenizerGuess:
        return OtherTokenizerGuess(self.config, self.reader.fork(choice))

    def close(self) -> None:
        self.reader.close()
