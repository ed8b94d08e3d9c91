"""Keys and values that a session shows of its target's last layer: on every path they are those of the published arithmetic."""

import pytest
import torch

import micro
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.check_target import check_target
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.network import apply_rotary_embedding, from_weights
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.switch import EntropySwitchRule, SwitchTarget
from polydec.models.sessions import checkpoint, sources

TEXT = tuple(range(5, 60))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(
        micro.write(tmp_path_factory.mktemp("m") / "a", hidden=64)
    )  # a shape that the compiled step serves


def opened(path, options):
    lm = checkpoint.load_bundle(path, **options).lm
    if "dtype" not in options and "native" not in lm.network.kernel:
        pytest.skip("there is no compiled step here")
    return lm


def published(path, ids, number=-1):
    """A layer's, computed as transformers does."""
    source = sources.open_source(path)
    trunk = from_weights(source.config, source.weights).model
    x, cos, sin = (
        trunk.embed_tokens(torch.tensor([ids])),
        trunk.cos[: len(ids)],
        trunk.sin[: len(ids)],
    )
    layers = list(trunk.layers)
    before, last = layers[: len(layers) + number if number < 0 else number], layers[number]
    for layer in before:
        x = layer(x, cos, sin)
    x, heads = last.input_layernorm(x), (-1, trunk.s.head)
    keys, values = (
        proj(x)[0].unflatten(-1, heads).transpose(0, 1)
        for proj in (last.self_attn.k_proj, last.self_attn.v_proj)
    )
    return apply_rotary_embedding(keys, cos, sin), values


def shown(session):
    run_coroutines([session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING, last=True))])
    return session.layer_memory()


@pytest.mark.parametrize(
    "options, off",
    [
        ({"dtype": "float32"}, 1e-5),
        ({}, 1e-5),
        ({"cache_dtype": "float16"}, 2e-3),
        ({"cache_dtype": "int8"}, 5e-2),
    ],
    ids=["torch", "native", "float16", "int8"],
)
def test_they_are_the_published_ones(options, off, path):
    """Of caches in fewer bits approximately."""
    lm = opened(path, options)
    for got, want in zip(shown(lm.open_session((*TEXT, 3))), published(path, TEXT), strict=True):
        assert got.shape == want.shape == (2, len(TEXT), 16)
        assert float((got.double() - want.double()).abs().max()) < off * float(want.abs().max())
    session = lm.open_session((*TEXT, 3))
    shown(session)
    for got, want in zip(session.layer_memory(0), published(path, TEXT, 0), strict=True):
        assert float((got.double() - want.double()).abs().max()) < off * float(want.abs().max())
    for one, same in zip(
        session.layer_memory(), session.layer_memory(lm.network.layers - 1), strict=True
    ):
        assert torch.equal(one, same)


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {}], ids=["torch", "native"])
def test_shared_entries_are_shown_to_all_who_share(options, path):
    """Of a fork and of a session that begins with the same text, also where they have gone different ways since."""
    lm, long = opened(path, options), tuple(5 + i % 200 for i in range(170))
    first = lm.open_session((*long, 3))
    shown(first)
    twin, late = first.fork(), lm.open_session((*long[:150], 9, 4, 3))
    shown(late)
    for session, root in ((first, 3), (twin, 8)):
        run_coroutines([session.score_draft(Draft.chain_draft(root), ScoreRequest())])
        session.commit_tokens((root,))
    for session, text in ((first, (*long, 3)), (twin, (*long, 8)), (late, (*long[:150], 9, 4))):
        for got, want in zip(session.layer_memory(), published(path, text), strict=True):
            assert got.double().allclose(want.double(), atol=1e-4)


def test_entries_that_have_not_passed_every_layer_are_not_shown(path):
    session = checkpoint.load_bundle(path, dtype="float32").lm.open_session((5, 6, 7, 8))
    keys, _ = shown(session)
    assert keys.shape[1] == 3
    part = session.open_part((0,))
    run_coroutines([part.score_draft(Draft.chain_draft(8, (9,)), ScoreRequest())])
    part.commit_tokens((8,))
    assert session.layer_memory()[0].shape[1] == part.layer_memory()[0].shape[1] == 3
    run_coroutines([session.score_draft(Draft.chain_draft(9), ScoreRequest())])
    assert session.layer_memory()[0].shape[1] == 4


def test_who_has_none_says_so(path):
    from transformers import AutoModelForCausalLM

    from polydec.models.nets.hf import HFNetwork
    from polydec.models.sessions.lm import CausalLaw

    lm = checkpoint.load_bundle(path, dtype="float32").lm
    adapter, turns = (
        CausalLaw(HFNetwork(AutoModelForCausalLM.from_pretrained(path)), lm.vocab),
        SwitchTarget(lm, lm, EntropySwitchRule()),
    )
    for target, said in (
        (adapter, "keys cannot be read in this model"),
        (turns, "keys cannot be read where two models take"),
    ):
        with pytest.raises(ValueError, match=said):
            target.open_session((5, 6)).layer_memory()
    assert ShapedTarget(lm, GreedyRule()).open_session((5, 6)).layer_memory()[0].shape == (2, 0, 16)


@pytest.mark.parametrize("fault", ["late", "staged"])
def test_wrong_keys_are_found(fault, monkeypatch):
    """check_target tells keys of other entries from the text's."""
    target = toy_law(3)
    true = target.network.read_keys
    wrong = {
        "late": lambda cache, stop, layer: true(cache, max(0, stop - 1)),
        "staged": lambda cache, stop, layer: true(
            cache, len([e for e in cache.text if e is not None and e[1][-1] >= 0])
        ),
    }
    monkeypatch.setattr(target.network, "read_keys", wrong[fault])
    with pytest.raises(AssertionError, match="keys are shown"):
        check_target(target, tolerance=1e-12)
