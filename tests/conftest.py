"""One thread for torch: toys are tiny, and threads only wait for each other. One tree of commands: it is always the same.
Benchmarks can be imported, as some tests read them. What a toy is given as trained is made once for each vocabulary."""

import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import typer.main

from polydec.testing import examples
from polydec.testing.toy import Letters

for folder in ("benchmarks", "docs"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
torch.set_num_threads(1)
typer.main.get_command = cache(typer.main.get_command)  # 50 ms for each call of the command line

_make, _made = examples.artefacts, {}


def artefacts(vocab, width=4, draft_width=None):
    """Some of each kind of artefact: nothing changes them, and a contract asks for them a hundred times."""
    if not isinstance(vocab.words, Letters | None):
        return _make(vocab, width, draft_width)
    key = vocab, vocab.words, width, draft_width
    if key not in _made:
        _made[key] = _make(vocab, width, draft_width)
    return _made[key]


examples.artefacts = artefacts  # before any test has imported it


@pytest.fixture(autouse=True, scope="session")
def costs_are_measured_in_no_time():
    """What passes cost is measured for eight seconds where nobody asked for it, and no text depends on it."""
    from polydec.request import profile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "QUICK", 0.05)
        yield
