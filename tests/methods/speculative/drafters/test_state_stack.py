"""Several layers on a target's states: what is trained is what drafts, on both paths, and a file brings it back."""

import pytest
import torch

from polydec.base.errors import FileError
from polydec.core.types import RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.state_layer import TrainableStateStack
from polydec.models.learned import state_stack
from polydec.models.learned.kinds import eagle
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.nets.query import NetworkQuery

SHAPE = LlamaShape(32, width=32, layers=2, heads=4, kv_heads=2, inner=64, context=64)


def made_by(network, rows_NH, parents):
    """What the network leaves at rows of a tree, parents before children."""
    cache = network.new_cache()
    first = cache.stage_slots(parents)
    query = NetworkQuery(
        cache,
        first,
        (),
        range(len(rows_NH)),
        ScoreRequest(law=RowDetail.NOTHING, hidden=True),
        rows_NH,
    )
    return network.forward([query])[0].hidden_RH


@pytest.mark.parametrize("layers", [2, 3])
def test_training_and_drafting_agree(layers):
    """Over a text, then over entries behind some of its positions, level by level."""
    stack, g = TrainableStateStack(SHAPE, 1, layers), torch.Generator().manual_seed(2)
    text_TH, at_T = torch.randn(5, 32, generator=g), torch.tensor([1, 3])
    level_LTH, past = torch.randn(2, 2, 32, generator=g), []
    with torch.no_grad():
        true = stack(text_TH[None], past)[0]
        low = [stack(rows[None], past, at_T)[0] for rows in level_LTH]
    network = stack.layer.layer_network()
    tolerance = 0.05 * float(true.abs().mean())  # the compiled step keeps matrices in 8 bits
    assert made_by(network, text_TH, range(-1, 4)).float().sub(true).abs().mean() < tolerance
    for column, at in enumerate(at_T.tolist()):
        rows = torch.cat([text_TH[: at + 1], level_LTH[:, column]])
        out = made_by(network, rows, range(-1, len(rows) - 1))[-2:].float()
        want = torch.stack([level[column] for level in low])
        assert out.sub(want).abs().mean() < tolerance, at


def test_a_file_brings_it_back(tmp_path):
    stack = state_stack.random_state_stack(32, 3, 4)
    one_behind_another = EagleModel(
        torch.randn(32, 64), stack, TokenVocabulary(9, frozenset()), ((0.5, 0.2),)
    )
    eagle.save(tmp_path, one_behind_another, {})
    again = eagle.load(tmp_path)
    assert len(again.layer.layers) == 3 and again.cost == one_behind_another.cost
    for a, b in zip(stack.layers, again.layer.layers, strict=True):
        assert all(a.tensors[name].equal(b.tensors[name]) for name in a.tensors)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"layers": 3', '"layers": 4'))
    with pytest.raises(FileError, match="lacks"):
        eagle.load(tmp_path)
