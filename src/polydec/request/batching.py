"""How the answers that are written at the same time share passes: as the engine has it, or as
EqSpec and ExSpec do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from polydec.base.errors import RequestError

# A command line is checked before anything computes, so what loads torch is imported late.
if TYPE_CHECKING:
    from polydec.core.effects import ForwardQuery
    from polydec.models.sessions.checkpoint import ModelBundle
    from polydec.request.loaded import LoadedModel


class BatchingMode(Protocol):
    """What an engine is told of it. Frozen; no text depends on it but by rounding."""

    @property
    def name(self) -> str: ...

    def batched_model(self, plain: LoadedModel) -> LoadedModel:
        """The model whose passes are laid out so. Raises RequestError where what runs it cannot."""
        ...

    def choose_queries(self, waiting: Sequence[ForwardQuery]) -> Sequence[int]:
        """The indices of the queries that share the next pass of a model, in ascending order, at
        least one."""
        ...


@dataclass(frozen=True)
class RaggedBatching:
    """Every answer's keys and values lie where they are, each row of a pass sees its own; all that
    wait share it."""

    name: str = "ragged"

    def batched_model(self, plain: LoadedModel) -> LoadedModel:
        return plain

    def choose_queries(self, waiting: Sequence[ForwardQuery]) -> Sequence[int]:
        return range(len(waiting))


@dataclass(frozen=True)
class EqSpec:
    """A pass takes up to `rows` answers, 1 to 4096, first come first served, as one padded tensor:
    all old keys and values are laid out anew before it. Prompts have passes of their own. An answer
    that has ended leaves its place to the next one.

    Source: Batch Speculative Decoding Done Right (Zhang et al., 2025), EqSpec.
    """

    rows: int = 8
    name: str = "eqspec"

    def __post_init__(self) -> None:
        _check_rows(self.rows)

    def batched_model(self, plain: LoadedModel) -> LoadedModel:
        return padded_model(plain, self.name)

    def choose_queries(self, waiting: Sequence[ForwardQuery]) -> Sequence[int]:
        return sorted(_phase(waiting)[: self.rows])


@dataclass(frozen=True)
class ExSpec:
    """The same, but a pass takes answers of one length wherever `rows` of those that are being
    written have it, or all of them: then nothing is aligned. Where there are too few, it takes the
    `rows` shortest and aligns them as EqSpec does. The engine's `max_running` is the window of
    answers that it chooses from (published: three times `rows`).

    Source: Batch Speculative Decoding Done Right (Zhang et al., 2025), ExSpec.
    """

    rows: int = 8
    name: str = "exspec"

    def __post_init__(self) -> None:
        _check_rows(self.rows)

    def batched_model(self, plain: LoadedModel) -> LoadedModel:
        return padded_model(plain, self.name)

    def choose_queries(self, waiting: Sequence[ForwardQuery]) -> Sequence[int]:
        phase = _phase(waiting)
        groups = dict[int, list[int]]()
        for i in phase:
            groups.setdefault(waiting[i].behind, []).append(i)
        most = max(groups.values(), key=len)
        if len(most) < min(self.rows, len(phase)):
            most = sorted(phase, key=lambda i: waiting[i].behind)
        return sorted(most[: self.rows])


BATCHINGS: Mapping[str, Callable[[int], BatchingMode]] = MappingProxyType(
    {"ragged": lambda rows: RaggedBatching(), "eqspec": EqSpec, "exspec": ExSpec}
)
"""By the name that a user gives, each made for so many rows of a pass."""


def batching_by_name(name: str, rows: int) -> BatchingMode:
    """The batching that a user names.

    Args:
        name: "ragged", "eqspec" or "exspec".
        rows: Answers of a pass, which "ragged" does not bound.

    Returns:
        The batching.

    Raises:
        RequestError: There is none of that name, or the rows are out of range.
    """
    if name not in BATCHINGS:
        near = get_close_matches(name, BATCHINGS, 1, 0.0)
        raise RequestError(
            f"batching is {name!r}: it must be one of {', '.join(BATCHINGS)}; nearest is {near[0]}"
        )
    return BATCHINGS[name](rows)


def padded_model(plain: LoadedModel, name: str) -> LoadedModel:
    """A model and its draft over passes that are one padded tensor.

    Args:
        plain: The model as it was loaded.
        name: Of the batching, for messages.

    Returns:
        The model with the same files and the same costs.

    Raises:
        RequestError: The compiled step or another engine runs it, which keeps every row at its own
            end.
    """
    from polydec.models.sessions.checkpoint import DeferredBundle, resolve_deferred_bundle

    draft = plain.draft
    small = (
        None
        if draft is None
        else DeferredBundle(draft.name, lambda: _laid_out(resolve_deferred_bundle(draft), name))
    )
    made = replace(plain, checkpoint=_laid_out(plain.checkpoint, name), draft=small)
    # Costs are measured once, for both.
    if "costs" in vars(plain):
        vars(made)["costs"] = plain.costs
    return made


def _laid_out(point: ModelBundle, name: str) -> ModelBundle:
    from polydec.models.nets.transformer import LlamaTransformer
    from polydec.models.sessions.lm import CausalLaw as Law

    law = point.lm
    if type(law) is not Law or not isinstance(law.network, LlamaTransformer):
        raise RequestError(
            f"batching is {name!r}: what runs {point.name} ({point.kernel}) keeps every row at its own end; "
            "load it on the torch path (--dtype torch)"
        )
    network = law.network.padded_model()
    twin = Law(network, law.vocab, chunk=law.chunk, keep=law.keep)
    return replace(point, lm=twin)


def _phase(waiting: Sequence[ForwardQuery]) -> list[int]:
    """Prompts where there are some, else all that wait: the two share no pass."""
    prompts = [i for i, f in enumerate(waiting) if f.split is not None]
    return prompts or list(range(len(waiting)))


def _check_rows(rows: int) -> None:
    if not 1 <= rows <= 4096:
        raise RequestError(f"rows is {rows}: it must lie in 1 to 4096")
