"""What is set of a server: name, type, range, default and help of each setting stand here once. Nothing here computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import (
    InRange,
    OneOf,
    Option,
    ValueNote,
    callable_options,
    convert_dataclass_fields,
)
from polydec.request.fields import Ask


@dataclass(frozen=True)
class RequestLimits:
    """Of one model's requests. Raises RequestError for a value out of its range."""

    running: Annotated[int, InRange(1, 4096), "answers that are written at the same time"] = 64
    waiting: Annotated[
        int, InRange(0, 65536), "answers that wait for their turn; more are refused with 429"
    ] = 256
    body: Annotated[int, InRange(1024, 1 << 28), "bytes of a request"] = 4 << 20
    prompt: Annotated[int, InRange(1, 1 << 24), "tokens of a prompt"] = 1 << 17
    output: Annotated[int, InRange(1, 1 << 24), "tokens of an answer"] = 4096
    entries: Annotated[
        int,
        InRange(1, 1 << 30),
        "log-probabilities that a response lists, alternatives included; four numbers of a vector count as one",
    ] = 1 << 20
    seconds: Annotated[float, InRange(0.001, 86400), "of a request, waiting included"] = 600.0
    positions: Annotated[
        int,
        InRange(0, 1 << 20),
        ValueNote("0 or auto: from what passes cost on this machine"),
        "of one pass of the model",
    ] = 0
    wait: Annotated[
        float, InRange(0.001, 86400), "seconds that a request waits for its turn; then it is a 503"
    ] = 300.0
    cache: Annotated[
        float,
        InRange(0, 1 << 30),
        ValueNote("0: as much as they take"),
        "MiB of the caches of all requests",
    ] = 0.0

    def __post_init__(self) -> None:
        convert_dataclass_fields(self)

    @property
    def cache_bytes(self) -> int:
        """Of all requests; 0: as much as they take."""
        # Given in MiB, as people count memory.
        return int(self.cache * (1 << 20))

    def admit_answers(self, answers: int) -> None:
        """Raise RequestError where a request asks for more answers than there can ever be room for."""
        # More could never all be let in, so waiting would not help.
        most = self.running + self.waiting
        if answers > most:
            raise RequestError(
                f"n is {answers} over all prompts: this server takes at most {most} answers at a time"
            )


@dataclass(frozen=True)
class ServerSettings:
    """Of a server as a whole. Raises RequestError for a value out of its range."""

    method: Annotated[str, "decoding method of requests that name none"] = Ask.method
    keep: Annotated[
        int, InRange(0, 1024), "texts whose computed prefixes are kept for later requests"
    ] = 4
    host: Annotated[str, "address to listen on"] = "127.0.0.1"
    port: Annotated[
        int, InRange(0, 65535), ValueNote("0: any that is free"), "port to listen on"
    ] = 8000
    without_key: Annotated[bool, "anybody who reaches the address may use it"] = False
    replicas: Annotated[
        int,
        InRange(1, 64),
        "servers behind this address, each with all models (more than 1: with the extra `ray`)",
    ] = 1
    unknown_fields: Annotated[
        str,
        OneOf("refuse", "ignore"),
        ValueNote("ignore names them in the header X-Polydec-Ignored"),
        "what becomes of fields of a request that nobody knows",
    ] = "refuse"
    log_texts: Annotated[
        bool, "lines of the request log hold what was asked and answered as well"
    ] = False
    access_log: Annotated[
        str,
        OneOf("off", "critical", "error", "warning", "info", "debug", "trace"),
        ValueNote("info and below: a line a request as well"),
        "least level of the web server's own messages (uvicorn's), on standard error and output",
    ] = "off"
    stored_responses: Annotated[
        int,
        InRange(0, 65536),
        ValueNote("0: none"),
        "responses that are kept for later turns where `store` is true",
    ] = 1000
    stored_size: Annotated[float, InRange(0, 1 << 20), "MiB that they take, compressed"] = 16.0
    stored_seconds: Annotated[float, InRange(1, 30 * 86400), "seconds after which one expires"] = (
        86400.0
    )
    drain: Annotated[
        float,
        InRange(0, 3600),
        "seconds that requests under way have when the server stops",
    ] = 30.0


@cache
def request_limit_options() -> Mapping[str, Option]:
    """The fields of `RequestLimits` by name."""
    return MappingProxyType({option.name: option for option in callable_options(RequestLimits)})


@cache
def server_setting_options() -> Mapping[str, Option]:
    """The fields of `ServerSettings` by name."""
    return MappingProxyType({option.name: option for option in callable_options(ServerSettings)})
