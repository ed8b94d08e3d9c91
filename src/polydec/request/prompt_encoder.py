"""Prompts to token ids: texts, chats with tools, ids as they stand, and vectors among them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.protocols import Target
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.models.sessions.soft import Soft, make_soft_tokens
from polydec.models.text import prompt_ending, tool_prompt
from polydec.models.text.clauses import CLAUSE_MARKS
from polydec.models.text.message_forms import joined_text
from polydec.models.text.tokenizer import Tokenizer
from polydec.request.fields import Ask, Prompt

IMAGE_PLACE: Mapping[str, str] = {"type": "image"}
"""The place of an image among the parts of a message, as chat templates know it."""

_GAPS = re.compile(r"\[\[(\d{1,6})(?::(.+?)\]\](?!\])|\]\])", re.DOTALL)
"""A gap, with or without a pattern; a bracket right behind one that has a pattern belongs to that."""


@dataclass(frozen=True)
class PromptForm:
    """In which form a prompt was given.

    Attributes:
        messages: It is a chat.
        token_ids: It is token ids, which stand as they are.
        vectors: Vectors stand among its ids.
    """

    messages: bool
    token_ids: bool
    vectors: bool


def form_of_prompt(prompt: object) -> PromptForm:
    """In which form a prompt was given; of what is none, no form."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence):
        return PromptForm(messages=False, token_ids=False, vectors=False)
    # The first entry decides; a mixture is refused where each entry is read.
    messages = len(prompt) > 0 and isinstance(prompt[0], Mapping)
    vectors = any(isinstance(part, Soft) for part in prompt)
    return PromptForm(messages, token_ids=not messages, vectors=vectors)


@dataclass(frozen=True)
class VectorPrompt:
    """A prompt in which vectors stand.

    Attributes:
        ids: What all see who know words: the ids that stand for the vectors among the others.
        instead: What the model reads: ids behind the vocabulary that stand for vectors among the
            others.
        rows: Of every id but the last, the place in `instead` that its row is read at, ascending.
    """

    ids: tuple[int, ...]
    instead: tuple[int, ...]
    rows: tuple[int, ...]

    def prompted_law(self, law: Target) -> SoftPromptTarget:
        """A law behind this prompt."""
        return SoftPromptTarget(law, self.ids, self.instead, self.rows)


@dataclass(frozen=True)
class PromptEncoder:
    """Makes token ids of prompts.

    Attributes:
        name: What messages call the model.
        text: Its tokenizer, with its chat template where it has one.
        size: Tokens of its vocabulary.
        images: Whether messages may hold places of images (`IMAGE_PLACE`). Default: they may not.
    """

    name: str
    text: Tokenizer
    size: int
    images: bool = False

    def encode_request(self, ask: Ask, room: int | None = None) -> tuple[int, ...]:
        """Token ids of a request's prompt.

        Args:
            ask: The request, whose values are converted.
            room: Tokens that there is room for; far beyond them a text is not even encoded. None:
                no bound.

        Returns:
            The ids.

        Raises:
            RequestError: The prompt is empty, or holds something else than a prompt does.
        """
        return self.encode_prompt(
            ask.prompt,
            raw=ask.raw,
            tools=ask.tools,
            template=ask.template,
            ending=ask.prompt_ending,
            most=room,
            sanitize_control_tokens=ask.sanitize_control_tokens,
        )

    def encode_prompt(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        who: str = "prompt",
        tools: Sequence[Mapping[str, Any]] = (),
        template: Mapping[str, Any] | None = None,
        ending: str = prompt_ending.OPENED,
        most: int | None = None,
        sanitize_control_tokens: bool = False,
        plain_marks: Sequence[str] = (),
    ) -> tuple[int, ...]:
        """Token ids of a prompt.

        Args:
            prompt: A text, token ids (vectors among them) or chat messages.
            raw: Without the chat template.
            who: What messages call the prompt.
            tools: What the template shows beside messages.
            template: Further names that the template is told.
            ending: What the text of messages ends with (models/text/prompt_ending.py).
            most: Tokens that there is room for, far beyond which a text is not even encoded. None:
                no bound.
            sanitize_control_tokens: Control tokens in all of these are plain text.
            plain_marks: Control tokens that are plain text in a prompt anyway. Default: none.

        Returns:
            The ids; of vectors those that stand for them.

        Raises:
            RequestError: The prompt is empty, or holds something else than a prompt does, or the
                tools cannot be shown.
        """
        values = template or {}
        encode = self.text.encode
        if sanitize_control_tokens:
            encode = self.text.encode_sanitized
            marked = self.text.control_tokens.mark_texts
            # Marks part what users write from what the template writes, whose control tokens stay
            # tokens.
            prompt, tools, values = map(marked, (prompt, tools, values))
        elif isinstance(prompt, str) and any(mark in prompt for mark in plain_marks):
            encode = self.text.encode_sanitized
            prompt = self.text.control_tokens.mark_names(prompt, plain_marks)
        form = form_of_prompt(prompt)
        # Templates would ask the wrong thing for its members.
        if not isinstance(tools, Sequence) or not all(isinstance(t, Mapping) for t in tools):
            raise RequestError(
                f"tools is {short_repr(tools)}: it must be a list of functions, each a dict as OpenAI's interface has it"
            )
        if tools and not (self.text.has_chat and form.messages):
            raise RequestError(
                "tools is given without chat messages, or to a model without a chat template: leave it out"
            )
        if not isinstance(prompt, str) and not form.messages and not form.token_ids:
            raise RequestError(
                f"{who} is a {type(prompt).__name__}: give text, token ids or chat messages"
            )
        # Before anything is rendered: a chat without messages would render to a bare opening.
        if not prompt:
            raise RequestError(f"{who} is empty: give a text of at least one character")
        if form.token_ids:
            # Ids need no encoding, so their number is compared exactly.
            if most is not None and len(prompt) > most:
                raise RequestError(f"{who} has {len(prompt)} tokens: there is room for {most}")
            return self.check_token_ids(prompt, who)
        # Rendered text has its special tokens already; plain text gets those of the tokenizer.
        as_it_stands = False
        if isinstance(prompt, str) and (raw or not self.text.has_chat):
            shown = prompt
            as_it_stands = True
        elif not self.text.has_chat:
            raise RequestError(f"{self.name} has no chat template: give the {who} as text")
        elif isinstance(prompt, str):
            shown = self.text.render_chat([{"role": "user", "content": prompt}], **values)
        else:
            shown = self._render_chat(prompt, tools, values, ending)
        # Far too long a text is refused before it is encoded, which would take seconds.
        if most is not None and self.text.exceeds_limit(shown, most):
            raise RequestError(
                f"{who} has {len(shown)} characters, which are more than {most} tokens: there is room for those"
            )
        return encode(shown, as_it_stands)

    def encode_source(self, ask: Ask, room: int | None = None) -> tuple[int, ...]:
        """Token ids of what an encoder-decoder model reads: the request's source, or its prompt
        where it has none.

        Args:
            ask: The request.
            room: As for `encode_request`.

        Returns:
            The ids.

        Raises:
            RequestError: There is no source, or it cannot be read.
        """
        # What is given may be of any kind: `encode_prompt` refuses what it cannot read.
        source: Any = ask.prompt
        who = "prompt"
        if ask.source is not None:
            source = ask.source
            who = "source"
        if isinstance(source, bytes):
            try:
                # Strictly: a replaced character would silently change what is translated.
                source = source.decode()
            except UnicodeDecodeError as why:
                raise RequestError(
                    f"{who} is no UTF-8: byte {why.start} begins no character"
                ) from None
        if isinstance(source, str):
            source = whole_text(source, who)
        return self.encode_prompt(
            source,
            raw=True,
            who=who,
            most=room,
            sanitize_control_tokens=ask.sanitize_control_tokens,
            # A plan's marks are set by what plans, around clauses that it finds: what a user typed
            # is part of the text. Ids may hold them.
            plain_marks=CLAUSE_MARKS,
        )

    def encode_answer_beginning(self, ask: Ask) -> tuple[int, ...]:
        """Token ids that every answer of an encoder-decoder model begins with: the prompt that
        stands beside a source. Raises RequestError where it cannot be read."""
        if ask.source is None or not ask.prompt:
            return ()
        if not isinstance(ask.prompt, str):
            return self.encode_prompt(ask.prompt, raw=True)
        said = whole_text(ask.prompt, "prompt")
        # What begins an answer has nothing of what a tokenizer puts before and behind a text.
        if ask.sanitize_control_tokens:
            return self.text.encode_sanitized(
                self.text.control_tokens.mark_texts(said), special=False
            )
        return self.text.encode(said, special=False)

    def encode_empty(self, *, raw: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt that asks nothing: an empty turn of a chat, or (raw, or without a
        template) what a tokenizer sets before every text."""
        if raw or not self.text.has_chat:
            return self.text.encode("")
        return self.text.chat_prompt([{"role": "user", "content": ""}])

    def encode_vectors(self, prompt: Prompt, ids: tuple[int, ...], width: int) -> VectorPrompt:
        """A prompt in which vectors stand.

        Args:
            prompt: Token ids, and vectors among them.
            ids: What `encode_prompt` makes of it.
            width: Numbers of a vector that the model reads.

        Returns:
            What the model reads, and what stands for it.

        Raises:
            RequestError: The prompt ends with vectors, or one of them is of another width.
        """
        parts: list[Any] = list(prompt)
        if isinstance(parts[-1], Soft):
            raise RequestError(
                "prompt ends with vectors: at least one token must stand behind them"
            )
        instead = list[int]()
        rows = list[int]()
        # `instead` is what the network reads; `rows` says which of its rows answers for which id.
        for at, part in enumerate(parts):
            first = len(instead)
            if not isinstance(part, Soft):
                instead.append(int(part))
                rows.append(first)
                continue
            instead += make_soft_tokens(
                part.vectors_KD,
                self.size,
                width,
                f"prompt[{at}]",
                part.grid,
                part.kept,
                part.adapter,
            )
            # K vectors and the W ids that stand for them end together: id i ends with vector (i + 1) K / W.
            count = len(instead) - first
            words = len(part.stands_for or ())
            rows += [first + ((i + 1) * count - 1) // words for i in range(words)]
        # The last id is the root of the answer, which the first pass feeds by itself.
        return VectorPrompt(ids, tuple(instead), tuple(rows[:-1]))

    def encode_infill(
        self, answer: str | Sequence[int | None], most: int
    ) -> tuple[int | None, ...]:
        """Token ids of an answer with gaps.

        Args:
            answer: A text in which `[[3]]` stands for three tokens, and `[[3:[a-z]+]]` for three whose
                text matches an expression; or ids with None for each gap.
            most: Tokens of it, at most.

        Returns:
            The ids, None for each gap.

        Raises:
            RequestError: There is no gap in it, or more than `most` tokens, or an id lies outside the
                vocabulary.
        """
        out = list[int | None]()
        if isinstance(answer, str):
            parts = self._parts_of_infill(answer)
            # Counted before any gap is laid out: a short text may ask for a thousand millions.
            _check_size(sum(count + len(part) for count, part, _ in parts), most)
            for count, part, _ in parts:
                out += (None,) * count
                out += part
        else:
            _check_size(len(answer), most)
            for at, x in enumerate(answer):
                # True is an int in Python, and no token id.
                if x is not None and (type(x) is not int or not 0 <= x < self.size):
                    raise RequestError(
                        f"infill[{at}] is {short_repr(x)}: it must be none, for a gap, or an id of 0 to {self.size - 1}"
                    )
            out += answer
        if None not in out:
            raise RequestError(
                "infill has no gap: write [[3]] where three tokens are to be filled in"
            )
        return tuple(out)

    def find_gap_patterns(
        self, answer: str | Sequence[int | None] | None
    ) -> tuple[tuple[int, int, str], ...]:
        """The gaps of a text that have a pattern: of each its first position in the answer, the one
        behind its last, and the pattern. Ids have none."""
        if not isinstance(answer, str):
            return ()
        out = list[tuple[int, int, str]]()
        at = 0
        for count, part, pattern in self._parts_of_infill(answer):
            if pattern is not None:
                out.append((at, at + count, pattern))
            at += count + len(part)
        return tuple(out)

    def _parts_of_infill(self, answer: str) -> list[tuple[int, tuple[int, ...], str | None]]:
        """Of a text the tokens of each gap (0 in front of its first text), the ids of what stands
        behind it, and its pattern."""
        # Behind the last brackets there is no gap: with these cut off every search for an end finds one.
        head, brackets, tail = answer.rpartition("]]")
        # Every third part is text; between two stand the number within brackets and its pattern.
        parts = _GAPS.split(head + brackets)
        parts[-1] += tail
        counts = ["0", *parts[1::3]]
        patterns = [None, *parts[2::3]]
        ids = [self.text.encode(text, special=False) if text else () for text in parts[::3]]
        return [(int(n), x, p) for n, x, p in zip(counts, ids, patterns, strict=True)]

    def _render_chat(
        self,
        prompt: Sequence[Any],
        tools: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any],
        ending: str,
    ) -> str:
        """A chat as text; tools by the default prompt where the template has no place for them."""
        checked = [self._checked_message(at, message) for at, message in enumerate(prompt)]
        messages = prompt_ending.mark_final_message(checked, ending)
        # Templates open the assistant's turn only where an answer is to follow.
        values = {**values, "reply": ending == prompt_ending.OPENED}
        if not tools:
            shown = tool_prompt.with_earlier_calls(self.text, messages, **values)
        elif self.text.shows_tools:
            shown = self.text.render_chat(messages, tools=list(tools), **values)
        else:
            shown = tool_prompt.render_tool_chat(self.text, messages, tools, **values)
        return prompt_ending.end_rendered_chat(shown, ending)

    def _checked_message(self, at: int, message: Any) -> dict[str, Any]:
        """A message of a chat: its content is a text, or a list of parts that are texts, or places of
        images. Raises RequestError where it is none."""
        if not isinstance(message, Mapping):
            raise RequestError(
                f"message {at} is a {type(message).__name__}: it must have a role and a content"
            )
        for key in ("role", "content"):
            value = message.get(key)
            # OpenAI's form: a list of parts, each with a text.
            if key == "content" and isinstance(value, list):
                value = joined_text(self._text_parts(value))
            if not isinstance(value, str):
                raise RequestError(
                    f"message {at} has no {key} that is text: it must have a role and a content"
                )
        return dict(message)

    def _text_parts(self, parts: list[Any]) -> list[Any]:
        """The parts of a content without the places of images, where it may have some."""
        if not self.images:
            return parts
        return [part for part in parts if part != IMAGE_PLACE]

    def check_token_ids(self, prompt: Sequence[Any], who: str) -> tuple[int, ...]:
        """Check token ids.

        Args:
            prompt: The ids, vectors among them.
            who: What messages call them.

        Returns:
            The ids as they stand, those that stand for vectors included.

        Raises:
            RequestError: Something is no whole number, or no id of the vocabulary.
        """
        ids = list[int]()
        for at, x in enumerate(prompt):
            if isinstance(x, Soft):
                ids += self.check_token_ids(x.stands_for or (), f"{who}[{at}].stands_for")
                continue
            try:
                # Numbers of numpy and torch count as ids; a bool is made illegal here.
                ids.append(index(x) if not isinstance(x, bool) else self.size)
            except TypeError:
                raise RequestError(
                    f"{who}[{at}] is a {type(x).__name__}: token ids are whole numbers"
                ) from None
            if not 0 <= ids[-1] < self.size:
                raise RequestError(
                    f"{who} has token {str(x)[:30]}: ids lie in 0 to {self.size - 1}"
                )
        return tuple(ids)


def _check_size(size: int, most: int) -> None:
    """Raise RequestError where an answer with gaps has more tokens than there is room for."""
    if size > most:
        raise RequestError(f"infill has {size} tokens, gaps included: there is room for {most}")
