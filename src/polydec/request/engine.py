"""Many requests at once over one model, each with its own method and options, merged by one
scheduler."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from threading import RLock
from typing import Any, TypeVar, Unpack, cast, overload

from polydec.base import notebook
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.core.decoder import request_streams
from polydec.core.effects import Coro
from polydec.core.request import ImageMask, PromptLogprob, ReferenceState, Result, TokenLogprob
from polydec.core.scheduler import RequestPass, ScheduledTask, Scheduler
from polydec.core.trace import EditedEvent, Observer, OpenedEvent, TraceEvent, ignore_event
from polydec.core.transcript import Transcript
from polydec.laws.constraints.in_time import DeadlineLanguage
from polydec.methods.economics.costs import PassCosts
from polydec.models.sessions.reuse import cache_owner
from polydec.models.text.mask_view import draw_masks, mask_json, reference_json
from polydec.models.text.picture_view import DrawnPicture
from polydec.models.text.token_texts import token_text
from polydec.request.ask import bend_laws, choose_method, encode_prompts, validate_request
from polydec.request.batching import BatchingMode
from polydec.request.fair_queue import FairQueue, can_start_answers
from polydec.request.fields import (
    Ask,
    Prompt,
    RequestFields,
    ask_from_fields,
    holds_prompts,
    refuse_streamed,
)
from polydec.request.loaded import LoadedModel, check_loaded_model
from polydec.request.stages import EncodedRequest, RequestPlan
from polydec.request.tool_calls import ToolCall, read_calls, tool_names

MEMORIES = 32
"""Salts of which an engine keeps what methods remember: clients may make up any number of salts."""


N = TypeVar("N", TokenLogprob, PromptLogprob)


@dataclass(frozen=True)
class Choice:
    """One answer.

    text: without what ended it; token_ids: EOS or stop id included; finish_reason: "stop", "length",
    "stop_when" where that function ended it, or "abort"; logprobs: of each token where the request
    asks for them, else None; score: what a search ranked it by, or its mean log-probability where
    it is one of the best of several, None where nothing was ranked; reasoning: what was thought before it, None
    where nothing was, or is parted from the text; tools: names of the tools that it might call;
    picture: what its tokens draw, of a model of pictures, or its masks; else None. image_masks: parts of the
    prompt's image that its tokens stand for; reference_states: what its tokens refer to, with the model's states there.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    score: float | None = None
    reasoning: str | None = None
    tools: frozenset[str] = field(default=frozenset(), repr=False)
    picture: DrawnPicture | None = field(default=None, compare=False)
    image_masks: tuple[ImageMask, ...] = field(default=(), compare=False)
    reference_states: tuple[ReferenceState, ...] = field(default=(), compare=False)

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that its text holds of the request's tools, in order; none where it had no
        tools."""
        if not self.tools:
            return ()
        # An answer that was cut may end within a call.
        cut = self.finish_reason == "length"
        return tuple(read_calls(self.text, self.tools, cut=cut)[1])


@dataclass(frozen=True)
class Piece:
    """One token of a stream. text: what it made certain, "" where that waits for a later token;
    token: its id; drafted: whether a draft had guessed it; choice: which of the n answers it
    belongs to, from 0."""

    text: str
    token: int
    drafted: bool
    choice: int = 0


@dataclass(frozen=True, repr=False)
class Completion:
    """The answer to one request. `metrics` and `usage` are those of the JSON that the command line
    prints.

    choices: the n answers; method: what decoded it, by name, with its options and what it promises.
    tokens_per_second counts decoding only: the tokens after those of the first pass, over the
    seconds after it; seconds and time_to_first_token hold the prompt as well. positions_fed and
    passes count the target; `models` all models. prompt_logprobs: of each token of the prompt where
    the request asks for them, else None. edits: how the texts were written. unit: what ids, usage,
    log-probabilities and figures count: "token", or "byte" where the request asks for bytes.
    cached_tokens: of the prompt, those of which another text's cache held the entries, so that they
    were not fed.
    """

    choices: tuple[Choice, ...]
    usage: dict[str, int]
    method: dict[str, Any]
    metrics: dict[str, Any]
    prompt_logprobs: tuple[PromptLogprob, ...] | None = None
    edits: tuple[EditedEvent, ...] = field(default=(), compare=False)
    unit: str = "token"
    cached_tokens: int = 0

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """All texts as they became certain, piece by piece; a notebook shows those that were
        drafted in colour."""
        return tuple(_pieces(self.edits))

    def __repr__(self) -> str:
        if len(self.text) <= 60:
            begun = self.text
        else:
            begun = f"{self.text[:59]}…"
        return f"Completion({begun!r}, {', '.join(self._facts())})"

    def _repr_html_(self) -> str:
        pictures = [c.picture for c in self.choices if c.picture is not None]
        shown = [notebook.picture_html(p.base64_text) for p in pictures]
        masked = any(c.image_masks for c in self.choices)
        # Tokens that draw a picture are not shown as text.
        if pictures and not masked:
            return notebook.answers_html(shown, self._facts(), False)
        texts = [
            notebook.pieces_html(p for p in self.pieces if p.choice == at)
            for at in range(len(self.choices))
        ]
        legend = any(p.drafted for p in self.pieces)
        return notebook.answers_html([*texts, *shown], self._facts(), legend)

    def _facts(self) -> list[str]:
        """What a reader wants to know beside the text."""
        count = self.usage["completion_tokens"]
        each = self.metrics.get("tokens_per_pass")
        speed = self.metrics.get("tokens_per_second")
        kinds = {c.finish_reason for c in self.choices}
        return [
            *([f"{len(self.choices)} answers"] if len(self.choices) > 1 else []),
            f"{count} {self.unit}{'s' if count != 1 else ''}",
            f"method {self.method['name']}",
            *([f"{each:.2f} {self.unit}s a pass"] if each else []),
            *([f"{speed:.0f} {self.unit}s a second"] if speed else []),
            f"ended by {' and '.join(sorted(kinds))}",
        ]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def reasoning(self) -> str | None:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def picture(self) -> DrawnPicture | None:
        """The first answer as a picture, or its masks; None: it is text alone."""
        return self.choices[0].picture

    @property
    def image_masks(self) -> tuple[ImageMask, ...]:
        """Parts of the prompt's image that tokens of the first answer stand for."""
        return self.choices[0].image_masks

    @property
    def reference_states(self) -> tuple[ReferenceState, ...]:
        """What tokens of the first answer refer to, with the model's states there."""
        return self.choices[0].reference_states

    def to_json(self) -> dict[str, Any]:
        """The object of `polydec generate --json`."""
        out: dict[str, Any] = {
            "text": self.text,
            **({} if self.reasoning is None else {"reasoning": self.reasoning}),
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            **_calls_json(self.choices[0]),
            **picture_json(self.choices[0]),
            "usage": self.usage,
            "method": self.method,
            "metrics": self.metrics,
        }
        # Tokens are the usual unit, and not named.
        if self.unit != "token":
            out["unit"] = self.unit
        first = self.choices[0]
        # One plain answer needs no list of choices.
        if len(self.choices) > 1 or first.logprobs is not None or first.score is not None:
            out["choices"] = [_choice_json(c) for c in self.choices]
        if self.prompt_logprobs is not None:
            out["prompt_logprobs"] = [vars(t) for t in self.prompt_logprobs]
        return out


def _calls_json(c: Choice) -> dict[str, Any]:
    if not c.tool_calls:
        return {}
    return {"tool_calls": [vars(call) for call in c.tool_calls]}


def picture_json(c: Choice) -> dict[str, Any]:
    """What JSON says of an answer's picture, masks and references; nothing where it has none."""
    out: dict[str, Any] = {}
    if c.picture is not None:
        out["b64_json"] = c.picture.base64_text
    # A picture alone is all of an answer; masks stand beside its text.
    if c.image_masks:
        out["masks"] = [mask_json(mask) for mask in c.image_masks]
    if c.reference_states:
        out["references"] = [reference_json(one) for one in c.reference_states]
    return out


def _choice_json(c: Choice) -> dict[str, Any]:
    out: dict[str, Any] = {
        "text": c.text,
        **({} if c.reasoning is None else {"reasoning": c.reasoning}),
        "token_ids": list(c.token_ids),
        "finish_reason": c.finish_reason,
        **_calls_json(c),
        **picture_json(c),
        "logprobs": None if c.logprobs is None else [vars(t) for t in c.logprobs],
    }
    if c.score is None:
        return out
    return {**out, "score": c.score}


@dataclass
class TicketObserver:
    """The clock beside a request's events, the edits that nobody has taken yet, and those that were
    taken before."""

    on: Observer
    opened: float = 0.0
    first: float | None = None
    last: float = 0.0
    edits: deque[EditedEvent] = field(default_factory=deque[EditedEvent])
    taken: list[EditedEvent] = field(default_factory=list[EditedEvent])

    def __post_init__(self) -> None:
        if self.on is ignore_event:
            self.kinds = (OpenedEvent, EditedEvent)
        else:
            self.kinds = getattr(self.on, "kinds", _EVERY)

    def __call__(self, event: TraceEvent) -> None:
        if isinstance(event, EditedEvent):
            self.last = time.perf_counter()
            if self.first is None:
                self.first = self.last
            self.edits.append(event)
        elif isinstance(event, OpenedEvent) and not self.opened:
            self.opened = self.last = time.perf_counter()
        if self.on is not ignore_event:
            self.on(event)

    def final_pieces(self) -> list[Piece]:
        """What became final since this was last asked."""
        new = list(self.edits)
        self.edits.clear()
        self.taken += new
        return _pieces(new)


def _pieces(edits: Sequence[EditedEvent]) -> list[Piece]:
    """What became certain by some edits, token by token."""
    return [
        Piece(text, token, at < edit.accepted, edit.choice)
        for edit in edits
        for at, (text, token) in enumerate(zip(edit.pieces, edit.tokens, strict=True))
    ]


class _EveryEventKind:
    """All kinds of events."""

    def __contains__(self, kind: object) -> bool:
        return True


_EVERY = _EveryEventKind()


class Ticket:
    """A request under way: waiting, running, or done. It belongs to the engine that gave it."""

    def __init__(
        self,
        engine: Engine,
        made: RequestPlan,
        on: Observer,
        passes: list[RequestPass] | None = None,
        cache_salt: str = "",
        client: str = "",
    ) -> None:
        self.engine = engine
        self.plan = made
        self.watch = TicketObserver(on)
        self.passes = passes
        self.cache_salt = cache_salt
        self.client = client
        self.transcript = Transcript(made.request, made.decoder.vocab.eos, self.watch)
        # None while it waits for its turn.
        self.task: ScheduledTask | None = None
        # Bytes of cache that it had when it was last put on hold.
        self.gave_back = 0
        self.cancelled = False

    def __repr__(self) -> str:
        prompt = short_repr(self.plan.encoded.ask.prompt)
        return f"Ticket({prompt}, {self.current_status}, {self.written} tokens, method {self.plan.card.name})"

    @property
    def current_status(self) -> str:
        """Where it stands: "waiting", "running", "cancelled", "failed" or "done"."""
        # First, as a cancelled request may have begun or not.
        if self.cancelled:
            return "cancelled"
        if self.task is None:
            return "waiting"
        if not self.task.done:
            return "running"
        if self.task.error is None:
            return "done"
        return "failed"

    @property
    def method(self) -> dict[str, Any]:
        return self.plan.method

    @property
    def done(self) -> bool:
        return self.cancelled or (self.task is not None and self.task.done)

    @property
    def written(self) -> int:
        """Tokens of its answers so far."""
        return sum(len(text.tokens) for text in self.transcript.texts.values())

    @property
    def results(self) -> list[Result]:
        """The answers of a request that has run to its end; else none."""
        if self.task is None or self.task.result is None:
            return []
        return self.task.result

    def completion(self) -> Completion:
        """The answers, or what there is of them (finish_reason "abort"). Raises what the request's
        coroutine raised."""
        if self.task is not None and self.task.error is not None:
            raise self.task.error
        # A request that was stopped has the answers so far.
        if self.results:
            written = [
                Choice(
                    r.text,
                    r.token_ids,
                    r.finish_reason,
                    r.logprobs,
                    r.score,
                    image_masks=r.masks,
                    reference_states=r.references,
                )
                for r in self.results
            ]
        else:
            written = [self._so_far(choice) for choice in self.plan.request.choices]
        ask = self.plan.encoded.ask
        given = range(len(written))
        if ask.best_of is not None:
            given = _best_answers(written, ask.n)
            written = [replace(c, score=_mean_logprob(c)) for c in written]
        choices = tuple(self._parted(written[at]) for at in given)
        # What was drawn and not given was computed all the same.
        usage = {
            "prompt_tokens": len(self.plan.request.prompt) + self.plan.source,
            "completion_tokens": sum(len(c.token_ids) for c in written),
        }
        thinking = self.plan.thinking
        # Part of the completion, and counted besides.
        if thinking is not None:
            thought = (thinking.track.thought_tokens(c.token_ids) for c in written)
            usage["reasoning_tokens"] = sum(thought)
        if self.plan.request.prompt_logprobs is None:
            noted = None
        else:
            noted = self._spelled_notes(self.transcript.prompt)
        return Completion(
            choices,
            usage,
            self.method,
            self._metrics(usage["completion_tokens"]),
            noted,
            _edits_of((*self.watch.taken, *self.watch.edits), given),
            self.plan.unit,
            self._cached_tokens,
        )

    @property
    def _cached_tokens(self) -> int:
        """How many tokens of the prompt were not fed."""
        request = self.plan.request
        # A prompt whose log-probabilities are asked for is fed whole.
        whole = request.prompt_logprobs is not None
        if self.task is None or whole or self.plan.unit != "token":
            return 0
        return self.task.cached_of(self.engine.model.network, len(request.prompt) - 1)

    def _so_far(self, choice: int) -> Choice:
        text = self.transcript.texts.get(choice)
        if text is None:
            return Choice("", (), "abort")
        return Choice(text.text, tuple(text.tokens), text.reported_reason or "abort")

    def _parted(self, choice: Choice) -> Choice:
        """An answer as users see it: its tokens have their text, and what was thought before it
        stands apart where that is asked for."""
        ask = self.plan.encoded.ask
        if ask.logprobs is None:
            choice = replace(choice, logprobs=None)
        elif choice.logprobs is not None:
            choice = replace(choice, logprobs=self._spelled_notes(choice.logprobs))
        if ask.tools:
            choice = replace(choice, tools=tool_names(ask.tools))
        if self.plan.thinking is not None:
            thought, said = self.plan.thinking.split_answer(choice.text, choice.finish_reason)
            choice = replace(choice, text=said, reasoning=thought)
        if ask.echo:
            choice = replace(choice, text=self._echo + choice.text)
        view = self.plan.encoded.model.checkpoint.view
        if view is not None:
            choice = replace(choice, picture=view.draw_tokens(choice.token_ids))
        elif choice.image_masks:
            choice = replace(choice, picture=draw_masks(choice.image_masks))
        return choice

    @cached_property
    def _echo(self) -> str:
        """The prompt's text."""
        encoded = self.plan.encoded
        if isinstance(encoded.ask.prompt, str):
            return encoded.ask.prompt
        return encoded.checked.model.checkpoint.text.decode(encoded.ids)

    def _spelled_notes(self, notes: Sequence[N]) -> tuple[N, ...]:
        """Log-probabilities with the text of each token."""
        # Methods know tokens by their numbers alone, so the texts come at the end.
        words = self.plan.encoded.checked.model.checkpoint.text
        return tuple(
            replace(
                note,
                text=token_text(words, note.token),
                top_text=tuple(token_text(words, token) for token, _ in note.top),
            )
            for note in notes
        )

    def _steered(self, ending: DeadlineLanguage, tokens: tuple[int, ...]) -> int:
        """How many tokens of an answer were the only ones allowed, so that it ended in time."""
        thinking = self.plan.thinking
        if thinking is None or not thinking.shown_apart:
            return ending.count_steered(tokens)
        return ending.count_steered(tokens, thinking.track.before_answer(tokens))

    def _metrics(self, count: int) -> dict[str, Any]:
        watch = self.watch
        results = self.results
        if watch.first is None:
            first = watch.last
        else:
            first = watch.first
        # Decoding begins behind the first pass, which fed the prompt.
        later = count - sum(r.stats.first for r in results)
        decoding = watch.last - first
        stats = None
        for r in results:
            if stats is None:
                stats = r.stats
            else:
                stats = stats.plus_stats(r.stats)
        passes = 0 if stats is None else stats.passes
        if self.task is None:
            use = {}
        else:
            use = self.task.usage
        names = self.engine.model.names
        target = self.engine.model.network
        ending = self.plan.ending
        return {
            "seconds": watch.last - watch.opened,
            "time_to_first_token": first - watch.opened,
            "tokens_per_second": later / decoding if later and decoding > 0 else None,
            "target_passes": passes,
            "tokens_per_pass": count / passes if passes else None,
            "positions_fed": use[target].positions if target in use else 0,
            **({} if stats is None else stats.metrics()),
            **(
                {}
                if ending is None
                else {"steered_tokens": sum(self._steered(ending, r.token_ids) for r in results)}
            ),
            "models": [
                {
                    "name": names.get(m, "?"),
                    "passes": u.passes,
                    "positions_fed": u.positions,
                    "seconds": u.seconds,
                }
                for m, u in use.items()
            ],
            "kernel": self.engine.model.checkpoint.kernel,
        }


def _mean_logprob(choice: Choice) -> float:
    """Of the tokens of an answer under the model; of one without any, less than of all others."""
    if not choice.logprobs:
        return -inf
    return sum(note.model_logp for note in choice.logprobs) / len(choice.logprobs)


def _best_answers(written: Sequence[Choice], count: int) -> Sequence[int]:
    """The numbers of the answers of the highest mean log-probability, the best first; of equal ones
    the earlier first."""
    ranked = sorted(range(len(written)), key=lambda at: -_mean_logprob(written[at]))
    return ranked[:count]


def _edits_of(edits: Sequence[EditedEvent], given: Sequence[int]) -> tuple[EditedEvent, ...]:
    """The edits of the answers that are given, by their new numbers."""
    place = {old: new for new, old in enumerate(given)}
    return tuple(
        edit if place[edit.choice] == edit.choice else replace(edit, choice=place[edit.choice])
        for edit in edits
        if edit.choice in place
    )


class MethodMemories:
    """What methods keep between requests, by cache_salt and method. Bounded: beyond MEMORIES salts,
    of the owner (`cache_owner`) that has the most, the one that was asked for the longest ago is
    forgotten."""

    def __init__(self) -> None:
        self._by_salt = OrderedDict[str, dict[str, dict[str, Any]]]()

    def of_method(self, cache_salt: str, method: str) -> dict[str, Any]:
        """The memory of a method.

        Args:
            cache_salt: Of the request.
            method: By its name.

        Returns:
            What it left for its later requests, which it may change.
        """
        methods = self._by_salt.setdefault(cache_salt, {})
        self._by_salt.move_to_end(cache_salt)
        if len(self._by_salt) > MEMORIES:
            owners = Counter(map(cache_owner, self._by_salt))
            # Among equals the first: the salt that was asked for the longest ago.
            largest = owners.most_common(1)[0][0]
            del self._by_salt[next(s for s in self._by_salt if cache_owner(s) == largest)]
        return methods.setdefault(method, {})


class Engine:
    """Requests to one model, merged by one scheduler. It may be called from several threads:
    `submit` at any time, and whoever waits for an answer drives the others' along (`run`, `step`).

    max_running: answers that are written at the same time, at least 1; other requests wait their
    turn, first come first served. Where several clients ask, each has an equal share of these:
    whoever has fewest running is next, and what others write beyond their shares does not count
    against it (so a little more than max_running may run). max_positions: of one pass, at least 1,
    or a function that gives it by how many answers are being written (`PassCosts.pass_budget`, from what
    passes cost); what is over waits for the next, and prompts fill what the others leave. doubling:
    behind so many tokens a position counts twice there, above 0 (`PassCosts.doubling`; without it
    each counts once). max_cache_bytes: of the caches of all requests together, at least 1, None for
    no limit: while there is more, the youngest request is put on hold and gives its caches back,
    and its text is fed anew when there is room. One request may always go on, and one whose caches
    could not be fed again as they are (reuse "edited") waits for room and is not put on hold.
    batching: how answers share passes (request/batching.py), None: ragged, as fast as any here.
    None of these changes a text.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_running: int = 256,
        max_positions: int | Callable[[int], int] = 4096,
        max_cache_bytes: int | None = None,
        doubling: float = inf,
        batching: BatchingMode | None = None,
    ) -> None:
        # A function gives the bound by how many answers are being written.
        positions = max_positions if callable(max_positions) else lambda _: max_positions
        limits = {
            "max_running": max_running,
            "max_positions": 1 if callable(max_positions) else max_positions,
            "max_cache_bytes": 1 if max_cache_bytes is None else max_cache_bytes,
        }
        for name, value in limits.items():
            if type(value) is not int or value < 1:
                raise RequestError(f"{name} is {value!r}: it must be a whole number of at least 1")
        if not doubling > 0.0:
            raise RequestError(f"doubling is {doubling!r}: it must be above 0")
        check_loaded_model(model)
        if batching is None:
            self.model = model
        else:
            self.model = batching.batched_model(model)
        self.max_running = max_running
        self.max_cache_bytes = max_cache_bytes
        # How often a request was put on hold.
        self.preempted = 0
        self._scheduler = Scheduler(
            positions=positions,
            doubling=doubling,
            choose=None if batching is None else batching.choose_queries,
            pool=self.model.pool,
        )
        self._memories = MethodMemories()
        self._waiting = FairQueue[Ticket]()
        self._running: list[Ticket] = []
        # On hold, the oldest first.
        self._held: list[Ticket] = []
        # Whoever holds it drives the scheduler.
        self._lock = RLock()

    def submit(
        self,
        prompt: Prompt | Ask,
        *,
        on: Observer = ignore_event,
        passes: list[RequestPass] | None = None,
        client: str = "",
        **fields: Unpack[RequestFields],
    ) -> Ticket:
        """Check a request and put it into the queue; nothing is computed yet.

        Args:
            prompt: An Ask, or the prompt of one whose other fields are given by name.
            on: Is told of every event, in the thread that drives the engine.
            passes: A list that is given a record of every pass. None: nobody wants them.
            client: Who asks, for equal shares of `max_running`.
            fields: Those of Ask and of sampling, by name.

        Returns:
            The ticket of the request.

        Raises:
            RequestError: Something cannot be honoured, in one sentence.
            TypeError: A field is unknown, stands beside an Ask, or twice.
        """
        encoded = self.encode_request(ask_from_fields(prompt, fields))
        return self.submit_encoded(encoded, on=on, passes=passes, client=client)

    def encode_request(self, ask: Ask) -> EncodedRequest:
        """Check a request against the engine's model, and make token ids of its prompts.

        Args:
            ask: The request.

        Returns:
            The request for `submit_encoded`.

        Raises:
            RequestError: Something cannot be honoured, in one sentence.
        """
        return encode_prompts(validate_request(self.model, ask))

    def submit_encoded(
        self,
        encoded: EncodedRequest,
        *,
        on: Observer = ignore_event,
        passes: list[RequestPass] | None = None,
        client: str = "",
    ) -> Ticket:
        """Put a request into the queue whose prompt is encoded; nothing is computed yet.

        Args:
            encoded: The request, for this engine's model.
            on: Is told of every event, in the thread that drives the engine.
            passes: A list that is given a record of every pass. None: nobody wants them.
            client: Who asks, for equal shares of `max_running`.

        Returns:
            The ticket of the request.

        Raises:
            RequestError: Something cannot be honoured, in one sentence.
        """
        # Checked now, as it would fail only in the middle of an answer.
        if not callable(on):
            raise RequestError(f"on is {short_repr(on)}: it must be a function that takes an event")
        if not isinstance(passes, list | None):
            raise RequestError(f"passes is {short_repr(passes)}: it must be a list, or none")
        salt = encoded.ask.cache_salt
        memory = partial(self._memories.of_method, salt)
        plan = choose_method(bend_laws(encoded), memory=memory, measure=self._measure)
        ticket = Ticket(self, plan, on, passes, salt, client)
        self._waiting.add_item(client, ticket)
        return ticket

    def _measure(self) -> PassCosts:
        # Whoever plans need not wait for the pass under way where costs are known.
        if "costs" in vars(self.model):
            return self.model.costs
        # A network runs one pass at a time, so what is under way ends before passes are timed.
        with self._lock:
            self._scheduler.settle_task()
            return self.model.costs

    def run_reading(self, work: Coro) -> ScheduledTask:
        """Let the coroutine `work` run beside the requests, in passes that they share, such as one
        that reads vectors out of texts. Its task has `done`, `result` and `error`; whoever drives
        the engine may `close` it."""
        with self._lock:
            return self._scheduler.submit_coroutine(work)

    def step(self) -> bool:
        """One tick for all requests; False when none is left."""
        with self._lock:
            if self._waiting or self._held:
                self._admit()
            more = self._scheduler.step()
            for ticket in (*self._running, *self._held):
                if ticket.done:
                    self._forget_done()
                    break
            # Without a limit nobody is ever put on hold.
            if self.max_cache_bytes is not None:
                self._make_room()
            return more or bool(self._waiting or self._held)

    def _admit(self) -> None:
        """Let requests go on that were on hold, then start those whose turn it is."""
        while self._held and (not self._running or self._has_room(self._held[0].gave_back)):
            ticket = self._held.pop(0)
            assert ticket.task is not None, "a request that never began was on hold"
            self._scheduler.resume_task(ticket.task)
            self._running.append(ticket)
        if self._held or not self._waiting:
            return
        # Answers that are being written, by client.
        running = Counter[str]()
        for ticket in self._running:
            running[ticket.client] += ticket.plan.request.n
        while self._waiting:
            client, ticket = self._waiting.first_client(running)
            request = ticket.plan.request
            if ticket.cancelled:
                self._waiting.take_first(client)
                continue
            if self._running and not can_start_answers(
                client, request.n, running, self.max_running
            ):
                return
            # Caches that cannot be fed again as they are wait for room, as they will not be given back.
            if self._running and ticket.plan.is_pinned and not self._has_room(0):
                return
            self._waiting.take_first(client)
            running[client] += request.n
            self._running.append(ticket)
            run = ticket.plan.decoder.write_choices(
                request, request_streams(request), ticket.transcript
            )
            ticket.task = self._scheduler.submit_coroutine(run, ticket.cache_salt)
            ticket.task.passes = ticket.passes

    @property
    def cached(self) -> int:
        """Bytes of the caches of all requests."""
        return sum(point.lm.nbytes for point in self.model.ready)

    def _has_room(self, more: int) -> bool:
        return self.max_cache_bytes is None or self.cached + more <= self.max_cache_bytes

    def _make_room(self) -> None:
        """While the caches are over the limit, ask the youngest request to stop; those that have
        stopped give their caches back."""
        for ticket in [
            t for t in self._running if t.task is not None and self._scheduler.has_stopped(t.task)
        ]:
            # What each gives back is noted: so much room it needs to go on.
            before = self.cached
            for model in self.model.ready:
                for session in list(model.lm.live):
                    if session.owner is ticket.task:
                        session.evict_cache()
            ticket.gave_back = before - self.cached
            self.preempted += 1
            self._running.remove(ticket)
            self._held.insert(0, ticket)
        going = [t for t in self._running if t.task is not None and t.task.paused is None]
        if not self._has_room(0) and len(going) > 1 and len(going) == len(self._running):
            # The youngest stops; the oldest may always go on, so that one of them ends.
            young = next((t.task for t in reversed(going) if not t.plan.is_pinned), None)
            if young is not None:
                self._scheduler.hold_task(young)

    def cancel(self, ticket: Ticket) -> None:
        """End the request of a ticket; its completion then holds what there was, with finish_reason
        "abort". One that is done stays so."""
        self._own(ticket)
        with self._lock:
            if not ticket.done:
                ticket.cancelled = True
                if ticket.task is not None:
                    self._scheduler.cancel(ticket.task)
                self._forget_done()

    def _forget_done(self) -> None:
        self._running = [t for t in self._running if not t.done]
        self._held = [t for t in self._held if not t.done]

    def _own(self, ticket: Ticket) -> None:
        if not isinstance(ticket, Ticket):
            raise RequestError(
                f"ticket is {short_repr(ticket)}: it must be what submit of this engine gave"
            )
        if ticket.engine is not self:
            raise RequestError("the ticket belongs to another engine: only that one can run it")

    def run(self, tickets: Sequence[Ticket]) -> list[Completion]:
        """Tick until these tickets are done, and return their answers in the same order. The first
        error is raised after all have ended."""
        if isinstance(tickets, Ticket):
            raise RequestError("tickets is one ticket: give a list of them, run([ticket])")
        for ticket in tickets:
            self._own(ticket)
        total = sum(t.plan.request.max_tokens * t.plan.request.n for t in tickets)
        with notebook.show_notebook_progress(
            total, lambda: sum(t.written for t in tickets)
        ) as look:
            for ticket in tickets:
                while not ticket.done:
                    if not self.step() and not ticket.done:
                        raise RuntimeError("nothing is left to run, and the request is not done")
                    look()
        return [t.completion() for t in tickets]


Prompts = list[str] | list[Ask] | list[list[int]] | list[list[dict[str, str]]]
"""Several prompts: texts, whole requests, lists of token ids, or chats."""


@overload
def generate(
    model: LoadedModel,
    prompt: Prompt | Ask,
    *,
    on: Observer = ...,
    passes: list[RequestPass] | None = ...,
    **fields: Unpack[RequestFields],
) -> Completion: ...


@overload
def generate(
    model: LoadedModel,
    prompt: Prompts,
    *,
    on: Observer = ...,
    passes: list[RequestPass] | None = ...,
    **fields: Unpack[RequestFields],
) -> list[Completion]: ...


def generate(
    model: LoadedModel,
    prompt: Prompt | Ask | Prompts,
    *,
    on: Observer = ignore_event,
    passes: list[RequestPass] | None = None,
    **fields: Unpack[RequestFields],
) -> Completion | list[Completion]:
    """Decode one request to its end, or several in passes that they share.

    Args:
        model: What `load` gave.
        prompt: Text, token ids or chat messages, or a whole Ask; or a list of several of these,
            each of which gets the text that it gets alone.
        on: Is told of every event of one request, in this thread.
        passes: A list that is given a record of every pass of one request. None: nobody wants them.
        fields: Those of Ask and of sampling, by name; of several prompts, each gets them.

    Returns:
        All answers of the request with what they cost; of a list of prompts, a list of these in its
        order.

    Raises:
        RequestError: Something cannot be honoured, in one sentence.
        TypeError: A field is unknown, stands beside an Ask, or twice.
    """
    engine = Engine(model)
    if not holds_prompts(prompt):
        single = cast("Prompt | Ask", prompt)
        return engine.run([engine.submit(single, on=on, passes=passes, **fields)])[0]
    for name, given in (("on", on is not ignore_event), ("passes", passes is not None)):
        if given:
            raise RequestError(
                f"{name} is given beside a list of prompts, and would not say of which it is told: "
                "submit each to an Engine"
            )
    # All are checked before the first one is decoded: a wrong one costs no time.
    tickets = list[Ticket]()
    for at, one in enumerate(prompt):
        try:
            tickets.append(engine.submit(one, **fields))
        except PolydecError as why:
            # Of many prompts the wrong one is hard to find.
            raise type(why)(f"prompt {at}: {why}") from None
    return engine.run(tickets)


def stream(
    model: LoadedModel,
    prompt: Prompt | Ask,
    *,
    on: Observer = ignore_event,
    passes: list[RequestPass] | None = None,
    **fields: Unpack[RequestFields],
) -> Iterator[Piece]:
    """The pieces of one request as they become certain. Closing the iterator cancels the request.

    Args:
        model: What `load` gave.
        prompt: Text, token ids or chat messages, or a whole Ask.
        on: Is told of every event, in this thread.
        passes: A list that is given a record of every pass. None: nobody wants them.
        fields: Those of Ask and of sampling, by name.

    Yields:
        A piece for each token.

    Raises:
        RequestError: Something cannot be honoured, in one sentence.
        TypeError: A field is unknown, stands beside an Ask, or twice.
    """
    engine = Engine(model)
    ask = ask_from_fields(prompt, fields)
    refuse_streamed(ask)
    ticket = engine.submit(ask, on=on, passes=passes)
    yield from stream_ticket(engine, ticket)


def stream_ticket(engine: Engine, ticket: Ticket) -> Iterator[Piece]:
    """Tick the engine and hand out what becomes certain of one ticket. Closing the iterator cancels
    it.

    Args:
        engine: Gave the ticket.
        ticket: Of the request.

    Yields:
        A piece for each token; at the end it raises what the request raised.
    """
    try:
        while not ticket.done:
            engine.step()
            yield from ticket.watch.final_pieces()
    finally:
        engine.cancel(ticket)
    yield from ticket.watch.final_pieces()
    ticket.completion()
