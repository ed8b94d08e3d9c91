"""S2D's drafter on a real network in float64: lazy passes against eager ones, thresholds, stops, shared drafts."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.sorted_exits import SortedExitsDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions import depths
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.session import LMSession

EXITS, BARS, TEXT = (1, 2, 4), (0.3, 0.35), (7, 3, 11, 20, 4)


@cache
def weights(seed):
    """A random Llama's config and weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=200,
        initializer_range=0.3,
    )
    return config.to_dict(), LlamaForCausalLM(config).state_dict()


def network(seed=0):
    net = LlamaTransformer.build(*weights(seed), dtype="float64")
    net.fed, net.heads, forward = 0, 0, net.forward

    def counting(queries):
        for q in queries:
            net.fed += len(q) * (4 if q.layers is None else len(q.layers))
            net.heads += bool(len(q.rows) and max(q.want.law, q.want.base))
        return forward(queries)

    net.forward = counting
    return net


def lm(net, chunk=3):
    return CausalLaw(net, TokenVocabulary(24, frozenset({23})), chunk=chunk)


def answer(decoder, tokens=30, seed=0, prompt=TEXT):
    return run_coroutines(
        [answer_one(decoder, Request(prompt, max_tokens=tokens, ignore_eos=True, seed=seed))]
    )[0]


def eager(net, text):
    """Of each exit the law behind a text: every layer runs on all of it, in one pass over an empty cache."""
    scores = run_coroutines(
        [
            lm(net)
            .open_session(text[:1])
            .score_draft(Draft.chain_draft(text[0], text[1:]), ScoreRequest(exits=EXITS))
        ]
    )[0]
    return {e: scores.exit_laws(e, (len(text) - 1,)).logprob_row(0) for e in EXITS}


def left_at(laws):
    """The exit that the card's rule takes."""
    return next(
        e for e, bar in zip(EXITS, (*BARS, 0.0), strict=True) if float(laws[e].max().exp()) >= bar
    )


def compare(net, other):
    """Rounds of drafts, some of them rejected; each node against an eager pass of another network. Which exits were used."""
    text, used = list(TEXT), Counter()
    guess = SortedExitsDrafter(lm(net), EXITS, BARS, 0.0).open_guess(tuple(text), None)
    for n, keep in enumerate((4, 0, 2, 5, 1, 3, 0, 5, 5, 2, 4, 1, 5, 3, 2)):
        draft = run_coroutines(
            [guess.propose_draft(text[-1], len(text), DraftBudget(5, 5), Rng.of_choice(n))]
        )[0]
        assert len(draft) == 6 and set(draft.draw[1:]) == {DrawKind.INDEPENDENT}
        for i in range(1, 6):
            laws = eager(other, [*text, *draft.token[1:i]])
            e = left_at(laws)
            used[e] += 1
            torch.testing.assert_close(draft.law[i], laws[e], atol=1e-10, rtol=0.0)
            assert all(float((laws[e] - laws[x]).abs().max()) > 1e-3 for x in EXITS if x != e), (
                "exits look alike"
            )
        verdict = Verdict(tuple(range(1, 1 + keep)), (draft.token[min(keep + 1, 5)] + 1) % 24)
        guess.learn_round(draft, None, verdict)
        text += [*draft.token[1 : 1 + keep], verdict.bonus]
    guess.close()
    return used


def test_lazy_passes_give_what_eager_ones_give():
    used = compare(network(), network())
    assert min(used[e] for e in EXITS) >= 8, f"not every exit was put to the test: {used}"


def never_caught_up(ledger, depth, want, real=depths.advance_to_depth):
    ledger.lag = []
    return real(ledger, depth, want)


def dropped_last(self, tokens, real=LMSession.commit_tokens):
    """A commit that loses its last token: later ones stand one place too early."""
    real(self, tokens[:-1] if len(tokens) > 2 else tokens)


@pytest.mark.parametrize(
    "owner, place, fault",
    [(depths, "advance_to_depth", never_caught_up), (LMSession, "commit_tokens", dropped_last)],
    ids=["advance", "commit"],
)
def test_passes_that_are_left_out_or_misplaced_show(monkeypatch, owner, place, fault):
    monkeypatch.setattr(owner, place, fault)
    # A layer that was left out leaves its part of the cache as the memory was: other laws, or NaN.
    with pytest.raises((AssertionError, RequestError)):
        compare(network(), network())


@pytest.mark.parametrize("shaper", [GreedyRule(), TemperatureRule(0.8)], ids=["greedy", "sampled"])
def test_above_1_it_is_the_draft_model_also_in_what_it_runs(shaper):
    """An exit that is never left runs neither its head nor a pass of its own."""
    for stop in (0.0, 0.25):
        counts, answers = [], []
        for bars, exits in (((1.1, 1.1), EXITS), ((), (4,))):
            net, target = network(1), ShapedTarget(lm(network(2)), shaper)
            drafter = SortedExitsDrafter(ShapedTarget(lm(net), shaper), exits, bars, stop)
            answers.append(
                answer(SpeculativeDecoder(target, drafter, ExactVerifier(), FixedPolicy(4)))
            )
            counts.append((net.fed, net.heads))
        assert answers[0] == answers[1] and counts[0] == counts[1]
    net = network(1)
    plain = answer(
        SpeculativeDecoder(
            target,
            ModelDrafter(ShapedTarget(lm(net), shaper), ChainTree()),
            ExactVerifier(),
            FixedPolicy(4),
        )
    )
    drafter = SortedExitsDrafter(ShapedTarget(lm(network(1)), shaper), EXITS, (1.1, 1.1), 0.0)
    ours = answer(SpeculativeDecoder(target, drafter, ExactVerifier(), FixedPolicy(4)))
    assert ours.token_ids == plain.token_ids and replace(ours.stats, expected=None) == replace(
        plain.stats, expected=None
    )


def test_at_0_deeper_layers_never_run():
    fed = {}
    for bars in ((0.0, 0.0), (0.0, 1.1), BARS):
        net = network(1)
        stats = answer(
            SpeculativeDecoder(
                ShapedTarget(lm(network(2)), GreedyRule()),
                SortedExitsDrafter(ShapedTarget(lm(net), GreedyRule()), EXITS, bars, 0.0),
                ExactVerifier(),
                FixedPolicy(4),
            )
        ).stats
        fed[bars] = net.fed
        most = (
            (stats.passes + stats.drafted) * EXITS[0] + 3 * 4 + len(TEXT)
        )  # a chunk of the prompt passes all layers
        assert (net.fed <= most) == (bars != BARS)
    assert fed[0.0, 0.0] == fed[0.0, 1.1] < fed[BARS]


def test_one_drafter_serves_two_targets_in_turn():
    drafter = SortedExitsDrafter(lm(network(1)), EXITS, BARS, 0.1)
    decoders = [
        SpeculativeDecoder(lm(network(seed)), drafter, ExactVerifier(), FixedPolicy(3))
        for seed in (2, 3)
    ]
    requests = [Request(TEXT[:k], max_tokens=15, ignore_eos=True, seed=k) for k in (2, 4, 5)]
    alone = [run_coroutines([answer_one(d, r)])[0] for r in requests for d in decoders]
    assert run_coroutines([answer_one(d, r) for r in requests for d in decoders]) == alone
    again = [
        replace(d, drafter=SortedExitsDrafter(lm(network(1)), EXITS, BARS, 0.1)) for d in decoders
    ]
    assert [run_coroutines([answer_one(d, r)])[0] for r in requests for d in again] == alone, (
        "the shared draft remembers other requests"
    )
    assert {a.token_ids for a in alone[::2]}.isdisjoint({a.token_ids for a in alone[1::2]})


@pytest.mark.parametrize(
    "tau_1, tau_2, stop, length",
    [
        (0.4, 0.5, 0.0, 2),
        (0.5, 0.4, 0.35, 3),
        *(
            pytest.param(*given, 3, marks=pytest.mark.slow)
            for given in ((0.4, 0.5, 0.0), (0.35, 1.1, 0.3))
        ),
    ],
)
def test_the_law_where_exits_change_from_token_to_token(record_counts, tau_1, tau_2, stop, length):
    record_counts(
        check_law(
            lambda t, d: build(
                "s2d", t, d, {"tau_1": tau_1, "tau_2": tau_2, "stop": stop, "depth": 2}
            )[0],
            laws=length,
            length=length,
        )
    )
    record_counts(
        check_drafter(SortedExitsDrafter(toy_law(91, cost=0.1), (1, 2, 3), (tau_1, tau_2), stop))
    )


def test_it_stops_where_the_deepest_exit_is_unsure():
    lengths = []
    for stop in (0.0, 0.25, 0.5, 1.0):
        drafts = []
        for seed in range(12):
            guess = SortedExitsDrafter(lm(network(1)), EXITS, BARS, stop).open_guess(
                (seed, 3, 5), None
            )
            drafts.append(
                run_coroutines([guess.propose_draft(5, 3, DraftBudget(5, 5), Rng.of_choice(seed))])[
                    0
                ]
            )
        lengths.append(sum(map(len, drafts)) - 12)
        assert all(float(law.max().exp()) >= stop for d in drafts for law in d.law[1:])
    assert (
        lengths[0] == 60
        and lengths[3] == 0
        and lengths == sorted(lengths, reverse=True)
        and len(set(lengths)) == 4
    )


def test_exits_of_a_shallow_draft():
    draft = toy_law(1)
    for exits, kept in (((0, 0, 1), ()), ((1, 1, 2), (0.8,)), ((1, 2, 3), (0.9, 0.8))):
        how = SortedExitsDrafter.of_exits(draft, exits, 0.3, tau_1=0.9, tau_2=0.8)
        assert how.exits == tuple(sorted(set(exits) - {0})) and how.thresholds == kept


@pytest.mark.parametrize(
    "given, says",
    [
        ({"exits": (2, 1), "thresholds": (0.5,)}, r"exits is \(2, 1\): it must hold ascending"),
        ({"exits": (), "thresholds": ()}, r"exits is \(\)"),
        ({"exits": (0, 1), "thresholds": (0.5,)}, "of 1 and more"),
        ({"thresholds": (0.5,)}, r"thresholds is \(0.5,\): it must hold a number"),
        ({"thresholds": (0.5, -0.1)}, "at least 0"),
        ({"stop": 1.5}, r"stop is 1.5: it must lie in 0 to 1"),
    ],
)
def test_one_clear_sentence(given, says):
    with pytest.raises(ValueError, match=says):
        SortedExitsDrafter(toy_law(1), **given)
    with pytest.raises(ValueError, match=r"tau_2 is -0\.1: it must be at least 0"):
        build("s2d", toy_law(1), toy_law(2), {"tau_2": -0.1})
