"""Write a GGUF file in another format, by llama.cpp's own quantiser: python quantise_gguf.py FROM TO Q4_0

It runs in llama.cpp's environment. A file that is quantised already is decoded and rounded once more.
"""

from __future__ import annotations

import sys

import llama_cpp  # pyright: ignore[reportMissingImports]     (in its own environment)

FORMATS = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
"""Numbers of llama.cpp's file types."""


def main() -> None:
    source, target, name = sys.argv[1:]
    given = llama_cpp.llama_model_quantize_default_params()
    given.ftype = FORMATS[name]
    given.allow_requantize = True
    llama_cpp.llama_backend_init()
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), given):
        raise SystemExit(f"{source} could not be written as {name}")


if __name__ == "__main__":
    main()
