"""From a name to what lies in a checkpoint's files; and directories that we write ourselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from polydec.base import files
from polydec.base.caller_warnings import warn_caller
from polydec.base.edge import read_bytes
from polydec.base.errors import FileError
from polydec.models.formats import adapters, edge, fields, zoo
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.formats.hub import fetch_hub_checkpoint
from polydec.models.formats.hub_names import group_gguf_files
from polydec.models.formats.tensor_files import SharedEmbeddingWeights, open_weights
from polydec.models.text.added_tokens import merged_settings
from polydec.models.text.chat_template import MOST, ChatTemplate
from polydec.models.text.gguf_text import generation_defaults, read_text
from polydec.models.text.tokenizer import Tokenizer, named_templates

BASES = 4
"""How many checkpoints may stand behind one another by `polydec_base`."""
TEMPLATES = 64
"""Chat templates by name that are read at most."""
BYTES_OF_ID = 8
"""What a token's embedding takes of a file at least: a vocabulary without a tokenizer is made up,
and takes far more."""


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
    """

    path: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    text: Tokenizer
    fingerprint: str
    generation: dict[str, Any]


def open_source(
    name: str | PathLike[str], opened: dict[Path, CheckpointFiles] | None = None
) -> CheckpointFiles:
    """Open a checkpoint's files.

    A config with `polydec_base` names another checkpoint: the tokenizer comes from there, and the
    embedding table where there is none here (a draft model shares its target's). A directory with
    an adapter_config.json names the checkpoint whose weights it changes.

    Args:
        name: ``zoo:NAME``, a directory, a GGUF file or a Hub id.
        opened: By their paths, GGUF files that are open already; those that are opened here are put
            into it. None: none are.

    Returns:
        The files, weights still unread.

    Raises:
        FileError: The checkpoint cannot be found or read.
    """
    return _open(edge.path_text(name, "model"), BASES, {} if opened is None else opened)


def _open(name: str, bases: int, opened: dict[Path, CheckpointFiles]) -> CheckpointFiles:
    path = find_checkpoint(name)
    with edge.report_read_errors(str(path)):
        if adapters.is_adapter_directory(path):
            return _open_adapter(path, bases, opened)
        if not path.is_file():
            return _open_directory(path, bases, opened)
        # A large vocabulary takes time to read: the target and its draft model may name the same
        # file.
        if path not in opened:
            opened[path] = _open_gguf(path)
        # A copy of the tokenizer, since who loads the model writes into it.
        return replace(opened[path], text=copy(opened[path].text))


def _open_gguf(path: Path) -> CheckpointFiles:
    file = GGUFCheckpoint(path)
    text = read_text(file)
    generation = generation_defaults(file, text.eos)
    edge.validate_record(fields.GenerationConfigFields, generation, str(path))
    return CheckpointFiles(str(path), file.config, file, text, text.fingerprint, generation)


def _open_adapter(path: Path, bases: int, opened: dict[Path, CheckpointFiles]) -> CheckpointFiles:
    adapter = adapters.read_lora_adapter(path)
    # The limit ends circles of checkpoints that name each other.
    if not bases:
        raise FileError(f"{path}: adapters stand behind one another, more than {BASES} times")
    base = _open(adapter.base, bases - 1, opened)
    if isinstance(base.weights, GGUFCheckpoint):
        raise FileError(
            f"{path} changes {adapter.base}, a GGUF file, whose blocks stay as they are: name the checkpoint that "
            f"it was made of in {adapters.CONFIG}"
        )
    return replace(base, path=str(path), weights=adapters.LoraMergedWeights(base.weights, adapter))


def _open_directory(path: Path, bases: int, opened: dict[Path, CheckpointFiles]) -> CheckpointFiles:
    at = path / "config.json"
    config = _json(at)
    generation = _json(path / "generation_config.json", {})
    if not isinstance(config.get("model_type"), str):
        raise FileError(f"{at} names no model_type: it is not the configuration of a model")
    edge.validate_record(fields.AnyConfigFields, config, str(at))
    edge.validate_record(fields.TextConfigFields, _text_config(config), str(at))
    edge.validate_record(
        fields.GenerationConfigFields, generation, str(path / "generation_config.json")
    )
    # Checked before anything reads the files by `transformers`.
    edge.refuse_kernels(at, config)
    weights = open_weights(path)
    # A vocabulary that no tensor bears out would make whoever reads it allocate any amount.
    size = _text_config(config).get("vocab_size")
    if (
        size is not None
        and size > (longest := fields.longest_tensor_side(weights))
        and "polydec_base" not in config
    ):
        raise FileError(
            f"{at}: vocab_size is {size}, but no tensor has a side longer than {longest}"
        )
    if config.get("polydec_base") is not None:
        if not bases:
            raise FileError(
                f"{at}: polydec_base names a checkpoint that names another, more than {BASES} times"
            )
        base = _open(config["polydec_base"], bases - 1, opened)
        return CheckpointFiles(
            str(path),
            config,
            SharedEmbeddingWeights(weights, base.weights),
            base.text,
            base.fingerprint,
            {**base.generation, **generation},
        )
    stored = sum(f.stat().st_size for end in ("safetensors", "bin") for f in path.glob(f"*.{end}"))
    text, fingerprint = _open_text(path, config, generation, stored)
    return CheckpointFiles(str(path), config, weights, text, fingerprint, generation)


def find_checkpoint(name: str) -> Path:
    """The directory or GGUF file of a name; what is on the Hub is downloaded.

    Raises:
        FileError: There is none.
    """
    if not name:
        raise FileError("model is empty: give a Hub id, a directory, a GGUF file or zoo:NAME")
    if name.startswith("zoo:"):
        return zoo.zoo_model_path(name)
    path = edge.at_home(name)
    if path.is_dir():
        if not (path / "config.json").is_file() and not adapters.is_adapter_directory(path):
            raise FileError(_no_config(name, path))
        return path
    if path.is_file():
        return path  # GGUF says so where it is none
    folder = fetch_hub_checkpoint(name)
    if folder.is_file():
        return folder
    if not (folder / "config.json").is_file() and not adapters.is_adapter_directory(folder):
        raise FileError(
            f"model {name!r} on the Hugging Face Hub has no config.json: it holds no checkpoint"
        )
    return folder


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


def _json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.is_file():
        return default
    return edge.read_json(path)


def _open_text(
    path: Path, config: Mapping[str, Any], generation: Mapping[str, Any], stored: int
) -> tuple[Tokenizer, str]:
    """The tokenizer of a directory and its fingerprint. stored: bytes of its weights."""
    # What both files say of special tokens, checked before a tokenizer is made of it.
    settings = merged_settings(
        _json(path / "tokenizer_config.json", {}), _json(path / "special_tokens_map.json", {})
    )
    edge.validate_record(fields.TokenizerConfig, settings, str(path / "tokenizer_config.json"))
    template = _chat_templates(path)
    # generation_config.json knows of further ends, such as that of a turn.
    eos = generation.get("eos_token_id", _text_config(config).get("eos_token_id"))
    if eos is None:
        eos = []
    elif isinstance(eos, int):
        eos = [eos]
    if (path / "tokenizer.json").is_file():
        text = Tokenizer.from_tokenizer_json(
            path / "tokenizer.json", settings, added=_added(path), eos=eos, template=template
        )
    # Marian has two tokenizers, one for each language; the source's is read.
    elif (path / "source.spm").is_file():
        from polydec.models.text.marian_text import marian_tokenizer

        tokenizer = marian_tokenizer(path, _json(path / "vocab.json"))
        text = Tokenizer.from_parts(tokenizer, settings, eos=eos, template=template)
    elif any(
        (path / f).is_file() for f in ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    ):
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            text = Tokenizer.from_parts(
                tokenizer.backend_tokenizer,
                {**settings, **tokenizer.special_tokens_map},
                eos=eos,
                template=template,
            )
        except Exception as e:  # whatever the tokenizer's own code meets
            why = (
                edge.own_code(path / "tokenizer_config.json")
                or edge.own_code(path / "config.json")
                or edge.first_line(e)
            )
            raise FileError(
                edge.error_sentence(f"{path} has a tokenizer that transformers cannot read ({why})")
            ) from None
    else:
        warn_caller(
            f"{path} has no tokenizer: prompts are token ids, and texts are written as <id> <id> …"
        )
        size = _text_config(config).get("vocab_size")
        if size is None:
            raise FileError(f"{path} has no tokenizer, and its config.json no vocab_size")
        if size * BYTES_OF_ID > stored:
            raise FileError(
                f"{path} has no tokenizer, and its config.json says vocab_size {size}: its weights take {stored} bytes, "
                f"less than the {BYTES_OF_ID} that an embedding takes at least"
            )
        # A made-up vocabulary: token i is written "<i>".
        tokenizer = HFTokenizer(WordLevel({f"<{i}>": i for i in range(size)}))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        return Tokenizer(tokenizer, eos=eos), ""
    # Configs often name one end of an answer only, and the tokenizer another.
    text.eos |= _own_end(text, _text_config(config).get("vocab_size"))
    return text, text.fingerprint


def _own_end(text: Tokenizer, size: int | None) -> frozenset[int]:
    """The token that the tokenizer itself calls the end of a text, where the model, of so many
    tokens, knows it."""
    name = text.names.get("eos_token")
    if name is None:
        end = None
    else:
        end = text.tokenizer.token_to_id(name)
    return frozenset(() if end is None or (size is not None and end >= size) else (end,))


def _added(path: Path) -> dict[str, int]:
    """Tokens with their ids, of an added_tokens.json."""
    at = path / "added_tokens.json"
    return edge.validate_record(fields.AddedTokens, {"tokens": _json(at, {})}, str(at)).tokens


def _chat_templates(path: Path) -> dict[str, str] | None:
    """Chat templates in files of their own, by name; None: there are none."""
    found = {
        at.stem: at
        for at in sorted((path / "additional_chat_templates").glob("*.jinja"))[:TEMPLATES]
    }
    if (at := path / "chat_template.jinja").is_file():
        found = {"default": at, **found}
    if found:
        return {name: _template_text(at) for name, at in found.items()}
    if (at := path / "chat_template.json").is_file():
        content = edge.validate_record(fields.TokenizerConfig, _json(at), str(at)).model_dump()
        return named_templates(content["chat_template"])
    return None


def _template_text(at: Path) -> str:
    with edge.report_read_errors(str(at)):
        return read_bytes(at, MOST).decode("utf-8")


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
    put_json("config.json", config)
    if text is not None and text.eos:
        eos = {"eos_token_id": sorted(text.eos)}
    else:
        eos = {}
    put_json("generation_config.json", {**eos, **(generation or {})})
    if text is not None:
        replace_file("tokenizer.json", lambda part: text.tokenizer.save(str(part)))
        put_json(
            "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **text.names}
        )
        put_template("chat_template.jinja", text.template)
        put_template("additional_chat_templates/tool_use.jinja", text.tool_template)
