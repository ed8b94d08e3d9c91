"""Text to token ids and back: encoding, chat templates, and answers that are written token by
token."""

from __future__ import annotations

import hashlib
import json
import os
from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, Protocol

from tokenizers import Tokenizer as HFTokenizer

from polydec.base.errors import PolydecError, RequestError
from polydec.core.request import TextWriter
from polydec.models.formats.edge import error_sentence, first_line
from polydec.models.formats.thinking_marks import (
    Segment,
    ThinkingMarks,
    ThinkingReader,
    ThinkingSegmentKind,
    marks_of,
)
from polydec.models.text import message_forms
from polydec.models.text.added_tokens import add_tokens, named_tokens
from polydec.models.text.chat_template import ChatTemplate
from polydec.models.text.control_tokens import ControlTokens

LONG = 1 << 12
"""Characters from which on a text is encoded beside other threads, and without where each token
stands in it."""
PART = 1 << 15
"""Characters that are counted at a time."""


class Tokenizer:
    """One tokenizer: text to token ids and back, and chats to text.

    Args:
        tokenizer: Of the `tokenizers` library.
        eos: Ids that end an answer.
        template: A chat template in Jinja, as Hugging Face writes them, or several by name, of
            which "default" is the usual one and "tool_use" that of chats with tools. None: there is
            none.
        names: Special tokens by role ("bos_token": "<s>"), which templates refer to.
        tokens: All tokens in the order of their ids, where somebody has them so (to read them back
            takes a tenth of a second); else None.
    """

    def __init__(
        self,
        tokenizer: HFTokenizer,
        *,
        eos: Iterable[int] = (),
        template: str | Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        tokens: Sequence[str] | None = None,
    ) -> None:
        # A tokenizer.json may ask for both, for training; they would cut prompts in silence.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.eos = frozenset(eos)
        self.names = dict(names or {})
        self._in_order = tokens
        if isinstance(template, str):
            named = {"default": template}
        else:
            named = template or {}
        templates = {name: ChatTemplate(source) for name, source in named.items()}
        self.template = templates.get("default")
        self.tool_template = templates.get("tool_use")  # of chats with tools, where it has one
        self.named_templates = tuple(name for name in templates if name != "default")
        self.rows: int | None = (
            None  # how many tokens the model behind it knows, where that is known
        )
        self._skipped = {
            i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }

    @staticmethod
    def from_tokenizer_json(
        source: str | PathLike[str] | Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        *,
        added: Mapping[str, int] | None = None,
        eos: Iterable[int] = (),
        template: str | Mapping[str, str] | None = None,
    ) -> Tokenizer:
        """Read a tokenizer.json.

        Args:
            source: Its path, or its content.
            config: Content of the tokenizer_config.json, whose tokens are added. None: there is
                none.
            added: Content of the added_tokens.json, whose tokens are added where the config lists
                none. None: there is none.
            eos: Ids that end an answer. Without any, the config's eos_token is the only one.
            template: A chat template, or several by name. None: the config's.

        Returns:
            The tokenizer.

        Raises:
            RequestError: It is no tokenizer.
        """
        try:
            if isinstance(source, Mapping):
                tokenizer = HFTokenizer.from_str(json.dumps(source))
            else:
                tokenizer = HFTokenizer.from_file(os.fspath(source))
        except BaseException as e:  # the library raises bare Exceptions, and panics that are none
            if isinstance(source, Mapping):
                where = "the tokenizer given"
            else:
                where = source
            raise _refusal(f"{where} is not a readable tokenizer.json", e) from None
        if not tokenizer.get_vocab_size():
            raise RequestError("the tokenizer has no tokens")
        add_tokens(tokenizer, config or {}, added)
        return Tokenizer.from_parts(tokenizer, config or {}, eos=eos, template=template)

    @staticmethod
    def from_parts(
        tokenizer: HFTokenizer,
        config: Mapping[str, Any],
        *,
        eos: Iterable[int] = (),
        template: str | Mapping[str, str] | None = None,
    ) -> Tokenizer:
        """Make a tokenizer of the library's one and its settings.

        Args:
            tokenizer: Of the `tokenizers` library; its added tokens are there already.
            config: Content of the tokenizer_config.json.
            eos: Ids that end an answer. Without any, the config's eos_token is the only one.
            template: A chat template, or several by name. None: the config's.

        Returns:
            The tokenizer.
        """
        names = named_tokens(config)
        eos = frozenset(eos)
        if not eos and "eos_token" in names:
            end = tokenizer.token_to_id(names["eos_token"])
            eos = frozenset(() if end is None else (end,))
        if template is None:
            template = named_templates(config.get("chat_template"))
        return Tokenizer(tokenizer, eos=eos, template=template, names=names)

    @property
    def size(self) -> int:
        """How many tokens there are; a model may have more rows than that."""
        return self.tokenizer.get_vocab_size()

    @cached_property
    def fingerprint(self) -> str:
        """The same for tokenizers whose ids mean the same: a hash of the token table."""
        if self._in_order is not None:
            table = list(enumerate(self._in_order))
        else:
            # The token table alone: names of files and settings do not change what ids mean.
            table = sorted((i, token) for token, i in self.tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]

    def encode(self, text: str, special: bool = True) -> tuple[int, ...]:
        """Token ids of a text. Special tokens that are written in it are taken as such.

        Args:
            text: The text.
            special: Whether the tokenizer adds its own marks (such as BOS). Default True.

        Returns:
            The ids.

        Raises:
            RequestError: The tokenizer has nothing for a part of the text, or an id that the model
                does not know.
        """
        return self._within_rows(self._encoded(text, special))

    def encode_sanitized(self, text: str, special: bool = True) -> tuple[int, ...]:
        """Token ids of a text in which `control_tokens` has marked what users wrote: control tokens
        there are plain text.

        Args:
            text: The text, with marks.
            special: Whether the tokenizer adds its own marks (such as BOS). Default True.

        Returns:
            The ids.

        Raises:
            RequestError: The text cannot be encoded, or only with a control token for plain text.
        """
        try:
            ids = tuple(self.control_tokens.encode_shown(text, special=special))
        except PolydecError:
            raise
        except BaseException as e:  # the library raises bare Exceptions, and panics that are none
            raise _refusal(f"the text {text[:40]!r} cannot be encoded", e) from None
        return self._within_rows(ids)

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """The tokens that may be plain text in what users write."""
        sources = [t.source for t in self.chat_templates if t is not None]
        return ControlTokens(self.tokenizer, sources)

    def _within_rows(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if self.rows is not None and ids and max(ids) >= self.rows:
            raise RequestError(
                f"the tokenizer makes token {max(ids)} of this text: the model has {self.rows} tokens"
            )
        return ids

    def _encoded(self, text: str, special: bool) -> tuple[int, ...]:
        """Only the library's form for several texts lets other threads run meanwhile."""
        try:
            if len(text) < LONG:
                return tuple(self.tokenizer.encode(text, add_special_tokens=special).ids)
            # This form gives no offsets, and lets go of the interpreter's lock.
            several = self.tokenizer.encode_batch_fast([text], add_special_tokens=special)
            return tuple(several[0].ids)
        except BaseException as e:  # the library raises bare Exceptions, and panics that are none
            raise _refusal(
                f"the text {text[:40]!r} cannot be encoded with this checkpoint's tokenizer", e
            ) from None

    def exceeds_limit(self, text: str, most: int) -> bool:
        """Whether a text certainly has more tokens than a limit, without encoding all of it.

        It has if its parts, each by itself, have more than twice as many.

        Args:
            text: The text.
            most: The limit, in tokens.

        Returns:
            True: it has more. False says nothing.
        """
        if len(text) <= max(PART, 4 * most):  # encoded at once: hardly any text has shorter tokens
            return False
        seen = 0
        for at in range(0, len(text), PART):
            seen += len(self._encoded(text[at : at + PART], special=False))
            # Cutting a text into parts makes a few tokens more at each cut, never twice as many.
            if seen > 2 * most:
                return True
        return False

    def decode(self, ids: Iterable[int], *, after: Sequence[int] = ()) -> str:
        """The text of token ids.

        Special tokens and ids beyond the table are left out; each malformed piece of UTF-8 becomes
        one U+FFFD.

        Args:
            ids: The ids.
            after: The tokens before them, which decide whether a leading space belongs to the text
                (a tokenizer that puts a space before every text takes it off again at the start of
                one). Default: none.

        Returns:
            The text.
        """
        speller = self._speller(after)
        return "".join([*map(speller.feed_token, ids), speller.end_text()])

    @property
    def pieces(self) -> tuple[bytes | None, ...]:
        """Of each id the bytes that it stands for; None for special tokens, gaps, and where the
        decoder looks at more than one token at a time."""
        return self._pieces

    @cached_property
    def _pieces(self) -> tuple[bytes | None, ...]:
        return tuple(None if self._rule is None else self._bytes[x] for x in range(self.size))

    @property
    def has_chat(self) -> bool:
        """Whether there is any chat template."""
        return self.template is not None or bool(self.named_templates)

    @property
    def chat_templates(self) -> tuple[ChatTemplate | None, ChatTemplate | None]:
        """The chat templates of chats without tools and with them."""
        return self.template, self.tool_template or self.template

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, reply: bool = True, **values: Any
    ) -> str:
        """The text of a chat.

        Contents are texts or lists of parts, {"type": "text", "text": …}; the template is given the
        form that it shows.

        Args:
            messages: Each with a role and a content, at least one.
            reply: Whether the text ends with what opens the assistant's next turn. Default True.
            values: Further names that the template may know (tools, enable_thinking …).

        Returns:
            The text.

        Raises:
            RequestError: There is no template, or it refuses the messages.
        """
        # Chats with tools have a template of their own in some checkpoints.
        template = self.chat_templates[values.get("tools") is not None]
        if template is None and self.named_templates:
            names = ", ".join(map(repr, self.named_templates))
            raise RequestError(
                error_sentence(
                    f"this checkpoint has the chat templates {names} and none of the name 'default': give a plain prompt"
                )
            )
        if template is None:
            raise RequestError("this checkpoint has no chat template: give a plain prompt")
        if not messages:
            raise RequestError("messages is empty: a chat needs at least one")
        for i, message in enumerate(messages):
            if (
                not isinstance(message, Mapping)
                or not isinstance(message.get("role"), str)
                or "content" not in message
            ):
                raise RequestError(
                    f"messages[{i}] is {message!r}: each must be a dict with role and content"
                )
        # Names that templates ask about must be defined, as in transformers.
        known = {"tools": None, "documents": None, **self.names}
        shown = message_forms.fit_messages(messages, template, self.names)
        return template.render(
            {**known, **values, "messages": shown, "add_generation_prompt": reply}
        )

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        return message_forms.shows_tools(*self.chat_templates, self.names)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **values: Any) -> tuple[int, ...]:
        """The prompt that asks for the assistant's next turn.

        Args:
            messages: Each with a role and a content, {"role": …, "content": …}.
            values: Further names that the template may know.

        Returns:
            Token ids.

        Raises:
            RequestError: There is no template, it refuses the messages, or its text cannot be
                encoded.
        """
        return self.encode(self.render_chat(messages, **values), special=False)

    @cached_property
    def thinking_marks(self) -> ThinkingMarks | None:
        """How the model separates its thinking from its answers, as its chat template or its tokens
        say; None: nothing is known."""
        source = "".join(x.source for x in self.chat_templates if x is not None)
        added = self.tokenizer.get_added_tokens_decoder().values()
        return marks_of(source, (token.content for token in added))

    def mark_names(self, marks: ThinkingMarks) -> dict[int, str]:
        """The control tokens that stand in these marks, by their ids. They are written like text
        where thinking is separated."""
        names = {i: self.tokenizer.id_to_token(i) or "" for i in self._skipped}
        return {i: n for i, n in names.items() if n and any(n in text for text in marks.texts)}

    def text_writers(
        self,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        *,
        after: Sequence[int] = (),
        min_tokens: int = 0,
        thinking: ThinkingReader | None = None,
    ) -> Callable[[], TextWriter]:
        """Make writers, each of which turns the tokens of one answer into text, piece by piece.

        The pieces, joined, are decode(all tokens) up to the first stop string. A stop string may
        begin and end inside tokens; what may still become one is held back.

        Args:
            stop: Stop strings, each of at least one character. Default: none.
            include_stop: Whether the stop string itself is written. Default False.
            after: Tokens of the prompt, which decide whether a leading space belongs to the text.
            min_tokens: A stop string that is complete within so many first tokens is text. Default
                0.
            thinking: Reads the marks of the thinking, which are written as well; stop strings then
                end the answer alone. None: nothing is known of thinking.

        Returns:
            A function that makes a writer.

        Raises:
            RequestError: A stop string is empty, or no text.
        """
        for s in stop:
            if not isinstance(s, str) or not s:
                raise RequestError(f"stop has {s!r}: each must be a text of at least one character")
        if thinking is not None:
            # Marks may be control tokens, which are not written otherwise.
            names = self.mark_names(thinking.marks)
            return lambda: ThinkingWriter(
                MarkSpeller(self._speller, tuple(after), names),
                thinking,
                StopWriter(_SILENT, tuple(stop), include_stop, min_tokens),
            )
        return lambda: StopWriter(self._speller(after), tuple(stop), include_stop, min_tokens)

    def _speller(self, after: Sequence[int]) -> TokenSpeller:
        if self._rule is None:
            return WindowSpeller(self.tokenizer, list(after))
        return ByteSpeller(self._bytes, self._rule, any(self._bytes[x] is not None for x in after))

    @cached_property
    def _rule(self) -> SpellingRule | None:
        decoder = self.tokenizer.decoder
        if decoder is None:
            return None
        return read_rule(json.loads(decoder.__getstate__()))

    @cached_property
    def _bytes(self) -> TokenSpellings:
        return TokenSpellings(self._spelled)

    def _spelled(self, token: int) -> bytes | None:
        if token in self._skipped:
            name = None
        else:
            name = self.tokenizer.id_to_token(token)
        if name is None or self._rule is None:
            return None
        return self._rule.spell(name)


class TokenSpellings(dict[int, bytes | None]):
    """What each token stands for, found when it is first asked for; None: nothing is written for
    it."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[int], bytes | None]) -> None:
        self._find = find

    def __missing__(self, token: int) -> bytes | None:
        self[token] = piece = self._find(token)
        return piece


def _refusal(what: str, e: BaseException) -> BaseException:
    """What the Rust library meets, in one sentence; an interrupt stays one."""
    if isinstance(e, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return e
    return RequestError(error_sentence(f"{what} ({first_line(e)})"))


def named_templates(
    template: str | Mapping[str, str] | Sequence[Mapping[str, str]] | None,
) -> dict[str, str] | None:
    """Chat templates by name, of what a checkpoint says: a single one is the one named "default"."""
    if template is None:
        return None
    if isinstance(template, str):
        return {"default": template}
    if isinstance(template, Mapping):
        return dict(template)
    return {entry["name"]: entry["template"] for entry in template}


class TokenSpeller(Protocol):
    """Turns tokens into complete characters."""

    def feed_token(self, token: int) -> str:
        """What becomes certain of the text with one more token."""
        ...

    def end_text(self) -> str:
        """What is left at the end of the text."""
        ...

    def fork(self) -> TokenSpeller:
        """A twin that goes on by itself."""
        ...


@dataclass(frozen=True)
class SpellingRule:
    """How tokens spell a text one by one.

    Attributes:
        spell: A token's name to its bytes.
        strip: How many leading spaces come off a text.
        marks: Whether all spaces of the first token do.
    """

    spell: Callable[[str], bytes]
    strip: int = 0
    marks: bool = False


def byte_alphabet() -> dict[str, int]:
    """Characters that stand for bytes in byte-level BPE: printable Latin-1 for themselves, the
    others from U+0100 on (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + n): b for n, b in enumerate(others)}


_ALPHABET = byte_alphabet()


def _spell_bytes(name: str) -> bytes:
    try:
        return bytes([_ALPHABET[c] for c in name])
    except KeyError:  # an added token, written as it is
        return name.encode()


def _spell_pieces(replaced: Sequence[tuple[str, str]], fallback: bool) -> Callable[[str], bytes]:
    def spell_piece(name: str) -> bytes:
        if fallback and len(name) == 6 and name[:3] == "<0x" and name[5] == ">":
            try:
                return bytes([int(name[3:5], 16)])
            except ValueError:
                pass
        for old, new in replaced:
            name = name.replace(old, new)
        return name.encode()

    return spell_piece


def read_rule(decoder: Mapping[str, Any]) -> SpellingRule | None:
    """The rule of a decoder (as in tokenizer.json) that spells token by token; None where it does
    not."""
    if decoder["type"] == "ByteLevel":
        return SpellingRule(_spell_bytes)
    if decoder["type"] == "Metaspace":
        return SpellingRule(
            _spell_pieces([(decoder["replacement"], " ")], False),
            marks=decoder.get("prepend_scheme", "always") != "never",
        )
    # Names one after another, as they are.
    if decoder["type"] == "Fuse":
        return SpellingRule(_spell_pieces([], False))
    if decoder["type"] != "Sequence":
        return None
    # The usual sequence of SentencePiece vocabularies: Replace, ByteFallback, Fuse, Strip. With any
    # other part left, tokens are not spelled one by one.
    parts = list(decoder["decoders"])
    replaced = list[tuple[str, str]]()
    strip = 0
    # A rule of decoding is a chain of steps; what is not known makes the caller decode as a whole.
    while parts and parts[0]["type"] == "Replace" and "String" in parts[0]["pattern"]:
        replaced.append((parts[0]["pattern"]["String"], parts.pop(0)["content"]))
    if fallback := bool(parts) and parts[0]["type"] == "ByteFallback":
        parts.pop(0)
    # Fuse joins the pieces; only behind it a space at the beginning can be stripped.
    if parts and parts[0]["type"] == "Fuse":
        parts.pop(0)
        if (
            parts
            and parts[0]["type"] == "Strip"
            and parts[0]["content"] == " "
            and not parts[0]["stop"]
        ):
            strip = parts.pop(0)["start"]
    if parts or not (replaced or fallback):
        return None
    return SpellingRule(_spell_pieces(replaced, fallback), strip)


class ByteSpeller:
    """Bytes of one token after another; a character is written when its last byte has come."""

    def __init__(self, bytes_of: TokenSpellings, rule: SpellingRule, inside: bool) -> None:
        self._bytes_of, self._begun = bytes_of, b""  # begun: the first bytes of a character
        self._strip, self._marks = (0, False) if inside else (rule.strip, rule.marks)

    def feed_token(self, token: int) -> str:
        piece = self._bytes_of[token]
        if piece is None:
            return ""
        if self._marks:
            piece = piece.replace(b" ", b"")
            self._marks = False
        # Leading spaces come off the text, whichever tokens they stand in; another character ends
        # that.
        while self._strip and piece:
            piece, self._strip = (piece[1:], self._strip - 1) if piece[:1] == b" " else (piece, 0)
        # Bytes of a character that is not complete yet wait for the next token.
        data = self._begun + piece
        text, used = utf_8_decode(data, "replace", False)
        self._begun = data[used:]
        return text

    def end_text(self) -> str:
        begun = self._begun
        self._begun = b""
        return utf_8_decode(begun, "replace", True)[0]

    def fork(self) -> ByteSpeller:
        return copy(self)


class WindowSpeller:
    """A speller for decoders that look at neighbours: what a few tokens decode to with the next
    one, less what they do without."""

    def __init__(self, tokenizer: HFTokenizer, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = before[-8:]
        self._known = len(self._ids)  # these are written; they stand in the window as context
        self._written = tokenizer.decode(self._ids)

    def feed_token(self, token: int) -> str:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        # A character that is not complete yet is decoded as U+FFFD: it waits.
        if text.endswith("\ufffd") or len(text) <= len(self._written):
            return ""
        piece = text[len(self._written) :]
        # What was context goes, and what was just written is the new context.
        self._ids = self._ids[self._known :]
        self._known, self._written = len(self._ids), self._tokenizer.decode(self._ids)
        return piece

    def end_text(self) -> str:
        return self._tokenizer.decode(self._ids)[len(self._written) :]

    def fork(self) -> WindowSpeller:
        # Token ids are a list: the twin needs its own.
        twin = copy(self)
        twin._ids = list(self._ids)
        return twin


class StopWriter:
    """Holds back what may become a stop string.

    Of several, the one that is complete first ends the text; none does that is complete within the
    first `min_tokens` tokens, as in vLLM.

    Args:
        speller: Turns tokens into characters.
        stop: The stop strings.
        include_stop: Whether the stop string itself is written.
        min_tokens: A stop string that is complete within so many first tokens is text. Default 0.
    """

    def __init__(
        self, speller: TokenSpeller, stop: tuple[str, ...], include_stop: bool, min_tokens: int = 0
    ) -> None:
        self._speller = speller
        self._stop = stop
        self._include = include_stop
        self._withheld = ""
        self._tokens_left = min_tokens
        self.stopped = False

    def push_token(self, token: int) -> str:
        if self.stopped:
            return ""
        piece = self._speller.feed_token(token)
        stops_count = self.count_token()
        if self._stop:
            return self.take_piece(piece, stops_count)
        return piece

    def end_text(self) -> str:
        if self.stopped:
            return ""
        return self.take_piece(self._speller.end_text(), self.complete) + self.rest_text()

    def fork(self) -> StopWriter:
        twin = copy(self)
        twin._speller = self._speller.fork()
        return twin

    @property
    def complete(self) -> bool:
        """Whether as many tokens as a text must have are written."""
        return self._tokens_left <= 0

    def count_token(self) -> bool:
        """Count one token, and say whether a stop string that it completes ends the text."""
        self._tokens_left -= 1
        return self._tokens_left < 0

    def rest_text(self) -> str:
        """What was held back."""
        withheld = self._withheld
        self._withheld = ""
        return withheld

    def take_piece(self, piece: str, stops_count: bool) -> str:
        """What becomes certain of the text with one more piece.

        Args:
            piece: The text that the last token added.
            stops_count: Whether a stop string that is complete in it ends the text.

        Returns:
            Text that no stop string can begin in any more.
        """
        # Nothing is ever held back without stop strings.
        if not self._stop or not piece:
            return piece
        text = self._withheld + piece
        seen = len(self._withheld)
        stops = [
            (at + len(s), at)
            for s in self._stop
            if (at := text.find(s, max(0, seen - len(s) + 1))) >= 0  # it ends in the piece
        ]
        if stops and stops_count:
            # The earliest end wins, and of equal ends the longest stop string.
            stop, start = min(stops)
            self._withheld = ""
            self.stopped = True
            return text[: stop if self._include else start]
        # The longest end of the text that begins some stop string is held back.
        keep = max(_overlap(text, s) for s in self._stop)
        self._withheld = text[len(text) - keep :]
        return text[: len(text) - keep]


class SilentSpeller:
    """The speller of a writer that is given text."""

    def feed_token(self, token: int) -> str:
        return ""

    def end_text(self) -> str:
        return ""

    def fork(self) -> SilentSpeller:
        return self


_SILENT = SilentSpeller()


class MarkSpeller:
    """Writes some control tokens by their names, and all others as another speller does.

    Args:
        speller: Makes a speller that goes on after some tokens.
        before: Tokens before the text.
        names: Names of those control tokens.
    """

    def __init__(
        self,
        speller: Callable[[Sequence[int]], TokenSpeller],
        before: tuple[int, ...],
        names: Mapping[int, str],
    ) -> None:
        self._made = speller
        self._names = names
        self._before = before
        self._inner = speller(before)

    def feed_token(self, token: int) -> str:
        name = self._names.get(token)
        if name is None:
            self._before = (*self._before[-7:], token)
            return self._inner.feed_token(token)
        text = self._inner.end_text() + name
        # A new speller: no character, and no piece of one, goes on across a control token.
        self._inner = self._made(self._before)
        return text

    def end_text(self) -> str:
        return self._inner.end_text()

    def fork(self) -> MarkSpeller:
        twin = copy(self)
        twin._inner = self._inner.fork()
        return twin


class ThinkingWriter:
    """Writes the thinking with its marks as it stands, and looks for stop strings in the answer
    alone."""

    def __init__(self, speller: MarkSpeller, reader: ThinkingReader, stops: StopWriter) -> None:
        self._speller = speller
        self._reader = reader
        self._stops = stops
        self._read = reader.start_state()

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def push_token(self, token: int) -> str:
        # Tokens of the thinking count, too.
        stops_count = self._stops.count_token()
        return self._written(self._speller.feed_token(token), stops_count)

    def end_text(self) -> str:
        if self.stopped:
            return ""
        stops_count = self._stops.complete
        text = self._written(self._speller.end_text(), stops_count)
        text += self._passed(self._reader.end_text(self._read, cut=False), stops_count)
        if self.stopped:
            return text
        return text + self._stops.rest_text()

    def fork(self) -> ThinkingWriter:
        twin = copy(self)
        twin._speller, twin._stops = self._speller.fork(), self._stops.fork()
        return twin

    def _written(self, text: str, stops_count: bool) -> str:
        if self.stopped:
            return ""
        self._read, segments = self._reader.read_piece(self._read, text)
        return self._passed(segments, stops_count)

    def _passed(self, segments: Sequence[Segment], stops_count: bool) -> str:
        out = ""
        for kind, part in segments:
            if kind is ThinkingSegmentKind.ANSWER:
                out += self._stops.take_piece(part, stops_count)
            else:
                # What was held back cannot become a stop string any more: the answer is interrupted
                # here.
                out += self._stops.rest_text() + part
            if self.stopped:
                break
        return out


def _overlap(text: str, stop: str) -> int:
    """How many characters at its end `text` may begin `stop` with."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0
    )
