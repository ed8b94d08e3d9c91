"""A directory's tokenizer: the files that say what it is, and what reads each kind of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from polydec.base.caller_warnings import warn_caller
from polydec.base.edge import read_bytes
from polydec.base.errors import FileError
from polydec.models.formats import edge, fields
from polydec.models.text.added_tokens import merged_settings
from polydec.models.text.chat_template import MOST
from polydec.models.text.tokenizer import Tokenizer, named_templates

TEMPLATES = 64
"""Chat templates by name that are read at most."""
BYTES_OF_ID = 8
"""What a token's embedding takes of a file at least: a vocabulary without a tokenizer is made up,
and takes far more."""
SETTINGS = "tokenizer_config.json"
ROLES = "special_tokens_map.json"
ADDED = "added_tokens.json"


@dataclass(frozen=True)
class TokenizerSettings:
    """What the files of a directory say of its tokenizer, beside the tokenizer itself.

    Attributes:
        path: The directory.
        config: Of special tokens: tokenizer_config.json, with special_tokens_map.json.
        added: Content of added_tokens.json: tokens with their ids.
        templates: Chat templates in files of their own, by name; None: there are none.
        eos: Ids that end an answer, as the model's configs have them.
    """

    path: Path
    config: Mapping[str, Any]
    added: Mapping[str, int]
    templates: Mapping[str, str] | None
    eos: tuple[int, ...]


def open_tokenizer(
    path: Path, config: Mapping[str, Any], generation: Mapping[str, Any], stored: int
) -> tuple[Tokenizer, str]:
    """Read the tokenizer of a directory; make one up where there is none.

    Args:
        path: The directory.
        config: What its config.json says of the language model.
        generation: Content of its generation_config.json.
        stored: Bytes that its weights take.

    Returns:
        The tokenizer and its fingerprint; "" for one that is made up.

    Raises:
        RequestError: A file is damaged, or has a field that it may not have.
        FileError: Nothing here reads the tokenizer, or there is none and the config says no size
            that the weights bear out.
    """
    settings = _read_settings(path, config, generation)
    read = next((read for file, read in _READERS.items() if (path / file).is_file()), None)
    if read is None:
        return _made_up_tokenizer(path, config.get("vocab_size"), stored, settings.eos), ""
    text = read(settings)
    # Configs often name one end of an answer only, and the tokenizer another.
    text.eos |= _own_end(text, config.get("vocab_size"))
    return text, text.fingerprint


def _read_settings(
    path: Path, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> TokenizerSettings:
    """What stands beside a tokenizer, checked before a tokenizer is made of it."""
    templates = read_chat_templates(path)
    contents = edge.read_json_files(path, (SETTINGS, ROLES, ADDED))
    merged = merged_settings(contents[SETTINGS], contents[ROLES])
    edge.validate_record(fields.TokenizerConfig, merged, str(path / SETTINGS))
    added = edge.validate_record(fields.AddedTokens, {"tokens": contents[ADDED]}, str(path / ADDED))
    # generation_config.json knows of further ends, such as that of a turn.
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    if eos is None:
        eos = []
    elif isinstance(eos, int):
        eos = [eos]
    return TokenizerSettings(path, merged, added.tokens, templates, tuple(eos))


def read_chat_templates(path: Path) -> dict[str, str] | None:
    """Chat templates in files of their own, by name; None: there are none.

    Raises:
        FileError: A file is no text, or too large.
    """
    found = {
        at.stem: at
        for at in sorted((path / "additional_chat_templates").glob("*.jinja"))[:TEMPLATES]
    }
    if (at := path / "chat_template.jinja").is_file():
        found = {"default": at, **found}
    if found:
        return {name: _template_text(at) for name, at in found.items()}
    if (at := path / "chat_template.json").is_file():
        record = edge.validate_record(fields.TokenizerConfig, edge.read_json(at), str(at))
        return named_templates(record.model_dump()["chat_template"])
    return None


def _template_text(at: Path) -> str:
    with edge.report_read_errors(str(at)):
        return read_bytes(at, MOST).decode("utf-8")


# One reader for each kind of tokenizer


def _read_tokenizer_json(settings: TokenizerSettings) -> Tokenizer:
    return Tokenizer.from_tokenizer_json(
        settings.path / "tokenizer.json",
        settings.config,
        added=settings.added,
        eos=settings.eos,
        template=settings.templates,
    )


def _read_marian(settings: TokenizerSettings) -> Tokenizer:
    """Marian has two tokenizers, one for each language; the source's is read."""
    from polydec.models.text.marian_text import marian_tokenizer

    tokenizer = marian_tokenizer(settings.path, edge.read_json(settings.path / "vocab.json"))
    return Tokenizer.from_parts(
        tokenizer, settings.config, eos=settings.eos, template=settings.templates
    )


def _read_by_transformers(settings: TokenizerSettings) -> Tokenizer:
    from transformers import AutoTokenizer

    path = settings.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        return Tokenizer.from_parts(
            tokenizer.backend_tokenizer,
            {**settings.config, **tokenizer.special_tokens_map},
            eos=settings.eos,
            template=settings.templates,
        )
    except Exception as e:  # whatever the tokenizer's own code meets
        why = (
            edge.own_code(path / SETTINGS)
            or edge.own_code(path / "config.json")
            or edge.first_line(e)
        )
        raise FileError(
            edge.error_sentence(f"{path} has a tokenizer that transformers cannot read ({why})")
        ) from None


_READERS: Mapping[str, Callable[[TokenizerSettings], Tokenizer]] = {
    "tokenizer.json": _read_tokenizer_json,
    "source.spm": _read_marian,
    "tokenizer.model": _read_by_transformers,
    "vocab.json": _read_by_transformers,
    "vocab.txt": _read_by_transformers,
    "spiece.model": _read_by_transformers,
}
"""By the file that tells the kind of a tokenizer, what reads it; the first one that is there counts."""


def _made_up_tokenizer(
    path: Path, size: int | None, stored: int, eos: tuple[int, ...]
) -> Tokenizer:
    """A tokenizer that writes token i as "<i>"."""
    warn_caller(
        f"{path} has no tokenizer: prompts are token ids, and texts are written as <id> <id> …"
    )
    if size is None:
        raise FileError(f"{path} has no tokenizer, and its config.json no vocab_size")
    if size * BYTES_OF_ID > stored:
        raise FileError(
            f"{path} has no tokenizer, and its config.json says vocab_size {size}: its weights take {stored} bytes, "
            f"less than the {BYTES_OF_ID} that an embedding takes at least"
        )
    tokenizer = HFTokenizer(WordLevel({f"<{i}>": i for i in range(size)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(tokenizer, eos=eos)


def _own_end(text: Tokenizer, size: int | None) -> frozenset[int]:
    """The token that the tokenizer itself calls the end of a text, where the model, of so many
    tokens, knows it."""
    name = text.names.get("eos_token")
    if name is None:
        end = None
    else:
        end = text.tokenizer.token_to_id(name)
    return frozenset(() if end is None or (size is not None and end >= size) else (end,))
