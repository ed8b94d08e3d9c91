"""What is found by the files of a folder: published methods, ways to steer, ways to keep a cache.
Each file has a CARD and a `build`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar

from polydec.base import plugins
from polydec.base.errors import RequestError
from polydec.base.options import Option, as_text, callable_options, name_suggestion, short_repr
from polydec.methods.registry.card import Card
from polydec.methods.registry.published_presets import PRESET_FLAG, PRESET_OPTION, PublishedPreset
from polydec.methods.registry.published_systems import paper_titles

LONGEST = 100
"""Characters of a wrong name that are compared with the right ones."""
NameT = TypeVar("NameT", str, tuple[str, str])


@dataclass(frozen=True)
class ModuleCatalogue:
    """The modules of some folders, with those that other packages bring.

    packages: the folders as packages; room: the end of the plug-ins' entry points; kind: what one
    of its modules is called in a sentence about its options; field: what the name of one is called
    where it is wrong, with the verb.
    """

    packages: tuple[str, ...]
    room: str
    kind: str
    field: str

    def all_modules(self) -> dict[str, ModuleType]:
        """Return every module by its name, which is the file's with hyphens."""
        return _modules(self)

    def all_names(self) -> dict[str, str]:
        """Every name that a module answers to, in lower case: its own, its aliases, its paper's
        number; and its own name."""
        return _names(self)

    def find_module(self, name: str, otherwise: str) -> str:
        """Look a module up by one of its names.

        Args:
            name: Its own name, an alias or an arXiv number.
            otherwise: The end of the sentence where no name is near.

        Returns:
            Its own name.

        Raises:
            RequestError: There is none of that name; the nearest ones are named.
        """
        plain = in_hyphens(name)
        if plain in self.all_names():
            return self.all_names()[plain]
        # A misspelt name is likely close to a right one; else the words may stand in a title or
        # summary.
        likely = self._near(plain, 0.65) or self.search_modules(name[:LONGEST])
        if likely:
            hint = f"did you mean {' or '.join(likely[:3])}?"
        else:
            hint = otherwise
        raise RequestError(f"{self.field.format(short_repr(name))}: {hint}")

    def _near(self, plain: str, alike: float) -> list[str]:
        """Up to three modules whose names are spelled alike, in difflib's measure from 0 to 1."""
        near = get_close_matches(plain[:LONGEST], self.all_names(), 3, alike)
        return list(dict.fromkeys(self.all_names()[x] for x in near))

    def search_modules(self, words: str) -> list[str]:
        """Modules whose name, aliases, title, paper or summary hold all of these words, those whose
        name does first."""
        return search_described_names(words, self.searched_texts())

    def searched_texts(self) -> Mapping[str, tuple[str, ...]]:
        """What is said of every module, by its name: the most telling text first."""
        return _searched_texts(self)

    def module_options(self, name: str) -> tuple[Option, ...]:
        """Return the options of a module by its own name, from the signature of its `build`."""
        return _options(self, name)

    def complete_options(self, name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Complete the options of a module, under their names of today.

        Args:
            name: The module's own name.
            given: Options as text or typed; the others have their defaults. With `published=true`
                they have what the module's paper sets.

        Returns:
            All options with the values they have.

        Raises:
            RequestError: An option is unknown, given twice, of the wrong type or out of range; or
                the published preset is asked for and cannot be had, or an option contradicts it.
        """
        given = self._with_published_options(name, given or {})
        known = {o.name: o for o in self.module_options(name)}
        # Earlier names of options stay legal.
        today = {o.formerly: o.name for o in known.values() if o.formerly}
        values = dict[str, Any]()
        for option, value in given.items():
            now = today.get(option, option)
            place = f"of {self.kind} {name}"
            if now not in known:
                raise RequestError(
                    f"option {short_repr(option)} {place} is unknown: {_nearest(str(option), known)}"
                )
            # Both names may come, from an old file and from a flag, and neither may win in silence.
            if now in values:
                raise RequestError(
                    f"option {now} {place} is given twice: {known[now].formerly} is its earlier name"
                )
            values[now] = value
        return {
            o.name: o.convert_value(values[o.name]) if o.name in values else o.default
            for o in known.values()
        }

    def published_preset(self, name: str) -> PublishedPreset | None:
        """What the paper of a module sets, by the module's own name; None where nobody has read it
        against the options yet."""
        return getattr(self.all_modules()[name], "PUBLISHED", None)

    def _with_published_options(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The given options, with the published values in the place of the preset's flag."""
        if PRESET_FLAG not in given:
            return given
        # The flag is no option of the module: what is left of the given options are.
        rest = {key: value for key, value in given.items() if key != PRESET_FLAG}
        if not PRESET_OPTION.convert_value(given[PRESET_FLAG]):
            return rest
        preset = self.published_preset(name)
        asked = f"published of {self.kind} {name} is true"
        if preset is None:
            raise RequestError(
                f"{asked}: nobody has read its paper against these options yet, so set them one by one"
            )
        # Half of a paper under its name would be worse than none.
        if preset.refused:
            raise RequestError(f"{asked}: {preset.refused}")
        known = {option.name: option for option in self.module_options(name)}
        # An option beside the preset may repeat it, as text or typed, and not contradict it.
        for option, setting in preset.settings.items():
            if option in rest and known[option].convert_value(rest[option]) != setting.value:
                raise RequestError(
                    f"option {option} of {self.kind} {name} is {short_repr(rest[option])}, and published=true sets "
                    f"it to {as_text(setting.value)}: leave one of them out"
                )
        return {**rest, **{option: setting.value for option, setting in preset.settings.items()}}

    def describe_published(self, name: str) -> dict[str, Any]:
        """What `polydec methods --published NAME --json` prints.

        Args:
            name: The module's own name.

        Returns:
            The name, a sentence, whether its paper was read, and for each option that differs our
            default, the published value and why.
        """
        # A preset that is refused has no settings, and its sentence says why.
        preset = self.published_preset(name)
        ours = {option.name: option.default for option in self.module_options(name)}
        if preset is None:
            summary = "nobody has read its paper against these options yet"
            settings = {}
        else:
            summary = preset.preset_sentence
            settings = preset.settings
        rows = [
            {"option": option, "ours": ours[option], "published": setting.value, "why": setting.why}
            for option, setting in settings.items()
        ]
        return {"name": name, "read": preset is not None, "summary": summary, "settings": rows}

    def describe_module(self, name: str) -> dict[str, Any]:
        """Return what a module's card and options say, by its own name, as an object for JSON."""
        card: Card = self.all_modules()[name].CARD
        return {
            "name": card.name,
            "title": card.title,
            "summary": card.summary,
            "kind": card.kind,
            "needs": [n.name for n in card.needs],
            "source": card.source,
            "arxiv": card.arxiv,
            "aliases": list(card.aliases),
            "reduces_to": card.reduces_to,
            "home": card.home,
            "published": card.published,
            "options": {
                o.name: {
                    "type": o.legal,
                    "default": o.default,
                    "help": o.help,
                    "schema": o.json_schema(),
                }
                for o in self.module_options(name)
            },
        }


def in_hyphens(name: str) -> str:
    """How names are compared: in lower case, with a hyphen for whatever stands between words."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def search_described_names(
    words: str, described: Mapping[NameT, Sequence[str]], whole_words: bool = False
) -> list[NameT]:
    """The names of which some words are said.

    Args:
        words: Separated by spaces, each the beginning of a word there; what a hyphen joins must
            stand together.
        described: By name, what is said of it, the most telling text first.
        whole_words: Whether the beginning of a word is not enough. Default False.

    Returns:
        The names; those first of which the first texts say all words, whole words before
        beginnings.
    """
    # Signs that stand alone, such as "&", say nothing.
    plain = [_letters(word).strip("-") for word in words.split()]
    begun = [f"-{word}" for word in plain if word]
    whole = [f"{word}-" for word in begun]
    ranks = dict[NameT, tuple[int, bool]]()
    if not begun:
        return []
    for name, texts in described.items():
        for rank in range(len(texts)):
            # A word begins after a hyphen, so "-word" in the text matches beginnings of words only.
            said = f"-{_letters(' '.join(texts[: rank + 1]))}-"
            only_begun = not all(word in said for word in whole)
            if only_begun and (whole_words or not all(word in said for word in begun)):
                continue
            ranks[name] = (rank, only_begun)
            break
    return sorted(ranks, key=lambda name: (ranks[name], name))


@lru_cache(4096)
def _letters(text: str) -> str:
    """Letters and digits in lower case, with a hyphen for whatever stands between them."""
    return re.sub(r"[\W_]+", "-", text.lower())


def _nearest(name: str, known: Collection[str]) -> str:
    if known:
        return name_suggestion(name, known, "the options")
    return "it has no options"


@cache
def _modules(catalogue: ModuleCatalogue) -> dict[str, ModuleType]:
    found = {
        module.name.replace("_", "-"): import_module(f"{package}.{module.name}")
        for package in catalogue.packages
        for module in iter_modules(import_module(package).__path__)
        if not module.name.startswith("_")
    }
    # The package's own modules come first: a plug-in may not take one of their names.
    own = dict(sorted(found.items()))
    return own | plugins.load_plugins(
        catalogue.room, own, plugins.with_card, "CARD of that name with a build"
    )


@cache
def _names(catalogue: ModuleCatalogue) -> dict[str, str]:
    out = dict[str, str]()
    for name, module in catalogue.all_modules().items():
        card: Card = module.CARD
        # The first module that claims a name keeps it.
        for known in (name, *card.aliases, *filter(None, [card.arxiv])):
            out.setdefault(in_hyphens(known), name)
    return out


@cache
def _searched_texts(catalogue: ModuleCatalogue) -> Mapping[str, tuple[str, ...]]:
    # A card names the paper in short; its whole title stands with the published systems.
    papers = paper_titles(catalogue.kind)
    # A match in the name ranks above one in the summary.
    return {
        name: (
            " ".join((name, *m.CARD.aliases, m.CARD.arxiv)),
            f"{m.CARD.title} {papers.get(name, '')}",
            m.CARD.source + " " + m.CARD.summary,
        )
        for name, m in catalogue.all_modules().items()
    }


@cache
def _options(catalogue: ModuleCatalogue, name: str) -> tuple[Option, ...]:
    return callable_options(catalogue.all_modules()[name].build)
