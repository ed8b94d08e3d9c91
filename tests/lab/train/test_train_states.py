"""Training of drafters on states: what is trained is what drafts, resumed runs give the same weights, and it learns."""

import json
import random
import re
from dataclasses import replace

import pytest
import torch

import micro
from polydec import load
from polydec.cli.main import app
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail
from polydec.lab.train import states
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.kinds.eagle_3 import quarters_of
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.own_text import TargetTextStates
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.states import StatesSpec, train_states
from polydec.lab.train.students import TeacherContext
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import narrow
from polydec.models.learned.state_layer import rms_normalised
from polydec.models.sessions import checkpoint, sources

TEXT = (5, 6, 7, 8, 30, 31, 9, 40, 41, 12, 50, 61, 7, 70)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return micro.write(tmp_path_factory.mktemp("m") / "a")


class Chain:
    """Asks for the laws along a chain of these tokens behind `root`, and keeps them."""

    def __init__(self, root, tokens):
        self.root, self.tokens, self.rows = root, tokens, None

    async def grow_tree(self, session, root, position, budget, rng):
        draft = Draft.chain_draft(root)
        if root != self.root:
            return draft
        for depth in range(budget.depth):
            scores = await session.score_draft(draft, None)
            draft = Draft.chain_draft(root, self.tokens[: depth + 1])
        self.rows = [scores.logprob_row(i) for i in range(budget.depth)]
        return Draft.chain_draft(root)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_is_what_drafts(kind, model):
    """The laws that training compares are those that a drafter at work gives, level by level, on a network."""
    point, source, way = (
        checkpoint.load_bundle(str(model), dtype="float32"),
        sources.open_source(str(model)),
        KINDS[kind],
    )
    levels, known = max(way.levels, 3), 10
    shown = TeacherContext(
        from_weights(source.config, source.weights), point.lm.vocab, torch.arange(3, 300), levels, 1
    )
    student = way.start(shown)
    with torch.no_grad():
        for p in student.parameters():  # as if it had been trained
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.05)
    lessons = TargetTextStates.of_samples(
        point.lm, [TrainingSample(TEXT[:4], TEXT[4:])], way.depths(point.lm.network.layers)
    )
    at = torch.arange(known - 1)[None]
    with torch.no_grad():
        made = student(lessons.entry_ND[at], lessons.window_NW[None, : known - 1 + levels])
        trained = [logits[0, -1] for _, logits, _ in made]
    tree, before = Chain(TEXT[known - 1], TEXT[known:]), TEXT[: known - 1]
    drafter = way.drafter(student.build_artefact([[0.5]] * levels), tree)

    async def drafted():
        session = point.lm.open_session(before)
        guess = drafter.open_guess(before, session)
        await prefill_for_guess(session, guess, before)
        draft = await guess.propose_draft(
            before[-1], len(before), DraftBudget(levels, 24), Rng.of_choice(0)
        )
        scores = await session.score_draft(
            draft, replace(guess.want, law=RowDetail.ROW, prompt=False, last=False)
        )
        session.commit_tokens(before[-1:])
        guess.learn_round(draft, scores, Verdict((), TEXT[known - 1]))
        await guess.propose_draft(
            TEXT[known - 1], known, DraftBudget(len(trained), 24), Rng.of_choice(0)
        )

    run_coroutines([drafted()])
    for row_V, logits in zip(tree.rows, trained, strict=True):
        some = slice(None) if student.columns is None else student.columns
        assert row_V[some].exp().allclose(logits.softmax(-1), atol=2e-5)
        assert float(row_V[some].exp().sum()) == pytest.approx(1.0, abs=1e-5)


def samples(path, count=24):
    """Text with a rule: every token is followed by the next one of a short round."""
    rng = random.Random(0)
    with open(path, "w") as f:
        for _ in range(count):
            first = rng.randrange(20)
            text = [10 + (first + i) % 20 for i in range(30)]
            f.write(json.dumps({"prompt_ids": text[:8], "output_ids": text[8:]}) + "\n")


def spec(model, out, kind):
    out.mkdir()
    samples(out / "held.jsonl", 3)
    samples(out / "text.jsonl")
    return StatesSpec(
        str(out), kind, str(model), steps=6, rows=2, length=8, save_every=2, max_tokens=6
    )


def test_a_piece_longer_than_every_answer_is_refused_with_the_longest_one(model, tmp_path):
    asked = spec(model, tmp_path / "a", "hydra")

    def refusal(length):
        with pytest.raises(
            ValueError, match=rf"^length is {length}: 24 answers hold no"
        ) as refused:
            train_states(replace(asked, length=length))
        return str(refused.value)

    said = refusal(48)
    assert "or longer answers (--max-tokens above 6) of more prompts (--each above 60) in" in said
    longest = int(re.search(r": give --length (\d+) or less", said)[1])
    assert 1 <= longest < 30
    assert f"give --length {longest} or less" in refusal(longest + 1)
    assert train_states(replace(asked, length=longest))["steps"] == 6


def test_one_answer_cannot_be_learned_from_and_set_aside(model, tmp_path):
    asked = spec(model, tmp_path / "a", "hydra")
    samples(tmp_path / "one.jsonl", 1)
    with pytest.raises(ValueError, match=r"to set aside: give a --text with more and longer"):
        train_states(replace(asked, text=str(tmp_path / "one.jsonl")))


@pytest.mark.parametrize(
    "kind",
    [
        k
        if k in ("hydra", "eagle-3", "eagle-3-narrow", "eagle-3-published")
        else pytest.param(k, marks=pytest.mark.slow)
        for k in KINDS
    ],
)
def test_killed_once_and_resumed_to_the_same_weights(kind, model, tmp_path, monkeypatch):
    whole = train_states(spec(model, tmp_path / "a", kind))
    cut, loss = spec(model, tmp_path / "b", kind), states.level_divergence
    calls = []

    def dies(*given):
        calls.append(1)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return loss(*given)

    monkeypatch.setattr(states, "level_divergence", dies)
    with pytest.raises(KeyboardInterrupt):
        train_states(cut)
    monkeypatch.setattr(states, "level_divergence", loss)
    again = train_states(cut)
    assert (
        whole["held_out"] == again["held_out"]
        and whole["tokens_per_pass"] == again["tokens_per_pass"]
    )
    weights = next(p.name for p in (tmp_path / "a").glob("*.safetensors"))
    assert (tmp_path / "a" / weights).read_bytes() == (tmp_path / "b" / weights).read_bytes()
    lm = load(str(model), draft=None, trained=[str(tmp_path / "a")])
    one = artefacts.bind_artefact(artefacts.load_artefact(str(tmp_path / "a")), lm.checkpoint.lm)
    assert lm.artefacts[0].share > 0 and one.kind == lm.artefacts[0].kind


def test_a_narrow_one_begins_as_the_draft_model(model):
    """With embeddings of one length its law before training is the draft model's, whatever the target's states are."""
    source, vocab = (
        sources.open_source(str(model)),
        checkpoint.load_bundle(str(model), dtype="float32").lm.vocab,
    )
    target, tokens = from_weights(source.config, source.weights), torch.arange(3, 300)
    table = rms_normalised(target.model.embed_tokens.weight) * 0.5
    target.model.embed_tokens.weight.data.copy_(table)
    draft = TrainableLlama(replace(target.s, layers=1), outer=table, tokens=tokens.int(), seed=4)
    begin = {**draft.state_dict(), "lm_head.tokens": tokens.int()}
    student = KINDS["eagle-3-narrow"].start(TeacherContext(target, vocab, tokens, 2, 1, begin))
    window = torch.randint(5, 300, (2, 14, 3))
    with torch.no_grad():
        first = next(
            iter(student(torch.randn(2, 12, 32 * len(quarters_of(target.s.layers))), window))
        )[1]
        assert first.allclose(draft(window[:, :12, -1]), atol=1e-4)
    # A draft model with a table of its own: the layer's norm has to see tokens as long as these.
    own = {**begin, "model.embed_tokens.weight": 3 * table}
    student = KINDS["eagle-3-narrow"].start(TeacherContext(target, vocab, tokens, 2, 1, own))
    assert student.block.join[:, :32].allclose(1.5 * torch.eye(32), atol=1e-4)
    with pytest.raises(ValueError, match="start knows other tokens"):
        narrow.head_of(begin, tokens[1:])
    with pytest.raises(ValueError, match="start has no head of its own"):
        narrow.tokens_of({})


def test_glancing_ends_with_the_training(model):
    """Falcon's guesses are trained with part of the truth shown, less and less of it, and drawn by the step alone."""
    source, vocab = (
        sources.open_source(str(model)),
        checkpoint.load_bundle(str(model), dtype="float32").lm.vocab,
    )
    student = KINDS["falcon"].start(
        TeacherContext(from_weights(source.config, source.weights), vocab, torch.arange(300), 2, 1)
    )
    entry, window = torch.randn(2, 12, 32), torch.randint(5, 300, (2, 14, 3))

    def laws(step):
        student.set_step(step, 10)
        return next(iter(student(entry, window)))[1].detach()

    with torch.no_grad():
        plain = laws(0)
    assert laws(10).allclose(plain, atol=1e-6) and not laws(0).allclose(plain, atol=1e-3)
    assert laws(3).equal(laws(3))


@pytest.mark.parametrize("right", [True, False])
def test_who_guesses_right_is_shown_nothing(right, model, monkeypatch):
    """Falcon's: what falls with the guesses that are wrong is 0 where none is."""
    source, vocab = (
        sources.open_source(str(model)),
        checkpoint.load_bundle(str(model), dtype="float32").lm.vocab,
    )
    student = KINDS["falcon"].start(
        TeacherContext(from_weights(source.config, source.weights), vocab, torch.arange(300), 2, 1)
    )
    token_BM, x_BTS = torch.randint(5, 300, (4, 14)), torch.randn(4, 12, 64)
    said = token_BM[:, 2:] if right else token_BM[:, 2:] + 1
    monkeypatch.setattr(
        TeacherContext,
        "state_logits",
        lambda self, state, some=None: torch.nn.functional.one_hot(said, 320).float(),
    )
    student.set_step(0, 10)
    assert student._glanced(x_BTS, token_BM).equal(x_BTS) is right


def test_a_window_is_trained_as_it_drafts(model, monkeypatch):
    """LongSpec's, where the text is longer than it."""
    monkeypatch.setattr("polydec.lab.train.kinds.longspec.WINDOW", 3)
    test_what_is_trained_is_what_drafts("longspec", model)


def test_places_are_moved_behind_a_few_that_keep_theirs(model):
    """LongSpec's pieces: anywhere in the context, by one offset a piece; where nothing is trained they stand as they are."""
    source, vocab = (
        sources.open_source(str(model)),
        checkpoint.load_bundle(str(model), dtype="float32").lm.vocab,
    )
    student = KINDS["longspec"].start(
        TeacherContext(from_weights(source.config, source.weights), vocab, torch.arange(300), 4, 1)
    )
    student.set_step(3, 10)
    place_BP = student._places(400, 20)
    step_BP, anchors = place_BP.diff(dim=1), set()
    for place, step in zip(place_BP.tolist(), step_BP.tolist(), strict=True):
        jumps = [i + 1 for i, d in enumerate(step) if d != 1]
        assert len(jumps) <= 1 and (place[0] == 0 or not jumps)
        anchors |= set(jumps)
    assert (
        anchors == {1, 2, 3}
        and int(place_BP.max()) <= 255
        and int(place_BP[:, -1].float().std()) > 40
    )
    student.set_step(3, 10)
    assert student._places(400, 20).equal(place_BP)
    with torch.no_grad():
        assert student._places(2, 5).tolist() == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(ValueError, match="target has 1 layers"):
        KINDS["longspec"].depths(1)


def test_a_stage_on_long_pieces_begins_with_what_short_ones_made(model, tmp_path):
    """LongSpec's second stage: the weights of the first, and places that no offset moves."""
    source, vocab = (
        sources.open_source(str(model)),
        checkpoint.load_bundle(str(model), dtype="float32").lm.vocab,
    )
    shown = TeacherContext(
        from_weights(source.config, source.weights), vocab, torch.arange(300), 4, 1
    )
    first = KINDS["longspec"].start(shown)
    with torch.no_grad():
        for t in first.tensors:
            t.add_(0.01)
    about = {"target": str(model), "start": None}
    KINDS["longspec"].save(tmp_path / "short", first.build_artefact(((0.5,),)), about)
    begin = KINDS["longspec"].begins(str(tmp_path / "short"))
    second = KINDS["longspec"].start(replace(shown, begin=begin))
    for a, b in zip(first.tensors, second.tensors, strict=True):
        assert torch.allclose(a, b)
    second.set_step(3, 10)
    assert second._places(6, 33).equal(torch.arange(33).expand(6, 33)), "256 / 8 is long"
    assert not second._places(6, 32).equal(torch.arange(32).expand(6, 32))
    with pytest.raises(ValueError, match="does nothing with it, leave it out"):
        StatesSpec("out", kind="eagle", start="zoo:tiny-draft")


def test_ranks_are_counted_over_the_target_s_answers_alone(model):
    lm = checkpoint.load_bundle(str(model), dtype="float32").lm
    lessons = TargetTextStates.of_samples(
        lm, [TrainingSample(TEXT[:4], TEXT[4:]), TrainingSample(TEXT[:2], TEXT[2:9])]
    )
    assert lessons.token_N.tolist() == [*TEXT[1:], *TEXT[1:9]]
    assert lessons.window_NW[:3].tolist() == [[5, 5, 6], [5, 6, 7], [6, 7, 8]]
    assert lessons.answer_N.tolist() == [*[False] * 3, *[True] * 10, False, *[True] * 7]
    for row in lessons.piece_starts(3, 2).tolist():
        assert lessons.answer_N[row + 2] and row + 5 <= lessons.end_N[row]


def test_wrong_options_are_told_in_one_sentence():
    for bad, said in (
        ({"kind": "medussa"}, "kind is 'medussa': it must be one of chimera"),
        ({"steps": 0}, "steps is 0"),
        ({"levels": 17}, "levels is 17"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"every": 0}, "every is 0"),
        (
            {"start": "x"},
            r"start is 'x': kind eagle does nothing with it, leave it out \(eagle-3-narrow, longspec would",
        ),
        (
            {"tokens": 9},
            "tokens is 9: kind eagle does nothing with it, leave it out .eagle-3, eagle-3-n",
        ),
        ({"every": 2, "kind": "falcon"}, "every is 2: kind falcon does nothing with it"),
        (
            {"start": "x", "tokens": 9, "kind": "eagle-3-narrow"},
            "start is 'x' and tokens 9: start brings",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            StatesSpec("x", **{"kind": "eagle", **bad})
    from typer.testing import CliRunner

    assert "heads" in CliRunner().invoke(app, ["train", "--help"]).output
