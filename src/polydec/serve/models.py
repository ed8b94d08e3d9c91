"""The models of a server under their names: loaded in the background, each with a worker of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from polydec.api import LoadedModel
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.serve.application import until_idle
from polydec.serve.errors import RefusalError
from polydec.serve.memory import freeze_garbage_collector
from polydec.serve.metrics import ServerMetrics
from polydec.serve.settings import RequestLimits
from polydec.serve.traced import ServerTrace
from polydec.serve.worker import STOPPED, ModelWorker

log = logging.getLogger("polydec.serve")


class ServedModels:
    """The models of a server.

    The attribute `failed` holds why a model could not be loaded; while `draining`, no new requests are
    taken.

    Args:
        loaders: What loads each model, by its name; the first one answers requests that name no
            model.
        limits: Limits of each model's requests.
        metrics: Counters of the server.
        trace: Where to write what happens to requests. None: nowhere.
    """

    def __init__(
        self,
        loaders: Mapping[str, Callable[[], LoadedModel]],
        limits: RequestLimits,
        metrics: ServerMetrics,
        trace: ServerTrace | None = None,
    ) -> None:
        if not loaders:
            raise RequestError("a server needs a model")
        self.loaders = dict(loaders)
        self.limits = limits
        self.metrics = metrics
        self._trace = trace
        self.workers: dict[str, ModelWorker] = {}
        self.failed: dict[str, str] = {}
        self.draining = False
        self.began = int(time.time())
        self.asked = 0  # bodies that were read
        self.cut = 0  # requests that the end of the server ended

    async def load(self) -> None:
        """Load all, one after the other."""
        for name, loader in self.loaders.items():
            try:
                model = await asyncio.to_thread(_ready, loader, name)
            except Exception as error:
                # One model that cannot be loaded ends the server in `on_tick`, which says why; the
                # loop goes on until then.
                self.failed[name] = str(error)
                if not isinstance(error, (PolydecError, OSError)):
                    log.exception("model %s cannot be loaded", name)
            else:
                self.workers[name] = ModelWorker(
                    name, model, self.limits, self.metrics, self._trace
                )
        # Once all models are there: what follows is the requests' and may become garbage.
        freeze_garbage_collector()

    @property
    def states(self) -> dict[str, str]:
        """Of each model: ready, loading or failed."""
        return {
            name: "ready"
            if name in self.workers
            else "failed"
            if name in self.failed
            else "loading"
            for name in self.loaders
        }

    def find_worker(self, name: object = None) -> ModelWorker:
        """Find the worker of a model.

        Args:
            name: Name of the model. None: the first one.

        Returns:
            The worker.

        Raises:
            RefusalError: There is no such model, or it is not ready.
        """
        if name is None:
            name = next(iter(self.loaders))
        if not isinstance(name, str) or name not in self.loaders:
            raise RefusalError(
                f"model {short_repr(name)} is not served here: it must be one of {', '.join(self.loaders)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        if self.draining:
            raise RefusalError(
                "the server stops: it takes no more requests", status=503, code="stopping", retry=5
            )
        if name in self.failed:
            raise RefusalError(  # why is said by the server itself: it may name what only its owner should know
                f"model {name} could not be loaded: the server's own messages say why",
                status=503,
                code="failed",
            )
        if name not in self.workers:
            raise RefusalError(f"model {name} is being loaded", status=503, code="loading", retry=5)
        return self.workers[name]

    @property
    def live(self) -> int:
        """Requests under way."""
        return sum(len(w.live) + w.reading for w in self.workers.values())

    async def drain_requests(self, seconds: float) -> None:
        """Take no more requests, and wait for those under way.

        Args:
            seconds: After this time what is left is cancelled.
        """
        self.draining = True
        await until_idle(lambda: self.live, seconds)
        # What is left now did not end in time; it is counted before it is cancelled.
        self.cut = self.live
        for worker in self.workers.values():
            worker.cancel_prompts(list(worker.live), STOPPED)

    async def close(self) -> None:
        """End the workers."""
        for worker in self.workers.values():
            worker.close()
        for worker in self.workers.values():
            await worker.wait_closed()
        if self._trace is not None:
            self._trace.close()


def _ready(loader: Callable[[], LoadedModel], name: str) -> LoadedModel:
    """A model with what the first request would otherwise wait for, under the name by which clients know it."""
    model = loader().with_name(name)
    # Both are computed on first use, which would make the first client wait.
    _ = model.costs, model.checkpoint.text.pieces
    return model
