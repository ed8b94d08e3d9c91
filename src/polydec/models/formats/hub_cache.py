"""Models that lie on this machine: embedded ones and those in the cache of the Hugging Face Hub; and how one of the
cache is removed."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polydec.base.edge import error_sentence
from polydec.base.errors import FileError, RequestError
from polydec.models.formats import edge, zoo
from polydec.models.formats.hub_names import (
    GGUFModelFiles,
    HubName,
    choose_gguf_model,
    group_gguf_files,
    parse_hub_name,
)

WEIGHTS = (".safetensors", ".bin")
"""Ends of files that hold the weights of a checkpoint."""
UNFINISHED = "unfinished download"


@dataclass(frozen=True)
class StoredModel:
    """A model on this machine.

    Attributes:
        name: As `polydec.load` takes it.
        kind: Format of its weights, and the quantisation of a GGUF file.
        size: Bytes on the disk.
        path: Its directory or file.
        home: "zoo" or "hub".
    """

    name: str
    kind: str
    size: int
    path: Path
    home: str


@dataclass(frozen=True)
class ModelRemoval:
    """What would be removed.

    Attributes:
        name: The model.
        path: The directory that all of it lies in.
        size: Bytes that become free.
        files: How many files that are.
        execute: Removes them.
    """

    name: str
    path: Path
    size: int
    files: int
    execute: Callable[[], None]


def hub_cache_folder() -> Path:
    """The cache of huggingface_hub: $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def list_stored_models() -> list[StoredModel]:
    """All models on this machine: the embedded ones, then those of the cache by name."""
    found = [
        StoredModel(
            f"zoo:{entry.name}", _format_of(entry.path), entry.file_bytes, entry.path, "zoo"
        )
        for entry in zoo.zoo_entries()
        if entry.path is not None
    ]
    cache = _scan_cache()
    cached = list[StoredModel]()
    for repo in _model_repositories(cache):
        cached += _models_of(repo)
    cached += [
        StoredModel(_repository_name(folder), UNFINISHED, folder_bytes(folder), folder, "hub")
        for folder in _unreadable_folders(cache)
    ]
    return found + sorted(cached, key=lambda model: model.name.lower())


def checkpoint_bytes(path: Path) -> int:
    """Bytes of the files of a checkpoint's directory, or of all parts of a GGUF file."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    models = group_gguf_files(file.name for file in path.parent.iterdir())
    # A model may lie in several files, of which only the first one is named.
    parts = next((model.files for model in models if path.name in model.files), (path.name,))
    return sum((path.parent / part).stat().st_size for part in parts)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder; links count nothing."""
    return sum(
        file.lstat().st_size
        for file in folder.rglob("*")
        if file.is_file() and not file.is_symlink()
    )


def _format_of(path: Path | None) -> str:
    return "GGUF" if path is not None and path.is_file() else "safetensors"


def _scan_cache() -> Any:
    """What huggingface_hub finds in its cache; None where there is none."""
    from huggingface_hub import scan_cache_dir

    folder = hub_cache_folder()
    # Before the first download there is no cache, which huggingface_hub takes for an error.
    if not folder.is_dir():
        return None
    return scan_cache_dir(folder)


def _model_repositories(cache: Any) -> list[Any]:
    if cache is None:
        return []
    return [repo for repo in cache.repos if repo.repo_type == "model"]


def _unreadable_folders(cache: Any) -> list[Path]:
    """Folders of models that huggingface_hub cannot read, such as those of a download that was interrupted."""
    if cache is None:
        return []
    known = {repo.repo_path.name for repo in cache.repos}
    folders = sorted(hub_cache_folder().glob("models--*"))
    return [f for f in folders if f.name not in known and f.is_dir() and not f.is_symlink()]


def _repository_name(folder: Path) -> str:
    # As huggingface_hub names its folders: models--OWNER--REPO.
    return folder.name.removeprefix("models--").replace("--", "/")


def _files_by_path(repo: Any) -> dict[str, list[Any]]:
    """The files of a cached repository by their paths in it, one for each revision that has it."""
    files = dict[str, list[Any]]()
    # The main branch first: where a file lies is said of it.
    for revision in sorted(repo.revisions, key=lambda one: "main" not in one.refs):
        for file in revision.files:
            path = file.file_path.relative_to(revision.snapshot_path).as_posix()
            files.setdefault(path, []).append(file)
    return files


def _models_of(repo: Any) -> list[StoredModel]:
    """The models of a cached repository: each of its GGUF files, and the checkpoint."""
    files = _files_by_path(repo)
    gguf = group_gguf_files(files)
    found = [
        StoredModel(
            f"{repo.repo_id}:{model.colon_name}",
            f"GGUF {model.quantisation}".strip(),
            _bytes_of(files, model.files),
            files[model.files[0]][0].file_path,
            "hub",
        )
        for model in gguf
    ]
    # GGUF files are counted with their own models, and not once more with the checkpoint.
    inside = {part for model in gguf for part in model.files}
    rest = [path for path in files if path not in inside]
    weights = [path for path in rest if "/" not in path and path.endswith(WEIGHTS)]
    # Beside GGUF files a config.json alone is no model of its own.
    if weights or not found:
        if any(path.endswith(".safetensors") for path in weights):
            kind = "safetensors"
        elif weights:
            kind = "PyTorch"
        else:
            kind = "no weights"
        # The main branch where it is here, as a load that names no revision takes that one.
        newest = min(repo.revisions, key=lambda one: "main" not in one.refs, default=None)
        where = repo.repo_path if newest is None else newest.snapshot_path
        found.append(StoredModel(repo.repo_id, kind, _bytes_of(files, rest), where, "hub"))
    return found


def _bytes_of(files: dict[str, list[Any]], paths: Iterable[str]) -> int:
    """Bytes of some files; what several revisions share counts once."""
    sizes = {file.blob_path: file.size_on_disk for path in paths for file in files[path]}
    return sum(sizes.values())


def plan_model_removal(name: str) -> ModelRemoval:
    """What removing a model from the cache would free. Nothing is removed yet.

    Args:
        name: As `polydec.load` takes it: of the whole repository, or behind a colon of one of its GGUF files.

    Returns:
        The files, and what removes them.

    Raises:
        RequestError: It lies outside of the cache.
        FileError: It is not in the cache.
    """
    if name.startswith("zoo:"):
        raise RequestError(_zoo_refusal(zoo.find_zoo_entry(name)))
    # A path of the user's may look like a Hub id: it is refused before the cache is asked.
    if not name or edge.at_home(name).exists():
        raise RequestError(
            error_sentence(
                f"name is {name!r}: only what lies in {hub_cache_folder()} is removed, and files of yours are not"
            )
        )
    hub_name = parse_hub_name(name)
    cache = _scan_cache()
    repo = next((r for r in _model_repositories(cache) if r.repo_id == hub_name.repository), None)
    if repo is None:
        for folder in _unreadable_folders(cache):
            if _repository_name(folder) == hub_name.repository:
                return _whole_folder(name, folder)
        raise FileError(error_sentence(_not_cached(hub_name, cache)))
    # Of this repository alone: a copy of it on the Hub has revisions of the same names.
    alone = replace(cache, repos=frozenset([repo]))
    files = _files_by_path(repo)
    if hub_name.choice:
        model, _ = choose_gguf_model(hub_name, files)
        # Where no other weights would stay, nothing is worth keeping and the whole repository goes.
        left = [
            p for p in files if p not in model.files and p.lower().endswith((*WEIGHTS, ".gguf"))
        ]
        if left:
            return _some_files(name, repo, alone, model, files)
    # With all of its revisions huggingface_hub removes the repository's folder as well.
    strategy = alone.delete_revisions(*(one.commit_hash for one in repo.revisions))
    count = sum(len(same) for same in files.values())
    return _removal(name, repo.repo_path, count, strategy)


def _zoo_refusal(entry: zoo.ZooEntry) -> str:
    if entry.package is None:
        how = "it travels with polydec, and goes with it"
    else:
        how = f"it is a package of its own: pip uninstall {entry.package[0].partition('==')[0]}"
    return f"name is 'zoo:{entry.name}', which lies in no cache: {how}"


def _not_cached(name: HubName, cache: Any) -> str:
    known = [repo.repo_id for repo in _model_repositories(cache)]
    near = difflib.get_close_matches(name.repository, known, 1, 0.4)
    nearest = f"; the nearest is {near[0]}" if near else ""
    return f"model {name.repository!r} is not in the cache {hub_cache_folder()}{nearest}"


def _some_files(
    name: str, repo: Any, cache: Any, model: GGUFModelFiles, files: dict[str, list[Any]]
) -> ModelRemoval:
    """One model of several in a repository."""
    chosen = [file for part in model.files for file in files[part]]
    if hasattr(cache, "delete_files"):
        return _removal(name, repo.repo_path, len(chosen), cache.delete_files(*chosen))
    # An older huggingface_hub: a file is a link, and its content goes where nothing else links to it.
    kept = {
        file.blob_path for path, same in files.items() if path not in model.files for file in same
    }
    contents = {file.blob_path: file.size_on_disk for file in chosen if file.blob_path not in kept}
    paths = [*(file.file_path for file in chosen), *contents]
    _require_inside_cache(repo.repo_path, paths)
    return ModelRemoval(
        name, repo.repo_path, sum(contents.values()), len(chosen), partial(_unlink_files, paths)
    )


def _unlink_files(paths: Sequence[Path]) -> None:
    for path in paths:
        # Somebody else may have removed it since the removal was planned.
        path.unlink(missing_ok=True)


def _removal(name: str, folder: Path, count: int, strategy: Any) -> ModelRemoval:
    """A removal that huggingface_hub has planned."""
    # Only newer versions of huggingface_hub plan the removal of single files.
    files = getattr(strategy, "files", frozenset())
    _require_inside_cache(folder, [*strategy.blobs, *strategy.refs, *strategy.snapshots, *files])

    def execute() -> None:
        strategy.execute()
        # huggingface_hub goes on where something cannot be removed.
        stayed = [path for path in (*strategy.repos, *files) if path.is_symlink() or path.exists()]
        if stayed:
            raise FileError(error_sentence(f"{stayed[0]} cannot be removed: is it yours?"))

    return ModelRemoval(name, folder, strategy.expected_freed_size, count, execute)


def _whole_folder(name: str, folder: Path) -> ModelRemoval:
    _require_inside_cache(folder)
    count = sum(1 for file in folder.rglob("*") if file.is_file())
    return ModelRemoval(name, folder, folder_bytes(folder), count, partial(shutil.rmtree, folder))


def _require_inside_cache(folder: Path, paths: Iterable[Path] = ()) -> None:
    """Raise FileError where a repository's folder, or what would be removed of it, lies outside of the cache: a link may
    point anywhere."""
    # The cache may itself be reached by a link, such as one to a larger disk.
    home = hub_cache_folder().resolve()
    # The folder is removed with what is in it; of the others no link is followed, as the link is what is removed.
    places = [folder.resolve(), *(path.parent.resolve() / path.name for path in paths)]
    for place in places:
        if home not in place.parents:
            raise FileError(error_sentence(f"{place} lies outside of {home}: nothing is removed"))
