"""Lexical units: where pads are taught, that training sees them as decoding does, and that a rule is learned in one pass."""

import json

import pytest
import torch

import micro
from polydec import load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, ScoreRequest, TokenVocabulary
from polydec.lab.train import lexical, lora, tuned_checkpoint
from polydec.lab.train.lexical import (
    LexicalUnitModel,
    confident_token_masks,
    pad_target_masks,
    side_by_side,
    train_lexical,
    units_loss,
)
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.lexical_units import LexicalSpec
from polydec.lab.train.tuned_checkpoint import PaddedTextRows
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.models.learned.kinds import probes
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("base")))


def test_pads_are_taught_in_spans_alone():
    """By hand: tokens 4, 5 and 7 of the text belong to the span of the token before them, and token 2 ends the prompt."""
    rows = PaddedTextRows.of_samples([TrainingSample((9, 9, 9), (9, 9, 9, 9, 9))])
    sure_BT = torch.zeros(1, 8, dtype=torch.bool)
    sure_BT[0, [4, 5, 7]] = True
    one, two, three = pad_target_masks(rows, sure_BT, 3)
    # pad 1 behind token t says token t + 2: behind 2 (says 4), 3 (says 5) and 5 (says 7)
    assert one[0].nonzero()[:, 0].tolist() == [2, 3, 5]
    # pad 2 says t + 3, and both t + 2 and t + 3 must be in the span: behind 2 alone
    assert two[0].nonzero()[:, 0].tolist() == [2]
    assert not three.any()


@torch.no_grad()
def test_a_sure_token_is_one_that_the_model_itself_gives(base):
    network = tuned_checkpoint.start_tuned_checkpoint(base, 2, 0, 64).network
    samples = [TrainingSample((5, 6), (7, 8, 9)), TrainingSample((3,), (4,))]
    sure = confident_token_masks(network, samples, 0.02)
    for sample, flags in zip(samples, sure, strict=True):
        text = (*sample.prompt_ids, *sample.output_ids)
        chances = network(torch.tensor([text]))[0].softmax(-1)
        want = [float(chances[i, text[i + 1]]) >= 0.02 for i in range(len(text) - 1)]
        assert flags.tolist() == [False, *want]
    assert (
        side_by_side(sure, (1, 0)).shape == (2, 5) and not side_by_side(sure, (1, 0))[0, 2:].any()
    )


def test_training_sees_pads_as_decoding_does(base):
    """The states of text and pads are those that a session gives of probes behind a token, and text never sees a pad."""
    made = tuned_checkpoint.start_tuned_checkpoint(base, 2, 0, 64)
    network, g = made.network, torch.Generator().manual_seed(1)
    for p in network.parameters():
        if p.requires_grad:
            p.data += torch.randn(p.shape, generator=g) / 16
    units = LexicalUnitModel(network, torch.randn(2, 32, generator=g))
    ids = (5, 6, 7, 8)
    x, *pads = (t.detach()[0] for t in units.text_states(torch.tensor([ids])))
    assert x.allclose(network.model(torch.tensor([ids]))[0], atol=1e-5)
    lora.merge_lora_adapters(network)
    weights = {k: v.detach() for k, v in network.state_dict().items()}
    vocab = TokenVocabulary(network.s.vocab, frozenset())
    lm = CausalLaw(LlamaTransformer.build(made.source.config, weights, dtype="float32"), vocab)
    for n in range(1, len(ids) + 1):
        rows = list(units.pads_PH.detach())
        draft = Draft(
            (ids[n - 1],) * 3,
            (-1, 0, 1),
            (DrawKind.CERTAIN,) * 3,
            (None,) * 3,
            (False, True, True),
            (1.0, 0.0, 0.0),
            (None, *rows),
        )
        scores = run_coroutines(
            [lm.open_session(ids[:n]).score_draft(draft, ScoreRequest(hidden=True))]
        )[0]
        normed = network.model.norm(scores.hidden_NH.float())
        for at, want in zip(normed, (x, *pads), strict=True):
            assert at.allclose(want[n - 1], atol=1e-3)


def test_both_the_next_tokens_and_those_of_spans_are_learned(base):
    """The loss falls apart into the two; a pad outside a span weighs nothing."""
    made = tuned_checkpoint.start_tuned_checkpoint(base, 2, 0, 64)
    units = LexicalUnitModel(
        made.network, torch.randn(2, 32, generator=torch.Generator().manual_seed(2))
    )
    rows = PaddedTextRows.of_samples([TrainingSample((5, 6), (7, 8, 9, 10))])
    none = torch.zeros(1, 6, dtype=torch.bool)
    plain = float(units_loss(units, rows, none).detach())
    nats = tuned_checkpoint.answer_nats(
        made.network,
        [TrainingSample((5, 6), (7, 8, 9, 10))],
        lambda rows: units.text_states(rows.token_BT)[0],
    )
    assert plain == pytest.approx(nats, abs=1e-4)
    units_loss(units, rows, none).backward()
    assert units.pads_PH.grad is None or not units.pads_PH.grad.any()
    more = none.clone()
    more[0, 4] = True
    _, pad, _ = units.text_states(rows.token_BT)
    want = -made.network.token_logits(pad[0, 2]).log_softmax(-1)[9]
    both = units_loss(units, rows, more)
    assert float((both - want).detach()) == pytest.approx(plain, abs=1e-3)


def test_a_span_is_written_in_one_pass(base, tmp_path):
    """A text that always goes on alike: the tuned model writes it in half the passes, and as it does alone."""
    text, rows = tmp_path / "text.jsonl", []
    for i in range(48):
        rows.append({"prompt_ids": [3 + i % 5], "output_ids": [*range(20, 32)] * 2})
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = LexicalSpec(
        str(tmp_path / "out"), base, text=str(text), alpha=0.0, ahead=2, lora=0, steps=60, rate=1e-2
    )
    result = train_lexical(spec)
    assert result["nats"]["after"] < result["nats"]["before"]
    assert result["held_out"][0][0] > 0.9
    lm = load(str(tmp_path / "out" / "model"), dtype="float32").checkpoint.lm
    kit = Kit(ShapedTarget(lm, GreedyRule()), None, (probes.load(tmp_path / "out"),))
    whole = {}
    for method in ("plain", "lexical-unit-decoding"):
        decoder, _ = registry.build(method, kit, {} if method == "plain" else {"confidence": "0.3"})
        request = Request((3,), max_tokens=24, ignore_eos=True)
        whole[method] = run_coroutines([answer_one(decoder, request)])[0]
    plain, units = whole["plain"], whole["lexical-unit-decoding"]
    assert units.token_ids == plain.token_ids == tuple(rows[0]["output_ids"])
    assert plain.stats.passes >= 23 and units.stats.passes <= 14


def test_a_step_is_taught_the_spans_that_the_model_was_sure_of(base, tmp_path, monkeypatch):
    """Not every token: those of the spans as the untrained model gives them."""
    text = tmp_path / "text.jsonl"
    samples = [TrainingSample((3, 5 + i), (7, 8 + i, 9, 11, 12 + i)) for i in range(4)]
    rows = [{"prompt_ids": s.prompt_ids, "output_ids": s.output_ids} for s in samples]
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = LexicalSpec(str(tmp_path / "out"), base, text=str(text), alpha=0.004, lora=2, rows=4)
    taught = []

    def noted(units, rows, sure_BT):
        taught.append((rows.token_BT, sure_BT))
        return torch.zeros(())

    monkeypatch.setattr(lexical, "units_loss", noted)
    course = lexical._course(spec)
    course.loss(0)
    network = tuned_checkpoint.start_tuned_checkpoint(base, 2, 0, 64).network
    wanted = {
        (*s.prompt_ids, *s.output_ids): flags.tolist()
        for s, flags in zip(samples, confident_token_masks(network, samples, spec.alpha))
    }
    token_BT, sure_BT = taught[0]
    for token_T, sure_T in zip(token_BT.tolist(), sure_BT.tolist(), strict=True):
        assert wanted[tuple(token_T)] == sure_T
    assert 0 < sum(map(sum, sure_BT.tolist())) < sure_BT[:, 1:].numel()
