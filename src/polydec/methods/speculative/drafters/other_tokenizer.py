"""A draft model with another tokenizer: its continuation is spelled again in the target's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.protocols import Scores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, Draw, Reads, Vocab, Want
from polydec.methods.speculative.drafters._reader import Reader, check, translate, words_of
from polydec.methods.speculative.loop.protocols import Guess
from polydec.methods.speculative.loop.types import Budget, Verdict


@dataclass(frozen=True)
class OtherTokenizer:
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
    vocab: Vocab
    context: int = 512

    def __post_init__(self) -> None:
        check(self.draft, self.vocab, self.context)

    def open(self, prompt: Sequence[int], session: Session) -> OtherTokenizerGuess:
        return OtherTokenizerGuess(self, Reader.of(self.draft, self.vocab, self.context, prompt))


@dataclass(frozen=True)
class OtherTokenizerGuess(Guess):
    """The draft, reading along."""

    config: OtherTokenizer
    reader: Reader

    @property
    def want(self) -> Want:
        return Want(law=Reads.NOTHING)

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        most = min(budget.depth, budget.nodes)
        place = await self.reader.catch_up() if most > 0 else None
        if place is None:
            return Draft.chain(root)
        (session, first), draft = place, self.config.draft.vocab
        chain, end = Draft.chain(first), False
        for depth in range(1, most + 1):
            scores = await session.score(chain, Want(law=Reads.ARGMAX))
            token = scores.argmax(depth - 1)
            end = token in draft.eos
            if end:
                break
            chain = chain.grown(token, depth - 1, Draw.CERTAIN, None)
            if not budget.go_on(depth, 1.0):
                break
        words, spell = self.reader.words, words_of(draft, "the draft")
        known = spell.decode((*self.reader.fed, first))
        whole = spell.decode((*self.reader.fed, *chain.token))
        ids = (
            translate(words, self.reader.text, whole[len(known) :].rstrip("\ufffd"))
            if whole.startswith(known)
            else ()
        )
        ends = sorted(self.config.vocab.eos)[:1] if end else []
        return Draft.chain(root, [*ids, *ends][:most])

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.reader.text += verdict.tokens(draft)

    def fork(self, session: Session, choice: int | None = None) -> OtherTokenizerGuess:
        return OtherTokenizerGuess(self.config, self.reader.fork(choice))

    def close(self) -> None:
        self.reader.close()
