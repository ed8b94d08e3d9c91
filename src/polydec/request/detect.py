"""Is a text watermarked? The other half of polydec.laws.shapers.watermark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from polydec.base.errors import RequestError
from polydec.laws.shapers.watermark import check_list, green_token_count, green_token_mask


@dataclass(frozen=True)
class WatermarkDetection:
    """scored: pairs of neighbours that were looked at; green: of how many the second token is
    green; z: how many standard deviations that is above what a text without the watermark has; p:
    how likely such a text reaches z."""

    scored: int
    green: int
    z: float
    p: float


def detect_watermark(
    tokens: Sequence[int], size: int, *, share: float = 0.25, key: int = 0, repeats: bool = False
) -> WatermarkDetection:
    """Look for the watermark of a key in a text.

    Args:
        tokens: The text, at least two ids.
        size: Tokens of the vocabulary, at least 2.
        share: Of the vocabulary that is green, as the text was written with (`watermark_share`).
            Default 0.25.
        key: As the text was written with (`watermark_key`). Default 0.
        repeats: Count a pair of neighbours each time it stands there, not once. Repeated pairs are
            no new evidence: a text that repeats itself would seem marked, or unmarked, by chance.

    Returns:
        How many pairs are green, and how surprising that is.

    Raises:
        RequestError: The text has fewer than two tokens, or one outside the vocabulary; a value is
            out of range; or every token would be green.

    Source: Kirchenbauer et al., "A watermark for large language models", 2023 (the z test).
    """
    check_list(share, key)
    pairs = list(pairwise(tokens))
    if not pairs:
        raise RequestError(
            f"text has {len(tokens)} tokens: a watermark is looked for in two and more"
        )
    # Ids of another tokenizer would count green by chance.
    if bad := next((x for x in tokens if not 0 <= x < size), None):
        raise RequestError(f"text has token {bad}: ids must lie in 0 to {size - 1}")
    chance = green_token_count(share, size) / size
    if chance == 1.0:
        raise RequestError(
            f"size is {size}: all of so few tokens are green, so nothing can be told"
        )
    # A pair that repeats is no further evidence.
    if not repeats:
        pairs = list(dict.fromkeys(pairs))
    # Whether a token is green depends on the one before it and on the key.
    hits = sum(bool(green_token_mask(key, before, share, size)[x]) for before, x in pairs)
    # The z test: hits of a text without the watermark are binomial.
    z = (hits - chance * len(pairs)) / math.sqrt(len(pairs) * chance * (1.0 - chance))
    return WatermarkDetection(len(pairs), hits, z, 0.5 * math.erfc(z / math.sqrt(2.0)))
