"""A law behind a prompt whose passages are read chunk by chunk: some as tokens, the others as a vector
each (REFRAG)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import ScoreRequest
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.models.learned.passages import PassageMarks, split_passages
from polydec.models.sessions.soft import make_soft_tokens


class PassageChunkEncoder(Protocol):
    """Make vectors of chunks of text (models/learned/kinds/chunk_encoder.py)."""

    @property
    def marks(self) -> PassageMarks: ...
    @property
    def sizes(self) -> Any: ...
    def chunk_state(self, chunk: Sequence[int]) -> Tensor: ...
    def decoder_vector(self, state_W: Tensor) -> Tensor: ...
    def chunk_scores(self, states: Sequence[Tensor]) -> Tensor: ...


@dataclass(frozen=True)
class ChunkSelectorInput:
    """What a selector reads to choose chunks.

    Attributes:
        encoder: The encoder of the chunks.
        chunks: Token ids of each chunk, in the order of the prompt.
        states: The state that the encoder gives each chunk.
        rest: Token ids outside of passages.
        mean_nats: Gives the mean nats a token of each chunk, as the model foretells it behind what
            stands before it in its passage; it takes a pass over the passages, shape ``[L]``.
    """

    encoder: PassageChunkEncoder
    chunks: Sequence[tuple[int, ...]]
    states: Sequence[Tensor]
    rest: tuple[int, ...]
    mean_nats: Callable[[], Tensor]


def by_policy(seen: ChunkSelectorInput) -> Tensor:
    """The trained one's scores."""
    return seen.encoder.chunk_scores(seen.states)


def by_chance(seen: ChunkSelectorInput) -> Tensor:
    """Any order, the same for the same prompt."""
    # The seed is a hash of the tokens: the same prompt gets the same order.
    told = blake2b(repr((seen.chunks, seen.rest)).encode(), digest_size=4).digest()
    dice = torch.Generator().manual_seed(int.from_bytes(told))
    return torch.rand(len(seen.chunks), generator=dice)


def by_likeness(seen: ChunkSelectorInput) -> Tensor:
    """The cosine between a chunk's state and the nearest one of the text around the passages, which
    is cut and encoded alike."""
    # The text around is cut into chunks of the same size, so that states are comparable.
    k = seen.encoder.sizes.size
    asked = [seen.encoder.chunk_state(seen.rest[i : i + k]) for i in range(0, len(seen.rest), k)]
    both = cosine_similarity(torch.stack(list(seen.states))[:, None], torch.stack(asked)[None], -1)
    return both.amax(1)


def by_words(seen: ChunkSelectorInput) -> Tensor:
    """A retrieval score: tokens of the text around that stand in a chunk, each counted by how few
    chunks hold it."""
    # In how many chunks each token stands: a token that stands in all of them says little.
    holding = Counter(x for chunk in seen.chunks for x in set(chunk))
    asked = set(seen.rest)
    return torch.tensor(
        [sum(1.0 / holding[x] for x in set(chunk) & asked) for chunk in seen.chunks]
    )


def by_perplexity(seen: ChunkSelectorInput) -> Tensor:
    """The model's own perplexity: what it would not foretell is read as it is, and what it knows, or
    has read before in the passage, as a vector."""
    # Perplexity grows with the mean nats, so both have one order.
    return seen.mean_nats()


SELECTORS: Mapping[str, Callable[[ChunkSelectorInput], Tensor]] = {
    "policy": by_policy,
    "chance": by_chance,
    "likeness": by_likeness,
    "words": by_words,
    "perplexity": by_perplexity,
}
"""What scores chunks: those with the highest scores are read as tokens, the first of equal ones."""


def chunk_prompt_passages(
    target: Target,
    prompt: Sequence[int],
    encoder: PassageChunkEncoder,
    share: float,
    scores: Callable[[ChunkSelectorInput], Tensor],
    context: int | None = None,
) -> SoftPromptTarget:
    """Show a target the passages of a prompt as chunks: some as tokens, the others as one vector
    each (REFRAG).

    floor(share L) of all L chunks are read as tokens, the others as vectors, all of them where they
    stand in the prompt, where each takes one position: a prompt may be longer than the context. No
    chunk goes beyond its passage, so the last one of a passage may be shorter. Whoever reads words
    is given the prompt.

    Exact: the law of `target` behind these vectors.
    Reduces to: `target` at share 1, and where no passage stands in the prompt.

    Args:
        target: The law to read.
        prompt: Token ids of the prompt, passages between the marks of the encoder.
        encoder: Makes the vectors; it also sets the size of a chunk in tokens.
        share: Part of the chunks that is read as tokens, 0 to 1.
        scores: Scores chunks; those with the highest scores are read as tokens, the first of equal
            ones.
        context: Tokens that the target reads at most, where a selector lets it read passages. None:
            it reads a passage at once.

    Returns:
        The target behind the shortened prompt.
    """
    # Spans of at most k tokens, and whether each lies in a passage.
    parts = list[tuple[range, bool]]()
    rest = list[int]()
    k = encoder.sizes.size
    for span, passage in split_passages(prompt, encoder.marks):
        parts += [(span[i : i + k], passage) for i in range(0, len(span), k)]
        if not passage:
            rest += [prompt[at] for at in span]
    chunks = [tuple(prompt[at] for at in span) for span, passage in parts if passage]
    states = [encoder.chunk_state(chunk) for chunk in chunks]
    # All chunks are vectors first; those with the highest scores are opened.
    closed = set(range(len(chunks)))
    if count := opened_chunk_count(share, len(chunks)):
        spans = [span for span, passage in parts if passage]

        def mean_nats() -> Tensor:
            nats_N = foretold_token_nats(target, prompt, spans, context)
            return torch.stack([part_N.mean() for part_N in nats_N.split([*map(len, spans)])])

        seen = ChunkSelectorInput(encoder, chunks, states, tuple(rest), mean_nats)
        order = scores(seen).argsort(descending=True, stable=True)
        closed -= set(order[:count].tolist())
    # `instead`: the ids that are read, a vector in the place of a closed chunk. `rows`: for each
    # token of the prompt the place in `instead` at which its row is read.
    instead = list[int]()
    rows = list[int]()
    number = 0
    for span, passage in parts:
        if passage and number in closed:
            # One vector stands in the place of all tokens of the chunk.
            state_H = encoder.decoder_vector(states[number])
            rows += [len(instead)] * len(span)
            instead += make_soft_tokens(state_H[None], target.vocab.size, len(state_H), "a passage")
        else:
            rows += range(len(instead), len(instead) + len(span))
            instead += [prompt[at] for at in span]
        number += passage
    return SoftPromptTarget(target, tuple(prompt), tuple(instead), tuple(rows[:-1]))


def foretold_token_nats(
    target: Target, prompt: Sequence[int], spans: Sequence[range], context: int | None
) -> Tensor:
    """How a target foretells the tokens of passages, each behind the mark that opens its passage and
    the tokens of the passage before it.

    A passage that is longer than the context is read in windows, each of which begins with the
    second half of the one before, so that every token stands behind half a context at least.

    Args:
        target: The law.
        prompt: Token ids of the prompt.
        spans: The chunks, in order; a mark stands before the first one of each passage.
        context: Tokens that the target reads at most; None: any number.

    Returns:
        Nats of all tokens of all spans, in order.
    """
    windows = list[tuple[range, int]]()
    # A window needs room for one token behind it, which no session can do without.
    for first, last in _joined_spans(spans):
        most = last - first + 1 if context is None else context - 1
        at = first
        while at < last:
            # The window begins with the opening mark, or at half a window before what is new.
            begin = first - 1 if at == first else at - most // 2
            stop = min(last, begin + most)
            windows.append((range(begin, stop), at))
            at = stop

    async def read_window(window: range, at: int) -> Tensor:
        """Read a window.

        Args:
            window: Places in the prompt.
            at: The first of them whose token is new.

        Returns:
            Nats of the tokens from there on.
        """
        ids = [prompt[i] for i in window]
        session = target.open_session(ids)
        try:
            scores = await session.prefill_prompt(ScoreRequest(prompt=True))
            # Row i foretells token i + 1.
            told = [
                -scores.token_logprobs(i - window.start - 1, (prompt[i],))[0]
                for i in range(at, window.stop)
            ]
        finally:
            session.close()
        return torch.tensor(told)

    return torch.cat(run_coroutines([read_window(*window) for window in windows]))


def _joined_spans(spans: Sequence[range]) -> list[tuple[int, int]]:
    """Where passages begin and end whose chunks these are: chunks that follow one another are of one."""
    out = list[tuple[int, int]]()
    for span in spans:
        if out and out[-1][1] == span.start:
            out[-1] = (out[-1][0], span.stop)
        else:
            out.append((span.start, span.stop))
    return out


def shortened_prompt_length(
    prompt: Sequence[int], encoder: PassageChunkEncoder, share: float
) -> int:
    """How many positions `chunk_prompt_passages` makes a prompt take, at most.

    Args:
        prompt: Token ids of the prompt.
        encoder: Says what a chunk is.
        share: Part of the chunks that is read as tokens, 0 to 1.

    Returns:
        Positions where the longest chunks are the ones that are read as tokens.
    """
    k = encoder.sizes.size
    rest = 0
    sizes = list[int]()
    for span, passage in split_passages(prompt, encoder.marks):
        if passage:
            sizes += [len(span[i : i + k]) for i in range(0, len(span), k)]
        else:
            rest += len(span)
    # Which chunks are opened is not known before they are scored, so the longest are counted.
    opened = opened_chunk_count(share, len(sizes))
    return rest + len(sizes) - opened + sum(sorted(sizes, reverse=True)[:opened])


def opened_chunk_count(share: float, chunks: int) -> int:
    """How many chunks are read as tokens.

    Args:
        share: Part of the chunks, 0 to 1.
        chunks: All chunks.

    Returns:
        0 to `chunks`.
    """
    # The small addend saves a product that should be an integer from being rounded down.
    return int(share * chunks + 1e-9)
