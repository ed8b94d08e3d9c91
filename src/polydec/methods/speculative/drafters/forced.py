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
    """Proposes the tokens that must come, as the tokenizer spells them: where all allowed texts go on with the same bytes, and
    every allowed token is a part of these. At the first place where an allowed token reaches beyond them the draft ends, so no
    boundary between tokens is put where the model would not have it. A finished text is ended in the same pass.

    The model is asked all the same, and may spell the bytes in another way: drafts are verified like any other.

    vocab: of the target, whose words spell what must come; language: None where nothing is constrained: nothing is proposed
    then.

    Exact: law, under any exact verifier: the draft is a function of the text.
    Reduces to: no draft without a constraint.
    Source: Zheng et al., "SGLang: efficient execution of structured language model programs" (2024), jump-forward decoding.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"rejected": "what must come is never rejected"}
    vocab: TokenVocabulary
    language: TokenLanguage[Any] | None = None

    def open(self, prompt: Sequence[int], session: Session) -> ForcedGuess:
        return ForcedGuess(self, None if self.language is None else self.language.start())

    def tokens(self, state: Any, most: int) -> list[int]:
        """What must come behind a text, at most so many tokens."""
        words = self.vocab.words
        language = self.language
        out = list[int]()
        if language is None or words is None:
            return out
        pieces = words.pieces
        rest = language.forced(state)
        spelled = _spelled(words, rest)
        while len(out) < most:
            allowed = language.mask(state).nonzero()[: FEW + 1, 0].tolist()
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
            state = language.step(state, token)
            rest = rest[len(_piece(pieces, token)) :]
            if not rest:
                rest = language.forced(state)
                spelled = _spelled(words, rest)
            else:
                if spelled and spelled[0] == token:
                    spelled = spelled[1:]
                else:
                    spelled = _spelled(words, rest)
        return out


def _piece(pieces: Sequence[bytes | None], token: int) -> bytes:
    return (pieces[token] if token < len(pieces) else None) or b""


def _spelled(words: Any, text: bytes) -> tuple[int, ...]:
    """The tokenizer's own tokens of some bytes, as far as they are whole characters."""
    try:
        return words.encode(text.decode(errors="ignore"), special=False)
    except PolydecError:
        return ()


@dataclass
class ForcedGuess:
    """state: of the language, behind the root."""

    config: JumpForwardDrafter
    state: Any

    @property
    def price(self) -> float:
        return 0.0

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return Draft.chain(root, self.config.tokens(self.state, min(budget.depth, budget.nodes)))

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        language = self.config.language
        if language is not None:
            for x in verdict.tokens(draft):
                self.state = language.step(self.state, x)

    def fork(self, session: Session, choice: int | None = None) -> ForcedGuess:
        return ForcedGuess(self.config, self.state)

    def close(self) -> None:
        pass
