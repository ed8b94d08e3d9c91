"""A router that reads the text: what it learns from, and that decoding with it is the loop of its card."""

import json
import math
import random

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.lab.train import problems
from polydec.lab.train.auc import roc_auc
from polydec.lab.train.probe import train_probe
from polydec.lab.train.probes import text_router as training
from polydec.lab.train.probes.text_router import (
    TextRouterExample,
    TextRouterSpec,
    balance_router_examples,
    build_step_checker,
)
from polydec.lab.train.spearman import spearman_correlation
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.search.loop.arbiters import ReadingArbiter
from polydec.methods.search.loop.arbitrage import ArbitrageSearch, StepReader
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import text_router
from polydec.models.sessions import checkpoint
from rewards import ByToken

PROMPT = (0, 1, 0)


def plain(law):
    return SpeculativeDecoder(law, NothingDrafter(), MatchVerifier(), FixedPolicy(0))


def fresh(law, text, want):
    return run_coroutines([law.open_session(text).score_draft(Draft.chain_draft(text[-1]), want)])[
        0
    ]


def reference(target, draft, reader, chance, longest, most, rng):
    """The card's loop, every model from scratch at every token: marks 4 and 5 stand before the steps."""
    text, read, called, routed = (), (), 0, 0
    while len(text) < most and not (text and text[-1] in target.vocab.eos):

        def step(law, stream, text=text):
            new = ()
            while (
                len(new) < longest
                and len(text) + len(new) < most
                and not (new and new[-1] in target.vocab.eos)
            ):
                at, whole = len(PROMPT) + len(text) + len(new), (*PROMPT, *text, *new)
                row = fresh(law, whole, ScoreRequest()).logprob_row(0)
                new += (stream.child_stream("token", at).draw_categorical(row.exp().double()),)
            return new

        drafted = step(draft, rng.child_stream("draft", len(text)))
        whole = (*PROMPT, *read, 4, *drafted)
        mine = chance(fresh(reader, whole, ScoreRequest(hidden=True)).hidden_NH[0]) >= 0.5
        stands = step(target, rng) if mine else drafted
        text, read = text + stands, (*read, 5 if mine else 4, *stands)
        called += mine
        routed += 1 + len(drafted) + (1 + len(stands) if mine else 0)
        last = 1 + len(stands) if mine else 0
    return text, called, routed - last  # what the last step of the target's was, nobody reads


def test_it_is_the_loop_of_its_card():
    """Whoever wrote a step, the reader has read each once, behind the mark of its author."""
    texts, mixed = set(), 0
    for seed in range(16):
        eos = -1 if seed % 3 == 0 else 2
        target, draft = (toy_law(s, 4, sharp=0.7, eos=eos) for s in (seed, seed + 100))
        reader, router, longest = (
            toy_law(seed + 200, 6, sharp=0.7, eos=-1),
            ByToken(seed),
            1 + seed % 3,
        )
        decoder = ArbitrageSearch(
            *map(plain, (target, draft)),
            ReadingArbiter(router, 0.5),
            "|",
            longest,
            StepReader(plain(reader), 4, 5, 1000),
        )
        got = run_coroutines([answer_one(decoder, Request(PROMPT, 9, seed=seed))])[0]
        text, called, routed = reference(
            target, draft, reader, router.success_chance, longest, 9, Rng.of_choice(seed)
        )
        assert (got.token_ids, got.stats.called, got.stats.routed) == (text, called, routed)
        assert got.stats.metrics()["tokens_routed"] == routed
        texts.add(text)
        mixed += 0 < called < got.stats.steps
    assert len(texts) > 8 and mixed > 4


def test_where_the_text_is_longer_than_it_can_read_the_target_writes():
    def called(context):
        reader = StepReader(plain(toy_law(9, 6, eos=-1)), 4, 5, context)
        never = ReadingArbiter(ByToken(1), 1.0)
        decoder = ArbitrageSearch(
            *map(plain, (toy_law(1, 4, eos=-1), toy_law(2, 4, eos=-1))), never, "|", 2, reader
        )
        stats = run_coroutines([answer_one(decoder, Request(PROMPT, 8))])[0].stats
        return stats.called, stats.steps

    assert called(1000) == (0, 4)
    assert called(len(PROMPT) + 2 * 3) == (2, 4)  # two steps of two tokens and their marks
    alone = ArbitrageSearch(*map(plain, (toy_law(1), toy_law(2))), ReadingArbiter(ByToken(1), 0.5))
    with pytest.raises(ValueError, match="asks a reader, and there is none"):
        run_coroutines([answer_one(alone, Request(PROMPT, 8))])


def test_a_method_takes_it_in_place_of_a_router_on_states(tmp_path):
    target, draft = toy_law(1), toy_law(2)
    made = text_router.examples(target.vocab, 4, 4)[0]
    text_router.save(tmp_path, made, {})
    again = text_router.load(tmp_path)
    assert again.sizes == made.sizes and all(
        torch.equal(again.tensors[n], t) for n, t in made.tensors.items()
    )
    for tau in ("0", "0.5", "2"):
        answers = [
            run_coroutines(
                [
                    answer_one(
                        registry.build("arbitrage", Kit(target, draft, (one,)), {"tau": tau})[0],
                        Request(PROMPT, 12),
                    )
                ]
            )[0]
            for one in (made, again)
        ]
        assert answers[0].token_ids == answers[1].token_ids and answers[0].stats.routed > 0
    with pytest.raises(ValueError, match="vocabulary"):
        registry.build("arbitrage", Kit(toy_law(1, 7), toy_law(2, 7), (made,)))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "heads": 3}))
    with pytest.raises(ValueError, match="width must be an even multiple of heads"):
        text_router.load(tmp_path)


def test_classes_are_cut_to_one_size():
    lessons = [TextRouterExample((i,), i, 0.5, 1.0 if i % 5 == 0 else 0.2) for i in range(50)]
    cut = balance_router_examples(lessons, 0)
    assert len(cut) == len(set(cut)) == 20 and sum(x.better for x in cut) == 10
    assert {x for x in lessons if x.better} <= set(cut)
    assert balance_router_examples(lessons, 0) == cut != balance_router_examples(lessons, 1)
    assert balance_router_examples([x for x in lessons if x.better], 0) == []


def test_a_checker_values_steps():
    text = checkpoint.load_bundle("zoo:reasoner").text
    problem = problems.ReasoningProblem("chain", "2+7*3", ("2+7=9", "9*3=27"), "27")
    worth = build_step_checker(problem, text, frozenset((1,)))

    def ids(line):
        return text.encode(line, special=False)

    assert worth((), ids("2+7=9\n")) == 1.0 and worth((), ids("2+7=8\n")) == 0.0
    assert (
        worth(ids("2+7=9\n"), ids("9*3=2")) == 1.0 and worth(ids("2+7=8\n"), ids("9*3=27")) == 0.0
    )
    assert worth(ids("2+7=9\n"), (1,)) == 0.0  # it ends too early
    assert worth(ids("2+7=9\n9*3=27\n"), (*ids("=27"), 1)) == 1.0


def test_it_is_trained_and_what_it_learns_from_is_kept(tmp_path):
    def spec(out, **more):
        how = {"kinds": ("make", "order"), "each": 16, "steps": 6, "rows": 4, **more}
        return TextRouterSpec(str(tmp_path / out), "zoo:reasoner", **{"temperature": 1.5, **how})

    result = train_probe(spec("a"))
    made, lessons = text_router.load(tmp_path / "a"), tmp_path / "a" / "lessons.json"
    assert result["steps_learned"] % 2 == 0 and 0 < result["steps_learned"] < result["steps_seen"]
    kept = json.loads(lessons.read_text())["lessons"]
    small, big = made.marks
    texts = [row[0] for row in kept]
    assert all(small in text and max(text) <= big for text in texts)
    assert any(big in text for text in texts)  # a step of the target's stood before another one
    (tmp_path / "b").mkdir()
    for file in ("lessons.json", "held.json"):
        (tmp_path / "b" / file).write_bytes((tmp_path / "a" / file).read_bytes())
    train_probe(spec("b"))
    other = text_router.load(tmp_path / "b").tensors
    assert all(torch.equal(other[name], t) for name, t in made.tensors.items())
    # what decodes with it says what was trained: state and chance of a text that was kept
    text = tuple(kept[-1][0])
    with torch.no_grad():
        net = training.start_text_router(spec("a"), made.vocab.size)
        net.network.load_state_dict(made.tensors)
        net.head.load_state_dict(
            dict(zip(net.head.state_dict(), (*made.head.inner, *made.head.out), strict=True))
        )
        want = net.step_logits(
            *training.pad_router_texts(
                [TextRouterExample(text, 0, 0.0, 0.0), TextRouterExample((*text, 3), 0, 0.0, 0.0)]
            )
        )
    state_H = fresh(made.law, text, ScoreRequest(hidden=True)).hidden_NH[0]
    assert made.success_chance(state_H) == pytest.approx(float(want[0].sigmoid()), abs=1e-4)
    for bad, message in (
        ({"each": 1, "kinds": ("order",)}, "each is 1: among so many problems"),
        ({"temperature": 0.9}, "gathered for another training"),
    ):
        with pytest.raises(ValueError, match=message):
            train_probe(spec("c" if "each" in bad else "a", **bad))


def test_area_counts_ties_half():
    assert roc_auc(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([True, False, True])) == 0.25
    assert roc_auc(torch.tensor([3.0, 2.0]), torch.tensor([True, False])) == 1.0
    assert roc_auc(torch.tensor([1.0, 2.0]), torch.tensor([True, True])) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_rank_correlation_by_its_definition(seed):
    """Ranks counted one by one, equal ones sharing their mean; the correlation from sums."""
    dice = random.Random(seed)
    a, b = ([dice.randint(0, 4) for _ in range(9)] for _ in range(2))

    def ranks(values):
        return [sum(y < x for y in values) + (sum(y == x for y in values) - 1) / 2 for x in values]

    def centred(values):
        return [x - sum(values) / len(values) for x in values]

    x, y = centred(ranks(a)), centred(ranks(b))
    want = sum(p * q for p, q in zip(x, y)) / math.sqrt(
        sum(p * p for p in x) * sum(q * q for q in y)
    )
    assert spearman_correlation(torch.tensor(a), torch.tensor(b)) == pytest.approx(want, abs=1e-4)
    assert spearman_correlation(torch.tensor(a), torch.tensor(a)) == 1.0
    assert spearman_correlation(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0])) is None
