"""A draft model that reads along in a text of another tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from polydec.base.errors import PolydecError, RequestError
from polydec.core.protocols import Session, Target
from polydec.core.types import RowDetail, ScoreRequest, TokenCodec, TokenVocabulary


def words_of(vocab: TokenVocabulary, who: str) -> TokenCodec:
    """The tokenizer of a vocabulary.

    Args:
        vocab: The vocabulary.
        who: How a message names its owner, such as "the draft".

    Returns:
        The tokenizer.

    Raises:
        RequestError: The vocabulary has none.
    """
    if vocab.words is None:
        raise RequestError(
            f"{who} has no tokenizer: a draft of another tokenizer is given the text"
        )
    return vocab.words


def check_draft_vocabularies(draft: Target, vocab: TokenVocabulary, context: int) -> None:
    """Check that a draft model of another tokenizer can read along.

    Args:
        draft: The draft model.
        vocab: The target's vocabulary.
        context: Most tokens that the draft reads. Must lie in 16 to 65536.

    Raises:
        RequestError: One of the vocabularies has no tokenizer, or `context` lies outside.
    """
    words_of(vocab, "the target")
    words_of(draft.vocab, "the draft")
    if not 16 <= context <= 65536:
        raise RequestError(f"context is {context}: it must lie in 16 to 65536")


@dataclass
class OtherTokenizerReader:
    """A draft model's session that follows a text of the target, spelled in the draft's own tokens.

    Attributes:
        draft: The draft model.
        words: The target's tokenizer.
        context: Most tokens that the draft reads. Beyond, it begins again with the last half.
        text: The target's token ids, the pending root included.
        start: Index of the draft's token of the text that its session begins with.
        session: The draft's session. None: it has read nothing yet.
        fed: The draft's token ids that its session has committed.
    """

    draft: Target
    words: TokenCodec
    context: int
    text: list[int]
    start: int = 0
    session: Session | None = None
    fed: list[int] = field(default_factory=list[int])

    @classmethod
    def of_prompt(
        cls, draft: Target, vocab: TokenVocabulary, context: int, prompt: Sequence[int]
    ) -> Self:
        """A reader at the end of a prompt.

        Args:
            draft: The draft model.
            vocab: The target's vocabulary.
            context: Most tokens that the draft reads.
            prompt: The target's token ids of the prompt.

        Returns:
            The reader. Nothing is fed yet.

        Raises:
            RequestError: The target has no tokenizer.
        """
        return cls(draft, words_of(vocab, "the target"), context, list(prompt))

    async def catch_up(self) -> tuple[Session, int] | None:
        """Feed the draft what the text has gained.

        Returns:
            The draft's session at the end of the text, and the draft's pending root. None where the
            text ends inside a character, has nothing but special tokens, or cannot be spelled.
        """
        string = self.words.decode(self.text)
        # A text that is cut inside a character decodes to a replacement mark at its end.
        if not string or string.endswith("\ufffd"):
            return None
        try:
            ids = words_of(self.draft.vocab, "the draft").encode(string)
        except PolydecError:
            return None
        # The draft's context is full: it begins again with the last half of it, so that this
        # happens seldom.
        if len(ids) - self.start > self.context:
            self.start = len(ids) - self.context // 2
            self.close()
        ids = ids[min(self.start, len(ids) - 1) :]
        if self.session is None:
            self.session = self.draft.open_session(ids)
        else:
            # The new tokens may merge with old ones into another spelling: the session goes back to
            # the last token that both spellings share.
            same = next(
                (i for i, (a, b) in enumerate(zip(self.fed, ids[:-1], strict=False)) if a != b),
                min(len(self.fed), len(ids) - 1),
            )
            if same < len(self.fed):
                self.session.rewind_tokens(len(self.fed) - same)
            self.session.commit_tokens(ids[same:-1])
        self.fed = list(ids[:-1])
        await self.session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        return self.session, ids[-1]

    def fork(self, choice: int | None = None) -> OtherTokenizerReader:
        if self.session is None:
            session = None
        else:
            session = self.session.fork(choice)
        return OtherTokenizerReader(
            self.draft,
            self.words,
            self.context,
            list(self.text),
            self.start,
            session,
            list(self.fed),
        )

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None


def shared_token_map(draft: TokenVocabulary, target: TokenVocabulary) -> dict[int, int]:
    """Pair the tokens of two vocabularies that stand for the same bytes.

    An end of the draft is paired with an end of the target. Special tokens that mean no bytes have
    no pair.

    Args:
        draft: The draft's vocabulary.
        target: The target's vocabulary.

    Returns:
        For each shared token id of the draft the id of the target. No id of the target appears
        twice.

    Raises:
        RequestError: One of the vocabularies has no tokenizer.
    """
    first: dict[bytes, int] = {}
    for i, piece in enumerate(words_of(target, "the target").pieces[: target.size]):
        if piece and i not in target.eos:
            first.setdefault(piece, i)
    out: dict[int, int] = {}
    for i, piece in enumerate(words_of(draft, "the draft").pieces[: draft.size]):
        if piece and i not in draft.eos and piece in first:
            # A piece that the target has once is given away once, so that the map can be inverted.
            out[i] = first.pop(piece)
    if draft.eos and target.eos:
        out[min(draft.eos)] = min(target.eos)
    return out


def retokenise_addition(words: TokenCodec, before: Sequence[int], addition: str) -> tuple[int, ...]:
    """Spell an addition as it reads after other tokens.

    Args:
        words: The tokenizer.
        before: Token ids before it, of which the last 16 count.
        addition: Text to spell.

    Returns:
        Its token ids; none where it cannot be spelled.
    """
    tail = words.decode(before[-16:])
    try:
        # Spelled together with the text before it, since tokenizers merge over the boundary. Where
        # that changes the spelling of what is already written, the addition is spelled alone.
        head = words.encode(tail, special=False)
        whole = words.encode(tail + addition, special=False)
        if whole[: len(head)] == head:
            return whole[len(head) :]
        return words.encode(addition, special=False)
    except PolydecError:
        return ()
