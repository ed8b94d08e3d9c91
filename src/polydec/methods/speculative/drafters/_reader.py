"""A draft model that reads along in a text of another tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from polydec.base.errors import PolydecError, RequestError
from polydec.core.protocols import Session, Target
from polydec.core.types import RowDetail, ScoreRequest, TokenCodec, TokenVocabulary


def words_of(vocab: TokenVocabulary, who: str) -> TokenCodec:
    """Raises RequestError where a vocabulary has no spelling."""
    if vocab.words is None:
        raise RequestError(
            f"{who} has no tokenizer: a draft of another tokenizer is given the text"
        )
    return vocab.words


def check_draft_vocabularies(draft: Target, vocab: TokenVocabulary, context: int) -> None:
    """Raise RequestError unless the draft's vocabulary and the target's, `vocab`, have words, and context lies in 16 to
    65536."""
    words_of(vocab, "the target")
    words_of(draft.vocab, "the draft")
    if not 16 <= context <= 65536:
        raise RequestError(f"context is {context}: it must lie in 16 to 65536")


@dataclass
class OtherTokenizerReader:
    """text: the target's ids, the pending root included. The draft's session holds `fed` of them as the draft spells
    them, from its token `start` on; what is spelled anew is rewound."""

    draft: Target
    words: TokenCodec
    context: int
    text: list[int]
    start: int = 0
    session: Session | None = None
    fed: list[int] = field(default_factory=list[int])

    @classmethod
    def of(cls, draft: Target, vocab: TokenVocabulary, context: int, prompt: Sequence[int]) -> Self:
        """At the end of a prompt of the target, whose vocabulary is `vocab`."""
        return cls(draft, words_of(vocab, "the target"), context, list(prompt))

    async def catch_up(self) -> tuple[Session, int] | None:
        """The session at the end of the text, and the draft's pending root; None where the text ends inside a character,
        holds nothing but special tokens, or cannot be spelled."""
        string = self.words.decode(self.text)
        if not string or string.endswith("\ufffd"):
            return None
        try:
            ids = words_of(self.draft.vocab, "the draft").encode(string)
        except PolydecError:
            return None
        # Begin again with the last half.
        if len(ids) - self.start > self.context:
            self.start = len(ids) - self.context // 2
            self.close()
        ids = ids[min(self.start, len(ids) - 1) :]
        if self.session is None:
            self.session = self.draft.open(ids)
        else:
            same = next(
                (i for i, (a, b) in enumerate(zip(self.fed, ids[:-1], strict=False)) if a != b),
                min(len(self.fed), len(ids) - 1),
            )
            if same < len(self.fed):
                self.session.rewind(len(self.fed) - same)
            self.session.commit(ids[same:-1])
        self.fed = list(ids[:-1])
        await self.session.prefill(ScoreRequest(law=RowDetail.NOTHING))
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
    """Of each token of the draft the one of the target that stands for the same bytes, where there is one; and of an end
    an end. No token of the target appears twice."""
    first: dict[bytes, int] = {}
    for i, piece in enumerate(words_of(target, "the target").pieces[: target.size]):
        if piece and i not in target.eos:
            first.setdefault(piece, i)
    out: dict[int, int] = {}
    for i, piece in enumerate(words_of(draft, "the draft").pieces[: draft.size]):
        if piece and i not in draft.eos and piece in first:
            out[i] = first.pop(piece)
    if draft.eos and target.eos:
        out[min(draft.eos)] = min(target.eos)
    return out


def retokenise_addition(words: TokenCodec, before: Sequence[int], addition: str) -> tuple[int, ...]:
    """The ids of `addition` where it stands behind the tokens `before`, of which the last few count; () where there are
    none."""
    tail = words.decode(before[-16:])
    try:
        head = words.encode(tail, special=False)
        whole = words.encode(tail + addition, special=False)
        if whole[: len(head)] == head:
            return whole[len(head) :]
        return words.encode(addition, special=False)
    except PolydecError:
        return ()
