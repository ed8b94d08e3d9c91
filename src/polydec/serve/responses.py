"""/v1/responses, as far as text goes: OpenAI's newer form, with named events where it streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polydec.api import Ask, Completion, LoadedModel, Piece
from polydec.base.options import short_repr
from polydec.laws.shapers.sampling import Sampling
from polydec.request.fields import ALTERNATIVES
from polydec.request.tool_calls import (
    ToolCall,
    ToolCallDelta,
    ToolCallReader,
    join_call_deltas,
    read_calls,
)
from polydec.serve.body import RequestBody, ResponseOptions, read_ask_fields, read_max_tokens
from polydec.serve.constrained import (
    RESPONSE_FORMAT,
    TEXT_FORMAT,
    FormatField,
    read_request_constraint,
)
from polydec.serve.errors import RefusalError
from polydec.serve.json_text import LazyRows, json_pieces
from polydec.serve.reasoning import ThoughtStream, may_think, read_reasoning
from polydec.serve.reply import (
    AnswerDelta,
    answer_tokenizer,
    completion_details,
    count_unit_field,
    piece_rows,
)
from polydec.serve.shapes import ChatCompletionsShape, TokenOffsets, read_messages
from polydec.serve.stored_responses import ClientResponses
from polydec.serve.template_fields import no_ending, template_values
from polydec.serve.tools import read_tools

LOGPROBS = "message.output_text.logprobs"
"""What `include` may hold."""

MESSAGE = -1
THOUGHT = -2
"""The message and what was thought before it, where items are told by numbers: those of calls begin at 0."""


class ResponsesReader:
    """How a request is read.

    Args:
        kept: The stored responses of the client. None: nothing is stored here.

    Attributes:
        stores: Whether the response is to be kept.
        previous: Id of the response behind which it goes on; None where it begins a chat.
        chat: The messages up to its own, without the instructions.
    """

    prefix = "resp"

    def __init__(self, kept: ClientResponses | None = None) -> None:
        self.kept = kept
        self.stores = False
        self.previous: str | None = None
        self.chat: list[Mapping[str, Any]] = []

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
        constraint = read_request_constraint(body, model, _name_format(body))
        no_ending(body)
        fields: dict[str, Any] = {
            **read_ask_fields(body, model, method, seed),
            "constraint": constraint,
        }
        reasoning = read_reasoning(body)
        fields |= {"template": template_values(body, model), **reasoning.fields}
        # A response is one object of items, with no place for further choices.
        if fields["n"] != 1:
            raise RefusalError(
                f"n is {short_repr(fields['n'])}: a response has one answer", param="n"
            )
        tools = read_tools(body, model, fields["constraint"], flat=True)
        fields["constraint"] = tools.constraint
        include = body.take_field("include", [])
        top = body.whole_number("top_logprobs", 0, ALTERNATIVES)
        # OpenAI has further values, all about things that this server does not do.
        if include not in ([], [LOGPROBS]):
            raise RefusalError(
                f"include is {short_repr(include)}: it must be [] or ['{LOGPROBS}']",
                param="include",
            )
        if top and not include:
            raise RefusalError(
                f"top_logprobs is given without include: ask for ['{LOGPROBS}']",
                param="top_logprobs",
            )
        if include and tools.shown:
            raise RefusalError(
                "include is given with tools: calls have no place for log-probabilities",
                param="include",
            )
        most = read_max_tokens(body, "max_output_tokens")
        instructions = body.take_field("instructions")
        self.chat = [*self._earlier(body), *read_input(body, body.take_field("input"))]
        messages = self.chat
        # They stand in front of every earlier message, as a system turn.
        if instructions is not None:
            if not isinstance(instructions, str):
                raise RefusalError(
                    f"instructions is {short_repr(instructions)}: it must be a text",
                    param="instructions",
                )
            system = [{"role": "system", "content": instructions}]
            messages = [*read_messages(body, system), *messages]
        stream = body.boolean_field("stream")
        details = body.boolean_field("polydec")
        # Nothing is read from here on, so whatever is left is unknown.
        body.refuse_rest()
        ask = Ask(
            messages,
            tools=tools.shown,
            max_tokens=most,
            logprobs=(top or 0) if include else None,
            **fields,
        )
        return ResponseOptions(
            (ask,),
            stream,
            True,
            details,
            told={
                "instructions": instructions,
                "max_output_tokens": most,
                "top_logprobs": top or 0,
                **(tools.told if tools.shown else {}),
            },
            tools=tools.names,
            form=tools.form,
            thoughts=reasoning.told,
        )

    def _earlier(self, body: RequestBody) -> list[dict[str, Any]]:
        """The messages of the chat that a request goes on with."""
        if self.kept is None:
            # What asks for a memory is refused with the fields that nobody takes.
            return []
        self.stores = body.boolean_field("store")
        name = body.take_field("previous_response_id")
        if name is None:
            return []
        if not isinstance(name, str):
            raise RefusalError(
                f"previous_response_id is {short_repr(name)}: it must be the id of a response",
                param="previous_response_id",
            )
        earlier = self.kept.earlier_chat(name)
        # Only once it was found: a response never names a chat that it does not go on with.
        self.previous = name
        return earlier


def _name_format(body: RequestBody) -> FormatField:
    """What the client calls the format of its answer. `text` holds what is `response_format` elsewhere, one level less deep;
    it is put under that name, if it is there."""
    form_asked = body.mapping_field("text")
    body.refuse_members("text", form_asked, ("format", "verbosity"))
    if form_asked.get("verbosity") not in (None, "medium"):
        raise RefusalError(
            f"text.verbosity is {short_repr(form_asked['verbosity'])}: text holds a format here",
            param="text",
        )
    # The schema lies beside the type here, and one level deeper in chats.
    form = form_asked.get("format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        form = {
            "type": "json_schema",
            "json_schema": {k: v for k, v in form.items() if k != "type"},
        }
    if form is None:
        return RESPONSE_FORMAT
    body.put_field(RESPONSE_FORMAT.name, form)
    return TEXT_FORMAT


def read_input(body: RequestBody, value: Any) -> list[Mapping[str, Any]]:
    """Read a text, or messages whose parts are texts, calls, what these gave, and what was thought.

    Args:
        body: Body of the request.
        value: The field `input`.

    Returns:
        Messages as chat templates take them.

    Raises:
        RefusalError: The field is malformed.
    """
    if isinstance(value, str) and value:
        return read_messages(body, [{"role": "user", "content": value}])
    if not isinstance(value, list) or not value:
        raise RefusalError(
            f"input is {short_repr(value)}: it must be a text or a list of messages, and not empty",
            param="input",
        )
    messages = list[dict[str, Any]]()
    # Thoughts are items of their own here; they are held until their message comes.
    thought = ""
    for at, item in enumerate(value):
        if isinstance(item, Mapping):
            kind = item.get("type")
        else:
            kind = None
        # Chats hold calls inside of the assistant's message: they join the one before, or a new
        # one.
        if kind == "function_call":
            call = _past(f"input[{at}]", item, body)
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1] = messages[-1] | {
                "tool_calls": [*messages[-1].get("tool_calls", ()), call]
            }
        elif kind == "reasoning":
            thought += _past_thought(f"input[{at}]", item, body)
        elif kind == "function_call_output":
            messages.append(_result(f"input[{at}]", item, body))
        else:
            messages.append(_item(f"input[{at}]", item, body))
        # What was thought stands before its message here, and inside of it in chats.
        if thought and kind != "reasoning" and messages[-1]["role"] == "assistant":
            before = messages[-1].get("reasoning_content")
            joined_thoughts = "\n".join(x for x in (before, thought) if x)
            messages[-1] = {**messages[-1], "reasoning_content": joined_thoughts}
            thought = ""
    try:
        return read_messages(body, messages)
    except RefusalError as error:
        # Messages are this endpoint's `input`: the sentence names the field that was sent.
        told = str(error).replace("messages", "input", 1)
        raise RefusalError(told, param="input", code=error.code) from None


def _past(where: str, item: Mapping[str, Any], body: RequestBody) -> dict[str, Any]:
    """A call of an earlier response, as chats have it."""
    body.refuse_members(where, item, ("type", "id", "call_id", "name", "arguments", "status"))
    function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _past_thought(where: str, item: Mapping[str, Any], body: RequestBody) -> str:
    """What an earlier response thought."""
    body.refuse_members(where, item, ("type", "id", "summary", "content", "status"))
    # A single part counts as a list of one.
    content = item.get("content") or []
    if isinstance(content, list):
        parts = content
    else:
        parts = [content]
    every = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    texts = [text for text in every if isinstance(text, str)]
    if len(texts) < len(every):
        raise RefusalError(
            f"{where}.content is {short_repr(content)}: it must be a list of parts of type reasoning_text",
            param="input",
        )
    return "".join(texts)


def _result(where: str, item: Mapping[str, Any], body: RequestBody) -> dict[str, Any]:
    """What a call gave, as chats have it."""
    body.refuse_members(where, item, ("type", "id", "call_id", "output", "status"))
    return {
        "role": "tool",
        "tool_call_id": item.get("call_id"),
        "content": _content(item.get("output")),
    }


def _item(where: str, item: Any, body: RequestBody) -> dict[str, Any]:
    """A message of the input, as chats have it. What an earlier response gave has more fields,
    which say nothing new.
    """
    if not isinstance(item, Mapping) or item.get("type", "message") != "message":
        raise RefusalError(f"{where} is {short_repr(item)}: only messages are legal", param="input")
    body.refuse_members(where, item, ("type", "role", "content", "id", "status"))
    return {"role": item.get("role"), "content": _content(item.get("content"))}


def _content(content: Any) -> Any:
    """Parts of text, and images, as chats have them."""
    if not isinstance(content, list):
        return content
    # Which name is sent depends on who wrote the message.
    return [_chat_part(part) for part in content]


def _chat_part(part: Any) -> Any:
    """A part of a content by the name that chats have for it."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind not in _PARTS:
        return part
    return {**part, "type": _PARTS[kind]}


_PARTS = {"input_text": "text", "output_text": "text", "input_image": "image_url"}
"""What chats call the parts of a message's content."""


class ResponsesAnswer:
    """One response of /v1/responses.

    It has one answer: one message with one part of text, and the calls that it makes, if it may
    make some; there is no message then where it says nothing.

    Args:
        shape: How the request was read, and where the response is kept.
        wanted: What the request asks for.
        model: The model that answers.
        served: Name of the model in the response.
        name: Id of the response.
        created: When the request came, in seconds of the epoch.
    """

    last = ""  # a stream ends with its last event

    def __init__(
        self,
        shape: ResponsesReader,
        wanted: ResponseOptions,
        model: LoadedModel,
        served: str,
        name: str,
        created: int,
    ) -> None:
        self._shape = shape
        self.wanted = wanted
        self.model = model
        self.served = served
        self.name = name
        self.created = created
        # Numbers events of a stream, so that a client can see whether one is missing.
        self._number = 0
        self._text = ""
        self._thought = ""
        self._stream: ThoughtStream | None = None
        self._notes = list[Any]()  # log-probabilities of a stream so far
        self._pieces = list[Piece]()
        if wanted.tools:
            self._reader = ToolCallReader(wanted.tools, wanted.form)
        else:
            self._reader = None
        self._parts = list[ToolCallDelta]()
        self._order = list[int]()  # what a stream has begun: the numbers of calls, MESSAGE

    # ---- as a stream ----

    def opening_events(self) -> Iterator[dict[str, Any]]:
        """What comes before anything is written."""
        # OpenAI sends both, though nothing lies between them here.
        yield self._event("response.created", response=self._object("in_progress", [], None))
        yield self._event("response.in_progress", response=self._object("in_progress", [], None))
        # Whether there is a message at all is known only later where the answer may call or think.
        if self._reader is None and not may_think(self.model, self.wanted.asks[0].reasoning_format):
            yield from self._begin()

    def stream_chunks(self, news: AnswerDelta) -> Iterator[dict[str, Any]]:
        """Write one tick's text.

        Args:
            news: What the tick wrote.

        Yields:
            Events of the stream.
        """
        self.take_news(news)
        if self._stream is None:
            # Made at the first tick, which alone tells whether the answer begins by thinking.
            self._stream = ThoughtStream(news.thinking)
        joined_text = "".join(p.text for p in news.pieces)
        thought, text = self._stream.feed_text(joined_text, news.finish_reason)
        marks = self._logprobs(news.notes)
        parts = list[ToolCallDelta]()
        # The closing events repeat all log-probabilities.
        self._notes += news.notes
        if thought and self.wanted.thoughts:
            yield from self._thinking(thought, news)
        if self._reader is not None:
            text, parts = self._reader.feed_text(text)
            # What looked like the beginning of a call and is none after all is said as text.
            if news.finish_reason is not None:
                rest, more = self._reader.end_text(news.finish_reason == "length")
                text = text + rest
                parts = parts + more
        self._text += text
        # A tick that only thought, before anything was said, opens no message.
        unsaid = self._thought and not text and MESSAGE not in self._order
        if (text or marks or self.wanted.details) and not unsaid:
            yield from self._begin()
            event = self._event(
                "response.output_text.delta", **self._place(), delta=text, logprobs=marks
            )
            yield self._detailed(event, news)
        for part in parts:
            yield from self._part_of_call(part)

    def _thinking(self, thought: str, news: AnswerDelta) -> Iterator[dict[str, Any]]:
        """The events of what is thought."""
        # The place of an item in the response is the order in which it was begun.
        if THOUGHT not in self._order:
            self._order.append(THOUGHT)
            item = self._thought_item("in_progress", "")
            at = self._order.index(THOUGHT)
            yield self._event("response.output_item.added", output_index=at, item=item)
        self._thought += thought
        event = self._event("response.reasoning_text.delta", **self._place(THOUGHT), delta=thought)
        yield self._detailed(event, news)

    def _detailed(self, event: dict[str, Any], news: AnswerDelta) -> dict[str, Any]:
        """An event with the tokens behind it, where they are asked for."""
        if not self.wanted.details:
            return event
        return {**event, "polydec": {"pieces": piece_rows(news.pieces)}}

    def _begin(self) -> Iterator[dict[str, Any]]:
        """The events that open the message, if it is not open."""
        if MESSAGE in self._order:
            return
        self._order.append(MESSAGE)
        at = self._order.index(MESSAGE)
        yield self._event(
            "response.output_item.added", output_index=at, item=self._message("in_progress", [])
        )
        yield self._event("response.content_part.added", **self._place(), part=self._part("", []))

    def _part_of_call(self, part: ToolCallDelta) -> Iterator[dict[str, Any]]:
        self._parts.append(part)
        # A call begins with its name; its arguments come in pieces.
        if part.name is not None:
            self._order.append(part.at)
            item = self._called(part.at, ToolCall(part.name, ""), "in_progress")
            yield self._event(
                "response.output_item.added", output_index=self._order.index(part.at), item=item
            )
        if part.arguments:
            yield self._event(
                "response.function_call_arguments.delta",
                item_id=self._call_name("fc", part.at),
                output_index=self._order.index(part.at),
                delta=part.arguments,
            )

    def closing_events(self, done: Sequence[Completion]) -> Iterator[dict[str, Any]]:
        """Write what comes after everything else.

        Args:
            done: The completion, alone.

        Yields:
            The events that close each item, and the complete response.
        """
        calls = join_call_deltas(self._parts)
        # An answer that said nothing has an empty message, unless it called.
        if not calls:
            yield from self._begin()
        whole = self.complete_response(done)
        items = {item["id"]: item for item in whole["output"]}
        # Items are closed in the order in which the stream began them.
        for at, number in enumerate(self._order):
            name = self._item_name(number)
            if number == THOUGHT:
                yield self._event(
                    "response.reasoning_text.done", **self._place(THOUGHT), text=self._thought
                )
            elif number == MESSAGE:
                marks = self._logprobs(self._notes)
                part = self._part(self._text, marks)
                yield self._event(
                    "response.output_text.done",
                    **self._place(),
                    text=self._text,
                    logprobs=marks,
                )
                yield self._event("response.content_part.done", **self._place(), part=part)
            else:
                yield self._event(
                    "response.function_call_arguments.done",
                    item_id=name,
                    output_index=at,
                    name=calls[number].name,
                    arguments=calls[number].arguments,
                )
            yield self._event("response.output_item.done", output_index=at, item=items[name])
        # The last event is named for how the response ended: completed or incomplete.
        yield self._event(f"response.{whole['status']}", response=whole)

    def failure_events(self, refusal: RefusalError) -> dict[str, Any]:
        """Write what ends a stream that cannot go on.

        Args:
            refusal: Why.

        Returns:
            An event with the error.
        """
        fields = refusal.to_json()["error"]
        # The event's own type stands where other errors say their kind.
        return self._event("error", **{k: v for k, v in fields.items() if k != "type"})

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        # Numbers begin at 0, so the one before is used.
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _place(self, number: int = MESSAGE) -> dict[str, Any]:
        at = self._order.index(number)
        return {"item_id": self._item_name(number), "output_index": at, "content_index": 0}

    # ---- as one response ----

    def take_news(self, news: AnswerDelta) -> None:
        """Note what the response will need beside the completion.

        Args:
            news: What one tick wrote.
        """
        if self.wanted.details:
            self._pieces += news.pieces

    def complete_response(self, done: Sequence[Completion]) -> dict[str, Any]:
        """Write the complete response.

        Args:
            done: The completion, alone.

        Returns:
            The response's object.
        """
        answer = done[0]
        choice = done[0].choices[0]
        if choice.finish_reason == "length":
            # "length" is the only reason that this form knows for an unfinished answer.
            status = "incomplete"
        else:
            status = "completed"
        text = choice.text
        calls = list[ToolCall]()
        whole = True
        if self.wanted.tools:
            text, calls, whole = read_calls(
                choice.text, self.wanted.tools, self.wanted.form, status == "incomplete"
            )
        if self.wanted.thoughts:
            thought = choice.reasoning or ""
        else:
            thought = ""
        items = {
            THOUGHT: self._thought_item(status if not text and not calls else "completed", thought),
            MESSAGE: self._message(
                status, [self._part(text, self._logprobs(choice.logprobs or ()))]
            ),
        }
        for at, call in enumerate(calls):
            # Only the last call can be cut.
            ended = whole or at < len(calls) - 1
            items[at] = self._called(at, call, "completed" if ended else "incomplete")
        first = [THOUGHT] if thought else []
        if text or not calls:
            message = [MESSAGE]
        else:
            # An answer of calls alone has no empty message beside them.
            message = []
        # A stream has its own order, which its events have named already.
        order = self._order or [*first, *message, *range(len(calls))]
        out = self._object(status, [items[number] for number in order], _usage(answer))
        if self.wanted.details:
            out["polydec"] = {
                "pieces": [piece_rows(self._pieces)],
                "requests": [completion_details(answer, self.wanted.asks[0].seed)],
            }
        self._keep(out)
        return out

    def _keep(self, out: dict[str, Any]) -> None:
        """Keep the response, where that is asked for; it says itself whether there was room."""
        kept = self._shape.kept
        if kept is None or not self._shape.stores:
            return
        body = "".join(json_pieces(out)).encode()
        if not kept.keep_response(self.name, body, [*self._shape.chat, *_turn(out["output"])]):
            # The client must learn now that no later turn can go on from this one.
            out["store"] = False

    @property
    def _message_name(self) -> str:
        return f"msg_{self.name.partition('-')[2]}"

    def _item_name(self, number: int) -> str:
        """The id of an item."""
        if number == MESSAGE:
            return self._message_name
        if number == THOUGHT:
            return f"rs_{self.name.partition('-')[2]}"
        return self._call_name("fc", number)

    def _thought_item(self, status: str, thought: str) -> dict[str, Any]:
        """What was thought, as an item."""
        if thought:
            parts = [{"type": "reasoning_text", "text": thought}]
        else:
            parts = []
        return {
            "id": self._item_name(THOUGHT),
            "type": "reasoning",
            "summary": [],
            "content": parts,
            "status": status,
        }

    def _call_name(self, kind: str, at: int) -> str:
        return f"{kind}_{self.name.partition('-')[2]}_0_{at}"

    def _called(self, at: int, call: ToolCall, status: str) -> dict[str, Any]:
        return {
            "id": self._call_name("fc", at),
            "call_id": self._call_name("call", at),
            "type": "function_call",
            "name": call.name,
            "arguments": call.arguments,
            "status": status,
        }

    def _object(
        self, status: str, output: list[Any], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        sampling = self.wanted.asks[0].sampling
        assert isinstance(sampling, Sampling), "the fields of a request always make one"
        return {
            "id": self.name,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "model": self.served,
            "output": output,
            "usage": usage,
            "parallel_tool_calls": True,
            "tool_choice": "none",
            "tools": [],
            # After the usual values, which these replace.
            **self.wanted.told,
            "metadata": {},
            "previous_response_id": self._shape.previous,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "store": self._shape.stores,
        }

    def _message(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {
            "id": self._message_name,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    @staticmethod
    def _part(text: str, marks: Sequence[Any]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": marks}

    def _logprobs(self, notes: Sequence[Any]) -> LazyRows:
        marks = ChatCompletionsShape().logprob_rows(
            answer_tokenizer(self.model, self.wanted), notes, TokenOffsets()
        )["content"]
        return LazyRows(
            lambda mark: (
                _listed(mark) | {"top_logprobs": [_listed(m) for m in mark["top_logprobs"]]}
            ),
            marks,
        )


def _turn(output: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a response said and called, as a message of a chat. A call that was cut is left out."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls = list[dict[str, Any]]()
    for item in output:
        if item["type"] == "message":
            message["content"] += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            message["reasoning_content"] = "".join(part["text"] for part in item["content"])
        # Chat templates want arguments as values, and those of a call that was cut cannot be read.
        elif item["status"] == "completed":
            function = {"name": item["name"], "arguments": json.loads(item["arguments"])}
            calls.append({"id": item["call_id"], "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    # An answer that said nothing at all is no turn.
    return [message] if len(message) > 2 or message["content"] else []


def _listed(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The bytes of a token must be a list in this form."""
    return {**mark, "bytes": mark["bytes"] or []}


def _usage(done: Completion) -> dict[str, Any]:
    prompt = done.usage["prompt_tokens"]
    written = done.usage["completion_tokens"]
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": done.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": done.usage.get("reasoning_tokens", 0)},
        "total_tokens": prompt + written,
        **count_unit_field(done),
    }
