"""How a model is loaded: type, range and help of each setting stand here once, for every entry.
Nothing here computes."""

from typing import Annotated

from polydec.base.edge import most_threads
from polydec.base.options import InRange, OneOf, ValueNote
from polydec.models.native.library import CACHES, COMPUTES

DTYPES = {
    "auto": "the native step over the file's own numbers, else as torch",
    "native": "the native step or an error",
    "torch": "the fastest of torch's kernels here",
    "float32": "torch, float32",
    "bfloat16": "torch, bfloat16",
    "float16": "torch, weights in float16",
}
"""What `dtype` may be, each with what it says."""

Dtype = Annotated[
    str, OneOf(*DTYPES), "what a pass computes in; auto: the compiled step where it serves"
]
Device = Annotated[str, "cpu or cuda"]
Threads = Annotated[
    int | None, InRange(1, most_threads()), ValueNote("none: all cores"), "threads on the CPU"
]
Workers = Annotated[
    int,
    InRange(1, 2),
    "2: the model and its draft model run at the same time, each on half of the threads (for pearl)",
]
Quantize = Annotated[
    str | None,
    OneOf("q8_0", "q4_1"),
    ValueNote("none: as they are"),
    "how the compiled step stores the matrices of a float checkpoint (approximate)",
]
Compute = Annotated[
    str | None,
    OneOf(*COMPUTES),
    ValueNote("none: POLYDEC_COMPUTE, else by instruction set; integers are approximate"),
    "what the compiled step multiplies quantised matrices in",
]
CacheDtype = Annotated[
    str | None,
    OneOf(*CACHES),
    ValueNote("none: POLYDEC_CACHE_DTYPE, else float32; the others are approximate"),
    "how the compiled step keeps keys and values",
]
