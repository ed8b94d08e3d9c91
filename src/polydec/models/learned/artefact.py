"""What polydec trains and keeps beside models: tensors in a .safetensors file, and a config.json that says what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from polydec.base.errors import FileError, PolydecError
from polydec.base.files import replace_file_atomically
from polydec.core.protocols import Session, Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge, fields
from polydec.models.formats.tensor_files import SafeTensors

if TYPE_CHECKING:
    from polydec.models.learned.artefact_fields import StateDrafterFields

CONFIG = "config.json"


@dataclass(frozen=True)
class ArtefactKind:
    """A kind of artefact.

    Attributes:
        name: What config.json and the file of tensors call it under "polydec". Files without that
            key are older, and are read too.
        field: What it is to whoever gave it, as a refusal begins ("ngrams is …").
        weights: The file of tensors.
        maker: What follows `polydec train` in the command that writes it.
    """

    name: str
    field: str
    weights: str
    maker: str

    @property
    def training_command(self) -> str:
        """The command that writes it, as it is typed."""
        return f"polydec train {self.maker}"


def save_artefact(
    path: str | Path, kind: ArtefactKind, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Write the tensors and config.json into a directory; each file appears complete or not at all.

    Both files say of which kind they are.

    Args:
        path: Directory to write into; it is made where there is none.
        kind: Kind of artefact; it names the file of tensors.
        tensors: The tensors by name, on any device; copies are written.
        about: What config.json says besides the kind, as JSON values by name.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    path = Path(path)
    # Safetensors refuses tensors that share memory or are not contiguous.
    whole = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    # Tensors first: where a config stands, its tensors do.
    replace_file_atomically(
        path / kind.weights, lambda at: save_file(whole, at, {"polydec": kind.name})
    )
    text = json.dumps({"polydec": kind.name, **about}, indent=1) + "\n"
    replace_file_atomically(path / CONFIG, lambda at: Path(at).write_text(text, encoding="utf-8"))


def read_artefact_files(
    path: str | Path, kind: ArtefactKind
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Open the two files of an artefact.

    Args:
        path: Directory that holds both.
        kind: Kind that the files must be of. Files that name no kind are older, and pass.

    Returns:
        The object in config.json, and the tensors by name, each read from the file when it is asked
        for.

    Raises:
        FileError: A file is missing, damaged or of another kind; one sentence that names it.
    """
    path = Path(path)
    if not (path / kind.weights).is_file() or not (path / CONFIG).is_file():
        raise FileError(
            edge.error_sentence(
                f"{kind.field} is {str(path)!r}: no {kind.weights} beside a {CONFIG} there "
                f"(`{kind.training_command}` makes them)"
            )
        )
    # From here on the directory is an artefact, so every failure is one of its content.
    with report_artefact_damage(path, kind):
        config = edge.read_json(path / CONFIG)
        if config.get("polydec", kind.name) != kind.name:
            raise FileError(
                f"{CONFIG} says that this is of the kind {config['polydec']!r:.80}, not {kind.name!r}"
            )
        # Only the header is read here; tensors follow one by one, once their shapes are known to
        # fit.
        with edge.report_read_errors(f"{kind.weights} is truncated or damaged"):
            tensors = SafeTensors([path / kind.weights])
            stated = tensors.metadata.get("polydec", kind.name)
        if stated != kind.name:
            raise FileError(
                f"{kind.weights} says that it is of the kind {stated!r:.80}, not {kind.name!r}"
            )
        return config, tensors


def report_artefact_damage(path: str | Path, kind: ArtefactKind) -> Any:
    """Around what looks into an artefact: any failure becomes a sentence about it.

    Args:
        path: Directory of the artefact, as the sentence names it.
        kind: Kind of artefact; its field begins the sentence.

    Returns:
        A context manager, which raises FileError for what goes wrong inside.
    """
    return edge.report_read_errors(f"{kind.field} is {str(path)!r}: it is damaged")


def width_of_states(target: Target) -> int:
    """Of the states that a law shows. Raises PolydecError where it shows none."""
    # A session needs a token to begin with; any one does, since nothing is scored.
    session = target.open_session((0,))
    try:
        return session.embed_tokens((0,)).shape[-1]
    finally:
        session.close()


def require_width(target: Target, width: int, who: str, whose: str = "target") -> None:
    """Check that a model's states have the width that something was trained for.

    Args:
        target: The model whose states are to be read.
        width: Width that the weights were trained for, in numbers a state.
        who: What was trained, in the plural, as the sentence begins.
        whose: What the sentence calls the model. Default "target".

    Raises:
        FileError: The widths differ.
        PolydecError: The model has no table of embeddings, by which its width is found.
    """
    have = width_of_states(target)
    if have != width:
        raise FileError(
            f"{who} were trained for states of width {width}: this {whose}'s have {have}"
        )


def require_masked_model(target: Target, vocab: TokenVocabulary, width: int, who: str) -> None:
    """Check that an artefact that reads states of a masked-diffusion model fits a target.

    Args:
        target: The model that it is to serve.
        vocab: The vocabulary that it was trained for.
        width: Width of the states that it was trained for.
        who: The artefact, as a sentence begins.

    Raises:
        RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        FileError: The target is of another family, or its states have another width.
    """
    # Laws of other packages may not say their family; those are taken for autoregressive ones.
    if getattr(target, "family", "ar") != "diffusion":
        raise FileError(
            f"{who} was trained for a masked-diffusion model: this is an autoregressive one"
        )
    model: Any = target
    target.vocab.require_same(vocab, f"the target of the {who.removeprefix('a ')}")
    # A masked model gives embeddings without a session.
    have = model.embed_canvas((0,)).shape[-1]
    if have != width:
        raise FileError(f"{who} was trained for states of width {width}: this target's have {have}")


def _divides_by_root_mean_square(session: Session, width: int) -> bool:
    """Whether the final norm divides a state by its root mean square and scales each number, as one that subtracts a mean
    (LayerNorm) or adds a bias does not."""
    # Of ones nothing is left but the norm's weights; another norm gives something else here or for the other state.
    other_H = torch.linspace(-1.0, 2.0, width)
    other_H /= other_H.square().mean().sqrt()
    weight_H, got_H = (
        session.normed_states(torch.stack([torch.ones(width), other_H])).double().cpu()
    )
    away = (got_H - weight_H * other_H).norm()
    # Rounding to bfloat16 is far below that.
    return bool(away <= 0.02 * got_H.norm())


def is_patch_canvas(target: Target) -> bool:
    """Whether a model fills a canvas with patches of a picture, in any order."""
    # Laws of other packages may not say their family; those continue texts.
    return getattr(target, "family", "ar") == "patches"


def require_laws(
    target: Target, width: int, who: str, *, head: bool = True, normed: bool = False
) -> None:
    """Check the width, and that the target's head runs on states that it did not make.

    Laws of states behind the norm (head and normed) are made by undoing it, which takes a norm that
    divides by the root mean square.

    Args:
        target: The model whose states are to be read.
        width: Width H that the weights were trained for, in numbers a state.
        who: What was trained, in the plural, as the sentence begins.
        head: Whether norm and head must make laws of guessed states. Default True.
        normed: Whether the final norm must run alone on such states. Default False.

    Raises:
        FileError: The widths differ, the target's layers do not run alone, or its final norm is
            of another kind than one that has to be undone.
    """
    require_width(target, width, who)
    # A session needs a token to begin with; any one does.
    session = target.open_session((0,))
    # No rows: what the target cannot do is refused before it computes anything.
    none_0H = torch.zeros(0, width)
    try:
        if head:
            session.score_states(none_0H)
        if normed:
            session.normed_states(none_0H)
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


def vocab_of(c: StateDrafterFields) -> TokenVocabulary:
    return TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)


def read_artefact_tensor(
    tensors: Mapping[str, Tensor], kind: ArtefactKind, name: str, shape: tuple[int, ...]
) -> Tensor:
    """Read one tensor, after its shape was compared in the file.

    Args:
        tensors: The tensors of the file, by name.
        kind: Kind of artefact, for the sentence of an error.
        name: Name of the tensor.
        shape: Shape that it must have.

    Returns:
        The tensor as it is stored, in its own dtype; all its numbers are finite.

    Raises:
        FileError: It is missing, has another shape, or holds a NaN or an infinite number.
    """
    if name not in tensors:
        raise FileError(f"{kind.weights} lacks {name!r}, which {CONFIG} speaks of")
    # The shape stands in the header, so a wrong file of many gigabytes is never loaded.
    if (stored := fields.shape_of(tensors, name)) != shape:
        raise FileError(f"{kind.weights} has {name} of shape {stored}: {CONFIG} asks for {shape}")
    t = tensors[name]
    if t.is_floating_point() and not bool(t.isfinite().all()):
        raise FileError(f"{kind.weights} has a NaN or an infinite number in {name}")
    return t


def read_float_tensor(
    tensors: Mapping[str, Tensor], kind: ArtefactKind, name: str, *shape: int
) -> Tensor:
    """Read one tensor in fp32.

    Args:
        tensors: As for `read_artefact_tensor`.
        kind: As for `read_artefact_tensor`.
        name: As for `read_artefact_tensor`.
        shape: As for `read_artefact_tensor`, a side each.

    Returns:
        The tensor; all its numbers are finite.

    Raises:
        FileError: As for `read_artefact_tensor`.
    """
    return read_artefact_tensor(tensors, kind, name, shape).float()


def read_float_tensors(
    tensors: Mapping[str, Tensor],
    kind: ArtefactKind,
    shapes: Mapping[str, tuple[int, ...]],
    prefix: str = "",
) -> dict[str, Tensor]:
    """Read tensors in fp32.

    Args:
        tensors: As for `read_artefact_tensor`.
        kind: As for `read_artefact_tensor`.
        shapes: Of each tensor its shape, by its name.
        prefix: What their names begin with in the file. Default "".

    Returns:
        The tensors by their names in `shapes`.

    Raises:
        FileError: As for `read_artefact_tensor`.
    """
    return {
        name: read_float_tensor(tensors, kind, prefix + name, *shape)
        for name, shape in shapes.items()
    }


def read_float_layer(
    tensors: Mapping[str, Tensor], kind: ArtefactKind, name: str, *shape: int
) -> tuple[Tensor, Tensor]:
    """Read a layer in fp32.

    Args:
        tensors: As for `read_artefact_tensor`.
        kind: As for `read_artefact_tensor`.
        name: What the names of its tensors begin with, without the dot.
        shape: Sides of its weight, the numbers that it gives first.

    Returns:
        Its weight, and its bias, of as many numbers as it gives.

    Raises:
        FileError: As for `read_artefact_tensor`.
    """
    weight = read_float_tensor(tensors, kind, f"{name}.weight", *shape)
    return weight, read_float_tensor(tensors, kind, f"{name}.bias", shape[0])


def token_ids(
    tensors: Mapping[str, Tensor], kind: ArtefactKind, name: str, count: int, vocab: int
) -> Tensor:
    """Read a list of token ids.

    Args:
        tensors: The tensors of the file, by name.
        kind: Kind of artefact, for the sentence of an error.
        name: Name of the tensor.
        count: Number C of ids, 1 or more.
        vocab: Tokens of the vocabulary; each id lies in 0 to vocab - 1.

    Returns:
        The ids as 64-bit integers, ascending, shape ``[C]``.

    Raises:
        FileError: The tensor is missing or of another length, or its ids do not ascend within the
            vocabulary.
    """
    token_C = read_artefact_tensor(tensors, kind, name, (count,)).long()
    # One order alone is legal, so that two files of one head are the same.
    ids = token_C.tolist()
    if ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= vocab:
        raise FileError(f"{name} must ascend and lie in 0 to {vocab - 1}")
    return token_C
