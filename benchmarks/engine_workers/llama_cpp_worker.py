"""llama.cpp's worker, through the low-level calls of its binding. Modes: `plain`, and `lookup`, its prompt lookup (one answer).

The binding of ik_llama.cpp has the same calls: `LlamaBinding` holds what differs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
from lines import WorkerPrompt, serve_lines

LONGEST = 4096
"""Entries of the cache for each text."""
MOST_TEXTS = 16


@dataclass(frozen=True)
class LlamaBinding:
    """A Python binding of llama.cpp or of a fork.

    Attributes:
        package: Its module.
        distribution: What pip calls it.
        model_fields: Parameters of loading that are not the binding's own default.
        context_fields: Parameters of the cache and of passes that are not.
        clears_all: Whether a text's entries can be dropped with those of all others only.
    """

    package: str
    distribution: str
    model_fields: dict[str, Any] = field(default_factory=dict)
    context_fields: dict[str, Any] = field(default_factory=dict)
    clears_all: bool = False


# One room for all texts: otherwise each would get a sixteenth of it.
LLAMA_CPP = LlamaBinding("llama_cpp", "llama-cpp-python", context_fields={"kv_unified": True})


class LlamaCppEngine:
    """A GGUF file whose texts share passes."""

    def __init__(self, settings: dict[str, Any], binding: LlamaBinding = LLAMA_CPP) -> None:
        self._binding = binding
        self._lib = import_module(binding.package)
        self._mode = settings["mode"]
        if hasattr(self._lib, "llama_log_callback"):
            # Python must hold a reference to the callback as long as C may call it.
            self._quiet = self._lib.llama_log_callback(lambda *_: None)
            self._lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self._lib.llama_backend_init()
        path = settings["files"][settings["format"]]
        model = self.load_model(path)
        self._context = self.open_context(model, settings["threads"])
        self._room = self._lib.llama_batch_init(LONGEST, 0, 1)
        self._size = self.vocabulary_size(model)
        self.version = f"{binding.distribution} {version(binding.distribution)}"

    def load_model(self, path: str) -> Any:
        """The file, loaded."""
        given = self._lib.llama_model_default_params()
        for name, value in self._binding.model_fields.items():
            setattr(given, name, value)
        return self._lib.llama_model_load_from_file(path.encode(), given)

    def open_context(self, model: Any, threads: int) -> Any:
        """The cache and the threads."""
        given = self._lib.llama_context_default_params()
        given.n_ctx = LONGEST * 4
        given.n_batch = LONGEST
        given.n_ubatch = 512
        given.n_seq_max = MOST_TEXTS
        given.n_threads = threads
        given.n_threads_batch = threads
        for name, value in self._binding.context_fields.items():
            setattr(given, name, value)
        return self._lib.llama_init_from_model(model, given)

    def vocabulary_size(self, model: Any) -> int:
        """Tokens of the vocabulary."""
        return int(self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(model)))

    def cut_text(self, text: int, length: int) -> None:
        """Drop a text's entries from a position on."""
        if self._binding.clears_all:
            self._lib.llama_kv_cache_clear(self._context)
            return
        memory = self._lib.llama_get_memory(self._context)
        self._lib.llama_memory_seq_rm(memory, text, length, -1)

    def _feed(self, pieces: list[tuple[int, list[int], int, int]]) -> list[list[int]]:
        """Feed pieces of texts in one pass.

        Args:
            pieces: Of each its text's number, its tokens, the first one's position, and of how many
                of its last tokens the likeliest followers are wanted.

        Returns:
            Of each piece those followers.
        """
        room = self._room
        count = 0
        wanted = list[list[int]]()
        for text, tokens, first, rows in pieces:
            mine = list[int]()
            for j, token in enumerate(tokens):
                room.token[count] = token
                room.pos[count] = first + j
                room.n_seq_id[count] = 1
                room.seq_id[count][0] = text
                room.logits[count] = j >= len(tokens) - rows
                if j >= len(tokens) - rows:
                    mine.append(count)
                count += 1
            wanted.append(mine)
        room.n_tokens = count
        if self._lib.llama_decode(self._context, room):
            raise RuntimeError("llama_decode failed")
        return [[self._likeliest(row) for row in mine] for mine in wanted]

    def _likeliest(self, row: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._size,)).argmax())

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        for text in range(len(prompts)):
            self.cut_text(text, 0)
        if self._mode == "lookup":
            return [self._look_up(prompt["ids"], tokens) for prompt in prompts]
        # All prompts in as few passes as the room allows, then one token of each text a pass.
        answers = list[list[int]]()
        pieces = list[tuple[int, list[int], int, int]]()
        for text, prompt in enumerate(prompts):
            if sum(len(piece[1]) for piece in pieces) + len(prompt["ids"]) > LONGEST:
                answers += self._feed(pieces)
                pieces = []
            pieces.append((text, prompt["ids"], 0, 1))
        answers += self._feed(pieces)
        for step in range(tokens - 1):
            last = [
                (text, answer[-1:], len(prompts[text]["ids"]) + step, 1)
                for text, answer in enumerate(answers)
            ]
            for answer, following in zip(answers, self._feed(last), strict=True):
                answer += following
        return list(answers)

    def _look_up(self, prompt: list[int], tokens: int) -> list[int]:
        """As the binding offers it: 10 tokens behind a match of at most 2."""
        drafts = import_module(
            f"{self._binding.package}.llama_speculative"
        ).LlamaPromptLookupDecoding(num_pred_tokens=10)
        answer = self._feed([(0, prompt, 0, 1)])[0]
        while len(answer) < tokens:
            text = np.array([*prompt, *answer], np.intc)
            more = [int(token) for token in drafts(text)][: tokens - len(answer)]
            fed = [answer[-1], *more]
            said = self._feed([(0, fed, len(text) - 1, len(fed))])[0]
            good = 0
            while good < len(more) and more[good] == said[good]:
                good += 1
            self.cut_text(0, len(text) + good)
            answer += said[: good + 1]
        return answer[:tokens]


if __name__ == "__main__":
    serve_lines(LlamaCppEngine)
