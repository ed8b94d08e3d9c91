"""Requests that are awaited: shared passes, cancelled tasks, closed loops, errors. No text depends on any of it."""

import asyncio
import gc
import threading

import pytest
import torch

import micro
from polydec import AsyncEngine, Engine, RequestError, agenerate, astream, generate, load
from polydec.methods.economics.costs import PassCosts

FIELDS = {"raw": True, "max_tokens": 16, "ignore_eos": True, "method": "plain"}
LONG = FIELDS | {"max_tokens": 180}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    loaded = load(str(micro.write(tmp_path_factory.mktemp("awaited"))))
    vars(loaded)["costs"] = PassCosts()  # instead of measuring
    return loaded


@pytest.fixture
def engine(lm):
    """One whose thread has ended with its last request, and whose caches are given back."""
    made = AsyncEngine(lm)
    yield made
    thread = made._thread
    if thread is not None:
        thread.join(60)
    assert made._thread is None and not made._going and not made._orders
    assert made.engine.cached == 0 and not made.engine._running


class Gate:
    """What passes must get through. `allowed` has a permit for each pass that may run while it is shut."""

    def __init__(self):
        self.shut = False
        self.allowed = threading.Semaphore(0)
        self.queries = []

    def open(self):
        self.shut = False
        self.allowed.release(10_000)


@pytest.fixture
def gate(lm, monkeypatch):
    """Tests say how far the engine gets before something happens: no text is complete by chance."""
    made, forward = Gate(), type(lm.network).forward

    def pass_through(self, group):
        if made.shut:
            assert made.allowed.acquire(timeout=60)
        made.queries.append(len(group))
        return forward(self, group)

    monkeypatch.setattr(type(lm.network), "forward", pass_through)
    yield made
    made.open()


async def pieces_of(iterator):
    return [piece async for piece in iterator]


def test_sixteen_tasks_share_passes_and_each_has_its_own_text(lm, engine, gate):
    asked = [{"seed": i, "temperature": 0.9, **FIELDS} for i in range(16)]
    alone = [generate(lm, "The grey fox", **fields).token_ids for fields in asked]
    gate.queries.clear()
    gate.shut = True

    async def run_all():
        whole = [engine.generate("The grey fox", **fields) for fields in asked[::2]]
        parts = [pieces_of(engine.stream("The grey fox", **fields)) for fields in asked[1::2]]
        tasks = [asyncio.ensure_future(one) for one in (*whole, *parts)]
        # Each has asked behind this, and the first pass waits at the gate.
        await asyncio.sleep(0)
        gate.open()
        return await asyncio.gather(*tasks)

    done = asyncio.run(run_all())
    assert [a.token_ids for a in done[:8]] == alone[::2]
    assert [tuple(p.token for p in parts) for parts in done[8:]] == alone[1::2]
    assert max(gate.queries) == 16 and len(gate.queries) <= 17


def test_a_model_has_calls_of_its_own(lm):
    async def run_both():
        answer, pieces = await asyncio.gather(
            agenerate(lm, "The fox", **FIELDS), pieces_of(astream(lm, "The fox", **FIELDS))
        )
        return answer.text, "".join(p.text for p in pieces)

    text = generate(lm, "The fox", **FIELDS).text
    # A second event loop finds the engine that the first has used.
    assert asyncio.run(run_both()) == asyncio.run(run_both()) == (text, text)


@pytest.mark.parametrize("call", ["generate", "stream"])
def test_a_cancelled_task_ends_its_request_and_no_other(lm, engine, gate, call):
    want = generate(lm, "The fox", **FIELDS).text
    gate.queries.clear()
    gate.shut = True
    gate.allowed.release(3)

    async def cancel_one():
        wrote = asyncio.Event()

        async def write_long():
            async for _ in engine.stream("nobody asked", **LONG):
                wrote.set()

        waits = write_long() if call == "stream" else engine.generate("nobody asked", **LONG)
        task = asyncio.create_task(waits)
        other = asyncio.create_task(engine.generate("The fox", **FIELDS))
        if call == "stream":
            await wrote.wait()
        else:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        text = (await other).text
        # Orders are obeyed in their order: what was cancelled has ended when this one is taken.
        await engine.generate("The fox", **FIELDS)
        return text

    assert asyncio.run(cancel_one()) == want
    # Of the long text at most the passes that ran before the gate was shut.
    assert len(gate.queries) <= 3 + 2 * 16


def test_an_iterator_that_is_closed_ends_its_request(lm, engine, gate):
    want = generate(lm, "nobody asked", **LONG).token_ids[:2]
    gate.queries.clear()
    gate.shut = True
    # A token is told when the tick after its pass ends.
    gate.allowed.release(3)

    async def take_two():
        pieces = engine.stream("nobody asked", **LONG)
        two = [await anext(pieces), await anext(pieces)]
        await pieces.aclose()
        gate.open()
        return two

    assert tuple(p.token for p in asyncio.run(take_two())) == want
    # The pass that waited at the gate runs, and none after it.
    assert len(gate.queries) <= 4


def test_a_task_that_is_cancelled_before_it_begins_asks_nothing(engine, gate):
    async def cancel_at_once():
        task = asyncio.create_task(engine.generate("The fox", **FIELDS))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_at_once())
    assert not gate.queries


@pytest.mark.parametrize("call", ["generate", "stream"])
def test_an_error_reaches_the_task_that_awaits(lm, engine, call):
    async def ask(prompt, **fields):
        if call == "generate":
            return (await engine.generate(prompt, **fields)).text
        return "".join(p.text for p in await pieces_of(engine.stream(prompt, **fields)))

    async def ask_all():
        wrong = [ask("", **FIELDS), ask("x", method="no"), ask("x", temprature=1), ask(["x", "y"])]
        return await asyncio.gather(ask("The fox", **FIELDS), *wrong, return_exceptions=True)

    text, empty, method, field, several = asyncio.run(ask_all())
    assert text == generate(lm, "The fox", **FIELDS).text
    assert isinstance(empty, RequestError) and "prompt is empty" in str(empty)
    assert isinstance(method, RequestError) and "method" in str(method)
    assert isinstance(field, TypeError) and "did you mean temperature?" in str(field)
    assert isinstance(several, RequestError) and "list of 2 prompts" in str(several)


def test_a_pass_that_fails_is_told_to_those_who_took_part_and_the_engine_goes_on(
    lm, engine, monkeypatch
):
    def fail(self, group):
        raise ZeroDivisionError("the pass")

    async def ask_twice():
        with monkeypatch.context() as patch:
            patch.setattr(type(lm.network), "forward", fail)
            failed = [engine.generate("The fox", **FIELDS) for _ in range(2)]
            errors = await asyncio.gather(*failed, return_exceptions=True)
        return errors, await engine.generate("The fox", **FIELDS)

    errors, answer = asyncio.run(ask_twice())
    assert [type(e) for e in errors] == [ZeroDivisionError] * 2
    assert answer.text == generate(lm, "The fox", **FIELDS).text


def test_a_tick_that_fails_is_told_to_all(lm, engine, monkeypatch):
    def fail(self):
        raise ZeroDivisionError("the tick")

    async def ask_once():
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "step", fail)
            with pytest.raises(ZeroDivisionError, match="the tick"):
                await engine.generate("The fox", **FIELDS)
        return await engine.generate("The fox", **FIELDS)

    assert asyncio.run(ask_once()).text == generate(lm, "The fox", **FIELDS).text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("passes", [0, 2])
def test_a_loop_that_is_closed_early_ends_its_requests(lm, engine, gate, passes):
    """It is closed under tasks that nobody has cancelled."""
    want = generate(lm, "The fox", **FIELDS).text
    loop = asyncio.new_event_loop()
    gate.queries.clear()
    gate.shut = True
    for _ in range(passes):
        gate.allowed.release()
    tasks = []

    async def begin():
        wrote = asyncio.Event()

        async def write_long():
            async for _ in engine.stream("nobody asked", **LONG):
                wrote.set()

        tasks.append(loop.create_task(write_long()))
        if passes:
            await wrote.wait()
        else:
            await asyncio.sleep(0)

    loop.run_until_complete(begin())
    loop.close()
    gate.open()
    thread = engine._thread
    if thread is not None:
        thread.join(60)
    assert not engine._going and engine.engine.cached == 0
    # What waited at the gate ran, and what it gave had no taker.
    assert len(gate.queries) <= passes + 2
    tasks.pop()._log_destroy_pending = False
    # Python complains of what it drops here, and not during another test.
    gc.collect()
    # Another loop is served as if nothing had been.
    assert asyncio.run(engine.generate("The fox", **FIELDS)).text == want


def test_loops_of_several_threads_share_one_engine(lm, engine):
    want, out = generate(lm, "The fox", **FIELDS).text, {}

    def run_loop(number):
        async def ask():
            several = [engine.generate("The fox", **FIELDS) for _ in range(3)]
            return [answer.text for answer in await asyncio.gather(*several)]

        out[number] = asyncio.run(ask())

    threads = [threading.Thread(target=run_loop, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {i: [want] * 3 for i in range(4)}


def test_limits_are_those_of_an_engine(lm):
    assert AsyncEngine(lm, max_running=3).engine.max_running == 3
    with pytest.raises(RequestError, match=r"^max_running is 0: it must be"):
        AsyncEngine(lm, max_running=0)
    with pytest.raises(RequestError, match=r"^model is 'zoo:tiny', a name"):
        AsyncEngine("zoo:tiny")
    with pytest.raises(RequestError, match=r"^model is 'zoo:tiny', a name"):
        asyncio.run(agenerate("zoo:tiny", "The fox"))
    with pytest.raises(RequestError, match=r"^model is 'zoo:tiny', a name"):
        astream("zoo:tiny", "The fox")
