"""What `polydec train probe` can be told: of each recipe a file with its spec and its COMMAND.

What a recipe trains is the file of the same name in lab/train/probes. Adding a recipe is adding these two.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from polydec.lab.train.specs.command import TrainingCommand

RECIPES: tuple[TrainingCommand, ...] = tuple(
    import_module(f"{__name__}.{file.name}").COMMAND for file in iter_modules(__path__)
)
"""The command of each recipe, by the names of the files."""
