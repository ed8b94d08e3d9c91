"""Early-exit and sorted losses, layer dropout, growing and cutting a network."""

import math

import pytest
import torch
from test_train_lm import TINY, line, root, spec  # noqa: F401

from polydec.lab.train.exits import EarlyExitLosses, copy_with_layers
from polydec.lab.train.lm import learn_depths, lm_step_loss, train_lm
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.sorted import SortedSpec, exits_of, narrow_shape, train_sorted
from polydec.models.sessions.checkpoint import load_bundle

DEEP = LlamaShape(50, width=16, layers=6, heads=2, kv_heads=1, inner=32, context=64)
BATCH = torch.arange(40).reshape(2, 20) % 50


def test_weights_of_the_early_exit_loss():
    d = EarlyExitLosses(0.5)
    for step, early in ((0, [2, 4]), (1, [3, 5]), (2, [2, 4])):
        w = d.loss_weights(6, step)
        raw = {k: 0.5 * sum(range(k)) for k in early} | {6: 5 + 0.5 * sum(range(6))}
        assert w == pytest.approx({k: v / sum(raw.values()) for k, v in raw.items()})
    assert EarlyExitLosses().loss_weights(6, 0) == {6: 1.0}
    assert EarlyExitLosses(exits=(3, 4, 6)).loss_weights(6, 5) == {3: 1 / 3, 4: 1 / 3, 6: 1 / 3}
    with pytest.raises(ValueError, match="last one must be 6"):
        EarlyExitLosses(exits=(3, 4)).loss_weights(6, 0)


def test_the_loss_is_the_mean_of_truncated_networks():
    net = TrainableLlama(DEEP, seed=1)

    class S:
        seed, depths = 0, EarlyExitLosses(exits=(2, 5, 6))

    want = sum(lm_step_loss(copy_with_layers(net, d), None, BATCH, False) for d in (2, 5, 6)) / 3
    torch.testing.assert_close(learn_depths(net, None, BATCH, False, S, 0), want)
    S.depths = EarlyExitLosses()
    torch.testing.assert_close(
        learn_depths(net, None, BATCH, False, S, 0), lm_step_loss(net, None, BATCH, False)
    )


def test_dropout_grows_with_depth_and_keeps_the_first_layer():
    net, d, calls = TrainableLlama(DEEP, seed=1), EarlyExitLosses(dropout=0.4), [0] * 6
    for i, layer in enumerate(net.model.layers):
        layer.register_forward_pre_hook(
            lambda m, a, i=i: calls.__setitem__(i, calls[i] + len(a[0]))
        )
    with torch.no_grad():
        for step in range(300):
            d.hidden_states(net, BATCH, {6: 1.0}, 0, step)
    for i, n in enumerate(calls):
        assert abs(n / 600 - (1 - 0.4 * (math.exp(i * math.log(2) / 5) - 1))) < 0.08
    assert calls[0] == 600


def chain_rows(seed, rows=24, length=24, size=12):
    """Texts of a random chain whose next token depends on the last one."""
    dice = torch.Generator().manual_seed(5)
    law = torch.softmax(2 * torch.randn(size, size, generator=dice), -1)
    dice.manual_seed(seed)
    token = [torch.randint(size, (rows,), generator=dice)]
    for _ in range(length - 1):
        token.append(torch.multinomial(law[token[-1]], 1, generator=dice)[:, 0])
    return torch.stack(token, 1)


def taught(layers, exits, steps=45):
    """A network taught at these depths, and its loss at each depth on other texts."""

    class S:
        seed, depths = 0, EarlyExitLosses(exits=exits)

    net = TrainableLlama(
        LlamaShape(12, width=16, layers=layers, heads=2, kv_heads=1, inner=32, context=64), seed=2
    )
    adam = torch.optim.AdamW(net.parameters(), 0.02, weight_decay=0.0)
    for step in range(steps):
        adam.zero_grad()
        learn_depths(net, None, chain_rows(step), False, S, step).backward()
        adam.step()
    with torch.no_grad():
        return {
            d: float(lm_step_loss(copy_with_layers(net, d), None, chain_rows(999, 200), False))
            for d in range(1, layers + 1)
        }


@pytest.mark.slow
def test_each_exit_is_nearly_as_good_as_a_network_of_its_depth():
    """And without the sorted loss it is not."""
    nested, deep = taught(4, (2, 3, 4)), taught(4, (4,))
    for depth in (2, 3, 4):
        assert nested[depth] < 1.04 * taught(depth, (depth,))[depth], depth
    assert deep[2] > 1.05 * nested[2]


@pytest.mark.parametrize("layers", [6, 7, 9, 12])
def test_more_layers_begin_as_identities(layers):
    net = TrainableLlama(DEEP, seed=1)
    with torch.no_grad():
        torch.testing.assert_close(copy_with_layers(net, layers)(BATCH), net(BATCH))
    assert copy_with_layers(net, 3).s.layers == 3


@pytest.mark.parametrize(
    "given, says",
    [
        ({"scale": 2.0}, "early_exit is 2"),
        ({"dropout": 0.9}, "layer_dropout is 0.9"),
        ({"exits": (2, 1)}, "exits is"),
        ({"exits": (1,), "scale": 1.0}, "both set"),
    ],
)
def test_depths_are_checked(given, says):
    with pytest.raises(ValueError, match=says):
        EarlyExitLosses(**given)


@pytest.fixture(scope="module")
def small(root, tmp_path_factory):  # noqa: F811
    """A model that was trained for a few steps."""
    out = tmp_path_factory.mktemp("small") / "a"
    train_lm(spec(root, out))
    return str(out)


def test_train_from_a_start_with_early_exits_and_a_sorted_draft_of_it(root, small, tmp_path):  # noqa: F811
    out = train_lm(
        spec(
            root,
            tmp_path / "b",
            shape=None,
            start=small,
            layers=4,
            early_exit=1.0,
            layer_dropout=0.1,
        )
    )
    assert load_bundle(str(tmp_path / "b")).lm.network.layers == 4 and out["steps"] == 8
    with pytest.raises(ValueError, match="belongs to another run"):
        train_lm(
            spec(
                root,
                tmp_path / "b",
                shape=None,
                start=small,
                layers=4,
                early_exit=0.5,
                layer_dropout=0.1,
            )
        )
    made = train_sorted(
        SortedSpec(
            str(tmp_path / "s"),
            str(tmp_path / "b"),
            str(root),
            steps=4,
            train_mb=(0.05,) * 3,
            held_kb=4.0,
            bf16=False,
        )
    )
    assert made["exits"] == [1, 2] and exits_of(6) == (3, 4, 6)
    assert load_bundle(str(tmp_path / "s")).lm.layers == 2


def test_a_narrow_draft_and_one_of_a_single_depth(root, small, tmp_path):  # noqa: F811
    def made(name, **more):
        return train_sorted(
            SortedSpec(
                str(tmp_path / name),
                small,
                str(root),
                steps=3,
                train_mb=(0.05,) * 3,
                held_kb=4.0,
                bf16=False,
                **more,
            )
        )

    assert made("n", layers=4, width=8)["exits"] == [2, 3, 4] and made("d", layers=3, exits=(3,))[
        "exits"
    ] == [3]
    for name, layers, width in (("n", 4, 8), ("d", 3, 16)):
        draft = load_bundle(str(tmp_path / name))
        assert (draft.lm.layers, draft.lm.network.config.width) == (layers, width)
        assert draft.lm.vocab.same_tokens(load_bundle(small).lm.vocab)
    with pytest.raises(ValueError, match=r"exits is \(1, 2\): the last one must be 3"):
        made("x", layers=3, exits=(1, 2))
    with pytest.raises(
        ValueError, match="width is 12: it must be 0 or a multiple of 8, the target's head size"
    ):
        made("x", width=12)
    for given, says in (
        ({"layers": 1}, "layers is 1: it must be 0 or lie in 2 to 256"),
        ({"width": -8}, "width is -8"),
    ):
        with pytest.raises(ValueError, match=says):
            made("x", **given)


@pytest.mark.parametrize(
    "width, heads, kv, inner",
    [(96, 3, 1, 288), (64, 2, 1, 192), (192, 6, 2, 576), (160, 5, 1, 480)],
)
def test_a_narrow_shape(width, heads, kv, inner):
    shape = narrow_shape(LlamaShape(4096), width)
    assert (shape.width, shape.heads, shape.kv_heads, shape.inner, shape.head) == (
        width,
        heads,
        kv,
        inner,
        32,
    )
