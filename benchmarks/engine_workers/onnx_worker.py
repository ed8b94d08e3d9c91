"""ONNX Runtime GenAI's worker: a model that its own builder has made of the directory. Mode: `plain`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from lines import WorkerPrompt, serve_lines


class OnnxEngine:
    """A model whose texts share passes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        made = Path(settings["scratch"]) / f"onnx-{settings['format']}"
        if not (made / "genai_config.json").exists():
            builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
            options = ["-p", settings["format"], "-e", "cpu", "-c", str(made / "cache")]
            # Whole numbers of 8 bits in the products: its fastest way on processors.
            faster = ["--extra_options", "int4_accuracy_level=4"]
            subprocess.run(
                [
                    *builder,
                    "-i",
                    settings["files"]["directory"],
                    "-o",
                    str(made),
                    *options,
                    *faster,
                ],
                check=True,
            )
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        config = onnxruntime_genai.Config(str(made))
        self._model = onnxruntime_genai.Model(config)
        self.version = f"onnxruntime-genai {version('onnxruntime-genai')}"

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        longest = max(len(prompt["ids"]) for prompt in prompts)
        given = self._genai.GeneratorParams(self._model)
        given.set_search_options(
            batch_size=len(prompts),
            max_length=longest + tokens,
            min_length=longest + tokens,
            do_sample=False,
        )
        generator = self._genai.Generator(self._model, given)
        # Padding stands to the left, as its own tokenizer writes it.
        ids = [[0] * (longest - len(prompt["ids"])) + prompt["ids"] for prompt in prompts]
        generator.append_tokens(np.array(ids, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        return [
            [int(token) for token in generator.get_sequence(row)[longest:]]
            for row in range(len(prompts))
        ]


if __name__ == "__main__":
    serve_lines(OnnxEngine)
