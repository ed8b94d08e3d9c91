"""polydec trace: a file that `--trace` wrote, made readable."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polydec.base import files
from polydec.base.edge import (
    error_sentence,
    escape_control_characters,
    parse_object,
    read_bytes,
    require_integer,
)
from polydec.base.errors import RequestError
from polydec.cli import canvas, search_tree, trace_page
from polydec.cli.answer_story import ChoiceTrace, Key, TraceDraftTree, TraceRound
from polydec.cli.flags import split_flag_pairs
from polydec.cli.lab_commands import lab_module
from polydec.cli.terminal_output import emit_drawn, print_result
from polydec.core.trace import (
    VERSION,
    BranchedEvent,
    EditedEvent,
    FinishedEvent,
    OpenedEvent,
    PassedEvent,
    PrunedEvent,
    ScoredEvent,
    TraceEvent,
    TriedEvent,
    event_name,
    from_json,
)
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.events import RemaskedEvent, UnmaskedEvent
from polydec.methods.speculative.loop.events import ForcedEvent, ProposedEvent, VerifiedEvent

MOST = 1 << 20
"""Requests of a trace."""
LONGEST = 1 << 24
"""Positions of a text: an edit far behind its end would fill memory with gaps."""
KEEPS = {"law": "keeps the model's law", "greedy": "keeps the greedy text"}
"""What a guarantee says, for those who do not know its name."""

app = typer.Typer(help="Read traces that --trace wrote.", no_args_is_help=True)


@app.callback()
def trace() -> None:
    """Read traces that `polydec generate --trace FILE` or `polydec batch IN OUT --trace FILE` wrote."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="what --trace wrote")],
    rounds: Annotated[
        int, typer.Option(help="show the first rounds of each choice only (0: all)")
    ] = 0,
    watch: Annotated[
        bool, typer.Option("--watch", help="play a canvas that fills, in place")
    ] = False,
    delay: Annotated[float, typer.Option(help="seconds between two passes of --watch")] = 0.4,
    page: Annotated[
        Path | None, typer.Option("--html", help="write canvases as a page to this file")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="the rounds as one JSON object")] = False,
) -> None:
    """Show a trace: a line a round with the draft, what was accepted of it (green) and the text that was written; of a canvas
    a line a pass, with its gaps as dots.\f

    Args:
        file: Trace that `--trace` wrote.
        rounds: First rounds of each choice that are shown. Default 0: all.
        watch: Whether a canvas is played in place. Default False.
        delay: Seconds between two passes that are played. Default 0.4.
        page: File for canvases as an HTML page. Default None.
        json_: Whether one JSON object is printed. Default False.
    """
    require_integer("rounds", rounds, 0, 1_000_000_000)
    if not 0 <= delay <= 60:
        raise RequestError(f"delay is {delay}: it must lie in 0 to 60 seconds")
    stories = read_choice_traces(file)
    # Only canvases can be played or made a page here; `trace html` makes one of everything.
    if page is not None or watch:
        _canvases(stories, file, page, delay)
        return
    if json_:
        print_result(
            json.dumps(
                {
                    _name(key, stories, ""): {
                        "method": s.method,
                        "prompt_tokens": s.prompt,
                        "tokens": s.tokens,
                        "finish_reason": s.finish,
                        "rounds": [{**vars(r), "forced": sorted(r.forced)} for r in s.rounds],
                    }
                    for key, s in stories.items()
                }
            )
        )
        return

    def draw_figure(out: Console) -> None:
        for key, story in stories.items():
            name = _name(key, stories)
            title = f"{name}: {story.method}, {story.prompt} tokens of prompt, {story.finish}"
            # A trace may come from anybody: control characters could write over the terminal.
            out.print(Text(escape_control_characters(title), "bold"))
            if story.canvas:
                out.print(
                    canvas.canvas_table(
                        list(canvas.canvas_frames(story.prompt, story.canvas))[: rounds or None]
                    )
                )
            else:
                out.print(trace_rounds_table(story.rounds[: rounds or None]))
            out.print(Text(choice_trace_summary(story), "dim"))

    emit_drawn(draw_figure)


@app.command(name="html")
def write_trace_page(
    file: Annotated[Path, typer.Argument(help="what --trace wrote")],
    out: Annotated[
        Path | None, typer.Option(help="the page (default: the file's name, .html)")
    ] = None,
) -> None:
    """Write a trace as one page that needs nothing from elsewhere: the text with its drafted tokens, a time line of passes, the
    draft trees with what was accepted of them, a search's tree with its scores, canvases as they filled. Of requests that ran
    together it begins with all their passes on one time line.\f

    Args:
        file: Trace that `--trace` wrote.
        out: The page. Default None: the file's name with `.html`.
    """
    stories = read_choice_traces(file)
    parts = [
        trace_page.TracePageChoice(
            f"{_name(key, stories)}: {s.method}, {choice_trace_summary(s)}",
            [(r.accepted, r.pieces, r.forced) for r in s.rounds],
            [
                (s.rounds[at].position, t.parent, t.piece, t.path)
                for at, t in s.trees.items()
                if at < len(s.rounds)
            ],
            s.passes,
            list(canvas.canvas_frames(s.prompt, s.canvas, s.back)) if s.canvas else [],
            # The tree of a search, empty for other methods.
            search_tree.build_search_tree(s.branches, s.written),
            asked=str(s.head.get("text") or ""),
        )
        for key, s in stories.items()
    ]
    # One lane a request; a single request has its own time line.
    together = [
        (f"request {request}", s.passes)
        for (request, _), s in stories.items()
        if s.passes and _several(stories)
    ]
    if out is None:
        page = file.with_suffix(".html")
    else:
        page = out
    text = trace_page.trace_page_html(file.name, trace_heading(file), parts, together)
    files.replace_file_atomically(page, lambda at: Path(at).write_text(text, encoding="utf-8"))
    print_result(f"{page}: {len(text) // 1024 + 1} KB")


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="what --trace wrote")],
    method: Annotated[
        str | None, typer.Option(help="another method (default: the one of the record)")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="an option of it, k=v (repeatable)")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="the draft model of a method that needs one, as for generate")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="a trace of the same prompts under the other setting, run live: its setting is replayed, and the error told"
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Make a recorded run again under other settings without its model: the drafter works, and what the model would say is
    read from the record. Its error is shown beside it: the recorded setting, made again, against what was recorded; and with
    --against what the replay says of another run against that run itself.\f

    Args:
        file: Trace that `--trace` wrote.
        method: Another method. Default None: that of the record.
        set_: Options of it, k=v. Default None.
        draft: Draft model of a method that needs one. Default None.
        against: Trace of the same prompts under the other setting. Default None.
        json_: Whether one JSON object is printed. Default False.
    """
    # Replaying is part of the lab, which need not be installed.
    trace_replay = lab_module("trace_replay", "polydec trace replay")
    if against is None:
        live = None
    else:
        live = read_choice_traces(against)
    found = trace_replay.made_again(
        file,
        read_choice_traces(file),
        method,
        split_flag_pairs("set", set_),
        draft,
        live=live,
        live_file=against,
    )
    print_result(
        json.dumps({"file": str(file), **found}) if json_ else trace_replay.describe_replay(found)
    )


def _canvases(
    stories: Mapping[Key, ChoiceTrace], file: Path, page: Path | None, delay: float
) -> None:
    """Canvases as a page, or played on the terminal. Raises RequestError where the trace has none."""
    shown = [
        (
            f"{_name(key, stories)}: {s.method}, {choice_trace_summary(s)}",
            list(canvas.canvas_frames(s.prompt, s.canvas)),
        )
        for key, s in stories.items()
        if s.canvas
    ]
    # Only canvases can be played.
    if not shown:
        raise RequestError(
            error_sentence(
                f"trace {str(file)!r} has no canvas: only masked-diffusion models fill one"
            )
        )
    if page is not None:
        files.replace_file_atomically(
            page,
            lambda at: Path(at).write_text(
                canvas.canvas_page_html(file.name, shown), encoding="utf-8"
            ),
        )
        return
    console = Console(highlight=False)
    for heading, boards in shown:
        console.print(Text(escape_control_characters(heading), "bold"))
        canvas.play_canvas_frames(console, boards, delay)


def trace_rounds_table(rounds: Sequence[TraceRound]) -> Table:
    """A table with a line a round.

    In the bar, # is an accepted draft token and - one in vain. In the text accepted drafts are
    green, the pass's own token is plain, and what was forced is underlined.
    """
    out = Table(box=None, pad_edge=False)
    for column in ("round", "at", "drafted", "accepted"):
        out.add_column(column, justify="right", no_wrap=True)
    out.add_column("draft", no_wrap=True, max_width=24, overflow="ellipsis")
    out.add_column("text", no_wrap=True, max_width=64, overflow="ellipsis")
    for n, r in enumerate(rounds, 1):
        # By depth, not by drafted tokens: of a tree one path at most is accepted.
        bar = Text("#" * r.accepted, "green").append("-" * max(0, r.depth - r.accepted), "red")
        text = Text()
        for i, piece in enumerate(r.pieces):
            text.append(
                escape_control_characters(piece).replace("\n", "⏎").replace("\t", "⇥"),
                ("green" if i < r.accepted else "") + (" underline" if i in r.forced else ""),
            )
        out.add_row(str(n), str(r.position), str(r.drafted or ""), str(r.accepted or ""), bar, text)
    return out


def choice_trace_summary(story: ChoiceTrace) -> str:
    """One line on a choice: tokens, passes, and what became of drafts or branches."""
    # Searches first: they have branches and no drafts.
    if story.branches:
        tried = sum(isinstance(e, BranchedEvent) for e in story.branches)
        gone = sum(isinstance(e, PrunedEvent) for e in story.branches)
        if story.passes:
            passes = f" in {len(story.passes)} passes"
        else:
            passes = ""
        return f"{story.tokens} tokens{passes}; {tried} texts tried, {gone} given up"
    if story.canvas:
        return f"{story.tokens} tokens in {len(story.canvas)} passes, {story.tokens / len(story.canvas):.2f} tokens a pass"
    drafts = [r for r in story.rounds if r.drafted]
    if story.rounds:
        each = f"{story.tokens / len(story.rounds):.2f} tokens a pass"
    else:
        each = "no pass"
    drafted = sum(r.drafted for r in drafts)
    accepted = sum(r.accepted for r in drafts)
    forced = sum(len(r.forced) for r in story.rounds)
    return (
        f"{story.tokens} tokens in {len(story.rounds)} passes, {each}; {len(drafts)} with a draft: {accepted} of {drafted} "
        "drafted tokens accepted" + (f"; {forced} forced by the rules" if forced else "")
    )


def _several(stories: Mapping[Key, ChoiceTrace]) -> bool:
    """Whether a trace is of several requests."""
    return len({request for request, _ in stories}) > 1


def _name(key: Key, stories: Mapping[Key, ChoiceTrace], word: str = "choice ") -> str:
    """What a story is called: of one request by its choice alone."""
    request, choice = key
    if not _several(stories):
        return f"{word}{choice}"
    # A request with one choice needs no number for it.
    if word and sum(r == request for r, _ in stories) == 1:
        return f"request {request}"
    if word:
        return f"request {request}, choice {choice}"
    return f"{request}.{choice}"


def read_choice_traces(path: Path) -> dict[Key, ChoiceTrace]:
    """Read a trace and gather its events by request and choice.

    Raises:
        RequestError: A line is no event, or there is none.
    """
    stories: dict[Key, ChoiceTrace] = {}
    for request, event, content in _events(path):
        story = stories.setdefault((request, event.choice), ChoiceTrace())
        if isinstance(event, OpenedEvent):
            story.method, story.head = _method(content.get("method")), _heading(content)
        _tell(story, event)
    if not stories:
        raise RequestError(error_sentence(f"trace {str(path)!r} holds no event"))
    # Requests that ran together wrote their events interleaved.
    return dict(sorted(stories.items()))


def _tell(story: ChoiceTrace, event: TraceEvent) -> None:
    match event:
        case OpenedEvent():
            story.prompt, story.ids = len(event.prompt), event.prompt
        case PassedEvent():
            story.passes.append(event)
        case ProposedEvent():
            story.trees[len(story.rounds)] = TraceDraftTree(event.parent, event.token, event.piece)
            # The root is no draft token, so a draft has one node more than tokens.
            story.rounds.append(
                TraceRound(event.position, len(event.token) - 1, _depth(event.parent))
            )
        case RemaskedEvent():
            story.back[len(story.canvas)] = event
        case UnmaskedEvent():
            story.canvas.append(event)
        case ForcedEvent() if story.rounds:
            # Forced positions are of the text; a round numbers its own pieces.
            last = story.rounds[-1]
            last.forced = frozenset(p - last.position for p in event.position)
        case VerifiedEvent():
            # A pass without a draft proposes nothing: its round begins with the verdict.
            if not story.rounds or story.rounds[-1].pieces:
                story.rounds.append(TraceRound(event.position))
            story.rounds[-1].accepted = len(event.path)
            at = len(story.rounds) - 1
            # The verdict completes the draft that was proposed in this round.
            if at in story.trees:
                story.trees[at] = replace(story.trees[at], path=event.path)
        case EditedEvent():
            story.edits.append(event.edit)
            if not story.rounds or story.rounds[-1].pieces:
                story.rounds.append(TraceRound(story.prompt + story.tokens))
            story.rounds[-1].pieces, story.rounds[-1].accepted = event.pieces, event.accepted
        case BranchedEvent() | TriedEvent() | ScoredEvent() | PrunedEvent():
            story.branches.append(event)
        case FinishedEvent():
            story.finish = event.finish_reason


def _depth(parent: Sequence[int]) -> int:
    """The longest path of a tree whose node 0 is the root; parents come before their children."""
    deep = [0] * len(parent)
    for i in range(1, len(parent)):
        deep[i] = deep[parent[i]] + 1
    return max(deep, default=0)


def _events(path: Path) -> Iterator[tuple[int, TraceEvent, Mapping[str, Any]]]:
    """Whose event it is, the event, and its line. A last line that an interruption cut short is
    left out."""
    lines = read_bytes(path).split(b"\n")
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        what = f"line {n} of {str(path)!r}"
        try:
            content = parse_object(line, what)
            # Only the opening of a trace carries its version.
            _known(content.get("trace"), what)
            request = require_integer("request", content.get("request", 0), 0, MOST)
            yield request, _checked(from_json(content), what), content
        except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise RequestError(
                error_sentence(f"{what} is no event of a trace ({type(error).__name__}: {error})")
            ) from None
        except ValueError as error:
            # The run may have been stopped in the middle of this line.
            if n == len(lines) and n > 1:
                continue
            raise RequestError(
                error_sentence(error if what in str(error) else f"{what}: {error}")
            ) from None


def trace_heading(path: Path) -> dict[str, Any]:
    """What the first line says of the model, the request and its method; nothing where the file is
    of version 1.
    """
    first = read_bytes(path).split(b"\n", 1)[0]
    return _heading(parse_object(first, f"line 1 of {str(path)!r}"))


def _heading(opening: Mapping[str, Any]) -> dict[str, Any]:
    # Version 1 says nothing of the model and the request.
    told = opening.get("trace")
    return {**told, "method": opening.get("method")} if isinstance(told, dict) else {}  # pyright: ignore


def _known(told: Any, what: str) -> None:
    """Raise RequestError for a layout of a later version; version 1 says nothing of itself."""
    if told is None:
        return
    version: Any = told.get("version") if isinstance(told, dict) else told  # pyright: ignore
    if type(version) is not int or not 1 <= version <= VERSION:
        raise RequestError(
            error_sentence(
                f"{what} says version {version!r}: this polydec reads traces up to {VERSION}"
            )
        )


def _checked(event: TraceEvent, what: str) -> TraceEvent:
    """The event, with the types that its readers rely on."""

    def text_ids(value: Any) -> bool:
        return isinstance(value, tuple) and all(type(x) is int for x in value)  # pyright: ignore[reportUnknownVariableType]

    def is_within(high: int, *values: Any) -> bool:
        """Whether all values are whole numbers of 0 or more and below a bound.

        Args:
            high: The bound.
            values: The values.

        Returns:
            True where they are.
        """
        return all(type(x) is int and 0 <= x < high for x in values)

    # A trace is a file from elsewhere: readers index lists by these numbers.
    good = is_within(MOST, event.choice)
    match event:
        case OpenedEvent():
            good &= text_ids(event.prompt) and is_within(1 << 64, *event.prompt)
        case ProposedEvent():
            good &= (
                text_ids(event.token)
                and text_ids(event.parent)
                and len(event.token) == len(event.parent) > 0
            )
            # Parents come before their children, so the walk over a tree ends.
            good = good and all(0 <= p < i for i, p in enumerate(event.parent) if i)
            good = good and is_within(LONGEST, event.position) and isinstance(event.piece, tuple)
            good = good and len(event.piece) in (0, len(event.token))
            good = good and all(isinstance(p, str) for p in event.piece) and text_ids(event.probes)
        # Each kind of event has its own fields, all of which are checked: a trace may come from
        # anybody.
        case VerifiedEvent():
            good &= text_ids(event.path) and is_within(LONGEST, event.position, *event.path)
            good = good and 0 not in event.path
        case PassedEvent():
            # A bool is an int in Python, and no time.
            times = (event.start, event.seconds)
            good &= isinstance(event.model, str) and all(
                type(t) in (int, float) and 0 <= t < 1e9 for t in times
            )
            good = good and is_within(1 << 40, event.positions, event.of, event.queries)
        case EditedEvent():
            good &= isinstance(event.pieces, tuple) and all(
                isinstance(p, str) for p in event.pieces
            )
            good = good and type(event.accepted) is int and 0 <= event.accepted <= 1 << 20
            good = good and text_ids(event.tokens) and _is_edit(event.edit)
        case ForcedEvent():
            good &= text_ids(event.position) and is_within(LONGEST, *event.position)
        case RemaskedEvent():
            good &= text_ids(event.position) and is_within(LONGEST, event.step, *event.position)
            good = good and all(isinstance(x, tuple) for x in (event.confidence, event.piece))
            good = good and len(event.position) == len(event.confidence) == len(event.piece)
            good = good and all(isinstance(p, str) for p in event.piece)
            good = good and all(type(c) is float for c in event.confidence)
        case UnmaskedEvent():
            good &= (
                all(map(text_ids, (event.position, event.block, event.fed)))
                and len(event.block) == len(event.fed) == 2
            )
            good = good and all(isinstance(x, tuple) for x in (event.confidence, event.piece))
            good = (
                good
                and is_within(LONGEST, event.step)
                and len(event.position) == len(event.confidence) == len(event.piece)
            )
            good = (
                good
                and all(isinstance(p, str) for p in event.piece)
                and all(type(c) is float for c in event.confidence)
            )
            good = good and all(0 <= p < 1 << 20 for p in (*event.position, *event.block))
        case BranchedEvent():
            good &= is_within(LONGEST, event.branch, event.at)
            good = good and type(event.parent) is int and -1 <= event.parent < LONGEST
        case TriedEvent():
            good &= is_within(LONGEST, event.branch) and text_ids(event.tokens)
            good = good and isinstance(event.pieces, tuple)
            good = good and len(event.pieces) == len(event.tokens)
            good = good and all(isinstance(p, str) for p in event.pieces)
        case ScoredEvent():
            good &= is_within(LONGEST, event.branch) and type(event.score) in (int, float)
            good = good and not math.isnan(event.score) and abs(event.score) < 1e300
        case PrunedEvent():
            good &= is_within(LONGEST, event.branch)
        case FinishedEvent():
            good &= isinstance(event.finish_reason, str)
    if not good:
        raise RequestError(f"{what}: an event {event_name(type(event))} with fields of other kinds")
    return event


def _is_edit(edit: TextEdit) -> bool:
    """Whether it holds pairs of a position and a token, and positions, none of them out of all
    bounds."""
    parts: tuple[object, ...] = (edit.write, edit.insert, edit.erase)
    if not all(isinstance(part, tuple) for part in parts):
        return False
    pairs: list[Any] = [*edit.write, *edit.insert]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):  # pyright: ignore
        return False
    # Erased positions, and those of pairs, must lie within bounds: they become list indices.
    positions: list[Any] = [*(pair[0] for pair in pairs), *edit.erase]
    tokens: list[Any] = [pair[1] for pair in pairs]
    return all(type(x) is int and x >= 0 for x in (*positions, *tokens)) and all(
        p < LONGEST for p in positions
    )


def _method(described: Any) -> str:
    if not isinstance(described, dict):
        return "a method"
    kept = str(described.get("guarantee"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return f"{described.get('name')} ({KEEPS.get(kept, kept)})"  # pyright: ignore[reportUnknownMemberType]
