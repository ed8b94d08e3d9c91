"""The flags that generate, chat and bench share, and how they become a request."""

# ruff: noqa: RUF009  (a call makes a field of a dataclass)
from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from polydec import api
from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import as_text
from polydec.cli import prompts
from polydec.cli.declared_flags import check_flag_ranges, flag_field, flags_of
from polydec.cli.garbage import pause_garbage_collection
from polydec.laws.shapers.names import check_fields
from polydec.laws.shapers.names import own_sampling_fields as sampled
from polydec.methods.registry import press, registry, steer
from polydec.models.formats.images import Image
from polydec.request import fields, loading

if TYPE_CHECKING:
    from polydec.laws.constraints.protocols import OutputConstraint
    from polydec.laws.shapers.sampling import Sampling

MODEL = "Model"
SAMPLING = "Sampling"
CONSTRAINT = "Constraint"
OUTPUT = "Output"
STEERING = "Steering"
ASK, LOADING = fields.ask_options(), loading.loading_options()
SAMPLED = sampled()
"""The fields of a request, of loading and of sampling: what each flag is."""


def _loaded(name: str, **more: Any) -> Any:
    return flag_field(LOADING[name], MODEL, group="loading", **more)


def _sampled(name: str) -> Any:
    """Not given: as the checkpoint has it, else neutral."""
    # A checkpoint may bring its own values for these fields.
    own = name in fields.OWN
    return flag_field(
        SAMPLED[name],
        SAMPLING,
        group="sampling",
        type=SAMPLED[name].form | None,
        default=None,
        more=f"default: the checkpoint's own, else {'0' if name == 'temperature' else as_text(SAMPLED[name].default)}"
        if own
        else f"default: {as_text(SAMPLED[name].default)}",
    )


def _asked(name: str, panel: str, **more: Any) -> Any:
    return flag_field(ASK[name], panel, group="request", **more)


@dataclass(frozen=True)
class RequestFlags:
    """The flags that commands share: every field is one.

    `expand_flag_parameters` puts them into a command's signature.
    """

    model: str = _loaded("name")
    draft: str | None = _loaded("draft")
    ngrams: str | None = _loaded("ngrams")
    with_: list[str] | None = _loaded("trained", spelt="--with")
    method: str = _asked("method", MODEL, names=lambda: sorted(registry.recipe_modules()))
    set_: list[str] | None = _asked("options", MODEL, spelt="--set", more="k=v")
    dtype: str = _loaded("dtype")
    quantize: str | None = _loaded("quantize")
    compute: str | None = _loaded("compute")
    cache_dtype: str | None = _loaded("cache_dtype")
    device: str = _loaded("device")
    threads: int | None = _loaded("threads")
    workers: int = _loaded("workers")
    cache: str | None = _asked("cache", MODEL)
    cache_set: list[str] | None = _asked("cache_options", MODEL, spelt="--cache-set", more="k=v")
    reuse: str | None = _asked("reuse", MODEL)
    reuse_key: str = _asked("reuse_key", MODEL)
    reuse_again: int = _asked("reuse_again", MODEL)
    cache_salt: str = _asked("cache_salt", MODEL)
    raw: bool = _asked("raw", MODEL)
    sanitize_control_tokens: bool = _asked("sanitize_control_tokens", MODEL)
    source: str | None = _asked("source", MODEL, type=str | None)
    source_file: Annotated[
        Path | None, Option(help="read the source from this file", rich_help_panel=MODEL)
    ] = None
    image: Annotated[
        list[Path] | None,
        Option(
            help="an image that the model reads (PNG, JPEG, WebP, BMP, GIF), several in order: where the prompt has the "
            "model's image token, else before it; or the source of a reader",
            rich_help_panel=MODEL,
        ),
    ] = None
    units: str = _asked("units", MODEL)
    covers: int = _asked("covers", MODEL)
    max_tokens: int | None = _asked("max_tokens", SAMPLING)
    min_tokens: int | None = _sampled("min_tokens")
    temperature: float | None = _sampled("temperature")
    top_k: int | None = _sampled("top_k")
    top_p: float | None = _sampled("top_p")
    min_p: float | None = _sampled("min_p")
    repetition_penalty: float | None = _sampled("repetition_penalty")
    presence_penalty: float | None = _sampled("presence_penalty")
    frequency_penalty: float | None = _sampled("frequency_penalty")
    sample: Annotated[
        list[str] | None,
        Option(
            help="any other field of sampling, k=v (repeatable); see docs/sampling.md",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    order: str = _asked("order", SAMPLING)
    stop: list[str] | None = _asked("stop", SAMPLING)
    stop_token_id: list[int] | None = _asked("stop_token_ids", SAMPLING)
    include_stop: bool = _asked("include_stop", SAMPLING)
    infill: str | None = _asked("infill", SAMPLING, type=str | None)
    ignore_eos: bool = _asked("ignore_eos", SAMPLING)
    regex: Annotated[
        str | None,
        Option(help="the answer matches this regular expression", rich_help_panel=CONSTRAINT),
    ] = None
    json_schema: Annotated[
        str | None,
        Option(
            help="the answer is JSON that this schema allows: a file, or the schema itself",
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
    constraint_: Annotated[
        str | None,
        Option(
            "--constraint",
            help="another kind of constraint, NAME=VALUE: triplets=UNITS, or one that another package brings",
            rich_help_panel=CONSTRAINT,
        ),
    ] = None
    finish: bool = _asked("finish", CONSTRAINT)
    infill_repeat: int = _asked("infill_repeat", CONSTRAINT)
    reasoning_format: str = _asked("reasoning_format", OUTPUT)
    reasoning_budget: int | None = _asked("reasoning_budget", SAMPLING)
    reasoning_push: float = _asked("reasoning_push", SAMPLING)
    seed: int = _asked("seed", SAMPLING)
    n: int = _asked("n", SAMPLING)
    logprobs: int | None = _asked("logprobs", OUTPUT)
    prompt_logprobs: int | None = _asked("prompt_logprobs", OUTPUT)
    json_: Annotated[
        bool, Option("--json", help="one JSON object on standard output", rich_help_panel=OUTPUT)
    ] = False
    trace: Annotated[
        Path | None,
        Option(help="write every event to this file, a JSON object a line", rich_help_panel=OUTPUT),
    ] = None

    def __post_init__(self) -> None:
        """What no model could honour is refused before one is loaded."""
        check_flag_ranges(self)
        for text in self.stop or ():
            whole_text(text, "stop")
        # Read now: a file that cannot be read must not surface after minutes.
        _ = self.constraint

    def refuse_others(self, command: str, taken: Collection[str]) -> None:
        """Refuse flags that a command would do nothing with.

        Args:
            command: The command, as messages name it.
            taken: Fields that the command reads.

        Raises:
            RequestError: Another flag is given.
        """
        if (flag := self.first_foreign_flag(taken)) is not None:
            raise RequestError(
                f"--{flag} is given, and {command} does nothing with it: leave it out"
            )

    def first_foreign_flag(self, taken: Collection[str]) -> str | None:
        """The first flag that is given and is none of these fields, without its dashes; None: there
        is none.
        """
        # A flag counts as given where it differs from its default; an empty list is a repeatable
        # flag without a value.
        used = (
            field.name
            for field in dataclasses.fields(self)
            if field.name not in taken and getattr(self, field.name) not in (field.default, [])
        )
        return next((name.rstrip("_").replace("_", "-") for name in used), None)

    def check_names(self) -> None:
        """Check method, options and rules of sampling by name, before a model is loaded, which
        takes seconds.

        Raises:
            RequestError: No model could honour one of them.
        """
        # Names alone: whether the model can honour them is checked after loading.
        registry.check_names(self.method, self.option_values())
        if self.cache is not None:
            press.press_option_values(self.cache, split_flag_pairs("cache-set", self.cache_set))
        check_fields(self.bent)
        # Fields that exclude each other, and the rules of other packages.
        if self.bent:
            from polydec.laws.shapers.sampling import Sampling

            Sampling(**self.bent)

    def load(self) -> api.LoadedModel:
        """Load the model as the flags say."""
        settings = {
            declared.option.name: getattr(self, name)
            for name, declared in flags_of(RequestFlags, "loading").items()
        }
        # A model that is loaded stays until the command ends.
        with pause_garbage_collection():
            return api.load(**{**settings, "trained": tuple(self.with_ or ())})

    def option_values(self) -> dict[str, str]:
        """--set k=v, split."""
        return split_flag_pairs("set", self.set_)

    @cached_property
    def bent(self) -> dict[str, Any]:
        """The fields of sampling that are given.

        Raises:
            RequestError: One is given twice.
        """
        names = flags_of(RequestFlags, "sampling")
        bent = {k: value for k in names if (value := getattr(self, k)) is not None}
        more = split_flag_pairs("sample", self.sample)
        # Fields with a flag of their own may also be written as --sample k=v, but not both.
        if twice := next((k for k in more if k in bent), None):
            raise RequestError(
                f"{twice} is given twice: by --sample and by --{twice.replace('_', '-')}"
            )
        return {**bent, **more}

    def sampling_rules(self, lm: api.LoadedModel) -> Sampling:
        """The sampling rules for a model, with its own defaults where no flag is given."""
        # Rules of sampling act on the units of the request, tokens or bytes.
        return lm.in_units(self.units, self.covers).sampling_with(**self.bent)

    @cached_property
    def constraint(self) -> OutputConstraint | None:
        """What the answer may be; None: anything. Files are read once, as a pipe holds its text
        once.

        Raises:
            RequestError: A file cannot be read, or several constraints are given.
        """
        files = {"grammar": self.grammar, "span_of": self.span_of}
        texts = {
            name: None if path is None else prompts.read_text(path) for name, path in files.items()
        }
        texts["json_schema"] = (
            None if self.json_schema is None else read_json_schema(self.json_schema)
        )
        other = split_flag_pairs(
            "constraint", [self.constraint_] if self.constraint_ is not None else []
        )
        values = {"regex": self.regex, "choice": self.choice or None, **texts}
        # --constraint is for kinds without a flag of their own.
        if clash := next((name for name in other if name in values), None):
            raise RequestError(
                f"--constraint names {clash}, which has a flag of its own: --{clash.replace('_', '-')}"
            )
        values |= other
        if all(value is None for value in values.values()):
            return None
        from polydec.laws.constraints.constraint_kinds import constraint_of

        return constraint_of(values)

    @cached_property
    def written_from(self) -> str | Image | tuple[Image, ...] | None:
        """What an encoder-decoder model writes from; None: the prompt alone.

        Raises:
            RequestError: It is given twice, or is not text.
        """
        flags = {
            "source": self.source,
            "--source-file": self.source_file,
            "--image": self.image or None,
        }
        given = [name for name, value in flags.items() if value is not None]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given[:2])} are both given: give one of them")
        if self.image:
            # One by itself: a reader reads no sequence.
            images = tuple(Image(path) for path in self.image)
            return images[0] if len(images) == 1 else images
        if self.source_file is not None:
            return prompts.read_text(self.source_file)
        if self.source is not None:
            return whole_text(self.source, "source")
        return None

    def request_fields(self, lm: api.LoadedModel) -> dict[str, Any]:
        """Keyword arguments of Engine.submit."""
        # Fields that flags give as they are; the others need the model, a file or a split.
        values = {
            declared.option.name: tuple(value or ()) if declared.option.kind is tuple else value
            for name, declared in flags_of(RequestFlags, "request").items()
            for value in (getattr(self, name),)
        }
        # These are made of several flags each.
        beside = {
            "sampling": self.sampling_rules(lm),
            "constraint": self.constraint,
            "source": self.written_from,
        }
        named = {
            "options": self.option_values(),
            "cache_options": split_flag_pairs("cache-set", self.cache_set),
        }
        return {**values, **beside, **named}


@dataclass(frozen=True)
class SteeringFlags:
    """Flags that bend the model's law."""

    steer: str | None = flag_field(
        ASK["steer"], STEERING, names=lambda: sorted(steer.steering_modules())
    )
    steer_set: list[str] | None = flag_field(
        ASK["steer_options"], STEERING, spelt="--steer-set", more="k=v"
    )
    negative_prompt: str | None = flag_field(
        ASK["negative_prompt"],
        STEERING,
        spelt=("--negative-prompt", "--no-context-prompt"),
        type=str | None,
    )

    def steering_fields(self) -> dict[str, Any]:
        """The fields of a request that steer it.

        Raises:
            RequestError: The way to steer, or an option of it, is unknown.
        """
        second = self.negative_prompt
        if second is not None:
            whole_text(second, "negative_prompt")
        options = split_flag_pairs("steer-set", self.steer_set)
        # Raises for an unknown way or option, before a model is loaded.
        if self.steer is not None:
            steer.steering_option_values(self.steer, options)
        return {"steer": self.steer, "steer_options": options, "negative_prompt": second}


def read_json_schema(given: str) -> str:
    """Read what --json-schema is given: the schema itself, which begins with a brace, or the name
    of its file.

    Raises:
        RequestError: The file cannot be read.
    """
    # Whoever has a file of such a name writes ./ before it.
    return given if given.lstrip().startswith("{") else prompts.read_text(Path(given))


def split_flag_pairs(flag: str, items: list[str] | None) -> dict[str, str]:
    """Split the values k=v of a flag that may stand several times.

    Args:
        flag: Name of the flag, without dashes.
        items: Its values; None: never given.

    Returns:
        Values by name.

    Raises:
        RequestError: A value has no "=".
    """
    return split_pairs(f"--{flag}", items)


def split_pairs(spelt: str, items: list[str] | None) -> dict[str, str]:
    """Split values of the form k=v.

    Args:
        spelt: What they follow on the line, for messages, such as "--set".
        items: The values; None: there are none.

    Returns:
        Values by name, without spaces at their ends.

    Raises:
        RequestError: A value has no "=".
    """
    out: dict[str, str] = {}
    for item in items or ():
        # The first "=" parts name and value: a value may hold others.
        key, eq, value = item.partition("=")
        if not eq:
            raise RequestError(f"{spelt} {item!r} has no '=': write {spelt} name=value")
        out[key.strip()] = value.strip()
    return out


LOADED, BENT = (
    frozenset(flags_of(RequestFlags, "loading")),
    frozenset((*flags_of(RequestFlags, "sampling"), "sample")),
)
"""Flags that say what is loaded, and how; those that `sampling` reads."""
