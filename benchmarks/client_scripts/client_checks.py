"""What the scripts of this folder share: a server to ask, and checks of which each writes one line of JSON.

A script runs in the environment of its client, so that this file needs the standard library alone.
`benchmarks/client_table.py` starts the server and the scripts.
"""

from __future__ import annotations

import json
import os
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from check_columns import COLUMNS

BASE_URL = os.environ["POLYDEC_URL"] + "/v1"
API_KEY = os.environ["POLYDEC_KEY"]
MODEL = os.environ["POLYDEC_MODEL"]

QUESTION = "Name the largest planet of the solar system."
CHAT = [{"role": "user", "content": QUESTION}]
NEXT_QUESTION = "And the smallest?"
MAX_TOKENS = 24
OTHER_QUESTIONS = ("Name a river.", "Name a king.", "Name a colour.", "Name a bird.")


class AbsentFeature(Exception):
    """The client itself has no way to ask for it. Its text says what it lacks."""


def post_json(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the server without any client.

    Args:
        path: Behind ``/v1``, such as ``/chat/completions``.
        body: Fields of the request; the model is added.

    Returns:
        The answer's JSON.
    """
    request = urllib.request.Request(
        BASE_URL + path,
        json.dumps({"model": MODEL, **body}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {API_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def greedy_text(question: str = QUESTION, **fields: Any) -> str:
    """What the server answers greedily to a question.

    Args:
        question: Text of the only message. Default: the planet's.
        **fields: Further fields of the request.

    Returns:
        The answer's text.
    """
    chat = [{"role": "user", "content": question}]
    body = {"messages": chat, "max_tokens": MAX_TOKENS, "temperature": 0, **fields}
    return post_json("/chat/completions", body)["choices"][0]["message"]["content"]


def require_equal(found: Any, wanted: Any) -> None:
    """Raise AssertionError, with both, where a client gave something else than the server.

    Args:
        found: What the client gave.
        wanted: What the server says.
    """
    if found != wanted:
        raise AssertionError(f"{found!r}, the server says {wanted!r}")


def require_refusal(ask: Callable[[], Any], *words: str) -> None:
    """Raise AssertionError where a request is not refused, or where the client hides the reason.

    Args:
        ask: Sends a request that the server cannot honour.
        words: Words of the server's sentence, all of which the client's exception must say.
    """
    try:
        found = ask()
    except Exception as error:
        said = f"{error} {error.__cause__}"
        lost = [word for word in words if word not in said]
        if lost:
            raise AssertionError(f"{type(error).__name__} does not say {lost}: {said}") from error
        return
    raise AssertionError(f"nothing was refused: {found!r}")


def run_checks(package: str, script: Mapping[str, Any]) -> None:
    """Run checks, one after the other, and write a line of JSON for each.

    Args:
        package: The client's distribution, whose version is told.
        script: Names of the script. It has a function `check_COLUMN` for each column, which returns
            words for a note, or nothing; it raises where something is not as it must be, and
            AbsentFeature where the client cannot ask.
    """
    for column in COLUMNS:
        outcome = "yes"
        note = ""
        try:
            note = script[f"check_{column}"]() or ""
        except AbsentFeature as absent:
            outcome = "absent"
            note = str(absent)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            traceback.print_exc()
            outcome = "no"
            # The whole of it goes to standard error; a table has room for its beginning.
            note = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        line = {"version": version(package), "column": column, "outcome": outcome, "note": note}
        print("CHECK " + json.dumps(line), flush=True)
