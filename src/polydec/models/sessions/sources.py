"""From a name to what lies in a checkpoint's files; and directories that we write ourselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from polydec.base import files
from polydec.base.errors import FileError
from polydec.models.formats import adapters, edge, fields, zoo
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.formats.hub import fetch_hub_checkpoint
from polydec.models.formats.hub_names import group_gguf_files
from polydec.models.formats.image_adapter import ImageAdapter
from polydec.models.formats.tensor_files import SharedEmbeddingWeights, open_weights
from polydec.models.text.chat_template import ChatTemplate
from polydec.models.text.gguf_text import generation_defaults, read_text
from polydec.models.text.tokenizer import Tokenizer
from polydec.models.text.tokenizer_files import open_tokenizer

BASES = 4
"""How many checkpoints may stand behind one another by `polydec_base`."""
CONFIG = "config.json"
GENERATION = "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
"""Two places in which a vision-language checkpoint says how its images are made."""


@dataclass(frozen=True)
class CheckpointFiles:
    """What lies in a checkpoint's files, weights still unread.

    Attributes:
        path: Where they lie.
        config: Content of the config.json, or what a GGUF file says in its place.
        weights: The tensors by name, read when they are asked for.
        text: The tokenizer.
        fingerprint: Of the tokenizer; "" where there is none.
        generation: Content of the generation_config.json.
        processor: Settings of its image processor. Default: it has none.
        images: What an adapter has for images alone. Default None: nothing.
    """

    path: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    text: Tokenizer
    fingerprint: str
    generation: dict[str, Any]
    processor: Mapping[str, Any] = field(default_factory=dict[str, Any])
    images: ImageAdapter | None = None


CheckpointReader = Callable[[Path, dict[Path, CheckpointFiles], int], CheckpointFiles]
"""Reads one kind of checkpoint: its path, the GGUF files that are open already, and how many
checkpoints may stand behind it."""


def open_source(name: str | PathLike[str]) -> CheckpointFiles:
    """Open the files of a checkpoint that a user names, as `open_checkpoint` does.

    Args:
        name: ``zoo:NAME``, a directory, a GGUF file or a Hub id.

    Returns:
        The files, weights still unread.

    Raises:
        RequestError: The name is neither a text nor a path.
        FileError: The checkpoint cannot be found or read.
    """
    return open_checkpoint(edge.path_text(name, "model"), {})


def open_checkpoint(
    name: str, opened: dict[Path, CheckpointFiles], bases: int = BASES
) -> CheckpointFiles:
    """Open a checkpoint's files.

    A config with `polydec_base` names another checkpoint: the tokenizer comes from there, and the
    embedding table where there is none here (a draft model shares its target's). A directory with
    an adapter_config.json names the checkpoint whose weights it changes.

    Args:
        name: ``zoo:NAME``, a directory, a GGUF file or a Hub id.
        opened: By their paths, GGUF files that are open already; those that are opened here are put
            into it.
        bases: How many checkpoints may stand behind this one. Default BASES.

    Returns:
        The files, weights still unread.

    Raises:
        FileError: The checkpoint cannot be found or read.
    """
    path, read_files = _locate_checkpoint(name)
    with edge.report_read_errors(str(path)):
        return read_files(path, opened, bases)


def find_checkpoint(name: str) -> Path:
    """The directory or GGUF file of a name; what is on the Hub is downloaded.

    Raises:
        FileError: There is none.
    """
    return _locate_checkpoint(name)[0]


def _locate_checkpoint(name: str) -> tuple[Path, CheckpointReader]:
    """The directory or file of a name, and what reads it."""
    if not name:
        raise FileError("model is empty: give a Hub id, a directory, a GGUF file or zoo:NAME")
    if name.startswith("zoo:"):
        path = zoo.zoo_model_path(name)
    else:
        path = edge.at_home(name)
    on_hub = not path.is_dir() and not path.is_file()
    if on_hub:
        path = fetch_hub_checkpoint(name)
    if path.is_file():
        read_files = _read_gguf_file  # it says so where it is none
    else:
        found = next((file for file in _DIRECTORY_READERS if (path / file).is_file()), None)
        if found is None:
            raise FileError(_no_config_on_hub(name) if on_hub else _no_config(name, path))
        read_files = _DIRECTORY_READERS[found]
    return path, read_files


def _no_config_on_hub(name: str) -> str:
    """What is said of a repository without a config.json."""
    return f"model {name!r} on the Hugging Face Hub has no config.json: it holds no checkpoint"


def _no_config(name: str, path: Path) -> str:
    """What is said of a directory without a config.json."""
    # Where GGUF files lie in the folder, one of them is what was meant.
    models = group_gguf_files(file.name for file in path.glob("*.*") if file.is_file())
    if models:
        hint = f"; give one of its GGUF files, such as {path / models[0].files[0]}"
    else:
        hint = ""
    return edge.error_sentence(
        f"{name} is a directory without a config.json: it holds no checkpoint{hint}"
    )


# One reader for each kind of checkpoint


def _read_gguf_file(path: Path, opened: dict[Path, CheckpointFiles], bases: int) -> CheckpointFiles:
    # A large vocabulary takes time to read: the target and its draft model may name the same file.
    if path not in opened:
        file = GGUFCheckpoint(path)
        text = read_text(file)
        generation = generation_defaults(file, text.eos)
        edge.validate_record(fields.GenerationConfigFields, generation, str(path))
        opened[path] = CheckpointFiles(
            str(path), file.config, file, text, text.fingerprint, generation
        )
    # A copy of the tokenizer, since who loads the model writes into it.
    return replace(opened[path], text=copy(opened[path].text))


def _read_adapter(path: Path, opened: dict[Path, CheckpointFiles], bases: int) -> CheckpointFiles:
    adapter = adapters.read_lora_adapter(path)
    # The limit ends circles of checkpoints that name each other.
    if not bases:
        raise FileError(f"{path}: adapters stand behind one another, more than {BASES} times")
    base = open_checkpoint(adapter.base, opened, bases - 1)
    if isinstance(base.weights, GGUFCheckpoint):
        raise FileError(
            f"{path} changes {adapter.base}, a GGUF file, whose blocks stay as they are: name the checkpoint that "
            f"it was made of in {adapters.CONFIG}"
        )
    if adapter.images is not None:
        # One tower has one ladder, and a row one adapter.
        if base.images is not None:
            raise FileError(
                f"{path} has an adapter for images, and so has {adapter.base}: leave one out"
            )
        kind = base.config["model_type"]
        if kind != "llava":
            raise FileError(
                f"{path} has an adapter for images, which models of LLaVA's layout take: {adapter.base} is a {kind!r:.40}"
            )
        base = replace(base, images=adapter.images)
    return replace(base, path=str(path), weights=adapters.LoraMergedWeights(base.weights, adapter))


def _read_directory(path: Path, opened: dict[Path, CheckpointFiles], bases: int) -> CheckpointFiles:
    config, generation = _read_configs(path)
    weights = open_weights(path)
    own = _text_config(config)
    # A vocabulary that no tensor bears out would make whoever reads it allocate any amount.
    size = own.get("vocab_size")
    if (
        size is not None
        and size > (longest := fields.longest_tensor_side(weights))
        and "polydec_base" not in config
    ):
        raise FileError(
            f"{path / CONFIG}: vocab_size is {size}, but no tensor has a side longer than {longest}"
        )
    if config.get("polydec_base") is None:
        ends = ("safetensors", "bin")
        stored = sum(file.stat().st_size for end in ends for file in path.glob(f"*.{end}"))
        text, fingerprint = open_tokenizer(path, own, generation, stored)
    else:
        if not bases:
            raise FileError(
                f"{path / CONFIG}: polydec_base names a checkpoint that names another, more than {BASES} times"
            )
        base = open_checkpoint(config["polydec_base"], opened, bases - 1)
        weights = SharedEmbeddingWeights(weights, base.weights)
        text = base.text
        fingerprint = base.fingerprint
        generation = {**base.generation, **generation}
    processor = _read_image_processor(path, config)
    return CheckpointFiles(str(path), config, weights, text, fingerprint, generation, processor)


def _read_image_processor(path: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the image processor of a vision-language checkpoint; empty: there are none."""
    if "vision_config" not in config:
        return {}
    contents = edge.read_json_files(path, (PREPROCESSOR, PROCESSOR))
    # Newer files have those of all processors in one.
    inner = contents[PROCESSOR].get("image_processor")
    return contents[PREPROCESSOR] or (inner if isinstance(inner, dict) else {})


def _read_configs(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What config.json and generation_config.json hold, checked."""
    contents = edge.read_json_files(path, (CONFIG, GENERATION))
    config = contents[CONFIG]
    generation = contents[GENERATION]
    at = path / CONFIG
    if not isinstance(config.get("model_type"), str):
        raise FileError(f"{at} names no model_type: it is not the configuration of a model")
    edge.validate_record(fields.AnyConfigFields, config, str(at))
    edge.validate_record(fields.TextConfigFields, _text_config(config), str(at))
    edge.validate_record(fields.GenerationConfigFields, generation, str(path / GENERATION))
    # Checked before anything reads the files by `transformers`.
    edge.refuse_kernels(at, config)
    return config, generation


_DIRECTORY_READERS: Mapping[str, CheckpointReader] = {
    CONFIG: _read_directory,
    adapters.CONFIG: _read_adapter,
}
"""By the file that tells what a directory holds, what reads it; the first one that is there counts."""


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config says of its language model."""
    inner = config.get("text_config")
    if isinstance(inner, dict):
        return inner
    return config


def save_checkpoint(
    path: str | PathLike[str],
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    text: Tokenizer | None,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint that polydec and transformers read.

    It has config.json, model.safetensors, generation_config.json and, where there is a tokenizer,
    tokenizer.json and its chat templates. Files that are there are replaced, each at once.

    Args:
        path: The directory; it is made where it is not there.
        config: Content of the config.json.
        weights: The tensors by name.
        text: The tokenizer; None: config["polydec_base"] names the checkpoint whose tokenizer it
            is.
        generation: Content of the generation_config.json, without the ids that end a text, which
            the tokenizer knows. None: nothing else.

    Raises:
        FileError: There is neither a tokenizer nor a base.
    """
    if text is None and "polydec_base" not in config:
        raise FileError(
            "text is None: a checkpoint without a tokenizer needs config['polydec_base'], whose tokenizer it uses"
        )
    where = Path(edge.path_text(path, "path"))
    where.mkdir(parents=True, exist_ok=True)

    def replace_file(name: str, write: Any) -> None:
        """Replace a file at once.

        Args:
            name: Its name in the directory.
            write: Writes its content to the path that it is given.
        """
        files.replace_file_atomically(where / name, write)

    def put_json(name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file at once.

        Args:
            name: Its name in the directory.
            content: What it holds.
        """
        replace_file(
            name,
            lambda part: part.write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            ),
        )

    def put_template(name: str, template: ChatTemplate | None) -> None:
        """Replace the file of a chat template at once; do nothing where there is no template.

        Args:
            name: Its path in the directory.
            template: The template; None: there is none.
        """
        if template is not None:
            (where / name).parent.mkdir(exist_ok=True)
            replace_file(name, lambda part: part.write_text(template.source, encoding="utf-8"))

    # Copies: safetensors refuses tensors that share memory, such as tied embeddings.
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in weights.items()}
    replace_file("model.safetensors", lambda part: save_file(tensors, part, {"format": "pt"}))
    put_json(CONFIG, config)
    if text is not None and text.eos:
        eos = {"eos_token_id": sorted(text.eos)}
    else:
        eos = {}
    put_json(GENERATION, {**eos, **(generation or {})})
    if text is not None:
        replace_file("tokenizer.json", lambda part: text.tokenizer.save(str(part)))
        put_json(
            "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **text.names}
        )
        put_template("chat_template.jinja", text.template)
        put_template("additional_chat_templates/tool_use.jinja", text.tool_template)
