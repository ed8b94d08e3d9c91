"""The flags that generate, chat and bench share, and how they become a request."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from polydec import api
from polydec.base.edge import check_threads, whole, whole_text
from polydec.base.errors import RequestError
from polydec.cli import prompts
from polydec.methods import registry, steer

if TYPE_CHECKING:
    from polydec.constraints.protocols import Constraint
    from polydec.shapers.sampling import Sampling

MODEL, SAMPLING, CONSTRAINT, OUTPUT, STEERING = (
    "Model",
    "Sampling",
    "Constraint",
    "Output",
    "Steering",
)
MOST_CHOICES, MOST_TOKENS, MOST_SEED = 256, 1_000_000, 2**63 - 1


Steer = Annotated[
    str | None,
    Option(help="bend the model's law: see `polydec steerings`", rich_help_panel=STEERING),
]
SteerSet = Annotated[
    list[str] | None,
    Option(help="option of the steering, k=v (repeatable)", rich_help_panel=STEERING),
]
Second = Annotated[
    str | None,
    Option(
        "--negative-prompt",
        "--no-context-prompt",
        rich_help_panel=STEERING,
        help="what the prompt is held against: a second prompt",
    ),
]

LOADED = frozenset(
    (
        "model",
        "draft",
        "ngrams",
        "with_",
        "dtype",
        "quantize",
        "compute",
        "cache_dtype",
        "device",
        "threads",
    )
)
"""Flags that say what is loaded, and how."""
BENT = frozenset(
    (
        "min_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "sample",
    )
)
"""Flags that `sampling` reads."""


@dataclass(frozen=True)
class Flags:
    """Every field is a flag; `shared` puts them into a command's signature."""

    model: Annotated[
        str, Option(help="Hub id, directory, GGUF file or zoo:NAME", rich_help_panel=MODEL)
    ] = "zoo:smollm2"
    draft: Annotated[
        str,
        Option(
            help="draft model: a name like --model's, `default` or `none`", rich_help_panel=MODEL
        ),
    ] = "default"
    ngrams: Annotated[
        str,
        Option(
            help="n-gram table of the model's own text: a directory, zoo:NAME, `default` or `none`",
            rich_help_panel=MODEL,
        ),
    ] = "default"
    with_: Annotated[
        list[str] | None,
        Option(
            "--with",
            help="what else was trained for the model, such as a stop head: a directory or zoo:NAME (repeatable)",
            rich_help_panel=MODEL,
        ),
    ] = None
    method: Annotated[
        str, Option(help="decoding method: see `polydec methods`", rich_help_panel=MODEL)
    ] = "auto"
    set_: Annotated[
        list[str] | None,
        Option("--set", help="option of the method, k=v (repeatable)", rich_help_panel=MODEL),
    ] = None
    dtype: Annotated[
        str,
        Option(
            help="auto (the compiled step where it serves), native, torch, float32, float16, bfloat16",
            rich_help_panel=MODEL,
        ),
    ] = "auto"
    quantize: Annotated[
        str | None,
        Option(
            help="q8_0 or q4_1: quantise a float checkpoint when loading it (approximate)",
            rich_help_panel=MODEL,
        ),
    ] = None
    compute: Annotated[
        str | None,
        Option(
            help="float32, int16 or int8 (approximate): what the compiled step multiplies "
            "quantised weights in",
            rich_help_panel=MODEL,
        ),
    ] = None
    cache_dtype: Annotated[
        str | None,
        Option(
            help="float32, or approximately float16 or int8: how the compiled step keeps "
            "keys and values",
            rich_help_panel=MODEL,
        ),
    ] = None
    device: Annotated[str, Option(help="cpu or cuda", rich_help_panel=MODEL)] = "cpu"
    threads: Annotated[
        int | None, Option(help="CPU threads (default: all cores)", rich_help_panel=MODEL)
    ] = None
    raw: Annotated[bool, Option("--raw", help="no chat template", rich_help_panel=MODEL)] = False
    max_tokens: Annotated[
        int | None, Option(help="at most, EOS included (default: 128)", rich_help_panel=SAMPLING)
    ] = None
    min_tokens: Annotated[int, Option(help="no EOS before", rich_help_panel=SAMPLING)] = 0
    temperature: Annotated[
        float | None,
        Option(help="0 is greedy; default: the checkpoint's own, else 0", rich_help_panel=SAMPLING),
    ] = None
    top_k: Annotated[int | None, Option(help="0 is off", rich_help_panel=SAMPLING)] = None
    top_p: Annotated[float | None, Option(help="above 0, 1 is off", rich_help_panel=SAMPLING)] = (
        None
    )
    min_p: Annotated[float | None, Option(help="0 is off", rich_help_panel=SAMPLING)] = None
    repetition_penalty: Annotated[
        float | None, Option(help="1 is off", rich_help_panel=SAMPLING)
    ] = None
    presence_penalty: Annotated[float | None, Option(help="0 is off", rich_help_panel=SAMPLING)] = (
        None
    )
    frequency_penalty: Annotated[
        float | None, Option(help="0 is off", rich_help_panel=SAMPLING)
    ] = None
    sample: Annotated[
        list[str] | None,
        Option(
            help="any other field of sampling, k=v (repeatable); see docs/sampling.md",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    order: Annotated[
        str,
        Option(help="order of the rules: vllm, transformers or llamacpp", rich_help_panel=SAMPLING),
    ] = "vllm"
    stop: Annotated[
        list[str] | None, Option(help="stop string (repeatable)", rich_help_panel=SAMPLING)
    ] = None
    stop_token_id: Annotated[
        list[int] | None, Option(help="stop id (repeatable)", rich_help_panel=SAMPLING)
    ] = None
    infill: Annotated[
        str | None,
        Option(
            help="the answer with gaps, [[3]] for three tokens (masked-diffusion models; of "
            "insertion models for up to three)",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="go on after EOS", rich_help_panel=SAMPLING)
    ] = False
    regex: Annotated[
        str | None,
        Option(help="the answer matches this regular expression", rich_help_panel=CONSTRAINT),
    ] = None
    json_schema: Annotated[
        Path | None,
        Option(
            help="the answer is JSON that the schema in this file allows",
            rich_help_panel=CONSTRAINT,
        ),
    ] = None
    grammar: Annotated[
        Path | None,
        Option(help="the answer follows the Lark grammar in this file", rich_help_panel=CONSTRAINT),
    ] = None
    choice: Annotated[
        list[str] | None,
        Option(
            help="the answer is this text, or another one that is given so (repeatable)",
            rich_help_panel=CONSTRAINT,
        ),
    ] = None
    span_of: Annotated[
        Path | None,
        Option(help="the answer is a span of the text in this file", rich_help_panel=CONSTRAINT),
    ] = None
    finish: Annotated[
        bool,
        Option(
            "--finish",
            help="bring a constrained answer to a legal end within --max-tokens",
            rich_help_panel=CONSTRAINT,
        ),
    ] = False
    seed: Annotated[int, Option(help="names the randomness", rich_help_panel=SAMPLING)] = 0
    n: Annotated[int, Option(help="answers to one prompt", rich_help_panel=SAMPLING)] = 1
    logprobs: Annotated[
        int | None,
        Option(
            help="report log-probabilities and this many alternatives (0 to 64)",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    json_: Annotated[
        bool, Option("--json", help="one JSON object on standard output", rich_help_panel=OUTPUT)
    ] = False
    trace: Annotated[
        Path | None,
        Option(help="write every event to this file, a JSON object a line", rich_help_panel=OUTPUT),
    ] = None

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
        _ = self.constraint

    def only(self, command: str, taken: Collection[str]) -> None:
        """Raise RequestError where a flag is given that the command, which takes these, would do nothing with."""
        if (flag := self.beside(taken)) is not None:
            raise RequestError(
                f"--{flag} is given, and {command} does nothing with it: leave it out"
            )

    def beside(self, taken: Collection[str]) -> str | None:
        """The first flag that is given and is not one of these fields; None: there is none."""
        given = (
            field.name
            for field in dataclasses.fields(self)
            if field.name not in taken and getattr(self, field.name) not in (field.default, [])
        )
        return next((name.rstrip("_").replace("_", "-") for name in given), None)

    def check_names(self) -> None:
        """Raise RequestError for a method, an option of it or a rule of sampling that no model could honour: said before one is
        loaded, which takes seconds."""
        registry.check_names(self.method, self.options())
        if self.bent:
            from polydec.shapers.sampling import Sampling

            Sampling(**self.bent)

    def load(self) -> api.LM:
        draft = None if self.draft == "none" else self.draft
        return api.load(
            self.model,
            draft=draft,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            quantize=self.quantize,
            compute=self.compute,
            cache_dtype=self.cache_dtype,
            ngrams=None if self.ngrams == "none" else self.ngrams,
            trained=tuple(self.with_ or ()),
        )

    def options(self) -> dict[str, str]:
        """--set k=v, split."""
        return pairs("set", self.set_)

    @cached_property
    def bent(self) -> dict[str, Any]:
        """The fields of sampling that are given. Raises RequestError for one that is given twice."""
        names = (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        given = {k: value for k in names if (value := getattr(self, k)) is not None}
        given |= {"min_tokens": self.min_tokens} if self.min_tokens else {}
        more = pairs("sample", self.sample)
        if twice := next((k for k in more if k in given), None):
            raise RequestError(
                f"{twice} is given twice: by --sample and by --{twice.replace('_', '-')}"
            )
        return {**given, **more}

    def sampling(self, lm: api.LM) -> Sampling:
        return lm.sampling(**self.bent)

    @cached_property
    def constraint(self) -> Constraint | None:
        """What the answer may be; None: anything. Files are read once, as a pipe holds its text once. Raises RequestError where
        one cannot be read, or several are given."""
        files = {"json_schema": self.json_schema, "grammar": self.grammar, "span_of": self.span_of}
        texts = {
            name: None if path is None else prompts.read_text(path) for name, path in files.items()
        }
        given = {"regex": self.regex, "choice": self.choice or None, **texts}
        if all(value is None for value in given.values()):
            return None
        from polydec.constraints.asked import one

        return one(given)

    def request(self, lm: api.LM) -> dict[str, Any]:
        """Keyword arguments of Engine.submit."""
        return {
            "method": self.method,
            "options": self.options(),
            "sampling": self.sampling(lm),
            "max_tokens": self.max_tokens,
            "stop": tuple(self.stop or ()),
            "stop_token_ids": tuple(self.stop_token_id or ()),
            "ignore_eos": self.ignore_eos,
            "seed": self.seed,
            "n": self.n,
            "logprobs": self.logprobs,
            "raw": self.raw,
            "order": self.order,
            "constraint": self.constraint,
            "finish": self.finish,
            "infill": self.infill,
        }


def steering(
    name: str | None, steer_set: list[str] | None, negative_prompt: str | None
) -> dict[str, Any]:
    """The fields of a request that steer it. Raises RequestError for a way, or an option of it, that is not there."""
    second = None if negative_prompt is None else whole_text(negative_prompt, "negative_prompt")
    options = pairs("steer-set", steer_set)
    if name is not None:
        steer.chosen(name, options)
    return {
        "steer": name,
        "steer_options": options,
        "negative_prompt": second,
    }


def pairs(flag: str, items: list[str] | None) -> dict[str, str]:
    """k=v of a flag that may stand several times, split. Raises RequestError for one without "="."""
    return named(f"--{flag}", items)


def named(spelt: str, items: list[str] | None) -> dict[str, str]:
    """The same behind anything that is spelt so."""
    out: dict[str, str] = {}
    for item in items or ():
        key, eq, value = item.partition("=")
        if not eq:
            raise RequestError(f"{spelt} {item!r} has no '=': write {spelt} name=value")
        out[key.strip()] = value.strip()
    return out


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `flags: Flags` of a command by the flags themselves."""
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != "flags"
    ]
    hints = inspect.get_annotations(Flags, eval_str=True)
    fields = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in dataclasses.fields(Flags)
    ]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    def wrapped(**given: Any) -> None:
        flags = Flags(**{f.name: given.pop(f.name) for f in dataclasses.fields(Flags)})
        command(flags=flags, **given)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature([*own, *fields])  # pyright: ignore[reportFunctionMemberAccess]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *fields]}
    return wrapped
