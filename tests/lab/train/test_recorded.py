"""States on disk: those that the target had while it wrote, the same that it has when it reads, through interruptions."""

import random

import pytest
import torch

import micro
from polydec.lab.train import selfplay, texts
from polydec.lab.train.own_text import read_target_states
from polydec.lab.train.recorded_states import (
    StateFile,
    StatePassRecorder,
    read_states,
    recorded_position_count,
)
from polydec.lab.train.selfplay import SOURCES, SamplingMode, TrainingSample
from polydec.models.sessions import checkpoint
from polydec.models.text.tokenizer import Tokenizer

ASKED = [("x", (5, 6, 7 + i), SamplingMode(0.0, 1.0)) for i in range(4)]
DEPTHS = (1, 2)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return checkpoint.load_bundle(
        str(micro.write(tmp_path_factory.mktemp("m") / "a")), dtype="float32"
    ).lm


def file(path, lm, target="a"):
    return StateFile.of_text_file(path, DEPTHS, lm.network.embed_tokens((0,)).shape[1], target)


def test_what_is_recorded_is_what_is_read(lm, tmp_path):
    path = tmp_path / "text.jsonl"
    selfplay.collect_answers(
        path, lm, ASKED, max_tokens=6, live=3, record=StatePassRecorder(lm, file(path, lm))
    )
    samples = selfplay.read_samples(path)
    kept = file(path, lm).read_samples(samples)
    assert file(path, lm).complete_samples(samples) == 4 and len(kept) == sum(
        map(recorded_position_count, samples)
    )
    whole = [read_states(lm, (*s.prompt_ids, *s.output_ids)[:-1], DEPTHS) for s in samples]
    assert kept.float().allclose(torch.cat(whole), rtol=2e-3, atol=2e-3)
    ids = (*samples[0].prompt_ids, *samples[0].output_ids[:-1])
    assert whole[0].allclose(read_target_states(lm, ids, DEPTHS)[1], atol=1e-5)


def test_an_interruption_loses_no_state_and_doubles_none(lm, tmp_path):
    path = tmp_path / "text.jsonl"
    selfplay.collect_answers(
        path, lm, ASKED[:2], max_tokens=6, record=StatePassRecorder(lm, file(path, lm))
    )
    there = selfplay.read_samples(path)
    with open(
        file(path, lm).path, "ab"
    ) as f:  # a state of a sample whose line was not written any more
        f.write(b"\1" * 100)
    with open(file(path, lm).index, "a") as f:
        f.write("strange\n")
    selfplay.collect_answers(
        path, lm, ASKED, max_tokens=6, record=StatePassRecorder(lm, file(path, lm))
    )
    samples = selfplay.read_samples(path)
    assert samples[:2] == there and len(samples) == 4
    kept = file(path, lm).read_samples(samples)
    with open(file(path, lm).path, "r+b") as f:
        f.truncate(file(path, lm).row * (recorded_position_count(samples[0]) + 1))
    again = file(path, lm)
    assert again.complete_samples(samples) == 1
    again.complete_states(lm, samples)
    assert again.read_samples(samples).float().allclose(kept.float(), rtol=2e-3, atol=2e-3)


def test_a_sample_of_two_tokens_has_no_states(lm, tmp_path):
    samples = [TrainingSample((5,), (6,)), TrainingSample((5, 6), (7,))]
    here = file(tmp_path / "text.jsonl", lm)
    here.complete_states(lm, samples)
    assert here.complete_samples(samples) == 2 and len(here.read_samples(samples)) == 1


def test_states_of_another_target_are_refused(lm, tmp_path):
    path = tmp_path / "text.jsonl"
    sample = [TrainingSample((5, 6), (7, 8))]
    file(path, lm).complete_states(lm, sample)
    with pytest.raises(ValueError, match="holds states of another target"):
        file(path, lm, "b").complete_states(lm, sample)


def test_no_text_that_is_read_is_a_held_out_prompt(tmp_path, monkeypatch):
    """Of every row all prompts that are made of it must be open."""
    asked = []
    monkeypatch.setattr(texts, "held_out", lambda text: asked.append(text) or "held" in text)
    rows = [
        {"context": c, "question": q, "answers": [{"text": "a"}]}
        for c in ("open", "held")
        for q in ("q1", "held q")
    ]
    monkeypatch.setattr(texts, "read_rows", lambda path: rows)
    (tmp_path / "qa_xquad").mkdir()
    (tmp_path / "qa_xquad" / "en.jsonl.gz").touch()

    class Chat(Tokenizer):
        def __init__(self):
            pass

        def chat_prompt(self, messages):
            return tuple(messages[0]["content"].encode())

        def encode(self, text, special=True):
            return tuple(text.encode())

    found = list(texts.read_exchanges(tmp_path, "question", Chat(), random.Random(0)))
    assert found == [tuple(b"open\n\nq1a")]
    assert {f for f, _ in SOURCES.values()} >= {"qa_xquad/en.jsonl.gz"} and "q1" in asked
