"""What Python users call: load a model, generate, stream, and an engine for many requests at once."""
from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from typing import Any, get_args

import torch

from polydec import registry
from polydec.core.costs import Costs
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.scheduler import Scheduler, Task, Usage
from polydec.core.trace import Edited, Event, Observer, Opened, ignore
from polydec.models import checkpoint, zoo
from polydec.models.checkpoint import Checkpoint
from polydec.models.ngrams import NGrams
from polydec.models.ngrams import load as load_ngrams
from polydec.shapers.sampling import Sampling, build_guard, build_shapers
from polydec.targets.shaped import Shaped

TORCH_THREADS = torch.get_num_threads()
"""Threads that torch came with: what a model on the torch path gets unless told otherwise."""

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text (through the chat template where the model has one), token ids as they stand, or chat messages."""


@dataclass(frozen=True)
class LM:
    """A loaded model, and the draft and the n-gram table that go with it (None: methods that need one say so)."""
    checkpoint: Checkpoint
    draft: Checkpoint | None = None
    ngrams: NGrams | None = None

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @cached_property
    def costs(self) -> Costs:
        """What passes cost on this machine: from the profile that `polydec tune` keeps; where there is none, measured now
        and kept, which takes about ten seconds and is said in a warning."""
        from polydec.bench import profile
        found = profile.read(self)
        if found is None:
            warnings.warn(f"no profile of {self.name} on this machine: measuring passes for {profile.QUICK:.0f} seconds "
                          "(`polydec tune` measures more carefully)", stacklevel=2)
            found = profile.measure(self, seconds=profile.QUICK)
            profile.keep(self, found)
            if profile.read(self) is None:
                warnings.warn(f"the profile could not be kept in {profile.path()}: the next process measures again "
                              "(XDG_CACHE_HOME names another place)", stacklevel=2)
        return found.costs

    def check(self, method: str, options: Mapping[str, Any] | None = None) -> None:
        """Raise ValueError with one sentence where this model cannot be decoded by a method with these options."""
        registry.build(method, self.checkpoint.lm, None if self.draft is None else self.draft.lm, options, ngrams=self.ngrams)

    @property
    def network(self) -> Any:
        """What runs its passes."""
        return self.checkpoint.lm.network

    def sampling(self, **given: Any) -> Sampling:
        """The checkpoint's own sampling fields, then the given ones (None: not given); temperature is 0 where neither
        says. Raises ValueError for a value out of range, TypeError for an unknown field."""
        own = self.checkpoint.generation
        known = {k: own[k] for k in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty") if own.get(k) is not None}
        if own.get("do_sample") is False:
            known.pop("temperature", None)
        return Sampling(**{"temperature": 0.0, **known, **{k: v for k, v in given.items() if v is not None}})

    def ids(self, prompt: Prompt, *, raw: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt. Raises ValueError where it is empty."""
        if not prompt or (isinstance(prompt, str) and not prompt.strip()):
            raise ValueError("prompt is empty: give a text of at least one character")
        text = self.checkpoint.text
        if isinstance(prompt, str):
            return text.encode(prompt) if raw or not text.has_chat else text.chat([{"role": "user", "content": prompt}])
        if isinstance(prompt[0], Mapping):
            if not text.has_chat:
                raise ValueError(f"{self.name} has no chat template: give the prompt as text")
            return text.chat([dict(m) for m in prompt])       # pyright: ignore[reportArgumentType, reportCallIssue]
        ids, size = tuple(map(index, prompt)), self.checkpoint.lm.vocab.size           # pyright: ignore[reportArgumentType]
        if (strange := next((x for x in ids if not 0 <= x < size), None)) is not None:
            raise ValueError(f"prompt has token {strange}: ids lie in 0 to {size - 1}")
        return ids


def load(name: str = "zoo:smollm2", *, draft: str | None = "default", dtype: str = "auto", device: str = "cpu",
         threads: int | None = None, quantize: str | None = None, ngrams: str | None = "default") -> LM:
    """A model by Hub id, directory, GGUF file or `zoo:NAME`. `draft`: another such name, "default" for the model's own
    embedded one where that exists, None (or "none") for none; `ngrams` likewise: a table that `polydec train ngrams` made
    of the model's text. Raises ValueError with one sentence where something cannot be had."""
    model = checkpoint.load(name, dtype=dtype, device=device, threads=threads, quantize=quantize)
    if draft == "default":
        draft = zoo.default_draft(name)
    draft, ngrams = (None if x == "none" else x for x in (draft, ngrams))       # as the command line has it
    small = None if draft is None else checkpoint.load(draft, dtype=dtype, device=device, threads=threads)
    table = zoo.default_ngrams(name) if ngrams == "default" else ngrams
    counted = None if table is None else load_ngrams(table)
    if counted is not None:
        model.lm.vocab.require_same(counted.vocab, "the n-gram table")
    if device == "cpu":              # beside the native step torch has single rows to do: its threads would only be in the way
        native = not model.why and (small is None or not small.why)
        torch.set_num_threads(1 if native else threads or TORCH_THREADS)
    return LM(model, small, counted)


@dataclass(frozen=True)
class Choice:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class Piece:
    """One token of a stream: the text that it made certain, and whether it was drafted."""
    text: str
    token: int
    drafted: bool
    choice: int = 0


@dataclass(frozen=True)
class Completion:
    """The answer to one request. `metrics` and `usage` are those of the JSON that the command line prints.

    tokens_per_second counts decoding only: the tokens after those of the first pass, over the seconds after it; seconds
    and time_to_first_token hold the prompt as well. positions_fed and passes count the target; `models` all models.
    """
    choices: tuple[Choice, ...]
    usage: dict[str, int]
    method: dict[str, Any]
    metrics: dict[str, Any]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    def to_json(self) -> dict[str, Any]:
        """The object of `polydec generate --json`."""
        out: dict[str, Any] = {"text": self.text, "token_ids": list(self.token_ids), "finish_reason": self.finish_reason,
                               "usage": self.usage, "method": self.method, "metrics": self.metrics}
        if len(self.choices) > 1 or self.choices[0].logprobs is not None:
            out["choices"] = [{"text": c.text, "token_ids": list(c.token_ids), "finish_reason": c.finish_reason,
                               "logprobs": None if c.logprobs is None else [vars(t) for t in c.logprobs]} for c in self.choices]
        return out


@dataclass
class _Watch:
    """What was seen of one choice, with the clock beside it."""
    on: Observer
    opened: float = 0.0
    first: float = 0.0
    last: float = 0.0
    edits: list[Edited] = field(default_factory=list[Edited])

    def __post_init__(self) -> None:
        self.kinds = (Opened, Edited) if self.on is ignore else getattr(self.on, "kinds", get_args(Event))

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, Edited):
            self.first, self.last = (self.first if self.edits else now), now
            self.edits.append(event)
        elif isinstance(event, Opened):
            self.opened = self.first = self.last = now
        self.on(event)

    def pieces(self, after: int = 0) -> list[Piece]:
        """What was written, from an edit on."""
        return [Piece(t, token, i < e.accepted, e.choice) for e in self.edits[after:]
                for i, (t, (_, token)) in enumerate(zip(e.pieces, e.edit.write, strict=True))]


@dataclass
class Ticket:
    """A request under way: its choices' tasks and what was seen of them."""
    prompt: tuple[int, ...]
    method: dict[str, Any]
    kernel: str
    target: Any
    names: dict[Any, str]
    tasks: list[Task]
    watches: list[_Watch]

    @property
    def done(self) -> bool:
        return all(t.done for t in self.tasks)

    def completion(self) -> Completion:
        """The answer, or what there is of it (finish_reason "abort"). Raises what a choice's coroutine raised."""
        for t in self.tasks:
            if t.error is not None:
                raise t.error
        results: list[Result | None] = [t.result for t in self.tasks]
        choices = tuple(Choice(r.text, r.token_ids, r.finish_reason, r.logprobs) if r is not None else
                        Choice("".join(p.text for p in w.pieces()), tuple(p.token for p in w.pieces()), "abort")
                        for r, w in zip(results, self.watches, strict=True))
        n = sum(len(c.token_ids) for c in choices)
        usage = {"prompt_tokens": len(self.prompt), "completion_tokens": n}
        return Completion(choices, usage, self.method, self._metrics([r for r in results if r is not None], n))

    def _metrics(self, results: list[Result], n: int) -> dict[str, Any]:
        begun, ended = min(w.opened for w in self.watches), max(w.last for w in self.watches)
        first = min(w.first for w in self.watches)
        stats = [r.stats for r in results]
        later, decoding = n - sum(s.first for s in stats), ended - first
        use: dict[Any, Usage] = {}
        for t in self.tasks:
            for model, u in t.usage.items():
                old = use.get(model, Usage())
                use[model] = Usage(old.passes + u.passes, old.positions + u.positions, old.seconds + u.seconds)
        passes, drafts = sum(s.passes for s in stats), sum(s.drafts for s in stats)
        accepted, drafted = sum(s.accepted for s in stats), sum(s.drafted for s in stats)
        return {
            "seconds": ended - begun,
            "time_to_first_token": first - begun,
            "tokens_per_second": later / decoding if later and decoding > 0 else None,
            "target_passes": passes,
            "tokens_per_pass": n / passes if passes else None,
            "positions_fed": use[self.target].positions if self.target in use else 0,
            "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else None,
            "expected_tokens_per_pass": 1 + sum(s.expected for s in stats) / passes
            if drafted and all(s.expected is not None for s in stats) else None,
            "models": [{"name": self.names.get(m, "?"), "passes": u.passes, "positions_fed": u.positions,
                        "seconds": u.seconds} for m, u in use.items()],
            "kernel": self.kernel,
        }


class Engine:
    """Many requests at once over one model, each with its own method and options, merged by one scheduler."""
    def __init__(self, model: LM) -> None:
        self.model, self._scheduler = model, Scheduler()
        self._kept: dict[str, dict[str, Any]] = {}            # by method, what it keeps between requests

    def submit(self, prompt: Prompt, *, method: str = "plain", options: Mapping[str, Any] | None = None,
               sampling: Sampling | None = None, max_tokens: int | None = None, stop: str | Sequence[str] = (),
               stop_token_ids: Sequence[int] = (), ignore_eos: bool = False, include_stop: bool = False, seed: int = 0,
               n: int = 1, logprobs: int | None = None, raw: bool = False, order: str = "vllm",
               on: Observer = ignore) -> Ticket:
        """Check the request and put it on the scheduler; nothing is computed yet.

        max_tokens: at most, EOS included; None: 128, or what the context leaves. stop: a text or several. n: choices,
        with the same seed and their own randomness each. Raises ValueError with one sentence for anything that cannot be
        honoured.
        """
        model, draft = self.model.checkpoint, self.model.draft
        ids = self.model.ids(prompt, raw=raw)
        sampling = sampling or self.model.sampling()
        sampling.check(model.lm.vocab.size)
        strange = next((x for x in stop_token_ids if not 0 <= x < model.lm.vocab.size), None)
        if strange is not None:
            raise ValueError(f"stop_token_ids has token {strange}: ids lie in 0 to {model.lm.vocab.size - 1}")
        for name, value in (("n", n), ("max_tokens", 1 if max_tokens is None else max_tokens), ("seed", seed)):
            if not isinstance(value, int):        # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{name} is {value!r}: it must be a whole number")
        if n < 1:
            raise ValueError(f"n is {n}: it must be at least 1")
        contexts = {model.name: model.lm.network.context}
        card = registry.get(method).CARD
        if draft is not None and "draft" in card.needs and card.same_tokenizer:
            contexts[draft.name] = draft.lm.network.context
        who, context = min(contexts.items(), key=lambda kv: kv[1])
        room = context - len(ids)
        if room < 1:
            raise ValueError(f"prompt has {len(ids)} tokens: the context of {who} holds {context}, the answer included")
        if max_tokens is not None and max_tokens > room:
            raise ValueError(f"max_tokens is {max_tokens}: the prompt has {len(ids)} tokens and the context of {who} "
                             f"holds {context}, so it can be at most {room}")
        if sampling.min_tokens > (max_tokens or min(128, room)):
            raise ValueError(f"min_tokens is {sampling.min_tokens}: it must not exceed max_tokens "
                             f"({max_tokens or min(128, room)})")
        # an answer to a chat is a text of its own; what continues a text keeps the space that parts the two
        before = ids if raw or not model.text.has_chat or tuple(prompt) == ids else ()
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        eos = frozenset() if ignore_eos else model.lm.vocab.eos
        request = Request(ids, max_tokens if max_tokens is not None else min(128, room), frozenset(stop_token_ids), ignore_eos,
                          seed, 0, logprobs, model.text.writer(stops, include_stop, after=before),
                          build_guard(sampling, eos=eos, stop_ids=stop_token_ids))
        tasks, watches, chosen, guarantee = list[Task](), list[_Watch](), dict[str, Any](), None
        names: dict[Any, str] = {model.lm.network: model.name}
        if draft is not None:
            names[draft.lm.network] = draft.name
        if registry.wants_costs(method):
            self.model.check(method, options)     # what is wrong is said before costs are measured
        for i in range(n):
            shapers = build_shapers(sampling, order=order, eos=eos, stop_ids=request.stop_ids, seed=seed, choice=i)
            target = Shaped(model.lm, *shapers) if shapers else model.lm
            small = None if draft is None else Shaped(draft.lm, *shapers) if shapers else draft.lm
            if draft is not None and not card.same_tokenizer:
                free = build_shapers(sampling.anywhere(), order=order, eos=draft.lm.vocab.eos, seed=seed, choice=i)
                small = Shaped(draft.lm, *free) if free else draft.lm
            costs = self.model.costs if registry.wants_costs(method) else None
            decoder, chosen = registry.build(method, target, small, dict(options or {}), costs,
                                             self._kept.setdefault(method, {}), self.model.ngrams)
            guarantee = decoder.exactness.value
            watch = _Watch(on)
            watches.append(watch)
            tasks.append(self._scheduler.submit(decoder.run(replace(request, choice=i), on=watch)))
        described = {"name": method, "guarantee": guarantee, "options": chosen}
        return Ticket(ids, described, model.kernel, model.lm.network, names, tasks, watches)

    def step(self) -> bool:
        """One tick for all requests; False when none is left."""
        return self._scheduler.step()

    def cancel(self, ticket: Ticket) -> None:
        """End a request; its completion then holds what there was, with finish_reason "abort"."""
        for t in ticket.tasks:
            self._scheduler.cancel(t)

    def run(self, tickets: Sequence[Ticket]) -> list[Completion]:
        """Tick until these are done. The first error is raised after all have ended."""
        for task in [task for t in tickets for task in t.tasks]:
            while not task.done and self.step():
                pass
        return [t.completion() for t in tickets]


def generate(model: LM, prompt: Prompt, **options: Any) -> Completion:
    """Decode one request to its end; the options are those of `Engine.submit`."""
    engine = Engine(model)
    return engine.run([engine.submit(prompt, **options)])[0]


def stream(model: LM, prompt: Prompt, **options: Any) -> Iterator[Piece]:
    """The pieces of one request as they become certain. Closing the iterator cancels the request."""
    engine = Engine(model)
    ticket = engine.submit(prompt, **options)
    yield from follow(engine, ticket)


def follow(engine: Engine, ticket: Ticket) -> Iterator[Piece]:
    """Tick the engine and yield what becomes certain of one ticket; raises what its choices raised."""
    seen = [0] * len(ticket.watches)
    try:
        while not ticket.done and engine.step():
            for i, w in enumerate(ticket.watches):
                while seen[i] < len(w.edits):
                    seen[i] += 1
                    yield from w.pieces(seen[i] - 1)
    finally:
        engine.cancel(ticket)
    for i, w in enumerate(ticket.watches):
        yield from w.pieces(seen[i])
    ticket.completion()
