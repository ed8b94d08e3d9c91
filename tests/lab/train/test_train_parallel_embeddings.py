"""Parallel embeddings are trained: what holds pairs together, what holds paths apart, and that `embed` reads the same."""

import json

import pytest
import torch

from polydec import load
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.train import parallel_embeddings as trainer
from polydec.lab.train.jepa import contrastive_loss
from polydec.lab.train.mutual_information import InformationEstimator
from polydec.lab.train.network import from_weights
from polydec.lab.train.parallel_embeddings import (
    PathStudent,
    joined_paths,
    parallel_loss,
    read_embedded_pairs,
    train_parallel_embeddings,
)
from polydec.lab.train.specs.parallel_embeddings import ParallelEmbeddingsSpec
from polydec.models.learned.artefacts import load_artefact
from polydec.models.sessions.sources import open_source
from polydec.models.sessions.vision import open_vision
from polydec.request.embedding import EmbeddingInput, embedding_vectors, resolve_embedding_settings
from polydec.request.reading import EmbeddingSettings

FEW = {"each": 6, "rows": 4, "steps": 2, "paths": 2, "prefix": 3, "rank": 2}


def spec_of(**more):
    return ParallelEmbeddingsSpec(**{"out": "x", **FEW, **more})


@pytest.fixture(autouse=True)
def few_judged(monkeypatch):
    monkeypatch.setattr(trainer, "JUDGED", 6)


@pytest.fixture(scope="module")
def lm():
    torch.set_num_threads(1)
    return load("zoo:vision", draft=None, threads=1, dtype="float32")


@pytest.fixture(scope="module")
def pairs(lm):
    return read_embedded_pairs(lm, spec_of(), unseen=False)


def student_of(**more):
    parted, _ = open_vision(open_source("zoo:vision"), "cpu")
    return PathStudent(from_weights(parted.config, parted.weights), spec_of(**more))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_information_is_none_of_independent_vectors_and_much_of_equal_ones():
    told = InformationEstimator(2, 4, 16, 0)
    x = draw(1, 256, 4)
    samples = x.expand(2, -1, -1), torch.cat([draw(1, 256, 4, seed=1), x])
    told.learn_samples(*samples, 60, 0.05)
    fresh = draw(1, 256, 4, seed=2)
    # Each pair alone: the other one's first and second vectors are the same constant.
    other = torch.zeros_like(fresh)
    independent = told.information_bound(
        torch.cat([fresh, other]), torch.cat([draw(1, 256, 4, seed=3), other])
    )
    equal = told.information_bound(torch.cat([other, fresh]), torch.cat([other, fresh]))
    assert abs(float(independent)) < 0.15
    assert float(equal) > 1


def test_a_constant_path_has_no_information_to_lose():
    told = InformationEstimator(1, 4, 16, 0)
    x = draw(1, 32, 4)
    told.learn_samples(x, x, 20, 0.02)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(told.information_bound(x, torch.ones(1, 32, 4)), x)
    assert float(slope.abs().max()) < 1e-5


def test_the_estimator_is_learned_by_itself_alone():
    told = InformationEstimator(1, 4, 16, 0)
    assert not list(told.parameters())
    x = draw(1, 32, 4).requires_grad_()
    before = {name: t.clone() for name, t in told.named_weights.items()}
    (slope,) = torch.autograd.grad(told.information_bound(x, x), x)
    assert all(t.equal(before[name]) for name, t in told.named_weights.items())
    assert slope.isfinite().all()
    told.learn_samples(x, x, 1, 0.1)
    assert x.grad is None
    assert not told.named_weights["mean_bias"].equal(before["mean_bias"])


def test_the_loss_is_that_of_each_path_of_their_mean_and_of_what_they_share(pairs):
    student = student_of(paths=3, information=0.3, joined=0.7)
    with torch.no_grad():
        query = student([pair.query for pair in pairs])
        answer = student([pair.answer for pair in pairs])
        student.estimator.learn_samples(*student.paired_paths(query), 5, 0.02)
        got, seen = parallel_loss(student, pairs)
    answers = [pair.answer for pair in pairs]
    want = sum(contrastive_loss(query[k], answer[k], answers, 0.1) for k in range(3))
    want += 0.7 * contrastive_loss(joined_paths(query), joined_paths(answer), answers, 0.1)
    told = student.estimator.information_bound(*student.paired_paths(query))
    assert float(told) > 0
    torch.testing.assert_close(got, want + 0.3 * told)
    torch.testing.assert_close(seen, query)
    assert student.path_pairs == [(0, 1), (0, 2), (1, 2)]
    first, second = student.paired_paths(query)
    torch.testing.assert_close(first[1], query[0] * 128**0.5)
    torch.testing.assert_close(second[1], query[2] * 128**0.5)


def test_one_path_is_plain_contrastive_training(pairs):
    student = student_of(paths=1, information=5.0, joined=0.0)
    with torch.no_grad():
        got, query = parallel_loss(student, pairs)
        answer = student([pair.answer for pair in pairs])
    want = contrastive_loss(query[0], answer[0], [pair.answer for pair in pairs], 0.1)
    torch.testing.assert_close(got, want)


def test_paths_begin_unlike_and_inputs_are_the_same_in_company(pairs):
    student = student_of()
    assert not student.prefix_KMW[0].allclose(student.prefix_KMW[1], atol=1e-3)
    with torch.no_grad():
        both = student([pairs[0].query, pairs[1].answer])
        torch.testing.assert_close(both[:, :1], student([pairs[0].query]), atol=1e-5, rtol=0.0)
        torch.testing.assert_close(both[:, 1:], student([pairs[1].answer]), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(both.norm(dim=-1), torch.ones(2, 2))


def test_what_was_trained_is_what_embed_reads(tmp_path, pairs):
    """Prefixes and adapters of a run, given to the engine, give the vectors of the network that was trained."""
    made = list[PathStudent]()

    class KeptStudent(PathStudent):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "PathStudent", KeptStudent)
        result = train_parallel_embeddings(spec_of(out=str(tmp_path / "a"), rate=0.05))
    lm = load(
        str(tmp_path / "a"), draft=None, threads=1, trained=[str(tmp_path / "a" / "prefixes")]
    )
    inputs = [pairs[0].query, pairs[0].answer]
    with torch.no_grad():
        want = made[0](inputs)
    untrained = student_of()
    assert not untrained.prefix_KMW.allclose(made[0].prefix_KMW, atol=1e-3)
    for path in (1, 2):
        how = resolve_embedding_settings(lm, EmbeddingSettings(path=path))
        texts = [EmbeddingInput(ids, None) for ids in inputs]
        (got,) = run_coroutines([embedding_vectors(lm, texts, how)])
        torch.testing.assert_close(got, want[path - 1], atol=2e-3, rtol=0.0)
    assert result["adapted"] and 0 <= result["retrieved"] <= 1


def test_runs_are_repeated_and_learn(tmp_path):
    first = train_parallel_embeddings(spec_of(out=str(tmp_path / "a")))
    again = train_parallel_embeddings(spec_of(out=str(tmp_path / "b")))
    assert again["information"] == first["information"] and again["alike"] == first["alike"]
    free = {"information": 0.0, "rate": 0.01, "steps": 24}
    longer = train_parallel_embeddings(spec_of(out=str(tmp_path / "c"), **free))
    assert longer["curve"][-1][1] < longer["curve"][0][1] - 0.1
    plain = train_parallel_embeddings(spec_of(out=str(tmp_path / "d"), rank=0, paths=1))
    assert not (tmp_path / "d" / "adapter_config.json").exists()
    assert plain["parameters"] == 3 * 128 and plain["alike"] == 1.0
    assert load_artefact(str(tmp_path / "d" / "prefixes")).prefix_KMW.shape == (1, 3, 128)


def test_the_estimator_follows_each_step(tmp_path, monkeypatch):
    followed = list[int]()
    learn = InformationEstimator.learn_samples

    def counted(self, x, y, steps, rate):
        followed.append(steps)
        learn(self, x, y, steps, rate)

    monkeypatch.setattr(InformationEstimator, "learn_samples", counted)
    train_parallel_embeddings(spec_of(out=str(tmp_path / "a"), estimator_steps=3))
    assert followed == [3, 3]
    train_parallel_embeddings(spec_of(out=str(tmp_path / "b"), information=0.0))
    assert followed == [3, 3]


def test_pairs_of_texts_are_learned(tmp_path):
    rows = [{"source": f"what is {i}", "target": f"a number {i}"} for i in range(40)]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    spec = spec_of(out=str(tmp_path / "out"), target="zoo:tiny-draft", data=str(data))
    result = train_parallel_embeddings(spec)
    assert 2 <= result["among"] <= 20
    lm = load(str(tmp_path / "out"), draft=None, trained=[str(tmp_path / "out" / "prefixes")])
    assert lm.embed("what is 3").shape[0] == 1


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(RequestError, match="which reads text only: give pairs"):
        train_parallel_embeddings(spec_of(target="zoo:tiny"))
    with pytest.raises(RequestError, match=r"^rows is 9: a step takes"):
        train_parallel_embeddings(spec_of(rows=9))
    data = tmp_path / "pairs.jsonl"
    data.write_text(json.dumps({"source": "a", "target": "b"}) + "\n", "utf-8")
    with pytest.raises(FileError, match="fewer than two of its pairs"):
        train_parallel_embeddings(spec_of(data=str(data)))
