"""EasySpec: groups of one are the draft model, the cache is exact behind every round, and what groups cost is acceptance."""

import pytest
import torch

import micro
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.grouped import GroupedDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.native.network import CpuStep
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions import sources
from polydec.models.sessions.lm import CausalLaw

LAYERS, TEXT = 8, (5, 6, 7, 30, 31)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return sources.open_source(
        str(micro.write(tmp_path_factory.mktemp("m") / "a", layers=LAYERS, hidden=64))
    )


def built(source, change=lambda name, t: t):
    weights = {name: change(name, t.double()) for name, t in source.weights.items()}
    return CausalLaw(
        LlamaTransformer.build(source.config, weights, dtype="float64"),
        TokenVocabulary(source.config["vocab_size"], frozenset()),
    )


def calm(name, t):
    """What layers add is small, so that neighbours see nearly the same, as in a trained network."""
    return t * 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else t


@pytest.fixture(scope="module")
def lm(source):
    return built(source, calm)


def chain_rows(lm, together):
    async def rows():
        session = lm.open_session(TEXT)
        part = session.open_part(range(LAYERS), together=together)
        await session.score_draft(Draft.chain_draft(TEXT[-1]), ScoreRequest())
        scores = await part.score_draft(Draft.chain_draft(TEXT[-1], (8, 9, 10)), ScoreRequest())
        return torch.stack([scores.logprob_row(i) for i in range(4)])

    return run_coroutines([rows()])[0]


def test_what_groups_compute(source, lm):
    """One at a time is the model to the bit; attention that adds nothing cannot tell; else laws below the root differ."""
    exact = chain_rows(lm, 1)
    assert torch.equal(exact, run_coroutines([plain_rows(lm)])[0])
    for together in (2, 3, 64):
        rows = chain_rows(lm, together)
        assert torch.equal(rows[0], exact[0]) and not rows[1:].allclose(exact[1:], atol=1e-6)
    blind = built(
        source, lambda name, t: torch.zeros_like(t) if name.endswith("v_proj.weight") else t
    )
    for together in (2, 3, 64):
        assert chain_rows(blind, together).allclose(chain_rows(blind, 1), atol=1e-12, rtol=0)


async def plain_rows(lm):
    session = lm.open_session(TEXT)
    await session.score_draft(Draft.chain_draft(TEXT[-1]), ScoreRequest())
    scores = await session.score_draft(Draft.chain_draft(TEXT[-1], (8, 9, 10)), ScoreRequest())
    return torch.stack([scores.logprob_row(i) for i in range(4)])


def test_a_group_by_hand(lm):
    """Layers 1 to 3 of a row that sees itself alone: attentions of the same input, then the MLPs one behind another."""

    async def states(session, layers, draft, without=frozenset(), together=1, embed=None):
        scores = await session.open_part(layers, without, together).score_draft(
            draft, ScoreRequest(hidden=True)
        )
        return scores.hidden_NH[0]

    net, draft = lm.network, Draft.chain_draft(TEXT[0])
    x = run_coroutines([states(lm.open_session(TEXT[:1]), (0,), draft)])[0]
    outs = list[torch.Tensor]()
    for i in (1, 2, 3):  # the attention alone, on top of what enters the group
        cut = run_coroutines(
            [states(lm.open_session(TEXT[:1]), (0, i), draft, frozenset({2 * i + 1}))]
        )[0]
        outs.append(cut - x)
    z = x
    for i, added in zip((1, 2, 3), outs, strict=True):
        z = mlp(net, i, z + added)
    want = mlp(net, 4, z + attention_alone(lm, z, 4))
    got = run_coroutines(
        [states(lm.open_session(TEXT[:1]), (0, 1, 2, 3, 4), draft, frozenset(), 3)]
    )[0]
    assert got.allclose(want, atol=1e-10, rtol=0)


def mlp(net, i, z):
    layer = net._layers[i]
    h = (z / torch.linalg.vector_norm(torch.cat([z, z.new_tensor([net._floor])])))[None]
    return z + net._mlp(layer.gate_up, layer.down, h)[0]


def attention_alone(lm, z, i):
    """Of one row that sees itself alone: its value through the output matrix."""
    net, c = lm.network, lm.network.config
    h = (z / torch.linalg.vector_norm(torch.cat([z, z.new_tensor([net._floor])])))[None]
    value = net._layers[i].qkv(h).view(-1, c.head)[c.heads + c.kv_heads :]
    return net._layers[i].out(value.repeat_interleave(c.heads // c.kv_heads, 0).reshape(1, -1))[0]


def test_behind_every_round_the_cache_is_exact(lm):
    async def rounds():
        session = lm.open_session(TEXT)
        guess, text = GroupedDrafter(lm, ChainTree(), 3).open_guess(TEXT, session), list(TEXT)
        for accepted in (0, 2, 3, 1):
            draft = await guess.propose_draft(
                text[-1],
                len(text),
                DraftBudget(3, 3),
                Rng.of_choice(0).child_stream("r", len(text)),
            )
            verdict = Verdict(tuple(range(1, accepted + 1)), 11)
            guess.learn_round(draft, None, verdict)
            text += verdict.written_tokens(draft)
            scores = await guess.laws.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())
            fresh = lm.open_session(tuple(text))
            truth = await fresh.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())
            assert scores.logprob_row(0).allclose(truth.logprob_row(0), atol=1e-10, rtol=0), (
                "the first law of a round is the draft's own"
            )
            for got, want in zip(guess.session.layer_memory(), fresh.layer_memory(), strict=True):
                assert got.shape == want.shape and got.allclose(want, atol=1e-10, rtol=0)

    run_coroutines([rounds()])


def passes(lm, drafter, prompts=(TEXT, (9, 8), (40, 41, 42))):
    law = ShapedTarget(lm, GreedyRule())
    decoder = SpeculativeDecoder(law, drafter(law), MatchVerifier(), FixedPolicy(4))
    said = run_coroutines([answer_one(decoder, Request(p, 60)) for p in prompts])
    return [r.token_ids for r in said], sum(r.stats.passes for r in said)


def test_groups_cost_acceptance_and_calibration_brings_some_back(lm):
    """The target as its own draft, so that all that is refused is due to groups; 20 rounds and more."""
    text, best = passes(lm, lambda law: ModelDrafter(law, ChainTree()))
    found = {
        (n, way): passes(lm, lambda law, n=n, way=way: GroupedDrafter(law, ChainTree(), n, way))
        for n, way in ((1, True), (2, True), (6, True), (6, False))
    }
    assert all(said == text for said, _ in found.values())
    count = {key: n for key, (_, n) in found.items()}
    assert (
        best == count[1, True] < count[2, True] < count[6, True] < count[6, False]
        and count[2, True] > 20
    )


def test_what_cannot_be_is_told(lm, tmp_path):
    with pytest.raises(ValueError, match="together is 0: it must lie in 1 to 64"):
        GroupedDrafter(lm, ChainTree(), 0)
    with pytest.raises(ValueError, match="together is 0: it must be at least 1"):
        lm.open_session(TEXT).open_part(range(LAYERS), together=0)
    source = sources.open_source(str(micro.write(tmp_path / "m", hidden=64)))
    native = CausalLaw(CpuStep.build(source.config, source.weights), lm.vocab)
    with pytest.raises(
        ValueError, match=r"cannot read together \(the compiled step runs one after another\)"
    ):
        native.open_session(TEXT).open_part(range(2), together=2)
