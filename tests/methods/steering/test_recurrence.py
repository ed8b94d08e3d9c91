"""Added recurrence: a prompt in windows, one vector from each to the next; in training and decoding alike."""

import json

import numpy as np
import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling, load
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.recurrence import RecurrentNetwork, train_recurrence
from polydec.lab.train.specs.recurrence import RecurrenceSpec
from polydec.laws.targets.recurrent_windows import WindowedPromptTarget, split_windows
from polydec.models.learned.kinds import window_summary
from polydec.models.learned.kinds.window_summary import examples, summary_of_states
from polydec.models.sessions.soft import make_soft_tokens
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel

METHODS = ("plain", "auto", "prompt-lookup", "draft-model", "token-recycling")
TEXT = "The grey foxes and the greyer foxes saw the quietest foxes by the river"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("windows"), examples=examples)


@pytest.fixture(scope="module")
def prompt(lm):
    return (0, *lm.encode_prompt(TEXT, raw=True))


async def no_rows(checker):
    """Rows of a prompt are compared with training instead."""


def read(lm, prompt):
    return WindowedPromptTarget(lm.checkpoint.lm, prompt, lm.artefacts[0])


def ask(**fields):
    return Ask(
        TEXT, **{"raw": True, "ignore_eos": True, "steer": "recurrence", "max_tokens": 12, **fields}
    )


def texts(lm, asks, **limits):
    return micro.completed_ids(Engine(lm, **limits), asks)


def test_windows_are_counted_behind_their_begin():
    assert split_windows((9, 1, 2, 3, 4, 5), 9, 2) == (((1, 2), (3, 4)), (5,))
    assert split_windows((9, 1, 2, 3, 4), 9, 2) == (((1, 2),), (3, 4))
    assert split_windows((1, 2, 3), 9, 2) == (((1, 2),), (3,))
    assert split_windows((9, 1, 2), 9, 2) == ((), (1, 2))
    assert split_windows((9,), 9, 2) == ((), ())


def test_the_law_is_that_of_the_last_window_behind_one_vector(lm, prompt):
    """Computed by hand from sessions of the model: nothing else of the text before has a part in it."""
    model, made = lm.checkpoint.lm, lm.artefacts[0]
    windows, tail = split_windows(prompt, 0, 3)
    assert len(windows) > 3
    vector = ()
    for window in windows:
        ids = (0, *vector, *window)
        session = model.open_session(ids)
        state_TH = torch.cat([x.hidden_NH for x in run_coroutines([_read(session, ids)])[0]])
        assert len(state_TH) == len(ids)
        vector = made.summary_vector(session.normed_states(state_TH)[-3:])
        vector = make_soft_tokens(vector[None], model.vocab.size, len(vector), "a test")
    got = micro.law_at_end(read(lm, prompt), prompt)
    want = micro.law_at_end(model, (0, *vector, *tail))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0.0)
    # The first window counts through the vectors alone, and it counts.
    other = (0, 5, *prompt[2:])
    assert not torch.allclose(micro.law_at_end(read(lm, other), other), got, atol=1e-3)


async def _read(session, ids):
    before = await session.prefill_prompt(ScoreRequest(prompt=True, hidden=True))
    last = await session.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest(hidden=True))
    return before, last


def test_a_prompt_of_one_window_is_the_plain_one(lm):
    ids = tuple(lm.encode_prompt(TEXT, raw=True))[:3]
    short = {"raw": True, "ignore_eos": True, "max_tokens": 6}
    (want,) = texts(lm, [Ask(ids, **short)])
    assert texts(lm, [Ask(ids, steer="recurrence", **short)]) == [want]
    plain = {"n": 2, "sampling": Sampling(temperature=1.0)}
    (want,) = texts(lm, [ask(steer=None, **plain)])
    assert texts(lm, [ask(**plain)]) != [want]
    assert texts(lm, [ask(steer_options={"window": 500}, **plain)]) == [want]


def test_it_is_a_target(lm, prompt, monkeypatch):
    # A beginning of the prompt has another last window: it is another text.
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    short = prompt[:11]
    assert len(split_windows(short, 0, 3)[0]) == 3
    check_target(read(lm, short), prompt=short, tolerance=1e-3)


def test_every_method_writes_the_same_in_any_company(lm):
    got = texts(lm, [ask(method=m) for m in METHODS])
    assert got == got[:1] * len(METHODS)
    asks = [ask(seed=i, steer_options={"window": 2 + i}, n=1 + i % 2) for i in range(4)]
    assert texts(lm, asks, max_positions=7) == [texts(lm, [a])[0] for a in asks]


def test_what_cannot_be_is_refused(lm, tmp_path):
    with pytest.raises(ValueError, match="needs what makes vectors of windows"):
        plan_request(LoadedModel(lm.checkpoint, lm.draft), ask())
    window_summary.save(tmp_path, lm.artefacts[0], {})
    config = json.loads((tmp_path / "config.json").read_text())
    for field, value in (("width", 32), ("inner", 5), ("window", 0)):
        (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
        with pytest.raises(FileError):
            window_summary.load(tmp_path)


# training


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts of which every window repeats the word that the first one drew: what stands before is worth knowing."""
    path = tmp_path_factory.mktemp("recurrence") / "texts.jsonl"
    dice = np.random.default_rng(0)
    words = ["cat", "dog", "fox", "hen", "owl", "ant"]
    path.write_text(
        "\n".join(
            json.dumps({"text": f" the {words[dice.integers(6)]} ran away" * 16}) for _ in range(80)
        )
    )
    return str(path)


def spec(data, out, **fields):
    small = {"window": 4, "windows": 3, "texts": 32, "steps": 2, "rows": 8, "tries": 8}
    return RecurrenceSpec(str(out), "zoo:tiny", data, **{**small, **fields})


def test_training_and_decoding_agree(data, tmp_path):
    train_recurrence(spec(data, tmp_path / "out", rate=1e-3))
    made = window_summary.load(tmp_path / "out" / "summary")
    trained = load_directory(str(tmp_path / "out"))
    network = RecurrentNetwork(trained, made.begin_token, False, 0)
    network.maps.load_state_dict(made.tensors)
    model = load(
        str(tmp_path / "out"),
        ngrams=None,
        trained=str(tmp_path / "out" / "summary"),
        dtype="float32",
    )
    ids = tuple(model.encode_prompt("the owl and the fox saw the hen and the cat", raw=True))
    ids = tuple(x for x in ids if x != made.begin_token)[:11]
    assert len(ids) == 11
    text = (made.begin_token, *ids)
    target = WindowedPromptTarget(model.checkpoint.lm, text, made)
    session = target.open_session(text)
    scores = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])[0]
    got = [-scores.token_logprobs(i, (x,))[0] for i, x in enumerate(text[1:])]
    with torch.no_grad():
        padded = torch.tensor([*ids, 0]).view(1, 3, 4)
        want = network.window_nats(padded).flatten()[:11]
    assert got == pytest.approx(want.tolist(), abs=2e-2)


def test_later_windows_learn_what_stood_before(data, tmp_path):
    """With vectors a later window knows the word that only an earlier one told; without them it guesses."""
    longer = {"windows": 2, "steps": 60, "rate": 2e-3}
    ours = train_recurrence(spec(data, tmp_path / "ours", **longer))
    alone = train_recurrence(spec(data, tmp_path / "alone", alone=True, **longer))
    assert not (tmp_path / "alone" / "summary").exists()
    assert ours["nats_later"] < alone["nats_later"] - 0.1


def test_gradients_go_through_all_windows_and_into_the_maps():
    from polydec.lab.train.network import LlamaShape, TrainableLlama

    net = TrainableLlama(LlamaShape(20, 32, 1, 2, 2, 32, 32))
    network = RecurrentNetwork(net, 0, False, 1)
    with torch.no_grad():
        network.maps["down"].normal_()
    tokens = torch.randint(1, 20, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    nats = network.window_nats(tokens)
    assert nats.shape == (2, 3, 4)
    # The first token of the first window, which the last one sees through two vectors.
    other = tokens.clone()
    other[:, 0, 0] = other[:, 0, 0] % 19 + 1
    moved = (network.window_nats(other) - nats).abs()
    assert (moved[:, 1] > 1e-7).any() and (moved[:, 2] > 1e-7).any()
    nats[:, 2].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in network.maps.values())
    alone = RecurrentNetwork(net, 0, True, 1)
    moved = (alone.window_nats(other) - alone.window_nats(tokens)).abs()
    assert not moved[:, 1:].any()


def test_a_vector_begins_as_large_as_an_embedding():
    from polydec.lab.train.network import LlamaShape, TrainableLlama

    net = TrainableLlama(LlamaShape(20, 32, 1, 2, 2, 32, 32))
    network = RecurrentNetwork(net, 0, False, 1)
    made = summary_of_states(network.maps, torch.randn(5, 4, 32))
    assert float(made.std()) == pytest.approx(float(net.model.embed_tokens.weight.std()), rel=0.1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"window": 1}, "window is 1"),
        ({"window": 500, "windows": 4}, "windows is 4 and window 500: zoo:tiny has a context of"),
        ({"rate": 0.0}, "rate is 0"),
        ({"texts": 4}, r"texts is 4: a step takes rows \(8\)"),
    ],
)
def test_bad_input_is_one_sentence(data, tmp_path, fields, said):
    with pytest.raises(RequestError, match=said):
        train_recurrence(spec(data, tmp_path / "out", **fields))
