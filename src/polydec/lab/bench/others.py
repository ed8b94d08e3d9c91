"""Other engines on the same weights, as things that take seconds for a pass over m rows: for comparison only."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Timed = Callable[[int], float]


class EngineUnavailable(Exception):
    """Why another engine cannot run here."""


def transformers_engine(path: str, context: int, threads: int) -> Timed:
    """transformers, eager, float32, with its own cache. Raises Missing."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise EngineUnavailable("not installed") from None
    torch.set_num_threads(threads)
    file = Path(path)
    try:
        if file.is_file():
            from polydec.models.formats.gguf import GGUFCheckpoint

            gguf = GGUFCheckpoint(file)
            model = hf_model(gguf.config, {k: gguf[k].float() for k in gguf})
        else:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    except Exception as e:  # whatever its loader meets
        raise EngineUnavailable(
            f"cannot load it ({str(e).splitlines()[0] if str(e) else type(e).__name__})"
        ) from None
    return hf_passes(model, context)


def hf_model(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    """transformers' model over these very tensors; where they have no head, it is tied to the embedding. Raises Missing."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise EngineUnavailable("transformers is not installed") from None
    hf = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf)
    model.load_state_dict(
        {"lm_head.weight": state["model.embed_tokens.weight"], **state}, assign=True
    )
    model.model.rotary_emb = type(model.model.rotary_emb)(hf)
    return model.eval()


def hf_passes(model: Any, context: int, batch: int = 1) -> Timed:
    """Passes over m fresh tokens of each of `batch` sequences, behind `context` cached ones."""
    from transformers import DynamicCache

    from polydec.models.nets.hf import cache_keyword

    size, cached = model.config.vocab_size, DynamicCache(config=model.config)
    cache_argument = {cache_keyword(model) or "cache": cached}
    with torch.inference_mode():
        model(torch.randint(0, size, (batch, context)), **cache_argument)

    @torch.inference_mode()
    def call(m: int) -> float:
        if cached.get_seq_length() > context:
            cached.crop(context - cached.get_seq_length())  # counts what goes, not what stays
        tokens = torch.randint(0, size, (batch, m))
        start = time.perf_counter()
        model(tokens, **cache_argument)
        return time.perf_counter() - start

    return call


class LlamaCpp:
    """A GGUF file in llama.cpp, through its binding's low-level calls.

    slots: entries of its cache in all; most: tokens of one feed, of all sequences together. Raises Missing.
    """

    def __init__(self, path: str, slots: int, most: int, threads: int, sequences: int = 1) -> None:
        if not Path(path).is_file():
            raise EngineUnavailable("reads GGUF files only")
        self._L, _ = _binding()
        model = self._L.llama_model_load_from_file(
            path.encode(), self._L.llama_model_default_params()
        )
        p = self._L.llama_context_default_params()
        p.n_ctx = slots
        p.n_batch = most
        p.n_ubatch = 512
        p.n_seq_max = sequences
        p.n_threads = p.n_threads_batch = threads
        self._ctx = self._L.llama_init_from_model(model, p)
        self._room = self._L.llama_batch_init(most, 0, sequences)
        self.size: int = self._L.llama_vocab_n_tokens(self._L.llama_model_get_vocab(model))

    def feed(self, tokens: Sequence[Sequence[int]], first: int, rows: int) -> None:
        """Tokens of each sequence from position `first` on, with logits of the last `rows` of each."""
        b = self._room
        n = 0
        for s, line in enumerate(tokens):
            for j, x in enumerate(line):
                b.token[n], b.pos[n], b.n_seq_id[n], b.seq_id[n][0], b.logits[n] = (
                    x,
                    first + j,
                    1,
                    s,
                    j >= len(line) - rows,
                )
                n += 1
        b.n_tokens = n
        if self._L.llama_decode(self._ctx, b):
            raise EngineUnavailable("llama_decode failed")
        self._L.llama_synchronize(self._ctx)

    def argmax(self, i: int) -> int:
        """Of the logits at the i-th token of the last feed."""
        return int(
            np.ctypeslib.as_array(self._L.llama_get_logits_ith(self._ctx, i), (self.size,)).argmax()
        )

    def cut(self, length: int, sequences: int = 1) -> None:
        """Forget what stands behind the first `length` positions."""
        for s in range(sequences):
            self._L.llama_memory_seq_rm(self._L.llama_get_memory(self._ctx), s, length, -1)

    def passes(self, context: int, batch: int = 1) -> Timed:
        """Passes over m fresh tokens of each of `batch` sequences, behind `context` cached ones, logits of all."""

        def fresh(m: int) -> list[list[int]]:
            return torch.randint(0, self.size, (batch, m)).tolist()

        self.feed(fresh(context), 0, 0)

        def call(m: int) -> float:
            self.cut(context, batch)
            tokens = fresh(m)
            start = time.perf_counter()
            self.feed(tokens, context, m)
            return time.perf_counter() - start

        return call


@cache
def _binding() -> tuple[Any, Any]:
    """The library, started, and what it calls to say something, which must outlive it. Raises Missing."""
    try:
        import llama_cpp as L  # pyright: ignore[reportMissingImports]     (it need not be installed)
    except (ImportError, OSError, RuntimeError) as e:
        raise EngineUnavailable(
            "not installed" if isinstance(e, ImportError) else str(e).splitlines()[0]
        ) from None
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    return L, quiet


def llama_cpp(path: str, context: int, threads: int) -> Timed:
    """llama.cpp through its Python binding, logits of all rows. Raises Missing."""
    return LlamaCpp(path, context + 64, max(1024, context), threads).passes(context)
