"""The suites that measure by themselves, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polydec.base.edge import require_integer
from polydec.base.errors import RequestError
from polydec.cli.flags import RequestFlags
from polydec.lab.commands.studies import (
    deciphering,
    decodingtrust,
    hidden_states,
    permutations,
    scaling,
    state_classification,
    steps,
)
from polydec.lab.commands.studies.study_report import StudyRequest, StudySuite, publish_study

SUITES: Mapping[str, StudySuite] = {
    "deciphering": deciphering.SUITE,
    "decodingtrust": decodingtrust.SUITE,
    "hidden-states": hidden_states.SUITE,
    "permutations": permutations.SUITE,
    "scaling": scaling.SUITE,
    "state-classification": state_classification.SUITE,
    "steps": steps.SUITE,
}


def carry_out(
    name: str,
    flags: RequestFlags,
    methods: str | None,
    from_: Path | None,
    each: int | None,
    record: Path | None,
    html: Path | None,
    table: Path | None,
) -> None:
    """Measure a suite and publish its report.

    Args:
        name: Name of the suite, a key of `SUITES`.
        flags: The command's flags.
        methods: Methods as they are typed; None: the suite's own.
        from_: Where its questions or models are; None: not given.
        each: Problems of each task; None: the suite's own number.
        record: File of answers that are kept; None: there is none.
        html: The page's file; None: none.
        table: The CSV file; None: none.

    Raises:
        RequestError: A flag is given that the suite does nothing with, or the suite cannot be
            measured.
    """
    suite = SUITES[name]
    flags.refuse_others(f"bench --suite {name}", {*suite.takes, "json_"})
    # `RequestFlags` does not hold these, so `only` cannot check them.
    for flag, value, taken in (
        ("methods", methods, suite.methods),
        ("from", from_, suite.from_),
        ("record", record, suite.record),
    ):
        if value is not None and not taken:
            raise RequestError(
                f"--{flag} is given, and bench --suite {name} does nothing with it: leave it out"
            )
    many = require_integer("each", suite.each if each is None else each, 1, 10_000)
    # Whatever could be refused has been: from here on models are loaded.
    asked = StudyRequest(flags, methods, from_, many, record)
    publish_study(suite.measure(asked), flags.json_, html, table)
