"""Several servers of the same models behind one address, as actors of Ray on this machine (`polydec serve --replicas N`).

A replica is an ordinary server (app.py) on a port of the loopback; what stands before them is replica_front.py. Where a replica
dies, Ray starts it anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
import uvicorn
from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]

from polydec.api import LoadedModel
from polydec.serve.app import create_app
from polydec.serve.replica_front import ReplicaFleet
from polydec.serve.run import open_listening_socket
from polydec.serve.settings import RequestLimits


class ServerReplica:
    """One server, in a process of Ray's.

    Args:
        loaders: What loads each model, by its name.
        limits: Limits of each model's requests.
        method: Decoding method of requests that name none.
        key: Key by which the front calls it.
        threads: Threads that compute.
        lenient: Whether unknown fields of a request are ignored. Default False.
    """

    def __init__(
        self,
        loaders: Mapping[str, Callable[[], LoadedModel]],
        limits: RequestLimits,
        method: str,
        key: str,
        threads: int,
        lenient: bool = False,
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self._app = create_app(
            loaders, limits=limits, keys=(key,), method=method, lenient=lenient, replica=True
        )
        # A new process has a new port: that is how the front tells it from one that died.
        sock = open_listening_socket("127.0.0.1", 0)
        self._port = int(sock.getsockname()[1])
        server = uvicorn.Server(uvicorn.Config(self._app, log_level="critical"))
        threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True).start()

    def current_state(self) -> tuple[int, dict[str, str], dict[str, str]]:
        """Its port, the states of its models, and why some of them could not be loaded."""
        models = self._app.state.models
        return self._port, models.states, models.failed


def fleet_of(
    count: int,
    loaders: Mapping[str, Callable[[], LoadedModel]],
    *,
    limits: RequestLimits,
    method: str,
    threads: int,
    lenient: bool = False,
) -> ReplicaFleet:
    """Start replicas on a local cluster of Ray's own.

    Args:
        count: How many, at least 1.
        loaders: What loads each model, by its name.
        limits: Limits of each model's requests.
        method: Decoding method of requests that name none.
        threads: Threads that each replica computes with.
        lenient: Whether unknown fields of a request are ignored. Default False.

    Returns:
        The fleet; its replicas become ready later.
    """
    ray.init(
        address="local",
        num_cpus=count,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
        namespace="polydec",
    )
    remote: Any = ray.remote
    actor = remote(num_cpus=1, max_restarts=-1, max_concurrency=4)(ServerReplica)
    return ReplicaFleet(
        count,
        lambda key: actor.remote(dict(loaders), limits, method, key, threads, lenient),
        tuple(loaders),
        ray.kill,
        (RayError,),
    )
