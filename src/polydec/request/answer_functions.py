"""Functions of the user's that a request brings along: one that bends its law, one that ends its
answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polydec.base.edge import user_function_errors
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.laws.shapers.logits_processor import LogitsProcessorRule
from polydec.request.fields import Ask, StopFunction

_SIGNATURES = {
    "logits_processor": "token ids and logits",
    "stop_when": "token ids and text",
}


@dataclass(frozen=True)
class AnswerFunctions:
    """The rules of an answer (`core.request.AnswerRules`) that functions say.

    Attributes:
        processor: Bends the law of the next token. None: nothing does.
        stop_when: Is asked behind each token whether the answer is over. None: nobody is.
        least: Tokens before which it is not asked.
    """

    processor: LogitsProcessorRule | None = None
    stop_when: StopFunction | None = None
    least: int = 0

    def check_text(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Raise what went wrong at the law behind a text.

        Args:
            prompt: Token ids of the prompt.
            tokens: Token ids of the answer so far.

        Raises:
            RequestError: The function that bends the law failed there.
        """
        # Mostly none has failed, and then no text is put together.
        if self.processor is not None and self.processor.failures:
            self.processor.raise_failure((*prompt, *tokens))

    def ends_answer(self, tokens: Sequence[int], text: str) -> bool:
        """Ask whether an answer is over.

        Args:
            tokens: Its token ids so far, at least one.
            text: What it reads as, as far as that is certain.

        Returns:
            True where the function says so.

        Raises:
            RequestError: The function raised something.
        """
        if self.stop_when is None or len(tokens) < self.least:
            return False
        with user_function_errors("stop_when", f"behind {len(tokens)} tokens"):
            # Whatever is true counts: a match of a regular expression says it as well.
            return bool(self.stop_when(tuple(tokens), text))


def check_functions(ask: Ask) -> None:
    """Raise RequestError where something else than a function stands for one."""
    for name, takes in _SIGNATURES.items():
        given: Any = getattr(ask, name)
        if given is not None and not callable(given):
            raise RequestError(
                f"{name} is {short_repr(given)}: it must be a function of {takes}, or none"
            )


def answer_functions(ask: Ask, least: int) -> AnswerFunctions | None:
    """The functions of a request; None: it has none.

    Args:
        ask: The request, whose functions are checked.
        least: Tokens that an answer has at least.

    Returns:
        The functions, with a memory of failures of their own.
    """
    if ask.logits_processor is None and ask.stop_when is None:
        return None
    processor = None
    if ask.logits_processor is not None:
        processor = LogitsProcessorRule(ask.logits_processor)
    return AnswerFunctions(processor, ask.stop_when, least)
