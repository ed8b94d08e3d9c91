"""What each contract exercised, printed behind a run of tests: `--exercised`, or `make contracts` for all of them.

A test that asks for `record_counts` is a contract, and carries the marker `contract`.
"""

import pytest

PROPERTY = "exercised"
NAME_WIDTH = 80
"""Characters of a name, at most, behind which the counts stand in one column."""


def pytest_addoption(parser):
    parser.addoption("--exercised", action="store_true", help="print what each contract exercised")


@pytest.hookimpl(tryfirst=True)  # before `-m contract` chooses
def pytest_collection_modifyitems(items):
    for item in items:
        if "record_counts" in getattr(item, "fixturenames", ()):
            item.add_marker("contract")


@pytest.fixture
def record_counts(record_property):
    """Takes the counts that a contract returns, any number of times: each is a line of the table."""

    def record(counts):
        record_property(PROPERTY, counts.sentence)
        return counts

    return record


def exercised_lines(reports):
    """The table of these reports: what was checked, and what that exercised.

    The properties of a report also travel from the other processes of a run that is spread over several.
    """
    counted = [
        (report.nodeid.removeprefix("tests/"), sentence)
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, sentence in report.user_properties
        if name == PROPERTY
    ]
    width = min(max((len(name) for name, _ in counted), default=0), NAME_WIDTH)
    return [f"{name:{width}}  {sentence}" for name, sentence in sorted(counted)]


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("--exercised"):
        return
    reports = [report for some in terminalreporter.stats.values() for report in some]
    lines = exercised_lines(reports)
    terminalreporter.section("what each contract exercised")
    for line in lines:
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"{len(lines)} counts")
