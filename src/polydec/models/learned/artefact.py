"""What polydec trains and keeps beside models: tensors in a .safetensors file, and a config.json that says what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from polydec.base.errors import FileError, PolydecError
from polydec.base.files import replace_file_atomically
from polydec.core.protocols import Session, Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge, fields
from polydec.models.formats.tensor_files import SafeTensors

CONFIG = "config.json"


@dataclass(frozen=True)
class ArtefactKind:
    """A kind of artefact. name: what config.json and the file of tensors call it under "polydec" (files without that key are
    older, and are read too); field: what a user gave it as ("ngrams is …"); weights: the file of tensors; maker: the command
    that writes it."""

    name: str
    field: str
    weights: str
    maker: str


def save_artefact(
    path: str | Path, kind: ArtefactKind, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Write both files into the directory `path`; about: what the config says. Each file appears whole or not at all, and both
    say of which kind they are."""
    path = Path(path)
    whole = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    replace_file_atomically(
        path / kind.weights, lambda at: save_file(whole, at, {"polydec": kind.name})
    )
    text = json.dumps({"polydec": kind.name, **about}, indent=1) + "\n"
    replace_file_atomically(path / CONFIG, lambda at: Path(at).write_text(text, encoding="utf-8"))


def read_artefact_files(
    path: str | Path, kind: ArtefactKind
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """(config, tensors) of a directory, each tensor read when it is asked for. Raises FileError, one sentence that names the
    file and what is damaged."""
    path = Path(path)
    if not (path / kind.weights).is_file() or not (path / CONFIG).is_file():
        raise FileError(
            edge.error_sentence(
                f"{kind.field} is {str(path)!r}: no {kind.weights} beside a {CONFIG} there "
                f"(`polydec train {kind.maker}` makes them)"
            )
        )
    with report_artefact_damage(path, kind):
        config = edge.read_json(path / CONFIG)
        if config.get("polydec", kind.name) != kind.name:
            raise FileError(
                f"{CONFIG} says that this is of the kind {config['polydec']!r:.80}, not {kind.name!r}"
            )
        with edge.report_read_errors(f"{kind.weights} is truncated or damaged"):
            tensors = SafeTensors([path / kind.weights])
            stated = tensors.metadata.get("polydec", kind.name)
        if stated != kind.name:
            raise FileError(
                f"{kind.weights} says that it is of the kind {stated!r:.80}, not {kind.name!r}"
            )
        return config, tensors


def report_artefact_damage(path: str | Path, kind: ArtefactKind) -> Any:
    """Around what looks into an artefact: whatever goes wrong is said of it."""
    return edge.report_read_errors(f"{kind.field} is {str(path)!r}: it is damaged")


def width_of_states(target: Target) -> int:
    """Of the states that a law shows. Raises PolydecError where it shows none."""
    session = target.open((0,))
    try:
        return session.embed((0,)).shape[-1]
    finally:
        session.close()


def require_width(target: Target, width: int, who: str, whose: str = "target") -> None:
    """Raise FileError where what was trained for states of this width cannot read the target's (or whose else they are)."""
    have = width_of_states(target)
    if have != width:
        raise FileError(
            f"{who} were trained for states of width {width}: this {whose}'s have {have}"
        )


def _divides_by_root_mean_square(session: Session, width: int) -> bool:
    """Whether the final norm divides a state by its root mean square and scales each number, as one that subtracts a mean
    (LayerNorm) or adds a bias does not."""
    # Of ones nothing is left but the norm's weights; another norm gives something else here or for the other state.
    other_H = torch.linspace(-1.0, 2.0, width)
    other_H /= other_H.square().mean().sqrt()
    weight_H, got_H = session.normed(torch.stack([torch.ones(width), other_H])).double().cpu()
    away = (got_H - weight_H * other_H).norm()
    # Rounding to bfloat16 is far below that.
    return bool(away <= 0.02 * got_H.norm())


def require_laws(
    target: Target, width: int, who: str, *, head: bool = True, normed: bool = False
) -> None:
    """The same, and where the target cannot make laws of states that were guessed (head), or divide them as its final norm
    does (normed): its layers do not run alone. Laws of states behind the norm (both) are made by undoing it, which takes one
    that divides by the root mean square."""
    require_width(target, width, who)
    session = target.open((0,))
    none_0H = torch.zeros(0, width)
    try:
        if head:
            session.states(none_0H)
        if normed:
            session.normed(none_0H)
            if head and not _divides_by_root_mean_square(session, width):
                raise FileError(
                    "its final norm must divide by the root mean square and nothing else"
                )
    except PolydecError as error:
        raise FileError(
            f"{who} need a target whose head and norm read states that it did not make: {error}"
        ) from None
    finally:
        session.close()


class StateDrafterModel(Protocol):
    """What drafts from a target's states."""

    @property
    def vocab(self) -> TokenVocabulary: ...
    @property
    def rates(self) -> Sequence[Sequence[float]]: ...
    @property
    def share(self) -> float: ...


def said_of(drafter: StateDrafterModel) -> dict[str, Any]:
    """What the config says of whatever drafts from a target's states."""
    return {
        "vocab_size": drafter.vocab.size,
        "tokenizer": drafter.vocab.tokenizer,
        "rates": [list(r) for r in drafter.rates],
        "share": drafter.share,
    }


def vocab_of(c: fields.StateDrafterFields) -> TokenVocabulary:
    return TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)


def read_artefact_tensor(
    tensors: Mapping[str, Tensor], kind: ArtefactKind, name: str, shape: tuple[int, ...]
) -> Tensor:
    """One tensor of this shape, all its numbers finite; nothing of another shape is read. Raises FileError where there is
    none."""
    if name not in tensors:
        raise FileError(f"{kind.weights} lacks {name!r}, which {CONFIG} speaks of")
    if (stored := fields.shape_of(tensors, name)) != shape:
        raise FileError(f"{kind.weights} has {name} of shape {stored}: {CONFIG} asks for {shape}")
    t = tensors[name]
    if t.is_floating_point() and not bool(t.isfinite().all()):
        raise FileError(f"{kind.weights} has a NaN or an infinite number in {name}")
    return t


def token_ids(
    tensors: Mapping[str, Tensor], kind: ArtefactKind, name: str, count: int, vocab: int
) -> Tensor:
    """So many ids of a vocabulary of this size, ascending. Raises FileError where they are none."""
    token_C = read_artefact_tensor(tensors, kind, name, (count,)).long()
    ids = token_C.tolist()
    if ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= vocab:
        raise FileError(f"{name} must ascend and lie in 0 to {vocab - 1}")
    return token_C
