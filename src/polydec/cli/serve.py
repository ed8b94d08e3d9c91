"""polydec serve: OpenAI's API over HTTP, and a page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Option

from polydec import api
from polydec.base.edge import whole
from polydec.base.errors import RequestError
from polydec.base.options import shown
from polydec.cli.generate import note
from polydec.drafting.costs import Costs
from polydec.methods import registry
from polydec.request.loading import declared

MODEL, SERVER, LIMITS = "Model", "Server", "Limits"
KEY = "POLYDEC_API_KEY"
NEEDS = ("fastapi", "uvicorn", "prometheus_client")
RAY_NEEDS = ("ray", "httpx")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


def serve(
    model: Annotated[
        list[str] | None,
        Option(
            help="Hub id, directory, GGUF file or zoo:NAME; NAME=MODEL serves it under "
            "that name (repeatable; default: zoo:smollm2)",
            rich_help_panel=MODEL,
        ),
    ] = None,
    draft: Annotated[
        str,
        Option(
            help="draft model: a name like --model's, `default` or `none`", rich_help_panel=MODEL
        ),
    ] = "default",
    ngrams: Annotated[
        str,
        Option(
            help="n-gram table of the model's own text: a directory, zoo:NAME, `default` or `none`",
            rich_help_panel=MODEL,
        ),
    ] = "default",
    with_: Annotated[
        list[str] | None,
        Option(
            "--with",
            help="what else was trained for the model, such as a stop head: a directory or zoo:NAME; NAME=… for "
            "the model served under that name (repeatable)",
            rich_help_panel=MODEL,
        ),
    ] = None,
    method: Annotated[
        str, Option(help="of requests that name none", rich_help_panel=MODEL)
    ] = "auto",
    dtype: Annotated[
        str, Option(help="auto, native, torch, float32, float16, bfloat16", rich_help_panel=MODEL)
    ] = "auto",
    quantize: Annotated[
        str | None,
        Option(
            help="q8_0 or q4_1: quantise a float checkpoint when loading it (approximate)",
            rich_help_panel=MODEL,
        ),
    ] = None,
    compute: Annotated[
        str | None,
        Option(
            help="float32, int16 or int8 (approximate): what the compiled step multiplies "
            "quantised weights in",
            rich_help_panel=MODEL,
        ),
    ] = None,
    cache_dtype: Annotated[
        str | None,
        Option(
            help="float32, or approximately float16 or int8: how the compiled step "
            "keeps keys and values",
            rich_help_panel=MODEL,
        ),
    ] = None,
    device: Annotated[str, Option(help="cpu or cuda", rich_help_panel=MODEL)] = "cpu",
    threads: Annotated[
        int | None, Option(help="CPU threads (default: all cores)", rich_help_panel=MODEL)
    ] = None,
    keep: Annotated[
        int,
        Option(
            help="texts whose computed prefixes are kept for later requests", rich_help_panel=MODEL
        ),
    ] = 4,
    host: Annotated[str, Option(help="address to listen on", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[int, Option(help="0: any that is free", rich_help_panel=SERVER)] = 8000,
    api_key_file: Annotated[
        Path | None,
        Option(
            help=f"keys, one a line; {KEY} in the environment is one as well",
            rich_help_panel=SERVER,
        ),
    ] = None,
    without_key: Annotated[
        bool,
        Option(
            "--without-key",
            help="anybody who reaches the address may use it",
            rich_help_panel=SERVER,
        ),
    ] = False,
    replicas: Annotated[
        int,
        Option(
            help="servers behind this address, each with all models (needs polydec[ray])",
            rich_help_panel=SERVER,
        ),
    ] = 1,
    cors: Annotated[
        list[str] | None,
        Option(
            help="origin of web pages that may use it, such as https://example.org, or * for all (repeatable)",
            rich_help_panel=SERVER,
        ),
    ] = None,
    unknown_fields: Annotated[
        str,
        Option(
            help="of requests: refuse, or ignore, which names them in the header X-Polydec-Ignored",
            rich_help_panel=SERVER,
        ),
    ] = "refuse",
    drain: Annotated[
        float,
        Option(
            help="seconds that requests under way have when the server stops",
            rich_help_panel=SERVER,
        ),
    ] = 30.0,
    max_running: Annotated[
        int, Option(help="answers written at the same time", rich_help_panel=LIMITS)
    ] = 64,
    max_waiting: Annotated[
        int, Option(help="answers that wait; more are refused (429)", rich_help_panel=LIMITS)
    ] = 256,
    max_body: Annotated[int, Option(help="bytes of a request", rich_help_panel=LIMITS)] = 4 << 20,
    max_prompt: Annotated[int, Option(help="tokens of a prompt", rich_help_panel=LIMITS)] = 1 << 17,
    max_output: Annotated[int, Option(help="tokens of an answer", rich_help_panel=LIMITS)] = 4096,
    max_seconds: Annotated[
        float, Option(help="of a request, waiting included", rich_help_panel=LIMITS)
    ] = 600.0,
    max_wait: Annotated[
        float, Option(help="seconds that a request waits for its turn", rich_help_panel=LIMITS)
    ] = 300.0,
    max_cache: Annotated[
        int, Option(help="MiB of the caches of all requests; 0: no limit", rich_help_panel=LIMITS)
    ] = 0,
    max_positions: Annotated[
        str,
        Option(
            help="of one pass of the model; auto: from what passes cost on this machine",
            rich_help_panel=LIMITS,
        ),
    ] = "auto",
) -> None:
    """Serve models over HTTP: OpenAI's API under /v1, a page at /. SIGTERM lets requests under way end."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise RequestError(f"serve needs {', '.join(missing)}: pip install 'polydec[serve]'")
    whole("replicas", replicas, 1, 64)
    missing = [name for name in RAY_NEEDS if replicas > 1 and find_spec(name) is None]
    if missing:
        raise RequestError(
            f"replicas is {replicas}: that needs {', '.join(missing)}: pip install 'polydec[ray]'"
        )
    declared()["threads"].convert(threads)
    registry.check_names(method, {})
    whole("port", port, 0, 65535)
    whole("keep", keep, 0, 1024)
    if not 0 <= drain <= 3600:
        raise RequestError(f"drain is {drain:g}: it must lie in 0 to 3600 seconds")
    # what computes, once nothing is wrong that can be told without it
    from polydec.serve.app import create_app
    from polydec.serve.gate import read_keys
    from polydec.serve.limits import Limits
    from polydec.serve.run import check_address, listen
    from polydec.serve.run import serve as run

    limits = Limits(
        max_running,
        max_waiting,
        max_body,
        max_prompt,
        max_output,
        max_seconds,
        _positions(max_positions),
        max_wait,
        whole("max_cache", max_cache, 0, 1 << 30) << 20,
    )
    origins, lenient = _origins(cors or []), _lenient(unknown_fields)
    keys = read_keys(api_key_file, os.environ.get(KEY))
    check_address(host, keys, without_key)
    load = partial(
        _load,
        draft=draft,
        ngrams=ngrams,
        dtype=dtype,
        quantize=quantize,
        compute=compute,
        cache_dtype=cache_dtype,
        device=device,
        threads=threads,
        keep=keep,
        method=method,
    )
    names = _named(model or ["zoo:smollm2"])
    trained = _trained(with_ or [], names)
    loaders = _loaders(names, trained, load)
    if replicas == 1:
        app = create_app(
            loaders,
            limits=limits,
            keys=keys,
            method=method,
            local=not without_key,
            lenient=lenient,
            origins=origins,
        )
        run(app, listen(host, port), drain=drain)
        return
    each = threads or max(1, (os.cpu_count() or 1) // replicas)
    load = partial(load, threads=each)
    from polydec.serve.replicas import create_front, fleet_of

    sock = listen(host, port)  # before anything is started
    fleet = fleet_of(
        replicas,
        _loaders(names, trained, load),
        limits=limits,
        method=method,
        threads=each,
        lenient=lenient,
    )
    front = create_front(fleet, limits=limits, keys=keys, local=not without_key, origins=origins)
    run(front, sock, drain=drain)


def _lenient(given: str) -> bool:
    """--unknown-fields."""
    if given not in ("refuse", "ignore"):
        raise RequestError(f"unknown_fields is {shown(given)}: it must be refuse or ignore")
    return given == "ignore"


def _origins(given: list[str]) -> tuple[str, ...]:
    """--cors: as browsers write an origin."""
    for origin in given:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise RequestError(
                f"cors is {shown(origin)}: it must be an origin, such as https://example.org or "
                "http://localhost:3000 (without a path), or *"
            )
    return tuple(given)


def _positions(given: str) -> int:
    """--max-positions; 0 stands for auto."""
    if given == "auto":
        return 0
    if not given.isdecimal() or int(given[:10]) < 1:
        raise RequestError(
            f"max_positions is {given!r}: it must be auto or a whole number of at least 1"
        )
    return int(given[:10])


def _named(models: list[str]) -> dict[str, str]:
    """What each model is loaded from, by the name under which it is served."""
    out: dict[str, str] = {}
    for given in models:
        name, _, source = ("", "", given) if _here(given) else given.rpartition("=")
        # where it lies on this machine is nothing that clients need to know
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
    except (OSError, ValueError):  # it is too long, or has a zero in it
        return False


def _trained(given: list[str], names: Mapping[str, str]) -> dict[str, list[str]]:
    """What was trained for each model, by the name under which it is served. Of a single one the name may be left out."""
    out: dict[str, list[str]] = {name: [] for name in names}
    for one in given:
        name, _, source = ("", "", one) if _here(one) else one.rpartition("=")
        if not name and len(names) == 1:
            name = next(iter(names))
        if name not in out:
            raise RequestError(
                f"with is {one!r}: of {len(names)} models it must say which one it is for, as "
                f"NAME={source or one}; NAME is one of {', '.join(names)}"
            )
        out[name].append(source)
    return out


def _loaders(
    names: Mapping[str, str], trained: Mapping[str, list[str]], load: Callable[..., api.LM]
) -> dict[str, Callable[[], api.LM]]:
    """How each model is loaded, by the name under which it is served."""
    return {name: partial(load, source, trained=trained[name]) for name, source in names.items()}


def _load(
    source: str,
    *,
    trained: list[str],
    draft: str,
    ngrams: str,
    dtype: str,
    quantize: str | None,
    compute: str | None,
    cache_dtype: str | None,
    device: str,
    threads: int | None,
    keep: int,
    method: str,
) -> api.LM:
    from polydec.request.ask import plan

    lm = api.load(
        source,
        draft=draft,
        ngrams=ngrams,
        dtype=dtype,
        quantize=quantize,
        compute=compute,
        cache_dtype=cache_dtype,
        device=device,
        threads=threads,
        trained=trained,
    )
    usual = api.Ask(
        "x", method=method
    )  # a request that names no method, which is checked with that
    note(lm, usual, plan(lm, usual, measure=Costs))
    lm.keep(keep)
    return lm
