"""The flags that generate, chat and bench share, and how they become a request."""
from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from polydec import api
from polydec.edge import check_threads, whole, whole_text
from polydec.shapers.sampling import Sampling

MODEL, SAMPLING, OUTPUT = "Model", "Sampling", "Output"
MOST_CHOICES, MOST_TOKENS, MOST_SEED = 256, 1_000_000, 2 ** 63 - 1


@dataclass(frozen=True)
class Flags:
    """Every field is a flag; `shared` puts them into a command's signature."""
    model: Annotated[str, Option(help="Hub id, directory, GGUF file or zoo:NAME", rich_help_panel=MODEL)] = "zoo:smollm2"
    draft: Annotated[str, Option(help="draft model: a name like --model's, `default` or `none`",
                                 rich_help_panel=MODEL)] = "default"
    ngrams: Annotated[str, Option(help="n-gram table of the model's own text: a directory, zoo:NAME, `default` or `none`",
                                  rich_help_panel=MODEL)] = "default"
    with_: Annotated[list[str] | None, Option(
        "--with", help="directory of something else that was trained for the model, such as a stop head (repeatable)",
        rich_help_panel=MODEL)] = None
    method: Annotated[str, Option(help="decoding method: see `polydec methods`", rich_help_panel=MODEL)] = "auto"
    set_: Annotated[list[str] | None, Option("--set", help="option of the method, k=v (repeatable)",
                                             rich_help_panel=MODEL)] = None
    dtype: Annotated[str, Option(help="auto (the compiled step where it serves), native, torch, float32, float16, bfloat16",
                                 rich_help_panel=MODEL)] = "auto"
    quantize: Annotated[str | None, Option(help="q8_0 or q4_1: quantise a float checkpoint when loading it (approximate)",
                                           rich_help_panel=MODEL)] = None
    compute: Annotated[str | None, Option(help="float32, int16 or int8 (approximate): what the compiled step multiplies "
                                               "quantised weights in", rich_help_panel=MODEL)] = None
    device: Annotated[str, Option(help="cpu or cuda", rich_help_panel=MODEL)] = "cpu"
    threads: Annotated[int | None, Option(help="CPU threads (default: all cores)", rich_help_panel=MODEL)] = None
    raw: Annotated[bool, Option("--raw", help="no chat template", rich_help_panel=MODEL)] = False
    max_tokens: Annotated[int | None, Option(help="at most, EOS included (default: 128)", rich_help_panel=SAMPLING)] = None
    min_tokens: Annotated[int, Option(help="no EOS before", rich_help_panel=SAMPLING)] = 0
    temperature: Annotated[float | None, Option(help="0 is greedy; default: the checkpoint's own, else 0",
                                                rich_help_panel=SAMPLING)] = None
    top_k: Annotated[int | None, Option(help="0 is off", rich_help_panel=SAMPLING)] = None
    top_p: Annotated[float | None, Option(help="above 0, 1 is off", rich_help_panel=SAMPLING)] = None
    min_p: Annotated[float | None, Option(help="0 is off", rich_help_panel=SAMPLING)] = None
    repetition_penalty: Annotated[float | None, Option(help="1 is off", rich_help_panel=SAMPLING)] = None
    presence_penalty: Annotated[float | None, Option(help="0 is off", rich_help_panel=SAMPLING)] = None
    frequency_penalty: Annotated[float | None, Option(help="0 is off", rich_help_panel=SAMPLING)] = None
    order: Annotated[str, Option(help="order of the rules: vllm, transformers or llamacpp", rich_help_panel=SAMPLING)] = "vllm"
    stop: Annotated[list[str] | None, Option(help="stop string (repeatable)", rich_help_panel=SAMPLING)] = None
    stop_token_id: Annotated[list[int] | None, Option(help="stop id (repeatable)", rich_help_panel=SAMPLING)] = None
    infill: Annotated[str | None, Option(help="the answer with gaps, [[3]] for three tokens (masked-diffusion models)",
                                         rich_help_panel=SAMPLING)] = None
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="go on after EOS", rich_help_panel=SAMPLING)] = False
    seed: Annotated[int, Option(help="names the randomness", rich_help_panel=SAMPLING)] = 0
    n: Annotated[int, Option(help="answers to one prompt", rich_help_panel=SAMPLING)] = 1
    logprobs: Annotated[int | None, Option(help="report log-probabilities and this many alternatives (0 to 64)",
                                           rich_help_panel=OUTPUT)] = None
    json_: Annotated[bool, Option("--json", help="one JSON object on standard output", rich_help_panel=OUTPUT)] = False
    trace: Annotated[Path | None, Option(help="write every event to this file, a JSON object a line",
                                         rich_help_panel=OUTPUT)] = None

    def __post_init__(self) -> None:
        """What no model could honour is refused before one is loaded."""
        check_threads(self.threads)
        whole("n", self.n, 1, MOST_CHOICES)
        whole("min_tokens", self.min_tokens, 0, MOST_TOKENS)
        whole("seed", self.seed, -MOST_SEED, MOST_SEED)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1, MOST_TOKENS)
        for text in self.stop or ():
            whole_text(text, "stop")

    def load(self) -> api.LM:
        draft = None if self.draft == "none" else self.draft
        return api.load(self.model, draft=draft, dtype=self.dtype, device=self.device, threads=self.threads,
                        quantize=self.quantize, compute=self.compute, ngrams=None if self.ngrams == "none" else self.ngrams,
                        trained=tuple(self.with_ or ()))

    def options(self) -> dict[str, str]:
        """--set k=v, split."""
        out: dict[str, str] = {}
        for item in self.set_ or ():
            key, eq, value = item.partition("=")
            if not eq:
                raise ValueError(f"--set {item!r} has no '=': write --set option=value")
            out[key.strip()] = value.strip()
        return out

    def sampling(self, lm: api.LM) -> Sampling:
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        return lm.sampling(**{k: getattr(self, k) for k in names}, min_tokens=self.min_tokens)

    def request(self, lm: api.LM) -> dict[str, Any]:
        """Keyword arguments of Engine.submit."""
        return {"method": self.method, "options": self.options(), "sampling": self.sampling(lm),
                "max_tokens": self.max_tokens, "stop": tuple(self.stop or ()),
                "stop_token_ids": tuple(self.stop_token_id or ()), "ignore_eos": self.ignore_eos, "seed": self.seed,
                "n": self.n, "logprobs": self.logprobs, "raw": self.raw, "order": self.order, "infill": self.infill}


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `flags: Flags` of a command by the flags themselves."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    hints = inspect.get_annotations(Flags, eval_str=True)
    fields = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
              for f in dataclasses.fields(Flags)]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    def wrapped(**given: Any) -> None:
        flags = Flags(**{f.name: given.pop(f.name) for f in dataclasses.fields(Flags)})
        command(flags=flags, **given)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature([*own, *fields])           # pyright: ignore[reportFunctionMemberAccess]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *fields]}
    return wrapped
