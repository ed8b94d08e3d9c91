"""Drafts from the target's own layers, and laws of some of its layers: reductions, statistics, reuse, faults that must show."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_decoder import check_decoder, check_greedy, check_law
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.lab.testing.exercised_counts import declared_unexercised
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import OrderTwoNetwork, toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.confident import EarlyExitTarget
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.skipping import SkippingTarget
from polydec.methods.economics.depth import (
    format_layer_halves,
    kept_layers,
    parse_layer_halves,
    remaining_layer_halves,
)
from polydec.methods.registry import registry
from polydec.methods.speculative.drafters.dynamic_exit import DynamicExitDrafter, ExitHitCount
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.self_speculative import SelfSpeculativeDrafter
from polydec.methods.speculative.drafters.sorted_exits import SortedExitsDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.policies.confidence import ConfidencePolicy
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.policies.threshold import ThresholdPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions import depths
from polydec.models.sessions.lm import CausalLaw
from reasoned import Reasoned

PROMPT = (0, 1, 0, 2, 1)


def answer(decoder, tokens=40, seed=0, prompt=PROMPT):
    return run_coroutines(
        [answer_one(decoder, Request(prompt, max_tokens=tokens, ignore_eos=True, seed=seed))]
    )[0]


def recipe(name, target, draft=None, **options):
    return build(name, target, draft, options)[0]


class Deep(OrderTwoNetwork):
    """A toy of more layers, whose depths from `done` on have the whole law."""

    layers = 6

    def __init__(self, seed, size=5, done=9):
        super().__init__(seed, size, 2.0)
        self.done = done
        self.other *= 1 if done > self.layers else 6  # depths below know nothing

    def head_logits(self, hidden_RH):
        state = hidden_RH.clone()
        state[:, 2] = torch.where(
            state[:, 2] >= 2**self.done - 1, 2.0**self.layers - 1, state[:, 2]
        )
        return super().head_logits(state)


def deep(seed=1, size=5, done=9):
    return CausalLaw(Deep(seed, size, done), TokenVocabulary(size, frozenset({size - 1})), chunk=4)


@pytest.mark.parametrize("shaper", [GreedyRule(), TemperatureRule(0.8)], ids=["greedy", "sampled"])
def test_all_layers_draft_what_is_accepted(shaper):
    target = ShapedTarget(deep(), shaper)
    for name, options in (
        ("layerskip", {"exit": 6}),
        ("draft-and-verify", {"skip": "", "threshold": 0.0}),
        ("unified-layer-skipping-draft", {"speed": 1.0}),
    ):
        stats = answer(recipe(name, target, **options)).stats
        assert stats.accepted == stats.drafted > 0, name


@pytest.mark.parametrize("exit, depth", [(1, 3), (2, 6), (5, 1)])
def test_early_layers_run_once_for_a_token_that_is_kept(exit, depth):
    target = ShapedTarget(deep(3), GreedyRule())
    net = target.target.network
    stats = answer(recipe("layerskip", target, exit=exit, depth=depth)).stats
    fed = len(PROMPT) - 1 + stats.passes + stats.drafted
    assert net.runs == fed * 6, (
        "every layer runs once for each token of the prompt, each root and each draft"
    )


@pytest.mark.parametrize("name, options", [("layerskip", {"depth": 0}), ("del", {"depth": 0})])
def test_depth_0_is_plain(name, options):
    target = ShapedTarget(deep(3), TemperatureRule(0.9))
    ours, plain = answer(recipe(name, target, **options)), answer(recipe("plain", target))
    assert ours.stats.passes == plain.stats.passes and not ours.stats.drafted
    assert (
        answer(recipe(name, ShapedTarget(deep(3), GreedyRule()), **options)).token_ids
        == answer(recipe("plain", ShapedTarget(deep(3), GreedyRule()))).token_ids
    )


def test_trees_at_an_exit_keep_the_law(record_counts):
    record_counts(
        check_law(
            lambda t, d: SpeculativeDecoder(
                t,
                SelfSpeculativeDrafter(StaticTree((2, 1)), (0, 1)),
                ExactVerifier(),
                FixedPolicy(2, 4),
            ),
            laws=4,
            length=2,
        )
    )


def test_published_layers():
    assert kept_layers(30, 2) == (*range(0, 27, 2), 29)
    assert kept_layers(30, 5) == (0, 6, 12, 18, 24, 29)
    assert kept_layers(30, 10) == (0, 15, 29)
    assert (
        kept_layers(30, 30) == (0, 29)
        and kept_layers(30, 1) == tuple(range(30))
        and kept_layers(1, 4) == (0,)
    )
    for layers in range(2, 40):
        for speed in (1.0, 1.2, 1.5, 2.0, 3.7, 50.0):
            for even in (False, True):
                kept = kept_layers(layers, speed, even=even)
                assert (
                    kept[0] == 0
                    and kept[-1] == layers - 1
                    and len(kept) == min(layers, max(2, int(layers / speed)))
                )
                assert len(set(kept)) == len(kept)
            gaps = [b - a for a, b in pairwise(kept)]
            assert max(gaps) - min(gaps) <= 1
    with pytest.raises(ValueError, match=r"speed is 0\.5"):
        kept_layers(8, 0.5)


@pytest.mark.parametrize("skip", ["0a,1m", "1,2a", "0m,2m"])
def test_halves_that_do_not_draft_keep_the_law(record_counts, skip):
    record_counts(
        check_decoder(
            lambda t, d: recipe("draft-and-verify", t, skip=skip, threshold=0.0, depth=2), laws=3
        )
    )
    target = ShapedTarget(deep(3), GreedyRule())
    stats = answer(
        SpeculativeDecoder(
            target,
            SelfSpeculativeDrafter(
                ChainTree(), *remaining_layer_halves(parse_layer_halves(skip, 6), 6)
            ),
            ExactVerifier(),
            FixedPolicy(3),
        )
    ).stats
    assert stats.drafted >= stats.accepted > 0
    fed = len(PROMPT) - 1 + stats.passes + stats.drafted
    assert target.target.network.runs == fed * 6 + stats.drafted * (
        6 - len(parse_layer_halves(skip, 6)) / 2
    )


def test_names_of_halves():
    assert (
        parse_layer_halves("3, 5a,7m", 8) == {6, 7, 10, 15}
        and parse_layer_halves("", 8) == set()
        and parse_layer_halves("2a,2m,0", 3) == parse_layer_halves("0,2", 3)
    )
    assert (
        remaining_layer_halves(parse_layer_halves("3,5a,7m", 8), 8)
        == ((0, 1, 2, 4, 5, 6, 7), {10, 15})
        and format_layer_halves(parse_layer_halves("7m,5a,3m,3a", 8)) == "3,5a,7m"
    )
    for bits in range(63):
        out = frozenset(i for i in range(6) if bits >> i & 1)
        assert parse_layer_halves(format_layer_halves(out), 3) == out
        layers, without = remaining_layer_halves(out, 3)
        assert {h for i in layers for h in (2 * i, 2 * i + 1)} - without == set(range(6)) - out
    net = toy_law(1).network
    for bad in ("3", "1,-1", "a", "1x", "2,9m", "0-2", "1a2"):
        with pytest.raises(
            ValueError, match=rf"skip is '{bad}': it must name layers 0 to 2, such as 3 \(whole\)"
        ):
            recipe("draft-and-verify", CausalLaw(net, toy_law(1).vocab), skip=bad)
    with pytest.raises(
        ValueError, match="at least one attention or MLP of the 3 layers must be left"
    ):
        recipe("draft-and-verify", CausalLaw(net, toy_law(1).vocab), skip="0,1,2")
    with pytest.raises(ValueError, match="skip is 3: it must be a word, or none"):
        recipe("draft-and-verify", CausalLaw(net, toy_law(1).vocab), skip=3)
    for bad in ({0, 1}, {6}, {-1}):
        with pytest.raises(ValueError, match=r"without is .*: it must hold"):
            SelfSpeculativeDrafter(ChainTree(), (0, 2), frozenset(bad))
    assert not net.runs


@pytest.mark.parametrize(
    "law",
    [
        lambda t: SkippingTarget(t, (0, 2)),
        lambda t: SkippingTarget(t, (0, 1, 2)),
        lambda t: SkippingTarget(t, (1,)),
        lambda t: EarlyExitTarget(t, (1, 2, 3), 0.3),
        lambda t: EarlyExitTarget(t, (2, 3), 0.5, 1.0),
    ],
)
@pytest.mark.parametrize("shapers", [(), (TemperatureRule(0.7),)], ids=["plain", "shaped"])
def test_laws_of_some_layers_are_laws(record_counts, law, shapers, monkeypatch):
    """All that check_target asks, but for the prompt's rows, which all layers see, and keys, which whole passes alone leave."""

    async def as_they_are(self):
        pass

    for name in ("prompt_rows", "check_memory"):
        monkeypatch.setattr(TargetChecker, name, as_they_are)
    checked = law(ShapedTarget(toy_law(3), *shapers) if shapers else toy_law(3))
    declared = declared_unexercised(checked)
    reasons = {**declared, "keys": "whole passes alone leave them"}
    record_counts(check_target(Reasoned(checked, reasons), tolerance=1e-12, prefill=False))


def test_skipping_runs_the_kept_layers_only_after_the_prompt():
    target = deep(2)
    answer(
        SpeculativeDecoder(
            SkippingTarget(target, (0, 3, 5)), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
        ),
        21,
    )
    assert target.network.runs == len(PROMPT) * 6 + 20 * 3
    whole = answer(recipe("plain", deep(2)), 21).token_ids
    assert answer(recipe("unified-layer-skipping", deep(2), speed=1.0), 21).token_ids == whole
    decoder = recipe("unified-layer-skipping", deep(2), speed=2.0)
    requests = [Request(PROMPT[:k], max_tokens=9 + k, seed=k) for k in (1, 2, 5)]
    together = run_coroutines([answer_one(decoder, r) for r in requests])
    assert [t.token_ids for t in together] == [
        run_coroutines([answer_one(decoder, r)])[0].token_ids for r in requests
    ]


def test_confidence_exit_between_its_limits():
    plain = answer(recipe("plain", deep(2))).token_ids
    above = deep(2)
    assert answer(recipe("calm", above, threshold=1.01)).token_ids == plain
    runs = [above.network.runs]
    for threshold in (0.6, 0.2, 0.0):
        target = deep(2)
        answer(recipe("calm", target, threshold=threshold))
        runs.append(target.network.runs)
    assert (
        runs == sorted(runs, reverse=True)
        and runs[-1] == (len(PROMPT) + 39) * 2 + (4 if len(PROMPT) - 1 > 4 else 0) * 4
    )
    assert EarlyExitTarget(above, (1, 6), 1.3, 5.0).exit_threshold(10**6) > 1


def test_the_best_exit_is_that_of_brute_force():
    dice = torch.Generator().manual_seed(0)
    for head in (0.0, 0.7, 3.0):
        how = DynamicExitDrafter(ChainTree(), 8, depth=9, head=head)
        for _ in range(60):
            counts = {
                e: ExitHitCount(*(float(x) for x in torch.rand(2, generator=dice) * 9))
                for e in how.exits
            }

            def worth(e, g, counts=counts, how=how):
                a = counts[e].rate
                return (g + 1 if a == 1 else (1 - a ** (g + 1)) / (1 - a)) / (
                    how.layers + g * e + (g + 1) * how.head
                )

            best = max((worth(e, g), -e, -g) for e in how.exits for g in range(10))
            e, g = how.best_exit(counts)
            assert worth(e, g) == pytest.approx(best[0]) and (
                g == 0 or (e, g) == (-best[1], -best[2])
            )
    sure = {e: ExitHitCount(5.0, 0.0) if e >= 3 else ExitHitCount(1.0, 4.0) for e in range(1, 8)}
    assert DynamicExitDrafter(ChainTree(), 8, depth=9, head=0.0).best_exit(sure) == (3, 9)
    assert (
        DynamicExitDrafter(ChainTree(), 8).best_exit({e: ExitHitCount() for e in range(1, 8)})[1]
        == 0
    ), "no exit is chosen without counts"


def test_a_model_that_is_done_after_three_layers():
    target = ShapedTarget(deep(4, done=3), GreedyRule())
    decoder = recipe("del", target, depth=5, head=0.0)
    drafted = []
    r = run_coroutines(
        [
            answer_one(
                decoder,
                Request(PROMPT, max_tokens=120, ignore_eos=True),
                on=lambda e: drafted.append(
                    len(e.token) - 1 if type(e).__name__ == "ProposedEvent" else None
                ),
            )
        ]
    )[0]
    lengths = [n for n in drafted if n is not None]
    assert set(lengths[19:-1]) == {5} and r.stats.accepted > 0.9 * r.stats.drafted
    guess = decoder.drafter.open_guess(PROMPT, target.open_session(PROMPT))
    assert (
        decoder.drafter.best_exit(
            {e: ExitHitCount(9.0 if e >= 3 else 2.0, 0.0 if e >= 3 else 7.0) for e in guess.counts}
        )[0]
        == 3
    )


def test_shadow_counts_are_those_of_truncated_passes():
    target, how = (
        ShapedTarget(deep(5), GreedyRule()),
        DynamicExitDrafter(ChainTree(), 6, omega=0.5, prompt=3),
    )
    session = target.open_session(PROMPT)
    guess = how.open_guess(PROMPT, session)
    want = guess.want
    guess.learn_round(
        Draft.chain_draft(PROMPT[0], PROMPT[1:-1]),
        run_coroutines([session.prefill_prompt(want)])[0],
        Verdict((1, 2, 3), PROMPT[-1]),
    )
    base = deep(5)

    def says(text, exit):
        part = base.open_session(text).open_part(range(exit))
        return run_coroutines([part.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())])[
            0
        ].likeliest_token(0)

    expected = {e: ExitHitCount() for e in how.exits}
    for e in how.exits:
        seen = [says(PROMPT[:k], e) == says(PROMPT[:k], 6) for k in (2, 3, 4)]
        expected[e] = (float(sum(seen)), 3.0 - sum(seen))
    assert {e: (c.hits, c.misses) for e, c in guess.counts.items()} == expected
    draft = run_coroutines(
        [guess.propose_draft(PROMPT[-1], 5, FixedPolicy(4).start_state(), Rng.of_choice(0))]
    )[0]
    scores = run_coroutines([session.score_draft(draft, replace(guess.want, law=RowDetail.ROW))])[0]
    verdict = MatchVerifier().verify_draft(draft, scores, None, 5)
    guess.learn_round(draft, scores, verdict)
    path = [draft.token[i] for i in verdict.path]
    for e in how.exits:
        texts = [(*PROMPT, *path[:k]) for k in range(len(path) + 1)]
        seen = [says(t, e) == says(t, 6) for t in texts]
        assert guess.counts[e].hits == 0.5 * expected[e][0] + sum(seen)
        assert guess.counts[e].hits + guess.counts[e].misses == pytest.approx(1.5 + len(texts))


def test_sorted_exits_reduce_to_a_draft_model_and_to_its_first_exit():
    for shaper in (GreedyRule(), TemperatureRule(0.7)):
        target, draft = ShapedTarget(toy_law(3, 5), shaper), ShapedTarget(deep(7), shaper)
        plain = answer(
            SpeculativeDecoder(
                target, ModelDrafter(draft, ChainTree()), ExactVerifier(), FixedPolicy(5)
            )
        )
        ours = answer(recipe("s2d", target, draft, tau_1=1.1, tau_2=1.1, stop=0.0))
        assert ours.token_ids == plain.token_ids and replace(ours.stats, expected=0.0) == replace(
            plain.stats, expected=0.0
        )
        first = answer(
            SpeculativeDecoder(
                target,
                SortedExitsDrafter(draft, (3, 6), (0.0,), 0.0),
                ExactVerifier(),
                FixedPolicy(5),
            )
        )
        ours = answer(recipe("s2d", target, draft, tau_1=0.0, stop=0.0))
        assert ours.token_ids == first.token_ids and ours.stats == first.stats
    net = deep(7).network
    draft = CausalLaw(net, deep().vocab)
    stats = answer(
        recipe(
            "s2d",
            ShapedTarget(toy_law(3, 5), GreedyRule()),
            ShapedTarget(draft, GreedyRule()),
            tau_1=0.0,
            stop=0.0,
        )
    ).stats
    assert net.runs <= (len(PROMPT) + stats.passes + stats.drafted) * 3, "deeper layers never ran"


def test_two_targets_share_a_sorted_draft():
    draft = deep(7)
    decoders = [
        recipe("s2d", toy_law(s, 5), draft, tau_1=t, stop=0.0) for s, t in ((3, 0.5), (4, 0.9))
    ]
    requests = [Request(PROMPT[:k], max_tokens=20, ignore_eos=True, seed=k) for k in (2, 3, 5)]
    together = run_coroutines([answer_one(d, r) for r in requests for d in decoders])
    alone = [run_coroutines([answer_one(d, r)])[0] for r in requests for d in decoders]
    assert [t.token_ids for t in together] == [t.token_ids for t in alone]
    assert [t.stats for t in together] == [t.stats for t in alone]


def test_the_threshold_follows_the_acceptance():
    policy, draft = ThresholdPolicy(0.5, 0.9, depth=4), Draft.chain_draft(0, (1, 2))
    state = policy.observe_round(policy.start_state(), draft, Verdict((), 0))
    assert state == pytest.approx((0.5 + 0.1 * 0.01, 0.45))
    state = policy.observe_round((0.5, 1.0), draft, Verdict((1, 2), 0))
    assert state == pytest.approx((0.5 - 0.1 * 0.01, 1.0))
    assert policy.observe_round(
        (0.5, 1.0), Draft.chain_draft(0, (1,) * 4), Verdict((1, 2, 3, 4), 0)
    )[0] == pytest.approx(0.5)
    assert policy.observe_round((0.5, 0.3), Draft.chain_draft(0), Verdict((), 0)) == (0.5, 0.3)
    for taken in ((), (1, 2)):
        state = ThresholdPolicy(0.5, step=1.0, keep=0.0).start_state()
        for _ in range(5):
            state = ThresholdPolicy(0.5, step=1.0, keep=0.0).observe_round(
                state, draft, Verdict(taken, 0)
            )
            assert 0.0 <= state[0] <= 1.0
    target, same = (
        ShapedTarget(deep(), TemperatureRule(0.9)),
        SelfSpeculativeDrafter(ChainTree(), (0, 2, 5)),
    )
    ours = answer(
        SpeculativeDecoder(target, same, ExactVerifier(), ThresholdPolicy(0.4, depth=8, step=0.0))
    )
    assert (
        ours.stats
        == answer(SpeculativeDecoder(target, same, ExactVerifier(), ConfidencePolicy(0.4, 8))).stats
    )


NAMES = [n for n, m in registry.recipe_modules().items() if "layers" in m.CARD.needs]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_runs_as_a_whole_only_is_refused(name):
    whole = CausalLaw(OrderTwoNetwork(1, tree=False), toy_law(1).vocab)
    with pytest.raises(ValueError, match=f"method {name} needs a model whose layers can run alone"):
        recipe(name, ShapedTarget(whole, GreedyRule()))
    with pytest.raises(ValueError, match="method s2d needs a draft whose layers can run alone"):
        recipe("s2d", toy_law(1), whole)


def never_caught_up(ledger, depth, want, real=depths.advance_to_depth):
    """What a part has left behind counts as done."""
    ledger.lag = []
    return real(ledger, depth, want)


def kept_as_drafted(ledger, depth, draft, want, real=depths.score_to_depth):
    """What a layer-skip draft left in the cache, and its rows, pass for the whole's."""
    scored = ledger.scored
    if scored.run is not None:
        scored.answers[depth], scored.run = scored.answers[scored.run], None
    return real(ledger, depth, draft, want)


def fresh_states(ledger, depth, draft, want, real=depths.score_to_depth):
    """The whole takes an exit's states for its own: layers behind the exit never see the draft."""
    if depth == ledger.layers and ledger.scored.answers:
        depth = next(k for k in ledger.scored.answers)
    return real(ledger, depth, draft, want)


@pytest.mark.parametrize(
    "place, fault, name",
    [
        ("advance_to_depth", never_caught_up, "s2d"),
        ("score_to_depth", kept_as_drafted, "draft-and-verify"),
        ("score_to_depth", fresh_states, "layerskip"),
    ],
)
def test_faulty_sessions_show(monkeypatch, place, fault, name):
    def make(target, draft):
        return recipe(
            name,
            target,
            draft,
            **({"tau_1": 0.4, "tau_2": 0.5, "stop": 0.0} if name == "s2d" else {}),
        )

    check_law(make, laws=2, length=2, shapings=["plain"])
    monkeypatch.setattr(depths, place, fault)
    with pytest.raises((AssertionError, IndexError, ValueError, StopIteration)):
        check_law(make, laws=2, length=3, shapings=["plain"])
        check_greedy(make)
        both = (
            answer(
                recipe(
                    "s2d",
                    ShapedTarget(toy_law(3, 5), GreedyRule()),
                    ShapedTarget(toy_law(5, 5), GreedyRule()),
                    tau_1=0.4,
                    stop=0.0,
                )
            ),
            answer(
                recipe(
                    "draft-model",
                    ShapedTarget(toy_law(3, 5), GreedyRule()),
                    ShapedTarget(toy_law(5, 5), GreedyRule()),
                )
            ),
        )
        assert both[0].token_ids == both[1].token_ids
