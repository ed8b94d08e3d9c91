"""What a certificate says beside its evidence: on what machine, with which versions, and how to
repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from polydec.api import LoadedModel
from polydec.base.edge import error_sentence, read_json
from polydec.base.errors import RequestError
from polydec.request import machine

VERSION = 1
"""Of the layout of certificates."""

VERDICTS = ("keeps it", "not shown", "near-tie", "fault", "measured")
"""Keeps its promise; nothing speaks against it, and nothing that would show it was exercised;
departs where rounding may decide; departs; or promises nothing and was measured."""


def content_digest(value: object) -> str:
    """A short name of what was written: two that are equal were written alike."""
    return blake2b(repr(value).encode(), digest_size=8).hexdigest()


def certificate_head(lm: LoadedModel, flags: Mapping[str, Any], seeds: list[int]) -> dict[str, Any]:
    """The entries that every certificate begins with: machine, versions, model, seeds and flags.

    Args:
        lm: The loaded model.
        flags: The command's flags by name, with which the certificate can be asked for again.
        seeds: Seeds of all draws.

    Returns:
        The entries, ready for JSON.
    """
    vocab = lm.checkpoint.lm.vocab
    return {
        "certificate": VERSION,
        "machine": machine.describe_machine(lm.network),
        "versions": machine.package_versions(),
        "model": lm.name,
        "vocabulary": {"size": vocab.size, "tokenizer": vocab.tokenizer},
        "kernel": lm.checkpoint.kernel,
        "seeds": seeds,
        "flags": dict(flags),
    }


def read_certificate(path: Path) -> dict[str, Any]:
    """Read a certificate from a file.

    Raises:
        RequestError: The file is no certificate, or one of a later version.
    """
    content = read_json(path)
    # `bool` is an `int` too, so `isinstance` would not do.
    if type(content.get("certificate")) is not int:
        raise RequestError(
            error_sentence(
                f"file {str(path)!r} is no certificate: `polydec verify --json` writes one"
            )
        )
    if content["certificate"] > VERSION:
        raise RequestError(
            error_sentence(
                f"file {str(path)!r} is a certificate of version {content['certificate']}: this polydec reads "
                f"those up to {VERSION}"
            )
        )
    # Only the fields that a repetition reads: the evidence itself is not checked.
    for name, kind in (("flags", dict), ("asked", list), ("verdict", str), ("machine", str)):
        if not isinstance(content.get(name), kind):
            raise RequestError(
                error_sentence(f"file {str(path)!r}: {name} is missing or of another kind")
            )
    return content
