"""Where the last few tokens of a text stood before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TokenWindowIndex:
    """A text that grows, and where it goes on after each window of its tokens.

    Attributes:
        lengths: Lengths of the windows, in tokens, in the order in which they are tried.
        first: Whether a window that comes again keeps its first place; else it takes the last one.
        text: Token ids so far.
        after: For each window that something follows, the index in the text of the token that does.
    """

    lengths: tuple[int, ...]
    first: bool
    text: list[int] = field(default_factory=list[int])
    after: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])

    def extend_by_tokens(self, tokens: Iterable[int]) -> None:
        """Append tokens. Each one is what follows the windows that end right before it."""
        for token in tokens:
            end = len(self.text)
            for n in self.lengths:
                if n <= end:
                    # `end` is where the new token will stand: the window goes on there.
                    window = tuple(self.text[end - n :])
                    if not self.first or window not in self.after:
                        self.after[window] = end
            self.text.append(token)

    def window_matches(self) -> Iterator[tuple[int, int]]:
        """(length, index where the text goes on) of the windows at its end that stood before.

        They come in the order of `lengths`.
        """
        for n in self.lengths:
            # The window at the very end has no successor yet, so it cannot match itself.
            if n < len(self.text):
                start = self.after.get(tuple(self.text[-n:]))
                if start is not None:
                    yield n, start

    def fork(self) -> TokenWindowIndex:
        return TokenWindowIndex(self.lengths, self.first, list(self.text), dict(self.after))
