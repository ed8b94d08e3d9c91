"""The compiled library: where it lies, its C interface, and whether it runs here."""

from __future__ import annotations

import ctypes as C
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from polydec.base.errors import MissingError

HERE = Path(__file__).parent
# Numbers of the library's enums: the order must be that of its headers.
TYPES = {
    name: i
    for i, name in enumerate(
        (
            "F32",
            "F16",
            "BF16",
            "Q8_0",
            "Q4_0",
            "Q4_1",
            "Q5_0",
            "Q5_1",
            "Q4_K",
            "Q5_K",
            "Q6_K",
            "Q2_K",
            "Q3_K",
            "IQ4_NL",
            "IQ4_XS",
            "MXFP4",
        )
    )
}
PARTS = {
    name: i
    for i, name in enumerate(
        (
            "embed",
            "head",
            "norm",
            "q",
            "k",
            "v",
            "o",
            "gate",
            "up",
            "down",
            "norm1",
            "norm2",
            "q_norm",
            "k_norm",
            "after1",
            "after2",
            "router",
            "sinks",
            "fuse",
            "join",
        )
    )
}
# The next three: numbers that the library reads as switches.
ACTS = {"silu": 0, "gelu": 1, "clamped": 2}
COMPUTES = {"float32": 0, "int16": 1, "int8": 2}  # what quantised matrices are multiplied in
CACHES = {"float32": 0, "float16": 1, "int8": 2}  # how keys and values are kept
ENDLESS = 9  # what step_run answers where integers meet NaN or infinity
_I = C.c_int32
_P = C.c_void_p


def _all(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class NativeConfig(C.Structure):
    """A network's sizes and switches, as the compiled step has them."""

    _fields_ = [
        *_all(
            _I,
            "vocab width layers heads kv_heads head inner context outputs turned ropes norms wide_norms act "
            "experts used expert_inner share_used",
        ),
        *_all(C.c_float, "eps scale cap final_cap embed_scale residual divide alpha limit"),
    ]


class PartOf(C.Structure):
    """A run of places in a cache, as the compiled step has it."""

    _fields_ = [("kv", _P), ("capacity", C.c_int64), ("first", C.c_int64), ("stop", C.c_int64)]


class CacheOf(C.Structure):
    """What one sequence's cache holds, as the compiled step has it."""

    _fields_ = [
        ("kv", _P),
        ("capacity", C.c_int64),
        ("start", C.c_int64),
        ("parts", C.c_int64),
        ("part", _P),
        ("press", _P),
        ("base", C.c_int64),
        ("blocks", C.c_int64),
        ("packed", _P),
    ]


class PressOf(C.Structure):
    """How a press packs old entries, as the compiled step has it."""

    _fields_ = _all(_I, "bits block keys values hadamard")


class NativeBatch(C.Structure):
    """The queries of one pass, as the compiled step has them."""

    _fields_ = [
        *_all(_I, "rows sequences layers tails outputs"),
        *_all(
            _P,
            "cache layer exit half token sequence position slot seen prefix tail_start tail embed output_row "
            "logits_row logits argmax hidden exits routing",
        ),
    ]


class NativeTreeGrowth(C.Structure):
    """A drafter's tree that is grown in one call, as the compiled step has it."""

    _fields_ = [
        ("cache", _P),
        *_all(_I, "length rows states depth width tips nodes found"),
        ("floor", C.c_double),
        *_all(_P, "embed state table tip logits token parent chance"),
    ]


# Result and arguments of each function. A pointer is followed by the number of items that it points
# at, which the library checks.
_SIGNATURES = {
    "step_error": (C.c_char_p, [C.c_int]),
    "step_sets": (C.c_char_p, []),
    "step_new": (_P, [C.POINTER(NativeConfig), C.c_int, C.c_char_p]),
    "step_free": (None, [_P]),
    "step_set": (C.c_char_p, [_P]),
    "step_compute": (C.c_int, [_P, C.c_int]),
    "step_keep": (C.c_int, [_P, C.c_int]),
    "step_weight": (
        C.c_int,
        [_P, C.c_int, C.c_int, C.c_int, _P, C.c_uint64, C.c_int, C.c_int, C.c_int],
    ),
    "step_vector": (C.c_int, [_P, C.c_int, C.c_int, C.c_int, _P, C.c_uint64, C.c_int, C.c_int]),
    "step_rotary": (C.c_int, [_P, C.c_int, _P, _P, C.c_uint64, C.c_int]),
    "step_turns": (C.c_int, [_P, _P, C.c_uint64]),
    "step_sparse": (C.c_int, [_P, _P, C.c_uint64]),
    "step_press_bytes": (C.c_uint64, [_P, C.POINTER(PressOf)]),
    "step_press": (C.c_int, [_P, C.POINTER(PressOf), _P, C.c_uint64, _P, C.c_uint64]),
    "step_run": (C.c_int, [_P, C.POINTER(NativeBatch)]),
    "step_through": (
        C.c_int,
        [_P, C.c_int, C.c_int, _P, C.c_uint64, _P, C.c_uint64],
    ),
    "step_even": (C.c_int, [_P, C.c_int, _P, C.c_uint64, _P, C.c_uint64]),
    "step_grow": (C.c_int, [_P, C.POINTER(NativeTreeGrowth)]),
    "step_top": (C.c_int, [_P, _P, C.c_uint64, C.c_int, C.c_int, C.c_int, _P, C.c_uint64]),
    "step_windows": (C.c_int, [_P, _P, C.c_uint64]),
    "step_threads": (C.c_int, [_P]),
    "step_learn_threads": (None, [_P, C.c_int, C.c_double, C.c_double]),
    "step_profile": (None, [_P, _P]),
    "step_row": (C.c_int, [_P, C.c_int, _P, C.c_uint64]),
    "step_bytes": (C.c_uint64, [_P]),
    "step_bandwidth": (C.c_double, [_P]),
    "step_peak": (C.c_double, [_P]),
}


def native_library_path() -> Path:
    """The file of the library.

    Raises:
        OSError: It was not built.
    """
    # A library of another build, to compare or to debug.
    own = os.environ.get("POLYDEC_STEP")
    library = Path(own) if own else HERE / "_step.so"
    if not own and not library.is_file():
        raise OSError("it was not built: installing found no C++ compiler, or the compiler failed")
    return library


@cache
def load_native_library() -> C.CDLL:
    """Load the library and declare its functions.

    Raises:
        OSError: It was not built, or does not load here.
    """
    lib = C.CDLL(str(native_library_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        f = getattr(lib, name)
        f.restype = result
        f.argtypes = arguments
    return lib


def native_step_availability() -> tuple[bool, str]:
    """Whether the native step runs here, and why not, or the instruction sets that it can use, best
    first."""
    try:
        return True, " ".join(native_instruction_sets())
    except (OSError, AttributeError) as e:
        return False, f"the native step does not run: {e}"


def describe_missing_native_step(why: str) -> str:
    """What it costs that the native step does not run here, and how to have it. why: as `native_step_availability` says
    it."""
    return (
        f"{why}; the torch path serves, about five times slower; to build it: install a C++ compiler, such as g++, "
        "then polydec again (pip install --force-reinstall --no-deps . in its folder)"
    )


def native_instruction_sets() -> tuple[str, ...]:
    """Instruction sets that this machine has, best first.

    Before these stands the one that POLYDEC_ISA names (to compare, or to see what another machine
    would do).

    Raises:
        MissingError: The machine lacks the one that it names.
    """
    here = load_native_library().step_sets().decode().split()
    asked = os.environ.get("POLYDEC_ISA")
    if asked and asked not in here:
        raise MissingError(f"POLYDEC_ISA is {asked!r}: this machine has {', '.join(here)}")
    # A stable sort: the one asked for comes first, the others keep their order.
    return tuple(sorted(here, key=lambda isa: isa != asked))


_DEFAULT = {"portable": "float32", "NEON": "float32"}
"""Sets on which int16 is not the default: it is where 1 to 16 rows take no longer than in float32
(docs/native.md)."""


def compute_of(asked: str | None, isa: str) -> str:
    """What quantised matrices are multiplied in: what is asked for, else what POLYDEC_COMPUTE
    names, else a default.

    Args:
        asked: One of `COMPUTES`; None or "": nothing is asked for.
        isa: The instruction set, which has a default.

    Returns:
        One of `COMPUTES`.

    Raises:
        MissingError: The name is none of them.
    """
    return _chosen("compute", asked, COMPUTES) or _DEFAULT.get(isa, "int16")


def cache_dtype_of(asked: str | None) -> str:
    """How keys and values are stored: what is asked for, else what POLYDEC_CACHE_DTYPE names, else
    float32.

    Raises:
        MissingError: The name is none of CACHES.
    """
    return _chosen("cache_dtype", asked, CACHES) or "float32"


def _chosen(field: str, asked: str | None, names: Iterable[str]) -> str | None:
    """What an argument says, else the environment's variable of that name."""
    variable = f"POLYDEC_{field.upper()}"
    named = os.environ.get(variable)
    for who, name in ((field, asked), (variable, named)):
        if name and name not in names:
            raise MissingError(f"{who} is {name!r}: it must be one of {', '.join(names)}")
    return asked or named
