"""A draft model with another tokenizer; its continuation is spelled in the target's tokens."""

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
    """Draft greedily with a model of another tokenizer, and spell that in the target's tokens.

    The draft gets the text in its own tokens, goes on greedily (under its shaping) for as many of
    them as the budget has levels, and the target's spelling of what it wrote is proposed, with
    certainty. The text is spelled anew in each round; where the draft's tokens of it change, its
    cache goes back to there. Special tokens are not in the text. An end of the draft stands for the
    target's. Both vocabularies must have a tokenizer.

    Attributes:
        draft: The draft model.
        vocab: The target's vocabulary.
        context: Most tokens that the draft reads, 16 to 65536; beyond, it begins again with the
            last half. Default 512.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` where the draft's words are none of the target's next ones; a greedy draft
    chain where the two tokenizers are one.
    Source: universal assisted decoding (Wolf et al., transformers, 2024; Timor et al.,
    "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous
    vocabularies", 2025, "string-level exact match").
    """

    draft: Target
    vocab: TokenVocabulary
    context: int = 512

    def __post_init__(self) -> None:
        check_draft_vocabularies(self.draft, self.vocab, self.context)

    def open_guess(self, prompt: Sequence[int], session: Session) -> OtherTokenizerGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used: the draft model has a session of its own.

        Returns:
            The guess.
        """
        return OtherTokenizerGuess(
            self, OtherTokenizerReader.of_prompt(self.draft, self.vocab, self.context, prompt)
        )


@dataclass(frozen=True)
class OtherTokenizerGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        reader: The draft's session, which follows the text.
    """

    config: OtherTokenizerDrafter
    reader: OtherTokenizerReader

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Let the draft go on, and spell what it wrote.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain. The root alone where the text cannot be spelled for the draft.
        """
        most = min(budget.depth, budget.nodes)
        if most > 0:
            place = await self.reader.catch_up()
        else:
            place = None
        # The draft is not where the text is, for instance inside of a character.
        if place is None:
            return Draft.chain_draft(root)
        (session, first), draft = place, self.config.draft.vocab
        chain = Draft.chain_draft(first)
        end = False
        for depth in range(1, most + 1):
            scores = await session.score_draft(chain, ScoreRequest(law=RowDetail.ARGMAX))
            # Greedy, since its law over other tokens cannot be compared with the target's.
            token = scores.likeliest_token(depth - 1)
            # An end is spelled by no text: it is added by its id afterwards.
            end = token in draft.eos
            if end:
                break
            chain = chain.with_node(token, depth - 1, DrawKind.CERTAIN, None)
            if not budget.go_on(depth, 1.0):
                break
        words = self.reader.words
        spell = words_of(draft, "the draft")
        # Both texts are decoded with all that the draft has read, since a token's text may depend
        # on the tokens before it.
        known = spell.decode((*self.reader.fed, first))
        whole = spell.decode((*self.reader.fed, *chain.token))
        # Where the new tokens change how the old ones decode, there is no clean addition to spell.
        if whole.startswith(known):
            # A character that is cut at the end is left out.
            ids = retokenise_addition(words, self.reader.text, whole[len(known) :].rstrip("\ufffd"))
        else:
            ids = ()
        if end:
            # The draft's end of text is the target's, by the lowest id where it has several.
            ends = sorted(self.config.vocab.eos)[:1]
        else:
            ends = []
        return Draft.chain_draft(root, [*ids, *ends][:most])

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.reader.text += verdict.written_tokens(draft)

    def fork_guess(self, session: Session, choice: int | None = None) -> OtherTokenizerGuess:
        """A guess with a fork of the draft's session.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return OtherTokenizerGuess(self.config, self.reader.fork(choice))

    def close(self) -> None:
        self.reader.close()
