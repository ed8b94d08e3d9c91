"""Loading a model: name, default and help of each setting stand here once; nothing that computes is
imported before a call.

Annotations are values here, not text (no `from __future__`), as they are read.
"""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from polydec.base.edge import path_text
from polydec.base.errors import RequestError
from polydec.base.options import Option, ParseAs, option_from_annotation
from polydec.models.sessions.options import (
    CacheDtype,
    Compute,
    Device,
    Dtype,
    Quantize,
    Threads,
    Workers,
)

if TYPE_CHECKING:
    from polydec.request.loaded import LoadedModel


def load(
    name: Annotated[
        str | PathLike[str],
        ParseAs(str),
        "Hub id (owner/repo or owner/repo:Q4_K_M), directory, GGUF file or zoo:NAME",
    ] = "zoo:smollm2",
    *,
    draft: Annotated[
        str | PathLike[str] | None,
        ParseAs(str | None),
        "draft model: a name like the model's, `default` (its own embedded one, if any) or `none`",
    ] = "default",
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Threads = None,
    workers: Workers = 1,
    quantize: Quantize = None,
    compute: Compute = None,
    cache_dtype: CacheDtype = None,
    ngrams: Annotated[
        str | PathLike[str] | None,
        ParseAs(str | None),
        "n-gram table of the model's own text: a directory, zoo:NAME, `default` or `none`",
    ] = "default",
    trained: Annotated[
        str | PathLike[str] | Sequence[str | PathLike[str]],
        ParseAs(tuple[str, ...]),
        "what else was trained for the model, such as a stop head: a directory or zoo:NAME",
    ] = (),
) -> "LoadedModel":
    """A model by Hub id, directory, GGUF file or `zoo:NAME`. All names may be paths
    (`os.PathLike`); each file is read once, here.

    Args:
        name: Of the model; behind a Hub id may stand which of its GGUF files, `owner/repo:Q4_K_M`.
        draft: Another such name, "default" for the model's own embedded one where that exists, None
            (or "none") for none.
        dtype: What the model computes with.
        device: "cpu" or "cuda".
        threads: Of the processor. None: all cores.
        workers: 2 for a model and a draft that run at the same time on half of the threads each.
        quantize: How the matrices of a float checkpoint are stored, which is approximate. None: as
            they are.
        compute: What the compiled step multiplies quantised matrices in. None: as the processor
            does it best.
        cache_dtype: How the compiled step keeps keys and values. None: as float32.
        ngrams: A table that `polydec train ngrams` made of the model's text, "default" or None as
            for `draft`.
        trained: Directories (or zoo:NAME) of whatever else was trained for it (`polydec train …`
            writes them); one of a kind that is there already takes its place.

    Returns:
        The model, with its draft and what was trained for it.

    Raises:
        RequestError: Something cannot be had or was made for another model, in one sentence.
    """
    settings = {
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "workers": workers,
        "quantize": quantize,
        "compute": compute,
        "cache_dtype": cache_dtype,
    }
    # What no model could honour is said before torch is loaded.
    known = loading_options()
    checked = {key: known[key].convert_value(value) for key, value in settings.items()}
    names = {
        key: None if value is None else path_text(value, key)
        for key, value in {"draft": draft, "ngrams": ngrams}.items()
    }
    if isinstance(trained, (str, PathLike)):
        several = [trained]
    else:
        several = trained
    if not isinstance(several, Sequence) or isinstance(several, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RequestError(
            f"trained is of the type {type(trained).__name__}: it must be a name, a path or a list of those"
        )
    paths = [path_text(path, f"trained[{at}]") for at, path in enumerate(several)]
    from polydec.request.assembly import assemble_loaded_model

    return assemble_loaded_model(path_text(name, "name"), trained=paths, **names, **checked)


@cache
def loading_options() -> Mapping[str, Option]:
    """The settings of `load` by name."""
    parameters = inspect.signature(load).parameters.values()
    return MappingProxyType(
        {p.name: option_from_annotation(p.name, p.annotation, p.default) for p in parameters}
    )
