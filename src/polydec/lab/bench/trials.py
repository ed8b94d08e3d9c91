"""A method on trial: the model, the prompts and the requests by which evidence of it is gathered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polydec.api import Ask, LoadedModel, Prompt
from polydec.laws.shapers.sampling import Sampling

SEEDS = 4
"""Seeds over which the samples of a prompt are spread."""


@dataclass(frozen=True)
class MethodTrial:
    """A method whose promise is put to the test, and the requests that test it.

    Attributes:
        lm: The loaded model.
        prompts: Prompts, each with whether it goes in without the chat template.
        method: Name of the method.
        options: Its options.
        request: What all requests hold besides; `sampling` must be there.
        samples: Texts of each prompt, at least 1. Default 1.
        seed: The first of the seeds over which they are spread. Default 0.
    """

    lm: LoadedModel
    prompts: Sequence[tuple[Prompt, bool]]
    method: str
    options: Mapping[str, Any]
    request: Mapping[str, Any]
    samples: int = 1
    seed: int = 0

    @property
    def sampling_rules(self) -> Sampling:
        """The sampling rules of all requests."""
        return self.request["sampling"]

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0, so that each prompt has one text."""
        return not self.sampling_rules.temperature

    @property
    def plain_trial(self) -> MethodTrial:
        """The same requests to plain decoding."""
        return replace(self, method="plain", options={})

    def at_temperature(self, temperature: float) -> MethodTrial:
        """The same requests at another temperature."""
        sampling = replace(self.sampling_rules, temperature=temperature)
        return replace(self, request={**self.request, "sampling": sampling})

    def ask_method(self, prompt: int, seed: int, **more: Any) -> Ask:
        """Make one request.

        Args:
            prompt: Number of its prompt, from 0.
            seed: Its seed.
            more: Further fields.

        Returns:
            The request.
        """
        text, raw = self.prompts[prompt]
        return Ask(
            text,
            method=self.method,
            options=self.options,
            raw=raw,
            seed=seed,
            **self.request,
            **more,
        )

    def sample_requests(self) -> Iterator[tuple[int, int, int]]:
        """Of every request for samples the number of its prompt, its seed and how many answers it
        asks for, which share the prompt's pass."""
        for prompt in range(len(self.prompts)):
            for i, n in enumerate(spread_over(self.samples)):
                yield prompt, self.seed + i, n


def spread_over(samples: int) -> list[int]:
    """How many answers each seed is asked for."""
    # Several seeds, so that a fault in one stream of randomness cannot hide.
    seeds = min(SEEDS, samples)
    return [samples // seeds + (i < samples % seeds) for i in range(seeds)]
