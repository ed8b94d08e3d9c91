"""A cache of the Hub as huggingface_hub lays it out, made of files that a test has: there is no network."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubMirror:
    """Repositories in a cache of the Hub, which answers no call."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        cache.mkdir(parents=True, exist_ok=True)

    def put(self, repository: str, files: dict[str, bytes], commit: str = COMMIT) -> Path:
        """Put files into the cache as a download would; the folder of the snapshot."""
        room = self.cache / f"models--{repository.replace('/', '--')}"
        snapshot = room / "snapshots" / commit
        (room / "blobs").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            blob = room / "blobs" / hashlib.sha256(content).hexdigest()
            blob.write_bytes(content)
            at = snapshot / name
            at.parent.mkdir(parents=True, exist_ok=True)
            at.symlink_to(blob)
        (room / "refs").mkdir(exist_ok=True)
        (room / "refs" / "main").write_text(commit)
        return snapshot


def offline_mirror(folder: Path, monkeypatch) -> HubMirror:
    """An empty cache in which huggingface_hub looks, and nowhere else."""
    mirror = HubMirror(folder / "hf" / "hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(mirror.cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return mirror


def hub_that_lists(monkeypatch, mirror: HubMirror, files: dict[str, bytes]) -> list[str]:
    """A Hub with these files of any repository: what is asked for lies in the mirror then, and in the list that comes
    back."""
    fetched = list[str]()

    def model_info(self, repository, revision=None):
        siblings = [SimpleNamespace(rfilename=file) for file in files]
        return SimpleNamespace(siblings=siblings, sha=None)

    def snapshot_download(name, *, revision, local_files_only, allow_patterns, ignore_patterns=()):
        assert not local_files_only
        wanted = list(
            huggingface_hub.utils.filter_repo_objects(
                files, allow_patterns=allow_patterns, ignore_patterns=list(ignore_patterns)
            )
        )
        fetched.extend(wanted)
        commit = hashlib.sha1(json.dumps(sorted(wanted)).encode()).hexdigest()
        return str(mirror.put(name, {file: files[file] for file in wanted}, commit))

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return fetched
