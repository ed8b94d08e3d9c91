"""A server in a thread of the test's process, on a free port of the loopback."""

import itertools
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from polydec.serve.app import create_app
from polydec.serve.run import DrainingServer, open_listening_socket, uvicorn_config


class House:
    def __init__(self, url, app, server):
        self.url, self.app, self.server = url, app, server
        self.models = app.state.models

    def client(self, **given):
        return httpx.Client(base_url=self.url, timeout=60, **given)

    @property
    def worker(self):
        return next(iter(self.models.workers.values()))


@contextmanager
def served(loaders, drain=0.2, wrapped=lambda app: app, **given):
    """A server of some models. wrapped: what stands before its application."""
    app, sock = create_app(loaders, **given), open_listening_socket("127.0.0.1", 0)
    config = uvicorn_config(wrapped(app), drain, "critical")
    server = DrainingServer(config, app.state.models, drain)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    house = House(f"http://127.0.0.1:{sock.getsockname()[1]}", app, server)
    try:
        end = time.monotonic() + 60
        while set(house.models.states.values()) != {"ready"} and time.monotonic() < end:
            time.sleep(0.02)
        yield house
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server does not end"


@dataclass
class StepHold:
    """Where engines wait in their work: `reached` is set when one waits, `go` lets them go on."""

    reached: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def wait_before(self, number, step):
        """A step that waits when it is called for the given time, counted from 1."""
        count = itertools.count(1)

        def step_and_wait():
            if next(count) == number:
                self.reached.set()
                assert self.go.wait(60), "nothing let the engine go on"
            return step()

        return step_and_wait


@contextmanager
def held_steps(*houses, at):
    """Each server's engine waits before one of its next steps, until it is told to go on or sees that a client has left.

    What happens beside an answer is then beside it on every machine, however fast its model writes.
    """
    hold = StepHold()
    with pytest.MonkeyPatch.context() as patch:
        for house in houses:
            worker = house.worker
            patch.setattr(worker.engine, "step", hold.wait_before(at, worker.engine.step))
            cancel = worker.cancel_prompts

            def cancel_and_go(jobs, why, cancel=cancel):
                cancel(jobs, why)
                hold.go.set()

            patch.setattr(worker, "cancel_prompts", cancel_and_go)
        try:
            yield hold
        finally:
            hold.go.set()


def wait_until(holds):
    """Wait until something holds that another thread brings about."""
    for _ in range(10_000):
        if holds():
            return
        time.sleep(0.002)
    raise AssertionError("it never came")
