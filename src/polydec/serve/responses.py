"""/v1/responses, as far as text goes: OpenAI's newer form, with named events where it streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polydec.api import LM, Ask, Completion, Piece
from polydec.base.options import shown
from polydec.request.fields import ALTERNATIVES
from polydec.serve.body import Body, Wanted, asking, length
from polydec.serve.constrained import constraint
from polydec.serve.errors import Refusal
from polydec.serve.json_text import LazyRows
from polydec.serve.reply import News, about, pieces, spelling, unit
from polydec.serve.shapes import Chat, Offsets, read_messages
from polydec.serve.template import template_values
from polydec.serve.tools import Call, Part, Reader, joined, read_calls, read_tools

LOGPROBS = "message.output_text.logprobs"
"""What `include` may hold."""

MESSAGE = -1
"""The message, where items are told by numbers: those of calls begin at 0."""


class Responses:
    """How a request is read."""

    prefix = "resp"

    def read(self, body: Body, model: LM, method: str, seed: int) -> Wanted:
        """Raises Refusal or RequestError for what cannot be honoured."""
        _format(body)
        fields: dict[str, Any] = {
            **asking(body, model, method, seed),
            "constraint": constraint(body, model),
            "template": template_values(body, model),
        }
        if fields["n"] != 1:
            raise Refusal(f"n is {shown(fields['n'])}: a response has one answer", param="n")
        tools = read_tools(body, model, fields["constraint"], flat=True)
        fields["constraint"] = tools.constraint
        include, top = body.take("include", []), body.whole("top_logprobs", 0, ALTERNATIVES)
        if include not in ([], [LOGPROBS]):
            raise Refusal(
                f"include is {shown(include)}: it must be [] or ['{LOGPROBS}']", param="include"
            )
        if top and not include:
            raise Refusal(
                f"top_logprobs is given without include: ask for ['{LOGPROBS}']",
                param="top_logprobs",
            )
        if include and tools.shown:
            raise Refusal(
                "include is given with tools: calls have no place for log-probabilities",
                param="include",
            )
        most, instructions = length(body, "max_output_tokens"), body.take("instructions")
        messages = read_input(body, body.take("input"), tools="tools" in body.fields)
        if instructions is not None:
            if not isinstance(instructions, str):
                raise Refusal(
                    f"instructions is {shown(instructions)}: it must be a text",
                    param="instructions",
                )
            system = [{"role": "system", "content": instructions}]
            messages = [*read_messages(body, system), *messages]
        stream, details = body.flag("stream"), body.flag("polydec")
        body.end()
        ask = Ask(
            messages,
            tools=tools.shown,
            max_tokens=most,
            logprobs=(top or 0) if include else None,
            **fields,
        )
        return Wanted(
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
        )


def _format(body: Body) -> None:
    """`text` holds what is `response_format` elsewhere, one level less deep; it is put under that name."""
    form_asked = body.mapping("text")
    body.members("text", form_asked, ("format", "verbosity"))
    if form_asked.get("verbosity") not in (None, "medium"):
        raise Refusal(
            f"text.verbosity is {shown(form_asked['verbosity'])}: text holds a format here",
            param="text",
        )
    form = form_asked.get("format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        form = {
            "type": "json_schema",
            "json_schema": {k: v for k, v in form.items() if k != "type"},
        }
    if form is not None:
        body.put("response_format", form)


def read_input(body: Body, value: Any, *, tools: bool = False) -> list[Mapping[str, Any]]:
    """A text, or messages whose parts are texts; tools: the request has some, so that there may be calls of them and what they
    gave."""
    if isinstance(value, str) and value:
        return read_messages(body, [{"role": "user", "content": value}])
    if not isinstance(value, list) or not value:
        raise Refusal(
            f"input is {shown(value)}: it must be a text or a list of messages, and not empty",
            param="input",
        )
    messages = list[dict[str, Any]]()
    for at, item in enumerate(value):
        kind = item.get("type") if isinstance(item, Mapping) else None
        if tools and kind == "function_call":
            call = _past(f"input[{at}]", item, body)
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1] = messages[-1] | {
                "tool_calls": [*messages[-1].get("tool_calls", ()), call]
            }
        elif tools and kind == "function_call_output":
            messages.append(_result(f"input[{at}]", item, body))
        else:
            messages.append(_item(f"input[{at}]", item, body))
    try:
        return read_messages(body, messages, tools=tools)
    except Refusal as error:
        told = str(error).replace("messages", "input", 1)
        raise Refusal(told, param="input", code=error.code) from None


def _past(where: str, item: Mapping[str, Any], body: Body) -> dict[str, Any]:
    """A call of an earlier response, as chats have it."""
    body.members(where, item, ("type", "id", "call_id", "name", "arguments", "status"))
    function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _result(where: str, item: Mapping[str, Any], body: Body) -> dict[str, Any]:
    """What a call gave, as chats have it."""
    body.members(where, item, ("type", "id", "call_id", "output", "status"))
    return {
        "role": "tool",
        "tool_call_id": item.get("call_id"),
        "content": _content(item.get("output")),
    }


def _item(where: str, item: Any, body: Body) -> dict[str, Any]:
    """A message of the input, as chats have it. What an earlier response gave has more fields, which say nothing new."""
    if not isinstance(item, Mapping) or item.get("type", "message") != "message":
        raise Refusal(f"{where} is {shown(item)}: only messages are legal", param="input")
    body.members(where, item, ("type", "role", "content", "id", "status"))
    return {"role": item.get("role"), "content": _content(item.get("content"))}


def _content(content: Any) -> Any:
    """Parts of text as chats have them."""
    if not isinstance(content, list):
        return content
    return [
        {**part, "type": "text"}
        if isinstance(part, Mapping) and part.get("type") in ("input_text", "output_text", "text")
        else part
        for part in content
    ]


class Response:
    """One response. It has one answer: one message with one part of text, and the calls that it makes, if it may make some;
    there is no message then where it says nothing."""

    last = ""  # a stream ends with its last event

    def __init__(
        self, shape: Responses, wanted: Wanted, model: LM, served: str, name: str, created: int
    ) -> None:
        self.wanted, self.model, self.served, self.name, self.created = (
            wanted,
            model,
            served,
            name,
            created,
        )
        self._number, self._text = 0, ""
        self._notes = list[Any]()  # log-probabilities of a stream so far
        self._pieces = list[Piece]()
        self._reader = Reader(wanted.tools, wanted.form) if wanted.tools else None
        self._parts = list[Part]()
        self._order = list[int]()  # what a stream has begun: the numbers of calls, MESSAGE

    # ---- as a stream ----

    def opening(self) -> Iterator[dict[str, Any]]:
        """What comes before anything is written."""
        yield self._event("response.created", response=self._object("in_progress", [], None))
        yield self._event("response.in_progress", response=self._object("in_progress", [], None))
        if self._reader is None:
            yield from self._begin()

    def chunks(self, news: News) -> Iterator[dict[str, Any]]:
        """One tick's text."""
        self.take(news)
        text, marks = "".join(p.text for p in news.pieces), self._logprobs(news.notes)
        self._notes += news.notes
        parts = list[Part]()
        if self._reader is not None:
            text, parts = self._reader.feed(text)
            if news.finish_reason is not None:
                rest, more = self._reader.end(news.finish_reason == "length")
                text, parts = text + rest, parts + more
        self._text += text
        if text or marks or self.wanted.details:
            yield from self._begin()
            event = self._event(
                "response.output_text.delta", **self._place(), delta=text, logprobs=marks
            )
            yield (
                {**event, "polydec": {"pieces": pieces(news.pieces)}}
                if self.wanted.details
                else event
            )
        for part in parts:
            yield from self._part_of_call(part)

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

    def _part_of_call(self, part: Part) -> Iterator[dict[str, Any]]:
        self._parts.append(part)
        if part.name is not None:
            self._order.append(part.at)
            item = self._called(part.at, Call(part.name, ""), "in_progress")
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

    def closing(self, done: Sequence[Completion]) -> Iterator[dict[str, Any]]:
        """What comes after everything is written."""
        calls = joined(self._parts)
        if not calls:
            yield from self._begin()
        whole = self.whole(done)
        items = {item["id"]: item for item in whole["output"]}
        for at, number in enumerate(self._order):
            name = self._message_name if number == MESSAGE else self._call_name("fc", number)
            if number == MESSAGE:
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
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, refusal: Refusal) -> dict[str, Any]:
        """What ends a stream that cannot go on."""
        return self._event("error", code=refusal.code, message=str(refusal), param=refusal.param)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _place(self) -> dict[str, Any]:
        at = self._order.index(MESSAGE)
        return {"item_id": self._message_name, "output_index": at, "content_index": 0}

    # ---- as one response ----

    def take(self, news: News) -> None:
        """Keep what the response will need beside the completion."""
        if self.wanted.details:
            self._pieces += news.pieces

    def whole(self, done: Sequence[Completion]) -> dict[str, Any]:
        """The response."""
        answer, choice = done[0], done[0].choices[0]
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        text, calls, whole = choice.text, list[Call](), True
        if self.wanted.tools:
            text, calls, whole = read_calls(
                choice.text, self.wanted.tools, self.wanted.form, status == "incomplete"
            )
        items = {
            MESSAGE: self._message(
                status, [self._part(text, self._logprobs(choice.logprobs or ()))]
            )
        }
        for at, call in enumerate(calls):
            ended = whole or at < len(calls) - 1
            items[at] = self._called(at, call, "completed" if ended else "incomplete")
        message = [MESSAGE] if text or not calls else []
        order = self._order or [*message, *range(len(calls))]
        out = self._object(status, [items[number] for number in order], _usage(answer))
        if self.wanted.details:
            out["polydec"] = {
                "pieces": [pieces(self._pieces)],
                "requests": [about(answer, self.wanted.asks[0].seed)],
            }
        return out

    @property
    def _message_name(self) -> str:
        return f"msg_{self.name.partition('-')[2]}"

    def _call_name(self, kind: str, at: int) -> str:
        return f"{kind}_{self.name.partition('-')[2]}_0_{at}"

    def _called(self, at: int, call: Call, status: str) -> dict[str, Any]:
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
        assert sampling is not None, "the fields of a request always make one"
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
            **self.wanted.told,
            "metadata": {},
            "previous_response_id": None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "store": False,
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
        marks = Chat().logprobs(spelling(self.model, self.wanted), notes, Offsets())["content"]
        return LazyRows(
            lambda mark: (
                _listed(mark) | {"top_logprobs": [_listed(m) for m in mark["top_logprobs"]]}
            ),
            marks,
        )


def _listed(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The bytes of a token must be a list in this form."""
    return {**mark, "bytes": mark["bytes"] or []}


def _usage(done: Completion) -> dict[str, Any]:
    prompt, written = done.usage["prompt_tokens"], done.usage["completion_tokens"]
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + written,
        **unit(done),
    }
