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
    """One process of a batch, which loads its model once.

    Args:
        make: Makes its batch runner, given the first line of each custom_id.
        names: The first line of each custom_id in the input.
    """

    def __init__(
        self, make: Callable[[Mapping[str, int]], BatchRunner], names: Mapping[str, int]
    ) -> None:
        self._batch = make(names)

    def __call__(self, columns: dict[str, Any]) -> dict[str, list[str]]:
        rows = list[Row]()
        tally = BatchProgress()
        lines = [BatchLine(**json.loads(line)) for line in columns["line"]]
        self._batch.answer_lines(lines, (), rows.append, tally)
        of = {"wrong": tally.wrong, "tokens": tally.tokens}  # of all of them: told with the first
        return {
            "row": [json_line(row) for row in rows],
            "tally": [json.dumps(of if not i else {}) for i in range(len(rows))],
        }


class RayBatchRunner:
    """`BatchRunner` over several processes.

    The rows of a group are written when all of it is answered, and a group whose process dies is
    answered anew, by another one.

    Args:
        count: How many processes, at least 1.
        make: Makes a process's batch runner, given the first line of each custom_id.
        group: Lines that go to a process together, at most.
    """

    def __init__(
        self, count: int, make: Callable[[Mapping[str, int]], BatchRunner], group: int
    ) -> None:
        self._count = count
        self._make = make
        self._group = group

    def answer_lines(
        self,
        lines: Iterable[BatchLine],
        done: Iterable[int],
        write: Callable[[Row], None],
        tally: BatchProgress,
    ) -> None:
        """Write a row for each line that has none yet.

        Args:
            lines: Lines of the input.
            done: Numbers of lines that have a row.
            write: Writes a row.
            tally: Counts the rows.
        """
        lines = list(lines)
        known = frozenset(done)
        left = [{"line": json.dumps(asdict(line))} for line in lines if line.at not in known]
        if not left:
            return
        # At least two groups for each process, so that none waits long for the last one.
        group = max(1, min(self._group, len(left) // (2 * self._count)))
        ray.init(
            address="local",
            # One more than the actors: Ray Data's own work needs a processor as well.
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
                # Each actor knows the custom_ids of the complete input: a group alone would miss
                # earlier lines.
                BatchActor,
                fn_constructor_args=(self._make, custom_id_lines(lines)),
                batch_size=group,
                concurrency=self._count,
                num_cpus=1,
            )
            for row in rows.iter_rows():
                # A group's counts come with its first row, and nothing with the others.
                about = json.loads(row["tally"])
                tally.wrong += about.get("wrong", 0)
                tally.tokens += about.get("tokens", 0)
                write(json.loads(row["row"]))
                tally.done += 1
        finally:
            ray.shutdown()
