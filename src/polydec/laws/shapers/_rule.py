"""What a file of this folder says of itself: the fields of a request that its rule reads, and its place in each order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from polydec.base.errors import RequestError
from polydec.base.options import Option, callable_options
from polydec.core.protocols import Shaper
from polydec.core.types import TokenCodec
from polydec.laws.constraints.protocols import TokenLanguage

if TYPE_CHECKING:
    from polydec.models.sessions.geometry import EmbeddingGeometry

ENGINES = ("transformers", "vllm", "llamacpp")
"""The engines whose orders are known."""


@dataclass(frozen=True)
class SamplingRuleContext:
    """What a rule is told beside its own fields. eos: ids that end a text; ends: these and the request's stop ids, in
    ascending order; seed and choice: name the randomness of rules that draw; words, geometry: of the target, None where it
    has none or nobody gave them; language: the texts that are allowed, None: all."""

    eos: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    seed: int = 0
    choice: int = 0
    words: TokenCodec | None = None
    geometry: EmbeddingGeometry | None = None
    language: TokenLanguage[Any] | None = None


def accept_any_target(shaper: Any, setting: SamplingRuleContext) -> None:
    """Of a rule that can do with any target."""


@dataclass(frozen=True)
class SamplingRule:
    """A rule of sampling. A file that has one, as `RULE`, is found: no list names it.

    name: as orders that are written out call it.
    make: (setting, *, field: Annotated[type, range, "help"] = neutral, ...) -> shaper, or None where the rule is off. Its
    keyword parameters are the request's fields.
    place: for each engine a number; rules with lower ones come first. A rule that an engine lacks stands behind its kind.
    always: it acts on a greedy text too (penalties, bias and masks do; what only cuts unlikely tokens off does not).
    token_ids: those of its fields that hold ids of tokens; counts: those that count tokens. Neither means anything to
    another tokenizer.
    check: (shaper, setting): raises RequestError where the target has not what the rule needs.

    Raises RequestError where an engine has no place for it.
    """

    name: str
    make: Callable[..., Shaper[Any] | None]
    place: Mapping[str, int]
    always: bool = False
    token_ids: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    check: Callable[[Any, SamplingRuleContext], None] = accept_any_target

    def __post_init__(self) -> None:
        if set(self.place) != set(ENGINES):
            raise RequestError(
                f"place of rule {self.name} is for {', '.join(self.place)}: it must be for {', '.join(ENGINES)}"
            )

    @cached_property
    def fields(self) -> tuple[Option, ...]:
        """The request's fields that this rule reads."""
        return callable_options(self.make)
