"""Many requests at once: limits, preemption, threads, interrupts, memory. No text depends on any of it."""

import gc
import random
import threading
import tracemalloc
from dataclasses import replace
from itertools import product

import pytest
import torch

import micro
from polydec import Ask, Engine, generate, load
from polydec.core.decoder import answer_one
from polydec.core.protocols import of_choice
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent, FinishedEvent
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts

METHODS = (
    "plain",
    "prompt-lookup",
    "draft-model",
    "pearl",
    "layerskip",
    "token-recycling",
    "specmquant",
    "del",
    "auto",
)
PROMPTS = ("The grey fox and the river and the grey fox and the", "nobody asked")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("engine")
    lm = load(
        str(micro.write(at / "a", hidden=64)), draft=str(micro.write(at / "b", seed=1, hidden=64))
    )
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


@pytest.fixture(scope="module")
def asks(lm):
    return [
        Ask(
            p,
            method=m,
            raw=True,
            max_tokens=16,
            seed=i,
            n=1 + i % 3,
            logprobs=1 if i % 4 == 0 else None,
            sampling=lm.sampling_with(temperature=0.8 * (i % 2), repetition_penalty=1.1),
        )
        for i, (m, p) in enumerate(product(METHODS, PROMPTS))
    ]


@pytest.fixture(scope="module")
def alone(lm, asks):
    return [texts(generate(lm, a)) for a in asks]


def texts(answer):
    return [c.token_ids for c in answer.choices]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_running": 1},
        pytest.param({"max_running": 4}, marks=pytest.mark.slow),
        {"max_positions": 1},
        {"max_positions": 7, "max_running": 3},
        {"max_cache_bytes": 1},
        {"max_cache_bytes": 400_000, "max_running": 6},
    ],
    ids=str,
)
def test_no_text_depends_on_a_limit(lm, asks, alone, limits):
    engine = Engine(lm, **limits)
    assert [texts(a) for a in engine.run([engine.submit(a) for a in asks])] == alone
    if "max_cache_bytes" in limits:
        assert engine.preempted > 3


@pytest.mark.parametrize("method", ["plain", "prompt-lookup"])
def test_long_prompts_fill_the_passes_of_others(lm, method, monkeypatch):
    """They are fed in parts: no pass is larger than the budget, the text that is being written goes on in every pass, and all
    texts are those of each alone."""
    long = PROMPTS[0] * 3
    asks = [
        Ask(p, method=method, raw=True, max_tokens=12, ignore_eos=True)
        for p in ("nobody", long, long[9:])
    ]
    want = [texts(generate(lm, a)) for a in asks]
    sizes, forward = [], type(lm.network).forward
    monkeypatch.setattr(
        type(lm.network),
        "forward",
        lambda self, queries: (sizes.append([len(q) for q in queries]), forward(self, queries))[1],
    )
    engine = Engine(lm, max_positions=24)
    assert [texts(a) for a in engine.run([engine.submit(a) for a in asks])] == want
    assert max(map(sum, sizes)) <= 24 and sum(sum(s) == 24 for s in sizes) >= 3
    assert any(1 in s and max(s) > 8 for s in sizes)


@pytest.mark.parametrize(
    "method", ["specinfer", "eagle-2-tree", "draft-model-coupled-tree", "rsd-s", "dyspec"]
)
def test_a_prompt_that_is_split_in_front_of_a_tree(method, tmp_path_factory):
    """The first round feeds the prompt with a draft behind it. A part that ends before the prompt does sees no draft."""
    at = tmp_path_factory.mktemp("tree")
    lm = load(
        str(micro.write(at / "a", hidden=64)),
        draft=str(micro.write(at / "b", seed=1, hidden=64)),
        dtype="float32",
    )
    vars(lm)["costs"] = PassCosts()
    rng = random.Random(0)
    asks = [
        Ask(tuple(rng.randrange(3, 200) for _ in range(n)), method=method, max_tokens=10, seed=n)
        for n in (44, 61)
    ]
    want = [texts(generate(lm, a)) for a in asks]
    for most in (40, 43, 44, 17):
        engine = Engine(lm, max_positions=most)
        assert [texts(a) for a in engine.run([engine.submit(a) for a in asks])] == want, most


def test_a_request_on_hold_holds_no_cache_and_can_be_cancelled(lm, asks):
    engine = Engine(lm, max_cache_bytes=1)
    tickets = [engine.submit(a) for a in asks[:6]]
    while not engine._held:
        assert engine.step()
    held = engine._held[0]
    assert all(s.ledger.cache.length == 0 for s in lm.checkpoint.lm.live if s.owner is held.task)
    engine.cancel(held)
    done = engine.run(tickets)
    assert done[tickets.index(held)].finish_reason == "abort"
    assert not lm.checkpoint.lm.live


def test_passes_are_as_large_as_they_may_be(lm, asks, monkeypatch):
    sizes, forward = [], type(lm.network).forward
    monkeypatch.setattr(
        type(lm.network),
        "forward",
        lambda self, queries: (
            sizes.append((len(queries), sum(map(len, queries)))) or forward(self, queries)
        ),
    )
    engine = Engine(lm, max_positions=20)
    engine.run([engine.submit(a) for a in asks])
    assert all(rows <= 20 or count == 1 for count, rows in sizes) and any(
        count > 3 for count, _ in sizes
    )


@pytest.mark.parametrize("n, most", [((1,) * 5, 3), ((2, 2, 1, 1), 4), ((1, 3, 1), 3), ((4, 1), 2)])
def test_as_many_answers_are_written_at_once_as_may_be(lm, n, most):
    """First come first served: a request begins as soon as its answers fit beside those before it."""
    engine, ended = Engine(lm, max_running=most), 0
    ask = Ask("The fox", raw=True, method="plain", max_tokens=5, ignore_eos=True)
    tickets = [engine.submit(replace(ask, n=k)) for k in n]
    while engine.step():
        begun = [t.task is not None for t in tickets]
        assert begun == sorted(begun, reverse=True)
        running = sum(k for k, t in zip(n, tickets) if t.task is not None and not t.done)
        assert running <= most or running in n, "more than may be, and not one alone"
        before, ended = ended, sum(t.done for t in tickets)
        if before == ended and not all(begun):
            assert running + n[begun.index(False)] > most, "the next one would have fitted"
    assert all(t.done for t in tickets)


def test_requests_on_hold_go_on_in_their_order(lm):
    """Where memory is short the youngest are put on hold; whoever came first is served first all the same."""
    ended, engine = [], Engine(lm, max_cache_bytes=1)

    def note(number):
        return lambda event: ended.append(number) if isinstance(event, FinishedEvent) else None

    ask = Ask(PROMPTS[0], method="plain", raw=True, max_tokens=12, ignore_eos=True)
    engine.run([engine.submit(replace(ask, seed=i), on=note(i)) for i in range(6)])
    assert engine.preempted >= 5 and ended == list(range(6))


def test_eight_threads(lm, asks, alone):
    engine, out, errors = Engine(lm, max_running=5), {}, []

    def work(k):
        try:
            for i in range(k, len(asks), 8):
                out[i] = texts(engine.run([engine.submit(asks[i])])[0])
        except BaseException as error:  # what a thread meets is told to the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and [out[i] for i in range(len(asks))] == alone
    assert not engine._running and not engine._waiting and not engine.step()


def test_a_foreign_ticket_is_refused(lm, asks):
    one, other = Engine(lm), Engine(lm)
    ticket = one.submit(asks[0])
    for call in (lambda: other.run([ticket]), lambda: other.cancel(ticket)):
        with pytest.raises(ValueError, match="the ticket belongs to another engine"):
            call()
    assert one.run([ticket])[0].text is not None


@pytest.mark.parametrize("at", [0, 3, 11])
def test_an_interrupt_inside_a_pass_loses_nothing(lm, asks, alone, at, monkeypatch):
    calls, forward = [], type(lm.network).forward

    def interrupted(self, queries):
        calls.append(1)
        if len(calls) == at + 1:
            raise KeyboardInterrupt
        return forward(self, queries)

    monkeypatch.setattr(type(lm.network), "forward", interrupted)
    engine = Engine(lm)
    tickets = [engine.submit(a) for a in asks]
    with pytest.raises(KeyboardInterrupt):
        engine.run(tickets)
    assert [texts(a) for a in engine.run(tickets)] == alone


def test_the_choices_of_a_request_share_its_prompt(lm):
    prompt = [5 + i % 40 for i in range(218)]
    ask = Ask(
        prompt,
        n=8,
        max_tokens=8,
        ignore_eos=True,
        sampling=lm.sampling_with(temperature=0.8, xtc_probability=0.5),
        seed=3,
    )
    together = generate(lm, ask)
    assert together.metrics["positions_fed"] <= 300 and len(set(texts(together))) > 4
    apart = []
    for choice in range(8):  # each as it is where the prompt is fed for it alone
        engine = Engine(lm)
        ticket = engine.submit(ask)
        decoder, request = ticket.plan.decoder, ticket.plan.request
        law = ShapedTarget(
            decoder.target.target, *(of_choice(s, choice) for s in decoder.target.shapers)
        )
        apart.append(
            run_coroutines(
                [answer_one(replace(decoder, target=law), replace(request, n=1, choice=choice))]
            )[0].token_ids
        )
    assert texts(together) == apart


def test_a_refusal_leaves_nothing_running(lm):
    engine = Engine(lm)
    for wrong in (
        {"n": 0},
        {"n": True},
        {"n": 10**9},
        {"logprobs": 1.5},
        {"seed": "x"},
        {"max_tokens": 0},
        {"stop": 3},
        {"stop": [""]},
        {"stop_token_ids": [-1]},
        {"method": "nope"},
        {"options": {"x": 1}},
        {"order": "x"},
        {"options": 3},
        {"method": 4},
        {"raw": "maybe"},
    ):
        with pytest.raises(ValueError) as error:
            engine.submit("The fox", **wrong)
        assert len(str(error.value)) <= 300 and next(iter(wrong)).rstrip("s") in str(error.value)
    with pytest.raises(TypeError):
        engine.submit("The fox", unknown=3)
    assert not engine.step()


def test_observers_drain_and_are_told_in_order(lm, asks):
    events, engine = [], Engine(lm)
    ticket = engine.submit(asks[2], on=events.append)
    pieces = []
    while not ticket.done:
        engine.step()
        pieces += ticket.watch.final_pieces()
        assert not ticket.watch.edits
    for choice, answer in enumerate(ticket.completion().choices):
        assert [p.token for p in pieces if p.choice == choice] == list(answer.token_ids)
        assert "".join(p.text for p in pieces if p.choice == choice) == answer.text
        mine = [e for e in events if e.choice == choice]
        assert isinstance(mine[-1], FinishedEvent) and [
            x for e in mine if isinstance(e, EditedEvent) for x in e.tokens
        ] == list(answer.token_ids)


def test_memory_is_flat_over_many_requests_with_cancels(lm, asks):
    engine, dice = Engine(lm, max_running=8), random.Random(0)
    asks = [replace(ask, max_tokens=6) for ask in asks]

    def some(count):
        for _ in range(count):
            tickets = [engine.submit(dice.choice(asks)) for _ in range(3)]
            for _ in range(dice.randrange(12)):
                engine.step()
            engine.cancel(dice.choice(tickets))
            engine.run([t for t in tickets if not t.cancelled])

    some(5)
    gc.collect()
    tracemalloc.start()
    some(2)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    some(10)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 200_000, f"{after - before} bytes more after 30 requests"
    assert not lm.checkpoint.lm.live and not engine._running
