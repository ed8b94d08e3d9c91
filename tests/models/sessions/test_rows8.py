"""Matrices stored as bytes with a scale for each row."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.train.network import LlamaShape, TrainableLlama, from_weights, save_directory
from polydec.models.formats import rows8
from polydec.models.sessions import checkpoint

SHAPE = LlamaShape(40, width=32, layers=1, heads=2, kv_heads=1, inner=64, context=32)


def test_numbers_come_back_to_half_a_step():
    g = torch.Generator().manual_seed(0)
    matrix, vector = (
        torch.randn(9, 50, generator=g) * torch.logspace(-4, 3, 9)[:, None],
        torch.randn(7, generator=g),
    )
    matrix[3] = 0.0
    stored = rows8.quantise_rows({"a.weight": matrix, "b.weight": vector})
    assert stored["a.weight"].dtype == torch.int8 and set(stored) == {
        "a.weight",
        "a.weight.scale",
        "b.weight",
    }
    back = rows8.dequantise_rows(stored)
    assert (
        list(back) == ["a.weight", "b.weight"]
        and len(back) == 2
        and torch.equal(back["b.weight"], vector)
    )
    most = matrix.abs().amax(1, keepdim=True)
    assert bool(
        ((back["a.weight"].float() - matrix).abs() <= most / 254 + most / 2048 + 6e-8).all()
    )
    again = rows8.dequantise_rows(rows8.quantise_rows({"a.weight": back["a.weight"]}))[
        "a.weight"
    ].float()
    assert torch.allclose(again, back["a.weight"].float(), rtol=2e-3, atol=1e-6)
    assert rows8.dequantise_rows(plain := {"a.weight": matrix}) is plain


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
def test_a_directory_of_bytes_is_the_model_of_its_numbers(tmp_path):
    network = TrainableLlama(SHAPE, seed=1)
    config = SHAPE.config_content(bos=0, eos=1)
    save_directory(tmp_path / "bytes", network, config, files={}, dtype=torch.int8)
    numbers = rows8.dequantise_rows(load_file(tmp_path / "bytes" / "model.safetensors"))
    save_directory(
        tmp_path / "halves", from_weights(config, numbers), config, files={}, dtype=torch.float16
    )
    size = {
        name: (tmp_path / name / "model.safetensors").stat().st_size for name in ("bytes", "halves")
    }
    assert size["bytes"] < 0.7 * size["halves"]
    rows = [_row(tmp_path / name) for name in ("bytes", "halves")]
    assert torch.equal(*rows)
    with torch.no_grad():
        there = torch.log_softmax(network(torch.tensor([[3, 5, 7]]))[0, -1], -1)
    assert float((rows[0] - there).abs().max()) < 0.1


def _row(path):
    lm = checkpoint.load_bundle(str(path), dtype="float32").lm
    return (
        run_coroutines(
            [lm.open_session((3, 5, 7)).score_draft(Draft.chain_draft(7), ScoreRequest())]
        )[0]
        .logprob_row(0)
        .float()
    )


def test_scales_that_do_not_fit_are_refused_in_a_sentence(tmp_path):
    network, config = TrainableLlama(SHAPE, seed=1), SHAPE.config_content(bos=0, eos=1)
    save_directory(tmp_path, network, config, files={}, dtype=torch.int8)
    stored = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    for wrong in ({name + ".scale": torch.ones(3)}, {name: stored[name].float()}):
        save_file({**stored, **wrong}, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=rf"{name}.scale has shape .* a scale for each row"):
            checkpoint.load_bundle(str(tmp_path))
