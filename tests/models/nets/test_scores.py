"""Laws from logits: a damaged model is recognised whichever way a row is read."""

import pytest
import torch

from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores

READ = {
    "weights": lambda scores: scores.log_weights(1),
    "argmax": lambda scores: scores.likeliest_token(1),
    "topk": lambda scores: scores.likeliest_tokens(1, 2),
    "some rows": lambda scores: scores.topk_rows((1,), 2),
    "all rows": lambda scores: scores.topk_rows(range(3), 2),
}


@pytest.mark.parametrize("way", READ)
@pytest.mark.parametrize("broken", ["nan", "inf"])
def test_numbers_that_are_none_are_refused_whichever_way_they_are_read(way, broken):
    logits_RV = torch.randn(3, 7, generator=torch.Generator().manual_seed(1))
    READ[way](LogitScores([NetworkAnswer(logits_RV)]))
    logits_RV[1, 4] = float(broken)
    with pytest.raises(ValueError, match="NaN or infinite: its weights are damaged"):
        READ[way](LogitScores([NetworkAnswer(logits_RV)]))
