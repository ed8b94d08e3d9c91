"""`polydec bench --suite deciphering`: which symbol of a renamed text stands for which."""

from __future__ import annotations

from polydec.base.errors import RequestError
from polydec.cli.page import INKS, ChartSeries, svg_chart
from polydec.lab.commands.studies.hidden_states import read_long_texts
from polydec.lab.commands.studies.study_report import (
    StudyReport,
    StudyRequest,
    StudySuite,
    format_percent,
)

LENGTHS = (32, 64, 128, 256, 512, 1023)
"""Tokens of a renamed text that are read, as far as the model's context goes."""
LEARNED = 4
"""Texts that states are learned from, for each that is deciphered."""


def measure_deciphering(asked: StudyRequest) -> StudyReport:
    """Learn from texts of the file what states mean, and decipher `each` others.

    Raises:
        RequestError: There is no file, the model is of another kind, or there are too few texts that
            are long enough.
    """
    # Imported here: a list of commands loads no torch.
    from polydec.core.types import TokenVocabulary
    from polydec.lab.bench import deciphering
    from polydec.lab.train.network import from_weights
    from polydec.laws.targets.renamed import deal_names
    from polydec.models.sessions import sources

    if asked.from_ is None:
        raise RequestError("from is none: name a file of texts (--from), one a row")
    source = sources.open_source(asked.flags.model)
    network = from_weights(source.config, source.weights)
    lengths = [n for n in LENGTHS if n < network.s.context]
    if not lengths:
        raise RequestError(
            f"model {asked.flags.model!r} reads {network.s.context} tokens: {LENGTHS[0] + 1} at least are needed"
        )
    count = (1 + LEARNED) * asked.each
    texts = read_long_texts(asked.from_, source.text.encode, lengths[-1] + 1, count)
    if len(texts) < 1 + LEARNED:
        raise RequestError(
            f"from is {str(asked.from_)!r}: it has {len(texts)} texts that are long enough, and {1 + LEARNED} are needed"
        )
    # The first ones are deciphered, the others learned from.
    held = texts[: len(texts) // (1 + LEARNED)]
    # No token is an end here: marks have no text of their own, and so keep their names.
    vocab = TokenVocabulary(source.config["vocab_size"], frozenset(), words=source.text)
    reader = deciphering.learn_reader(
        network, texts[len(held) :], lambda number: deal_names(vocab, 1, number)
    )
    rows = list(
        deciphering.rate_lengths(
            network, reader, held, lengths, lambda number: deal_names(vocab, 0, number)
        )
    )
    # One text as an example, whole.
    shown = deciphering.decipher_text(network, reader, held[0], deal_names(vocab, 0, 0))
    curves = [
        ChartSeries(name, [(float(i), r[field]) for i, r in enumerate(rows)], ink)
        for name, field, ink in (("states", "right", INKS[0]), ("counts", "by_counts", INKS[1]))
    ]
    return StudyReport(
        f"Renamed texts, deciphered: {asked.flags.model}",
        rows,
        (
            ("tokens read", lambda r: str(r["tokens"])),
            ("read right", lambda r: format_percent(r["right"])),
            ("by counts alone", lambda r: format_percent(r["by_counts"])),
            ("gain", lambda r: f"{100 * r['gain']:+.1f} points"),
            (
                "95 %",
                lambda r: f"{100 * r['interval'][0]:+.1f} to {100 * r['interval'][1]:+.1f}",
            ),
        ),
        (
            f"{len(held)} texts of {lengths[-1]} tokens, each renamed its own way; states of "
            f"{len(texts) - len(held)} others say what they mean; intervals are over texts",
            f"read as: {source.text.decode(shown.read_T)[:160]!r}",
        ),
        [("Share of a text that is read right", svg_chart(curves, "tokens, by doubling", "share"))],
    )


SUITE = StudySuite(measure_deciphering, 10, takes={"model"}, from_=True)
