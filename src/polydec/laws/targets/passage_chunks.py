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
    """

    encoder: PassageChunkEncoder
    chunks: Sequence[tuple[int, ...]]
    states: Sequence[Tensor]
    rest: tuple[int, ...]


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


SELECTORS: Mapping[str, Callable[[ChunkSelectorInput], Tensor]] = {
    "policy": by_policy,
    "chance": by_chance,
    "likeness": by_likeness,
    "words": by_words,
}
"""What scores chunks: those with the highest scores are read as tokens, the first of equal ones."""


def chunk_prompt_passages(
    target: Target,
    prompt: Sequence[int],
    encoder: PassageChunkEncoder,
    share: float,
    scores: Callable[[ChunkSelectorInput], Tensor],
) -> SoftPromptTarget:
    """Show a target the passages of a prompt as chunks: some as tokens, the others as one vector
    each (REFRAG).

    floor(share L) of all L chunks are read as tokens, the others as vectors, all of them where they
    stand in the prompt. No chunk goes beyond its passage, so the last one of a passage may be
    shorter. Whoever reads words is given the prompt.

    Exact: the law of `target` behind these vectors.
    Reduces to: `target` at share 1, and where no passage stands in the prompt.

    Args:
        target: The law to read.
        prompt: Token ids of the prompt, passages between the marks of the encoder.
        encoder: Makes the vectors; it also sets the size of a chunk in tokens.
        share: Part of the chunks that is read as tokens, 0 to 1.
        scores: Scores chunks; those with the highest scores are read as tokens, the first of equal
            ones.

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
    # The small addend saves a product that should be an integer from being rounded down.
    if count := int(share * len(chunks) + 1e-9):
        order = scores(ChunkSelectorInput(encoder, chunks, states, tuple(rest))).argsort(
            descending=True, stable=True
        )
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
