"""A larger network with the law of a smaller one."""

import pytest
import torch

from polydec.lab.train.grow import grow_network
from polydec.lab.train.network import LlamaShape, TrainableLlama

SMALL = LlamaShape(40, width=32, layers=2, heads=4, kv_heads=2, inner=48, context=32)
TOKENS = torch.arange(20).view(2, 10)


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        LlamaShape(40, 32, 4, 4, 2, 48, 32),
        LlamaShape(40, 64, 3, 8, 4, 96, 32),
        LlamaShape(40, 48, 2, 6, 3, 48, 32),
    ],
)
def test_it_begins_with_the_same_law_and_all_of_it_learns(shape):
    small = TrainableLlama(SMALL, seed=3)
    with torch.no_grad():
        for p in small.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    large = grow_network(small, shape, seed=4)
    assert torch.allclose(large(TOKENS), small(TOKENS), atol=1e-4)
    rate = 0.1
    for _ in range(3):  # what writes nothing moves first, then what it reads
        large.zero_grad()
        torch.nn.functional.cross_entropy(large(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        with torch.no_grad():
            for p in large.parameters():
                p.sub_(rate * p.grad)
    for name, p in large.named_parameters():
        rows = p.grad.flatten(1).abs().amax(1) if p.ndim == 2 else p.grad.abs()
        used = rows[:20] if "embed" in name else rows
        assert bool((used > 0).all()), name


def test_what_does_not_fit_is_refused():
    small = TrainableLlama(SMALL, seed=3)
    with pytest.raises(
        ValueError, match="layers is 1: it must be at least that of the network to begin with, 2"
    ):
        grow_network(small, LlamaShape(40, 32, 1, 4, 2, 48, 32), 0)
    with pytest.raises(ValueError, match="heads of 16: they must be those"):
        grow_network(small, LlamaShape(40, 64, 2, 4, 2, 48, 32), 0)
    with pytest.raises(ValueError, match="head of its own"):
        grow_network(TrainableLlama(SMALL, tokens=torch.arange(40)), SMALL, 0)
