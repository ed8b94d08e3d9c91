"""Polydec as a model of lm-evaluation-harness: `--model polydec`, any method on any task.

Importing this registers it. `polydec harness` is the harness's own command line with this model in it; in Python,
`import polydec.lab.bench.harness` and then `lm_eval.simple_evaluate(model="polydec", ...)`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.utils import (  # pyright: ignore[reportMissingImports]
    get_rolling_token_windows,
    make_disjoint_window,
)

from polydec.api import Engine, LoadedModel, load
from polydec.base.errors import RequestError
from polydec.base.options import name_suggestion, short_repr
from polydec.lab.bench.likelihood import TextLikelihood, text_likelihoods
from polydec.lab.bench.measure import parse_method_setting
from polydec.methods.registry.family import family_of
from polydec.request.loading import loading_options

WRITTEN = 256
"""Tokens of an answer where a task does not say how many."""

UNSAID = "cuda:0"
"""What the harness's command line hands on where nobody names a device."""

SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a task may say of sampling."""

SETTLED = ("do_sample", "until", "max_gen_toks", "max_tokens", "max_new_tokens", "seed")
"""What else a task may say of an answer."""


@register_model("polydec")
class HarnessModel(TemplateLM):
    """A model that is loaded here, and the method that decodes what a task lets it write.

    model: as `polydec.load` takes it; method: a name with its options behind it, as in "draft-model:depth=3"; batch_size:
    requests that share passes, at least 1; draws: canvases for each likelihood under a masked-diffusion model, at least 2;
    max_length: tokens of a context and what is behind it, None for the model's own; seed: names the randomness. Further
    arguments are those of `polydec.load`. Raises RequestError for a name that is unknown and for a value out of range.
    """

    def __init__(
        self,
        model: str = "zoo:smollm2",
        method: str = "auto",
        batch_size: int | str = 8,
        draws: int = 128,
        max_length: int | None = None,
        seed: int = 0,
        device: str | None = None,
        max_batch_size: int | None = None,
        **loading: Any,
    ) -> None:
        super().__init__()
        for name in loading:
            if name not in loading_options():
                known = [
                    "model",
                    "method",
                    "batch_size",
                    "draws",
                    "max_length",
                    "seed",
                    *loading_options(),
                ]
                nearest = name_suggestion(name, known, "its arguments", most=1)
                raise RequestError(f"model_args has {short_repr(name)}: {nearest}")
        if device not in (None, UNSAID):
            loading["device"] = device
        chosen = parse_method_setting(str(method))
        self.method = chosen.name
        self.options = chosen.options
        # a batch is what requests share, so there is nothing to find out where the harness is told "auto"
        if batch_size == "auto":
            self.batch_size = 8
        else:
            self.batch_size = int(batch_size)
        if self.batch_size < 1:
            raise RequestError(f"batch_size is {batch_size}: it must be at least 1")
        self.lm: LoadedModel = load(model, **loading)
        self.lm.check(self.method, self.options)
        context = int(self.lm.checkpoint.lm.context)
        if max_length is not None and not 2 <= max_length <= context:
            raise RequestError(f"max_length is {max_length}: it must lie in 2 to {context}")
        self.max_length = max_length or context
        self.draws = draws
        self.seed = seed
        self._errors: list[float] = []
        self._counts = {"tokens": 0, "target_passes": 0}

    # ---- tokens ----

    @property
    def eot_token_id(self) -> int:
        """What ends a text."""
        return min(self.lm.checkpoint.text.eos or self.lm.checkpoint.lm.vocab.eos)

    @property
    def prefix_token_id(self) -> int:
        """What a text without a context stands behind: the tokenizer's own mark, or the end of another text."""
        before = self.lm.checkpoint.text.encode("")
        if before:
            return before[0]
        return self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return self.lm.name.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        text = self.lm.checkpoint.text
        mark = text.names.get("bos_token", "")
        marked = bool(mark) and string.startswith(mark)  # by a chat template
        if add_special_tokens is None:
            special = not marked
        else:
            special = add_special_tokens
        return list(text.encode(string, special))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self.lm.checkpoint.text.render(chat_history, reply=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise RequestError(
                f"chat_template is {short_repr(chat_template)}: this model has one at most, so name none"
            )
        template = self.lm.checkpoint.text.template
        if template is None:
            raise RequestError(
                f"{self.lm.name} has no chat template: leave apply_chat_template out"
            )
        return template.source

    # ---- what a task asks for ----

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        scored = self._likelihoods([(context, text) for _, context, text in requests])
        answers = [(likelihood.logp, likelihood.greedy) for likelihood in scored]
        for (key, _, _), answer in zip(requests, answers, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answer)
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Each token of a text is told once, behind as much as there is room for."""
        sums: list[float] = []
        for request in requests:
            (string,) = request.args
            windows = [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(string, add_special_tokens=False),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length - 2,
                    context_len=1,
                )
            ]
            total = sum(likelihood.logp for likelihood in self._likelihoods(windows))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            sums.append(total)
        return sums

    def _likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[TextLikelihood]:
        scored = text_likelihoods(
            self.lm,
            pairs,
            draws=self.draws,
            seed=self.seed,
            at_once=self.batch_size,
            most=self.max_length - 1,
        )
        self._errors += [likelihood.error for likelihood in scored]
        return scored

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The answers, by the method; a context that leaves no room for them loses its beginning."""
        engine = Engine(self.lm, max_running=self.batch_size)
        tickets = [engine.submit(**self._request(*request.args)) for request in requests]
        engine.run(tickets)
        texts: list[str] = []
        for request, ticket in zip(requests, tickets, strict=True):
            done = ticket.completion()
            self._counts["tokens"] += done.usage["completion_tokens"]
            self._counts["target_passes"] += done.metrics["target_passes"]
            texts.append(done.text)
            self.cache_hook.add_partial("generate_until", request.args, done.text)
        return texts

    def _request(self, context: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A request of a context and of what a task says of its answer."""
        for name in settings:
            if name not in (*SAMPLED, *SETTLED):
                nearest = name_suggestion(name, [*SAMPLED, *SETTLED], "it takes", most=1)
                raise RequestError(f"generation_kwargs has {short_repr(name)}: {nearest}")
        until = settings.get("until") or []
        stop = [s for s in ([until] if isinstance(until, str) else until) if s]
        most = next(
            (int(settings[k]) for k in SETTLED[2:5] if settings.get(k) is not None), WRITTEN
        )
        if not 1 <= most < self.max_length:
            raise RequestError(
                f"max_gen_toks is {most}: it must lie in 1 to {self.max_length - 1}, the context"
            )
        sampled = {k: settings[k] for k in SAMPLED if settings.get(k) is not None}
        if not settings.get("do_sample", float(sampled.get("temperature", 0.0)) > 0.0):
            sampled["temperature"] = 0.0
        ids = self.tok_encode(context) or [self.prefix_token_id]
        return {
            "prompt": ids[-(self.max_length - most) :],
            "method": self.method,
            "options": self.options,
            "sampling": self.lm.sampling(**sampled),
            "max_tokens": most,
            "stop": stop,
            "seed": int(settings.get("seed", self.seed)),
        }

    def get_model_info(self) -> dict[str, Any]:
        """What stands beside the results: what decoded, how many tokens a pass, and how sure likelihoods are."""
        passes = self._counts["target_passes"]
        tokens = self._counts["tokens"]
        drawn = [e for e in self._errors if e > 0.0]
        return {
            "polydec_model": self.lm.name,
            "polydec_method": self.method,
            "polydec_kernel": self.lm.checkpoint.kernel,
            "polydec_family": family_of(self.lm.checkpoint.lm).name,
            "polydec_tokens_per_pass": tokens / passes if passes else None,
            "polydec_likelihood_error": statistics.median(drawn) if drawn else 0.0,
        }


def main(arguments: Sequence[str]) -> None:
    """The harness's own command line, where `--model polydec` need not be said."""
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    words = list(arguments)
    if words[:1] not in (["run"], ["ls"], ["validate"]):
        words = ["run", *words]
    if words[0] == "run" and not any(w.split("=")[0] in ("--model", "-M") for w in words):
        words += ["--model", "polydec"]
    sys.argv = ["polydec harness", *words]
    cli_evaluate()
