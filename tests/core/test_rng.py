"""Named, single-use randomness."""

import pytest
import torch

from polydec.core.rng import Rng

P = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)


def test_a_draw_is_a_function_of_seed_choice_and_names():
    assert (
        Rng.of_choice(3, 1).child_stream("token", 5).draw_uniform()
        == Rng.of_choice(3, 1).child_stream("token", 5).draw_uniform()
    )
    others = [Rng.of_choice(3, 1), Rng.of_choice(4, 1), Rng.of_choice(3, 0)]
    draws = {
        r.child_stream(*names).draw_uniform()
        for r in others
        for names in (("token", 5), ("token", 6), ("draft", 5), ("token", "5"))
    }
    assert len(draws) == 12


def test_names_nest_and_deriving_uses_nothing_up():
    rng = Rng.of_choice(0)
    child = rng.child_stream("token", 1)
    assert (
        child.child_stream("accept", 0).draw_uniform()
        != child.child_stream("accept", 1).draw_uniform()
    )
    assert child.draw_uniform() == Rng.of_choice(0).child_stream("token", 1).draw_uniform()


@pytest.mark.parametrize(
    "draw",
    [
        lambda r: r.draw_uniform(),
        lambda r: r.draw_bernoulli(0.5),
        lambda r: r.draw_categorical(P),
        lambda r: r.without_replacement(P, 2),
        lambda r: r.gumbel_noise(4),
        lambda r: r.uniform_row(4),
        lambda r: r.normal_row(4),
    ],
)
def test_a_second_draw_raises(draw):
    rng = Rng.of_choice(1)
    draw(rng)
    with pytest.raises(RuntimeError, match="drawn from before"):
        rng.draw_uniform()


def test_the_same_on_every_run():
    """Fixed for good: a seed's text must not change between releases."""
    assert Rng.of_choice(0).child_stream("token", 0).draw_uniform() == 0.06600009560229336
    assert [
        Rng.of_choice(0).child_stream("t", i).draw_categorical(torch.ones(1000)) for i in range(4)
    ] == [
        75,
        151,
        257,
        306,
    ]
    assert Rng.of_choice(0).gumbel_noise(3).gumbel_V.tolist() == pytest.approx(
        [0.30034199121564786, 0.9356889334045909, 0.6343540186128988]
    )
    # Of the same numbers the Gumbel noise is made.
    assert Rng.of_choice(0).normal_row(3).tolist() == pytest.approx(
        torch.special.ndtri((-(-Rng.of_choice(0).gumbel_noise(3).gumbel_V).exp()).exp()).tolist()
    )


def test_rows_of_numbers():
    u = Rng.of_choice(5).uniform_row(4000)
    assert u.min() > 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.02
    z = Rng.of_choice(6).normal_row(4000)
    assert z.dtype is torch.float64
    assert abs(float(z.mean())) < 0.06 and abs(float(z.var()) - 1) < 0.08


def test_distributions():
    n = 4000
    rng = Rng.of_choice(5)
    u = torch.tensor([rng.child_stream("u", i).draw_uniform() for i in range(n)])
    assert abs(float(u.mean()) - 0.5) < 0.02 and abs(float(u.var()) - 1 / 12) < 0.01
    assert float(u.min()) >= 0.0 and float(u.max()) < 1.0
    c = (
        torch.bincount(
            torch.tensor([rng.child_stream("c", i).draw_categorical(3 * P) for i in range(n)]),
            minlength=4,
        )
        / n
    )
    assert float((c - P).abs().max()) < 0.03
    g = (
        torch.bincount(
            torch.tensor(
                [rng.child_stream("g", i).gumbel_noise(4).argmax_token(P.log()) for i in range(n)]
            ),
            minlength=4,
        )
        / n
    )
    assert float((g - P).abs().max()) < 0.03
    assert abs(sum(rng.child_stream("b", i).draw_bernoulli(0.3) for i in range(n)) / n - 0.3) < 0.03
    assert not any(rng.child_stream("b0", i).draw_bernoulli(0.0) for i in range(50)) and all(
        rng.child_stream("b1", i).draw_bernoulli(1.0) for i in range(50)
    )


@pytest.mark.parametrize("how", ["without_replacement", "noise"])
def test_without_replacement(how):
    n, count = 4000, {}
    for i in range(n):
        r = Rng.of_choice(i)
        pair = (
            r.without_replacement(P, 2)
            if how == "without_replacement"
            else r.gumbel_noise(4).first_tokens(P.log(), 2)
        )
        count[pair] = count.get(pair, 0) + 1
    for a in (0, 2, 3):
        for b in (0, 2, 3):
            want = 0.0 if a == b else float(P[a] * P[b] / (1 - P[a]))
            assert abs(count.get((a, b), 0) / n - want) < 0.03
    r = Rng.of_choice(0)
    all_of = (
        r.without_replacement(P, 9)
        if how == "without_replacement"
        else r.gumbel_noise(4).first_tokens(P.log(), 9)
    )
    assert sorted(all_of) == [0, 2, 3]  # fewer where fewer have weight


def test_the_first_of_topk_is_the_argmax():
    for i in range(50):
        assert Rng.of_choice(i).gumbel_noise(4).first_tokens(P.log(), 3)[0] == Rng.of_choice(
            i
        ).gumbel_noise(4).argmax_token(P.log())


def test_a_uniform_that_rounds_up_to_the_total_means_the_last_token_with_weight(monkeypatch):
    monkeypatch.setattr(Rng, "draw_uniform", lambda self: 1.0)
    assert Rng.of_choice(0).draw_categorical(torch.tensor([0.2, 0.8, 0.0])) == 1


def test_a_float32_row_draws_what_its_float64_copy_draws():
    row = torch.randn(1000).softmax(-1)
    assert all(
        Rng.of_choice(i).draw_categorical(row) == Rng.of_choice(i).draw_categorical(row.double())
        for i in range(50)
    )


def test_what_a_guess_and_its_check_share_is_one_stream():
    rng = Rng.of_choice(2).child_stream("token", 4)
    assert (
        rng.shared_stream().draw_uniform()
        == Rng.of_choice(2).child_stream("token", 4).draw_uniform()
    )
