"""transformers' worker: eager passes with its own cache, in the faster number type. Modes: `plain`, `lookup`."""

from __future__ import annotations

import time
from typing import Any

from lines import WorkerPrompt, serve_lines


class TransformersEngine:
    """A directory in `generate`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(settings["threads"])
        self._torch = torch
        folder = settings["files"][settings["format"]]
        models = [
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
            for dtype in (torch.float32, torch.bfloat16)
        ]
        took = [self._time_pass(model) for model in models]
        best = took.index(min(took))
        self._model = models[best]
        if settings["mode"] == "lookup":
            self._extra = {"prompt_lookup_num_tokens": 10}
        else:
            self._extra = {}
        self.version = f"transformers {transformers.__version__}, {('float32', 'bfloat16')[best]}"

    def _time_pass(self, model: Any) -> float:
        """Seconds of a pass over one token, the best of five."""
        took = list[float]()
        with self._torch.inference_mode():
            for _ in range(5):
                began = time.perf_counter()
                model(self._torch.zeros(1, 1, dtype=self._torch.long))
                took.append(time.perf_counter() - began)
        return min(took)

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        torch = self._torch
        longest = max(len(prompt["ids"]) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        seen = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt["ids"]) :] = torch.tensor(prompt["ids"])
            seen[row, longest - len(prompt["ids"]) :] = 1
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=seen,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                **self._extra,
            )
        return [row[longest : longest + tokens].tolist() for row in out]


if __name__ == "__main__":
    serve_lines(TransformersEngine)
