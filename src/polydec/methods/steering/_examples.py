"""A prompt without its worked examples."""

from __future__ import annotations


def without_examples(prompt: str) -> str:
    """Return a prompt without its worked examples; all else stays as it is.

    Left out are doctests (a line that begins with >>> or ..., and the lines of its result, up to an
    empty one or the docstring's end) and lines that begin with `assert`.
    """
    out = list[str]()
    inside = False
    for line in prompt.split("\n"):
        bare = line.strip()
        if bare.startswith((">>>", "...")) and (inside or bare.startswith(">>>")):
            inside = True
        # The result of a doctest ends with an empty line, or with the docstring that holds it.
        elif inside and (not bare or bare.startswith(('"""', "'''"))):
            inside = False
            out.append(line)
        elif not inside and not bare.startswith("assert "):
            out.append(line)
    return "\n".join(out)
