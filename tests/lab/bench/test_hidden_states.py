"""Hidden-state optimisation: what is scored, what changes and by how much."""

import json

import pytest
import torch
from torch.nn import functional as F

import micro
from polydec.base.errors import RequestError
from polydec.cli.main import main
from polydec.lab.bench.hidden_states import (
    EntryMoments,
    StateReader,
    StateSteps,
    rate_rows,
    text_nats,
)
from polydec.lab.train.network import LlamaShape, TrainableLlama

SHAPE = LlamaShape(40, width=32, layers=3, heads=4, kv_heads=2, inner=48, context=96)
TEXT = torch.randint(0, 40, (65,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def network():
    net = TrainableLlama(SHAPE, seed=2).double().requires_grad_(False).eval()
    with torch.no_grad():
        net.model.embed_tokens.weight.mul_(20.0)
    net.model.cos, net.model.sin = net.model.cos.double(), net.model.sin.double()
    return net


def plain_nats(network, token_T):
    return F.cross_entropy(network(token_T[None, :-1])[0].float(), token_T[1:], reduction="none")


def test_no_rate_is_the_model_as_it_is(network):
    torch.testing.assert_close(
        text_nats(network, TEXT, StateSteps(0.0, 16)), plain_nats(network, TEXT), rtol=0, atol=1e-5
    )


def test_a_segment_is_scored_before_anything_changes(network):
    """Tokens that come later have no part in what is foretold, and the first segment is the model's own."""
    how = StateSteps(0.01, 16)
    nats = text_nats(network, TEXT, how)
    torch.testing.assert_close(nats[:16], plain_nats(network, TEXT)[:16], rtol=0, atol=1e-5)
    other = TEXT.clone()
    other[40] = (other[40] + 1) % 40
    changed = text_nats(network, other, how)
    torch.testing.assert_close(changed[:39], nats[:39], rtol=0, atol=0)
    assert not torch.allclose(changed[48:], nats[48:], atol=1e-6)
    assert not torch.allclose(nats[16:], plain_nats(network, TEXT)[16:], atol=1e-4)


def test_gradients_are_those_of_the_segment(network):
    """Finite differences at entries of the past, keys and values, and at the segment's own."""
    reader = StateReader(network, StateSteps(1e-3, 16))
    reader.read_segment(TEXT[:17])
    past = reader.past
    nats, kept = reader._nats(TEXT[16:33], past)
    grads = torch.autograd.grad(nats.sum(), [t for pair in kept for t in pair])
    for layer, part, at in ((0, 0, (0, 1, 3, 2)), (1, 1, (0, 0, 9, 5)), (2, 0, (0, 1, 15, 7))):
        moved = []
        for by in (1e-4, -1e-4):
            twin = [[t.clone() for t in pair] for pair in past]
            twin[layer][part][at] += by
            moved.append(
                float(reader._nats(TEXT[16:33], [tuple(p) for p in twin])[0].double().sum())
            )
        assert (moved[0] - moved[1]) / 2e-4 == pytest.approx(
            float(grads[2 * layer + part][at]), rel=0.02, abs=2e-2
        )


def test_a_small_step_makes_the_same_segment_likelier(network):
    reader = StateReader(network, StateSteps(1e-3, 16))
    reader.read_segment(TEXT[:17])
    before = reader.past
    reader.read_segment(TEXT[16:33])
    # What was read before the segment, as it is now, foretells the segment better.
    after = [(k[:, :, :16], v[:, :, :16]) for k, v in reader.past]
    told = [float(reader._nats(TEXT[16:33], past)[0].sum()) for past in (before, after)]
    assert told[1] < told[0]


def test_entries_count_their_own_steps_and_begin_with_nothing(network):
    reader = StateReader(network, StateSteps(1e-3, 16))
    for at in (0, 16, 32):
        reader.read_segment(TEXT[at : at + 17])
    for pair in reader.moments:
        for m in pair:
            assert m.steps_P.tolist() == [3.0] * 16 + [2.0] * 16 + [1.0] * 16


def test_a_first_step_of_adam_is_the_sign_of_the_gradient():
    how = StateSteps(0.1, 4, 1.0)
    entries = torch.tensor([[[[3.0, -4.0]]]])
    moments = EntryMoments.like_entries(entries[:, :, :0])
    moved = moments.step_entries(entries, torch.tensor([[[[0.5, -2.0]]]]), how)
    rms = (25 / 2) ** 0.5
    torch.testing.assert_close(entries - moved, 0.1 * rms * torch.tensor([[[[1.0, -1.0]]]]))


def test_no_entry_moves_further_than_its_bound(network):
    reader = StateReader(network, StateSteps(1.0, 16, 0.01))
    _, past = reader._nats(TEXT[:17], [])
    reader.read_segment(TEXT[:17])
    for old, new in zip(past, reader.past, strict=True):
        for a, b in zip(old, new, strict=True):
            share = (b - a).norm(dim=-1) / a.norm(dim=-1)
            assert share.max() <= 0.0101 and share.mean() > 0.0099


def test_weights_stay(network):
    before = {k: v.clone() for k, v in network.state_dict().items()}
    text_nats(network, TEXT, StateSteps(0.1, 16))
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


def test_rows_are_means_over_texts(network):
    texts = [TEXT, TEXT.flip(0)]
    rows = list(rate_rows(network, texts, (0.0, 0.01), 16))
    want = [
        [float(text_nats(network, t, StateSteps(r, 16)).mean()) for t in texts] for r in (0.0, 0.01)
    ]
    for row, nats in zip(rows, want):
        assert row["nats"] == pytest.approx(sum(nats) / 2, abs=1e-4)
    change = [b - a for a, b in zip(*want)]
    assert rows[1]["change"] == pytest.approx(sum(change) / 2, abs=1e-4)
    assert rows[1]["better"] == sum(c < 0 for c in change) / 2


@pytest.mark.parametrize("change", [{"rate": -1.0}, {"segment": 0}, {"bound": 2.0}])
def test_values_are_checked(change):
    with pytest.raises(RequestError, match=next(iter(change))):
        StateSteps(**change)


def test_the_command_measures_a_file(tmp_path, capsys, monkeypatch):
    def run_suite(*more):
        line = ["polydec", "bench", "--suite", "hidden-states", "--model", model, *more]
        monkeypatch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code

    model = str(micro.write(tmp_path / "m", context=64))
    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"text": " ".join(micro.TEXT[i:])}) + "\n" for i in range(3))
    )
    assert not run_suite("--from", str(path), "--each", "2", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [r["rate"] for r in rows] == [0.0, 0.0003, 0.001, 0.003, 0.01]
    assert rows[0]["change"] == 0 and rows[-1]["change"] != 0
    assert run_suite()
    assert "from is none" in capsys.readouterr().err
