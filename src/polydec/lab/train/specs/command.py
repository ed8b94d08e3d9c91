"""One `polydec train KIND`: its flags are the fields of a spec, and what it calls is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from polydec.base.options import Option, dataclass_options

LAST = ("varied", "seed")
"""Fields whose flags stand at the end of a list."""


@dataclass(frozen=True)
class TrainingCommand:
    """How the command line trains one kind.

    name: as it is typed; summary: one line for lists; spec: a frozen dataclass whose fields are declared as options (see
    base/options.py); entry: "module:function", which takes a spec and returns what was measured; spelled: flags that are not
    called like their field; defaults, helps: where this command's differ from the spec's; without: fields that this command
    leaves alone; reads: how the text of a flag becomes the value of its field, where no option does it; sentence: what is
    printed of a result unless `--json` is given (None: always JSON).
    """

    name: str
    summary: str
    spec: Any
    entry: str
    spelled: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    helps: Mapping[str, str] = field(default_factory=dict[str, str])
    without: Collection[str] = ()
    reads: Mapping[str, Callable[[str], Any]] = field(
        default_factory=dict[str, Callable[[str], Any]]
    )
    sentence: Callable[[Mapping[str, Any]], str] | None = None

    def options(self) -> tuple[Option, ...]:
        """The fields that have a flag, in the order of a list."""
        flags = [
            o
            for o in dataclass_options(self.spec)
            if not o.python_only and o.name not in self.without
        ]
        return tuple(sorted(flags, key=lambda o: o.name in LAST and 1 + LAST.index(o.name)))

    def flag(self, option: Option) -> str:
        """How a field is typed."""
        return self.spelled.get(option.name, "--" + option.name.replace("_", "-"))

    def default(self, option: Option) -> Any:
        """What a field is where its flag is left out; REQUIRED where it cannot be."""
        return self.defaults.get(option.name, option.default)

    def help(self, option: Option) -> str:
        """One line of a field with its range."""
        text = self.helps.get(option.name, option.help)
        if not option.range:
            return text
        if text.endswith(")"):
            return f"{text[:-1]}; {option.range})"
        return f"{text} ({option.range})"

    def train(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was measured of what was trained. Raises RequestError for values that the spec refuses."""
        spec = self.spec(**values)
        module, _, function = self.entry.partition(":")
        return getattr(import_module(module), function)(spec)


def task_training_summary(result: Mapping[str, Any]) -> str:
    """What is said of a network that was trained on tasks that are generated."""
    return (
        f"{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s, "
        f"loss {result['loss']:.3f} nats; written to {result['out']}"
    )
