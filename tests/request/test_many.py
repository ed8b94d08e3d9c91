"""Thousands of requests of every kind from eight threads, some of them cancelled: nothing is lost, changed or kept."""

import gc
import random
import resource
import threading
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch

import micro
from polydec import Ask, Engine, generate, load
from polydec.methods.economics.costs import PassCosts

EACH = 2000
"""Requests of a kind."""
THREADS = 8
CANCELLED = 0.25
"""Share of the requests that are cancelled somewhere on their way."""
MOST = 12 << 20
"""Bytes that the process may grow by after its first tenth of the requests."""

PROMPTS = (
    "The grey fox and the river and the grey fox and the",
    "nobody asked",
    "The tall baker painted the boat by",
)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("many")
    lm = load(
        str(micro.write(at / "a", hidden=64)), draft=str(micro.write(at / "b", seed=1, hidden=64))
    )
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


def kinds(lm):
    """A few requests of every kind; each comes back many times."""

    def asks(i, **fields):
        return Ask(
            **{
                "prompt": PROMPTS[i % 3],
                "raw": True,
                "max_tokens": 4 + i % 5,
                "seed": i,
                "sampling": lm.sampling_with(temperature=0.0),
                **fields,
            }
        )

    warm = lm.sampling_with(temperature=0.9, top_p=0.9, repetition_penalty=1.1)
    free = lm.sampling_with(temperature=1.0)
    words = [
        word for i in range(4) for word in (generate(lm, asks(i, max_tokens=10)).text[3:6],) if word
    ]
    assert words, "there is no text to stop at"
    return {
        "plain": [asks(i) for i in range(6)],
        "drafts": [
            asks(i, method=m, sampling=free if i % 2 else None)
            for i, m in enumerate(
                (
                    "draft-model",
                    "prompt-lookup",
                    "token-recycling",
                    "draft-model",
                    "suffix-automaton",
                    "specinfer",
                )
            )
        ],
        "several answers": [asks(i, n=2 + i % 2, sampling=free) for i in range(4)],
        "beam": [
            asks(i, method="diverse-beam", options={"width": 4, "groups": 1 + i % 2}, n=1 + i % 2)
            for i in range(4)
        ],
        "sampling": [asks(i, sampling=warm) for i in range(6)],
        "stop strings": [
            asks(i, max_tokens=10, stop=words[i % len(words)], include_stop=i % 2 == 1)
            for i in range(6)
        ],
        "log-probabilities": [
            asks(i, logprobs=i % 3, sampling=warm if i % 2 else None) for i in range(6)
        ],
    }


def whole(answer):
    return [
        (
            c.text,
            c.token_ids,
            c.finish_reason,
            c.logprobs and [(t.token, round(t.logp, 4)) for t in c.logprobs],
            c.score is None or round(c.score, 4),
        )
        for c in answer.choices
    ]


def used():
    """Bytes of the process that lie in memory."""
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="there is no /proc that says how large a process is",
)
def test_thousands_of_requests_of_every_kind_from_eight_threads(lm):
    asks = kinds(lm)
    alone = {kind: [whole(generate(lm, a)) for a in some] for kind, some in asks.items()}
    work = [(kind, i) for kind, some in asks.items() for i in islice(cycle(range(len(some))), EACH)]
    random.Random(0).shuffle(work)
    engine, lock, errors, count, sizes = (
        Engine(lm, max_running=24),
        threading.Lock(),
        [],
        Counter(),
        [],
    )
    total = len(work)

    def take(n):
        with lock:
            some, work[:] = work[:n], work[n:]
            if (total - len(work)) * 10 // total >= len(sizes) + 1:
                gc.collect()
                sizes.append(used())
        return some

    def check(kind, i, ticket, cancelled):
        answer, want = ticket.completion(), alone[kind][i]
        if not cancelled or all(c.finish_reason != "abort" for c in answer.choices):
            assert whole(answer) == want, f"{kind} {i}: {whole(answer)} is not {want}"
            return "answered"
        for c, (_, tokens, *_) in zip(answer.choices, want, strict=True):
            assert c.token_ids == tokens[: len(c.token_ids)], (
                f"{kind} {i}, cancelled: {c.token_ids} does not begin {tokens}"
            )
        return "cancelled"

    def run(number):
        dice = random.Random(number)
        try:
            while not errors and (some := take(dice.randint(1, 4))):
                tickets = [(kind, i, engine.submit(asks[kind][i])) for kind, i in some]
                gone = [t for _, _, t in tickets if dice.random() < CANCELLED]
                for t in gone:
                    for _ in range(dice.randrange(3)):
                        engine.step()
                    engine.cancel(t)
                engine.run([t for _, _, t in tickets if t not in gone])
                for kind, i, t in tickets:
                    how = check(kind, i, t, t in gone)
                    with lock:
                        count[kind, how] += 1
        except BaseException as error:  # what a thread meets is told to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]
    assert {
        kind: count[kind, "answered"] + count[kind, "cancelled"] for kind in asks
    } == dict.fromkeys(asks, EACH)
    assert min(count[kind, "cancelled"] for kind in asks) > EACH // 50, (
        f"few were cancelled in time: {count}"
    )
    assert (
        not lm.checkpoint.lm.live
        and not lm.draft.lm.live
        and not engine._running
        and not engine.step()
    )
    assert sizes[-1] - sizes[0] < MOST, (
        f"{sizes[-1] - sizes[0]} bytes more after the first tenth: {sizes}"
    )
