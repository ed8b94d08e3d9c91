"""Other engines on the same weights, as things that take seconds for a pass over m rows: for comparison only."""
from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Timed = Callable[[int], float]


class Missing(Exception):
    """Why another engine cannot run here."""


def transformers(path: str, context: int, threads: int) -> Timed:
    """transformers, eager, float32, with its own cache. Raises Missing."""
    try:
        from transformers import AutoModelForCausalLM, DynamicCache
    except ImportError:
        raise Missing("not installed") from None
    torch.set_num_threads(threads)
    file = Path(path)
    try:
        if file.is_file():
            from polydec.models.gguf import GGUF
            model = _from_gguf(GGUF(file))
        else:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    except Exception as e:                        # whatever its loader meets
        raise Missing(f"cannot load it ({str(e).splitlines()[0] if str(e) else type(e).__name__})") from None
    model.eval()
    size, cache = model.config.vocab_size, DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.randint(0, size, (1, context)), past_key_values=cache)

    @torch.inference_mode()
    def call(m: int) -> float:
        if cache.get_seq_length() > context:
            cache.crop(context - cache.get_seq_length())      # counts what goes, not what stays
        tokens = torch.randint(0, size, (1, m))
        start = time.perf_counter()
        model(tokens, past_key_values=cache)
        return time.perf_counter() - start
    return call


def _from_gguf(file: Any) -> Any:
    """transformers' model over the file's numbers, in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM
    hf = AutoConfig.for_model(**file.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf)
    state = {k: file[k].float() for k in file}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(hf)
    return model


def llama_cpp(path: str, context: int, threads: int) -> Timed:
    """llama.cpp through its Python binding, logits of all rows. Raises Missing."""
    if not Path(path).is_file():
        raise Missing("reads GGUF files only")
    try:
        import llama_cpp as L
    except (ImportError, OSError, RuntimeError) as e:
        raise Missing("not installed" if isinstance(e, ImportError) else str(e)) from None
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = context + 64, 1024, 512, threads, threads
    ctx = L.llama_init_from_model(model, p)
    size = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    batch = L.llama_batch_init(1024, 0, 1)

    def feed(tokens: list[int], first: int, logits: bool) -> None:
        batch.n_tokens = len(tokens)
        for i, x in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = x, first + i, 1, 0
            batch.logits[i] = logits
        if L.llama_decode(ctx, batch):
            raise Missing("llama_decode failed")

    feed(torch.randint(0, size, (context,)).tolist(), 0, False)

    def call(m: int) -> float:
        L.llama_memory_seq_rm(L.llama_get_memory(ctx), 0, context, -1)
        tokens = torch.randint(0, size, (m,)).tolist()
        start = time.perf_counter()
        feed(tokens, context, True)
        return time.perf_counter() - start
    call.keep = (quiet, model, ctx)               # pyright: ignore[reportFunctionMemberAccess]
    return call
