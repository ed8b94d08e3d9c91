"""Soft probes: tokens never see them, they stand behind what was accepted, and those least likely to be asked go first."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import micro
from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.kinds.ppd import probe_entry_layers, run_soft_probes
from polydec.lab.train.network import from_weights
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.probes import LevelLaws, ProbesDrafter, allot_probes
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.trees.sure_prefix import SurePrefixTree
from polydec.models.learned.kinds import probes
from polydec.models.learned.kinds.probes import SoftProbes
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions import sources
from polydec.models.sessions.lm import CausalLaw


def of_width(width, vocab, enter):
    g = torch.Generator().manual_seed(3)
    maps = (
        [torch.randn(width, width, generator=g) / width**0.5 for _ in range(2)]
        if any(enter)
        else None
    )
    return SoftProbes(
        torch.randn(2, width, generator=g), maps, enter, vocab, ((0.5, 0.2), (0.4, 0.2))
    )


async def greedy_round(guess, session, root, position):
    """What one round of draft and verify accepts: the last token of its path, the path, and the verdict."""
    draft = await guess.propose_draft(root, position, DraftBudget(4, 24), Rng.of_choice(0))
    scores = await session.score_draft(draft, ScoreRequest(hidden=True))
    path = draft.nodes_of((root, scores.likeliest_token(0)))[1:]
    verdict = Verdict(tuple(path), scores.likeliest_token(path[-1] if path else 0))
    session.commit_tokens(verdict.committed_tokens(draft))
    guess.learn_round(draft, scores, verdict)
    return draft.token[path[-1]] if path else root, path, verdict


@pytest.mark.parametrize(
    "enter", [(0, 0), (1, 1), (1, 2)], ids=["ppd", "hidden-transfer", "by-step"]
)
def test_tokens_never_see_a_probe(enter, tmp_path):
    """Laws and states of all tokens, and of what is written behind them, are what they are without any probe."""
    source = sources.open_source(str(micro.write(tmp_path, layers=3)))
    lm = CausalLaw(
        LlamaTransformer.build(source.config, source.weights, dtype="float64"),
        TokenVocabulary(source.config["vocab_size"], frozenset()),
    )
    tree, drafter = RankedTree(((0,), (1,), (0, 0))), of_width(32, lm.vocab, enter)

    async def rounds():
        session, alone = lm.open_session((5, 6, 7)), lm.open_session((5, 6, 7))
        guess, root, text = (
            ProbesDrafter(drafter, tree).open_guess((5, 6, 7), session),
            7,
            [5, 6, 7],
        )
        for i in range(4):
            draft = await guess.propose_draft(root, len(text), DraftBudget(4, 24), Rng.of_choice(0))
            n = sum(not p for p in draft.probe)
            assert sum(draft.probe) >= 2 and (n == 1) == (i == 0)
            scores = await session.score_draft(draft, ScoreRequest(hidden=True))
            real = Draft.certain_tree(draft.token[:n], draft.parent[:n])
            plain = await alone.score_draft(real, ScoreRequest(hidden=True))
            for node in range(n):
                assert scores.logprob_row(node).allclose(
                    plain.logprob_row(node), atol=1e-12, rtol=0
                )
                assert scores.likeliest_token(node) == plain.likeliest_token(node)
            assert scores.hidden_NH[:n].allclose(plain.hidden_NH, atol=1e-12, rtol=0)
            path = draft.nodes_of((root, plain.likeliest_token(0)))[1:]
            verdict = Verdict(tuple(path), plain.likeliest_token(path[-1] if path else 0))
            for one in (session, alone):
                one.commit_tokens(verdict.committed_tokens(draft))
            assert session.ledger.cache.length == alone.ledger.cache.length
            guess.learn_round(draft, scores, verdict)
            text += verdict.written_tokens(draft)
            root = verdict.bonus

    run_coroutines([rounds()])


def test_each_state_enters_at_its_own_layer(tmp_path):
    """What comes out of the drafter's pass is what training reads: a map per state, of the state at its layer."""
    source = sources.open_source(str(micro.write(tmp_path, layers=3)))
    lm = CausalLaw(
        LlamaTransformer.build(source.config, source.weights, dtype="float32"),
        TokenVocabulary(source.config["vocab_size"], frozenset()),
    )
    made, text, outs = of_width(32, lm.vocab, (1, 2)), (5, 6, 7, 8), []

    async def pass_of(some):
        session = lm.open_session(text)
        draft = (
            await ProbesDrafter(some, RankedTree(((0,),)))
            .open_guess(text, session)
            .propose_draft(text[-1], len(text), DraftBudget(4, 24), Rng.of_choice(0))
        )
        return draft, (await session.score_draft(draft, ScoreRequest(hidden=True))).hidden_NH[1:]

    target = from_weights(source.config, source.weights)
    for some in (made, replace(made, enter=(1, 1))):
        draft, out = run_coroutines([pass_of(some)])[0]
        assert draft.enter == (0, *some.enter)
        ridden = run_soft_probes(target, some, torch.tensor([text]))
        assert out.allclose(torch.stack([x[0, -1] for x in ridden]).detach(), atol=1e-4)
        outs.append(out)
    assert not outs[0].allclose(outs[1], atol=1e-2)


def test_layers_that_cannot_be_are_refused():
    assert probe_entry_layers((), 3, 5) == (2, 2, 2) and probe_entry_layers((1, 2, 4), 3, 5) == (
        1,
        2,
        4,
    )
    for wrong in ((1, 2), (2, 1, 3), (0, 1, 2), (1, 2, 5)):
        with pytest.raises(ValueError, match="it must have 3 layers in 1 to 4, none lower"):
            probe_entry_layers(wrong, 3, 5)


def test_layers_are_saved_and_an_older_file_has_one_for_all(tmp_path):
    made = of_width(8, TokenVocabulary(3, frozenset()), (1, 2))
    probes.save(tmp_path, made, {})
    assert tuple(probes.load(tmp_path).enter) == (1, 2)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "enter": 1}))
    assert tuple(probes.load(tmp_path).enter) == (1, 1)
    file.write_text(json.dumps({**config, "enter": [2, 1]}))
    with pytest.raises(ValueError, match="it must have 2 layers that never fall"):
        probes.load(tmp_path)


def test_what_is_read_stands_behind_the_last_accepted_token():
    """A toy's states say which token stands before."""
    law = toy_law(5, 4, eos=-1)
    drafter = ProbesDrafter(
        SoftProbes(
            torch.tensor([[1.0, 4, 0, 0], [2.0, 4, 0, 0]]),
            None,
            (0, 0),
            law.vocab,
            ((0.5, 0.2), (0.4, 0.2)),
        ),
        RankedTree(((0,), (1,), (0, 0))),
    )

    async def rounds():
        session, root, position = law.open_session((0, 1)), 1, 2
        guess = drafter.open_guess((0, 1), session)
        for _ in range(8):
            last, path, verdict = await greedy_round(guess, session, root, position)
            assert guess.state_LEH[:, 0, :2].floor().tolist() == [[1, last], [2, 1]]
            root, position = verdict.bonus, position + 1 + len(path)

    run_coroutines([rounds()])


def test_copies_stand_apart_and_their_logits_are_averaged():
    """A toy's states say which token stands before: each copy behind its own, and a level's law is the mean of the copies'."""
    law = toy_law(5, 4, eos=-1)
    bias = torch.tensor([[1.0, 4, 0, 0], [2.0, 4, 0, 0], [3.0, 4, 0, 0], [0.0, 4, 0, 0]])
    two = SoftProbes(bias, None, (0, 0), law.vocab, ((0.5, 0.2), (0.4, 0.2)), copies=2)
    assert len(two) == 2 and two.copy_probes(1).bias_PH.tolist() == bias[2:].tolist()
    drafter = ProbesDrafter(two, RankedTree(((0,), (1,), (0, 0))))

    async def rounds():
        session, root, position = law.open_session((0, 1)), 1, 2
        guess = drafter.open_guess((0, 1), session)
        for _ in range(6):
            last, path, verdict = await greedy_round(guess, session, root, position)
            state = guess.state_LEH
            assert state[:, :, :2].floor().tolist() == [[[1, last], [3, last]], [[2, 1], [0, 3]]]
            laws = LevelLaws(state, session)
            told = await laws.score_draft(Draft.chain_draft(0, (1,)), ScoreRequest())
            for level in (0, 1):
                each = session.score_states(state[level])
                mean = (each.log_weights(0) + each.log_weights(1)) / 2
                want = mean.log_softmax(-1)
                assert told.logprob_row(level).allclose(want.to(told.logprob_row(level)), atol=1e-6)
            root, position = verdict.bonus, position + 1 + len(path)

    run_coroutines([rounds()])
    draft = run_coroutines(
        [
            drafter.open_guess((0, 1), law.open_session((0, 1))).propose_draft(
                1, 2, DraftBudget(4, 5), Rng.of_choice(0)
            )
        ]
    )[0]
    assert sum(draft.probe) == 4, "two probes of two copies each"


def test_the_least_likely_go_first():
    draft = Draft.certain_tree((1, 2, 3), (-1, 0, 0), (1.0, 0.6, 0.3))
    rates = ((0.5, 0.2), (0.4, 0.2))
    assert allot_probes(draft, rates, 99, 99) == [
        2,
        2,
        2,
    ]  # worth 0.7 and 0.42 behind 0.1, 0.6, 0.3
    assert allot_probes(draft, rates, 3, 99) == [0, 2, 1]
    assert allot_probes(draft, rates, 1, 99) == [0, 1, 0]
    assert allot_probes(draft, rates, 99, 2) == [2, 1, 1]  # the budget has two levels
    assert allot_probes(Draft.chain_draft(1), rates, 0, 99) == [0]


def test_wrong_probes_are_told_in_one_sentence(tmp_path):
    vocab = TokenVocabulary(3, frozenset())
    build = lambda name, *have: registry.build(name, Kit(toy_law(1), None, have))  # noqa: E731
    prompt, hidden, _ = probes.examples(vocab, 4, 4)
    with pytest.raises(ValueError, match="hidden-transfer needs transferred states"):
        build("hidden-transfer", prompt)
    with pytest.raises(ValueError, match="ppd needs prompt tokens"):
        build("ppd", hidden)
    with pytest.raises(ValueError, match="trained for states of width 8: this target's have 4"):
        build("ppd", probes.examples(vocab, 8, 8)[0])
    with pytest.raises(ValueError, match="enter layer 7: this target shows 3 of its layers"):
        build(
            "hidden-transfer", SoftProbes(hidden.bias_PH, hidden.maps, (1, 7), vocab, hidden.rates)
        )
    with pytest.raises(ValueError, match="rows is 0: it must lie in 1 to 1024"):
        ProbesDrafter(prompt, RankedTree(), 0)


def test_a_span_goes_on_while_it_is_sure():
    law = toy_law(5, 5, eos=-1)

    async def grown(least):
        return await SurePrefixTree(least, False).grow_tree(
            law.open_session((0, 1)), 1, 2, DraftBudget(4, 8), Rng.of_choice(0)
        )

    weight, text, chances = law.network.weight, [0, 1], []
    for _ in range(4):
        row = weight[text[-2], text[-1]].softmax(0)
        text.append(int(row.argmax()))
        chances.append(float(row.max()))
    for least in (0.0, *chances, 1.1):
        n = next((i for i in range(4) if chances[i] < least or text[i + 2] == text[i + 1]), 4)
        assert run_coroutines([grown(least)])[0].token == tuple(text[1 : 2 + n])


def test_trust_takes_what_is_drafted_and_verified_does_not():
    """Where a span is never sure enough both are plain; else the unchecked one writes more a pass, and another text."""
    law, (prompt, *_) = (
        ShapedTarget(toy_law(5, 4, eos=-1), GreedyRule()),
        probes.examples(toy_law(5, 4).vocab, 4, 4),
    )
    said = {}
    for name in ("plain", "lexical-unit-decoding", "lexical-unit-decoding-verified"):
        for sure in ("0.2", "1.5") if name != "plain" else ("",):
            decoder, _ = registry.build(
                name, Kit(law, None, (prompt,)), {"confidence": sure} if sure else {}
            )
            said[name + sure] = run_coroutines([answer_one(decoder, Request((0, 1), 24))])[0]
    plain = said["plain"].token_ids
    assert said["lexical-unit-decoding1.5"].token_ids == plain
    assert said["lexical-unit-decoding-verified0.2"].token_ids == plain
    loose = said["lexical-unit-decoding0.2"]
    assert loose.token_ids != plain and loose.stats.passes < 24


def test_behind_a_token_that_the_target_was_not_sure_of_nothing_is_drafted():
    """The first token of a span counts too: it is the target's own, and its probability before any shaping is asked."""
    model = toy_law(5, 4, eos=-1)
    law, (prompt, *_) = ShapedTarget(model, GreedyRule()), probes.examples(model.vocab, 4, 4)

    async def drafted(sure):
        session, text = law.open_session((0, 1)), [0, 1]
        guess = ProbesDrafter(prompt, SurePrefixTree(0.0), 8, sure=sure).open_guess(text, session)
        out = []
        for _ in range(6):
            draft = await guess.propose_draft(
                text[-1], len(text), DraftBudget(4, 8), Rng.of_choice(0)
            )
            proposed = len(draft) - sum(draft.probe)
            scores = await session.score_draft(draft, replace(guess.want, law=RowDetail.ROW))
            verdict = Verdict((), scores.likeliest_token(0))  # the draft is never right
            session.commit_tokens(verdict.committed_tokens(draft))
            guess.learn_round(draft, scores, verdict)
            chance = float(model.network.weight[text[-2], text[-1]].softmax(0)[verdict.bonus])
            out.append((proposed, chance))
            text.append(verdict.bonus)
        return out

    loose, strict = run_coroutines([drafted(0.0)])[0], run_coroutines([drafted(0.5)])[0]
    assert all(proposed > 1 for proposed, _ in loose[1:])
    assert {chance >= 0.5 for _, chance in strict} == {True, False}  # both are met
    for (_, chance), (proposed, _) in pairwise(strict):
        assert (proposed > 1) == (chance >= 0.5)
    with pytest.raises(RequestError, match="sure is -1"):
        ProbesDrafter(prompt, SurePrefixTree(0.0), sure=-1)
