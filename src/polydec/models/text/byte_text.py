"""A tokenizer of bytes next to another one: what a text over bytes is spelled with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.decoders import ByteLevel as Spelled
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from polydec.base.errors import RequestError
from polydec.core.types import TokenCodec
from polydec.models.text.tokenizer import Tokenizer, byte_alphabet

BYTES = 256
"""Symbols below this are bytes, those from here on marks."""


@dataclass(frozen=True)
class SpecialTokenTable:
    """The tokens of a tokenizer that no bytes spell, in the order of their ids.

    Attributes:
        tokens: Their ids.
        names: How a chat template writes each.
        ends: Which of them end a text, by their place here.
        main: The one that usually does; None: none does.
    """

    tokens: tuple[int, ...]
    names: tuple[str, ...]
    ends: frozenset[int]
    main: int | None

    @cached_property
    def own(self) -> tuple[tuple[int, ...], ...]:
        """Of each mark the tokens that mean it."""
        return tuple((x,) for x in self.tokens)

    def of_tokenizer(self, other: SpecialTokenTable) -> tuple[tuple[int, ...], ...]:
        """Of each of these marks the tokens of another tokenizer that mean it.

        They are those of the same name; every further token that ends a text there is added to the
        mark that usually ends it here.
        """
        known = dict(zip(other.names, other.tokens))
        ends = {other.tokens[k] for k in other.ends}
        out: list[tuple[int, ...]] = [
            # A name that ends texts in one tokenizer and not in the other means two things.
            (known[name],) if name in known and (known[name] in ends) == (k in self.ends) else ()
            for k, name in enumerate(self.names)
        ]
        if self.main is not None:
            # Ends that no mark means yet, so that a text can end in every way it could.
            left = ends - {x for tokens in out for x in tokens}
            out[self.main] += tuple(sorted(left))
        return tuple(out)


def marks_of(text: Tokenizer) -> SpecialTokenTable:
    """Special tokens, and whatever ends a text.

    Raises:
        RequestError: It is not known what bytes its tokens stand for.
    """
    if all(piece is None for piece in text.pieces):
        raise RequestError(
            "units is bytes: this model's tokenizer spells its tokens in their context only, so their bytes are not known"
        )
    added = {
        i: token.content
        for i, token in text.tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    # An end may be an ordinary token: it gets a name of its own.
    tokens = tuple(sorted({*added, *text.eos}))
    names = tuple(added.get(x, f"<end {x}>") for x in tokens)
    ends = frozenset(k for k, x in enumerate(tokens) if x in text.eos)
    # The end that the tokenizer names is the usual one, else the one with the lowest id.
    usual = text.names.get("eos_token")
    main = next((k for k in sorted(ends) if names[k] == usual), min(ends, default=None))
    return SpecialTokenTable(tokens, names, ends, main)


def byte_text(text: Tokenizer) -> Tokenizer:
    """The tokenizer of the same texts whose tokens are their bytes, then the marks: 256 + k is the
    mark k.

    The chat template stays, and so do the marks that stand before every text.
    """
    marks = marks_of(text)
    # A byte-level vocabulary without merges: one token a byte.
    tokenizer = HFTokenizer(BPE(byte_alphabet(), []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = Spelled()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in marks.names]
    )
    # What the other tokenizer writes for an empty text are its own marks, such as BOS.
    before = [BYTES + marks.tokens.index(x) for x in text.encode("") if x in marks.tokens]
    if before:
        tokenizer.post_processor = TemplateProcessing(
            single=[*(f"M{i}" for i in range(len(before))), "$A"],
            special_tokens=[(f"M{i}", x) for i, x in enumerate(before)],
        )
    twin = Tokenizer(tokenizer, eos=[BYTES + k for k in marks.ends], names=text.names)
    twin.template, twin.tool_template = text.chat_templates
    twin.named_templates = text.named_templates
    twin.rows = BYTES + len(marks.tokens)
    return twin


def lead_of(text: TokenCodec) -> bytes:
    """The bytes that a tokenizer writes before every text: a space, or nothing."""
    first = text.encode("a", special=False)
    if first:
        piece = text.pieces[first[0]]
    else:
        piece = None
    if piece is not None and piece.startswith(b" "):
        return b" "
    return b""


def start_of(text: Tokenizer) -> tuple[int, ...]:
    """A token to read before a text that begins with nothing: what the tokenizer calls its
    beginning, or what ends a text."""
    named = text.names.get("bos_token")
    if named is None:
        begin = None
    else:
        begin = text.tokenizer.token_to_id(named)
    if begin is not None:
        token = begin
    else:
        token = min(text.eos, default=None)
    if token is None:
        return ()
    return (token,)
