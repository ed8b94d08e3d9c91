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

LogitsFunction = Callable[[tuple[int, ...], Any], Any]
"""Takes the token ids of prompt and answer so far, and the logits of the next token (a tensor of shape ``[V]``,
which it may write to); returns the logits that take their place."""

ENGINES = ("transformers", "vllm", "llamacpp")
"""The engines whose orders are known."""


@dataclass(frozen=True)
class SamplingRuleContext:
    """What a rule may know besides its own fields.

    Attributes:
        eos: Token ids that end a text.
        ends: These and the request's stop ids, ascending.
        seed: Names the randomness of rules that draw.
        choice: Names it together with the seed.
        words: The tokenizer of the target; None where there is none or it is not known.
        geometry: The embeddings of the target; None where there are none or they are not known.
        language: The texts that are allowed; None: all.
        processor: Applies the request's own function to rows; None: there is none.
    """

    eos: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    seed: int = 0
    choice: int = 0
    words: TokenCodec | None = None
    geometry: EmbeddingGeometry | None = None
    language: TokenLanguage[Any] | None = None
    processor: Shaper[Any] | None = None


def accept_any_target(shaper: Any, setting: SamplingRuleContext) -> None:
    """Accept the target: the check of a rule that needs nothing of it.

    Args:
        shaper: The rule; not read.
        setting: What is known of the target; not read.
    """


@dataclass(frozen=True)
class SamplingRule:
    """A rule of sampling. A file that has one, as `RULE`, is found: no list names it.

    Raises RequestError where an engine has no place for it.

    Attributes:
        name: What orders that are written out call it.
        make: ``(setting, *, field: Annotated[type, range, "help"] = neutral, ...) -> shaper``, or
            None where the rule is off. Its keyword parameters are the fields of the request.
        place: A number for each engine; rules with lower ones come first. A rule that an engine
            does not have stands after the rules of its kind.
        always: Whether it acts on a greedy text too. Penalties, bias and masks do; what only cuts
            off unlikely tokens does not.
        token_ids: Those of its fields that hold token ids.
        counts: Those of its fields that count tokens. Like ids, they mean nothing to another
            tokenizer.
        check: ``(shaper, setting)``: raises RequestError where the target does not have what the
            rule needs.
    """

    name: str
    make: Callable[..., Shaper[Any] | None]
    place: Mapping[str, int]
    always: bool = False
    token_ids: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    check: Callable[[Any, SamplingRuleContext], None] = accept_any_target

    def __post_init__(self) -> None:
        # A rule without a place could stand anywhere in that engine's order.
        if set(self.place) != set(ENGINES):
            raise RequestError(
                f"place of rule {self.name} is for {', '.join(self.place)}: it must be for {', '.join(ENGINES)}"
            )

    @cached_property
    def fields(self) -> tuple[Option, ...]:
        """The request's fields that this rule reads."""
        return callable_options(self.make)
