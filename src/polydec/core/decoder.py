"""What answers a request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.trace import Observer, ignore_event
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TokenVocabulary

Streams = Callable[[int], Rng]
"""The random stream of each choice, by its number."""


class Decoder(Protocol):
    """A method with everything that it needs, ready to run. Frozen: what changes while it runs is
    in its coroutine.
    """

    @property
    def exactness(self) -> Exactness: ...
    @property
    def vocab(self) -> TokenVocabulary:
        """Of the texts that it writes."""
        ...

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of the request, in order.

        What the choices share (the prompt, a search) is computed once. The coroutine awaits scores,
        and gathers or races of such. It closes the sessions that it opened, however it ends.

        Args:
            request: The prompt, the limits and the number of choices.
            rng: Gives the random stream of a choice by its number.
            into: Receives the tokens of every choice as they become final.

        Returns:
            One result for each choice, in order.
        """
        ...


def request_streams(request: Request) -> Streams:
    """The request's own randomness."""
    return partial(Rng.of_choice, request.seed)


async def run_decoder(
    decoder: Decoder, request: Request, on: Observer = ignore_event
) -> list[Result]:
    """Run a decoder on a request, with the randomness that the request's own seed names.

    Args:
        decoder: The method, ready to run.
        request: What to write.
        on: Observer that receives every trace event. By default nobody watches.

    Returns:
        One result for each choice, in order.
    """
    return await decoder.write_choices(
        request, request_streams(request), Transcript(request, decoder.vocab.eos, on)
    )


async def answer_one(
    decoder: Decoder, request: Request, rng: Any = None, on: Observer = ignore_event
) -> Result:
    """Run a decoder and return its first choice alone.

    Args:
        decoder: The method, ready to run.
        request: What to write.
        rng: Replaces the random stream of every choice; the enumerator of polydec.lab.testing
            passes one. None: the streams that the request's seed names.
        on: Observer that receives every trace event. By default nobody watches.

    Returns:
        The result of the first choice.
    """

    # The enumerator walks through all outcomes of one object, so every choice gets the same.
    def stream_of(choice: int) -> Rng:
        return rng

    if rng is None:
        of = request_streams(request)
    else:
        of = stream_of
    return (await decoder.write_choices(request, of, Transcript(request, decoder.vocab.eos, on)))[0]
