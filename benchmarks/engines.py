"""Other engines' greedy decoding of one prompt, on the same weights and token ids, for benchmarks/speculation.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polydec import api
from polydec.lab.bench import measure
from polydec.lab.bench.other_engines import EngineUnavailable, LlamaCpp, hf_model
from polydec.models.formats.gguf import GGUFCheckpoint


def open_all(names: Sequence[str], lm: api.LoadedModel) -> list[Any]:
    """What of these can run here; the others are named on standard error."""
    import sys

    out, hf, cpp = list[Any](), None, None
    for name in names:
        try:
            if name.startswith("transformers"):
                hf = hf or Hf.of(lm)
                extra = {
                    "transformers": {},
                    "transformers assisted": {"assistant_model": hf.small},
                    "transformers lookup": {"prompt_lookup_num_tokens": 10},
                }[name]
                out.append(Generate(name, hf, lm, extra))
            else:
                cpp = cpp or Cpp(
                    lm.checkpoint.path, min(lm.network.context, 4096), 2048, api.TORCH_THREADS
                )
                out.append({"llama.cpp": Plain, "llama.cpp lookup": LookedUp}[name](name, cpp, lm))
        except EngineUnavailable as e:
            print(f"{name}: {e}", file=sys.stderr)
    return out


def result(
    lm: api.LoadedModel,
    ids: Sequence[int],
    first: float,
    ended: float,
    begun: float,
    passes: int = 0,
) -> dict[str, Any]:
    """The fields that a row of the table needs; the first token's time is not counted."""
    stop = next((i + 1 for i, x in enumerate(ids) if x in lm.checkpoint.lm.vocab.eos), len(ids))
    return {
        "tokens": stop - 1,
        "seconds": ended - first,
        "whole_seconds": ended - begun,
        "generated": stop,
        "passes": 0,
        "ids": [list(ids[:stop])],
        "distinct": measure.distinct_4grams(ids[:stop]),
    }


@dataclass(frozen=True)
class Hf:
    """transformers' model of the target and of the draft, both in float32 or bfloat16, the faster here."""

    model: Any
    small: Any

    @staticmethod
    def of(lm: api.LoadedModel) -> Hf:
        torch.set_num_threads(api.TORCH_THREADS)
        file = GGUFCheckpoint(Path(lm.checkpoint.path))

        def build(config: Mapping[str, Any], state: dict[str, Any], dtype: torch.dtype) -> Any:
            model = hf_model(config, {k: v.to(dtype) for k, v in state.items()})
            model.generation_config.pad_token_id = sorted(lm.checkpoint.lm.vocab.eos)[0]
            model.generation_config.eos_token_id = sorted(lm.checkpoint.lm.vocab.eos)
            return model

        state = {k: file[k].float() for k in file}
        table = state["model.embed_tokens.weight"]
        models = {d: build(file.config, state, d) for d in (torch.float32, torch.bfloat16)}
        took = {d: min(_time(m) for _ in range(3)) for d, m in models.items()}
        best = min(took, key=lambda d: took[d])
        small = None
        if lm.draft is not None:
            from polydec.models.sessions.sources import open_source

            source = open_source(lm.draft.name)
            own = {k: source.weights[k].float() for k in source.weights}
            head = torch.zeros_like(
                table
            )  # tokens that our draft cannot say get the logit 0, which hardly ever wins
            head[own.pop("lm_head.tokens").long()] = own["lm_head.weight"]
            small = build(
                {**source.config, "tie_word_embeddings": False},
                {**own, "lm_head.weight": head, "model.embed_tokens.weight": table},
                best,
            )
        return Hf(models[best], small)


@torch.inference_mode()
def _time(model: Any) -> float:
    start = time.perf_counter()
    model(torch.zeros(1, 8, dtype=torch.long))
    return time.perf_counter() - start


@dataclass(frozen=True)
class Clock:
    """Notes when the first token came."""

    times: list[float]

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end_text(self) -> None:
        pass


@dataclass(frozen=True)
class Generate:
    """transformers' generate."""

    label: str
    hf: Hf
    lm: api.LoadedModel
    extra: Mapping[str, Any]

    def __call__(
        self, rows: Sequence[Any], sampling: Mapping[str, float], tokens: int, seed: int
    ) -> dict[str, Any]:
        ids = torch.tensor([self.lm.encode_prompt(rows[0].prompt, raw=rows[0].raw)])
        clock, keep = Clock([]), torch.get_num_threads()
        torch.set_num_threads(api.TORCH_THREADS)
        begun = time.perf_counter()
        with torch.inference_mode():
            out = self.hf.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                streamer=None if self.extra else clock,
                **self.extra,
            )
        ended = time.perf_counter()
        torch.set_num_threads(keep)
        first = clock.times[1] if len(clock.times) > 1 else begun + self._prefill(ids)
        return result(self.lm, out[0, ids.shape[1] :].tolist(), first, ended, begun)

    @torch.inference_mode()
    def _prefill(self, ids: torch.Tensor) -> float:
        """Seconds of the prompt alone, where generate takes no streamer."""
        torch.set_num_threads(api.TORCH_THREADS)
        start = time.perf_counter()
        self.hf.model(ids)
        took = time.perf_counter() - start
        torch.set_num_threads(1)
        return took


class Cpp(LlamaCpp):
    """One sequence, its likeliest tokens."""

    def said(self, tokens: Sequence[int], at: int) -> list[int]:
        """After each of these."""
        self.feed_tokens([tokens], at, len(tokens))
        return [self.likeliest_token(i) for i in range(len(tokens))]

    def begin(self, prompt: Sequence[int]) -> tuple[list[int], float, float]:
        """The first token of the answer, and when work began and ended."""
        self.drop_entries(0)
        begun = time.perf_counter()
        self.feed_tokens([prompt], 0, 1)
        return [self.likeliest_token(len(prompt) - 1)], begun, time.perf_counter()


@dataclass(frozen=True)
class Plain:
    """One token a pass."""

    label: str
    cpp: Cpp
    lm: api.LoadedModel

    def __call__(
        self, rows: Sequence[Any], sampling: Mapping[str, float], tokens: int, seed: int
    ) -> dict[str, Any]:
        prompt, eos = (
            self.lm.encode_prompt(rows[0].prompt, raw=rows[0].raw),
            self.lm.checkpoint.lm.vocab.eos,
        )
        out, begun, first = self.cpp.begin(prompt)
        while len(out) < tokens and out[-1] not in eos:
            out += self.cpp.said(out[-1:], len(prompt) + len(out) - 1)
        return result(self.lm, out, first, time.perf_counter(), begun)


@dataclass(frozen=True)
class LookedUp:
    """Prompt lookup as the binding offers it: 10 tokens behind a match of at most 2."""

    label: str
    cpp: Cpp
    lm: api.LoadedModel

    def __call__(
        self, rows: Sequence[Any], sampling: Mapping[str, float], tokens: int, seed: int
    ) -> dict[str, Any]:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        draft = LlamaPromptLookupDecoding(num_pred_tokens=10)
        prompt, eos = (
            self.lm.encode_prompt(rows[0].prompt, raw=rows[0].raw),
            self.lm.checkpoint.lm.vocab.eos,
        )
        out, begun, first = self.cpp.begin(prompt)
        while len(out) < tokens and out[-1] not in eos:
            text = np.array([*prompt, *out], np.intc)
            more = [int(x) for x in draft(text)][: tokens - len(out)]
            said = self.cpp.said([out[-1], *more], len(text) - 1)
            good = next((i for i, x in enumerate(more) if x != said[i]), len(more))
            self.cpp.drop_entries(len(text) + good)
            out += said[: good + 1]
            stop = next((i for i, x in enumerate(out) if x in eos), None)
            if stop is not None:
                out = out[: stop + 1]
        return result(self.lm, out[:tokens], first, time.perf_counter(), begun)
