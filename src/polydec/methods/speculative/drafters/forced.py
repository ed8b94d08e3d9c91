"""What the constraint leaves no choice about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from polydec.base.errors import PolydecError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

FEW = 64
"""Tokens that may begin the same bytes: where more are allowed, they are not forced."""


@dataclass(frozen=True)
class JumpForwardDrafter:
    """Propose the tokens that a constraint leaves no choice about, as the tokenizer spells them.

    Tokens are proposed where all allowed texts go on with the same bytes, and every allowed token
    is a part of these. At the first place where an allowed token reaches beyond them the draft
    ends, so no boundary between tokens is put where the model would not have it. A finished text is
    ended in the same pass.

    The model is asked all the same, and may spell the bytes in another way: drafts are verified
    like any other.

    Attributes:
        vocab: The target's vocabulary, whose tokenizer spells what must come.
        language: The constraint. None: nothing is constrained, and nothing is proposed.

    Exact: law, under any exact verifier: the draft is a function of the text.
    Reduces to: no draft without a constraint.
    Source: Zheng et al., "SGLang: efficient execution of structured language model programs"
    (2024), jump-forward decoding.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"rejected": "what must come is never rejected"}
    vocab: TokenVocabulary
    language: TokenLanguage[Any] | None = None

    def open_guess(self, prompt: Sequence[int], session: Session) -> ForcedGuess:
        """Begin a sequence.

        Args:
            prompt: Not used: the constraint is on the answer.
            session: Not used.

        Returns:
            The guess, at the beginning of the constraint's language.
        """
        return ForcedGuess(self, None if self.language is None else self.language.start_state())

    def forced_tokens(self, state: Any, most: int) -> list[int]:
        """The tokens that must come after a text.

        Args:
            state: State of the language after the text.
            most: Most tokens.

        Returns:
            Token ids, none where there is a choice.
        """
        words = self.vocab.words
        language = self.language
        out = list[int]()
        if language is None or words is None:
            return out
        pieces = words.pieces
        rest = language.forced_bytes(state)
        spelled = _spelled(words, rest)
        while len(out) < most:
            # One more than FEW is enough to see that there are too many.
            allowed = language.token_mask(state).nonzero()[: FEW + 1, 0].tolist()
            # A single allowed token must come, whatever it is: an end of the text too. Else the
            # tokenizer's own next token is taken, if no allowed token disagrees with the bytes that
            # must come (a token without bytes does).
            if len(allowed) == 1:
                token: int = allowed[0]
            elif (
                spelled
                and spelled[0] in allowed
                and len(allowed) <= FEW
                and all(rest.startswith(_piece(pieces, x) or b"\0\0") for x in allowed)
            ):
                token = spelled[0]
            else:
                break
            out.append(token)
            state = language.next_state(state, token)
            # The bytes of the token are done. Where it was not the spelled one, the rest is spelled
            # anew.
            rest = rest[len(_piece(pieces, token)) :]
            if not rest:
                rest = language.forced_bytes(state)
                spelled = _spelled(words, rest)
            elif spelled and spelled[0] == token:
                spelled = spelled[1:]
            else:
                spelled = _spelled(words, rest)
        return out


def _piece(pieces: Sequence[bytes | None], token: int) -> bytes:
    # Special tokens, and ids beyond the tokenizer's own, stand for no bytes.
    return (pieces[token] if token < len(pieces) else None) or b""


def _spelled(words: Any, text: bytes) -> tuple[int, ...]:
    """The tokenizer's own tokens of some bytes, as far as they are whole characters."""
    # A character that is cut at the end is left out: its bytes are not yet a text.
    try:
        return words.encode(text.decode(errors="ignore"), special=False)
    except PolydecError:
        return ()


@dataclass
class ForcedGuess:
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        state: State of the language after the root.
    """

    config: JumpForwardDrafter
    state: Any

    @property
    def price(self) -> float:
        return 0.0

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose what must come.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: the draft is certain.

        Returns:
            The chain.
        """
        return Draft.chain_draft(
            root, self.config.forced_tokens(self.state, min(budget.depth, budget.nodes))
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Move the language on by what was written.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        language = self.config.language
        # The language must know every token written, drafted or not.
        if language is not None:
            for x in verdict.written_tokens(draft):
                self.state = language.next_state(self.state, x)

    def fork_guess(self, session: Session, choice: int | None = None) -> ForcedGuess:
        """A guess at the same place of the language.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return ForcedGuess(self.config, self.state)

    def close(self) -> None:
        pass
