"""A draft for a micro target: what it learns, what stays as it was, resume, and bad input."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from polydec.lab.train import draft as module
from polydec.lab.train import selfplay
from polydec.lab.train.acceptance import chain_passes
from polydec.lab.train.draft import (
    POLICIES,
    DistillationObjective,
    DraftSpec,
    batch_of,
    output_token_states,
    shape_of,
    train_draft,
)
from polydec.lab.train.network import LlamaShape, TrainableLlama, save_directory
from polydec.lab.train.selfplay import SamplingMode, TrainingSample
from polydec.lab.train.teacher import TeacherModel
from polydec.lab.train.tokens import tokenizer_files, train_tokenizer
from polydec.models.sessions import checkpoint, sources

torch.set_num_threads(1)
SHAPE = LlamaShape(300, width=32, layers=3, heads=4, kv_heads=2, inner=48, context=128)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A random network, sharp enough to be worth guessing."""
    where = tmp_path_factory.mktemp("target")
    tokenizer = train_tokenizer(["what is the sum of two and three, and who said so?"] * 3, 300)
    network = TrainableLlama(SHAPE, seed=1)
    with torch.no_grad():
        network.model.embed_tokens.weight.mul_(10)
    save_directory(
        where,
        network,
        SHAPE.config_content(bos=0, eos=1),
        files=tokenizer_files(tokenizer, 128),
        dtype=torch.float32,
    )
    return where


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    where = tmp_path_factory.mktemp("prompts")
    (where / "svamp").mkdir()
    rows = [{"Body": f"Ann has {n} cats.", "Question": "How many?"} for n in range(30)]
    (where / "svamp" / "part_a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return where


def spec(target, root, out, **more) -> DraftSpec:
    given = {
        "each": 12,
        "max_tokens": 12,
        "tokens": 100,
        "steps": 6,
        "rows": 4,
        "context": 128,
        "bf16": False,
        "save_every": 2,
        **more,
    }
    return DraftSpec(str(out), target=str(target), data=str(root), **given)


def test_draft_is_trained_saved_and_loads(target, root, tmp_path):
    result = train_draft(spec(target, root, tmp_path, steps=40))
    assert result["curve"][-1][1] < result["curve"][0][1]
    assert result["held_out"]["all"]["tokens"] > 0
    point, base = (
        checkpoint.load_bundle(str(tmp_path), dtype="float32"),
        checkpoint.load_bundle(str(target), dtype="float32"),
    )
    point.lm.vocab.require_same(base.lm.vocab, "the draft")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["polydec_base"] == str(target)


@pytest.mark.parametrize("width", [0, 16])
def test_saved_draft_answers_what_training_computes(target, root, tmp_path, width):
    """The engine's network, from the saved files, against the trainable one; the borrowed table and the cut vocabulary
    included."""
    from polydec.core.scheduler import run_coroutines
    from polydec.core.types import Draft, ScoreRequest

    made = []
    real = module.save_draft_student

    def keep(out, student, *rest):
        made.append(student)
        real(out, student, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "save_draft_student", keep)
        train_draft(spec(target, root, tmp_path, width=width))
    ids = (0, 5, 9, 33, 7)
    session = checkpoint.load_bundle(str(tmp_path), dtype="float32").lm.open_session(ids)

    async def last():
        await session.prefill_prompt(ScoreRequest(prompt=False))
        return (await session.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())).logprob_row(
            0
        )

    row = run_coroutines([last()])[0]
    tokens = made[0].tokens.long()
    student = made[0].eval()
    with torch.no_grad():
        for weight in student.parameters():
            weight.copy_(weight.bfloat16().float())  # as the file holds it
        own = student(torch.tensor([ids]))[0, -1].log_softmax(-1)
    assert torch.allclose(row[tokens], own, atol=0.05)  # five seeds: 0.008 to 0.014
    assert int(torch.isfinite(row).sum()) == 100


def test_training_leaves_the_target_alone(target, root, tmp_path):
    before = {k: v.clone() for k, v in sources.open_source(str(target)).weights.items()}
    train_draft(spec(target, root, tmp_path))
    after = sources.open_source(str(target)).weights
    assert all(torch.equal(before[k], after[k]) for k in before)
    teacher = TeacherModel.of_files(sources.open_source(str(target)).config, after, False)
    assert not any(p.requires_grad for p in teacher.network.parameters())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["fkl", "tvd"])
def test_every_policy_trains(target, root, tmp_path, policy, name):
    result = train_draft(spec(target, root, tmp_path, policy=policy, divergence=name, steps=3))
    assert np.isfinite(result["loss"]) and 0 < result["acceptance_1_minus_tvd"] < 1


def test_a_kind_of_prompt_has_its_own_divergence():
    """Beside each other in one batch: each sample's tokens by its kind's; and the draft's own text in a share of the steps."""
    g, sizes = torch.Generator().manual_seed(0), (3, 2, 4)
    p, q = (torch.randn(9, 5, generator=g).log_softmax(-1) for _ in range(2))
    kinds = ("code", "summary", "code")

    class Fixed(DistillationObjective):
        def token_logprobs(self, samples, laws):
            return p, q, torch.zeros(9)

    def of(**more):
        return Fixed(DraftSpec("x", **more), None, None, (), None, False, {}, frozenset())

    samples = [TrainingSample((0,), (0,) * n, kind=k) for n, k in zip(sizes, kinds, strict=True)]
    mixed = of(tasks=(("code", "rkl"),)).token_divergence(samples, None)
    one, other = (of(divergence=d).token_divergence(samples, None) for d in ("fkl", "rkl"))
    assert mixed.equal(torch.cat([other[:3], one[3:5], other[5:]])) and not one.allclose(other)
    assert (of(own=0.25).share, of(policy="mixed").share, of().share) == (0.25, 0.5, 0.0)


def test_resumed_draft_equals_an_uninterrupted_one(target, root, tmp_path, monkeypatch):
    whole = train_draft(spec(target, root, tmp_path / "a"))
    text = str(tmp_path / "a" / "text.jsonl")
    real, calls = module.DistillationObjective.step_loss, [0]

    def stops(self, step):
        calls[0] += 1
        if calls[0] == 6:
            raise KeyboardInterrupt
        return real(self, step)

    first = train_draft(spec(target, root, tmp_path / "b", text=text))
    monkeypatch.setattr(module.DistillationObjective, "step_loss", stops)
    with pytest.raises(KeyboardInterrupt):
        train_draft(spec(target, root, tmp_path / "c", text=text))
    monkeypatch.setattr(module.DistillationObjective, "step_loss", real)
    second = train_draft(spec(target, root, tmp_path / "c", text=text))
    assert second["curve"] == first["curve"] == whole["curve"]
    files = [(tmp_path / d / "model.safetensors").read_bytes() for d in "bc"]
    assert files[0] == files[1]


def test_logged_acceptance_is_what_exact_verification_accepts(target, root, tmp_path):
    """1 - TVD, by teacher forcing, against draws: a token of q is accepted with probability min(1, p/q)."""
    train_draft(spec(target, root, tmp_path))
    source = sources.open_source(str(target))
    samples = selfplay.read_samples(tmp_path / "text.jsonl")
    teacher = TeacherModel.of_files(source.config, source.weights, False)
    laws = teacher.stored_laws(samples, tmp_path / "text.jsonl", 1.0)
    s = spec(target, root, tmp_path)
    student = module.build(s, shape_of(s, source.config), teacher, samples)
    lesson = module.DistillationObjective(
        s, student, teacher, samples, laws, False, source.config, source.text.eos
    )
    with torch.no_grad():
        logp, logq, _ = lesson.token_logprobs(samples, lesson.laws_of(range(len(samples))))
    g = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(logq.exp(), 400, replacement=True, generator=g)
    ratio = (logp - logq).gather(1, drawn).exp().clamp(max=1)
    taken = (torch.rand(ratio.shape, generator=g) < ratio).float()
    error = 4 * float(taken.std()) / taken.numel() ** 0.5
    assert float(taken.mean()) == pytest.approx(
        lesson.acceptance_rate(range(len(samples))), abs=error
    )


def test_cached_laws_equal_fresh_ones_after_the_file_has_grown(target, root, tmp_path):
    train_draft(spec(target, root, tmp_path))
    source, path = sources.open_source(str(target)), tmp_path / "more.jsonl"
    samples = selfplay.read_samples(tmp_path / "text.jsonl")
    teacher = TeacherModel.of_files(source.config, source.weights, False)
    teacher.stored_laws(samples[:2], path, 1.0)
    with open(path.with_suffix(".hidden"), "ab") as f:
        f.write(b"half a row")
    grown, fresh = teacher.stored_laws(samples, path, 1.0), teacher.sample_laws(samples, 1.0)
    assert torch.equal(grown.hidden_NH, fresh.hidden_NH) and torch.allclose(
        grown.lse_N, fresh.lse_N, atol=1e-5
    )


def test_answers_are_those_of_plain_decoding(target):
    """Greedy answers, many at once, against the network by itself."""
    point = checkpoint.load_bundle(str(target), dtype="float32")
    network = TeacherModel.of_files(
        sources.open_source(str(target)).config,
        sources.open_source(str(target)).weights,
        False,
    ).network
    asked = [("x", (0, 10 + n, 20), SamplingMode(0.0, 1.0)) for n in range(5)]
    for sample in selfplay.generate_answers(point.lm, asked, max_tokens=6, live=2):
        ids = list(sample.prompt_ids)
        for x in sample.output_ids:
            assert int(network(torch.tensor([ids]))[0, -1].argmax()) == x
            ids.append(x)


def test_writing_again_adds_nothing(target, root, tmp_path):
    point, path = checkpoint.load_bundle(str(target), dtype="float32"), tmp_path / "t.jsonl"
    selfplay.write_answers(path, point.lm, point.text, root, 5, max_tokens=4)
    first = path.read_text()
    path.write_text(first[: first.rindex("{") + 30])  # as an interruption leaves it
    assert len(selfplay.read_samples(path)) == first.count("\n") - 1
    for _ in range(2):
        selfplay.write_answers(path, point.lm, point.text, root, 5, max_tokens=4)
        assert sorted(path.read_text().split("\n")) == sorted(first.split("\n"))


def test_prompts_of_training_and_held_out_are_disjoint(root):
    train, held = selfplay.draw_prompts(root, 99), selfplay.draw_prompts(root, 99, unseen=True)
    assert train and held and not {t for _, t in train} & {t for _, t in held}


def test_batches_hold_every_sample_once_a_round():
    lengths = tuple(np.random.default_rng(0).integers(3, 90, 53).tolist())
    batches = [batch_of(lengths, 4, 0, step) for step in range(14)]
    assert sorted(i for b in batches for i in b) == list(range(53))
    assert batch_of(lengths, 4, 0, 14) is not batches[0]


def test_outputs_are_the_positions_before_each_token(target):
    source = sources.open_source(str(target))
    network = TeacherModel.of_files(source.config, source.weights, False).network
    a, b = TrainingSample((0, 4, 5), (6, 7, 8)), TrainingSample((0, 9), (3, 1, 2, 2))
    both = output_token_states(network, [a, b])
    assert torch.allclose(
        both[:3], network.model(torch.tensor([[0, 4, 5, 6, 7]]))[0, 2:], atol=1e-5
    )
    assert torch.allclose(
        both[3:], network.model(torch.tensor([[0, 9, 3, 1, 2]]))[0, 1:], atol=1e-5
    )


@pytest.mark.parametrize(
    ("right", "depth", "passes"),
    [
        ([True, True, False, True, True, True], 2, [3, 3]),
        ([False] * 3, 4, [1, 1, 1]),
        ([True] * 5, 4, [5]),
    ],
)
def test_chain_passes(right, depth, passes):
    assert chain_passes(right, depth) == passes


def test_one_text_serves_two_contexts(target, root, tmp_path):
    """What is kept of the target's states belongs to the samples that fit: another context keeps its own."""
    rows = [
        {"prompt_ids": [0, 5 + n, 9], "output_ids": [7 + n] * (3 + 9 * (n % 3 == 0)), "kind": "x"}
        for n in range(12)
    ]
    texts = [tmp_path / d / "text.jsonl" for d in "ab"]
    for text in texts:
        text.parent.mkdir()
        text.write_text("".join(json.dumps(r) + "\n" for r in rows))
    train_draft(spec(target, root, tmp_path / "c", text=str(texts[0])))
    shared, fresh = (
        train_draft(spec(target, root, tmp_path / f"d{i}", text=str(t), context=10))
        for i, t in enumerate(texts)
    )
    assert shared["samples"] == 8 and shared["curve"] == fresh["curve"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("divergence", "kl"),
        ("policy", "off"),
        ("own", 1.5),
        ("tasks", (("poem", "fkl"),)),
        ("temperature", 0.0),
        ("steps", 0),
        ("tokens", -1),
        ("rows", 0),
    ],
)
def test_bad_spec(tmp_path, field, value):
    with pytest.raises(ValueError, match=field):
        DraftSpec(str(tmp_path), **{field: value})


def test_bad_width_and_bad_target(target, root, tmp_path):
    with pytest.raises(ValueError, match="width is 12"):
        train_draft(spec(target, root, tmp_path, width=12))
    config = sources.open_source(str(target)).config
    with pytest.raises(ValueError, match="gpt2"):
        shape_of(DraftSpec(str(tmp_path)), {**config, "model_type": "gpt2"})


def test_text_without_samples(target, root, tmp_path):
    (tmp_path / "t.jsonl").write_text("")
    with pytest.raises(ValueError, match="no sample"):
        train_draft(replace(spec(target, root, tmp_path), text=str(tmp_path / "t.jsonl")))
    (tmp_path / "t.jsonl").write_text("{}\n{}\n")
    with pytest.raises(ValueError, match="line 1"):
        train_draft(replace(spec(target, root, tmp_path), text=str(tmp_path / "t.jsonl")))
