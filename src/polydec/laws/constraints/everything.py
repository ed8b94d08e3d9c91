"""All texts: what is asked where nothing is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class UnrestrictedLanguage:
    """The language of all texts over `size` tokens."""

    size: int
    finite = False

    def start_state(self) -> None:
        return None

    def next_state(self, state: None, token: int) -> None:
        """Return None: every text is allowed.

        Args:
            state: None.
            token: Token id that follows.

        Returns:
            None.
        """
        return None

    def allows_token(self, state: None, token: int) -> bool:
        """Allow every token.

        Args:
            state: None.
            token: Token id.

        Returns:
            True.
        """
        return True

    def token_mask(self, state: None) -> Tensor:
        return torch.ones(self.size, dtype=torch.bool)

    def forced_bytes(self, state: None) -> bytes:
        return b""
