"""Other engines on the same weights, as things that take seconds for a pass over m rows: for
comparison only."""

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
    """The passes of transformers, eager, in float32, with its own cache.

    Args:
        path: A GGUF file, or a folder or name that transformers loads by itself.
        context: Cached tokens before each timed pass, at least 1.
        threads: Processor threads that torch may use, for the whole process.

    Returns:
        A function that runs a pass over m fresh rows and returns its seconds.

    Raises:
        EngineUnavailable: transformers is not installed, or cannot load the model.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise EngineUnavailable("not installed") from None
    torch.set_num_threads(threads)
    file = Path(path)
    try:
        # transformers reads folders only: the weights of a GGUF file are decoded here and handed
        # over.
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
    """A model of transformers over these very tensors, without a copy.

    Args:
        config: Fields of its configuration, among them ``model_type``.
        state: Its weights by the names that transformers uses. Without ``lm_head.weight`` the head
            is tied to the embedding.

    Returns:
        The model, in evaluation mode.

    Raises:
        EngineUnavailable: transformers is not installed.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise EngineUnavailable("transformers is not installed") from None
    hf = AutoConfig.for_model(**config)
    # Nothing is allocated or initialised: every parameter is assigned from `state` below.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf)
    model.load_state_dict(
        {"lm_head.weight": state["model.embed_tokens.weight"], **state}, assign=True
    )
    # The rotary frequencies are a buffer outside the state: one that was made on the meta device
    # has no values.
    model.model.rotary_emb = type(model.model.rotary_emb)(hf)
    return model.eval()


def hf_passes(model: Any, context: int, batch: int = 1) -> Timed:
    """Time passes over fresh tokens that follow a cached context.

    Args:
        model: A causal model of transformers.
        context: Cached tokens of each sequence, at least 1.
        batch: Sequences that share a pass. Default 1.

    Returns:
        A function of m: it feeds m fresh random tokens to each sequence and returns the seconds of
        that pass.
    """
    from transformers import DynamicCache

    from polydec.models.nets.hf import cache_keyword

    size, cached = model.config.vocab_size, DynamicCache(config=model.config)
    cache_argument = {cache_keyword(model) or "cache": cached}
    with torch.inference_mode():
        model(torch.randint(0, size, (batch, context)), **cache_argument)

    @torch.inference_mode()
    def run_once(m: int) -> float:
        # The rows of the call before leave the cache, so that each call starts from the same
        # context.
        if cached.get_seq_length() > context:
            # A negative number counts the entries to drop, not those to keep.
            cached.crop(context - cached.get_seq_length())
        tokens = torch.randint(0, size, (batch, m))
        start = time.perf_counter()
        model(tokens, **cache_argument)
        return time.perf_counter() - start

    return run_once


class LlamaCpp:
    """A GGUF file in llama.cpp, through the low-level calls of its Python binding."""

    def __init__(self, path: str, slots: int, most: int, threads: int, sequences: int = 1) -> None:
        """Load a file and make room for its cache.

        Args:
            path: The GGUF file.
            slots: Entries of the cache, of all sequences together.
            most: Tokens of one feed at most, of all sequences together.
            threads: Processor threads of a pass.
            sequences: Texts that share passes. Default 1.

        Raises:
            EngineUnavailable: The path is no file, or llama.cpp is not installed.
        """
        if not Path(path).is_file():
            raise EngineUnavailable("reads GGUF files only")
        self._L, _ = _binding()
        model = self._L.llama_model_load_from_file(
            path.encode(), self._L.llama_model_default_params()
        )
        p = self._L.llama_context_default_params()
        p.n_ctx = slots
        p.n_batch = most
        # Rows that it computes at once; larger feeds are parted.
        p.n_ubatch = 512
        p.n_seq_max = sequences
        p.n_threads = p.n_threads_batch = threads
        self._ctx = self._L.llama_init_from_model(model, p)
        self._room = self._L.llama_batch_init(most, 0, sequences)
        self.size: int = self._L.llama_vocab_n_tokens(self._L.llama_model_get_vocab(model))

    def feed_tokens(self, tokens: Sequence[Sequence[int]], first: int, rows: int) -> None:
        """Run one pass over tokens of each sequence.

        Args:
            tokens: Token ids, one list for each sequence.
            first: Position of the first of them in its sequence, the same for all.
            rows: Of how many last tokens of each sequence the logits are computed; 0 for none.

        Raises:
            EngineUnavailable: llama.cpp refuses the batch.
        """
        b = self._room
        n = 0
        for s, line in enumerate(tokens):
            for j, x in enumerate(line):
                # Parallel arrays, one entry a token: id, position, number of sequences, sequence,
                # and whether its logits are wanted.
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
        # Passes run asynchronously: without this the clock would stop before the pass ends.
        self._L.llama_synchronize(self._ctx)

    def likeliest_token(self, i: int) -> int:
        """The likeliest token after the i-th token of the last feed."""
        return int(
            np.ctypeslib.as_array(self._L.llama_get_logits_ith(self._ctx, i), (self.size,)).argmax()
        )

    def drop_entries(self, length: int, sequences: int = 1) -> None:
        """Drop the cache entries from a position on.

        Args:
            length: Positions of each sequence that stay.
            sequences: How many sequences are cut, the first ones. Default 1.
        """
        for s in range(sequences):
            self._L.llama_memory_seq_rm(self._L.llama_get_memory(self._ctx), s, length, -1)

    def time_passes(self, context: int, batch: int = 1) -> Timed:
        """Time passes over fresh tokens that follow a cached context, with the logits of all rows.

        Args:
            context: Cached tokens of each sequence, at least 1.
            batch: Sequences that share a pass. Default 1.

        Returns:
            A function of m: it feeds m fresh random tokens to each sequence and returns the seconds
            of that pass.
        """

        def fresh_run(m: int) -> list[list[int]]:
            return torch.randint(0, self.size, (batch, m)).tolist()

        self.feed_tokens(fresh_run(context), 0, 0)

        def run_once(m: int) -> float:
            self.drop_entries(context, batch)
            tokens = fresh_run(m)
            start = time.perf_counter()
            self.feed_tokens(tokens, context, m)
            return time.perf_counter() - start

        return run_once


@cache
def _binding() -> tuple[Any, Any]:
    """The library, started once, and its log callback: Python must hold a reference to it as long
    as C may call it.

    Raises:
        EngineUnavailable: llama.cpp's binding is not installed or cannot start.
    """
    try:
        import llama_cpp as L  # pyright: ignore[reportMissingImports]     (it need not be installed)
    except (ImportError, OSError, RuntimeError) as e:
        raise EngineUnavailable(
            "not installed" if isinstance(e, ImportError) else str(e).splitlines()[0]
        ) from None
    # By default the library writes its log to stderr, into the middle of a table.
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    return L, quiet


def llama_cpp(path: str, context: int, threads: int) -> Timed:
    """The passes of llama.cpp through its Python binding, with the logits of all rows.

    Args:
        path: A GGUF file.
        context: Cached tokens before each timed pass, at least 1.
        threads: Processor threads of a pass.

    Returns:
        A function that runs a pass over m fresh rows, at most 64, and returns its seconds.

    Raises:
        EngineUnavailable: llama.cpp is not installed, or the path is no file.
    """
    return LlamaCpp(path, context + 64, max(1024, context), threads).time_passes(context)
