"""MTP: no token sees a mask or its matrices, the text is the target's, and both schedules make the same drafts."""

from dataclasses import replace

import pytest
import torch

import micro
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.mtp import MtpDrafter
from polydec.methods.speculative.drafters.probes import ProbesDrafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.models.learned.kinds import mtp as kind
from polydec.models.learned.kinds.mtp import MtpModel
from polydec.models.learned.kinds.probes import SoftProbes
from polydec.models.native.network import CpuStep
from polydec.models.nets.gated import GatedAdapter
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions import sources
from polydec.models.sessions.lm import CausalLaw

WIDTH, LAYERS, MASKS = 32, 2, 3
SIZES = {"qkv": (WIDTH, 64), "out": (32, WIDTH), "gate_up": (WIDTH, 128), "down": (64, WIDTH)}
ROOM = DraftBudget(2 * MASKS, 64)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return sources.open_source(str(micro.write(tmp_path_factory.mktemp("m") / "a")))


@pytest.fixture(scope="module")
def lm(source):
    network = LlamaTransformer.build(source.config, source.weights, dtype="float64")
    return CausalLaw(network, TokenVocabulary(source.config["vocab_size"], frozenset()))


def made(vocab, adapted=True, scale=1.0):
    g = torch.Generator().manual_seed(5)
    layers = [
        {
            place: (
                torch.randn(4, into, generator=g) / into**0.5,
                scale * torch.randn(out, 4, generator=g),
            )
            for place, (into, out) in SIZES.items()
        }
        for _ in range(LAYERS)
    ]
    masks = torch.randn(MASKS, WIDTH, generator=g)
    return MtpModel(
        masks,
        GatedAdapter(layers) if adapted else None,
        kind.new_mtp_sampler(WIDTH, 2),
        vocab,
        ((0.5, 0.2),) * MASKS,
    )


async def masked(drafter, session, text):
    """The draft that a first round feeds behind a text, and what it scores."""
    guess = drafter.open_guess(text, session)
    draft = await guess.propose_draft(text[-1], len(text), ROOM, Rng.of_choice(0))
    return (
        guess,
        draft,
        await session.score_draft(draft, ScoreRequest(law=RowDetail.ROW, hidden=True)),
    )


@pytest.mark.parametrize("quadratic", [True, False], ids=["quadratic", "linear"])
@pytest.mark.parametrize(
    "tree", [ChainTree(), RankedTree(((0,), (1,), (0, 0)))], ids=["chain", "tree"]
)
def test_no_token_sees_a_mask(lm, tree, quadratic):
    """Laws and states of all tokens, and of what is written behind them, are what they are without masks and matrices; what
    the masks come out as is not."""
    mtp = made(lm.vocab)
    changed = list[bool]()

    async def rounds():
        session, alone, plain = (
            lm.open_session((5, 6, 7)),
            lm.open_session((5, 6, 7)),
            lm.open_session((5, 6, 7)),
        )
        guess, root, text = (
            MtpDrafter(mtp, tree, quadratic).open_guess((5, 6, 7), session),
            7,
            [5, 6, 7],
        )
        for _ in range(4):
            draft = await guess.propose_draft(root, len(text), ROOM, Rng.of_choice(0))
            n = sum(not p for p in draft.probe)
            scores = await session.score_draft(draft, ScoreRequest(hidden=True))
            real = Draft.certain_tree(draft.token[:n], draft.parent[:n])
            without = await alone.score_draft(real, ScoreRequest(hidden=True))
            bare = await plain.score_draft(replace(draft, adapter=None), ScoreRequest(hidden=True))
            for node in range(n):
                assert scores.logprob_row(node).allclose(
                    without.logprob_row(node), atol=1e-12, rtol=0
                )
            assert scores.hidden_NH[:n].allclose(without.hidden_NH, atol=1e-12, rtol=0)
            assert torch.equal(scores.hidden_NH[:n], bare.hidden_NH[:n]), (
                "the same rows in the pass: to the bit"
            )
            changed.append(not scores.hidden_NH[n:].allclose(bare.hidden_NH[n:], atol=1e-3))
            path = draft.nodes_of((root, without.likeliest_token(0)))[1:]
            verdict = Verdict(tuple(path), without.likeliest_token(path[-1] if path else 0))
            for one in (session, alone, plain):
                one.commit_tokens(verdict.committed_tokens(draft))
            guess.learn_round(draft, scores, verdict)
            text += verdict.written_tokens(draft)
            root = verdict.bonus

    run_coroutines([rounds()])
    assert all(changed)


def test_any_group_drafts_as_the_linear_schedule_from_there(lm):
    """Whatever is accepted, the next draft is the one that masks behind that prefix alone give."""
    mtp, text = made(lm.vocab), (5, 6, 7)
    quadratic, linear = MtpDrafter(mtp, ChainTree(), True), MtpDrafter(mtp, ChainTree(), False)
    law = ShapedTarget(lm, GreedyRule())

    async def next_draft(drafter, before, accepted, root):
        session = law.open_session(before)
        guess, draft, scores = await masked(drafter, session, before)
        if accepted:  # a second round, of drafts that the first made
            verdict = Verdict((), scores.likeliest_token(0))
            session.commit_tokens(verdict.committed_tokens(draft))
            guess.learn_round(draft, scores, verdict)
            draft = await guess.propose_draft(
                verdict.bonus, len(before) + 1, ROOM, Rng.of_choice(0)
            )
            scores = await session.score_draft(draft, ScoreRequest(hidden=True))
        verdict = Verdict(tuple(range(1, accepted)), root)
        session.commit_tokens(verdict.committed_tokens(draft))
        guess.learn_round(draft, scores, verdict)
        fresh = await guess.propose_draft(root, len(before) + 1 + accepted, ROOM, Rng.of_choice(0))
        real = sum(not p for p in fresh.probe)
        return draft.token[:accepted], fresh.token[:real]

    async def all_of_them():
        for accepted in range(MASKS + 2):
            prefix, drafts = await next_draft(quadratic, text, accepted, 11)
            assert len(drafts) == 1 + MASKS
            _, same = await next_draft(linear, (*text, *prefix), 0, 11)
            assert drafts == same

    run_coroutines([all_of_them()])


def test_rows_of_both_schedules(lm):
    mtp = made(lm.vocab)

    async def fed(drafter, budget):
        guess = drafter.open_guess((5, 6), lm.open_session((5, 6)))
        guess.state_KH = torch.randn(MASKS, WIDTH)
        draft = await guess.propose_draft(6, 2, budget, Rng.of_choice(0))
        return [sum(not p for p in draft.probe), len(draft)] if draft.probe else [len(draft)] * 2

    for quadratic, budget, want in (
        (True, ROOM, [4, 16]),
        (False, ROOM, [4, 7]),
        (True, DraftBudget(6, 14), [3, 12]),
        (False, DraftBudget(6, 5), [3, 6]),
        (True, DraftBudget(6, 2), [1, 3]),
        (True, DraftBudget(0, 64), [1, 1]),
        (True, DraftBudget(2, 64), [3, 6]),
    ):
        got = run_coroutines([fed(MtpDrafter(mtp, ChainTree(), quadratic), budget)])[0]
        assert got == want, (quadratic, budget)


def test_without_matrices_and_sampler_masks_are_prompt_tokens(lm):
    """At rank 0 the guesses are those of soft probes with the same entries."""
    bare, text = made(lm.vocab, adapted=False), (5, 6, 7)
    nothing = made(lm.vocab, scale=0.0)
    probes = SoftProbes(bare.mask_KH, None, (0,) * len(bare.mask_KH), lm.vocab, bare.rates)

    async def states(drafter):
        guess, draft, scores = await masked(drafter, lm.open_session(text), text)
        guess.learn_round(draft, scores, Verdict((), 9))
        known = guess.state_LEH[:, 0] if hasattr(guess, "state_LEH") else guess.state_KH
        return known, (await guess.propose_draft(9, 4, ROOM, Rng.of_choice(1))).token[:2]

    drafters = [
        MtpDrafter(bare, RankedTree(((0,),)), sampler=False),
        MtpDrafter(nothing, RankedTree(((0,),)), sampler=False),
        ProbesDrafter(probes, RankedTree(((0,),))),
    ]
    (a, token), (b, of_nothing), (c, of_probes) = run_coroutines([states(d) for d in drafters])
    assert (
        a.allclose(c, atol=1e-12, rtol=0)
        and a.allclose(b, atol=1e-12, rtol=0)
        and token == of_probes == of_nothing
    )


@pytest.mark.parametrize(
    "options", [{}, {"quadratic": "false"}, {"sampler": "false"}, {"depth": "0"}], ids=str
)
def test_the_text_is_the_targets(lm, options):
    """Greedy and drawn, several at once: an untrained adapter costs rows and changes nothing."""
    kit = Kit(ShapedTarget(lm, GreedyRule()), None, (made(lm.vocab),))
    requests = [Request(prompt, 20) for prompt in ((5, 6, 7), (9,), (30, 31, 8, 4))]
    said = [
        run_coroutines([answer_one(registry.build(name, kit, given)[0], r) for r in requests])
        for name, given in (("plain", {}), ("mtp", options))
    ]
    assert [r.token_ids for r in said[0]] == [r.token_ids for r in said[1]]


def test_an_adapter_in_company_and_in_parts(lm):
    """Rows of several adapters, and of none, share a pass; a query in parts keeps its gates."""
    one, other, text = made(lm.vocab), made(lm.vocab, scale=0.3), (5, 6, 7)

    async def of(mtp):
        return (await masked(MtpDrafter(mtp, ChainTree()), lm.open_session(text), text))[
            2
        ].hidden_NH

    alone = [run_coroutines([of(m)])[0] for m in (one, other)]
    together = run_coroutines([of(m) for m in (one, other, one)])
    for got, want in zip(together, (*alone, alone[0]), strict=True):
        assert got.allclose(want, atol=1e-12, rtol=0)
    lm.network.limit, limit = 2, lm.network.limit
    try:
        assert run_coroutines([of(one)])[0].allclose(alone[0], atol=1e-12, rtol=0)
    finally:
        lm.network.limit = limit


def test_what_does_not_fit_is_told_in_one_sentence(lm, tmp_path):
    mtp = made(lm.vocab)
    build = lambda target, *have: registry.build("mtp", Kit(target, None, have))  # noqa: E731
    with pytest.raises(ValueError, match="method mtp needs masks with a gated adapter"):
        build(lm)
    wide = sources.open_source(str(micro.write(tmp_path / "wide", hidden=64)))
    native = CausalLaw(CpuStep.build(wide.config, wide.weights), lm.vocab)
    with pytest.raises(
        ValueError, match=r"adapter \(LoRA\), which the compiled step does not run.*--dtype torch"
    ):
        build(native, replace(mtp, mask_KH=torch.zeros(MASKS, 64)))
    with pytest.raises(ValueError, match="no row of this network runs with matrices of its own"):
        run_coroutines([masked(MtpDrafter(mtp, ChainTree()), native.open_session((5, 6)), (5, 6))])
    deeper = replace(mtp, adapter=GatedAdapter([*mtp.adapter.layers, mtp.adapter.layers[0]]))
    with pytest.raises(ValueError, match="matrices for 3 layers: this target has 2"):
        build(ShapedTarget(lm, GreedyRule()), deeper)
    with pytest.raises(ValueError, match="trained for states of width 32: this target's have 4"):
        build(toy_law(1, lm.vocab.size), replace(mtp, adapter=None))
    narrow = GatedAdapter(
        [
            {**layer, "down": (layer["down"][0][:, :9], layer["down"][1])}
            for layer in mtp.adapter.layers
        ]
    )
    with pytest.raises(
        ValueError,
        match="adapter's down goes from 9 to 32 numbers: this network's goes from 64 to 32",
    ):
        run_coroutines(
            [
                masked(
                    MtpDrafter(replace(mtp, adapter=narrow), ChainTree()),
                    lm.open_session((5, 6)),
                    (5, 6),
                )
            ]
        )
    with pytest.raises(ValueError, match=r"no mtp\.safetensors beside a config\.json"):
        kind.load(tmp_path)


@pytest.mark.parametrize("adapted", [True, False])
def test_files(lm, adapted, tmp_path):
    mtp = made(lm.vocab, adapted)
    kind.save(tmp_path, mtp, {"target": "m"})
    again = kind.load(tmp_path)
    assert again.rates == [list(r) for r in mtp.rates] and torch.equal(again.mask_KH, mtp.mask_KH)
    assert all(torch.equal(a, b) for a, b in zip(again.sampler, mtp.sampler, strict=True))
    if adapted:
        assert all(
            torch.equal(x, y)
            for a, b in zip(again.adapter.layers, mtp.adapter.layers, strict=True)
            for place in SIZES
            for x, y in zip(a[place], b[place], strict=True)
        )
    config = (tmp_path / "config.json").read_text()
    for old, new, why in (
        ('"rank": 4', '"rank": 5', "layers.0.qkv.a of shape"),
        ('"width": 32', '"width": 8', "of shape"),
        ('"inner": 64', '"inner": -1', "inner"),
    ):
        if old in config:
            (tmp_path / "config.json").write_text(config.replace(old, new))
            with pytest.raises(ValueError, match=why):
                kind.load(tmp_path)


def test_every_level_reads_a_mask_of_its_own(lm):
    """The greedy chain, guess by guess: of level k the sampler joins the state of mask k with the guess before."""
    mtp, text = made(lm.vocab), (5, 6, 7)

    async def go():
        session = ShapedTarget(lm, GreedyRule()).open_session(text)
        guess, draft, scores = await masked(MtpDrafter(mtp, ChainTree()), session, text)
        guess.learn_round(draft, scores, Verdict((), 9))
        session.commit_tokens((7,))
        first = len(draft) - MASKS  # behind the root, which was all that was drafted
        tokens = [9]
        for k in range(MASKS):
            state = mtp.sampled_states(
                scores.hidden_NH[first + k][None], session.embed_tokens(tokens[-1:])
            )
            tokens.append(session.score_states(state).likeliest_token(0))
        fresh = await guess.propose_draft(9, 4, ROOM, Rng.of_choice(0))
        return tokens, list(fresh.token[: 1 + MASKS])

    want, got = run_coroutines([go()])[0]
    assert got == want and len(set(want[1:])) > 1
