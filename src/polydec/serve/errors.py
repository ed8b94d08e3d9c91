"""What the server refuses, in OpenAI's error form."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from polydec.base.edge import error_sentence, escape_control_characters
from polydec.base.errors import PolydecError

KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""The `type` of an error by its status; others below 500 are invalid requests."""

CALLED = {"message": "messages", "option": "options"}
"""Sentences that begin with another word than the field's name."""


OTHERS = {
    "prompt": ("messages", "input"),
    "prompt_ending": ("continue_final_message", "add_generation_prompt"),
    "max_tokens": ("max_completion_tokens", "max_output_tokens"),
    "logprobs": ("top_logprobs", "include"),
    "prompt_logprobs": ("logprobs",),
}
"""Fields that have several names."""


class RefusalError(Exception):
    """A request that is not answered.

    Args:
        message: Why, as a sentence.
        status: HTTP status. Default 400.
        param: The field that is to blame. None: no field is.
        code: A word for programs. None: there is none.
        retry: Seconds after which it may be worth asking again. None: it is not.
    """

    def __init__(
        self,
        message: object,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry: int | None = None,
    ) -> None:
        super().__init__(error_sentence(message))
        self.status = status
        self.code = code
        self.retry = retry
        self.request_id = ""
        self.param = (
            None if param is None else escape_control_characters(param)
        )  # it may be a client's word

    def to_json(self) -> dict[str, Any]:
        kind = KINDS.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        if self.request_id:
            error["request_id"] = self.request_id
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        if self.retry is not None:
            out = {"Retry-After": str(self.retry)}
        else:
            out = {}
        if self.status == 401:
            return {**out, "WWW-Authenticate": "Bearer"}
        return out


def refusal_from_error(error: PolydecError, fields: Collection[str]) -> RefusalError:
    """Turn an error of the library into a refusal.

    Args:
        error: The error; the first word of its sentence names the field.
        fields: Names of the fields that the client sent.

    Returns:
        A refusal of status 400 that blames the field by the client's name of it, where it is among
        them.
    """
    first = re.match(r"\w+", str(error))
    if first is None:
        word = ""
    else:
        word = CALLED.get(first[0], first[0])
    if word not in fields:  # what the library calls so has another name at this endpoint
        word = next((name for name in OTHERS.get(word, ()) if name in fields), word)
    return RefusalError(error, param=word if word in fields else None)
