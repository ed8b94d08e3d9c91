"""A server in a thread of the test's process, on a free port of the loopback."""

import threading
import time
from contextlib import contextmanager

import httpx

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


def wait_until(holds):
    """Wait until something holds that another thread brings about."""
    for _ in range(10_000):
        if holds():
            return
        time.sleep(0.002)
    raise AssertionError("it never came")
