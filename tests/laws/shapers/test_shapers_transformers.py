"""The rules next to the processors of transformers, on random rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.generation import logits_process as hf

from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.laws.shapers.epsilon import EpsilonCutoffRule
from polydec.laws.shapers.eta import EtaCutoffRule
from polydec.laws.shapers.min_p import MinPRule
from polydec.laws.shapers.min_tokens import MinTokensRule
from polydec.laws.shapers.no_repeat_ngram import NoRepeatNgramRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.shapers.top_k import TopKRule
from polydec.laws.shapers.top_p import TopPRule
from polydec.laws.shapers.typical import TypicalRule

SIZE = 400
PAIRS: list[tuple[Any, Any]] = [
    *[(TemperatureRule(t), hf.TemperatureLogitsWarper(t)) for t in (0.3, 1.7)],
    *[(TopKRule(k), hf.TopKLogitsWarper(k)) for k in (1, 7, 399)],
    *[(TopPRule(p), hf.TopPLogitsWarper(p)) for p in (0.1, 0.5, 0.95)],
    *[(MinPRule(p), hf.MinPLogitsWarper(p)) for p in (0.01, 0.1, 0.9)],
    *[(TypicalRule(m), hf.TypicalLogitsWarper(m)) for m in (0.1, 0.5, 0.95)],
    *[(EpsilonCutoffRule(e), hf.EpsilonLogitsWarper(e)) for e in (3e-4, 0.02, 0.9)],
    *[(EtaCutoffRule(e), hf.EtaLogitsWarper(e)) for e in (3e-4, 0.02, 0.9)],
    *[(RepetitionPenaltyRule(r), hf.RepetitionPenaltyLogitsProcessor(r)) for r in (0.8, 1.1, 2.0)],
    *[(NoRepeatNgramRule(n), hf.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3)],
    *[
        (MinTokensRule(n, (3, 5)), hf.MinNewTokensLengthLogitsProcessor(10, n, [3, 5]))
        for n in (4, 12)
    ],
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [pytest.param(*p, id=f"{type(p[0]).__name__}-{i}") for i, p in enumerate(PAIRS)],
)
def test_rule(ours: Any, theirs: Any) -> None:
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        row_V = torch.randn(SIZE, generator=g, dtype=torch.float64) * 3
        text = torch.randint(20, (10 + 2 * seed,), generator=g).tolist()
        state = ours.start_state(tuple(text[:10]))
        for x in text[10:]:
            state = ours.next_state(state, x)
        theirs_V = theirs(torch.tensor([text]), row_V[None].clone())[0]
        assert torch.equal(ours.shape_law(state, row_V) > NEG_INF, theirs_V > NEG_INF)
        assert torch.allclose(
            normalise_log_weights(ours.shape_law(state, row_V)),
            normalise_log_weights(theirs_V),
            atol=1e-12,
        )


def test_chain_in_their_order() -> None:
    sampling = Sampling(
        temperature=0.7,
        top_k=60,
        top_p=0.9,
        min_p=0.02,
        typical_p=0.9,
        epsilon_cutoff=1e-3,
        eta_cutoff=2e-3,
        repetition_penalty=1.3,
        no_repeat_ngram_size=2,
        min_tokens=30,
    )
    shapers = build_shapers(sampling, order="transformers", eos=(3,))
    assert len(shapers) == 10
    theirs = hf.LogitsProcessorList(
        [
            hf.RepetitionPenaltyLogitsProcessor(1.3),
            hf.NoRepeatNGramLogitsProcessor(2),
            hf.MinNewTokensLengthLogitsProcessor(10, 30, [3]),
            hf.TemperatureLogitsWarper(0.7),
            hf.TopKLogitsWarper(60),
            hf.TopPLogitsWarper(0.9),
            hf.MinPLogitsWarper(0.02),
            hf.TypicalLogitsWarper(0.9),
            hf.EpsilonLogitsWarper(1e-3),
            hf.EtaLogitsWarper(2e-3),
        ]
    )
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        row_V = torch.randn(SIZE, generator=g, dtype=torch.float64) * 3
        text = torch.randint(20, (10 + 2 * seed,), generator=g).tolist()
        ours_V = row_V
        for s in shapers:
            state = s.start_state(tuple(text[:10]))
            for x in text[10:]:
                state = s.next_state(state, x)
            ours_V = s.shape_law(state, ours_V)
        theirs_V = theirs(torch.tensor([text]), row_V[None].clone())[0]
        assert torch.allclose(
            normalise_log_weights(ours_V).exp(), normalise_log_weights(theirs_V).exp(), atol=1e-12
        )
