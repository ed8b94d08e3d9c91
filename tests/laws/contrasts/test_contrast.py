"""Laws made of several laws: against formulas and fresh sessions, under drafts, in step, at their limits."""

import math
from itertools import pairwise

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.law import jensen_shannon_divergence, normalise_log_weights
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.check_contrast import check_contrast
from polydec.lab.testing.check_target import check_target
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import SHAPERS, bend_target, example_mechanism
from polydec.lab.testing.toy import toy_law
from polydec.laws.constraints.regex import Regex
from polydec.laws.contrasts.adaptive import AdaptiveContrast
from polydec.laws.contrasts.difference import DifferenceContrast
from polydec.laws.contrasts.gated import GatedContrast, law_certainty
from polydec.laws.contrasts.language import LanguageModelContrast
from polydec.laws.contrasts.mixture import MixtureContrast
from polydec.laws.contrasts.product import ProductContrast
from polydec.laws.contrasts.steered import (
    SteeringVectorContrast,
    calibrate_steering_strength,
    steering_direction,
)
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.contrast import ContrastSession, ContrastTarget
from polydec.laws.targets.layered import LayerContrastTarget
from polydec.laws.targets.other_prompt import SecondPromptTarget
from polydec.laws.targets.search_target import drop_greedy_rule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.switch import SwitchTarget
from polydec.methods.economics.depth import candidate_exit_depths
from polydec.methods.registry import registry, steer
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

PROMPT, OTHER = (0, 1, 0), (1, 1, 0, 1)
DRAFTERS = {
    "none": (NothingDrafter(), MatchVerifier(), FixedPolicy(0)),
    "copies": (LookupDrafter(), ExactVerifier(), FixedPolicy(2)),
    "model": (ModelDrafter(toy_law(91, 3, cost=0.1), ChainTree()), ExactVerifier(), FixedPolicy(2)),
    "tree": (
        ModelDrafter(toy_law(92, 3, cost=0.1), StaticTree((2, 1))),
        ExactVerifier(),
        FixedPolicy(2, 4),
    ),
}


def again(target):
    """The target behind the other prompt."""
    return SecondPromptTarget(target, PROMPT, OTHER)


def linear(plus, minus, head=0.0, temperature=1.0):
    def mix(p, q):
        w = {
            v: plus * math.log(p[v]) - minus * math.log(q[v]) / temperature
            for v in p
            if p[v] >= head * max(p.values())
        }
        return {v: math.exp(x) for v, x in w.items()}

    return mix


def jsd(p, q):
    m = {v: (p[v] + q[v]) / 2 for v in p}
    return sum(x[v] * math.log(x[v] / m[v]) for x in (p, q) for v in p) / 2


def adacad(floor, base=math.e):
    def mix(p, q):
        a = max(jsd(p, q) / math.log(base), floor)
        return linear(1 + a, a)(p, q)

    return mix


def uscd(threshold):
    def mix(p, q):
        deviation = (
            math.sqrt(sum((x - 1 / len(p)) ** 2 for x in p.values()) / len(p))
            * len(p)
            / math.sqrt(len(p) - 1)
        )
        return linear(1.5, 0.5, 0.1)(p, q) if deviation < threshold else p

    return mix


def svd(strength, head):
    def mix(p, q):
        kl = sum(p[v] * math.log(p[v] / q[v]) for v in p)
        d = {v: p[v] * (math.log(p[v] / q[v]) - kl) * (p[v] >= head * max(p.values())) for v in p}
        return {v: math.exp(math.log(p[v]) + strength * d[v]) for v in p}

    return mix


RULES = {
    "guidance": (DifferenceContrast(2.0, 1.0), linear(2.0, 1.0)),
    "less than 1": (DifferenceContrast(0.5, -0.5), linear(0.5, -0.5)),
    "contrastive decoding": (DifferenceContrast(1.0, 1.0, 0.4, 0.5), linear(1.0, 1.0, 0.4, 0.5)),
    "adacad": (AdaptiveContrast(), adacad(0.0)),
    "adacad with a floor": (AdaptiveContrast(0.3), adacad(0.3)),
    "adacad in bits": (AdaptiveContrast(base=2.0), adacad(0.0, 2.0)),
    "uscd": (GatedContrast(DifferenceContrast(1.5, 0.5, 0.1), 0.5), uscd(0.5)),
    "svdecode": (SteeringVectorContrast(4.0, 0.3), svd(4.0, 0.3)),
    "mixture": (MixtureContrast(0.3), lambda p, q: {v: 0.7 * p[v] + 0.3 * q[v] for v in p}),
    "product": (ProductContrast(0.3), lambda p, q: {v: p[v] ** 0.7 * q[v] ** 0.3 for v in p}),
}


@pytest.mark.parametrize(
    "rule, neutral",
    [
        (DifferenceContrast(3.0, 2.0), True),
        (DifferenceContrast(1.5, 0.5, 0.1), False),
        (DifferenceContrast(1.0, 1.0, 0.1, 0.5), False),
        (DifferenceContrast(0.0, -1.0), True),
        (DifferenceContrast(100.0, 100.0, 1.0, 1e-5), False),
        (AdaptiveContrast(), True),
        (AdaptiveContrast(10.0), True),
        (GatedContrast(DifferenceContrast(2.0, 1.0)), True),
        (SteeringVectorContrast(5.0), True),
        (SteeringVectorContrast(1000.0, 0.0), True),
        (MixtureContrast(0.3), True),
        (MixtureContrast(1.0), True),
        (ProductContrast(0.3), True),
        (ProductContrast(1.0), True),
        (LanguageModelContrast(2.0), True),
        (LanguageModelContrast(100.0, 0.0, 0.2), False),
    ],
    ids=str,
)
def test_rules_keep_their_contract(record_counts, rule, neutral):
    record_counts(check_contrast(rule, neutral=neutral))


LISTED = {type(rule) for rule, _ in RULES.values()}
WITHOUT_VALUES = [
    kind
    for kind in registry.mechanism_classes("contrasts").values()
    if kind not in LISTED or kind is AdaptiveContrast
]


@pytest.mark.parametrize("kind", WITHOUT_VALUES)
def test_a_rule_keeps_its_contract_by_its_file_alone(record_counts, kind):
    """With its defaults: a further rule need not stand in a list here."""
    record_counts(check_contrast(example_mechanism(kind), neutral=False))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: DifferenceContrast(-1.0), "plus is -1.0: it must lie in 0 to 100"),
        (lambda: DifferenceContrast(head=2.0), "head is 2.0"),
        (lambda: DifferenceContrast(temperature=0.0), "temperature of the other law is 0.0"),
        (lambda: AdaptiveContrast(-0.1), "floor is -0.1"),
        (lambda: AdaptiveContrast(base=1.0), "base is 1.0: it must lie in 1.01 to 10"),
        (lambda: GatedContrast(AdaptiveContrast(), 3.0), "threshold is 3.0"),
        (lambda: SteeringVectorContrast(-1.0), "strength is -1.0"),
        (lambda: MixtureContrast(1.5), "share is 1.5: it must lie in 0 to 1"),
        (lambda: ProductContrast(-0.5), "share is -0.5: it must lie in 0 to 1"),
        (lambda: LanguageModelContrast(-1.0), "scale is -1.0"),
        (
            lambda: ContrastTarget(toy_law(1), (), AdaptiveContrast()),
            "others has 0 laws: the rule AdaptiveContrast mixes 1",
        ),
        (
            lambda: ContrastTarget(toy_law(1), (toy_law(2, 4),), AdaptiveContrast()),
            "the second model has a vocabulary of 4 tokens",
        ),
        (
            lambda: LayerContrastTarget(toy_law(1), (3,), AdaptiveContrast()),
            "exits is (3,): it must hold ascending depths of 1 to 2",
        ),
        (lambda: SecondPromptTarget(toy_law(1), (), (1,)), "need at least one token"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


@pytest.mark.parametrize("tree", [True, False], ids=["tree mask", "path by path"])
@pytest.mark.parametrize(
    "rule",
    [
        DifferenceContrast(2.0, 1.0),
        GatedContrast(AdaptiveContrast(), 0.4),
        GatedContrast(AdaptiveContrast(), 0.0),
    ],
    ids=str,
)
def test_contract(rule, tree):
    first, second = toy_law(1, 5, tree=tree), toy_law(2, 5, cost=0.1, tree=tree)
    check_target(ContrastTarget(first, (second,), rule), tolerance=1e-9)


def test_contract_behind_another_prompt():
    target = toy_law(3, 5)
    for other in ((0, 3, 2), (1,)):
        check_target(
            ContrastTarget(
                target, (SecondPromptTarget(target, (0, 1), other),), DifferenceContrast(2.0, 1.0)
            ),
            tolerance=1e-9,
        )


def test_contract_of_layers():
    check_target(
        LayerContrastTarget(toy_law(3, 5), (1, 2), DifferenceContrast(1.0, 1.0, 0.2)),
        tolerance=1e-9,
    )


def test_contract_of_a_shaped_contrast():
    law = ContrastTarget(
        toy_law(3), (again(toy_law(3)), toy_law(4, cost=0.1)), LanguageModelContrast(2.0)
    )
    check_target(bend_target(law, SHAPERS["shaped"]), tolerance=1e-9, prefill=False)


def row_of(target, text):
    async def score():
        session = target.open_session(text)
        p_V = (
            (await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest()))
            .logprob_row(0)
            .double()
            .exp()
        )
        session.close()
        return dict(enumerate(p_V.tolist()))

    return run_coroutines([score()])[0]


def reference(mix, first, other, length, shapers):
    """The law of texts, every row from a fresh session of each bare model behind its own prompt."""
    law = {}

    def walk(text, p, states):
        weight = mix(row_of(first, (*PROMPT, *text)), row_of(other, (*OTHER, *text)))
        logw_V = torch.tensor(
            [math.log(weight[v]) if weight.get(v) else -math.inf for v in range(first.vocab.size)],
            dtype=torch.float64,
        )
        for s, state in zip(shapers, states, strict=True):
            logw_V = s.shape_law(state, normalise_log_weights(logw_V))
        for x, w in enumerate(torch.softmax(logw_V, -1).tolist()):
            if w and (x in first.vocab.eos or len(text) + 1 == length):
                law[(*text, x)] = p * w
            elif w:
                walk(
                    (*text, x),
                    p * w,
                    [s.next_state(state, x) for s, state in zip(shapers, states, strict=True)],
                )

    walk((), 1.0, [s.start_state(PROMPT) for s in shapers])
    return law


def enumerated(target, length, drafter="none"):
    decoder = SpeculativeDecoder(target, *DRAFTERS[drafter])
    return law_of(lambda rng: answer_one(decoder, Request(PROMPT, length), rng))


@pytest.mark.parametrize("name", RULES)
def test_the_law_is_the_formulas(name):
    """Eight laws, with the shapings and the drafters in turn. Penalties see normalised rows."""
    rule, mix = RULES[name]
    for seed in range(8):
        first = toy_law(seed + 1)
        other = first if seed % 2 else toy_law(seed + 40, cost=0.1)
        shaping, drafter = ("plain", "greedy")[seed == 3], list(DRAFTERS)[seed % 4]
        law = ContrastTarget(first, (SecondPromptTarget(other, PROMPT, OTHER),), rule)
        want = reference(mix, first, other, 2, SHAPERS[shaping])
        assert (
            text_law_distance(enumerated(bend_target(law, SHAPERS[shaping]), 2, drafter), want)
            < 1e-9
        ), (
            seed,
            shaping,
            drafter,
        )


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_shaped_laws_under_drafts(drafter):
    """Penalties, temperature and cuts above a contrast, against plain sampling of it."""
    for seed in range(2):
        law = ContrastTarget(
            toy_law(seed + 1),
            (again(toy_law(seed + 1)),),
            GatedContrast(AdaptiveContrast(0.3), 0.6),
        )
        for name in ("shaped", "greedy"):
            assert (
                text_law_distance(
                    enumerated(bend_target(law, SHAPERS[name]), 2, drafter),
                    target_law(law, PROMPT, 2, SHAPERS[name]),
                )
                < 1e-9
            )


@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "none"])
def test_grammar_and_contrast_and_repetition_and_temperature(drafter):
    """All at once, over eight laws, under three kinds of drafts."""
    length = 2 if drafter == "tree" else 3
    for seed in range(8):
        first = toy_law(seed + 1)
        law = ContrastTarget(
            first,
            (again(first),),
            (
                DifferenceContrast(2.0, 1.0),
                AdaptiveContrast(),
                GatedContrast(AdaptiveContrast(0.5), 0.7),
            )[seed % 3],
        )
        grammar = Regex("(ab|b)*").token_language(first.vocab, first.vocab.eos)
        shapers = (
            ConstraintRule(grammar, tuple(first.vocab.eos)),
            RepetitionPenaltyRule(1.3),
            TemperatureRule(0.8),
        )
        texts = enumerated(ShapedTarget(law, *shapers), length, drafter)
        assert text_law_distance(texts, target_law(law, PROMPT, length, shapers)) < 1e-9
        assert not any((0, 0) in pairwise(text) or (0, 2) in pairwise(text) for text in texts), (
            "the grammar does not hold"
        )


def test_three_laws():
    first, q = toy_law(5), toy_law(6, cost=0.1)
    law = ContrastTarget(first, (again(first), q), LanguageModelContrast(2.0, 1.0))
    for text in ((), (0,), (1, 0)):
        p, m, language = (
            row_of(first, (*PROMPT, *text)),
            row_of(first, (*OTHER, *text)),
            row_of(q, (*PROMPT, *text)),
        )
        weight = {v: language[v] * (p[v] / m[v]) ** 2 for v in p}
        got = row_of(law, (*PROMPT, *text))
        assert all(got[v] == pytest.approx(weight[v] / sum(weight.values())) for v in p)
    assert text_law_distance(enumerated(law, 2, "model"), target_law(law, PROMPT, 2)) < 1e-9


# limiting cases


def steered(name, target, draft=None, second=None, **options):
    return steer.build(name, Kit(target, draft, beside=second), options)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda t, d: steered("cfg", t, second=again(t), scale=1.0),
        lambda t, d: steered("cad", t, second=again(t), alpha=0.0),
        lambda t, d: steered("cfg", t, second=SecondPromptTarget(t, PROMPT, PROMPT), scale=3.0),
        lambda t, d: steered("adacad", t, second=SecondPromptTarget(t, PROMPT, PROMPT)),
        lambda t, d: steered("uscd", t, second=again(t), threshold=0.0),
        lambda t, d: steered("contrastive-decoding", t, d, beta=0.0, head=0.0),
        lambda t, d: steered("contrastive-decoding", t, t, beta=0.7, head=0.0),
        lambda t, d: steered("svdecode", t, d, strength=0.0),
        lambda t, d: steered("svdecode", t, t, strength=9.0),
        lambda t, d: steered("mixture", t, d, share=0.0),
        lambda t, d: steered("mixture", d, t, share=1.0),
        lambda t, d: steered("lm-guidance", t, again(t), again(t), scale=1.0, head=0.0),
        lambda t, d: steered("cfg", t, second=again(t), scale=0.0) and t,
        lambda t, d: steered("switch", t, d, tau=-1.0),
    ],
)
def test_without_steering(make):
    for seed in range(4):
        target, draft = toy_law(seed + 1), toy_law(seed + 60, cost=0.1)
        assert (
            text_law_distance(enumerated(make(target, draft), 2), target_law(target, PROMPT, 2))
            < 1e-9
        )


@pytest.mark.parametrize(
    "one, other",
    [
        (
            lambda t, d: steered("cad", t, second=again(t), alpha=0.7),
            lambda t, d: steered("cfg", t, second=again(t), scale=1.7),
        ),
        (
            lambda t, d: steered("uscd", t, second=again(t), threshold=2.0, strength=0.7, head=0.0),
            lambda t, d: steered("cad", t, second=again(t), alpha=0.7),
        ),
        (
            lambda t, d: steered("adacad", t, second=again(t), floor=0.9),
            lambda t, d: steered("cad", t, second=again(t), alpha=0.9),
        ),
        (
            lambda t, d: steered("lm-guidance", t, again(t), again(t), scale=2.5, head=0.0),
            lambda t, d: steered("cfg", t, second=again(t), scale=2.5),
        ),
        (
            lambda t, d: bend_target(
                steered("contrastive-decoding", t, d, head=1.0), (GreedyRule(),)
            ),
            lambda t, d: bend_target(t, (GreedyRule(),)),
        ),
        (
            lambda t, d: bend_target(steered("dola", t, head=1.0), (GreedyRule(),)),
            lambda t, d: bend_target(t, (GreedyRule(),)),
        ),
        (lambda t, d: steered("cfg", t, second=d, scale=0.0), lambda t, d: d),
    ],
)
def test_one_way_is_another(one, other):
    for seed in range(4):
        target, draft = toy_law(seed + 1), toy_law(seed + 60, cost=0.1)
        assert (
            text_law_distance(
                enumerated(one(target, draft), 2), enumerated(other(target, draft), 2)
            )
            < 1e-9
        )


def test_the_head_is_the_first_laws():
    """Every token lies in it; a contrast without one may take a token that both find unlikely."""
    first_V, other_V = (
        torch.tensor([0.6, 0.39, 0.01]).log(),
        torch.tensor([0.6, 0.3999, 0.0001]).log(),
    )
    assert int(DifferenceContrast(2.0, 1.0).mix_laws(first_V, [other_V]).argmax()) == 2
    assert int(DifferenceContrast(2.0, 1.0, 0.1).mix_laws(first_V, [other_V]).argmax()) != 2
    assert (
        DifferenceContrast(2.0, 1.0, 0.1).mix_laws(first_V, [other_V]) == -math.inf
    ).tolist() == [
        False,
        False,
        True,
    ]


def test_divergence():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    by_hand = 0.5 * (0.5 * math.log(0.5 / 0.375) + 0.25 * math.log(0.25 / 0.375)) * 2
    assert (
        jensen_shannon_divergence(p.log(), q.log())
        == pytest.approx(by_hand)
        == pytest.approx(jensen_shannon_divergence(q.log(), p.log()))
    )
    sure = torch.eye(3).log()
    assert (
        jensen_shannon_divergence(sure[0], sure[1]) == pytest.approx(math.log(2))
        and jensen_shannon_divergence(sure[0], sure[0]) == 0.0
    )


def test_more_conflict_makes_a_stronger_contrast():
    agree, conflict = torch.tensor([0.8, 0.1, 0.1]).log(), torch.tensor([0.1, 0.8, 0.1]).log()
    assert (
        jensen_shannon_divergence(agree, conflict)
        > 0.3
        > jensen_shannon_divergence(agree, torch.tensor([0.7, 0.2, 0.1]).log())
    )


def test_sureness():
    assert law_certainty(torch.zeros(50).log_softmax(0)) == pytest.approx(0.0, abs=1e-3)
    assert law_certainty(torch.eye(50)[3].log()) == 1.0 and law_certainty(torch.zeros(1)) == 1.0
    deviation = float(torch.tensor([0.7, 0.2, 0.1]).std(correction=0)) * 3 / math.sqrt(2)
    assert law_certainty(torch.tensor([0.7, 0.2, 0.1]).log()) == pytest.approx(deviation)


# SVDecode


def test_the_direction_is_the_gradient():
    g = torch.Generator().manual_seed(4)
    for _ in range(5):
        z, other_V = (
            torch.randn(6, generator=g, dtype=torch.float64) * 2,
            normalise_log_weights(torch.randn(6, generator=g).double()),
        )
        z.requires_grad_()
        p_V = torch.log_softmax(z, 0)
        (p_V.exp() * (p_V - other_V)).sum().backward()
        got_V = steering_direction(normalise_log_weights(z.detach()), other_V)
        assert (
            torch.allclose(got_V, z.grad, rtol=1e-6, atol=1e-12) and abs(float(got_V.sum())) < 1e-12
        )


def test_the_strength_is_the_best_to_second_order():
    g, rows = torch.Generator().manual_seed(7), []
    for _ in range(150):
        base_V = normalise_log_weights(torch.randn(5, generator=g, dtype=torch.float64))
        way_V = torch.randn(5, generator=g, dtype=torch.float64) * 0.3
        warm_V = normalise_log_weights(base_V + way_V)
        truth_V = normalise_log_weights(
            warm_V + 3.0 * steering_direction(warm_V, base_V)
        )  # what more tuning would give
        rows.append((warm_V, base_V, int(torch.multinomial(truth_V.exp(), 1, generator=g))))

    def loss(mu):
        return -sum(
            float(normalise_log_weights(SteeringVectorContrast(mu, 0.0).mix_laws(p, [q]))[x])
            for p, q, x in rows
        )

    found = calibrate_steering_strength(rows, 0.0)
    best = min((loss(mu / 4), mu / 4) for mu in range(24))[1]
    assert abs(found - best) < 0.2 * best + 0.25 and loss(found) < loss(0.0), (found, best)
    away = [(p, q, int((p - q).argmin())) for p, q, _ in rows]
    assert calibrate_steering_strength(away, 0.0) == 0.0, (
        "a text that goes the other way wants no steering"
    )


# DoLa


def test_dola_takes_the_layer_that_differs_most():
    target, seen = toy_law(7, 4), set()
    for text in ((0, 1), (0, 1, 2), (1, 0, 2, 2), (2, 1, 0)):

        async def score(text=text):
            return await target.open_session(text).score_draft(
                Draft.chain_draft(text[-1]), ScoreRequest(exits=(1, 2))
            )

        scores = run_coroutines([score()])[0]
        last_V, early = (
            scores.logprob_row(0),
            [scores.exit_laws(d, [0]).logprob_row(0) for d in (1, 2)],
        )
        pick = max(range(2), key=lambda i: jensen_shannon_divergence(last_V, early[i]))
        seen.add(pick)
        keep = last_V >= last_V.max() + math.log(0.1)
        want_V = torch.where(keep, last_V - early[pick], -math.inf).softmax(0)
        got = row_of(LayerContrastTarget(target, (1, 2), DifferenceContrast(1.0, 1.0, 0.1)), text)
        assert list(got.values()) == pytest.approx(want_V.tolist(), abs=1e-12)
    assert seen == {0, 1}


def test_dola_under_drafts_and_depths():
    for drafter in DRAFTERS:
        law = steered("dola", toy_law(8))
        assert text_law_distance(enumerated(law, 2, drafter), target_law(law, PROMPT, 2)) < 1e-9
    assert candidate_exit_depths(30, 2, False) == (
        2,
        4,
        6,
        8,
        10,
        12,
        14,
    ) and candidate_exit_depths(30, 2, True) == tuple(range(16, 30, 2))
    assert candidate_exit_depths(3, 2, False) == (1,) and candidate_exit_depths(2, 9, True) == (1,)
    with pytest.raises(ValueError, match="1 layer"):
        candidate_exit_depths(1, 1, False)


# what it costs, and who is in step


def cost(rule, tokens=40, drafter="none"):
    target, other = toy_law(5, 6, sharp=2.0), toy_law(6, 6, cost=0.1)
    scheduler = Scheduler()
    law = ContrastTarget(target, (other,), rule)
    task = scheduler.submit_coroutine(
        answer_one(
            SpeculativeDecoder(law, *DRAFTERS[drafter]), Request((0, 1, 0), tokens, ignore_eos=True)
        )
    )
    while scheduler.step():
        pass
    return {name: task.usage.get(m.network) for name, m in (("first", target), ("other", other))}


def test_a_closed_gate_asks_nobody_and_what_was_missed_is_fed_at_once():
    never = cost(GatedContrast(AdaptiveContrast(), 0.0))
    assert never["other"] is None and never["first"].passes == 40
    some, always = cost(GatedContrast(AdaptiveContrast(), 0.7)), cost(AdaptiveContrast())
    assert always["other"].positions == always["first"].positions
    assert (
        some["other"].passes < always["other"].passes
        and some["other"].positions <= always["other"].positions
    )


class Door:
    """A contrast whose gate is opened from outside."""

    laws, gated = 1, True

    def __init__(self):
        self.open, self.rule = False, DifferenceContrast(2.0, 1.0)

    def opens_contrast(self, logp_V):
        return self.open

    def mix_laws(self, first_V, others):
        return self.rule.mix_laws(first_V, others)


@pytest.mark.parametrize("doors", [(0, 1), (1, 0, 1), (0, 0, 1), (1, 1, 0, 1)], ids=str)
def test_branches_that_are_kept_behind_a_closed_gate(doors):
    """The others hear of them: where the gate opens later, they know the text."""
    rule, (first, second) = Door(), (toy_law(1, 5), toy_law(2, 5))
    draft = Draft.certain_tree((0, 3, 4, 2, 1), (-1, 0, 0, 1, 2))

    async def kept():
        session, text, tree = (
            ContrastTarget(first, (second,), rule).open_session(PROMPT),
            [*PROMPT],
            draft,
        )
        for rule.open in doors[:-1]:
            await session.score_draft(tree, ScoreRequest())
            tree = longer(
                session.keep_nodes((0, 2, 4), 2) if tree is draft else session.keep_nodes((0, 1), 1)
            )
            text.append(tree.token[0])
        rule.open = doors[-1]
        return text, tree, await session.score_draft(tree, ScoreRequest())

    def longer(tree):
        return Draft.certain_tree((*tree.token, 3), (*tree.parent, 0))

    text, tree, scores = run_coroutines([kept()])[0]
    rule.open = True
    for i in range(len(tree)):
        path = (*text, *(tree.token[j] for j in tree.path_to(i)))
        want = row_of(ContrastTarget(first, (second,), rule), path)
        assert scores.logprob_row(i).exp().tolist() == pytest.approx(list(want.values()), abs=1e-9)


def test_two_prompts_of_one_model_share_passes():
    target, scheduler = toy_law(5, 6), Scheduler()
    law = ContrastTarget(target, (again(target),), DifferenceContrast(2.0, 1.0))
    task = scheduler.submit_coroutine(
        answer_one(SpeculativeDecoder(law, *DRAFTERS["none"]), Request(PROMPT, 30, ignore_eos=True))
    )
    while scheduler.step():
        pass
    assert task.usage[target.network].passes <= 33 and task.usage[target.network].positions >= 60


class NotInStep(ContrastSession):
    """The others never hear what was written."""

    def commit_tokens(self, tokens):
        self._inner.commit_tokens(tokens)
        self._stage(None)


class ScoresApart(ContrastSession):
    """A branch that was not taken stays with the others."""

    def keep_nodes(self, nodes, root=0):
        draft, left = self._draft, self._inner.keep_nodes(nodes, root)
        for session in self._others:
            session.commit_tokens(draft.token[:1])
        self._draft, self._rows = left, ()
        return left


@pytest.mark.parametrize("broken", [NotInStep, ScoresApart])
def test_a_session_out_of_step_is_caught(broken, monkeypatch):
    monkeypatch.setattr("polydec.laws.targets.contrast.ContrastSession", broken)
    with pytest.raises((AssertionError, ValueError)):
        check_target(
            ContrastTarget(toy_law(1, 5), (toy_law(2, 5),), DifferenceContrast(2.0, 1.0)),
            tolerance=1e-9,
        )


def test_a_rewind_into_another_prompt_is_refused():
    session = again(toy_law(1)).open_session(PROMPT)
    session.commit_tokens((0, 1))
    session.rewind_tokens(2)
    with pytest.raises(ValueError, match="n is 1: it must lie in 0 to 0"):
        session.rewind_tokens(1)


def test_what_a_search_reads_at_temperature_0():
    law = ContrastTarget(toy_law(1), (again(toy_law(1)),), DifferenceContrast(2.0, 1.0))
    assert drop_greedy_rule(ShapedTarget(law, GreedyRule())) is law and not isinstance(
        law, SwitchTarget
    )


def test_silence_asks_the_others_nothing():
    async def silent():
        session = law.open_session(PROMPT)
        await session.score_draft(Draft.chain_draft(0, (1,)), ScoreRequest(law=RowDetail.NOTHING))
        session.commit_tokens((0, 1))
        return (await session.score_draft(Draft.chain_draft(0), ScoreRequest())).logprob_row(0)

    law = ContrastTarget(toy_law(1), (again(toy_law(1)),), DifferenceContrast(2.0, 1.0))
    assert run_coroutines([silent()])[0].exp().tolist() == pytest.approx(
        list(row_of(law, (*PROMPT, 1, 0)).values())
    )
