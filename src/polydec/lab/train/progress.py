"""A line that shows how a run goes: step, loss, tokens a second, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from polydec.lab.train.loop import LossCurvePoint


def format_duration(seconds: float) -> str:
    """Seconds as minutes:seconds, with hours before them from one hour on."""
    minutes, s = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d}:{s:02d}"
    return f"{minutes}:{s:02d}"


@contextmanager
def show_training_progress(
    title: str, steps: int, *, console: Console | None = None
) -> Iterator[Callable[[LossCurvePoint], None]]:
    """Show how a training goes: a moving bar on a terminal, a line for each report elsewhere.

    Args:
        title: Name of the run.
        steps: Steps of the run.
        console: Where to write; None: stderr.

    Yields:
        The function that `fit_network` calls with each report.
    """
    console = console or Console(stderr=True)
    # A file gets plain lines: a moving bar would fill it with control codes.
    if not console.is_terminal:

        def progress_line(r: LossCurvePoint) -> None:
            console.print(
                f"{title}: step {r.step}/{steps}, loss {r.loss:.4f} nats, {r.tokens_per_second:.0f} tokens/s, "
                f"{format_duration(r.seconds_left)} left",
                highlight=False,
                soft_wrap=True,
            )

        yield progress_line
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[note]}"),
    )
    # Leaving the block stops the bar, also when the run fails.
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=steps, note="")

        def move_bar(r: LossCurvePoint) -> None:
            bar.update(
                task,
                completed=r.step,
                note=f"loss {r.loss:.3f} · {r.tokens_per_second:.0f} tokens/s · {format_duration(r.seconds_left)} left",
            )

        yield move_bar


@contextmanager
def show_count_progress(
    title: str, *, every: int = 50, console: Console | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Show how many things are done: a moving bar on a terminal, a line now and then elsewhere.

    Args:
        title: What is done.
        every: Things between two lines. Default 50.
        console: Where to write; None: stderr.

    Yields:
        A function of (how many are done, of how many).
    """
    console = console or Console(stderr=True)
    # A file gets plain lines, and few of them.
    if not console.is_terminal:

        def progress_line(n: int, of: int) -> None:
            """Write a line after every so many things, and after the last.

            Args:
                n: How many are done.
                of: How many there are.
            """
            if n % every == 0 or n == of:
                console.print(f"{title}: {n}/{of}", highlight=False, soft_wrap=True)

        yield progress_line
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title)
        yield lambda n, of: bar.update(task, completed=n, total=of)
