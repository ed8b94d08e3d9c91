"""Draws of a training: every seed, every step and every purpose has its own."""

import torch
from test_train_states import samples

import micro
from polydec.lab.train import states
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.network import from_weights
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.states import StatesSpec, train_states
from polydec.lab.train.students import TeacherContext
from polydec.models.sessions import checkpoint, sources


def draws(*names, count=8):
    return tuple(torch.randint(1 << 30, (count,), generator=generator_for(*names)).tolist())


def test_a_name_has_its_draws_and_no_other_name_has_them():
    names = [
        (s, step, p) for s in (0, 1, 2, -1, 1 << 32, 1 << 70) for step in (0, 1, 2) for p in "ab"
    ]
    assert len({draws(*name) for name in names}) == len(names)
    assert draws(3, 5, "rows") == draws(3, 5, "rows")


def test_neighbouring_names_are_unlike():
    """Of two streams half the coins agree, within five standard deviations."""
    coins = [
        torch.rand(4000, generator=generator_for(seed, step, "rows")) < 0.5
        for seed in range(4)
        for step in range(4)
    ]
    for i, one_N in enumerate(coins):
        assert abs(float(one_N.float().mean()) - 0.5) < 0.04
        for other_N in coins[:i]:
            assert abs(float((one_N == other_N).float().mean()) - 0.5) < 0.04


def test_seeds_of_a_training_on_states_learn_from_other_rows(tmp_path, monkeypatch):
    model, rows = micro.write(tmp_path / "model"), dict[int, list[tuple[int, ...]]]()

    def trained(seed):
        def noting(student, lessons, row_B, *rest):
            if torch.is_grad_enabled():
                rows[seed].append(tuple(row_B.tolist()))
            return true(student, lessons, row_B, *rest)

        out = tmp_path / str(seed)
        out.mkdir()
        samples(out / "held.jsonl", 3)
        samples(out / "text.jsonl")
        rows[seed] = []
        with monkeypatch.context() as patch:
            patch.setattr(states, "level_divergence", noting)
            how = {"steps": 3, "rows": 4, "length": 8, "max_tokens": 6, "seed": seed}
            train_states(StatesSpec(str(out), "medusa", str(model), **how))

    true = states.level_divergence
    for seed in (0, 1):
        trained(seed)
    assert len(rows[0]) == 3 and not set(rows[0]) & set(rows[1])


def test_what_is_hidden_or_moved_differs_by_seed_and_is_not_the_choice_of_rows(tmp_path):
    model = micro.write(tmp_path / "model")
    point, source = (
        checkpoint.load_bundle(str(model), dtype="float32"),
        sources.open_source(str(model)),
    )
    target = from_weights(source.config, source.weights)
    for kind in ("falcon", "longspec"):
        drawn = set()
        for seed in (0, 1):
            shown = TeacherContext(target, point.lm.vocab, torch.arange(3, 300), 4, seed)
            student = KINDS[kind].start(shown)
            student.set_step(5, 10)
            drawn |= {student._draw.initial_seed(), generator_for(seed, 5, "rows").initial_seed()}
        assert len({x % (1 << 32) for x in drawn}) == 4
