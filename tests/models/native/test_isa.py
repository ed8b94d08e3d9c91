"""The instruction set that a user names is the one that runs, and gives the same bits."""

import pytest
import torch

import polydec
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.models.native import native_instruction_sets, native_step_availability

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)


def test_the_named_set_runs_and_others_are_refused(monkeypatch):
    monkeypatch.delenv("POLYDEC_ISA", raising=False)
    want, rows = native_instruction_sets(), []
    for isa in want:
        monkeypatch.setenv("POLYDEC_ISA", isa)
        lm = polydec.load("zoo:tiny", compute="float32")
        assert (
            lm.checkpoint.kernel == f"native {isa} float32" and native_instruction_sets()[0] == isa
        )
        rows.append(
            run_coroutines(
                [
                    lm.checkpoint.lm.open_session((5, 6)).score_draft(
                        Draft.chain_draft(6, (7, 8)), ScoreRequest()
                    )
                ]
            )[0].logprob_row(2)
        )
    assert all(torch.equal(r, rows[0]) for r in rows)
    monkeypatch.setenv("POLYDEC_ISA", "MMX")
    with pytest.raises(ValueError, match=f"POLYDEC_ISA is 'MMX': this machine has {want[0]}"):
        polydec.load("zoo:tiny")
