"""polydec pull: download a model."""

from __future__ import annotations

from typing import Annotated

import typer

from polydec.base.edge import escape_control_characters
from polydec.cli.models import size_text
from polydec.cli.terminal_output import print_result
from polydec.models.formats import zoo


def pull(
    name: Annotated[
        str,
        typer.Argument(
            help="owner/repo or owner/repo:Q4_K_M of the Hugging Face Hub, its address, or zoo:NAME"
        ),
    ],
) -> None:
    """Download a model, and say where it lies. What is here already is not fetched again.\f

    Args:
        name: Name of the model, as `polydec.load` takes it.
    """
    # Imported here: it loads torch.
    from polydec.models.formats.hub_cache import checkpoint_bytes
    from polydec.models.sessions.sources import find_checkpoint

    # Some models of the zoo are packages, and these are installed in place of a download.
    if name.startswith("zoo:"):
        path = zoo.install_zoo_model(name)
    else:
        path = find_checkpoint(name)
    size = size_text(checkpoint_bytes(path))
    print_result(escape_control_characters(f"{name} is at {path} ({size})"))
