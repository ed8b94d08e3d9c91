"""What a model says, likeliest token by token, when it is asked about texts that were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.methods.search.loop.attempt import SearchAttempt, one_token_round
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.speculative.loop.walk import SpeculativeMethod, Walk


async def write_greedy_reply(
    method: SpeculativeMethod,
    request: Request,
    into: Transcript,
    opened: list[SearchAttempt],
    asked: Sequence[int],
    most: int,
    rng: Rng,
) -> tuple[tuple[int, ...], SearchStats]:
    """The model's own words behind the prompt and the tokens `asked`, greedily, up to an end of the text, the end of the first
    line that is not empty, or `most` tokens; and what they cost. The end is no part of them. It is put into `opened`."""
    prompt = (*request.prompt, *asked)
    attempt = SearchAttempt(await Walk.open(method, prompt, whole=True), into.hypothesis(), None)
    opened.append(attempt)
    text = attempt.text
    words = method.target.vocab.words
    text.limit = most
    while not attempt.ended:
        r = await attempt.look(rng)
        attempt.take(one_token_round(r, int(r.scores.row(0).argmax())))
        if words is not None and "\n" in words.decode(text.tokens).lstrip():
            break
    attempt.close()
    reply = tuple(text.tokens[:-1] if text.tokens[-1] in text.ends else text.tokens)
    spent = attempt.spent
    return reply, replace(spent, ended=0, scored=spent.scored + len(prompt) - 1)
