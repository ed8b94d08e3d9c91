"""The network and the tokenizer that `polydec train lm` begins with, and how they are read and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer

from polydec.base import edge, files
from polydec.base.errors import RequestError
from polydec.lab.train import network as net
from polydec.lab.train.exits import copy_with_layers, copy_with_search, copy_with_vocab
from polydec.lab.train.lora import add_lora_adapters, save_lora_adapters
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.lm import PRESETS, LMSpec
from polydec.lab.train.target import family_of_config, require_family
from polydec.lab.train.tokens import train_tokenizer, with_marks
from polydec.methods.registry.family import AUTOREGRESSIVE
from polydec.models.formats import rows8
from polydec.models.sessions import sources


def lm_schedule(spec: LMSpec) -> TrainingSchedule:
    """How the run is driven: the preset's schedule, but for what the options say."""
    schedule = spec.schedule or PRESETS[spec.preset].schedule
    if spec.steps is not None:
        schedule = replace(schedule, steps=spec.steps)
    # Thin matrices are AdamW's: Muon makes all of their directions equally long.
    if spec.lora:
        schedule = replace(schedule, muon=0.0)
    return schedule


def begin_student(
    spec: LMSpec, out: Path, texts: Sequence[str], marks: Sequence[str]
) -> tuple[TrainableLlama, Tokenizer]:
    """The network to train, and its tokenizer.

    Args:
        spec: Options; shape, layers and start are read.
        out: Directory of the run.
        texts: Texts that a new tokenizer is trained on.
        marks: Special tokens of the objective, for which a network that was trained without them
            gets rows.

    Returns:
        The network, new or a copy of the one to begin with, and the tokenizer.

    Raises:
        RequestError: The network has fewer rows than the tokenizer has tokens.
    """
    first = None
    if spec.start is not None:
        first = load_directory(spec.start)
    # Options come before the preset; a network to begin with brings its own shape.
    shape = spec.shape or (PRESETS[spec.preset].shape if first is None else first.s)
    if spec.layers is not None:
        shape = replace(shape, layers=spec.layers)
    if spec.search_rule is not None:
        shape = replace(shape, superlinear=spec.search_rule)
        if first is not None:
            first = copy_with_search(first, spec.search_rule)
    tokenizer = find_tokenizer(spec, out, texts, shape.vocab, marks)
    if spec.lora:
        require_known_marks(spec, out, marks)
    # Marks of an objective are new tokens to a network that was trained without them.
    if first is not None and marks and tokenizer.get_vocab_size() > shape.vocab:
        shape = replace(shape, vocab=tokenizer.get_vocab_size())
        first = copy_with_vocab(first, shape.vocab)
    if tokenizer.get_vocab_size() > shape.vocab:
        raise RequestError(
            f"tokenizer has {tokenizer.get_vocab_size()} tokens: the network has rows for {shape.vocab}"
        )
    # With more layers than `start` has, new ones begin as identities.
    if first is None:
        return TrainableLlama(shape, seed=spec.seed), tokenizer
    student = copy_with_layers(first, shape.layers, spec.seed)
    if spec.lora:
        add_lora_adapters(student, spec.lora, spec.seed)
    return student, tokenizer


def require_known_marks(spec: LMSpec, out: Path, marks: Sequence[str]) -> None:
    """Raise RequestError where a checkpoint lacks a mark, which an adapter of it cannot add.

    Args:
        spec: Options; start is read.
        out: Directory of the run.
        marks: Special tokens of the objective.
    """
    # No marks are asked for here: the tokenizer stays as it was saved.
    known = find_tokenizer(spec, out, (), 0)
    if lacking := [mark for mark in marks if known.token_to_id(mark) is None]:
        raise RequestError(
            f"lora is {spec.lora}: {spec.start} lacks {', '.join(lacking)}, and an adapter adds no tokens: leave it out"
        )


def save_lm_student(
    out: Path,
    student: TrainableLlama,
    spec: LMSpec,
    written: Mapping[str, Any],
    begin: int,
    end: int,
) -> None:
    """Save a network as a directory that `polydec.load` reads: an adapter of --start, or a model.

    Args:
        out: Directory to write.
        student: The network.
        spec: Options; start and lora are read.
        written: Files of the tokenizer, which an adapter takes from its checkpoint.
        begin: Id before every text.
        end: Id after it.
    """
    if spec.lora:
        assert spec.start is not None
        save_lora_adapters(out, student, spec.start)
        return
    save_directory(out, student, student.s.config_content(bos=begin, eos=end), files=written)


def find_tokenizer(
    spec: LMSpec, out: Path, texts: Sequence[str], size: int, marks: Sequence[str] = ()
) -> Tokenizer:
    """The tokenizer of a training: a named one, the one of an earlier start, or a new one.

    Args:
        spec: Options; `tokenizer`, `teacher` and `start` name models, in this order.
        out: Directory of the run; a new tokenizer is written there at once.
        texts: Texts that a new one is trained on.
        size: Tokens of a new one, at most.
        marks: Further special tokens. Default: none.

    Returns:
        The tokenizer.

    Raises:
        RequestError: A named model has no tokenizer.json, or it cannot be read.
    """
    # Without a named tokenizer that of a teacher is taken: its laws are over its own tokens.
    source = spec.tokenizer or spec.teacher or spec.start
    path = (model_directory(source) if source else out) / "tokenizer.json"
    if path.exists():
        try:
            return with_marks(Tokenizer.from_file(str(path)), marks)
        except Exception as e:  # whatever the library meets; it has no kind of error of its own
            raise RequestError(
                edge.error_sentence(f"{path} is not a readable tokenizer: {e}")
            ) from None
    if source:
        raise RequestError(f"tokenizer is {source!r}: there is no tokenizer.json")
    tokenizer = train_tokenizer(texts, size, marks)
    # A resumed run must read the same tokenizer, whatever becomes of the texts.
    files.replace_file_atomically(path, lambda at: tokenizer.save(str(at)))
    return tokenizer


WRONG = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    SafetensorError,
    ArithmeticError,
    LookupError,
)
"""What a directory that is damaged, or another one, makes its reader raise."""


def model_directory(name: str) -> Path:
    """The directory of a model, by its path or its name."""
    if Path(name).is_dir():
        return Path(name)
    return sources.find_checkpoint(name)


def load_directory(name: str) -> TrainableLlama:
    """A network as `train_lm` saved it, in fp32, without gradients.

    `name` is its directory, or zoo:NAME.

    Raises:
        RequestError: The directory holds no such network, or one of another family.
    """
    path = model_directory(name)
    try:
        config = edge.read_json(path / "config.json")
        family = family_of_config(config)
        # Weights that were saved in 8 bits are read back as numbers.
        network = net.from_weights(
            config,
            rows8.dequantise_rows(load_file(str(path / "model.safetensors"))),
        )
    # Whatever a damaged directory makes its readers raise becomes one sentence.
    except WRONG as e:
        raise RequestError(
            edge.error_sentence(
                f"model {name!r} is not a directory that `polydec train lm` wrote: {e}"
            )
        ) from None
    require_family(AUTOREGRESSIVE, family, name, "model")
    return network
