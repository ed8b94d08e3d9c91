"""The instruction set that a user names is the one that runs, and gives the same bits."""

import pytest
import torch

import polydec
from polydec.core.scheduler import run
from polydec.core.types import Draft, Want
from polydec.models.native import available, sets

pytestmark = pytest.mark.skipif(not available()[0], reason=available()[1])


def test_the_named_set_runs_and_others_are_refused(monkeypatch):
    monkeypatch.delenv("POLYDEC_ISA", raising=False)
    want, rows = sets(), []
    for isa in want:
        monkeypatch.setenv("POLYDEC_ISA", isa)
        lm = polydec.load("zoo:tiny", compute="float32")
        assert lm.checkpoint.kernel == f"native {isa} float32" and sets()[0] == isa
        rows.append(
            run([lm.checkpoint.lm.open((5, 6)).score(Draft.chain(6, (7, 8)), Want())])[0].row(2)
        )
    assert all(torch.equal(r, rows[0]) for r in rows)
    monkeypatch.setenv("POLYDEC_ISA", "MMX")
    with pytest.raises(ValueError, match=f"POLYDEC_ISA is 'MMX': this machine has {want[0]}"):
        polydec.load("zoo:tiny")
