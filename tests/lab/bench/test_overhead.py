"""benchmarks/overhead.py runs the engine over a network that computes nothing."""

import overhead
import pytest

from polydec.models.sessions.sources import open_source


@pytest.mark.parametrize("method, least", [("plain", 1.0), ("prompt-lookup", 1.1)])
def test_passes_and_the_time_around_them(method, least):
    source = open_source("zoo:tiny")
    ids = source.text.encode("The cat sat on the mat. " * 12)
    around, per = overhead.run(source, ids, method, batch=1, tokens=20, cold=False)
    assert around > 0 and per >= least
