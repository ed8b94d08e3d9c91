"""The search for layers that can be left out."""
from itertools import count

import pytest
import torch

from polydec.bench.skip_search import agreement, search
from polydec.core.types import Vocab
from polydec.models.lm import LM
from polydec.models.transformer import Transformer
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.testing.toy import Table, toy


def model(idle):
    """A network whose layers in `idle` add nothing."""
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=2,
                         intermediate_size=48, max_position_embeddings=200, initializer_range=0.3)
    weights = LlamaForCausalLM(config).state_dict()
    for i in idle:
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.{i}.{part}.weight"].zero_()
    net = Transformer.build(config.to_dict(), weights, dtype="float64")
    return Shaped(LM(net, Vocab(50, frozenset())), Greedy()), net


@pytest.mark.parametrize("idle", [(2, 4), (1, 5)])
def test_idle_layers_go_first(idle):
    target, net = model(idle)
    runs, real = [0], net.forward

    def forward(queries):
        runs[0] += sum(7 if q.layers is None else len(q.layers) for q in queries)
        return real(queries)
    net.forward = forward
    said = []
    found = search(target, [(3, 8, 20), (7, 9)], tokens=12, most=4, step=1, clock=lambda: float(runs[0]), watch=said.append,
                   threshold=0.0, depth=4)
    assert {i for i, _ in found.order[:2]} == set(idle) and found.order[1][1] == 1.0
    assert set(idle) <= set(range(7)) - set(found.keep) and 0 in found.keep and 6 in found.keep
    assert found.seconds == min(s for _, s in found.times) and len(found.times) == 4 and len(said) == 8
    assert agreement(target, tuple(sorted(set(range(7)) - set(idle))), [(3, 8)], [(1, 2, 3)]) <= 1.0


def test_bad_input():
    ticks = count()
    with pytest.raises(ValueError, match="at least 3 layers"):
        search(LM(Table(1, tree=False), toy(1).vocab), [(0, 1)], clock=lambda: next(ticks))
    with pytest.raises(ValueError, match="at least one prompt of two tokens"):
        search(toy(1), [(0,)])
