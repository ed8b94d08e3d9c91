"""/v1/responses, as far as text goes: OpenAI's newer form, with named events where it streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polydec.api import LM, Ask, Completion
from polydec.options import shown
from polydec.serve.body import Body, Wanted, asking, length
from polydec.serve.constrained import constraint
from polydec.serve.errors import Refusal
from polydec.serve.reply import News, about, pieces
from polydec.serve.shapes import Chat, read_messages

LOGPROBS = "message.output_text.logprobs"
"""What `include` may hold."""


class Responses:
    """How a request is read."""

    prefix = "resp"

    def read(self, body: Body, model: LM, method: str, seed: int) -> Wanted:
        """Raises Refusal or ValueError for what cannot be honoured."""
        _format(body)
        given: dict[str, Any] = {
            **asking(body, model, method, seed),
            "constraint": constraint(body, model),
        }
        if given["n"] != 1:
            raise Refusal(f"n is {shown(given['n'])}: a response has one answer", param="n")
        if body.take("tools"):
            raise Refusal(
                "tools is given: they are called at /v1/chat/completions only", param="tools"
            )
        include, top = body.take("include", []), body.whole("top_logprobs", 0, 64)
        if include not in ([], [LOGPROBS]):
            raise Refusal(
                f"include is {shown(include)}: it must be [] or ['{LOGPROBS}']", param="include"
            )
        if top and not include:
            raise Refusal(
                f"top_logprobs is given without include: ask for ['{LOGPROBS}']",
                param="top_logprobs",
            )
        most, instructions = length(body, "max_output_tokens"), body.take("instructions")
        messages = read_input(body.take("input"))
        if instructions is not None:
            if not isinstance(instructions, str):
                raise Refusal(
                    f"instructions is {shown(instructions)}: it must be a text",
                    param="instructions",
                )
            messages = [*read_messages([{"role": "system", "content": instructions}]), *messages]
        stream, details = body.flag("stream"), body.flag("polydec")
        body.end()
        ask = Ask(messages, max_tokens=most, logprobs=(top or 0) if include else None, **given)
        return Wanted(
            (ask,),
            stream,
            True,
            details,
            told={
                "instructions": instructions,
                "max_output_tokens": most,
                "top_logprobs": top or 0,
            },
        )


def _format(body: Body) -> None:
    """`text` holds what is `response_format` elsewhere, one level less deep; it is put under that name."""
    given = body.mapping("text")
    more = next((k for k in given if k not in ("format", "verbosity")), None)
    if more is not None or given.get("verbosity") not in (None, "medium"):
        name = more or "verbosity"
        raise Refusal(
            f"text.{name[:60]} is {shown(given[name])}: text holds a format here", param="text"
        )
    form = given.get("format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        form = {
            "type": "json_schema",
            "json_schema": {k: v for k, v in form.items() if k != "type"},
        }
    if form is not None:
        body.put("response_format", form)


def read_input(given: Any) -> list[Mapping[str, Any]]:
    """A text, or messages whose parts are texts."""
    if isinstance(given, str) and given.strip():
        return read_messages([{"role": "user", "content": given}])
    if not isinstance(given, list) or not given:
        raise Refusal(
            f"input is {shown(given)}: it must be a text or a list of messages, and not empty",
            param="input",
        )
    messages = [_item(f"input[{at}]", item) for at, item in enumerate(given)]
    try:
        return read_messages(messages)
    except Refusal as error:
        raise Refusal(str(error).replace("messages", "input", 1), param="input") from None


def _item(where: str, item: Any) -> dict[str, Any]:
    """A message of the input, as chats have it. What an earlier response gave has more fields, which say nothing new."""
    if not isinstance(item, Mapping) or item.get("type", "message") != "message":
        raise Refusal(f"{where} is {shown(item)}: only messages are legal", param="input")
    unknown = next((k for k in item if k not in ("type", "role", "content", "id", "status")), None)
    if unknown is not None:
        raise Refusal(
            f"{where} has {shown(unknown)}: a message has a role and a content here", param="input"
        )
    content = item.get("content")
    if isinstance(content, list):
        content = [
            {"type": "text", "text": part.get("text")}
            if isinstance(part, Mapping)
            and part.get("type") in ("input_text", "output_text", "text")
            else part
            for part in content
        ]
    return {"role": item.get("role"), "content": content}


class Response:
    """One response. It has one answer, which is one message with one part of text."""

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
        self._marks = list[dict[str, Any]]()
        self._pieces = list[dict[str, Any]]()

    # ---- as a stream ----

    def opening(self) -> Iterator[dict[str, Any]]:
        """What comes before anything is written."""
        yield self._event("response.created", response=self._object("in_progress", [], None))
        yield self._event("response.in_progress", response=self._object("in_progress", [], None))
        yield self._event(
            "response.output_item.added", output_index=0, item=self._message("in_progress", [])
        )
        yield self._event("response.content_part.added", **self._place(), part=self._part("", []))

    def chunks(self, news: News) -> Iterator[dict[str, Any]]:
        """One tick's text."""
        self.take(news)
        text, marks = "".join(p.text for p in news.pieces), self._logprobs(news.notes)
        self._text, self._marks = self._text + text, [*self._marks, *marks]
        if text or marks or self.wanted.details:
            event = self._event(
                "response.output_text.delta", **self._place(), delta=text, logprobs=marks
            )
            yield (
                {**event, "polydec": {"pieces": pieces(news.pieces)}}
                if self.wanted.details
                else event
            )

    def closing(self, done: Sequence[Completion]) -> Iterator[dict[str, Any]]:
        """What comes after everything is written."""
        part, whole = self._part(self._text, self._marks), self.whole(done)
        yield self._event(
            "response.output_text.done", **self._place(), text=self._text, logprobs=self._marks
        )
        yield self._event("response.content_part.done", **self._place(), part=part)
        yield self._event("response.output_item.done", output_index=0, item=whole["output"][0])
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, refusal: Refusal) -> dict[str, Any]:
        """What ends a stream that cannot go on."""
        return self._event("error", code=refusal.code, message=str(refusal), param=refusal.param)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_name, "output_index": 0, "content_index": 0}

    # ---- as one response ----

    def take(self, news: News) -> None:
        """Keep what the response will need beside the completion."""
        if self.wanted.details:
            self._pieces += pieces(news.pieces)

    def whole(self, done: Sequence[Completion]) -> dict[str, Any]:
        """The response."""
        answer, choice = done[0], done[0].choices[0]
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        out = self._object(
            status,
            [
                self._message(
                    status, [self._part(choice.text, self._logprobs(choice.logprobs or ()))]
                )
            ],
            _usage(answer),
        )
        if self.wanted.details:
            out["polydec"] = {
                "pieces": [self._pieces],
                "requests": [about(answer, self.wanted.asks[0].seed)],
            }
        return out

    @property
    def _message_name(self) -> str:
        return f"msg_{self.name.partition('-')[2]}"

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
            **self.wanted.told,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "none",
            "tools": [],
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
    def _part(text: str, marks: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": marks}

    def _logprobs(self, notes: Sequence[Any]) -> list[dict[str, Any]]:
        marks = Chat().logprobs(self.model.checkpoint.text, notes, 0)["content"]
        return [
            _listed(mark) | {"top_logprobs": [_listed(m) for m in mark["top_logprobs"]]}
            for mark in marks
        ]


def _listed(mark: Mapping[str, Any]) -> dict[str, Any]:
    """The bytes of a token must be a list in this form."""
    return {**mark, "bytes": mark["bytes"] or []}


def _usage(done: Completion) -> dict[str, Any]:
    given, written = done.usage["prompt_tokens"], done.usage["completion_tokens"]
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + written,
    }
