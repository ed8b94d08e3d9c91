"""The two forms of OpenAI's API: how a request of each is read, and how answers are written in it."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from polydec.api import Ask, LoadedModel
from polydec.base.options import short_repr
from polydec.core.request import PromptLogprob, TokenLogprob
from polydec.models.formats.images import is_image_part
from polydec.models.text.token_texts import bytes_of_token, token_text
from polydec.models.text.tokenizer import Tokenizer
from polydec.request.fields import ALTERNATIVES, CHOICES
from polydec.serve import vectors
from polydec.serve.body import (
    RequestBody,
    ResponseOptions,
    prompt_logprobs,
    read_ask_fields,
    read_max_tokens,
    read_stream_options,
)
from polydec.serve.constrained import read_request_constraint
from polydec.serve.errors import RefusalError
from polydec.serve.image_parts import EMPTY, read_image_part
from polydec.serve.json_text import LazyRows
from polydec.serve.reasoning import read_budget, read_reasoning
from polydec.serve.settings import RequestLimits
from polydec.serve.template_fields import chat_ending, no_template, template_values
from polydec.serve.tools import past_calls, read_tools

LOWEST = -9999.0
"""What JSON has for the logarithm of 0, as vLLM writes it."""

USUAL = 16
"""Tokens of an answer of /v1/completions where nobody says how many, as OpenAI has it."""

MOST_PROMPTS = 1024
"""Prompts of one request to /v1/completions."""

CHARACTERS = 32
"""Characters of a token, at most, where the length of a text is bounded before it is encoded."""


THOUGHTS = ("reasoning_content", "reasoning")
"""What engines call what was thought, in a message of the assistant."""

Note = TokenLogprob | PromptLogprob
"""A token with its log-probability under the model, and the likeliest ones."""


class TokenOffsets:
    """Where each token of a text begins, in characters; a special one takes no room.

    It is given tokens and no text: that may be held back, for a stop string or a character that is
    not complete, and come later.

    Args:
        at: Characters in front of the first token. Default 0.
    """

    def __init__(self, at: int = 0) -> None:
        self.at = at
        # A character may be split between tokens: its first byte counts for nothing until the rest
        # comes.
        self._reader = getincrementaldecoder("utf-8")("replace")

    def place_tokens(self, tokens: Sequence[bytes | None]) -> list[int]:
        """Place the tokens that come next.

        Args:
            tokens: Bytes of each token; None for a special one.

        Returns:
            Where each begins.
        """
        out = list[int]()
        for token in tokens:
            out.append(self.at)
            # Broken bytes count as one replacement character, as clients see them.
            self.at += len(self._reader.decode(token or b""))
        return out


class EndpointShape(Protocol):
    """The form of one endpoint: how requests are read, and how answers are written."""

    prefix: str  # of the response's id
    whole: str  # the `object` of a response
    chunk: str  # the `object` of a chunk of a stream

    def read_request(
        self, body: RequestBody, model: LoadedModel, method: str, seed: int
    ) -> ResponseOptions:
        """Read a request.

        Args:
            body: Body of the request, from which the fields are taken.
            model: The model that is to answer.
            method: Decoding method where the request names none.
            seed: Seed where the request has none.

        Returns:
            What the request asks for.

        Raises:
            RefusalError: Something cannot be honoured.
            RequestError: A value is out of its range.
        """
        ...

    def opening_chunk(self, index: int) -> dict[str, Any] | None:
        """The first chunk of a choice; None where there is none."""
        ...

    def chunk_choice(
        self,
        index: int,
        text: str,
        logprobs: Any,
        finish_reason: str | None,
        calls: Sequence[Mapping[str, Any]] = (),
        thought: str = "",
    ) -> dict[str, Any]:
        """Write a choice of a chunk.

        Args:
            index: Number of the choice.
            text: What was said.
            logprobs: Log-probabilities of its tokens, in the endpoint's form. None: they are not
                asked for.
            finish_reason: Why the answer ended, with its last chunk; else None.
            calls: Calls of tools, or pieces of them.
            thought: What was thought, before anything is said.

        Returns:
            The choice's object.
        """
        ...

    def response_choice(
        self,
        index: int,
        text: str,
        logprobs: Any,
        finish_reason: str,
        calls: Sequence[Mapping[str, Any]] = (),
        thought: str = "",
    ) -> dict[str, Any]:
        """Write a choice of a complete response.

        Args:
            index: Number of the choice.
            text: What it says.
            logprobs: Log-probabilities of its tokens, in the endpoint's form. None: they are not
                asked for.
            finish_reason: Why the answer ended.
            calls: Calls of tools.
            thought: What was thought before it.

        Returns:
            The choice's object.
        """
        ...

    def logprob_rows(
        self, text: Tokenizer, notes: Sequence[Any], offsets: TokenOffsets
    ) -> dict[str, Any]:
        """Write log-probabilities of the model.

        Args:
            text: The model's tokenizer.
            notes: The tokens, each with its log-probability and the likeliest ones.
            offsets: Where the tokens begin; they are moved on by these.

        Returns:
            The log-probabilities in the endpoint's form.
        """
        ...

    def add_prompt_logprobs(
        self, response: dict[str, Any], prompts: Sequence[Any]
    ) -> dict[str, Any]:
        """Add vLLM's prompt_logprobs to a response.

        Args:
            response: The response.
            prompts: The prompt_logprobs of each choice.

        Returns:
            The response with that field.
        """
        ...


class ChatCompletionsShape:
    """/v1/chat/completions"""

    prefix = "chatcmpl"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def read_request(
        self, body: RequestBody, model: LoadedModel, method: str, seed: int
    ) -> ResponseOptions:
        """Read a chat.

        Args:
            body: Body of the request, from which the fields are taken.
            model: The model that is to answer.
            method: Decoding method where the request names none.
            seed: Seed where the request has none.

        Returns:
            What the request asks for.

        Raises:
            RefusalError: Something cannot be honoured.
            RequestError: A value is out of its range.
        """
        fields: dict[str, Any] = {
            **read_ask_fields(body, model, method, seed),
            "constraint": read_request_constraint(body, model),
        }
        reasoning = read_reasoning(body)
        fields |= {"template": template_values(body, model), **reasoning.fields}
        logprobs = body.boolean_field("logprobs")
        # OpenAI's two fields: one says whether, the other how many beside it.
        top = body.whole_number("top_logprobs", 0, ALTERNATIVES)
        if top is not None and not logprobs:
            raise RefusalError(
                "top_logprobs is given without logprobs: set logprobs to true", param="top_logprobs"
            )
        fields["max_tokens"] = read_max_tokens(body, "max_completion_tokens", "max_tokens")
        if logprobs:
            fields["logprobs"] = top or 0
        else:
            fields["logprobs"] = None
        # Order matters little, as long as every field is taken before `refuse_rest` refuses the rest.
        fields["prompt_ending"] = chat_ending(body)
        tools = read_tools(body, model, fields["constraint"])
        fields["constraint"] = tools.constraint
        messages = read_messages(body, body.take_field("messages"))
        stream, usage, details, steps = read_stream_options(body)
        prompted = fields["prompt_logprobs"] = prompt_logprobs(body, stream)
        body.refuse_rest()
        return ResponseOptions(
            (Ask(messages, tools=tools.shown, **fields),),
            stream,
            usage,
            details,
            steps=steps,
            prompt_logprobs=prompted,
            tools=tools.names,
            form=tools.form,
            thoughts=reasoning.told,
        )

    def opening_chunk(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def chunk_choice(
        self,
        index: int,
        text: str,
        logprobs: Any,
        finish_reason: str | None,
        calls: Sequence[Mapping[str, Any]] = (),
        thought: str = "",
    ) -> dict[str, Any]:
        """Write a choice of a chunk: what is new of the assistant's message.

        Args:
            index: Number of the choice.
            text: What was said.
            logprobs: Log-probabilities of its tokens, in the endpoint's form. None: they are not
                asked for.
            finish_reason: Why the answer ended, with its last chunk; else None.
            calls: Pieces of tool calls.
            thought: More of what was thought.

        Returns:
            The choice's object.
        """
        # A chunk that only ends, calls or thinks has no content, not even an empty one.
        spoken = finish_reason is None and not calls and not thought
        delta: dict[str, Any] = {"content": text} if text or spoken else {}
        # DeepSeek's name, which other engines took over: OpenAI has no field for it in chats.
        if thought:
            delta["reasoning_content"] = thought
        if calls:
            delta["tool_calls"] = list(calls)
        return {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }

    def response_choice(
        self,
        index: int,
        text: str,
        logprobs: Any,
        finish_reason: str,
        calls: Sequence[Mapping[str, Any]] = (),
        thought: str = "",
    ) -> dict[str, Any]:
        """Write a choice: the assistant's message.

        Args:
            index: Number of the choice.
            text: What it says.
            logprobs: Log-probabilities of its tokens, in the endpoint's form. None: they are not
                asked for.
            finish_reason: Why the answer ended.
            calls: Its tool calls.
            thought: What was thought before it.

        Returns:
            The choice's object.
        """
        message: dict[str, Any] = {"role": "assistant"}
        if thought:
            message["reasoning_content"] = thought
        # OpenAI sends null beside calls where nothing is said.
        message |= {"content": text or None if calls else text, "refusal": None}
        return {
            "index": index,
            "message": {**message, "tool_calls": list(calls)} if calls else message,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }

    def logprob_rows(
        self, text: Tokenizer, notes: Sequence[TokenLogprob], offsets: TokenOffsets
    ) -> dict[str, Any]:
        """Write log-probabilities, a row for each token.

        Args:
            text: The model's tokenizer.
            notes: The tokens, each with its log-probability and the likeliest ones.
            offsets: Not used: chats have no offsets.

        Returns:
            The log-probabilities in the endpoint's form.
        """

        def logprob_entry(token: int, logp: float) -> dict[str, Any]:
            """Write one token.

            Args:
                token: Token id.
                logp: Its log-probability, in nats.

            Returns:
                Its text, log-probability and bytes.
            """
            known = bytes_of_token(text, token)
            return {
                "token": token_text(text, token),
                "logprob": max(logp, LOWEST),
                "bytes": None if known is None else list(known),
            }

        def table_row(n: TokenLogprob) -> dict[str, Any]:
            return {
                **logprob_entry(n.token, n.model_logp),
                "top_logprobs": [logprob_entry(*t) for t in n.top],
            }

        # Rows are made while they are sent: a long answer has thousands.
        return {"content": LazyRows(table_row, notes), "refusal": None}

    def add_prompt_logprobs(
        self, response: dict[str, Any], prompts: Sequence[Any]
    ) -> dict[str, Any]:
        """Add vLLM's prompt_logprobs: a chat has one prompt.

        Args:
            response: The response.
            prompts: The prompt_logprobs of each choice.

        Returns:
            The response with that field.
        """
        return {**response, "prompt_logprobs": prompts[0]}  # a chat has one prompt


class CompletionsShape:
    """/v1/completions"""

    prefix = "cmpl"
    whole = "text_completion"
    chunk = "text_completion"

    def read_request(
        self, body: RequestBody, model: LoadedModel, method: str, seed: int
    ) -> ResponseOptions:
        """Read a completion of one or several prompts.

        Args:
            body: Body of the request, from which the fields are taken.
            model: The model that is to answer.
            method: Decoding method where the request names none.
            seed: Seed where the request has none.

        Returns:
            What the request asks for.

        Raises:
            RefusalError: Something cannot be honoured.
            RequestError: A value is out of its range.
        """
        fields: dict[str, Any] = {
            **read_ask_fields(body, model, method, seed),
            "constraint": read_request_constraint(body, model),
        }
        # Here and not for chats, whose template leaves no place for a text with gaps.
        fields["infill"] = read_infill(body, model)
        # What is only for chats would be dropped without a word.
        no_template(body)
        fields["reasoning_budget"] = read_budget(body)
        prompt = body.take_field("prompt")
        echo = body.boolean_field("echo")
        alone = fields["source"] is not None and prompt in (None, "")  # nothing begins the answer
        if alone:
            prompts = [""]
        else:
            prompts = read_prompts(prompt, body.limits)
        best = fields["best_of"] = body.whole_number("best_of", 1, CHOICES)
        if best is not None and best < fields["n"]:
            raise RefusalError(
                f"best_of is {best}: it must be at least n, which is {fields['n']}", param="best_of"
            )
        # Prompts times answers: refused before any is encoded.
        if body.limits is not None:
            body.limits.admit_answers(len(prompts) * (best or fields["n"]))
        # OpenAI allows no tokens at all where the prompt is echoed, to read its log-probabilities.
        most = read_max_tokens(body, "max_tokens", default=USUAL, least=0 if echo else 1)
        silent = most == 0  # a token is written all the same, and not shown
        fields["max_tokens"], fields["logprobs"] = (
            1 if silent else most,
            body.whole_number("logprobs", 0, ALTERNATIVES),
        )
        stream, usage, details, steps = read_stream_options(body)
        if best is not None and best > fields["n"] and (stream or steps):
            beside = "stream" if stream else 'polydec "steps"'
            raise RefusalError(
                f"best_of is {best} with {beside}: which answers are the best is known when all have ended, so leave one of "
                "them out",
                param="best_of",
            )
        if best == fields["n"]:
            # All of them are given, in the order in which they are drawn, so they may be streamed.
            fields["best_of"] = None
        prompted = prompt_logprobs(body, stream)
        # One list of alternatives serves both fields: it is as long as the longer one.
        told = [k for k in (prompted, fields["logprobs"] if echo else None) if k is not None]
        fields["prompt_logprobs"] = max(told, default=None)
        body.refuse_rest()
        asks = tuple(Ask(p, raw=True, **fields) for p in prompts)
        # One echo for each answer, though all answers to a prompt have the same.
        if echo:
            echoes = tuple(_echo(model, ask) for ask in asks for _ in range(ask.n))
        else:
            echoes = None
        return ResponseOptions(asks, stream, usage, details, echoes, silent, steps, prompted)

    def opening_chunk(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk_choice(
        self,
        index: int,
        text: str,
        logprobs: Any,
        finish_reason: str | None,
        calls: Sequence[Mapping[str, Any]] = (),
        thought: str = "",
    ) -> dict[str, Any]:
        """Write a choice of a chunk, which looks like that of a response.

        Args:
            index: Number of the choice.
            text: What was said.
            logprobs: Log-probabilities of its tokens, in the endpoint's form. None: they are not
                asked for.
            finish_reason: Why the answer ended, with its last chunk; else None.
            calls: Not used: completions have no tools.
            thought: Not used: nothing is parted here.

        Returns:
            The choice's object.
        """
        # Old completions have no deltas.
        return self.response_choice(index, text, logprobs, finish_reason)

    def response_choice(
        self,
        index: int,
        text: str,
        logprobs: Any,
        finish_reason: str | None,
        calls: Sequence[Mapping[str, Any]] = (),
        thought: str = "",
    ) -> dict[str, Any]:
        """Write a choice: its text.

        Args:
            index: Number of the choice.
            text: What it says.
            logprobs: Log-probabilities of its tokens, in the endpoint's form. None: they are not
                asked for.
            finish_reason: Why the answer ended. None: it has not.
            calls: Not used: completions have no tools.
            thought: Not used: nothing is parted here.

        Returns:
            The choice's object.
        """
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def logprob_rows(
        self, text: Tokenizer, notes: Sequence[Note], offsets: TokenOffsets
    ) -> dict[str, Any]:
        """Write log-probabilities, a list for each kind of entry.

        Args:
            text: The model's tokenizer.
            notes: The tokens, each with its log-probability and the likeliest ones.
            offsets: Where the tokens begin; they are moved on by these.

        Returns:
            The log-probabilities in the endpoint's form.
        """

        def likeliest_entries(n: Note) -> dict[str, float] | None:
            if n.model_logp is None:
                return None
            return _by_text(text, [*n.top, (n.token, n.model_logp)])

        tokens = [n.token for n in notes]
        return {
            "tokens": [token_text(text, t) for t in tokens],
            "token_logprobs": [
                None if n.model_logp is None else max(n.model_logp, LOWEST) for n in notes
            ],
            "top_logprobs": LazyRows(likeliest_entries, notes),
            # By characters and not bytes, as OpenAI counts them.
            "text_offset": offsets.place_tokens([bytes_of_token(text, t) for t in tokens]),
        }

    def add_prompt_logprobs(
        self, response: dict[str, Any], prompts: Sequence[Any]
    ) -> dict[str, Any]:
        """Add vLLM's prompt_logprobs to each choice.

        Args:
            response: The response.
            prompts: The prompt_logprobs of each choice.

        Returns:
            The response with that field.
        """
        choices = [
            {**c, "prompt_logprobs": p} for c, p in zip(response["choices"], prompts, strict=True)
        ]
        return {**response, "choices": choices}


def _by_text(text: Tokenizer, entries: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Log-probabilities by text. Of tokens that read the same (parts of characters) the first one stays."""
    out = dict[str, float]()
    for token, logp in entries:
        # A JSON object cannot hold a name twice.
        out.setdefault(token_text(text, token), max(logp, LOWEST))
    return out


def _echo(model: LoadedModel, ask: Ask) -> str:
    """A prompt as text. Token ids are checked like those of a prompt."""
    if isinstance(ask.prompt, str):
        return ask.prompt
    # Ids of bytes are decoded by the view that counts bytes.
    model = model.in_units(ask.units, ask.covers)
    return model.checkpoint.text.decode(model.encode_prompt(ask.prompt))


def by_id(text: Tokenizer, notes: Sequence[PromptLogprob], k: int) -> LazyRows:
    """Write a prompt's log-probabilities in vLLM's form: for each token its own and the likeliest,
    by their ids.

    Args:
        text: The model's tokenizer.
        notes: The prompt's tokens.
        k: How many of the likeliest tokens are listed, 0 or more.

    Returns:
        A row for each token; None for the first, which follows nothing.
    """

    def table_row(note: PromptLogprob) -> dict[str, Any] | None:
        if note.model_logp is None:
            return None
        # Ranks count from 1, as vLLM has them.
        likeliest = {t: (logp, rank) for rank, (t, logp) in enumerate(note.top[:k], 1)}
        # The prompt's own token comes first, and once, though it may be among the likeliest.
        known = {note.token: (note.model_logp, note.rank), **likeliest}
        return {
            str(t): {
                "logprob": max(logp, LOWEST),
                "rank": rank,
                "decoded_token": token_text(text, t),
            }
            for t, (logp, rank) in known.items()
        }

    return LazyRows(table_row, notes)


def read_infill(body: RequestBody, model: LoadedModel) -> Any:
    """Read an answer with gaps, our own field.

    Args:
        body: Body of the request, from which the field is taken.
        model: The model that is to answer.

    Returns:
        A text, or ids and nulls; None where it was not given. What else it holds is looked at with
        the request.

    Raises:
        RefusalError: It is neither, too long, has a pattern, or stands beside max_tokens, which it
            says itself.
    """
    # Taken out, as fields that are left in the body are refused as unknown.
    infill = body.take_field("infill")
    if infill is None:
        return None
    if not isinstance(infill, (str, list)):
        raise RefusalError(
            f"infill is {short_repr(infill)}: it must be a text with gaps such as [[3]], or token ids and nulls",
            param="infill",
        )
    # Before it is encoded: no text of so many tokens is longer than this.
    if body.limits is not None and len(infill) > (most := CHARACTERS * body.limits.output):
        raise RefusalError(
            f"infill has {len(infill)} characters or entries: this server takes at most {most}",
            param="infill",
        )
    # Each would be compiled, which only fields of constraints may ask for.
    if model.encoder.find_gap_patterns(infill):
        raise RefusalError(
            "infill has a gap with a pattern: over HTTP gaps have none, so give a constraint for the whole answer",
            param="infill",
        )
    if body.peek_field("max_tokens") is not None:
        raise RefusalError(
            "max_tokens is given beside infill: gaps say how long the answer is, so leave it out",
            param="max_tokens",
        )
    return infill


def read_prompts(prompt: Any, limits: RequestLimits | None = None) -> list[Any]:
    """Read a text or token ids, or several of either.

    Args:
        prompt: The field `prompt`.
        limits: Limits of the server. None: there are none.

    Returns:
        The prompts; vectors among token ids are read.

    Raises:
        RefusalError: The field is malformed, or goes beyond a limit.
    """
    if prompt is None:
        raise RefusalError("prompt is missing: give a text or token ids", param="prompt")
    # A list of integers is one prompt in token ids; of texts or lists, several.
    many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))
    prompts = prompt if many else [prompt]
    if len(prompts) > MOST_PROMPTS:
        raise RefusalError(
            f"prompt has {len(prompts)} entries: at most {MOST_PROMPTS} are legal", param="prompt"
        )
    # Everything is checked before anything is encoded: one bad prompt must not cost the others'
    # work.
    for at, text in enumerate(prompts):
        if not isinstance(text, (str, list)) or not text:
            raise RefusalError(
                f"prompt{f'[{at}]' if many else ''} is {short_repr(text)}: it must be a text or token ids, and not empty",
                param="prompt",
            )
        if isinstance(text, list) and limits is not None and len(text) > limits.prompt:
            raise RefusalError(
                f"prompt has {len(text)} tokens: this server takes at most {limits.prompt}",
                param="prompt",
            )
        if isinstance(text, list) and not all(type(x) in (int, dict) for x in text):
            raise RefusalError(
                "prompt holds something else than texts, or than token ids (and vectors among these)",
                param="prompt",
            )
        if isinstance(text, str):
            _whole_text(text, "prompt")
    # An object among token ids is a vector.
    return [
        [vectors.read_prompt_vectors(x) if isinstance(x, dict) else x for x in prompt]
        if isinstance(prompt, list)
        else prompt
        for prompt in prompts
    ]


MESSAGE = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "function_call"),
    *("refusal", "audio", "annotations", "reasoning", "reasoning_content"),
)
"""What a message has in OpenAI's API and in those that follow it, honoured here or not."""
PART = ("type", "text", "annotations", "logprobs", "cache_control")
"""What a part of text has; the last three say nothing of the text."""


def read_messages(body: RequestBody, messages: Any) -> list[Mapping[str, Any]]:
    """Read messages as chat templates take them: role and content, a text each.

    `developer` is another word for `system`. Messages may hold calls and what they gave, whether
    the request has tools or not.

    Args:
        body: Body of the request.
        messages: The messages as they were sent.

    Returns:
        The messages.

    Raises:
        RefusalError: A message is malformed.
    """
    if not isinstance(messages, list) or not messages:
        raise RefusalError(
            f"messages is {short_repr(messages)}: it must be a list of at least one message",
            param="messages",
        )
    # The place goes along, so that a refusal names the very message.
    return [_message(f"messages[{at}]", m, body) for at, m in enumerate(messages)]


def _message(where: str, message: Any, body: RequestBody) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        raise RefusalError(
            f"{where} is {short_repr(message)}: it must have a role and a content", param="messages"
        )
    role = message.get("role")
    roles = ("system", "developer", "user", "assistant", "tool")
    if role not in roles:
        raise RefusalError(
            f"{where}.role is {short_repr(role)}: it must be {' or '.join(roles)}", param="messages"
        )
    # Only these two roles have a field about tools.
    more = {"assistant": "tool_calls", "tool": "tool_call_id"}.get(role)
    body.refuse_members(where, message, MESSAGE, EMPTY)
    # What may hold something for this role; all other known fields must be empty.
    legal = ("role", "content", "name", more, *(THOUGHTS if role == "assistant" else ()))
    for name, value in ((k, v) for k, v in message.items() if k in MESSAGE):
        if name not in legal and value not in EMPTY:
            raise RefusalError(
                f"{where}.{str(name)[:60]} is {short_repr(value)}: a message has a role and a content here",
                param="messages",
            )
    named = message.get("name")
    if named is not None and not (isinstance(named, str) and 1 <= len(named) <= 64):
        raise RefusalError(
            f"{where}.name is {short_repr(named)}: it must be a text of 1 to 64 characters",
            param="messages",
        )
    return {
        # OpenAI's newer word, which most templates do not know.
        "role": "system" if role == "developer" else role,
        **({} if named is None else {"name": _whole_text(named, "messages")}),
        **_said(where, message, more, body),
        **_thought(where, message),
    }


def _thought(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier answer thought: most templates leave it out, some show it."""
    for name in THOUGHTS:
        thought = message.get(name)
        if thought and not isinstance(thought, str):
            raise RefusalError(
                f"{where}.{name} is {short_repr(thought)}: it must be a text", param="messages"
            )
    # Clients send either name; the first that holds something stands.
    thought = next((message[name] for name in THOUGHTS if message.get(name)), None)
    if thought is None:
        return {}
    return {"reasoning_content": _whole_text(thought, "messages")}


def _said(
    where: str, message: Mapping[str, Any], more: str | None, body: RequestBody
) -> dict[str, Any]:
    """What a message holds beside its role; `more` is the field of it that is about tools."""
    content = message.get("content")
    if more is None:
        about = None
    else:
        about = message.get(more)
    extra = dict[str, Any]()
    if more == "tool_calls" and about:
        # An assistant that only calls may have no content.
        calls = past_calls(f"{where}.tool_calls", about, body)
        content = content or ""
        extra = {"tool_calls": calls}
    if more == "tool_call_id":
        if not isinstance(about, str):
            raise RefusalError(
                f"{where}.tool_call_id is {short_repr(about)}: it must name the call that this answers",
                param="messages",
            )
        extra = {"tool_call_id": about}
    if isinstance(content, list):
        parts = [_part(f"{where}.content[{at}]", part, body) for at, part in enumerate(content)]
        return {"content": parts, **extra}
    if not isinstance(content, str):
        raise RefusalError(
            f"{where}.content is {short_repr(content)}: it must be a text", param="messages"
        )
    return {"content": _whole_text(content, "messages"), **extra}


def _part(where: str, part: Any, body: RequestBody) -> dict[str, Any]:
    if is_image_part(part):
        return read_image_part(where, part, body)
    if (
        not isinstance(part, Mapping)
        or part.get("type") != "text"
        or not isinstance(part.get("text"), str)
    ):
        if isinstance(part, Mapping):
            kind = part.get("type")
        else:
            kind = part
        raise RefusalError(
            f"{where} is {short_repr(kind)}: only parts of type text or image_url are legal",
            param="messages",
        )
    body.refuse_members(where, part, PART, EMPTY)
    return {"type": "text", "text": _whole_text(part["text"], "messages")}


def _whole_text(text: str, field: str) -> str:
    try:
        # JSON can write half of a pair of surrogates, which UTF-8 cannot hold.
        text.encode()
    except UnicodeEncodeError:
        raise RefusalError(
            f"{field} holds half a character: it must be whole Unicode text", param=field
        ) from None
    return text
