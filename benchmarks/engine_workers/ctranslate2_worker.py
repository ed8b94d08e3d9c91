"""CTranslate2's worker: a model that its own converter has made of the directory. Mode: `plain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lines import WorkerPrompt, serve_lines


class CTranslate2Engine:
    """A generator whose texts share passes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        source = settings["files"]["directory"]
        made = Path(settings["scratch"]) / f"ctranslate2-{settings['format']}"
        if not (made / "model.bin").exists():
            TransformersConverter(source).convert(
                str(made), quantization=settings["format"], force=True
            )
        self._generator = ctranslate2.Generator(
            str(made), intra_threads=settings["threads"], compute_type=settings["format"]
        )
        from transformers import AutoTokenizer

        # This engine names tokens by their texts.
        self._names = AutoTokenizer.from_pretrained(source).convert_ids_to_tokens
        self.version = f"ctranslate2 {ctranslate2.__version__}"

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        results = self._generator.generate_batch(
            [self._names(prompt["ids"]) for prompt in prompts],
            max_length=tokens,
            min_length=tokens,
            include_prompt_in_result=False,
            sampling_topk=1,
        )
        return [list(result.sequences_ids[0]) for result in results]


if __name__ == "__main__":
    serve_lines(CTranslate2Engine)
