"""Pages of ours as templates: files that end in .jinja, beside the modules that fill them in."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from polydec.base.edge import escape_control_characters

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render_page_template(name: str, **values: object) -> Markup:
    """Fill in a template of this package.

    Every text is escaped, control characters as well; only what this function has returned before
    is taken as HTML.

    Args:
        name: The template's file, below the package, such as `cli/page.html.jinja`.
        values: Values of the names in the template.

    Returns:
        HTML or SVG.
    """
    # Loaded by the first page that is drawn: most commands draw none.
    from markupsafe import Markup

    return Markup(_environment().get_template(name).render(values))


@lru_cache(1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("polydec", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_without_control_characters,
    )
    environment.filters |= {"cut": _cut, "number": format}
    return environment


def _without_control_characters(value: object) -> object:
    # What is HTML already has been through here.
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return escape_control_characters(value)
    return value


def _cut(text: object, longest: int = 400) -> str:
    """The beginning of a text that may be megabytes long."""
    return str(text)[:longest]
