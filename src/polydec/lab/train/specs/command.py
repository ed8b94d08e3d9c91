"""One `polydec train KIND`: its flags are the fields of a spec, its trainer is imported late."""

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

    Attributes:
        name: The command as it is typed.
        summary: One line for lists.
        spec: A frozen dataclass whose fields are declared as options (see base/options.py).
        entry: "module:function", which takes a spec and returns what was measured.
        spelled: Flags that are not called like their field.
        defaults: Defaults of this command that differ from the spec's.
        helps: Help texts of this command that differ from the spec's.
        without: Fields that this command has no flag for.
        reads: How the text of a flag becomes the value of its field, where no option does it.
        sentence: What is printed of a result unless `--json` is given; None: always JSON.
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

    def flag_options(self) -> tuple[Option, ...]:
        """The fields that have a flag, in the order of a list."""
        flags = [
            o
            for o in dataclass_options(self.spec)
            if not o.python_only and o.name not in self.without
        ]
        # Sorting is stable: all fields keep their order, and those of LAST go to the end.
        return tuple(sorted(flags, key=lambda o: o.name in LAST and 1 + LAST.index(o.name)))

    def option_flag(self, option: Option) -> str:
        """The flag of a field, as it is typed."""
        return self.spelled.get(option.name, "--" + option.name.replace("_", "-"))

    def option_default(self, option: Option) -> Any:
        """The value of a field whose flag is left out; REQUIRED where it cannot be."""
        return self.defaults.get(option.name, option.default)

    def option_help(self, option: Option) -> str:
        """The help of a field in one line, with its range."""
        text = self.helps.get(option.name, option.help)
        if not option.range:
            return text
        # A range joins a remark in brackets that is there already.
        if text.endswith(")"):
            return f"{text[:-1]}; {option.range})"
        return f"{text} ({option.range})"

    def train_with(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Train with the values of flags, and return what was measured.

        Raises:
            RequestError: The spec refuses the values.
        """
        spec = self.spec(**values)
        # Imported only now: a list of flags does not need torch.
        module, _, function = self.entry.partition(":")
        return getattr(import_module(module), function)(spec)


def probe_command(spec: Any, what: str) -> TrainingCommand:
    """Make the command of a recipe of `polydec train probe`.

    Args:
        spec: A frozen dataclass with a class variable `recipe`, which names the file of lab/train/probes.
        what: What is trained, as the help says it.

    Returns:
        The command.
    """
    return TrainingCommand(
        f"probe --recipe {spec.recipe}",
        f"Train {what}; prints what was measured as one JSON object.",
        spec,
        "polydec.lab.train.probe:train_probe",
    )


def task_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a network that was trained on generated tasks."""
    return (
        f"{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s, "
        f"loss {result['loss']:.3f} nats; written to {result['out']}"
    )
