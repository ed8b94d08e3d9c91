"""OpenVINO GenAI's worker: it reads the GGUF file itself. Modes: `plain`, and `lookup`, its prompt lookup."""

from __future__ import annotations

from typing import Any

from lines import WorkerPrompt, serve_lines


class OpenVinoEngine:
    """A pipeline with continuous batching."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import openvino_genai

        self._genai = openvino_genai
        self._lookup = settings["mode"] == "lookup"
        scheduler = openvino_genai.SchedulerConfig()
        # Gigabytes of keys and values.
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.LLMPipeline(
            settings["files"][settings["format"]],
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=settings["threads"],
            **({"prompt_lookup": True} if self._lookup else {}),
        )
        self.version = f"openvino-genai {openvino_genai.__version__}"

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        given = self._genai.GenerationConfig()
        given.max_new_tokens = tokens
        given.ignore_eos = True
        given.do_sample = False
        given.apply_chat_template = False
        if self._lookup:
            given.num_assistant_tokens = 10
            given.max_ngram_size = 2
        result = self._pipeline.generate([prompt["text"] for prompt in prompts], given)
        share = int(result.perf_metrics.get_num_generated_tokens()) // len(prompts)
        return [share for _ in prompts]


if __name__ == "__main__":
    serve_lines(OpenVinoEngine)
