"""A pass as one padded tensor: every row gets what it gets alone, no token sees padding, and the copies are counted."""

import pytest
import torch
from family_checkpoints import FAMILIES, model_of
from test_packing import JOBS, NET, job

from polydec.base.errors import RequestError
from polydec.core.types import ScoreRequest
from polydec.models.nets import padded
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

ROW = ScoreRequest()
EXACT = LlamaTransformer.build
TREES = [(0, (-1,)), (5, (-1, 0, 0, 1)), (5, (-1,)), (23, (-1, 0, 1, 1, 2, 0)), (31, (-1, 0))]


def near(a, b):
    torch.testing.assert_close(a, b, atol=1e-9, rtol=0.0)


def network(name):
    model = model_of(name)
    return LlamaTransformer.build(model.config.to_dict(), model.state_dict(), dtype="float64")


def answers(net, jobs):
    made = [job(net, i, length, parent) for i, (length, parent) in enumerate(jobs)]
    return made, [a.logits_RV for a in net.forward(made)]


@pytest.mark.parametrize("name", ["llama3", "gemma2", "gemma3", "phi3", "gpt-oss"])
def test_rows_of_a_padded_pass_are_those_of_each_alone(name):
    if name not in FAMILIES:
        pytest.skip(f"{name} is no family here")
    net = network(name)
    laid = net.padded_model()
    alone = [answers(net, [one])[1][0] for one in TREES[:1]]
    made, rows = answers(laid, TREES)
    plain, want = answers(net, TREES)
    near(alone[0], want[0])
    for a, b in zip(rows, want, strict=True):
        near(a, b)
    for a, b in zip(made, plain, strict=True):  # what was cached is that of a ragged pass
        near(a.cache.all_entries(), b.cache.all_entries())


def test_long_rows_and_shared_caches():
    laid = NET.padded_model()
    for a, b in zip(answers(laid, JOBS)[1], answers(NET, JOBS)[1], strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=0.0)
    twins = []
    for net in (NET, laid):
        first = job(net, 3, 150, (-1,))
        fork = first.cache.fork(140)
        fork.stage_slots((-1, 0))
        pair = [first, NetworkQuery(fork, 140, (4, 5), (0, 1), ROW)]
        twins.append([a.logits_RV for a in net.forward(pair)])
    for a, b in zip(*twins, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=0.0)


def test_what_lies_in_padding_is_seen_by_nobody(monkeypatch):
    """Slots that no token fills hold something large, and no row changes."""
    net = network("llama3")
    want = answers(net.padded_model(), TREES)[1]
    right = padded.PaddedAttention.__call__

    def poisoned(self, at):
        if at == 0:
            self.place.fill_(1e6)
        right(self, at)

    monkeypatch.setattr(padded.PaddedAttention, "__call__", poisoned)
    for a, b in zip(answers(net.padded_model(), TREES)[1], want, strict=True):
        near(a, b)


def test_a_batch_that_is_not_realigned_shows(monkeypatch):
    net = network("llama3")
    want = answers(net, TREES)[1]
    right = padded.PaddedAttention.__call__

    def stale(self, at):
        """The old entries of shorter rows stay where they were, at the left."""
        right(self, at)
        self.place.copy_(self.place.roll(1, 3))
        right(self, at)

    monkeypatch.setattr(
        padded, "_seen", lambda *args: torch.zeros_like(_seen(*args))
    )  # a mask that hides no padding
    far = max(
        float((a - b).abs().max())
        for a, b in zip(answers(net.padded_model(), TREES)[1], want, strict=True)
    )
    assert far > 1e-3


_seen = padded._seen


def test_the_account_counts_what_alignment_copied():
    laid = NET.padded_model()
    jobs = [job(laid, i, n, (-1, 0)) for i, n in enumerate((4, 4, 9))]
    laid.account = padded.PaddingStats()
    entry = jobs[0].cache.kv[..., :1, :].nbytes
    laid.forward(jobs[:2])
    assert laid.account == padded.PaddingStats(passes=1, rows=2, grouped=1, stacked=8 * entry)
    laid.forward(jobs)
    assert laid.account == padded.PaddingStats(
        passes=2, rows=5, grouped=1, padding=10, stacked=8 * entry, moved=17 * entry
    )
    laid.forward(jobs[:1])
    assert laid.account.passes == 2, "a row alone is no batch"


def test_a_canvas_is_not_laid_out():
    net = LlamaTransformer.__new__(LlamaTransformer)
    net.config = type("Config", (), {"causal": False})
    with pytest.raises(RequestError, match="masked-diffusion"):
        net.padded_model()
