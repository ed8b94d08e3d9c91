"""Checkpoints that are trained further: adapters in the form of PEFT, and layers that are skipped as in decoding."""

import json

import pytest
import torch

import micro
from polydec import load
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.train import lora, tuned_checkpoint
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.skipping import (
    SkippingSpec,
    layer_skipping_nats,
    layer_skipping_states,
    train_skipping,
)
from polydec.lab.train.tuned_checkpoint import PaddedTextRows
from polydec.laws.targets.skipping import SkippingTarget
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions import sources
from polydec.models.sessions.lm import CausalLaw

SAMPLES = [
    TrainingSample((5, 6, 7), (8, 9, 10, 11)),
    TrainingSample((3,), (4, 5)),
    TrainingSample((20, 21), (22,)),
]
KEEP = (0, 3)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("base"), layers=4))


def moved(base, rank=2):
    """A network whose adapters, or all of whose layers, are no longer what they began as."""
    made = tuned_checkpoint.start_tuned_checkpoint(base, rank, 0, 64)
    g = torch.Generator().manual_seed(1)
    for p in made.network.parameters():
        if p.requires_grad:
            p.data += torch.randn(p.shape, generator=g) / 16
    return made


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_saved_is_a_model(base, tmp_path, rank):
    """An adapter as `models/formats/adapters.py` reads it, or a whole checkpoint; either has the laws of what was trained."""
    made = moved(base, rank)
    made.save(tmp_path / "tuned")
    assert (tmp_path / "tuned" / "adapter_config.json").exists() == bool(rank)
    lm = load(str(tmp_path / "tuned"), dtype="float32").checkpoint.lm
    for sample in SAMPLES:
        ids = (*sample.prompt_ids, *sample.output_ids)
        scores = run_coroutines(
            [
                lm.open_session(ids[:1]).score_draft(
                    Draft.chain_draft(ids[0], ids[1:]), ScoreRequest()
                )
            ]
        )[0]
        want = made.network(torch.tensor([ids]))[0].log_softmax(-1)
        for i, row in enumerate(want):
            assert scores.logprob_row(i).allclose(
                row.detach().to(scores.logprob_row(i).dtype), atol=1e-4
            )


def test_an_adapter_has_the_names_that_peft_gives(base, tmp_path):
    moved(base).save(tmp_path / "lora")
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    parts = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == parts and config["r"] == config["lora_alpha"] == 2
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "lora"
    )
    ids = torch.tensor([[3, 4, 5]])
    assert theirs(ids).logits.allclose(moved(base).network(ids), atol=1e-4)


def test_adapters_that_were_not_trained_change_nothing_and_embeddings_never_do(base):
    source = sources.open_source(base)
    for rank in (0, 2):
        network = tuned_checkpoint.start_tuned_checkpoint(base, rank, 0, 64).network
        assert not network.model.embed_tokens.weight.requires_grad
        name = "model.layers.1.mlp.up_proj.weight"
        assert network.model.layers[1].mlp.up_proj.weight.allclose(source.weights[name].float())
        trained = [n for n, p in network.named_parameters() if p.requires_grad]
        assert all(n.endswith((".down", ".up")) for n in trained) == bool(rank) and trained


def test_training_skips_as_decoding_does(base):
    """The states of each text, in a batch that is filled up, give the laws of `SkippingTarget` for each token of its answer."""
    made = moved(base)
    network = made.network
    lora.merge_lora_adapters(network)
    weights = {k: v.detach() for k, v in network.state_dict().items()}
    lm = CausalLaw(
        LlamaTransformer.build(made.source.config, weights, dtype="float32"),
        TokenVocabulary(network.s.vocab, frozenset()),
    )
    rows = PaddedTextRows.of_samples(SAMPLES)
    logp_BTV = network.token_logits(layer_skipping_states(network, rows, KEEP)).log_softmax(-1)
    whole_BTV = network.token_logits(layer_skipping_states(network, rows, range(4))).log_softmax(-1)
    for b, sample in enumerate(SAMPLES):
        session = SkippingTarget(lm, KEEP).open_session(sample.prompt_ids)
        draft = Draft.chain_draft(sample.prompt_ids[-1], sample.output_ids[:-1])
        scores, begin = (
            run_coroutines([session.score_draft(draft, ScoreRequest())])[0],
            len(sample.prompt_ids) - 1,
        )
        for i in range(len(sample.output_ids)):
            row = scores.logprob_row(i).float()
            assert row.allclose(logp_BTV[b, begin + i].detach(), atol=1e-4), (b, i)
            assert i == 0 or not row.allclose(whole_BTV[b, begin + i].detach(), atol=1e-2)
    assert rows.writes_BT.sum(1).tolist() == [4, 2, 1]
    assert rows.known_BT.sum(1).tolist() == [6, 2, 2]


def test_a_model_learns_to_write_with_few_layers(base, tmp_path):
    """Its own answers are less surprising under the skip behind it, and the command says so."""
    text = tmp_path / "text.jsonl"
    rows = [{"prompt_ids": [3 + i % 7], "output_ids": [5, 6, 7, 8, 9]} for i in range(32)]
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = SkippingSpec(
        str(tmp_path / "out"), base, text=str(text), speed=2.0, steps=30, lora=2, rate=2e-2
    )
    result = train_skipping(spec)
    assert result["layers"] == list(KEEP)
    nats = result["nats"]
    assert nats["tuned"] < nats["untuned"] - 1.0
    again = tuned_checkpoint.start_tuned_checkpoint(spec.out, 0, 0, 64).network
    unseen = [TrainingSample(tuple(r["prompt_ids"]), tuple(r["output_ids"])) for r in rows[::16]]
    assert layer_skipping_nats(again, unseen, KEEP) == pytest.approx(nats["tuned"], abs=1e-3)
    assert layer_skipping_nats(again, unseen, range(4)) == pytest.approx(
        nats["tuned_whole"], abs=1e-3
    )
