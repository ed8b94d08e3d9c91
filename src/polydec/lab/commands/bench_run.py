"""What `polydec bench` measures: models, one after the other, with all that is asked of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from polydec import api
from polydec.base.edge import escape_control_characters
from polydec.cli import asking, prompts
from polydec.cli.flags import RequestFlags
from polydec.lab.bench import bench_record, measure
from polydec.lab.bench.bench_record import BenchCell
from polydec.lab.bench.certificate import content_digest
from polydec.lab.bench.checks import check_of
from polydec.methods.registry.family import family_of
from polydec.request import machine, profile

BASES = {
    "ar": "plain",
    "diffusion": "llada",
    "insertion": "insertion-language-models",
    "patches": "masked-mar",
}
"""By a model's family, what the other methods are held against: a token a pass."""


@dataclass
class BenchFindings:
    """What a bench has measured.

    Attributes:
        identity: What all runs have in common.
        rows: Rows of the cells that were measured to their end.
        partly: Rows of a cell that was left half-way.
        curves: By model what its passes cost.
        doubts: Why the figures are to be read with care, a sentence each.
    """

    identity: dict[str, Any]
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    partly: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    curves: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    doubts: list[str] = dataclasses.field(default_factory=list[str])

    @property
    def machine(self) -> str:
        return "; ".join(dict.fromkeys(m["machine"] for m in self.identity["models"]))


class BenchModel:
    """One model of a bench: how it is loaded, its methods and its prompts."""

    def __init__(
        self,
        flags: RequestFlags,
        choose: Callable[[api.LoadedModel, str], list[measure.MethodSetting]],
        heats: Sequence[float | None],
        alone: bool = True,
    ) -> None:
        """Note how to load and what to measure; nothing is loaded yet.

        Args:
            flags: The command's flags, with this model's name.
            choose: Gives the methods for a model of a family.
            heats: Temperatures; None in it stands for the checkpoint's own.
            alone: Whether it is the only model of the bench, so that it stays loaded. Default true.
        """
        self.flags = flags
        self._choose = choose
        self._heats = heats
        self._alone = alone
        # Filled by `prepare`, which knows the model.
        self.base = "plain"
        self.chosen = list[measure.MethodSetting]()
        self.rows = list[prompts.PromptRow]()
        self.described = dict[str, Any]()
        self._lm: api.LoadedModel | None = None

    def load(self) -> api.LoadedModel:
        """The model. One of several is loaded anew when its turn comes, so that only one is in
        memory.
        """
        lm = self._lm or self.flags.load()
        self._lm = lm if self._alone else None
        return lm

    def prepare_prompts(
        self,
        data: Sequence[Path] | None,
        prompt_tokens: int | None,
        limit: int | None,
        suite: Sequence[prompts.PromptRow] = (),
    ) -> None:
        """Check every prompt by every method at every temperature; nothing is decoded.

        Args:
            data: Files of prompts; None: the built-in ones.
            prompt_tokens: Tokens of a prompt of running text; None: files hold none.
            limit: How many prompts of each file are used; None: all.
            suite: Rows of published suites, which replace files; empty: none.

        Raises:
            RequestError: A prompt or a method cannot be used.
        """
        lm = self.load()
        family = family_of(lm.checkpoint.lm).name
        methods = self._choose(lm, family)
        self.base = BASES[family]
        # The base method runs first: all others are compared with it.
        self.chosen = [
            measure.MethodSetting(self.base, {}),
            *(m for m in methods if m.label != self.base),
        ]
        files_of = [prompts.read_prompt_rows(path, lm, prompt_tokens) for path in data or ()]
        self.rows = list(suite) or [
            row
            for read in files_of or [prompts.BUILT_IN]
            for row in prompts.first_prompt_rows(read, limit)
        ]
        # A refusal must come now, not after hours of measuring.
        for request in self._requests(lm):
            asking.check_requests(
                lm,
                ((r.prompt, self.flags.raw or r.raw) for r in self.rows),
                ((m.name, m.options) for m in self.chosen),
                **request,
            )
        point = lm.checkpoint
        # What the record's identity and the report say of this model.
        self.described = {
            "name": lm.name,
            "kernel": point.kernel,
            "dtype": point.dtype,
            "draft": None if lm.draft is None else lm.draft.name,
            "template": "chat template" if point.text.has_chat and not self.flags.raw else "raw",
            "machine": machine.describe_machine(lm.network),
            "methods": [m.label for m in self.chosen],
        }

    def _requests(self, lm: api.LoadedModel) -> Iterator[dict[str, Any]]:
        """A request for each temperature."""
        for heat in self._heats:
            # Without a temperature of its own a request takes the flags', or the checkpoint's.
            if heat is None:
                bent = self.flags.bent
            else:
                bent = {**self.flags.bent, "temperature": heat}
            yield {
                "sampling": lm.sampling_with(**bent),
                "max_tokens": self.flags.max_tokens or 128,
                "seed": self.flags.seed,
            }

    def measured_cells(
        self, lm: api.LoadedModel, batches: Sequence[int]
    ) -> Iterator[tuple[BenchCell, dict[str, Any], list[measure.BenchTask]]]:
        """What is measured, cell by cell: temperatures within batches.

        Args:
            lm: The loaded model.
            batches: Numbers of requests at once.

        Yields:
            The cell, what its requests hold, and its tasks.
        """
        for size in batches:
            for request in self._requests(lm):
                at = BenchCell(lm.name, size, float(request["sampling"].temperature))
                yield at, request, self._tasks(size)

    def _tasks(self, size: int) -> list[measure.BenchTask]:
        out = list[measure.BenchTask]()
        for workload in dict.fromkeys(r.workload for r in self.rows):
            mine = [r for r in self.rows if r.workload == workload]
            # A task is a batch of prompts of one workload, so workloads can be told apart in the
            # table.
            for i in range(0, len(mine), size):
                rows = mine[i : i + size]
                wanted = tuple(check_of(r.answer) for r in rows)
                out.append(
                    measure.BenchTask(
                        workload,
                        tuple(r.prompt for r in rows),
                        self.flags.raw or rows[0].raw,
                        wanted if any(w is not None for w in wanted) else (),
                    )
                )
        return out


def measure_cell(
    lm: api.LoadedModel,
    side: BenchModel,
    at: BenchCell,
    request: dict[str, Any],
    tasks: list[measure.BenchTask],
    repeat: int,
    kept: bench_record.BenchRecord,
    tick: Callable[[str], None],
    partly: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Measure one cell.

    Args:
        lm: The loaded model.
        side: The model's methods and prompts.
        at: Model, batch and temperature.
        request: What the requests hold.
        tasks: The cell's tasks.
        repeat: Repetitions of every task.
        kept: The record that holds earlier runs and takes new ones.
        tick: Called with a label before each run.
        partly: Gets the rows of what was measured where the cell is left half-way.

    Returns:
        The cell's rows.
    """
    # Complete turns of an earlier run of the same command are not measured again.
    runs = kept.complete_runs(at, [m.label for m in side.chosen])

    def cell_rows() -> list[dict[str, Any]]:
        return [
            {**row, "batch": at.batch, "temperature": at.temperature}
            for row in measure.bench_table_rows(lm, runs, tasks, side.base)
        ]

    try:
        # Runs that are kept already count, and only missing ones are made.
        measure.measure_methods(
            lm,
            side.chosen,
            tasks,
            **request,
            repeats=repeat,
            into=runs,
            tick=tick,
            keep=lambda label, run: kept.write_run(at, label, run),
        )
    # Ctrl-C as well: what was measured must not be lost.
    except BaseException:
        if any(runs.values()):
            partly += cell_rows()
        raise
    return cell_rows()


def record_identity(every: Sequence[BenchModel], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the runs of a record must have in common.

    Args:
        every: The models, prepared.
        settings: Flags that change what is measured.

    Returns:
        The identity, ready for JSON; prompts stand in it as a digest.
    """
    return {
        "models": [side.described for side in every],
        "versions": machine.package_versions(),
        "settings": dict(settings),
        "prompts": content_digest([[dataclasses.astuple(r) for r in side.rows] for side in every]),
    }


def measure_all_cells(
    every: Sequence[BenchModel],
    batches: Sequence[int],
    repeat: int,
    into: Path | None,
    curves: bool,
    measured_cells: BenchFindings,
) -> None:
    """Measure every cell of every model, and add the rows run by run.

    Args:
        every: The models, prepared.
        batches: Numbers of requests at once.
        repeat: Repetitions of every task.
        into: File of the record; None: no record.
        curves: Whether the cost of passes is measured for the report.
        measured_cells: Gets rows and curves.
    """
    with (
        bench_record.open_bench_record(into, measured_cells.identity) as kept,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        # Its length is unknown: a record may hold some of the runs.
        bar = progress.add_task("measuring", total=None)

        def tick_label(label: str) -> None:
            progress.update(bar, description=escape(escape_control_characters(label)))

        for side in every:
            lm = side.load()
            # A profile of this machine is used where there is one; measuring it takes a while.
            if curves and family_of(lm.checkpoint.lm).continues_text:
                measured_cells.curves[lm.name] = profile.read_pass_profile(
                    lm
                ) or profile.measure_pass_profile(lm, seconds=profile.QUICK)
            for at, request, tasks in side.measured_cells(lm, batches):
                measured_cells.rows += measure_cell(
                    lm, side, at, request, tasks, repeat, kept, tick_label, measured_cells.partly
                )
