"""Drafters learn a rule that their target knows: what comes next is said by the token before, alone or with one of two."""

import random

import pytest
import torch

from polydec.core.types import TokenVocabulary
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.loop import TrainingSchedule, fit_network
from polydec.lab.train.network import LlamaShape, TrainableLlama, from_weights
from polydec.lab.train.own_text import TargetTextStates
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.states import StatesSpec, level_divergence, level_hit_rates
from polydec.lab.train.students import TeacherContext
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw

V, LENGTH, STEPS = 24, 10, 80
SHAPE = LlamaShape(V, width=V, layers=2, heads=4, kv_heads=2, inner=8, context=64)
ONE, TWO = [(x + 1,) for x in range(V)], [(2 * x, 2 * x + 1) for x in range(V)]
SILENT = {"ppd", "lud"}
"""Their probes hear of the text by the target's layers alone, and those of this target say nothing."""


def knows(rule):
    """A network whose states are one-hot and whose head says what the rule allows."""
    weights = {
        name: torch.zeros_like(t) if name.endswith(("o_proj.weight", "down_proj.weight")) else t
        for name, t in TrainableLlama(SHAPE, tokens=torch.arange(V, dtype=torch.int32))
        .state_dict()
        .items()
    }
    weights["model.embed_tokens.weight"] = torch.eye(V)
    weights["lm_head.weight"] = torch.zeros(V, V)
    for x, after in enumerate(rule):
        weights["lm_head.weight"][[y % V for y in after], x] = 3.0
    return SHAPE.config_content(tied=False), weights


def learned(kind, rule, steps=STEPS):
    """How often each level's likeliest token is right on other text, and the target afterwards."""
    config, weights = knows(rule)
    target, lm = (
        from_weights(config, weights),
        CausalLaw(
            LlamaTransformer.build(config, weights, dtype="float32"),
            TokenVocabulary(V, frozenset()),
        ),
    )
    rng, samples, way = random.Random(1), [], KINDS[kind]
    for _ in range(32):
        text = [rng.randrange(V)]
        while len(text) < 32:
            text.append(rng.choice(rule[text[-1]]) % V)
        samples.append(TrainingSample(tuple(text[:4]), tuple(text[4:])))
    levels = 3
    student = way.start(TeacherContext(target, lm.vocab, torch.arange(V), levels, 1))
    lessons, held = (
        TargetTextStates.of_samples(lm, some, way.depths(2))
        for some in (samples[:24], samples[24:])
    )
    pieces, spec = lessons.piece_starts(LENGTH, levels), StatesSpec("", kind, length=LENGTH)

    def loss(step):
        g = torch.Generator().manual_seed(step)
        student.set_step(step, steps)
        return level_divergence(
            student, lessons, pieces[torch.randint(len(pieces), (16,), generator=g)], spec, way
        )[0], 1

    fit_network(student, loss, TrainingSchedule(steps, 1e-2, warmup=0.05, decay=1.0))
    return [
        row[0]
        for row in level_hit_rates(student, held, held.piece_starts(LENGTH, levels), LENGTH, levels)
    ], target


@pytest.mark.parametrize(
    "kind",
    [
        k if k in ("medusa", "clover", "eagle-3") else pytest.param(k, marks=pytest.mark.slow)
        for k in KINDS
        if k not in SILENT
    ],
)
def test_text_that_one_rule_makes(kind):
    """Every level is right, and the target has learned nothing: no gradient reaches it."""
    right, target = learned(
        kind, ONE, 300 if kind == "hidden-transfer" else STEPS
    )  # its maps have a long way to go
    assert min(right) > 0.95, right
    assert all(p.grad is None and not p.requires_grad for p in target.parameters())


@pytest.mark.parametrize(
    "kind",
    [
        "hydra",
        "clover",
        pytest.param("hydra++", marks=pytest.mark.slow),
        pytest.param("hydra++-own", marks=pytest.mark.slow),
    ],
)
def test_who_reads_tokens_knows_which_way_the_text_went(kind):
    """Either of two tokens follows each one, and a head's state lies one token before the root: who reads what was drafted is
    right every second time at every level."""
    assert min(learned(kind, TWO)[0]) > 0.42


def test_further_blocks_change_nothing_before_training_and_learn_then():
    """Four blocks a head begin as one: the same states; and the first step moves each of them."""
    config, weights = knows(ONE)
    target = from_weights(config, weights)
    shown = TeacherContext(target, TokenVocabulary(V, frozenset()), torch.arange(V), 3, 1)
    one, four = (KINDS[kind].start(shown) for kind in ("hydra++", "hydra++-deep"))
    g = torch.Generator().manual_seed(0)
    entry = torch.randn(2, LENGTH, V, generator=g)
    window = torch.randint(V, (2, LENGTH + 3, 2), generator=g)
    outs = [[made for made, _, _ in student(entry, window)] for student in (one, four)]
    for a, b in zip(*outs, strict=True):
        assert a.allclose(b, atol=1e-6)
    sum((made * made.detach().sign()).sum() for made in outs[1]).backward()
    model = four.build_artefact()
    assert [len(blocks) for blocks in model.more] == [3, 3, 3]
    assert all(weight.grad.abs().sum() > 0 for blocks in model.more for weight, _ in blocks)


def test_matrices_of_their_own_begin_as_the_targets_and_part_then():
    """Each head has one: its laws are those of its matrix, which no other head and not the target shares."""
    config, weights = knows(ONE)
    target = from_weights(config, weights)
    shown = TeacherContext(target, TokenVocabulary(V, frozenset()), torch.arange(V), 3, 1)
    student = KINDS["hydra++-own"].start(shown)
    own = student.build_artefact().own_VH
    assert len(own) == 3 and all(torch.equal(t, target.lm_head.weight) for t in own)
    assert all(not any(t is m for m in student.matrices) for t in own)  # Muon leaves them alone
    g = torch.Generator().manual_seed(0)
    entry = torch.randn(2, LENGTH, V, generator=g)
    window = torch.randint(V, (2, LENGTH + 3, 2), generator=g)
    before = [law.detach().clone() for _, law, _ in student(entry, window)]
    for level, (made, law, _) in enumerate(student(entry, window)):
        assert torch.allclose(law, made @ own[level].T, atol=1e-6)
        law.square().sum().backward(retain_graph=True)
        grown = [t.grad is not None and bool(t.grad.abs().sum() > 0) for t in own]
        assert grown == [k == level for k in range(3)]
        student.zero_grad()
    with torch.no_grad():
        target.lm_head.weight.mul_(-1)
        own[1].mul_(2)
    after = [law for _, law, _ in student(entry, window)]
    same = [torch.allclose(a, b) for a, b in zip(after, before, strict=True)]
    assert same == [True, False, True]


def test_who_reads_the_state_alone_does_not():
    """Of four tokens two tokens on, of eight three tokens on."""
    right = learned("medusa", TWO)[0]
    assert 0.15 < right[0] < 0.36 and right[1] < 0.24
