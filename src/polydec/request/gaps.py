"""A text with gaps, filled by a model that continues texts and was trained for it (`polydec train lm
--objective cm3`)."""

from __future__ import annotations

from typing import Any

from polydec.request.engine import generate
from polydec.request.loaded import LoadedModel


def fill_gaps(model: LoadedModel, text: str, *, before: str = "", **fields: Any) -> str:
    """The text with something in the place of every [[n]], which stands for up to n tokens.

    Gaps are filled from the first to the last, each behind the text with marks, and what fills the
    gaps before; what stands around a gap is not changed. A gap includes the space before its first
    word where tokens begin with theirs: "the[[5]] sea".

    Args:
        model: One that was trained for it.
        text: With at least one gap.
        before: What stands before it, in which [[n]] is no gap. Default "": nothing.
        fields: Of `Ask`, but for prompt, raw, infill and max_tokens: any method, sampling and
            constraint.

    Returns:
        The text without gaps, without `before`.

    Raises:
        RequestError: The model has no such marks, or the text no gap, or more than the model has
            marks for.

    Source: Aghajanyan et al., "CM3: a causal masked multimodal model of the internet" (2022).
    """
    # Ids: an empty text is still behind the mark of a beginning.
    prompt = model.checkpoint.text.encode(before, special=True)
    # Of several answers, where `n` asks for them, the first.
    return generate(model, prompt, infill=text, **fields).choices[0].text
