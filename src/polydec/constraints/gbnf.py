"""llama.cpp's form of grammars, read as the one of `Lark`."""

from __future__ import annotations

from polydec.base.edge import sentence
from polydec.base.errors import RequestError
from polydec.constraints import guidance

LONGEST = 1 << 16
"""Characters of a grammar."""


def lark_of(grammar: str) -> str:
    """A grammar in GBNF (`root ::= …`) as Lark has it. Raises RequestError with one sentence where it is none."""
    if not isinstance(grammar, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RequestError('a grammar must be a text in GBNF, such as root ::= "yes" | "no"')
    if len(grammar) > LONGEST:
        raise RequestError(
            f"the grammar has {len(grammar)} characters: in GBNF it may have {LONGEST}"
        )
    if "::=" not in grammar:
        raise RequestError(
            "the grammar has no rule (root ::= …): it must be GBNF, as llama.cpp has it; one in Lark's form goes into "
            "structured_outputs or guided_grammar"
        )
    guidance.library()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(grammar)
    except RecursionError:
        raise RequestError("the grammar is nested too deeply") from None
    except (
        Exception
    ) as error:  # the library's reader has its own, and others' where a text ends early
        raise RequestError(
            sentence(f"the grammar is not GBNF: {error or type(error).__name__}")
        ) from None
