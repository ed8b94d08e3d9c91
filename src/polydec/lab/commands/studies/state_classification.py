"""`polydec bench --suite state-classification`: classes behind a prompt of examples whose keys and values were changed."""

from __future__ import annotations

from polydec.base.errors import RequestError
from polydec.lab.commands.studies.hidden_states import RATES, SEGMENT
from polydec.lab.commands.studies.study_report import (
    StudyReport,
    StudyRequest,
    StudySuite,
    format_percent,
)

SHOTS = 4
"""Examples of each class."""


def measure_state_classification(asked: StudyRequest) -> StudyReport:
    """Sort `each` texts of the file behind some of the others, at every rate.

    Raises:
        RequestError: There is no file, the model is of another kind, or there are too few texts.
    """
    # Imported here: a list of commands loads no torch.
    from polydec.cli.classify import read_labelled_texts
    from polydec.lab.bench import state_classification
    from polydec.lab.train.network import from_weights
    from polydec.models.sessions import sources

    if asked.from_ is None:
        raise RequestError("from is none: name a file of texts with their classes (--from)")
    rows = read_labelled_texts(asked.from_)
    task = state_classification.draw_classification_task(rows, SHOTS, asked.each, asked.flags.seed)
    # What is wrong with the file is said before a model is read.
    source = sources.open_source(asked.flags.model)
    network = from_weights(source.config, source.weights)
    figures = list(
        state_classification.rate_steps(network, task, source.text.encode, RATES, SEGMENT)
    )
    return StudyReport(
        f"Classes behind states that were changed: {asked.flags.model}",
        figures,
        (
            ("rate", lambda r: str(r["rate"])),
            ("right", lambda r: format_percent(r["right"])),
            ("change", lambda r: f"{100 * r['change']:+.1f} points"),
            (
                "95 %",
                lambda r: f"{100 * r['interval'][0]:+.1f} to {100 * r['interval'][1]:+.1f}",
            ),
            ("nats of the right class", lambda r: f"{r['nats']:.3f}"),
        ),
        (
            f"{len(task.asked)} texts of {len(task.classes)} classes behind {len(task.shown)} examples; all of the "
            f"prompt's tokens are learned from, in segments of {SEGMENT}, and no question's; intervals are over texts",
        ),
    )


SUITE = StudySuite(measure_state_classification, 200, takes={"model", "seed"}, from_=True)
