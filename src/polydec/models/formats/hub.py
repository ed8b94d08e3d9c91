"""Checkpoints from the Hugging Face Hub: which files are fetched, and why one cannot be had.

All of it is asked of huggingface_hub: its cache, its HF_TOKEN and its HF_HUB_OFFLINE are ours.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polydec.base.caller_warnings import warn_caller
from polydec.base.errors import FileError
from polydec.models.formats import edge, sentences, zoo
from polydec.models.formats.hub_names import (
    HubName,
    choose_gguf_model,
    group_gguf_files,
    parse_hub_name,
)

WANTED = ("*.json", "*.jinja", "*.txt", "*.model", "*.spm", "*.safetensors")
"""What is fetched of a checkpoint; other files, such as a second copy in another format, are not."""
FOLDERS = tuple(f"*/{form}" for form in WANTED if form != "*.jinja")
"""What is not: files in folders, but for chat templates by name."""
NO_FILE = "no file"
"""A pattern that no name matches: only where a snapshot lies is asked."""


def fetch_hub_checkpoint(name: str) -> Path:
    """Bring a checkpoint from the Hub, or take it from the cache.

    Args:
        name: As `parse_hub_name` reads it.

    Returns:
        The directory, or the first GGUF file.

    Raises:
        FileError: The Hub does not have it or does not give it; the reason stands first.
    """
    hub_name = parse_hub_name(name)
    try:
        files, commit = _repository_files(hub_name)
        local = commit is None
        if hub_name.choice or _has_gguf_only(files):
            model, note = choose_gguf_model(hub_name, files)
            # They are read as patterns: a bracket in a file's name must stand for itself.
            exact = [glob.escape(file) for file in model.files]
            # A model that is here begins no answer with a bar of its download.
            folder = _cached_snapshot(hub_name, commit, model.files) or _snapshot(
                hub_name, local, allow_patterns=exact
            )
            # Only now: which file was taken does not matter where the download fails.
            if note:
                warn_caller(note)
            return folder / model.files[0]
        return _checkpoint_folder(hub_name, local)
    # Errors of our own say already what is wrong.
    except FileError:
        raise
    except Exception as error:  # the Hub, the network and the disk each have errors of their own
        raise FileError(
            edge.error_sentence(
                f"model {name!r} is not there: {_hub_refusal(error, hub_name)}{zoo.suggest_near_zoo_name(name)}"
            )
        ) from None


def _repository_files(name: HubName) -> tuple[list[str], str | None]:
    """The paths of a repository's files, and the commit that the Hub has ("" where it does not say); None where only the
    cache could be asked."""
    from huggingface_hub import HfApi

    try:
        # Not list_repo_files, which tries again for half a minute where there is no network.
        about = HfApi().model_info(name.repository, revision=name.revision)
        return [file.rfilename for file in about.siblings or ()], about.sha or ""
    except Exception as refusal:
        try:
            folder = _snapshot(name, True, allow_patterns=[NO_FILE])
        except Exception:
            # Why the Hub did not answer says more than that the cache has nothing.
            raise refusal from None
        paths = (path for path in folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(folder).as_posix() for path in paths), None


def _has_gguf_only(files: list[str]) -> bool:
    """Whether a repository has GGUF files and no weights in another format that we read."""
    others = any("/" not in file and file.endswith((".safetensors", ".bin")) for file in files)
    # Where both are there, a GGUF file is taken only if it is named.
    return not others and bool(group_gguf_files(files))


def _checkpoint_folder(name: HubName, local: bool) -> Path:
    """The snapshot of a checkpoint with a config.json."""
    folder = _snapshot(name, local, allow_patterns=[*WANTED], ignore_patterns=[*FOLDERS])
    # Older checkpoints have torch's own files only.
    if not any(folder.glob("*.safetensors")):
        folder = _snapshot(
            name,
            local,
            allow_patterns=[*WANTED, "*.bin"],
            ignore_patterns=[*FOLDERS, "*/*.bin"],
        )
    if (folder / sentences.MODULES).is_file():  # which state an embedding model is read at
        _snapshot(name, local, allow_patterns=["*_Pooling/config.json"])
    return folder


def _snapshot(name: HubName, local: bool, **patterns: Any) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            name.repository, revision=name.revision, local_files_only=local, **patterns
        )
    )


def _cached_snapshot(name: HubName, commit: str | None, files: Sequence[str]) -> Path | None:
    """The snapshot of a commit in the cache, where it holds all of these files."""
    from huggingface_hub import try_to_load_from_cache

    if not commit:
        return None
    found = [try_to_load_from_cache(name.repository, file, revision=commit) for file in files]
    first = found[0]
    if not isinstance(first, str) or not all(isinstance(path, str) for path in found):
        return None
    return Path(first).parents[len(Path(files[0]).parts) - 1]


def _hub_refusal(error: Exception, name: HubName) -> str:
    """Why the Hub did not give a repository, as a part of a sentence."""
    from huggingface_hub import errors

    # The special ones first: each is one of the next.
    if isinstance(error, errors.GatedRepoError):
        return "its owner asks you to accept terms, on its page on the Hugging Face Hub; then set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the Hugging Face Hub has no such repository, or it is private and HF_TOKEN names nobody who may read it"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {name.revision!r}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            "it is not in the cache, and HF_HUB_OFFLINE keeps us from asking the Hugging Face Hub"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "the cache has only some of its files, and the Hugging Face Hub does not answer"
    # By name: which library speaks to the network depends on the version of huggingface_hub.
    if type(error).__name__ in ("ConnectError", "ConnectTimeout", "ReadTimeout", "ProxyError"):
        return f"the Hugging Face Hub cannot be reached ({edge.first_line(error)})"
    # A mirror that knows a part of the protocol: the name of a field alone would be no sentence.
    if isinstance(error, KeyError):
        return f"what answers as the Hugging Face Hub leaves out the field {edge.first_line(error)}"
    return f"the Hugging Face Hub did not give it ({edge.first_line(error)})"
