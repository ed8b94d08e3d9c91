"""Diverse beam search: brute force, groups, the stopping rules, streaming, n-best, transformers' beam search."""

import math
from dataclasses import replace

import pytest
import torch

import micro
from polydec import api
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.trace import EditedEvent
from polydec.lab.testing.enumerate import target_law
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.presence import PresencePenaltyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.targets.search_target import drop_greedy_rule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
from polydec.methods.search.loop.ranking import LengthRanking
from search_reference import groups_of_texts, ranked

PROMPT = (0, 1, 0)


def found(decoder, length, n=1, **request):
    return run_coroutines(
        [run_decoder(decoder, Request(PROMPT, length, n=n, logprobs=0, **request))]
    )[0]


def texts(decoder, length, n=1):
    """The n best texts and their scores."""
    return [(r.token_ids, r.score) for r in found(decoder, length, n)]


def brute(target, length, alpha, shapers=()):
    """Every text by score, best first."""
    law = target_law(target, PROMPT, length, shapers)
    return sorted(((math.log(p) / len(x) ** alpha, x) for x, p in law.items()), reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, 0.6])
@pytest.mark.parametrize(("size", "length"), [(2, 6), (3, 3), (4, 3)])
def test_a_search_as_wide_as_all_texts_finds_the_best(size, length, alpha):
    for seed in range(6):
        target = toy_law(seed, size)
        want = brute(target, length, alpha)
        got = texts(
            DiverseBeamSearch(target, size**length, 1, ranking=LengthRanking(alpha)), length, 5
        )
        for (x, score), (best, y) in zip(got, want):
            assert x == y and abs(score - best) < 1e-9


def test_penalties_bend_what_is_searched_and_temperature_0_is_no_law_of_one_text():
    shapers = (RepetitionPenaltyRule(1.3), PresencePenaltyRule(0.4))
    for seed in range(4):
        target = toy_law(seed, 3)
        want = [x for _, x in brute(target, 3, 1.0, shapers)[:5]]
        bent = drop_greedy_rule(ShapedTarget(target, *shapers, GreedyRule()))
        assert [x for x, _ in texts(DiverseBeamSearch(bent, 27, 1), 3, 5)] == want


def test_a_law_with_chance_is_searched_as_it_is():
    bare, bent = toy_law(1), ShapedTarget(toy_law(1), PresencePenaltyRule(0.4))
    assert (
        drop_greedy_rule(bare) is bare
        and drop_greedy_rule(bent) is bent
        and drop_greedy_rule(ShapedTarget(bare, GreedyRule())) is bare
    )


@pytest.mark.parametrize(
    ("width", "groups", "strength"),
    [(4, 2, 0.5), (6, 3, 1.0), (6, 6, 0.5), (4, 1, 0.5), (6, 2, 20.0)],
)
def test_it_is_what_the_card_says(width, groups, strength):
    for seed in range(8):
        target = toy_law(seed, 6)
        for alpha in (0.0, 1.0):
            want = ranked(groups_of_texts(target, 7, width, groups, strength, alpha))
            got = texts(
                DiverseBeamSearch(target, width, groups, strength, LengthRanking(alpha)),
                7,
                len(want),
            )
            assert [x for x, _ in got] == [x for _, x in want]
            assert all(abs(a - b) < 1e-9 for (_, a), (b, _) in zip(got, want))


def test_no_charge_makes_every_group_the_same_search():
    for seed in range(5):
        target = toy_law(seed, 5)
        one = texts(DiverseBeamSearch(target, 2, 1), 8, 2)
        three = texts(DiverseBeamSearch(target, 6, 3, 0.0), 8, 6)
        assert three == [one[0], *one[1:] * 5]  # two differ, and the last stands for the rest


def test_equal_texts_of_several_groups_are_scored_once():
    fed = []
    for groups in (1, 3):
        target = toy_law(2, 5, eos=-1)
        found(DiverseBeamSearch(target, 2 * groups, groups, 0.0), 8)
        fed.append(target.network.runs)
    assert fed[0] == fed[1]


def test_a_large_charge_parts_the_groups_at_once():
    got = [x[0] for x, _ in texts(DiverseBeamSearch(toy_law(3, 8), 6, 6, 100.0), 6, 6)]
    assert len(set(got)) == 6


def test_width_one_is_greedy():
    for seed in range(8):
        law = toy_law(seed, 6)
        want = run_coroutines(
            [run_decoder(build("plain", ShapedTarget(law, GreedyRule()))[0], Request(PROMPT, 20))]
        )[0][0].token_ids
        for early in (True, False):
            assert (
                texts(DiverseBeamSearch(law, 1, 1, ranking=LengthRanking(early=early)), 20)[0][0]
                == want
            )


def test_what_is_given_out_early_stands():
    early = 0
    for seed in range(20):
        target, events = toy_law(seed, 5, sharp=2.0), []
        out = run_coroutines(
            [run_decoder(DiverseBeamSearch(target, 3, 1), Request(PROMPT, 20), events.append)]
        )[0][0]
        edits = [e for e in events if isinstance(e, EditedEvent)]
        assert tuple(x for e in edits for _, x in e.edit.write) == out.token_ids
        early += sum(len(e.edit.write) for e in edits[:-1])
    assert early > 20


def test_passes_are_few_and_prefixes_are_fed_once():
    target, scheduler = toy_law(1, 6, eos=-1), Scheduler()
    task = scheduler.submit_coroutine(
        run_decoder(DiverseBeamSearch(target, 6, 3), Request((0, 1, 2, 3, 4), 10))
    )
    while scheduler.step():
        pass
    use, stats = task.usage[target.network], task.result[0].stats
    assert (
        stats.passes == 10
        and use.passes <= 10 + 2
        and use.positions == 4 + stats.scored <= 5 + 9 * 6
    )


def test_the_answers_share_one_search():
    target = toy_law(1, 6)
    one, three = (found(DiverseBeamSearch(target, 6, 3), 10, n) for n in (1, 3))
    assert [r.stats.passes for r in three] == [one[0].stats.passes] * 3
    total = three[0].stats.plus_stats(three[1].stats).plus_stats(three[2].stats)
    assert replace(total, passes=0, first=0) == replace(one[0].stats, passes=0, first=0)
    assert total.metrics() == {
        "tokens_scored": total.scored,
        "texts_ended": total.ended,
        "tokens_written": total.written,
        "texts_judged": 0,
    }


def test_groups_must_divide_the_width():
    with pytest.raises(
        ValueError, match="groups is 3: it must be at least 1 and divide width, which is 4"
    ):
        build("diverse-beam", toy_law(1), None, {"width": 4, "groups": 3})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return micro.write(tmp_path_factory.mktemp("micro"), hidden=64)  # the compiled step serves it


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize(
    ("early", "theirs"), [(True, True), (False, False), (None, "never")], ids=str
)
@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5])
def test_texts_and_scores_of_transformers(tiny, dtype, early, theirs, alpha):
    transformers = pytest.importorskip("transformers")
    net = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    lm = api.load(str(tiny), draft=None, dtype=dtype)
    bias = {1: 6.0}  # ends often enough to matter
    for prompt in ("The grey fox", "nobody asked why the old river"):
        ids = lm.encode_prompt(prompt, raw=True)
        out = net.generate(
            torch.tensor([ids]),
            num_beams=4,
            num_return_sequences=4,
            do_sample=False,
            max_new_tokens=12,
            early_stopping=theirs,
            length_penalty=alpha,
            output_scores=True,
            return_dict_in_generate=True,
            pad_token_id=1,
            eos_token_id=1,
            sequence_bias={(k,): v for k, v in bias.items()},
            renormalize_logits=True,
        )
        want = []
        for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist()):
            row = row[len(ids) :]
            want.append((tuple(row[: row.index(1) + 1] if 1 in row else row), score))
        got = api.generate(
            lm,
            prompt,
            raw=True,
            method="beam",
            max_tokens=12,
            n=4,
            sampling=lm.sampling_with(temperature=0.0, logit_bias=bias),
            options={"width": 4, "length_penalty": alpha, "early": early},
        ).choices
        assert [c.token_ids for c in got] == [x for x, _ in want]
        assert all(abs(c.score - b) < 2e-4 for c, (_, b) in zip(got, want))


def test_a_batch_says_what_singles_say(tiny):
    lm = api.load(str(tiny), draft=None)
    asks = [
        {"method": "diverse-beam", "options": {"width": 6, "groups": 3}, "n": 2},
        {"method": "plain"},
        {"method": "beam", "options": {"width": 4}, "stop": ("fox",)},
        {"method": "prompt-lookup"},
        {
            "method": "diverse-beam",
            "sampling": lm.sampling_with(temperature=0.7, repetition_penalty=1.2),
            "logprobs": 2,
        },
    ]

    def submit(engine, i):
        return engine.submit(f"The grey fox {i} and the grey", max_tokens=16, raw=True, **asks[i])

    alone = []
    for i in range(len(asks)):
        engine = api.Engine(lm)
        alone.append([(c.text, c.token_ids) for c in engine.run([submit(engine, i)])[0].choices])
    engine = api.Engine(lm)
    together = engine.run([submit(engine, i) for i in range(len(asks))])
    assert [[(c.text, c.token_ids) for c in a.choices] for a in together] == alone


def test_stop_strings_max_tokens_and_metrics(tiny):
    lm = api.load(str(tiny), draft=None)
    ask = {
        "method": "diverse-beam",
        "options": {"width": 4, "groups": 2},
        "raw": True,
        "max_tokens": 16,
        "ignore_eos": True,
    }
    free = api.generate(lm, "The grey fox", **ask)
    assert free.finish_reason == "length" and len(free.token_ids) == 16
    stop = free.text[3:6]
    cut = api.generate(lm, "The grey fox", stop=stop, **ask)
    assert stop not in cut.text and cut.finish_reason in ("stop", "length")
    m = free.metrics
    assert m["target_passes"] == 16 and m["tokens_per_second"] > 0 and m["tokens_per_pass"] == 1.0
    assert (
        m["time_to_first_token"] <= m["seconds"]
        and m["positions_fed"] >= 16
        and m["tokens_scored"] <= 1 + 15 * 4
    )
    assert free.to_json()["choices"][0]["score"] == free.choices[0].score < 0
    pieces = list(api.stream(lm, "The grey fox", **ask))
    assert "".join(p.text for p in pieces) == free.text


def test_more_texts_than_beams_are_refused(tiny):
    lm = api.load(str(tiny), draft=None)
    with pytest.raises(ValueError, match="n is 5: a search of width 4 gives at most 4 texts"):
        api.generate(lm, "The grey fox", method="beam", options={"width": 4}, n=5)


def test_a_cancelled_search_gives_what_was_certain(tiny):
    lm = api.load(str(tiny), draft=None)
    ask = {
        "method": "beam",
        "options": {"width": 2},
        "raw": True,
        "max_tokens": 40,
        "ignore_eos": True,
    }
    engine = api.Engine(lm)
    ticket = engine.submit("The grey fox", **ask)
    for _ in range(30):
        engine.step()
    engine.cancel(ticket)
    engine.step()
    some, whole = ticket.completion(), api.generate(lm, "The grey fox", **ask)
    assert some.finish_reason == "abort" and whole.text.startswith(some.text) and some.text
    assert not lm.checkpoint.lm.live


def test_long_searches_keep_no_laws(tiny):
    """The laws of texts that were scored are given back: only states stay with the tree."""
    lm = api.load(str(tiny), draft=None)
    engine = api.Engine(lm)
    ticket = engine.submit(
        "The grey fox",
        method="beam",
        options={"width": 8},
        raw=True,
        max_tokens=40,
        ignore_eos=True,
    )
    laws = []
    while engine.step():
        for session in lm.checkpoint.lm.live:
            laws.append(
                sum(
                    len(a.logits_RV)
                    for some in session.ledger.scored.answers.values()
                    for _, a in some
                    if a.logits_RV is not None
                )
            )
    assert ticket.done and max(laws) <= 8
