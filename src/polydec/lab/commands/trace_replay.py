"""polydec trace replay: a recorded run made again under other settings, and how far that is from
what was run live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from polydec import api
from polydec.base.edge import error_sentence, escape_control_characters
from polydec.base.errors import RequestError
from polydec.cli.answer_story import ChoiceTrace, Key
from polydec.core.protocols import Target
from polydec.lab.bench.recorded_target import RecordedAnswer, ReplayRound, ReplayRun, replay_run
from polydec.lab.bench.replay_times import RecordClock
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import ModelArtefact
from polydec.models.formats import zoo
from polydec.models.learned import artefacts
from polydec.models.learned.kinds.ngrams import NGrams

LONGEST = 1 << 24
"""Tokens that an answer might have had."""


@dataclass(frozen=True)
class TraceSetting:
    """A method as a trace names it.

    Attributes:
        name: Name of the method.
        options: Its options.
    """

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class TraceOpening:
    """What the opening of an answer says, the prompt left out.

    Attributes:
        setting: The method and its options.
        size: Size of the vocabulary.
        ends: Token ids that end an answer.
        model: Name of the model.
        costs: What the method knew of the cost of passes; None: the trace does not say.
        tables: The model's own table of n-grams, where the run had it.
    """

    setting: TraceSetting
    size: int
    ends: frozenset[int]
    model: str
    costs: PassCosts | None
    tables: tuple[ModelArtefact, ...] = ()


@dataclass(frozen=True)
class ReplayFigures:
    """Figures of a run, or of several together.

    Attributes:
        tokens: Tokens that were written.
        passes: Passes of the model.
        seconds: Seconds of decoding after the first pass; None: unknown.
        timed: Tokens that were written in these seconds.
    """

    tokens: int
    passes: int
    seconds: float | None
    timed: int

    @staticmethod
    def of_answer(
        tokens: Sequence[int], rounds: Sequence[ReplayRound], seconds: float | None
    ) -> ReplayFigures:
        """The figures of one answer.

        Args:
            tokens: Its token ids.
            rounds: Its rounds.
            seconds: Seconds after the first pass; None: unknown.

        Returns:
            The figures.
        """
        # The first round's tokens are not in the time: its pass fed the end of the prompt as well.
        if rounds:
            first = rounds[0].accepted + 1
        else:
            first = 0
        return ReplayFigures(len(tokens), len(rounds), seconds, max(0, len(tokens) - first))

    def __add__(self, other: ReplayFigures) -> ReplayFigures:
        seconds = None
        if self.seconds is not None and other.seconds is not None:
            seconds = self.seconds + other.seconds
        return ReplayFigures(
            self.tokens + other.tokens,
            self.passes + other.passes,
            seconds,
            self.timed + other.timed,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON, with what follows from it."""
        return {
            "passes": self.passes,
            "tokens_per_pass": self.tokens / self.passes,
            "seconds": self.seconds,
            "tokens_per_second": self.timed / self.seconds if self.seconds else None,
        }


def made_again(
    file: Path,
    stories: Mapping[Key, ChoiceTrace],
    method: str | None,
    changed: Mapping[str, Any],
    draft: str | None,
    *,
    live: Mapping[Key, ChoiceTrace] | None = None,
    live_file: Path | None = None,
) -> dict[str, Any]:
    """Replay every answer of a trace under another setting.

    Args:
        file: The trace's file, for messages.
        stories: Its answers.
        method: The other method; None: the recorded one.
        changed: Options that differ from the recorded ones.
        draft: The draft model of a method that needs one; None: none.
        live: A trace of the same prompts under another setting, which is read from there; None:
            none.
        live_file: Its file, for messages.

    Returns:
        A row for each answer under "choices", and all together under "total".

    Raises:
        RequestError: The trace cannot be replayed, or the live one has other prompts or comes with
            a setting.
    """
    if draft is None:
        law = None
    else:
        law = api.load(draft, draft=None).checkpoint.lm
    if law is None:
        small = None
    else:
        small = ShapedTarget(law, GreedyRule())
    if live is not None and (method is not None or changed):
        raise RequestError("against is a run of one setting: give no --method or --set beside it")
    # Both traces must have the same requests and choices, as they are compared one by one.
    if live is not None and live.keys() != stories.keys():
        raise RequestError(error_sentence(f"against {str(live_file)!r}: its answers are others"))
    # Figures of all answers are kept, to be added up at the end.
    rows = list[dict[str, Any]]()
    totals = dict[str, list[ReplayFigures]]()
    for (request, choice), story in stories.items():
        known = _known(story, file)
        if live is None:
            told = None
        else:
            told = live[request, choice]
        # With a live run its own setting is replayed, so that both can be compared.
        if told is None:
            setting = _changed(known.setting, method, changed)
        else:
            setting = _known(told, live_file or file).setting
        row, figures = _answer(file, (request, choice), story, known, setting, small, told)
        rows.append(row)
        for name, each in figures.items():
            totals.setdefault(name, []).append(each)
    # Figures add up by their own rule: rates come from sums, not from means of rates.
    summed = {name: sum(every[1:], every[0]) for name, every in totals.items()}
    total = {name: each.to_json() for name, each in summed.items()}
    return {"choices": rows, "total": {**total, "equal": all(r["equal"] for r in rows)}}


def _changed(was: TraceSetting, method: str | None, changed: Mapping[str, Any]) -> TraceSetting:
    name = method or was.name
    # Options of the recorded method mean nothing to another one.
    options = {**(was.options if name == was.name else {}), **changed}
    registry.check_names(name, options)
    return TraceSetting(name, options)


def _answer(
    file: Path,
    key: Key,
    story: ChoiceTrace,
    known: TraceOpening,
    setting: TraceSetting,
    draft: Target | None,
    live: ChoiceTrace | None,
) -> tuple[dict[str, Any], dict[str, ReplayFigures]]:
    """The row of one answer, and its figures by whose they are."""
    request, choice = key
    tokens = tuple(story.written)
    # Canvases and ids outside the vocabulary cannot be replayed as drafts.
    if not tokens or story.canvas or max((*story.ids, *tokens)) >= known.size:
        raise RequestError(
            error_sentence(
                f"trace {str(file)!r}: request {request}, choice {choice} is no text of draft and verify that can be replayed"
            )
        )
    rounds = _rounds(story)
    # A limit out of range says nothing: the answer's own length serves then.
    limit: Any = story.head.get("max_tokens")
    recorded = RecordedAnswer(
        story.ids,
        tokens,
        known.size,
        known.ends,
        _company(story, known.model),
        limit if type(limit) is int and 0 <= limit <= LONGEST else 0,
    )

    def ask_again(how: TraceSetting) -> ReplayRun:
        return replay_run(recorded, how.name, how.options, draft, known.costs, known.tables)

    # The first run of a process also pays for what it imports: its time is thrown away.
    ask_again(known.setting)
    own = ask_again(known.setting)
    other = ask_again(setting)
    # The recorded setting is replayed as well: its error shows how far the prediction can be
    # trusted.
    clock = RecordClock.of_rounds(rounds, story.passes, known.model)
    if clock is None:
        predicted = None
    else:
        predicted = clock.predict_seconds(own, other, known.costs)
    figures = {
        "recorded": ReplayFigures.of_answer(tokens, rounds, clock and clock.seconds),
        "made_again": ReplayFigures.of_answer(
            tokens, own.rounds, clock and clock.predict_seconds(own, own, known.costs)
        ),
        "replayed": ReplayFigures.of_answer(tokens, other.rounds, predicted),
    }
    row: dict[str, Any] = {
        "request": request,
        "choice": choice,
        "tokens": len(tokens),
        "equal": own.rounds == rounds,
    }
    # The same figures of a run that took place, so that the replay's error can be read.
    if live is not None:
        ran = _rounds(live)
        time = RecordClock.of_rounds(ran, live.passes, known.model)
        written = tuple(live.written)
        figures["live"] = ReplayFigures.of_answer(written, ran, time and time.seconds)
        row |= {"same_text": written == tokens, "equal_live": other.rounds == ran}
    row |= {name: each.to_json() for name, each in figures.items()}
    row["replayed"] |= {
        "method": setting.name,
        "options": dict(setting.options),
        "drafted": sum(r.drafted for r in other.rounds),
        "accepted": sum(r.accepted for r in other.rounds),
    }
    return row, figures


def _rounds(story: ChoiceTrace) -> list[ReplayRound]:
    return [ReplayRound(r.position, r.drafted, r.accepted) for r in story.rounds]


def _company(story: ChoiceTrace, model: str) -> tuple[tuple[int, int], ...]:
    """From which position on how many requests shared the passes that wrote this answer."""
    # The last passes belong to the rounds; those before fed the prompt.
    mine = [p for p in story.passes if p.model == model]
    last = mine[max(0, len(mine) - len(story.rounds)) :]
    if len(last) != len(story.rounds):
        return ()
    return tuple((r.position, p.queries) for r, p in zip(story.rounds, last, strict=True))


def describe_replay(found: Mapping[str, Any]) -> str:
    """A line an answer; where there are several, one of all together behind them."""
    # Choices are named without their request where there is only one.
    rows: Sequence[Mapping[str, Any]] = found["choices"]
    several = len({r["request"] for r in rows}) > 1
    names = [
        f"request {r['request']}, choice {r['choice']}" if several else f"choice {r['choice']}"
        for r in rows
    ]
    lines = [_line(name, r, str(r["replayed"]["method"])) for name, r in zip(names, rows)]
    if len(rows) > 1:
        tokens = sum(r["tokens"] for r in rows)
        methods = {str(r["replayed"]["method"]) for r in rows}
        total = {**found["total"], "tokens": tokens}
        lines.append(_line("all together", total, methods.pop() if len(methods) == 1 else "they"))
    return "\n".join(map(escape_control_characters, lines))


def _line(name: str, row: Mapping[str, Any], method: str) -> str:
    was, own, other = (row[k] for k in ("recorded", "made_again", "replayed"))
    if row["equal"]:
        exact = "pass for pass"
    else:
        exact = _off(own, was, "tokens_per_pass", "tokens a pass")
    # The recorded setting made again shows the error of the method itself.
    parts = [
        f"{name}: {row['tokens']} tokens; recorded {was['tokens_per_pass']:.2f} tokens a pass, made again "
        f"{own['tokens_per_pass']:.2f} ({exact})",
        f"{method} would take {other['passes']} passes, {other['tokens_per_pass']:.2f} tokens a pass"
        + (f", {other['tokens_per_second']:.0f} tokens a second" if other["seconds"] else ""),
    ]
    if "live" in row:
        ran = row["live"]
        error = _off(other, ran, "tokens_per_pass", "tokens a pass")
        parts.append(
            f"it took {ran['passes']} passes, {ran['tokens_per_pass']:.2f} tokens a pass (replay: {error}"
        )
        if other["seconds"] and ran["seconds"]:
            speed = _off(other, ran, "tokens_per_second", "tokens a second")
            parts[-1] += f"; {ran['tokens_per_second']:.0f} tokens a second, replay: {speed}"
        parts[-1] += ")"
    return "; ".join(parts)


def _off(of: Mapping[str, Any], than: Mapping[str, Any], figure: str, words: str) -> str:
    return f"{of[figure] / than[figure] - 1:+.1%} {words}"


def _known(story: ChoiceTrace, path: Path) -> TraceOpening:
    """What the opening of an answer says. Raises RequestError where it does not say its method and
    vocabulary."""
    head = story.head
    was = head.get("method")
    size = head.get("vocabulary")
    ends = head.get("ends")
    # An old trace, or a damaged one, lacks these fields.
    if (
        not isinstance(was, dict)
        or type(size) is not int
        or not 0 < size <= 1 << 24
        or not isinstance(ends, list)
        or not all(type(x) is int for x in ends)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    ):
        raise RequestError(
            error_sentence(
                f"trace {str(path)!r} does not say its method and vocabulary: record it again"
            )
        )
    options: Any = was.get("options")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    name = str(was.get("name"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return TraceOpening(
        TraceSetting(name, dict(options) if isinstance(options, dict) else {}),  # pyright: ignore
        size,
        frozenset(int(x) for x in ends),  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        str(head.get("model")),
        _costs(head.get("costs"), path),
        _tables(str(head.get("model")), head.get("trained")),
    )


@cache
def _table(name: str) -> ModelArtefact:
    return artefacts.load_artefact(name)


def _tables(model: str, trained: Any) -> tuple[ModelArtefact, ...]:
    """The table of n-grams that travels with the model, where the run had it."""
    name = zoo.default_ngrams(model)
    # A run without the table must not be replayed with it.
    had = isinstance(trained, list) and NGrams.kind in trained
    if had and name is not None:
        return (_table(name),)
    return ()


def _costs(told: Any, path: Path) -> PassCosts | None:
    """Costs of passes as a trace has them. Raises RequestError where they are none."""
    if told is None:
        return None
    try:
        costs = PassCosts(
            **{
                k: tuple(map(float, v)) if isinstance(v, list) else float(v)
                for k, v in told.items()
                if v is not None
            }  # pyright: ignore
        )
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RequestError(
            error_sentence(f"trace {str(path)!r}: its costs cannot be read ({error})")
        ) from None
    # A trace is a file from elsewhere: odd numbers must not reach the cost model.
    numbers = (x for v in vars(costs).values() for x in (v if isinstance(v, tuple) else (v,)))
    if not all(x is None or (isinstance(x, float) and 0 <= x < 1e9) for x in numbers):
        raise RequestError(
            error_sentence(
                f"trace {str(path)!r}: its costs are not all numbers of at least 0 and below 1e9"
            )
        )
    return costs
