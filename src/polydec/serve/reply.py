"""An answer on its way out: what came so far, as chunks of a stream or as one response."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polydec.api import Choice, Completion, LoadedModel, Piece
from polydec.core.request import PromptLogprob, TokenLogprob
from polydec.core.scheduler import RequestPass
from polydec.models.formats.thinking_marks import ThinkingReader
from polydec.models.text.tokenizer import Tokenizer
from polydec.request.engine import picture_json
from polydec.request.tool_calls import ToolCallDelta, ToolCallReader, read_calls
from polydec.serve.body import ResponseOptions
from polydec.serve.errors import RefusalError
from polydec.serve.json_text import LazyRows
from polydec.serve.reasoning import ThoughtStream
from polydec.serve.shapes import EndpointShape, TokenOffsets, by_id
from polydec.serve.steps import DecodingStep, passes_json, steps_json


@dataclass(frozen=True)
class AnswerDelta:
    """What one tick wrote to one answer.

    Attributes:
        index: Number of the answer in the response.
        pieces: Tokens with their texts.
        notes: Log-probabilities of the tokens, where they are asked for.
        finish_reason: Why the answer ended, with its last news; else None.
        prompt: Log-probabilities of the prompt's tokens, where they are asked for, with an answer's
            first news.
        steps: What rounds did, where that is asked for.
        passes: Passes that the request took part in, where they are asked for.
        opened: When the request began to run, by `time.perf_counter`.
        thinking: Reads the marks that part thinking from the answer. None: nothing is parted.
    """

    index: int
    pieces: tuple[Piece, ...]
    notes: tuple[TokenLogprob, ...]
    finish_reason: str | None
    prompt: tuple[PromptLogprob, ...] = ()
    steps: tuple[DecodingStep, ...] = ()
    passes: tuple[RequestPass, ...] = ()
    opened: float = 0.0
    thinking: ThinkingReader | None = None


class CompletionsAnswer:
    """One response of /v1/chat/completions or /v1/completions.

    Args:
        shape: The form of the endpoint.
        wanted: What the request asks for.
        model: The model that answers.
        served: Name of the model in the response.
        name: Id of the response.
        created: When the request came, in seconds of the epoch.
    """

    last = "data: [DONE]\n\n"

    def __init__(
        self,
        shape: EndpointShape,
        wanted: ResponseOptions,
        model: LoadedModel,
        served: str,
        name: str,
        created: int,
    ) -> None:
        self.shape = shape
        self.wanted = wanted
        self.model = model
        self.served = served
        self.name = name
        self.created = created
        self._text = answer_tokenizer(model, wanted)
        self.echoes = wanted.echoes or ("",) * sum(ask.n for ask in wanted.asks)
        # Answers are numbered over all prompts: here is the request of each.
        self._asked = [ask for ask in wanted.asks for _ in range(ask.n)]
        self._offsets = [TokenOffsets(len(echo)) for echo in self.echoes]
        self._opened = set[int]()
        self._rounds: dict[int, list[AnswerDelta]] = {}
        self._readers = [
            ToolCallReader(wanted.tools, wanted.form) for _ in self.echoes if wanted.tools
        ]
        self._thoughts: dict[int, ThoughtStream] = {}

    # ---- as a stream ----

    def opening_events(self) -> Iterator[dict[str, Any]]:
        """What comes before anything is written."""
        for index in range(len(self.echoes)):
            choice = self.shape.opening_chunk(index)
            if choice is not None:
                yield self._chunk([choice])

    def stream_chunks(self, news: AnswerDelta) -> Iterator[dict[str, Any]]:
        """Write one tick's text of one choice, and its end.

        Args:
            news: What the tick wrote.

        Yields:
            Chunks of the stream.
        """
        if self.wanted.echoes is not None and news.index not in self._opened:
            self._opened.add(news.index)
            logprobs = self._prompt(news.index, news.prompt)
            yield self._chunk(
                [self.shape.chunk_choice(news.index, self.echoes[news.index], logprobs, None)]
            )
        # max_tokens 0 is decoded as one token, of which nothing is shown.
        if self.wanted.silent:
            news = replace(news, pieces=(), notes=(), finish_reason=news.finish_reason and "length")
        thought, text = self._parted(news)
        parts = list[ToolCallDelta]()
        if news.notes:
            logprobs = self._logprobs(news.notes, self._offsets[news.index])
        else:
            logprobs = None
        # Log-probabilities come once, with the first chunk of the tick.
        if thought and self.wanted.thoughts:
            yield self._chunk(
                [self.shape.chunk_choice(news.index, "", logprobs, None, thought=thought)]
            )
            logprobs = None
        if self._readers:
            # What may become a call is held back, so a tick may give less text than it wrote, or
            # more.
            text, parts = self._readers[news.index].feed_text(text)
            if news.finish_reason is not None:
                rest, more = self._readers[news.index].end_text(news.finish_reason == "length")
                text = text + rest
                parts = parts + more
        # A tick of which nothing is to be told makes no chunk.
        if text or logprobs is not None or self.wanted.details:
            about = {
                "pieces": piece_rows(news.pieces),
                **(self._steps(news) if self.wanted.steps else {}),
            }
            yield self._chunk([self.shape.chunk_choice(news.index, text, logprobs, None)], about)
        for part in parts:
            for told in self._part(news.index, part):
                yield self._chunk([self.shape.chunk_choice(news.index, "", None, None, [told])])
        if news.finish_reason is not None:
            reason = self._reason(news)
            yield self._chunk([self.shape.chunk_choice(news.index, "", None, reason)])

    def _parted(self, news: AnswerDelta) -> tuple[str, str]:
        """What was thought in one tick, and what was said."""
        text = "".join(p.text for p in news.pieces)
        if news.index not in self._thoughts:
            self._thoughts[news.index] = ThoughtStream(news.thinking)
        return self._thoughts[news.index].feed_text(text, news.finish_reason)

    def _part(self, index: int, part: ToolCallDelta) -> Iterator[dict[str, Any]]:
        """A piece of a call in a stream: first its name, then its arguments."""
        # The id comes with the name alone; later pieces are matched by their index.
        if part.name is not None:
            call = {"name": part.name, "arguments": ""}
            name = self._call_name(index, part.at)
            yield {"index": part.at, "id": name, "type": "function", "function": call}
        if part.arguments:
            yield {"index": part.at, "function": {"arguments": part.arguments}}

    def _reason(self, news: AnswerDelta) -> str:
        """Why an answer of a stream ended."""
        assert news.finish_reason is not None
        if not self._readers:
            return news.finish_reason
        reader = self._readers[news.index]
        return _reason(news.finish_reason, reader.count, reader.calls_complete)

    def closing_events(self, done: Sequence[Completion]) -> Iterator[dict[str, Any]]:
        """Write what comes after everything else.

        Args:
            done: The completions of all prompts.

        Yields:
            A chunk for each answer that has masks or references; one with counts and figures, where these are asked for.
        """
        # Masks and states are read when a text has ended.
        for index, choice in enumerate(c for completion in done for c in completion.choices):
            if choice.image_masks or choice.reference_states:
                told = self.shape.chunk_choice(index, "", None, None)
                yield self._chunk([{**told, **_masks_json(choice)}])
        if self.wanted.usage or self.wanted.details:
            out = self._chunk(
                [],
                {
                    "requests": [
                        completion_details(c, ask.seed) for c, ask in zip(done, self.wanted.asks)
                    ]
                },
            )
            yield {**out, "usage": self._usage(done)} if self.wanted.usage else out

    def failure_events(self, refusal: RefusalError) -> dict[str, Any]:
        """Write what ends a stream that cannot go on.

        Args:
            refusal: Why.

        Returns:
            The error in OpenAI's form.
        """
        return refusal.to_json()

    def _chunk(
        self, choices: list[dict[str, Any]], details: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        out = {**self._head(self.shape.chunk), "choices": choices}
        # OpenAI's clients want the field in every chunk, null until the last one.
        if self.wanted.usage:
            out["usage"] = None
        if self.wanted.details and details is not None:
            out["polydec"] = details
        return out

    # ---- as one response ----

    def take_news(self, news: AnswerDelta) -> None:
        """Note what the response will need beside the completions.

        Args:
            news: What one tick wrote.
        """
        if self.wanted.steps:
            self._rounds.setdefault(news.index, []).append(replace(news, pieces=(), notes=()))

    def complete_response(self, done: Sequence[Completion]) -> dict[str, Any]:
        """Write the complete response.

        Args:
            done: The completions of all prompts.

        Returns:
            The response's object.
        """
        choices = [(completion, c) for completion in done for c in completion.choices]
        out = {
            **self._head(self.shape.whole),
            "choices": [self._choice(i, *c) for i, c in enumerate(choices)],
            "usage": self._usage(done),
        }
        if self.wanted.prompt_logprobs is not None:
            listed = [
                by_id(self._text, c.prompt_logprobs or (), self.wanted.prompt_logprobs)
                for c in done
            ]
            out = self.shape.add_prompt_logprobs(
                out, [listed[i] for i, c in enumerate(done) for _ in c.choices]
            )
        if self.wanted.details:
            out["polydec"] = {
                "pieces": [
                    piece_rows(self._written(completion, at))
                    for completion in done
                    for at in range(len(completion.choices))
                ],
                "requests": [
                    completion_details(c, ask.seed) for c, ask in zip(done, self.wanted.asks)
                ],
            }
        if self.wanted.steps:
            out["polydec"] |= {"choices": [self._all_steps(i) for i in range(len(choices))]}
        return out

    def _written(self, done: Completion, choice: int) -> list[Piece]:
        """The tokens of an answer, as far as they are shown."""
        if self.wanted.silent:
            return []
        return [piece for piece in done.pieces if piece.choice == choice]

    def _all_steps(self, index: int) -> dict[str, list[dict[str, Any]]]:
        """What all rounds of an answer did."""
        out: dict[str, list[dict[str, Any]]] = {"steps": [], "passes": []}
        for news in self._rounds.get(index, ()):
            for name, entries in self._steps(news).items():
                out[name] += entries
        return out

    def _steps(self, news: AnswerDelta) -> dict[str, list[dict[str, Any]]]:
        """What the rounds of some news did."""
        return {
            "steps": steps_json(self._text, news.steps, news.opened),
            "passes": passes_json(news.passes, news.opened, self.model.names, self.model.network),
        }

    def _choice(self, index: int, done: Completion, choice: Choice) -> dict[str, Any]:
        if self.wanted.silent:
            choice = replace(
                choice, text="", logprobs=choice.logprobs and (), finish_reason="length"
            )
        echo = self.echoes[index]
        text = choice.text
        calls = []
        whole = True
        if self.wanted.tools:
            text, calls, whole = read_calls(
                choice.text,
                self.wanted.tools,
                self.wanted.form,
                choice.finish_reason == "length",
            )
        if choice.logprobs is None:
            logprobs = None
        else:
            logprobs = self._logprobs(choice.logprobs, TokenOffsets(len(echo)))
        if (
            logprobs is not None
            and (prompt := self._prompt(index, done.prompt_logprobs or ())) is not None
        ):
            logprobs = {name: prompt[name] + logprobs[name] for name in logprobs}
        # As the endpoint has it, and our own fields beside.
        told = self.shape.response_choice(
            index,
            echo + text,
            logprobs,
            _reason(choice.finish_reason, len(calls), whole),
            [call.to_json(self._call_name(index, at)) for at, call in enumerate(calls)],
            (choice.reasoning or "") if self.wanted.thoughts else "",
        )
        return {**told, **_masks_json(choice)}

    def _prompt(self, index: int, notes: Sequence[PromptLogprob]) -> dict[str, Any] | None:
        """Log-probabilities of what an answer echoes; None where they are not asked for."""
        k = self._asked[index].logprobs
        if self.wanted.echoes is None or k is None:
            return None
        return self._logprobs(
            # Prompt and answer may list different numbers of alternatives: the echo has the
            # answer's.
            [n if len(n.top) <= k else replace(n, top=n.top[:k]) for n in notes],
            TokenOffsets(),
        )

    def _call_name(self, index: int, at: int) -> str:
        """The id of an answer's call."""
        return f"call_{self.name.partition('-')[2]}_{index}_{at}"

    def _usage(self, done: Sequence[Completion]) -> dict[str, Any]:
        prompt = sum(c.usage["prompt_tokens"] for c in done)
        if self.wanted.silent:
            written = 0
        else:
            written = sum(c.usage["completion_tokens"] for c in done)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            **cached_prompt(done),
            **thinking_tokens(done),
            **count_unit_field(done[0]),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.name, "object": kind, "created": self.created, "model": self.served}

    def _logprobs(
        self, notes: Sequence[TokenLogprob | PromptLogprob], offsets: TokenOffsets
    ) -> dict[str, Any]:
        return self.shape.logprob_rows(self._text, notes, offsets)


def answer_tokenizer(model: LoadedModel, wanted: ResponseOptions) -> Tokenizer:
    """Find what ids of the answers mean: requests of one body are written in the same units.

    Args:
        model: The model that answers.
        wanted: What the request asks for.

    Returns:
        The tokenizer.
    """
    first = wanted.asks[0]
    return model.in_units(first.units, first.covers).checkpoint.text


def count_unit_field(done: Completion) -> dict[str, Any]:
    """What counts are of, where that is not tokens."""
    if done.unit == "token":
        return {}
    return {"unit": done.unit}


def cached_prompt(done: Sequence[Completion]) -> dict[str, Any]:
    """How many tokens of the prompts were cached; nothing where other things than tokens are counted."""
    if done[0].unit != "token":
        return {}
    return {"prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in done)}}


def thinking_tokens(done: Sequence[Completion]) -> dict[str, Any]:
    """How many tokens were thinking, where that is known."""
    known = [c.usage["reasoning_tokens"] for c in done if "reasoning_tokens" in c.usage]
    if known:
        return {"completion_tokens_details": {"reasoning_tokens": sum(known)}}
    return {}


def _masks_json(choice: Choice) -> dict[str, Any]:
    """What a choice says of the masks that its answer asks for, and of its references: fields of our own."""
    if not choice.image_masks and not choice.reference_states:
        return {}
    return picture_json(choice)


def _reason(finish_reason: str, calls: int, whole: bool) -> str:
    """Why an answer ended: for its calls, where it has some and all of them came to their end."""
    if calls and whole and finish_reason == "stop":
        return "tool_calls"
    return finish_reason


def piece_rows(written: Sequence[Piece]) -> LazyRows:
    """Tokens as the field `polydec` lists them."""
    return LazyRows(lambda p: {"text": p.text, "token": p.token, "drafted": p.drafted}, written)


def completion_details(done: Completion, seed: int) -> dict[str, Any]:
    """Write what ran, and its figures, for the field `polydec`.

    Args:
        done: The completion of one prompt.
        seed: Seed of its request.

    Returns:
        Method, seed and metrics.
    """
    return {"method": done.method, "seed": seed, "metrics": done.metrics}
