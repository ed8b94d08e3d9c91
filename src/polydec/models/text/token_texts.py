"""What a token stands for by itself, as log-probabilities show it."""

from __future__ import annotations

from polydec.models.text.tokenizer import Tokenizer


def bytes_of_token(text: Tokenizer, token: int) -> bytes | None:
    """Look up the bytes of a token.

    Args:
        text: The model's tokenizer.
        token: Token id.

    Returns:
        Its bytes; None for a special token.
    """
    # Some checkpoints have more rows than their tokenizer has tokens.
    if token < len(text.pieces):
        return text.pieces[token]
    return None


def token_text(text: Tokenizer, token: int) -> str:
    """Read a token alone.

    Args:
        text: The model's tokenizer.
        token: Token id.

    Returns:
        Its text; a part of a character has U+FFFD, and a special token its name.
    """
    known = bytes_of_token(text, token)
    if known is None:
        return text.tokenizer.id_to_token(token) or ""
    return known.decode("utf-8", "replace")
