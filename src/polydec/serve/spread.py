"""A file of requests, answered by several processes: Ray Data on this machine (`polydec batch --ray N`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
import ray.data  # pyright: ignore[reportMissingImports]

from polydec.serve.batch import BatchLine, BatchProgress, BatchRunner, Row, custom_id_lines
from polydec.serve.json_text import json_line


class BatchActor:
    """One process: its model is loaded once. make: makes its batch, given who has which custom_id in the whole file."""

    def __init__(
        self, make: Callable[[Mapping[str, int]], BatchRunner], names: Mapping[str, int]
    ) -> None:
        self._batch = make(names)

    def __call__(self, columns: dict[str, Any]) -> dict[str, list[str]]:
        rows = list[Row]()
        tally = BatchProgress()
        lines = [BatchLine(**json.loads(line)) for line in columns["line"]]
        self._batch.answer(lines, (), rows.append, tally)
        of = {"wrong": tally.wrong, "tokens": tally.tokens}  # of all of them: told with the first
        return {
            "row": [json_line(row) for row in rows],
            "tally": [json.dumps(of if not i else {}) for i in range(len(rows))],
        }


class RayBatchRunner:
    """`BatchRunner` over `count` processes. Lines go to them in groups of at most `group`: the rows
    of a group are written when all of it is answered, and a group whose process dies is answered
    anew, by another one."""

    def __init__(
        self, count: int, make: Callable[[Mapping[str, int]], BatchRunner], group: int
    ) -> None:
        self._count = count
        self._make = make
        self._group = group

    def answer(
        self,
        lines: Iterable[BatchLine],
        done: Iterable[int],
        write: Callable[[Row], None],
        tally: BatchProgress,
    ) -> None:
        """Write a row for each line that is not among `done`."""
        lines = list(lines)
        known = frozenset(done)
        left = [{"line": json.dumps(asdict(line))} for line in lines if line.at not in known]
        if not left:
            return
        group = max(1, min(self._group, len(left) // (2 * self._count)))
        ray.init(
            address="local",
            num_cpus=self._count + 1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            rows = ray.data.from_items(
                left, override_num_blocks=-(-len(left) // group)
            ).map_batches(
                BatchActor,
                fn_constructor_args=(self._make, custom_id_lines(lines)),
                batch_size=group,
                concurrency=self._count,
                num_cpus=1,
            )
            for row in rows.iter_rows():
                about = json.loads(row["tally"])
                tally.wrong += about.get("wrong", 0)
                tally.tokens += about.get("tokens", 0)
                write(json.loads(row["row"]))
                tally.done += 1
        finally:
            ray.shutdown()
