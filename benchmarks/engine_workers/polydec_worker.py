"""Polydec's worker. Modes: a method's name, behind it `int8` or `int16` after a comma."""

from __future__ import annotations

from typing import Any

from lines import WorkerPrompt, serve_lines


class PolydecEngine:
    """A model that decodes by one method."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import polydec

        method, _, compute = settings["mode"].partition(",")
        self._generate = polydec.generate
        self._method = method
        self._lm = polydec.load(
            settings["files"][settings["format"]],
            threads=settings["threads"],
            compute=compute or None,
        )
        self.version = f"polydec {polydec.__version__}"

    def write_answers(self, prompts: list[WorkerPrompt], tokens: int) -> list[list[int] | int]:
        answers = self._generate(
            self._lm,
            [prompt["ids"] for prompt in prompts],
            method=self._method,
            max_tokens=tokens,
            ignore_eos=True,
        )
        return [list(answer.token_ids) for answer in answers]


if __name__ == "__main__":
    serve_lines(PolydecEngine)
