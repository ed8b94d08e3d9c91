"""A prompt without its worked examples."""

from __future__ import annotations


def without_examples(prompt: str) -> str:
    """Doctests (a line that begins with >>> or ..., and the lines of its result, up to an empty one
    or the docstring's end) and lines that begin with `assert` are left out; all else stays as it
    is.
    """
    out = list[str]()
    inside = False
    for line in prompt.split("\n"):
        bare = line.strip()
        if bare.startswith((">>>", "...")) and (inside or bare.startswith(">>>")):
            inside = True
        elif inside and (not bare or bare.startswith(('"""', "'''"))):
            inside = False
            out.append(line)
        elif not inside and not bare.startswith("assert "):
            out.append(line)
    return "\n".join(out)
