"""Which answers a request allows: its constraint, an end within the tokens that there are, and what
may be thought before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.laws.constraints import pieces
from polydec.laws.constraints.in_time import DeadlineLanguage, in_time
from polydec.laws.constraints.protocols import OutputConstraint, TokenLanguage
from polydec.methods.registry.family import MASKED_DIFFUSION
from polydec.request.stages import CheckedRequest, EncodedRequest
from polydec.request.thinking import ThinkingSettings

if TYPE_CHECKING:
    from polydec.laws.constraints.canvas_language import CanvasLanguage


@dataclass(frozen=True)
class AnswerLanguage:
    """Which answers a request allows.

    Attributes:
        language: Of whole answers, thinking included. None: all texts.
        ending: What brings answers to an end in time. None: nothing does.
        canvas: Of whole canvases, for a model that fills them in any order. None: all canvases.
    """

    language: TokenLanguage[Any] | None = None
    ending: DeadlineLanguage | None = None
    canvas: CanvasLanguage | None = None


def constraint_of_request(asked: object) -> OutputConstraint | None:
    """The constraint of a request: a constraint, a JSON schema as a dict, a class of pydantic, or
    texts of which the answer is one; None: there is none. Raises RequestError for anything else."""
    if asked is None or hasattr(asked, "token_language"):
        return cast("OutputConstraint | None", asked)
    # Late: most requests have no constraint.
    if isinstance(asked, Mapping):
        from polydec.laws.constraints.json_schema import JsonSchema

        return JsonSchema.of_schema(asked)
    # Known by its method, so that pydantic itself need not be imported.
    if isinstance(asked, type) and hasattr(asked, "model_json_schema"):
        from polydec.laws.constraints.json_schema import JsonSchema

        return JsonSchema.of_schema(cast(Any, asked).model_json_schema())
    if isinstance(asked, (list, tuple)):
        from polydec.laws.constraints.any_of import AnyOf

        return AnyOf(tuple(asked))
    raise RequestError(
        f"constraint is {short_repr(asked)}: give a JSON schema as a dict, a list of texts, or a polydec.Regex, "
        "LarkGrammar, AnyOf, JsonSchema or SpanOf"
    )


def answer_language(
    encoded: EncodedRequest, length: int, thinking: ThinkingSettings | None
) -> AnswerLanguage:
    """Which answers a request allows.

    Args:
        encoded: The request.
        length: Tokens of an answer at most.
        thinking: How its thinking is read. None: it is left as it stands.

    Returns:
        The language of whole answers.

    Raises:
        RequestError: The rest of the request leaves the constraint no room, or no legal end is
            found.
    """
    checked = encoded.checked
    if checked.family.kind is MASKED_DIFFUSION:
        return AnswerLanguage(canvas=_canvas_language(encoded, length, thinking))
    language = None
    ending = None
    if checked.ask.constraint is not None:
        language = _constraint_language(checked)
    if checked.ask.finish and language is not None:
        ending = _end_in_time(checked, language, length)
        language = ending
    if thinking is not None:
        after = thinking.answer_language(
            encoded.model.checkpoint, language, checked.constraint_ends
        )
        language = after or language
    return AnswerLanguage(language, ending)


def _canvas_language(
    encoded: EncodedRequest, length: int, thinking: ThinkingSettings | None
) -> CanvasLanguage | None:
    """What a constraint, or the patterns of gaps, mean to a model that fills canvases; an answer
    always ends within its canvas. Raises RequestError where no answer fits it."""
    checked = encoded.checked
    constraint = checked.ask.constraint
    patterns = encoded.gap_patterns
    if constraint is None and not patterns:
        return None
    # Late: most requests fill no canvas that is bound to a language.
    from polydec.laws.constraints.canvas_constraints import (
        compile_canvas_constraint,
        compile_gap_pattern,
    )
    from polydec.laws.constraints.canvas_language import CanvasLanguage, CanvasSegment

    if constraint is not None and patterns:
        raise RequestError(
            "constraint is given beside gaps with patterns: an answer has one or the other, so leave one out"
        )
    if thinking is not None:
        raise RequestError(
            f"reasoning_format is {checked.ask.reasoning_format!r}: thinking has no bound on a canvas that a constraint "
            "speaks of, so leave one of them out"
        )
    sampling = checked.sampling
    forbidden = set(sampling.bad_token_ids)
    if sampling.allowed_token_ids is not None:
        forbidden |= set(range(checked.vocab.size)) - set(sampling.allowed_token_ids)
    # What rules of sampling never allow is taken out before, so that no gap is left without a token.
    never = frozenset(forbidden)
    if constraint is None:
        called = "the pattern of a gap"
        segments = tuple(
            CanvasSegment(compile_gap_pattern(pattern, checked.vocab, never), start, stop)
            for start, stop, pattern in patterns
        )
    else:
        called = "the constraint"
        whole = compile_canvas_constraint(constraint, checked.vocab, checked.constraint_ends, never)
        segments = (CanvasSegment(whole, first_end=sampling.min_tokens),)
    language = CanvasLanguage(segments, called)
    answer = encoded.infill or (None,) * length
    if not language.can_finish((*encoded.ids, *answer), len(encoded.ids)):
        raise RequestError(_no_room(encoded, language, length))
    return language


def _no_room(encoded: EncodedRequest, language: CanvasLanguage, length: int) -> str:
    """Why no answer fits a canvas, in one sentence."""
    begin = len(encoded.ids)
    canvas = (*encoded.ids, *(encoded.infill or (None,) * length))
    for start, stop, pattern in encoded.gap_patterns:
        part = next(s for s in language.segments if s.start == start)
        if not replace(language, segments=(part,)).can_finish(canvas, begin):
            return (
                f"infill has a gap of {stop - start} tokens for {pattern[:60]!r}: no text of it has that many, "
                "so change the one or the other"
            )
    least = encoded.checked.sampling.min_tokens
    if encoded.infill:
        beside = "what is given of it"
    elif least:
        beside = f"min_tokens {least}"
    else:
        beside = "an end within it"
    return f"constraint holds no text for a canvas of {length} tokens with {beside}: change max_tokens, or what is given"


def _constraint_language(checked: CheckedRequest) -> TokenLanguage[Any]:
    """What a constraint means to this model. Raises RequestError where the rest of the request
    leaves it no room."""
    # Every other form became one where the request was checked.
    constraint = cast(OutputConstraint, checked.ask.constraint)
    ends = checked.constraint_ends
    if not ends:
        raise RequestError(
            "constraint has no token to end an answer with (ignore_eos, or a model without EOS): allow EOS, or "
            "give a special token among stop_token_ids"
        )
    # Compiled here, or taken from what the server compiled while it read.
    language = constraint.token_language(checked.vocab, ends)
    least = checked.sampling.min_tokens
    # Few texts end where they end, so a least length could leave none.
    if language.finite and least:
        raise RequestError(
            f"min_tokens is {least}: the constraint holds a few texts only, and they end where they "
            "end, so leave min_tokens out"
        )
    return language


def _end_in_time(
    checked: CheckedRequest, language: TokenLanguage[Any], length: int
) -> DeadlineLanguage:
    """The language with an end within so many tokens. Raises RequestError where none is found."""
    ends = checked.constraint_ends
    return in_time(
        language,
        length,
        pieces.token_byte_pieces(checked.vocab, ends),
        sorted(x for x in ends if 0 <= x < checked.vocab.size),
    )
