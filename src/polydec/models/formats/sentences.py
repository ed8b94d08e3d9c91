"""What an embedding model's directory says of how vectors are read: the layout of
sentence-transformers, which Qwen3-Embedding has, too.

modules.json lists what stands after the network; a folder `…_Pooling` says which state is taken,
and config_sentence_transformers.json names texts that stand before a query or a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polydec.base.edge import parse_json, read_bytes
from polydec.base.errors import FileError
from polydec.models.formats import edge

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"

POOLS = {"pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean"}
"""Ways to take one vector of all states that are read here, and what they are called."""


@dataclass(frozen=True)
class EmbeddingModelConfig:
    """How vectors are read of an embedding model.

    Attributes:
        pool: "last" or "mean".
        prompts: By name, what stands before a text.
        usual: The name of the one that stands there where nobody names any; None: nothing does.
    """

    pool: str
    prompts: Mapping[str, str]
    usual: str | None


def read_embedding_config(path: Path) -> EmbeddingModelConfig | None:
    """What a directory says; None where it is no embedding model's.

    Raises:
        FileError: It asks for what is not read here.
    """
    if not (path / MODULES).is_file():
        return None
    with edge.report_read_errors(f"{path / MODULES}"):
        modules: Any = parse_json(read_bytes(path / MODULES), MODULES)
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        places = [str(module["path"]) for module in modules]
    # Further modules, such as a dense layer, would change the vectors.
    other = next((k for k in kinds if k not in ("Transformer", "Pooling", "Normalize")), None)
    if other is not None or kinds.count("Pooling") != 1:
        raise FileError(
            f"{path / MODULES} has {other or str(kinds.count('Pooling')) + ' poolings'}: "
            "a Transformer, one Pooling and Normalize are read"
        )
    place = places[kinds.index("Pooling")]
    # A name with slashes could lead out of the directory.
    if Path(place).name != place:
        raise FileError(
            f"{path / MODULES} names the folder {place!r:.80}: folders beside it are legal"
        )
    return EmbeddingModelConfig(_pool(path / place / "config.json"), *_prompts(path / CONFIG))


def _pool(at: Path) -> str:
    said = edge.read_json(at)
    modes = [name for name, on in said.items() if name.startswith("pooling_mode_") and on is True]
    if len(modes) != 1 or modes[0] not in POOLS:
        raise FileError(
            f"{at} asks for {', '.join(modes)[:120] or 'no pooling'}: one of {', '.join(POOLS)} is read"
        )
    return POOLS[modes[0]]


def _prompts(at: Path) -> tuple[Mapping[str, str], str | None]:
    said: Mapping[str, Any] = edge.read_json(at) if at.is_file() else {}
    prompts = said.get("prompts") or {}
    usual = said.get("default_prompt_name")
    texts = isinstance(prompts, dict) and all(isinstance(x, str) for x in prompts.values())
    if not texts or not (usual is None or usual in prompts):
        raise FileError(
            f"{at}: prompts must be texts by name, and default_prompt_name one of these"
        )
    return prompts, usual
