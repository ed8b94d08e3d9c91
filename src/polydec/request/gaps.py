"""Gaps of a text filled by a model that was trained with spans moved to the end (`polydec train lm
--objective cm3`)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from polydec.base.errors import RequestError
from polydec.request.engine import generate
from polydec.request.loaded import LoadedModel

GAP = "<|gap:{}|>"
FILLED = "<|filled|>"
"""The marks of such a model: in the place of gap k, and behind what fills one."""
_GAPS = re.compile(r"\[\[(\d{1,6})\]\]")


def has_gap_marks(model: LoadedModel) -> bool:
    """Return whether a model was trained to fill gaps of a text that it continues."""
    return all(_mark(model, mark) is not None for mark in (FILLED, GAP.format(0)))


def fill_gaps(model: LoadedModel, text: str, *, before: str = "", **fields: Any) -> str:
    """The text with something in the place of every [[n]], which stands for up to n tokens.

    Gaps are filled from the first to the last, each by a request of its own whose prompt is the
    text with marks, and what fills the gaps before; what stands around a gap is not changed. A gap
    includes the space before its first word where tokens begin with theirs: "the[[5]] sea". Several
    answers to one gap share the prompt's cache entries; the first is taken.

    Args:
        model: One that was trained for it.
        text: With at least one gap.
        before: What stands before it, in which [[n]] is no gap. Default "": nothing.
        fields: Of `Ask`, but for prompt, raw and max_tokens: any method, sampling and constraint.

    Returns:
        The text without gaps, without `before`.

    Raises:
        RequestError: The model has no such marks, or the text no gap, or more than the model has
            marks for.

    Source: Aghajanyan et al., "CM3: a causal masked multimodal model of the internet" (2022).
    """
    words = model.checkpoint.text
    gaps = [int(n) for n in _GAPS.findall(text)]
    marks = [m for k in range(len(gaps)) if (m := _mark(model, GAP.format(k))) is not None]
    filled = _mark(model, FILLED)
    if not gaps or filled is None or len(marks) < len(gaps):
        raise RequestError(
            f"text has {len(gaps)} gaps, and {model.name} has marks for {_known(model)}: write [[5]] where up to five "
            "tokens are to be filled in (`polydec train lm --objective cm3` makes a model for that)"
        )
    # Every second part is text.
    parts = _GAPS.split(text)[::2]
    read = (before + parts[0], *parts[1:])
    left, *rest = (words.encode(part, special=False) if part else () for part in read)
    prompt = (*words.encode("", special=True), *left)
    # A gap in the prompt is a mark; what fills it comes behind the text, after the same mark.
    for mark, part in zip(marks, rest):
        prompt += (mark, *part)
    sampling = fields.pop("sampling", None) or model.sampling_with()
    # A gap ends with its own mark and nothing else.
    others = model.checkpoint.lm.vocab.eos - {filled}
    sampling = replace(sampling, bad_token_ids=(*sampling.bad_token_ids, *sorted(others)))
    pieces = [parts[0]]
    for mark, most, part in zip(marks, gaps, parts[1:]):
        prompt += (mark,)
        answer = generate(model, prompt, max_tokens=most, sampling=sampling, **fields).choices[0]
        written = tuple(x for x in answer.token_ids if x != filled)
        prompt += (*written, filled)
        pieces += [words.decode(written), part]
    return "".join(pieces)


def _mark(model: LoadedModel, mark: str) -> int | None:
    """The token of a mark; None where the tokenizer has none."""
    ids = model.checkpoint.text.encode(mark, special=False)
    if len(ids) == 1:
        return ids[0]
    return None


def _known(model: LoadedModel) -> int:
    """Gaps that a text may have."""
    count = 0
    while count < 1000 and _mark(model, GAP.format(count)) is not None:
        count += 1
    return count
