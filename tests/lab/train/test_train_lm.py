"""Tokenizer, packing, n-gram, schedule, resume, interruption, and the directory that comes out."""

import gzip
import itertools
import json
import random

import numpy as np
import pytest
import torch

from polydec.base.files import replace_file_atomically
from polydec.lab.train import lm as module
from polydec.lab.train.data import (
    BEGIN,
    END,
    PackedTokenStream,
    as_chat,
    data_root,
    hash_bucket,
    held_out,
    pack_documents,
    read_documents,
    split_documents,
)
from polydec.lab.train.evaluate import bits_per_byte, sliding_window_nats
from polydec.lab.train.lm import LMSpec, encode_corpus, pattern_of, train_lm
from polydec.lab.train.loop import TrainingSchedule, fit_network
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.ngram import NGram
from polydec.lab.train.tokens import CHAT, train_tokenizer

torch.set_num_threads(1)
TINY = LlamaShape(300, width=16, layers=2, heads=2, kv_heads=1, inner=32, context=64)
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sees",
    "likes",
    "old",
    "small",
    "house",
    "and",
    "river",
    "walks",
    "into",
    "def",
    "return",
    "self",
    "x",
    "=",
    "1",
]


def line(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(20, 60)))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A small directory of data in the form of the real one."""
    where, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    for folder in ("text_books", "text_docs", "text_tldr", "text_python"):
        (where / folder).mkdir()
        with gzip.open(where / folder / "part.jsonl.gz", "wt", encoding="utf-8") as f:
            for _ in range(60):
                f.write(json.dumps({"text": line(rng)}) + "\n")
    (where / "text_dialogues_sgd").mkdir()
    with gzip.open(
        where / "text_dialogues_sgd" / "dialogues.jsonl.gz", "wt", encoding="utf-8"
    ) as f:
        for _ in range(60):
            turns = [{"speaker": s, "utterance": line(rng)} for s in ("USER", "SYSTEM")]
            f.write(json.dumps({"turns": turns}) + "\n")
    return where


def spec(root, out, **more) -> LMSpec:
    given = {
        "schedule": TrainingSchedule(8, 1e-2, muon=0.02, save_every=3, log_every=2),
        "shape": TINY,
        "bf16": False,
        "train_mb": (0.05, 0.05, 0.05),
        "held_kb": 4.0,
        **more,
    }
    return LMSpec(str(out), data=str(root), **given)


@pytest.mark.parametrize(
    "text", ["plain words", "a  b\n\n\tc", "naïve – 你好 🙂", "x = 12345\n", "\u2028 \x00"]
)
def test_tokenizer_round_trip(text):
    tokenizer = train_tokenizer([line(random.Random(1)) for _ in range(50)], 300)
    ids = tokenizer.encode(text).ids
    assert ids[0] == tokenizer.token_to_id(BEGIN)
    assert tokenizer.decode(ids) == text


def test_tokenizer_size_is_checked():
    with pytest.raises(ValueError, match="vocab is 100"):
        train_tokenizer(["x"], 100)


def test_chat_template_writes_what_training_saw():
    from polydec.models.text.tokenizer import Tokenizer

    tokenizer = train_tokenizer(["hello world"], 300)
    text = Tokenizer(tokenizer, template=CHAT)
    turns = [{"speaker": "USER", "utterance": "hello"}, {"speaker": "SYSTEM", "utterance": "world"}]
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]
    assert text.render_chat(messages, reply=False) == BEGIN + as_chat(turns)


def test_split_is_by_hash_and_disjoint(root):
    parts = split_documents(root, "prose", 10**6, 10**6)
    assert all(hash_bucket(t) < 7 for t in parts.train)
    assert all(held_out(t) for t in parts.unseen)
    assert sorted(parts.train + parts.unseen) == sorted(read_documents(root, "prose"))
    assert len(split_documents(root, "code", 500, 500).train) < len(
        split_documents(root, "code", 5000, 500).train
    )


def test_missing_data_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such directory"):
        data_root(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there is no file in it"):
        list(read_documents(tmp_path, "code"))
    with pytest.raises(ValueError, match="kind is 'poems'"):
        list(read_documents(tmp_path, "poems"))


def test_a_round_of_rows_holds_every_token_once():
    stream = pack_documents([[3, 4, 5], [6, 7], [8, 9, 10, 11]], end=1)
    assert stream.tolist() == [3, 4, 5, 1, 6, 7, 1, 8, 9, 10, 11, 1]
    packed = PackedTokenStream(stream, begin=0, seed=3)
    rows = [packed.stream_row(i, 4) for i in range(3)]
    assert all(r[0] == 0 and len(r) == 5 for r in rows)
    assert sorted(np.concatenate([r[1:] for r in rows]).tolist()) == sorted(stream.tolist())
    orders = {
        tuple(tuple(packed.stream_row(turn * 3 + i, 4)) for i in range(3)) for turn in range(12)
    }
    assert len(orders) > 1


def test_mixture_keeps_the_shares():
    assert [pattern_of((8, 7, 5)).count(k) for k in range(3)] == [8, 7, 5]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_ngram_is_normalised(order):
    rng = np.random.default_rng(order)
    streams = [rng.integers(0, 6, 200), rng.integers(0, 7, 90)]
    model = NGram.train_counts(streams, 7, order)
    for context in ([0, 1, 2, 3], [6, 6, 6, 6], list(streams[0][:4])):
        law = model.next_token_law(context)
        assert law.sum() == pytest.approx(1.0, abs=1e-12)
        assert law.min() > 0


def test_ngram_by_hand():
    """Bigrams of 0 1 0 2 0 1: counts 01:2 10:1 02:1 20:1; D2 = 3/5. Unigram continuations 0:2 1:1 2:1, D1 = 2/4."""
    model = NGram.train_counts([np.array([0, 1, 0, 2, 0, 1])], 3, 2)
    low = [(2 - 0.5) / 4 + 1.5 / 4 / 3, 0.5 / 4 + 1.5 / 4 / 3, 0.5 / 4 + 1.5 / 4 / 3]
    assert model.next_token_law([0]) == pytest.approx(
        [1.2 / 3 * low[0], 1.4 / 3 + 1.2 / 3 * low[1], 0.4 / 3 + 1.2 / 3 * low[2]]
    )


def test_ngram_beats_a_shorter_one_on_its_own_kind_of_text():
    rng = random.Random(2)
    cycle = np.array([i for _ in range(300) for i in (0, 1, 0, 2, 0, rng.randint(3, 4))])
    short, long = (NGram.train_counts([cycle[:1500]], 5, n) for n in (1, 5))
    assert (
        -long.stream_logprobs(cycle[1500:]).mean()
        < -short.stream_logprobs(cycle[1500:]).mean() - 0.5
    )


def test_ngram_bad_input():
    with pytest.raises(ValueError, match="order is 9"):
        NGram.train_counts([np.arange(20)], 4096, 9)
    with pytest.raises(ValueError, match="shorter than order"):
        NGram.train_counts([np.arange(2)], 10, 5)


def test_bits_per_byte_of_the_uniform_law():
    """A network whose head is zero gives log2(V) bits a token, whatever the windows."""
    network = TrainableLlama(TINY)
    torch.nn.init.zeros_(network.model.embed_tokens.weight)
    ids = list(np.random.default_rng(0).integers(0, 300, 200))
    assert bits_per_byte(network, [ids], 50, context=64) == pytest.approx(
        199 * np.log2(300) / 50, rel=1e-5
    )


def test_windows_give_every_token_half_a_context():
    seen: list[tuple[int, int]] = []

    def forward(window):
        seen.append((int(window[0, 0]), window.shape[1]))
        return torch.zeros(1, window.shape[1], 300)

    assert sliding_window_nats(forward, list(range(200)), 64) == pytest.approx(
        199 * np.log(300), rel=1e-6
    )
    assert [first for first, _ in seen] == [0, 32, 64, 96, 128, 160][: len(seen)] and seen[-1][
        0
    ] + seen[-1][1] >= 199


def test_schedule_rises_stays_and_falls():
    s = TrainingSchedule(100, warmup=0.1, decay=0.5)
    f = [s.rate_factor(i) for i in range(100)]
    assert f[0] < 0.2 and max(f) == 1.0 and f[20] == f[45] == 1.0 and f[99] < 0.02
    assert all(a >= b for a, b in itertools.pairwise(f[50:]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("rate", 0.0), ("decay", 2.0), ("muon", -1.0), ("save_every", 0)],
)
def test_schedule_bad_input(field, value):
    with pytest.raises(ValueError, match=field):
        TrainingSchedule(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("preset", "huge"), ("steps", 0), ("shares", (1, 2)), ("long", 2.0), ("held_kb", 0)],
)
def test_spec_bad_input(tmp_path, field, value):
    with pytest.raises(ValueError, match=field):
        LMSpec(str(tmp_path), **{field: value})


def weights(out):
    from safetensors.torch import load_file

    return load_file(str(out / "model.safetensors"))


def test_resumed_run_equals_an_uninterrupted_one(root, tmp_path, monkeypatch):
    whole = train_lm(spec(root, tmp_path / "a"))
    real, calls = module.lm_step_loss, [0]

    def stops(*args):
        calls[0] += 1
        if calls[0] == 7:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(module, "lm_step_loss", stops)
    with pytest.raises(KeyboardInterrupt):
        train_lm(spec(root, tmp_path / "b"))
    assert (
        torch.load(tmp_path / "b" / "state.pt", weights_only=True)["step"] == 3
    )  # the last checkpoint interval
    monkeypatch.setattr(module, "lm_step_loss", real)
    rest = train_lm(spec(root, tmp_path / "b"))
    assert rest["curve"] == whole["curve"]
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_state_of_another_run_is_refused(root, tmp_path):
    train_lm(spec(root, tmp_path))
    with pytest.raises(ValueError, match="seed"):
        train_lm(spec(root, tmp_path, seed=1234))


def test_damaged_state_is_named(tmp_path):
    (tmp_path / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        fit_network(
            TrainableLlama(TINY),
            lambda step: (torch.zeros(()), 0),
            TrainingSchedule(1),
            state=tmp_path / "state.pt",
        )


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def broken(at):
        at.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file_atomically(path, broken)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_directory_loads_in_transformers_and_here(root, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from polydec.models.sessions import checkpoint

    result = train_lm(spec(root, tmp_path))
    assert (
        result["bits_per_byte"].keys()
        == result["bits_per_byte_5_gram"].keys()
        == {"prose", "code", "dialogue"}
    )
    assert result["curve"][-1][1] < result["curve"][0][1]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(tmp_path)("the old cat")["input_ids"]
    from polydec.lab.train.lm_student import load_directory

    ours = load_directory(str(tmp_path))(torch.tensor([ids]))
    with torch.no_grad():
        assert torch.allclose(theirs(torch.tensor([ids])).logits, ours, atol=1e-4)
    point = checkpoint.load_bundle(str(tmp_path), dtype="float32")
    assert list(point.text.encode("the old cat")) == ids and point.text.has_chat
    assert point.text.eos == {point.text.tokenizer.token_to_id(END)}


def test_student_learns_its_teacher(root, tmp_path):
    train_lm(spec(root, tmp_path / "t"))
    small = LlamaShape(300, width=8, layers=1, heads=1, kv_heads=1, inner=16, context=64)
    result = train_lm(spec(root, tmp_path / "s", teacher=str(tmp_path / "t"), shape=small))
    assert result["curve"][-1][1] < result["curve"][0][1]


def test_encoded_documents_begin_and_end(root):
    tokenizer = train_tokenizer(read_documents(root, "prose"), 300)
    corpus = encode_corpus(tokenizer, {"dialogue": split_documents(root, "dialogue", 9000, 3000)})
    begin, end = tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END)
    assert all(ids[0] == begin and ids[-1] == end for ids in corpus.unseen["dialogue"])
    assert corpus.train["dialogue"][-1] == end and begin not in corpus.train["dialogue"]


@pytest.mark.parametrize("field", ["tokenizer", "teacher"])
def test_a_directory_that_is_not_there_is_named(root, tmp_path, field):
    with pytest.raises(ValueError, match="nowhere"):
        train_lm(spec(root, tmp_path, **{field: str(tmp_path / "nowhere")}))


NAN = float("nan")


@pytest.mark.parametrize(
    "losses, best",
    [
        ((5.0, 3.0, 4.0, 6.0, 7.0), 1),
        ((1.0, 3.0, 2.0, 6.0, 7.0), 0),
        ((5.0, 4.0, 3.0, 2.0, 1.0), 4),
        ((5.0, NAN, 4.0, 6.0, NAN), 2),
    ],
)
def test_the_weights_that_are_best_aside_are_kept(tmp_path, losses, best):
    """Looked at before steps 0, 2, 4, 6 and after the last; also where the run was interrupted and goes on."""

    def run(steps, state):
        torch.manual_seed(0)
        network, seen, said = torch.nn.Linear(3, 1), [], dict(enumerate(losses))
        schedule = TrainingSchedule(8, judge_every=2, save_every=1)
        looks = [0]

        def loss(step):
            looks[0] = step // 2 + 1
            if step == steps:
                raise KeyboardInterrupt
            return network(torch.ones(3)).sum() ** 2, 1

        def aside():
            seen.append([p.detach().clone() for p in network.parameters()])
            return torch.tensor(said[looks[0]])

        try:
            fit_network(network, loss, schedule, state=state, aside=aside)
        except KeyboardInterrupt:
            return None
        return seen, [p.detach().clone() for p in network.parameters()]

    seen, kept = run(99, tmp_path / "whole.pt")
    assert len(seen) == len(losses) and all(
        a.equal(b) for a, b in zip(seen[best], kept, strict=True)
    )
    if best < 2:  # what was best before an interruption is not forgotten by it
        run(5, tmp_path / "cut.pt")
        again = run(99, tmp_path / "cut.pt")[1]
        assert all(a.equal(b) for a, b in zip(kept, again, strict=True))


def test_without_a_part_aside_the_last_weights_stay():
    network = torch.nn.Linear(3, 1)
    fit_network(network, lambda step: (network(torch.ones(3)).sum() ** 2, 1), TrainingSchedule(5))
    with pytest.raises(ValueError, match="judge_every is 0: it must be at least 1"):
        TrainingSchedule(5, judge_every=0)
