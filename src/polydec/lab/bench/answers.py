"""Is an answer the one that is wanted? For workloads whose rows say it (`answer`)."""

from __future__ import annotations

import re

LONGEST = 12
"""Words of an answer that can be looked for; a longer one is an example of what might be said, no
measure."""

_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
_WORD = re.compile(r"\w+")


def wanted_answer(answer: str | float | None) -> str | None:
    """The answer as it is looked for: what follows #### (GSM8K), a number, or a few words.

    None where there is nothing that a text could be compared with.
    """
    if answer is None:
        return None
    text = str(answer).rpartition("####")[2].strip()
    if 0 < len(_WORD.findall(text)) <= LONGEST:
        return text
    return None


def has_right_answer(want: str, text: str) -> bool:
    """Whether a text gives the wanted answer.

    A number is right where it is the last one of the text. Words are right where they stand in it
    one after another, whatever their case and the punctuation between them.

    Args:
        want: The wanted answer, as `wanted_answer` gives it.
        text: The text that is judged.

    Returns:
        True where it is right.
    """
    if (number := _value(want)) is not None:
        numbers = _NUMBER.findall(text)
        return bool(numbers) and _value(numbers[-1]) == number
    # Any run of consecutive words of the text that equals the wanted ones.
    words = _WORD.findall(want.casefold())
    spoken = _WORD.findall(text.casefold())
    return any(spoken[i : i + len(words)] == words for i in range(len(spoken) - len(words) + 1))


def _value(text: str) -> float | None:
    """The number that a text is; None where it is none, or more than one."""
    bare = text.strip().lstrip("$").rstrip(".%")
    if _NUMBER.fullmatch(bare):
        return float(bare.replace(",", ""))
    return None
