"""A network that encodes tokens apart from gaps: who sees whom, and what a later pass is shown."""

import pytest
import torch
from torch.nn.functional import gelu

from polydec.models.formats.enat_config import EnatShape
from polydec.models.nets.enat import EnatModules, EnatNetwork, EnatQuery

MASK = 9
SHAPE = EnatShape(10, 6, 8, 2, 16, 2, 2, 12)


def network(shape=SHAPE, seed=0):
    torch.manual_seed(seed)
    modules = EnatModules(shape)
    for p in modules.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return EnatNetwork(shape, modules.state_dict(), MASK)


NET = network()
NOTHING = torch.zeros(0, 8)
TOKENS, PLACES, GAPS = (1, 4, 2, 5), (0, 3, 5, 8), (1, 2, 7)


def run(net=NET, old=NOTHING, tokens=TOKENS, places=PLACES, gaps=GAPS, drawn=1):
    return net.forward([EnatQuery(old, tokens, places, gaps, drawn)])[0]


def test_gaps_never_reach_tokens():
    """Neither the mask's row nor the places of gaps change what is encoded, and its gradient there is zero.

    Where the class is left out it is so, too."""
    other = network()
    other.modules.token_embedding.weight[MASK] += 3.0
    for drawn in (1, None):
        first = run(old=run(tokens=(3,), places=(6,), drawn=drawn).shown_NW, drawn=drawn)
        old = run(other, tokens=(3,), places=(6,), drawn=drawn).shown_NW
        moved = run(other, old=old, gaps=(9, 10, 11), drawn=drawn)
        assert torch.equal(first.new_NW, moved.new_NW)
        assert torch.equal(first.shown_NW, moved.shown_NW)
        assert not torch.allclose(first.gap_MW, moved.gap_MW)
    modules = EnatModules(SHAPE)
    for p in modules.parameters():
        torch.nn.init.normal_(p, std=0.5)
    entered = modules.entry_states(torch.tensor([TOKENS]), torch.tensor([PLACES]))
    condition = modules.condition_states(torch.tensor([MASK]), MASK)
    modules.encode_tokens(entered, torch.zeros(1, 0, 8), condition).square().sum().backward()
    assert not modules.token_embedding.weight.grad[MASK].any()
    assert all(layer.query.weight.grad is None for layer in modules.decoder)


def test_gaps_see_one_another_and_all_tokens():
    alone, together = run(gaps=(1,)), run(gaps=(1, 2))
    assert not torch.allclose(alone.gap_MW[0], together.gap_MW[0])
    changed = run(tokens=(1, 4, 2, 0))
    assert not torch.allclose(changed.gap_MW, run().gap_MW)


def test_old_tokens_are_not_changed_and_change_the_new_ones():
    old = run(tokens=(3, 0), places=(6, 9)).shown_NW
    assert not torch.allclose(run(old=old).new_NW, run().new_NW)
    assert len(run(old=old).new_NW) == len(TOKENS)


def test_with_nothing_old_a_pass_is_a_whole_one():
    """As written out by hand: two layers over the tokens, two over the gaps."""
    net = NET.modules
    x = net.entry_states(torch.tensor([TOKENS]), torch.tensor([PLACES]))
    condition = net.condition_states(torch.tensor([1]), MASK)
    for layer in net.encoder:
        x = layer(x, torch.zeros(1, 0, 8), condition)
    gaps = net.entry_states(torch.tensor([[MASK] * 3]), torch.tensor([GAPS]))
    for layer in net.decoder:
        gaps = layer(gaps, x, condition)
    made = run()
    assert torch.allclose(made.new_NW, x[0], atol=1e-5)
    assert torch.allclose(made.gap_MW, gaps[0], atol=1e-5)
    # What later passes are shown is what another MLP makes of it.
    shown = x + net.old_back(gelu(net.old_into(net.old_norm(x))))
    assert torch.allclose(made.shown_NW, shown[0], atol=1e-5)


def test_without_encoder_layers_what_is_kept_is_what_would_be_encoded():
    net = network(EnatShape(10, 6, 8, 2, 16, 0, 2, 12))
    net.modules.old_back.weight[:] = 0
    net.modules.old_back.bias[:] = 0
    kept = run(net, tokens=TOKENS[:2], places=PLACES[:2]).shown_NW
    later = run(net, old=kept, tokens=TOKENS[2:], places=PLACES[2:])
    assert torch.allclose(later.gap_MW, run(net).gap_MW, atol=1e-5)


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (1, 0, 3, 2)])
def test_the_order_of_tokens_does_not_matter_but_their_places_do(order):
    tokens, places = (tuple(x[i] for i in order) for x in (TOKENS, PLACES))
    same = run(tokens=tokens, places=places)
    assert torch.allclose(same.gap_MW, run().gap_MW, atol=1e-5)
    assert torch.allclose(same.new_NW, run().new_NW[list(order)], atol=1e-5)
    old = run().shown_NW
    one, other = (run(old=o, tokens=(3,), places=(9,)) for o in (old, old[list(order)]))
    assert torch.allclose(one.gap_MW, other.gap_MW, atol=1e-5)
    assert not torch.allclose(run(places=places).gap_MW, run().gap_MW)


def test_context_and_rows_have_keys_of_their_own():
    old = run(tokens=(3,), places=(6,)).shown_NW
    other = network()
    other.modules.encoder[0].given.weight[:] += 1.0
    assert torch.equal(run(other).new_NW, run().new_NW)
    assert not torch.allclose(run(other, old=old).new_NW, run(old=old).new_NW)


def test_the_class_conditions_every_layer():
    """Its shifts, scales and gates are those of the class, in the encoder and in the decoder alone, too."""
    for other in (2, None):
        made = run(drawn=other)
        assert not torch.allclose(made.new_NW, run().new_NW)
        assert not torch.allclose(made.gap_MW, run().gap_MW)
    for half in ("encoder", "decoder"):
        net = network()
        for layer in [*net.modules.encoder, *net.modules.decoder]:
            layer.modulated.weight[:] = 0
        same = run(net)
        assert torch.equal(run(net, drawn=2).gap_MW, same.gap_MW)
        getattr(net.modules, half)[-1].modulated.weight[:] = 0.5
        assert not torch.allclose(run(net, drawn=2).gap_MW, run(net).gap_MW)


def test_an_untrained_layer_changes_nothing():
    modules = EnatModules(SHAPE)
    x = modules.entry_states(torch.tensor([TOKENS]), torch.tensor([PLACES]))
    condition = modules.condition_states(torch.tensor([1]), MASK)
    assert torch.equal(modules.encode_tokens(x, x, condition), x)
    assert torch.equal(modules.decode_gaps(x, x, condition), x)


def test_passes_run_together_are_what_they_are_alone():
    old = run(tokens=(3, 0), places=(6, 9)).shown_NW
    queries = [
        EnatQuery(old, TOKENS, PLACES, GAPS, 1),
        EnatQuery(NOTHING, TOKENS, PLACES, GAPS, 1),
        EnatQuery(old + 1, (2, 2, 2, 2), PLACES, GAPS, 3),
        EnatQuery(old, TOKENS, PLACES, GAPS, None),
        EnatQuery(old, (), (), GAPS, 1),
        EnatQuery(NOTHING, (), (), (1, 2), None),
        EnatQuery(old, TOKENS, PLACES, (), 1),
    ]
    for q, made in zip(queries, NET.forward(queries), strict=True):
        alone = NET.forward([q])[0]
        assert torch.allclose(made.gap_MW, alone.gap_MW, atol=1e-5)
        assert torch.allclose(made.new_NW, alone.new_NW, atol=1e-5)


def test_marks_are_never_written():
    logits = NET.head_logits(run().gap_MW)
    assert (
        logits.shape == (3, 10) and logits[:, 6:].isinf().all() and logits[:, :6].isfinite().all()
    )
