"""Polydec as a model of lm-evaluation-harness: `--model polydec`, any method on any task.

Importing this registers it. `polydec harness` is the harness's own command line with this model in
it; in Python, `import polydec.lab.bench.harness` and then `lm_eval.simple_evaluate(model="polydec",
...)`.
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
    """A model that is loaded here, and the method that decodes what a task lets it write."""

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
        """Load the model and check the method.

        Args:
            model: The model, as `polydec.load` takes it.
            method: A method's name with its options, as in "draft-model:depth=3".
            batch_size: Requests that share passes, at least 1; "auto" is 8.
            draws: Canvases for each likelihood under a masked-diffusion model, at least 2. Default
                128.
            max_length: Tokens of a context and its continuation; None: the model's own context.
            seed: Names the randomness. Default 0.
            device: The device, as `polydec.load` takes it; None: the default.
            max_batch_size: Ignored: the harness passes it to every model.
            loading: Further arguments of `polydec.load`.

        Raises:
            RequestError: A name is unknown, or a value is out of range.
        """
        super().__init__()
        for name in loading:
            if name not in loading_options():
                # Named for the suggestion: the harness itself would only say that the argument is
                # unexpected.
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
        # The harness names its own default device even where the user names none.
        if device not in (None, UNSAID):
            loading["device"] = device
        chosen = parse_method_setting(str(method))
        self.method = chosen.name
        self.options = chosen.options
        # Requests share passes up to this number, so "auto" needs no search for a batch that fits.
        if batch_size == "auto":
            self.batch_size = 8
        else:
            self.batch_size = int(batch_size)
        if self.batch_size < 1:
            raise RequestError(f"batch_size is {batch_size}: it must be at least 1")
        self.lm: LoadedModel = load(model, **loading)
        # Refused now, not in the middle of a task.
        self.lm.check_method(self.method, self.options)
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
        """The token that ends a text, the lowest id where there are several."""
        return min(self.lm.checkpoint.text.eos or self.lm.checkpoint.lm.vocab.eos)

    @property
    def prefix_token_id(self) -> int:
        """The context of a text without one: the tokenizer's own first mark, or the end of another
        text.
        """
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
        """Encode a text.

        Args:
            string: The text.
            add_special_tokens: Whether the tokenizer's own marks are added; None: unless a chat
                template has put the first one there.
            kwargs: Ignored.

        Returns:
            Token ids.
        """
        text = self.lm.checkpoint.text
        mark = text.names.get("bos_token", "")
        # A chat template may have written the mark: a second one would change every likelihood.
        marked = bool(mark) and string.startswith(mark)
        if add_special_tokens is None:
            special = not marked
        else:
            special = add_special_tokens
        return list(text.encode(string, special))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render messages by the model's chat template.

        Args:
            chat_history: Messages, each with "role" and "content".
            add_generation_prompt: Whether the text ends with the opening of a reply. Default true.

        Returns:
            The text.
        """
        return self.lm.checkpoint.text.render_chat(chat_history, reply=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the chat template, for the harness's log; None where it asks for none.

        Raises:
            RequestError: A template is named, or the model has none.
        """
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
        """Log-likelihoods of whole texts: each token once, after as long a context as there is room
        for.

        Args:
            requests: The harness's requests, each with one text.
            disable_tqdm: Ignored: no progress is printed.

        Returns:
            The log-probability of each text, nats.
        """
        sums: list[float] = []
        for request in requests:
            (string,) = request.args
            windows = [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(string, add_special_tokens=False),
                    prefix_token=self.prefix_token_id,
                    # Room for the token before the window and for the one that a pass writes.
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
        """Write the answers by the method. A context that leaves no room for its answer loses its
        beginning.

        Args:
            requests: The harness's requests, each with a context and settings of its answer.
            disable_tqdm: Ignored: no progress is printed.

        Returns:
            The text of each answer, in order.

        Raises:
            RequestError: A setting is unknown or out of range.
        """
        engine = Engine(self.lm, max_running=self.batch_size)
        tickets = [engine.submit(**self._request(*request.args)) for request in requests]
        engine.run(tickets)
        texts: list[str] = []
        for request, ticket in zip(requests, tickets, strict=True):
            done = ticket.completion()
            # For the tokens a pass that stand with the results.
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
        # The limit goes by several names: the first one that is set counts.
        most = next(
            (int(settings[k]) for k in SETTLED[2:5] if settings.get(k) is not None), WRITTEN
        )
        if not 1 <= most < self.max_length:
            raise RequestError(
                f"max_gen_toks is {most}: it must lie in 1 to {self.max_length - 1}, the context"
            )
        sampled = {k: settings[k] for k in SAMPLED if settings.get(k) is not None}
        # Without `do_sample` a temperature above 0 means sampling; with it false, greedy decoding.
        if not settings.get("do_sample", float(sampled.get("temperature", 0.0)) > 0.0):
            sampled["temperature"] = 0.0
        ids = self.tok_encode(context) or [self.prefix_token_id]
        return {
            "prompt": ids[-(self.max_length - most) :],
            "method": self.method,
            "options": self.options,
            "sampling": self.lm.sampling_with(**sampled),
            "max_tokens": most,
            "stop": stop,
            "seed": int(settings.get("seed", self.seed)),
        }

    def get_model_info(self) -> dict[str, Any]:
        """What is stored with the results: model, method, tokens a pass, and the median error of
        likelihoods.
        """
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
    # The harness has subcommands; options alone mean "run".
    if words[:1] not in (["run"], ["ls"], ["validate"]):
        words = ["run", *words]
    if words[0] == "run" and not any(w.split("=")[0] in ("--model", "-M") for w in words):
        words += ["--model", "polydec"]
    sys.argv = ["polydec harness", *words]
    cli_evaluate()
