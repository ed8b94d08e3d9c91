"""A model's greedy reply when it is asked about texts that were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polydec.core.rng import Rng
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    one_token_round,
)
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.speculative.loop.walk import SpeculativeMethod


async def write_greedy_reply(
    method: SpeculativeMethod, choice: ChoiceSearch, asked: Sequence[int], most: int, rng: Rng
) -> tuple[tuple[int, ...], SearchStats]:
    """Write the model's own words after the prompt and a question, greedily.

    Stop strings of the request do not end them. They reach up to an end of the text, the end of the
    first line that is not empty, or `most` tokens.

    Args:
        method: Writes the reply.
        choice: Search for the answer. The prompt of its request comes first.
        asked: Tokens of the question, after the prompt.
        most: Most tokens of the reply.
        rng: Random stream for the passes; nothing of the reply is drawn.

    Returns:
        The reply's tokens, without its end, and what they cost.
    """
    prompt = (*choice.into.request.prompt, *asked)
    # Stop strings are of answers: a line break among them would leave an empty reply.
    attempt = await choice.begin_attempt(method, prompt, stops=False)
    text = attempt.text
    words = method.target.vocab.words
    text.limit = most
    while not attempt.ended:
        r = await attempt.look_ahead(rng)
        attempt.take_steps(one_token_round(r, int(r.scores.logprob_row(0).argmax())))
        if words is not None and "\n" in words.decode(text.tokens).lstrip():
            break
    attempt.close()
    # The longer prompt counts as scored, and the reply is no text of the search.
    reply = tuple(text.tokens[:-1] if text.tokens[-1] in text.ends else text.tokens)
    spent = attempt.spent
    return reply, replace(spent, ended=0, scored=spent.scored + len(prompt) - 1)
