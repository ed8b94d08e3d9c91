"""polydec serve: OpenAI's API over HTTP, and a page."""

# ruff: noqa: RUF009  (a call makes a field of a dataclass)
from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from polydec import api
from polydec.base.errors import MissingError, RequestError
from polydec.base.options import short_repr
from polydec.cli.declared_flags import expand_flag_parameters, flag_field, flags_of
from polydec.cli.generate import print_unused_settings
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.request.loading import loading_options
from polydec.serve.settings import RequestLimits, request_limit_options, server_setting_options

if TYPE_CHECKING:
    from polydec.serve.request_log import RequestLog

MODEL = "Model"
SERVER = "Server"
LIMITS = "Limits"
LOADING = loading_options()
KEY = "POLYDEC_API_KEY"
NEEDS = ("fastapi", "uvicorn", "prometheus_client")
RAY_NEEDS = ("ray", "httpx")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


def _loaded(name: str, **more: Any) -> Any:
    return flag_field(LOADING[name], MODEL, group="loading", **more)


def _set(name: str, panel: str) -> Any:
    return flag_field(server_setting_options()[name], panel, group="settings")


def _limited(name: str, **more: Any) -> Any:
    return flag_field(request_limit_options()[name], LIMITS, group="limits", **more)


@dataclass(frozen=True)
class ServeFlags:
    """The flags of `polydec serve`: every field is one. What `max_` begins is a field of
    `RequestLimits`.
    """

    model: Annotated[
        list[str] | None,
        Option(
            help=f"{LOADING['name'].help}; NAME=MODEL serves it under that name (repeatable; default: "
            f"{LOADING['name'].default})",
            rich_help_panel=MODEL,
        ),
    ] = None
    draft: str | None = _loaded("draft")
    ngrams: str | None = _loaded("ngrams")
    with_: list[str] | None = _loaded(
        "trained", spelt="--with", more="NAME=… for the model served under that name"
    )
    method: str = _set("method", MODEL)
    dtype: str = _loaded("dtype")
    quantize: str | None = _loaded("quantize")
    compute: str | None = _loaded("compute")
    cache_dtype: str | None = _loaded("cache_dtype")
    device: str = _loaded("device")
    threads: int | None = _loaded("threads")
    workers: int = _loaded("workers")
    keep: int = _set("keep", MODEL)
    host: str = _set("host", SERVER)
    port: int = _set("port", SERVER)
    api_key_file: Annotated[
        Path | None,
        Option(
            help="keys, one a line, with limits behind them where they have some (name=… requests=… tokens=… answers=…); "
            f"{KEY} in the environment is one as well",
            rich_help_panel=SERVER,
        ),
    ] = None
    without_key: bool = _set("without_key", SERVER)
    replicas: int = _set("replicas", SERVER)
    cors: Annotated[
        list[str] | None,
        Option(
            help="origin of web pages that may use it, such as https://example.org, or * for all (repeatable)",
            rich_help_panel=SERVER,
        ),
    ] = None
    trace: Annotated[
        Path | None,
        Option(
            help="write what happens to all requests to this file, with their tokens, for `polydec trace`",
            rich_help_panel=SERVER,
        ),
    ] = None
    request_log: Annotated[
        str | None,
        Option(
            help="write a line of JSON for each request to this file (-: standard error)",
            rich_help_panel=SERVER,
        ),
    ] = None
    log_texts: bool = _set("log_texts", SERVER)
    access_log: str = _set("access_log", SERVER)
    unknown_fields: str = _set("unknown_fields", SERVER)
    stored_responses: int = _set("stored_responses", LIMITS)
    stored_size: float = _set("stored_size", LIMITS)
    stored_seconds: float = _set("stored_seconds", LIMITS)
    drain: float = _set("drain", SERVER)
    max_running: int = _limited("running")
    max_waiting: int = _limited("waiting")
    max_body: int = _limited("body")
    max_prompt: int = _limited("prompt")
    max_output: int = _limited("output")
    max_entries: int = _limited("entries")
    max_seconds: float = _limited("seconds")
    max_wait: float = _limited("wait")
    max_cache: float = _limited("cache")
    max_positions: str = _limited("positions", type=str, default="auto")

    @property
    def limits(self) -> RequestLimits:
        """What clients may take.

        Raises:
            RequestError: A value is out of its range.
        """
        # 0: chosen by what passes cost on this machine.
        if self.max_positions == "auto":
            positions = 0
        else:
            positions = self.max_positions
        settings = {
            known.option.name: getattr(self, name)
            for name, known in flags_of(type(self), "limits").items()
        }
        return RequestLimits(**{**settings, "positions": positions})

    @property
    def loading(self) -> dict[str, Any]:
        """How every model is loaded."""
        names = flags_of(type(self), "loading").keys() - {"with_"}
        return {name: getattr(self, name) for name in names}


@expand_flag_parameters
def serve(flags: ServeFlags) -> None:
    """Serve models over HTTP: OpenAI's API under /v1, a page at /. SIGTERM lets requests under way end."""
    # Missing packages and wrong flags are reported before anything is imported that takes seconds.
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise MissingError(f"serve needs {', '.join(missing)}: pip install 'polydec[serve]'")
    check_server_flags(flags)
    registry.check_names(flags.method, {})
    if flags.trace is not None and flags.replicas > 1:
        raise RequestError("serve does not take --trace with --replicas: a trace is of one process")
    if flags.log_texts and flags.request_log is None:
        raise RequestError(
            "log_texts is given without --request-log: there is no line to hold texts"
        )
    missing = [name for name in RAY_NEEDS if flags.replicas > 1 and find_spec(name) is None]
    if missing:
        raise MissingError(
            f"replicas is {flags.replicas}: that needs {', '.join(missing)}: pip install 'polydec[ray]'"
        )
    # Only now, as these imports load torch.
    from polydec.serve.app import create_app
    from polydec.serve.quotas import read_keys
    from polydec.serve.run import check_address, open_listening_socket
    from polydec.serve.run import run_server as run

    allowed = flags.limits
    lenient = flags.unknown_fields == "ignore"
    local = not flags.without_key
    origins = _origins(flags.cors or [])
    # Without a key only this machine may be listened on.
    keys = read_keys(flags.api_key_file, os.environ.get(KEY))
    check_address(flags.host, keys, flags.without_key)
    load = partial(_load, loading=flags.loading, keep=flags.keep, method=flags.method)
    names = _named(flags.model or [LOADING["name"].default])
    trained = _trained(flags.with_ or [], names)
    loaders = _loaders(names, trained, load)
    if flags.replicas == 1:
        from polydec.serve.stored_responses import ResponseStore
        from polydec.serve.traced import ServerTrace

        # Before the trace is opened: a port in use may mean that another server writes to it.
        sock = open_listening_socket(flags.host, flags.port)
        app = create_app(
            loaders,
            limits=allowed,
            keys=keys,
            method=flags.method,
            local=local,
            lenient=lenient,
            origins=origins,
            trace=None if flags.trace is None else ServerTrace(flags.trace),
            request_log=_opened_log(flags),
            stored=ResponseStore(
                flags.stored_responses, int(flags.stored_size * (1 << 20)), flags.stored_seconds
            ),
        )
        run(app, sock, drain=flags.drain, access_log=flags.access_log)
        return
    # The replicas share the processor's cores.
    each = flags.threads or max(1, (os.cpu_count() or 1) // flags.replicas)
    load = partial(load, loading={**flags.loading, "threads": each})
    from polydec.serve.replica_front import create_front
    from polydec.serve.replicas import fleet_of

    # Before any process is started: a port in use ends the command at once.
    sock = open_listening_socket(flags.host, flags.port)
    # Before them as well: a log that cannot be written ends the command.
    written = _opened_log(flags)
    fleet = fleet_of(
        flags.replicas,
        _loaders(names, trained, load),
        limits=allowed,
        method=flags.method,
        threads=each,
        lenient=lenient,
    )
    front = create_front(
        fleet, limits=allowed, keys=keys, local=local, origins=origins, request_log=written
    )
    run(front, sock, drain=flags.drain, access_log=flags.access_log)


def _opened_log(flags: ServeFlags) -> RequestLog | None:
    """The request log. It is opened after the socket: where the port is in use, it may be that of the server that has it."""
    from polydec.serve.request_log import RequestLog

    if flags.request_log is None:
        return None
    return RequestLog(flags.request_log, flags.log_texts)


def check_server_flags(flags: ServeFlags) -> None:
    """Check that flags lie in their ranges; messages use the flags' names.

    Raises:
        RequestError: A flag is out of its range.
    """
    for name, known in flags_of(ServeFlags).items():
        value = getattr(flags, name)
        if known.option.limits and (name, value) != ("max_positions", "auto"):
            replace(known.option, name=name).convert_value(value)


def _origins(origins: list[str]) -> tuple[str, ...]:
    """--cors: as browsers write an origin."""
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise RequestError(
                f"cors is {short_repr(origin)}: it must be an origin, such as https://example.org or "
                "http://localhost:3000 (without a path), or *"
            )
    return tuple(origins)


def _named(models: list[str]) -> dict[str, str]:
    """What each model is loaded from, by the name under which it is served."""
    out: dict[str, str] = {}
    for entry in models:
        # A path may hold "=" itself: what exists is taken as it is.
        if _here(entry):
            name = ""
            _ = ""
            source = entry
        else:
            name, _, source = entry.rpartition("=")
        # Clients need not know where a model lies on this machine: its folder's name is enough.
        name = name or (Path(source).resolve().name if _here(source) else source)
        if name in out:
            raise RequestError(
                f"model {name!r} is given twice: NAME=MODEL gives one of them another name"
            )
        out[name] = source
    return out


def _here(name: str) -> bool:
    """Whether a file or directory of that name is there; a name that cannot be one is not."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        # It is too long, or has a zero byte in it.
        return False


def _trained(entries: list[str], names: Mapping[str, str]) -> dict[str, list[str]]:
    """What was trained for each model, by the name under which it is served. Of a single one the
    name may be left out."""
    out: dict[str, list[str]] = {name: [] for name in names}
    for entry in entries:
        if _here(entry):
            name = ""
            _ = ""
            source = entry
        else:
            name, _, source = entry.rpartition("=")
        # With one model it is clear which one is meant.
        if not name and len(names) == 1:
            name = next(iter(names))
        if name not in out:
            raise RequestError(
                f"with is {entry!r}: of {len(names)} models it must say which one it is for, as "
                f"NAME={source or entry}; NAME is one of {', '.join(names)}"
            )
        out[name].append(source)
    return out


def _loaders(
    names: Mapping[str, str], trained: Mapping[str, list[str]], load: Callable[..., api.LoadedModel]
) -> dict[str, Callable[[], api.LoadedModel]]:
    """How each model is loaded, by the name under which it is served."""
    return {name: partial(load, source, trained=trained[name]) for name, source in names.items()}


def _load(
    source: str, *, trained: list[str], loading: Mapping[str, Any], keep: int, method: str
) -> api.LoadedModel:
    from polydec.request.ask import plan_request

    lm = api.load(source, trained=trained, **loading)
    # A request without a method gets this one: whatever it cannot do is reported at the start.
    usual = api.Ask("x", method=method)
    print_unused_settings(lm, plan_request(lm, usual, measure=PassCosts))
    # Texts that stay cached for requests that begin alike.
    lm.keep_texts(keep)
    return lm
