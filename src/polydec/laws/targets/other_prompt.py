"""A law that reads another prompt than the one that is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.laws.targets.other_prompt_session import PrefixSession


@dataclass(frozen=True)
class SecondPromptTarget:
    """`target`, to which a text that begins with `prompt` is shown with `instead` in its place;
    any other text as it is. It is the second stream of a contrast: the same answer behind a prompt
    without the condition, without the passage, without the examples. The two may differ in length
    and in their last token.

    prompt, instead: at least one token each. Rows of the prompt (prefill with want.prompt) are
    those of `instead`.

    Exact: the law of `target` behind another prompt, no approximation of it.
    Reduces to: `target` where the prompts are the same.
    """

    target: Target
    prompt: tuple[int, ...]
    instead: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prompt or not self.instead:
            raise RequestError("prompt and its replacement need at least one token each")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        """0: nobody needs layers of it alone."""
        return 0

    def open_session(self, prompt: Sequence[int]) -> RepromptedSession:
        n = len(self.prompt)
        # Any other text is read as it is.
        if tuple(prompt[:n]) == self.prompt:
            text = (*self.instead, *prompt[n:])
        else:
            text = tuple(prompt)
        # The root is the last token of both texts; it differs where nothing follows the prompt.
        return RepromptedSession(self.target.open_session(text), (prompt[-1], text[-1]))


class RepromptedSession(PrefixSession):
    """The same answer behind a prompt that may end otherwise."""

    _no_parts = "layers cannot run alone behind another prompt"
    prompt = "the prompt that another stands for"

    def fork(self, choice: int | None = None) -> RepromptedSession:
        twin = RepromptedSession(self._inner.fork(choice), self._roots, self._done)
        twin._draft = self._draft
        return twin
