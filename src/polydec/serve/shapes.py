"""The two forms of OpenAI's API: how a request of each is read, and how answers are written in it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from polydec.api import LM, Ask
from polydec.core.request import TokenLogprob
from polydec.models.text import Text
from polydec.options import shown
from polydec.serve.body import Body, Wanted, asking, length, streaming
from polydec.serve.constrained import constraint
from polydec.serve.errors import Refusal

LOWEST = -9999.0
"""What JSON has for the logarithm of 0, as vLLM writes it."""

MOST_PROMPTS = 1024
"""Prompts of one request to /v1/completions."""


class Shape(Protocol):
    """One endpoint."""
    prefix: str                                   # of the response's id
    whole: str                                    # the `object` of a response
    chunk: str                                    # the `object` of a chunk of a stream

    def read(self, body: Body, model: LM, method: str, seed: int) -> Wanted:
        """Raises Refusal or ValueError for what cannot be honoured."""
        ...

    def opening(self, index: int, echo: str) -> dict[str, Any] | None:
        """The first chunk of a choice; None where there is none."""
        ...

    def delta(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        """A choice of a chunk."""
        ...

    def choice(self, index: int, text: str, logprobs: Any, finish_reason: str) -> dict[str, Any]:
        """A choice of a response."""
        ...

    def logprobs(self, text: Text, notes: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """Log-probabilities of the model; offset: characters before them."""
        ...


class Chat:
    """/v1/chat/completions"""
    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def read(self, body: Body, model: LM, method: str, seed: int) -> Wanted:
        given = asking(body, model, method, seed)
        given["constraint"] = constraint(body, model)
        logprobs, top = body.flag("logprobs"), body.whole("top_logprobs", 0, 64)
        if top is not None and not logprobs:
            raise Refusal("top_logprobs is given without logprobs: set logprobs to true", param="top_logprobs")
        given["max_tokens"] = length(body, "max_completion_tokens", "max_tokens")
        given["logprobs"] = (top or 0) if logprobs else None
        messages = read_messages(body.take("messages"))
        stream, usage, details = streaming(body)
        body.end()
        return Wanted((Ask(messages, **given),), stream, usage, details)

    def opening(self, index: int, echo: str) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text} if text or finish_reason is None else {}, "logprobs": logprobs,
                "finish_reason": finish_reason}

    def choice(self, index: int, text: str, logprobs: Any, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": logprobs, "finish_reason": finish_reason}

    def logprobs(self, text: Text, notes: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        def entry(token: int, logp: float) -> dict[str, Any]:
            spelled = text.pieces[token] if token < len(text.pieces) else None
            return {"token": token_text(text, token), "logprob": max(logp, LOWEST),
                    "bytes": None if spelled is None else list(spelled)}

        return {"content": [{**entry(n.token, n.model_logp), "top_logprobs": [entry(*t) for t in n.top]} for n in notes],
                "refusal": None}


class Completions:
    """/v1/completions"""
    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def read(self, body: Body, model: LM, method: str, seed: int) -> Wanted:
        given = asking(body, model, method, seed)
        given["constraint"] = constraint(body, model)
        given["max_tokens"] = length(body, "max_tokens", default=16)
        given["logprobs"] = body.whole("logprobs", 0, 64)
        prompts, echo = read_prompts(body.take("prompt")), body.flag("echo")
        if echo and given["logprobs"] is not None:
            raise Refusal("echo is true with logprobs: log-probabilities of a prompt are not computed here", param="echo")
        if echo and not all(isinstance(p, str) for p in prompts):
            raise Refusal("echo is true with a prompt of token ids: it is legal with texts only", param="echo")
        stream, usage, details = streaming(body)
        body.end()
        return Wanted(tuple(Ask(p, raw=True, **given) for p in prompts), stream, usage, details, echo)

    def opening(self, index: int, echo: str) -> dict[str, Any] | None:
        return self.choice(index, echo, None, None) if echo else None

    def delta(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        return self.choice(index, text, logprobs, finish_reason)

    def choice(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def logprobs(self, text: Text, notes: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        tokens, offsets = [token_text(text, n.token) for n in notes], list[int]()
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        top = [{token_text(text, t): max(logp, LOWEST) for t, logp in n.top} for n in notes]
        return {"tokens": tokens, "token_logprobs": [max(n.model_logp, LOWEST) for n in notes],
                "top_logprobs": top if any(top) else None, "text_offset": offsets}


def token_text(text: Text, token: int) -> str:
    """A token alone. One that is part of a character has U+FFFD; a special token its name."""
    spelled = text.pieces[token] if token < len(text.pieces) else None
    return (text.tokenizer.id_to_token(token) or "") if spelled is None else spelled.decode("utf-8", "replace")


def read_prompts(prompt: Any) -> list[Any]:
    """A text or token ids, or several of either."""
    if prompt is None:
        raise Refusal("prompt is missing: give a text or token ids", param="prompt")
    many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))
    prompts = prompt if many else [prompt]
    if len(prompts) > MOST_PROMPTS:
        raise Refusal(f"prompt has {len(prompts)} entries: at most {MOST_PROMPTS} are legal", param="prompt")
    for at, one in enumerate(prompts):
        if not isinstance(one, (str, list)) or not one:
            raise Refusal(f"prompt{f'[{at}]' if many else ''} is {shown(one)}: it must be a text or token ids, and not empty",
                          param="prompt")
        if isinstance(one, list) and not all(type(x) is int for x in one):
            raise Refusal("prompt holds something else than texts, or than token ids", param="prompt")
        if isinstance(one, str):
            _whole_text(one, "prompt")
    return prompts


def read_messages(messages: Any) -> list[Mapping[str, str]]:
    """Messages as templates take them: role and content, a text each. `developer` is another word for `system`."""
    if not isinstance(messages, list) or not messages:
        raise Refusal(f"messages is {shown(messages)}: it must be a list of at least one message", param="messages")
    return [_message(f"messages[{at}]", m) for at, m in enumerate(messages)]


def _message(where: str, message: Any) -> Mapping[str, str]:
    if not isinstance(message, Mapping):
        raise Refusal(f"{where} is {shown(message)}: it must have a role and a content", param="messages")
    for name, value in message.items():           # clients send back what they got, empty fields included
        if name not in ("role", "content") and value not in (None, [], {}, ""):
            raise Refusal(f"{where}.{str(name)[:60]} is {shown(value)}: a message has a role and a content here",
                          param="messages")
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise Refusal(f"{where}.role is {shown(role)}: it must be system, developer, user or assistant", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(f"{where}.content[{at}]", part) for at, part in enumerate(content))
    if not isinstance(content, str):
        raise Refusal(f"{where}.content is {shown(content)}: it must be a text", param="messages")
    return {"role": "system" if role == "developer" else role, "content": _whole_text(content, "messages")}


def _part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise Refusal(f"{where} is {shown(kind)}: only parts of type text are legal", param="messages")
    return part["text"]


def _whole_text(text: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refusal(f"{field} holds half a character: it must be whole Unicode text", param=field) from None
    return text
