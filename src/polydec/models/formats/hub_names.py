"""Names of models on the Hugging Face Hub as people write them, and which GGUF files of a repository one means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polydec.base.edge import error_sentence
from polydec.base.errors import FileError

HOSTS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://", re.IGNORECASE)
"""What an address of the Hub begins with."""
REPOSITORY = re.compile(r"[\w.-]+(?:/[\w.-]+)?", re.ASCII)
PAGE = re.compile(r"/(?:tree|blob|resolve)/([^/]+)(?:/(.+))?")
"""What stands behind a repository in the address of a folder or a file: its revision and its path."""
PART = re.compile(r"-(\d{5})-of-(\d{5})$")
QUANTISATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d|TQ\d|MXFP4|NVFP4|BF16|FP?16|FP?32)[A-Z0-9_]*)$", re.IGNORECASE
)
"""How a file's name ends that says its quantisation; UD- is what some publishers write before theirs."""
USUAL = "Q4_K_M"
"""Taken where a name says no quantisation and the repository has several."""
ASIDE = ("mmproj", "imatrix")
"""Names of GGUF files that hold no language model."""
MOST_LISTED = 12


@dataclass(frozen=True)
class HubName:
    """A model on the Hub.

    Attributes:
        repository: OWNER/REPO, or REPO alone for some old ones.
        choice: Quantisation or name of its GGUF file; "" where the name says none.
        revision: Branch, tag or commit; None: the repository's main branch.
    """

    repository: str
    choice: str = ""
    revision: str | None = None


@dataclass(frozen=True)
class GGUFModelFiles:
    """A model among the GGUF files of a repository.

    Attributes:
        files: Its parts in order, by their paths in the repository.
        quantisation: As its name says it, in capitals; "" where it says none.
    """

    files: tuple[str, ...]
    quantisation: str

    @property
    def colon_name(self) -> str:
        """How it is named behind a colon."""
        return self.quantisation or self.files[0]


def parse_hub_name(name: str) -> HubName:
    """Read the name of a model on the Hub.

    Legal are OWNER/REPO, REPO, these with `:QUANTISATION` or `:FILE.gguf`, and the same behind `hf.co/`,
    `https://huggingface.co/` or `hf://`, also as the address of a folder or of a file.

    Args:
        name: The name, which is of no file or directory here.

    Returns:
        The repository and what of it is meant.

    Raises:
        FileError: It cannot be the name of a repository.
    """
    host = HOSTS.match(name)
    # Addresses are copied out of a browser, with whatever stands behind a question mark.
    rest = name[host.end() :].partition("?")[0].strip("/") if host else name
    rest, colon, choice = rest.partition(":")
    revision = None
    if host:
        owner, _, behind = rest.partition("/")
        repository, slash, page = behind.partition("/")
        rest = f"{owner}/{repository}" if repository else owner
        address = PAGE.fullmatch(slash + page)
        if slash and address is None:
            raise _no_name(name, "an address of the Hub is https://huggingface.co/OWNER/REPO")
        if address is not None:
            # A page of a repository: a branch, and a file of it where one is named.
            revision = address[1]
            if (address[2] or "").lower().endswith(".gguf"):
                choice = address[2]
    # Another host is refused by name, and not looked for as a file.
    elif "://" in name:
        raise _no_name(name, "models are fetched from https://huggingface.co alone")
    elif _looks_like_path(rest):
        raise _no_name(name, _no_such_file(rest))
    # Half a name must not stand for the whole repository.
    if colon and not choice:
        raise _no_name(name, f"behind the colon stands a quantisation, as {rest}:{USUAL}")
    if REPOSITORY.fullmatch(rest) is None:
        raise _no_name(
            name,
            "there is no such file, and a Hub id is OWNER/REPO, of letters, digits, -, _ and .",
        )
    # Another program's word for "whichever".
    if choice.lower() == "latest":
        choice = ""
    return HubName(rest, choice, revision)


def _looks_like_path(name: str) -> bool:
    """Whether a name can only be that of a file here: a Hub id has one slash at most."""
    return (
        name[:1] in ("", ".", "/", "~")
        or name.endswith((".gguf", ".safetensors"))
        or name.count("/") > 1
    )


def _no_such_file(name: str) -> str:
    parts = name.split("/")
    # A file of a repository, in a form that is not read: say the one that is.
    if len(parts) > 2 and parts[0] not in ("", ".", "..", "~") and name.endswith(".gguf"):
        return (
            f"no such file or directory; of a repository on the Hub it would be "
            f"{parts[0]}/{parts[1]}:{'/'.join(parts[2:])}"
        )
    return "no such file or directory"


def _no_name(name: str, why: str) -> FileError:
    return FileError(error_sentence(f"model {name!r} is not there: {why}"))


def group_gguf_files(files: Iterable[str]) -> list[GGUFModelFiles]:
    """The models among the files of a repository: parts of one model are put together.

    Args:
        files: Paths in the repository.

    Returns:
        One entry a model, in the order of their names; files of other things, such as what reads pictures, are left
        out.
    """
    models = dict[str, list[str]]()
    for path in sorted(files):
        stem, _, end = path.rpartition(".")
        if end.lower() != "gguf" or any(word in _last(path).lower() for word in ASIDE):
            continue
        # The parts of a model differ in their numbers alone, and sorted paths give them in order.
        models.setdefault(PART.sub("", stem), []).append(path)
    return [GGUFModelFiles(tuple(parts), _quantisation(stem)) for stem, parts in models.items()]


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _quantisation(stem: str) -> str:
    """What a name says of it, else the folder's name."""
    found = None
    # From the file's name outwards: some repositories have a folder for each quantisation.
    for word in reversed(stem.split("/")):
        found = found or QUANTISATION.search(word)
    return found[1].upper() if found else ""


def choose_gguf_model(name: HubName, files: Iterable[str]) -> tuple[GGUFModelFiles, str]:
    """Choose among the GGUF files of a repository.

    Args:
        name: The repository, and what of it is asked for.
        files: Paths in the repository.

    Returns:
        The model, and a sentence where it was chosen without being named; "" otherwise.

    Raises:
        FileError: There is none of that name, or several and no way to choose.
    """
    models = group_gguf_files(files)
    where = name.repository
    if not models:
        raise FileError(
            error_sentence(
                f"model '{where}:{name.choice}' is not there: the repository has no GGUF files"
            )
        )
    note = ""
    if name.choice:
        found = _matching(name.choice, models)
    elif len(models) == 1:
        found = models
    else:
        found = [model for model in models if model.quantisation == USUAL]
        others = _listed(model.colon_name for model in models if model not in found)
        note = f"{where} names no quantisation: {USUAL} is taken ({where}:NAME takes {others})"
    if not found:
        labels = [model.colon_name for model in models]
        if not name.choice:
            raise FileError(
                error_sentence(
                    f"model {where!r} has several GGUF files and none is {USUAL}: name one, such as "
                    f"{where}:{_nearest_label(USUAL, labels)}, of {_listed(labels)}"
                )
            )
        near = _nearest_label(name.choice, labels)
        nearest = f"the nearest is {near}, " if near else ""
        raise FileError(
            error_sentence(
                f"model '{where}:{name.choice}' is not there: {nearest}the repository has {_listed(labels)}"
            )
        )
    # A repository may hold two models in the same quantisation.
    if len(found) > 1:
        raise FileError(
            error_sentence(
                f"model {where!r} has several files in {found[0].colon_name}: name one, such as "
                f"{where}:{found[0].files[0]}, of {_listed(model.files[0] for model in found)}"
            )
        )
    _check_parts(where, found[0].files)
    return found[0], note


def _nearest_label(choice: str, labels: Sequence[str]) -> str:
    """What may stand for a choice that is not there.

    Args:
        choice: What was asked for.
        labels: What there is.

    Returns:
        One of them; "" where none is near.
    """
    asked = QUANTISATION.search(choice)
    known = [label for label in labels if QUANTISATION.search(label)]
    if asked is None or not known:
        near = difflib.get_close_matches(choice.upper(), labels, 1, 0.4)
        return near[0] if near else ""

    def distance(label: str) -> tuple[int, float]:
        # As many bits a weight matter more than letters that look alike.
        alike = difflib.SequenceMatcher(None, choice.upper(), label).ratio()
        return abs(_weight_bits(label) - _weight_bits(choice)), -alike

    return min(known, key=distance)


def _weight_bits(quantisation: str) -> int:
    """The bits a weight that the name of a quantisation says."""
    digits = re.search(r"\d+", quantisation)
    return int(digits[0]) if digits else 0


def _matching(choice: str, models: Sequence[GGUFModelFiles]) -> list[GGUFModelFiles]:
    """The models that a choice names: by quantisation, else by its end, else by a file's name."""
    wanted = choice.upper()
    tests = (
        lambda model: model.quantisation == wanted,
        lambda model: model.quantisation.endswith(f"-{wanted}"),
        lambda model: wanted in _file_names(model),
    )
    # The first test that any model passes decides: an exact name goes before a part of one.
    for is_meant in tests:
        found = [model for model in models if is_meant(model)]
        if found:
            return found
    return []


def _file_names(model: GGUFModelFiles) -> set[str]:
    """What a model may be called by its file: with and without folder, end and number of the part."""
    # In capitals on both sides, so that small letters may be typed as well.
    first = model.files[0].upper().removesuffix(".GGUF")
    stems = {first, PART.sub("", first)}
    stems |= {_last(stem) for stem in stems}
    return stems | {f"{stem}.GGUF" for stem in stems}


def _listed(labels: Iterable[str]) -> str:
    # Several models may have one quantisation, which is said once.
    names = list(dict.fromkeys(labels))
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _check_parts(where: str, files: Sequence[str]) -> None:
    """Raise FileError where a part of a model in several files is missing."""
    part = PART.search(files[0].rpartition(".")[0])
    # Each part's name says how many there are.
    count = int(part[2]) if part else 1
    if len(files) != count:
        raise FileError(
            error_sentence(
                f"model {where!r} has {len(files)} of the {count} parts of {files[0]}: the others are not there"
            )
        )
