"""`polydec bench --suite hidden-states`: what it brings to change a text's keys and values as it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from polydec.base.errors import RequestError
from polydec.cli.page import INKS, ChartSeries, svg_chart
from polydec.lab.commands.studies.study_report import (
    StudyReport,
    StudyRequest,
    StudySuite,
    format_percent,
)

RATES = (0.0, 3e-4, 1e-3, 3e-3, 1e-2)
"""Steps, in root mean squares of a layer's keys or values; the first is the model as it is."""
SEGMENT = 32
TOKENS = 512
"""Tokens of a text, at most: each begins with an empty cache."""


def measure_hidden_states(asked: StudyRequest) -> StudyReport:
    """Read `each` texts of the file at every rate.

    Raises:
        RequestError: There is no file, the model is of another kind, or no text is long enough.
    """
    # Imported here: a list of commands loads no torch.
    import torch

    from polydec.lab.bench import hidden_states
    from polydec.lab.train.network import from_weights
    from polydec.models.sessions import sources

    if asked.from_ is None:
        raise RequestError("from is none: name a file of texts (--from), one a row")
    source = sources.open_source(asked.flags.model)
    network = from_weights(source.config, source.weights)
    length = min(TOKENS, network.s.context)
    texts = read_long_texts(asked.from_, source.text.encode, length + 1, asked.each)
    rows = list(hidden_states.rate_rows(network, [torch.tensor(t) for t in texts], RATES, SEGMENT))
    # Rates stand on the axis by their number: they grow by threes.
    change = ChartSeries(
        "change",
        [(float(i), r["change"]) for i, r in enumerate(rows)],
        INKS[0],
        [r["interval"] for r in rows],
    )
    return StudyReport(
        f"States changed while a text is read: {asked.flags.model}",
        rows,
        (
            ("rate", lambda r: str(r["rate"])),
            ("perplexity", lambda r: f"{r['perplexity']:.3f}"),
            ("nats a token, change", lambda r: f"{r['change']:+.4f}"),
            ("95 %", lambda r: f"{r['interval'][0]:+.4f} to {r['interval'][1]:+.4f}"),
            ("texts that got better", lambda r: format_percent(r["better"])),
            ("ms a token", lambda r: f"{r['ms']:.2f}"),
        ),
        (
            f"{len(texts)} texts of {length} tokens in segments of {SEGMENT}; each segment is scored before anything changes; "
            "intervals are over texts",
        ),
        [("Nats a token beside the model as it is", svg_chart([change], "rate", "nats"))],
    )


def read_long_texts(
    path: Path, encode: Callable[[str], Sequence[int]], length: int, most: int
) -> list[list[int]]:
    """The beginnings of texts that are long enough.

    Args:
        path: JSON lines with `text`, also .gz.
        encode: Makes token ids of a text.
        length: Tokens of each.
        most: Texts at most.

    Returns:
        Token ids.

    Raises:
        RequestError: There is none.
    """
    from polydec.models.formats.text_rows import read_text_rows

    found = list[list[int]]()
    for row in read_text_rows(path):
        # Long books are cut before they are encoded: no token is longer than sixty-four characters.
        ids = list(encode((row.text or "")[: 64 * length]))
        if len(ids) >= length:
            found.append(ids[:length])
        if len(found) == most:
            break
    if not found:
        raise RequestError(f"from is {str(path)!r}: no text of it has {length} tokens")
    return found


SUITE = StudySuite(measure_hidden_states, 20, takes={"model"}, from_=True)
