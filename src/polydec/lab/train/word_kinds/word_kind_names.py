"""The kinds of `polydec train words` by name."""

from __future__ import annotations

from collections.abc import Mapping

from polydec.lab.train.word_kinds import (
    byte2word,
    hat,
    lexinvariant,
    masked_words,
    plain_bytes,
    tokens,
    word_pooled,
)
from polydec.lab.train.word_kinds.protocols import WordModelKind

KINDS: Mapping[str, WordModelKind] = {
    "bytes": plain_bytes.KIND,
    "lexinvariant": lexinvariant.KIND,
    "word-pooled": word_pooled.KIND,
    "hat": hat.KIND,
    "byte2word": byte2word.KIND,
    "masked-words": masked_words.KIND,
    "tokens": tokens.KIND,
}
