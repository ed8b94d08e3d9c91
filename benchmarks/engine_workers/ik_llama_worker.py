"""ik_llama.cpp's worker: llama.cpp's calls, with matrices rearranged at loading, as its authors advise. Mode: `plain`."""

from __future__ import annotations

from functools import partial

from lines import serve_lines
from llama_cpp_worker import LlamaBinding, LlamaCppEngine

# Its flash attention ends the process where texts share a pass: blocks that a text sees nothing of.
IK_LLAMA = LlamaBinding(
    "ik_llama_cpp._ctypes_api",
    "ik-llama-cpp-python",
    model_fields={"repack_tensors": True},
    context_fields={"flash_attn": False},
    clears_all=True,
)

if __name__ == "__main__":
    serve_lines(partial(LlamaCppEngine, binding=IK_LLAMA))
