"""mistral.rs' worker: it reads the GGUF file itself. Mode: `plain`, one answer at a time, as its Python binding has it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from lines import WorkerPrompt, serve_lines


class MistralRsEngine:
    """A runner that writes one answer after the other."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import mistralrs

        self._mistralrs = mistralrs
        path = Path(settings["files"][settings["format"]])
        self._runner = mistralrs.Runner(
            which=mistralrs.Which.GGUF(
                quantized_model_id=str(path.parent), quantized_filename=path.name
            ),
            prefix_cache_n=0,
            no_kv_cache=False,
        )
        self.version = f"mistralrs {version('mistralrs')}"

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        return [self._write(prompt["text"], tokens) for prompt in prompts]

    def _write(self, text: str, tokens: int) -> int:
        request = self._mistralrs.CompletionRequest(
            model="default", prompt=text, max_tokens=tokens, temperature=0.0, ignore_eos=True
        )
        return int(self._runner.send_completion_request(request).usage.completion_tokens)


if __name__ == "__main__":
    serve_lines(MistralRsEngine)
