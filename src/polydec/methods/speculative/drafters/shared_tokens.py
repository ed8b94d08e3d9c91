"""A draft model with another tokenizer, held to the tokens that both vocabularies have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from polydec.core.law import NEG_INF, float64_probabilities, normalise_log_weights
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.speculative.drafters._reader import (
    OtherTokenizerReader,
    check_draft_vocabularies,
    shared_token_map,
)
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class SharedTokensDrafter:
    """Draw a chain from a draft of another tokenizer, on the tokens that both vocabularies share.

    The law is the draft's on those of its tokens that stand for the same bytes as one of the
    target's tokens, renormalised; each node carries that law in the target's ids. The draft reads
    the text in its own spelling, as `other_tokenizer` does. It stops where its law has no weight on
    a shared token (a greedy draft: where its token is not shared). An end is shared with an end.
    Both vocabularies must have a tokenizer.

    Attributes:
        draft: The draft model.
        vocab: The target's vocabulary.
        context: Most tokens that the draft reads, 16 to 65536. Default 512.

    Exact: law, under any exact verifier: a node's law is the one that it was drawn from.
    Reduces to: a draft model with a `chain` where the two tokenizers are one; `nothing` where they
    share no token.
    Source: Timor et al., "Accelerating LLM inference with lossless speculative decoding algorithms
    for heterogeneous vocabularies" (2025), "token-level intersection".
    """

    draft: Target
    vocab: TokenVocabulary
    context: int = 512

    def __post_init__(self) -> None:
        check_draft_vocabularies(self.draft, self.vocab, self.context)

    def open_guess(self, prompt: Sequence[int], session: Session) -> SharedTokensGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used: the draft model has a session of its own.

        Returns:
            The guess.
        """
        reader = OtherTokenizerReader.of_prompt(self.draft, self.vocab, self.context, prompt)
        # The map of the two vocabularies is made once for all requests.
        return SharedTokensGuess(
            reader, SharedVocabulary.of_models(self.draft.vocab, self.vocab), self.vocab.size
        )


@dataclass(frozen=True)
class SharedVocabulary:
    """The tokens that two vocabularies share.

    Attributes:
        twin: For each shared token id of the draft the id of the target.
        back: The other way.
        ours_K: The draft's ids, shape ``[K]``.
        theirs_K: The target's ids in the same order, shape ``[K]``.
    """

    twin: dict[int, int]
    back: dict[int, int]
    ours_K: Tensor
    theirs_K: Tensor

    @staticmethod
    @lru_cache(maxsize=8)
    def of_models(draft: TokenVocabulary, target: TokenVocabulary) -> SharedVocabulary:
        """The shared tokens of two vocabularies, computed once for the same two.

        Args:
            draft: The draft's vocabulary.
            target: The target's vocabulary.

        Returns:
            The record.
        """
        twin = shared_token_map(draft, target)
        return SharedVocabulary(
            twin,
            {b: a for a, b in twin.items()},
            torch.tensor(list(twin)),
            torch.tensor(list(twin.values())),
        )


@dataclass(frozen=True)
class SharedTokensGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        reader: The draft's session, which follows the text.
        shared: The tokens that both vocabularies share.
        size: Tokens of the target's vocabulary.
    """

    reader: OtherTokenizerReader
    shared: SharedVocabulary
    size: int

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Draw a chain of shared tokens.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. The token of each depth is drawn at
                ``rng.child_stream("draft", position, depth)``.

        Returns:
            The chain.
        """
        most = min(budget.depth, budget.nodes)
        draft = Draft.chain_draft(root)
        # Without a shared token no guess of the draft has a name in the target's vocabulary.
        if most > 0 and self.shared.twin:
            place = await self.reader.catch_up()
        else:
            place = None
        if place is None:
            return draft
        session, first = place
        chain = Draft.chain_draft(first)
        shared = self.shared
        for depth in range(1, most + 1):
            scores = await session.score_draft(chain, ScoreRequest())
            only = scores.certain_token(depth - 1)
            # A token that is certain has no law to compare.
            law_V = None
            p = 1.0
            draw = DrawKind.CERTAIN
            if only is not None:
                # A greedy draft's token that the target does not have ends the draft.
                if only not in shared.twin:
                    break
                token = shared.twin[only]
            else:
                row_V = scores.logprob_row(depth - 1)
                draw = DrawKind.INDEPENDENT
                # The draft's row on shared tokens, renormalised and written to the target's ids.
                shared_K = row_V[shared.ours_K.to(row_V.device)]
                # No shared token is possible here: the draft ends.
                if not float(shared_K.max()) > NEG_INF:
                    break
                law_V = row_V.new_full((self.size,), NEG_INF)
                law_V[shared.theirs_K.to(row_V.device)] = normalise_log_weights(shared_K)
                p_V = float64_probabilities(law_V)
                token = rng.child_stream("draft", position, depth).draw_categorical(p_V)
                p = float(p_V[token])
            draft = draft.with_node(token, depth - 1, draw, law_V, p)
            # Two chains of the same tokens: `draft` in the target's ids, `chain` in the draft's
            # own.
            chain = chain.with_node(shared.back[token], depth - 1, DrawKind.CERTAIN, None)
            if not budget.go_on(depth, p):
                break
        return draft

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.reader.text += verdict.written_tokens(draft)

    def fork_guess(self, session: Session, choice: int | None = None) -> SharedTokensGuess:
        """A guess with a fork of the draft's session.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return SharedTokensGuess(self.reader.fork(choice), self.shared, self.size)

    def close(self) -> None:
        self.reader.close()
