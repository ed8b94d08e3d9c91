"""What training reads and writes: collected text stays, kept states belong to one text, damage is one sentence."""

import itertools
import os
import random
import resource

import pytest
import torch

from polydec.base.edge import error_sentence
from polydec.base.files import FileLockedError, hold_file_lock
from polydec.lab.testing.toy import toy_law
from polydec.lab.train import selfplay
from polydec.lab.train.loop import TrainingSchedule, fit_network
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.selfplay import SamplingMode, TrainingSample
from polydec.lab.train.teacher import TeacherModel

ASKED = [("x", (n % 4, n // 4), SamplingMode(1.0, 1.0)) for n in range(8)]
TINY = LlamaShape(24, width=16, layers=1, heads=2, kv_heads=1, inner=16, context=32)


def collect(path, asked=ASKED):
    selfplay.collect_answers(path, toy_law(0, 5), asked, max_tokens=6, live=2)


def test_collected_text_is_only_added_to(tmp_path):
    path = tmp_path / "text.jsonl"
    collect(path, ASKED[:3])
    first, inode = path.read_bytes(), path.stat().st_ino
    collect(path)
    assert path.read_bytes().startswith(first) and path.stat().st_ino == inode
    assert {s.prompt_ids for s in selfplay.read_samples(path)} == {ids for _, ids, _ in ASKED}
    whole = path.read_bytes()
    collect(path)
    assert path.read_bytes() == whole


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
def test_a_full_disk_loses_nothing(tmp_path):
    """A limit on the file's size stands for the disk: a write fails in the middle of a line, as on a full one."""
    import signal

    path = tmp_path / "text.jsonl"
    collect(path, ASKED[:3])
    first = path.read_bytes()
    before, action = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    try:
        for more in (5, 0, 10, 130):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(first) + more, before[1]))
            with pytest.raises(OSError, match="too large"):
                collect(path)
            assert path.read_bytes().startswith(first)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, action)
    collect(path)
    assert path.read_bytes().startswith(first) and len(selfplay.read_samples(path)) == len(ASKED)


def test_a_whole_last_line_without_an_end_is_kept(tmp_path):
    path = tmp_path / "text.jsonl"
    collect(path, ASKED[:2])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    collect(path, ASKED[:3])
    assert [len(path.read_text().split("\n")), len(selfplay.read_samples(path))] == [4, 3]


def test_two_collectors_do_not_mix(tmp_path):
    with (
        hold_file_lock(tmp_path / "text.jsonl"),
        pytest.raises(FileLockedError, match="another process"),
    ):
        collect(tmp_path / "text.jsonl")


LINES = [
    b"{}",
    b"[]",
    b"3",
    b"null",
    b'{"prompt_ids": 3, "output_ids": [1]}',
    b'{"prompt_ids": [1.5], "output_ids": [1]}',
    b'{"prompt_ids": [], "output_ids": [1]}',
    b'{"prompt_ids": [-1], "output_ids": [1]}',
    b"[" * 10_000,
    b"\xff\xfe",
    b'{"prompt_ids": [1], "output_ids": ["\x1b[31m"]}',
    b'{"prompt_ids": [1], "output_ids": [[1]]}',
    b'{"prompt_ids": [1], "output_ids": [1], "temperature": "hot"}',
    b'{"prompt_ids": [1], "output_ids": [1], "kind": []}',
    b'{"prompt_ids": [99], "output_ids": [1]}',
    b'{"prompt_ids": [1], "output_ids": [%d]}' % 2**70,
    b'{"prompt_ids": [1], "output_ids": [1], "temperature": NaN}',
    b'{"prompt_ids": [true], "output_ids": [1]}',
]


@pytest.mark.parametrize("line", LINES)
def test_lines_that_are_no_samples(tmp_path, line):
    path = tmp_path / "text.jsonl"
    path.write_bytes(line + b"\n" + line)
    with pytest.raises(ValueError, match="line 1") as error:
        selfplay.read_samples(path, 24)
    assert error_sentence(error.value) == str(error.value)


@pytest.fixture
def teacher():
    return TeacherModel(TrainableLlama(TINY, seed=1).requires_grad_(False).eval(), False)


def texts(seed, n):
    rng = random.Random(seed)
    return [
        TrainingSample(
            tuple(rng.choices(range(24), k=3)), tuple(rng.choices(range(24), k=rng.randint(1, 5)))
        )
        for _ in range(n)
    ]


def equal(a, b):
    return torch.equal(a.hidden_NH, b.hidden_NH) and torch.allclose(a.lse_N, b.lse_N, atol=1e-5)


def test_states_of_another_text_are_not_used(tmp_path, teacher):
    """Texts of as many tokens, that differ from the start or later; each is computed again, and said."""
    path, first = tmp_path / "text.jsonl", texts(0, 6)
    assert equal(teacher.stored_laws(first, path, 1.0), teacher.sample_laws(first, 1.0))
    other = [
        TrainingSample(s.prompt_ids, tuple(23 - x for x in s.output_ids)) if i >= 4 else s
        for i, s in enumerate(first)
    ]
    for text in (other, first[::-1], texts(1, 6)):
        with pytest.warns(UserWarning, match="another text"):
            assert equal(teacher.stored_laws(text, path, 1.0), teacher.sample_laws(text, 1.0))
        assert equal(teacher.stored_laws(text, path, 0.5), teacher.sample_laws(text, 0.5))


def test_states_of_another_target_are_not_used(tmp_path, teacher):
    path, text = tmp_path / "text.jsonl", texts(0, 4)
    teacher.stored_laws(text, path, 1.0)
    other = TeacherModel(TrainableLlama(TINY, seed=2).requires_grad_(False).eval(), False)
    with pytest.warns(UserWarning, match="another text or target"):
        assert equal(other.stored_laws(text, path, 1.0), other.sample_laws(text, 1.0))


def test_states_grow_and_are_used_again(tmp_path, teacher, monkeypatch):
    path, text = tmp_path / "text.jsonl", texts(0, 6)
    teacher.stored_laws(text[:4], path, 1.0)
    asked = []
    real = TeacherModel.hidden_states
    monkeypatch.setattr(
        TeacherModel, "hidden_states", lambda self, s: asked.append(s) or real(self, s)
    )
    assert (
        equal(teacher.stored_laws(text, path, 1.0), teacher.sample_laws(text, 1.0))
        and asked[:2] == text[4:]
    )
    asked.clear()
    teacher.stored_laws(text, path, 1.0)
    teacher.stored_laws(text[:3], path, 1.0)
    assert not asked


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"\xff", b'{"target": 3, "digests": []}'])
@pytest.mark.filterwarnings("ignore:.*another text")
def test_damage_beside_the_states_costs_time_only(tmp_path, teacher, damage):
    path, text = tmp_path / "text.jsonl", texts(0, 4)
    for suffix in (".states", ".hidden"):
        teacher.stored_laws(text, path, 1.0)
        path.with_suffix(suffix).write_bytes(damage)
        assert equal(teacher.stored_laws(text, path, 1.0), teacher.sample_laws(text, 1.0))


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(2, 2))


def go(state, steps=4, **more):
    net = Line()
    fit_network(
        net,
        lambda step: ((net.a - 1).square().sum(), 1),
        TrainingSchedule(steps, save_every=2, log_every=2),
        state=state,
        identity={"who": "me", **more},
    )
    return net


def damaged(content):
    """The content with each of its parts, down to two levels, left out or replaced by what does not belong there."""
    wrong = (
        None,
        [],
        {},
        "x",
        3,
        -1.5,
        float("nan"),
        torch.zeros(3),
        [[1]],
        {"a": 1},
        [{}],
        [{"state": 3, "param_groups": []}],
    )
    for key, value in itertools.product(content, wrong):
        if type(value) is not type(content[key]) or value != content[key]:
            yield {**content, key: value}
    for key in content:
        yield {k: v for k, v in content.items() if k != key}
    yield from wrong
    group, state = content["optimisers"][0]["param_groups"], content["optimisers"][0]["state"]
    for value in wrong:
        yield {**content, "optimisers": [{"param_groups": group, "state": {0: value}}]}
        yield {
            **content,
            "optimisers": [{"param_groups": [{**group[0], "betas": value}], "state": state}],
        }
        yield {**content, "optimisers": [{"param_groups": [value], "state": state}]}
        yield {**content, "network": {"a": value}}
        yield {**content, "curve": [value]}


def test_damaged_states_of_training_are_one_sentence(tmp_path):
    state = tmp_path / "state.pt"
    go(state)
    content, refused = torch.load(state, weights_only=True), 0
    for bad in damaged(content):
        torch.save(bad, state)
        try:
            go(state, steps=6)
        except ValueError as error:
            assert error_sentence(error) == str(error) and str(state)[:50] in str(error)
            refused += 1
        else:  # what stands in it is of the right kind: a curve with other points, say
            assert isinstance(bad["curve"], list) and isinstance(bad["step"], int)
    assert refused > 100


@pytest.mark.parametrize("bytes_", [b"", b"PK\x03\x04", b"\x80\x02]q\x00.", bytes(range(64))])
def test_states_that_are_no_checkpoints(tmp_path, bytes_):
    (tmp_path / "state.pt").write_bytes(bytes_)
    with pytest.raises(ValueError, match="start anew") as error:
        go(tmp_path / "state.pt")
    assert error_sentence(error.value) == str(error.value)


def test_a_run_on_another_text_does_not_go_on(tmp_path):
    a, b = texts(0, 3), texts(1, 3)
    assert selfplay.samples_fingerprint(a) != selfplay.samples_fingerprint(b)
    go(tmp_path / "state.pt", samples=selfplay.samples_fingerprint(a))
    with pytest.raises(ValueError, match=r"another run .samples differ"):
        go(tmp_path / "state.pt", samples=selfplay.samples_fingerprint(b))


def test_a_head_s_text_survives_an_interruption(tmp_path, monkeypatch):
    """The answers that were there when a run was interrupted are there, and not asked for again, in the next."""
    from polydec.lab.train import own_text
    from polydec.lab.train.specs.probe.stop_head import StopHeadSpec

    monkeypatch.setattr(
        selfplay, "draw_prompts", lambda *a, **k: [("x", chr(97 + n) * 3) for n in range(5)]
    )
    monkeypatch.setattr(own_text, "training_data", lambda at: None)
    lm, real = toy_law(0, 5), selfplay.generate_watched_answers

    class Text:
        has_chat = False

        def encode(self, text):
            return (ord(text[0]) % 5, 1)

    def stops(*args, **more):
        yield from itertools.islice(real(*args, **more), 2)
        raise KeyboardInterrupt

    spec = StopHeadSpec(str(tmp_path), max_tokens=4)
    monkeypatch.setattr(selfplay, "generate_watched_answers", stops)
    with pytest.raises(KeyboardInterrupt):
        own_text.gather_target_text(spec, lm, Text(), False)
    had = (tmp_path / "text.part.jsonl").read_text()
    monkeypatch.setattr(selfplay, "generate_watched_answers", real)
    own_text.gather_target_text(spec, lm, Text(), False)
    assert had.count("\n") == 2 and (tmp_path / "text.jsonl").read_text().startswith(had)
    assert len(selfplay.read_samples(tmp_path / "text.jsonl")) == 5
