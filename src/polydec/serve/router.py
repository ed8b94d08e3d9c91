"""Which replica answers a request: the one that has read most of its beginning, unless it has more to do than the others."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

BLOCK = 64
"""Characters of a prompt that are compared together (or token ids)."""
MOST_BLOCKS = 512
"""Of one prompt; what follows is not compared."""
KEPT = 65536
"""Blocks that are remembered of each replica, the newest."""
SLACK = 4
"""Requests more than the least busy replica that one may have under way and still be chosen for its prefixes."""


def prompt_beginning(body: Mapping[str, Any]) -> Sequence[Any]:
    """Find what a request's prompt begins with.

    Whether the body is legal is said by whoever answers it.

    Args:
        body: Fields of the request.

    Returns:
        Characters or token ids; of a chat the JSON text of its tools and messages.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(prompt, (str, list)):
        return prompt  # pyright: ignore[reportUnknownVariableType]
    fields = [body.get(name) for name in ("tools", "instructions", "input", "messages")]
    return json.dumps([x for x in fields if x is not None])


def prefix_block_hashes(text: Sequence[Any], credential: str = "") -> list[bytes]:
    """Name the beginnings of a prompt that are complete blocks.

    Args:
        text: Characters or token ids of the prompt.
        credential: Credential of the client, whose texts share nothing with another one's. Default
            "": there are none.

    Returns:
        A hash for each block, the first block first: each stands for all before it as well.
    """
    out = list[bytes]()
    before = credential.encode()
    for at in range(0, min(len(text) // BLOCK, MOST_BLOCKS) * BLOCK, BLOCK):
        # Keyed with the hash before it: equal blocks behind other beginnings have other names.
        part = repr(text[at : at + BLOCK]).encode("utf-8", "surrogatepass")
        before = blake2b(part, digest_size=16, key=before).digest()
        out.append(before)
    return out


class ReplicaRouter:
    """Remembers what each replica was sent.

    Args:
        count: How many replicas.

    Attributes:
        busy: How many requests each has under way.
    """

    def __init__(self, count: int) -> None:
        self.busy = [0] * count
        self._known: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(count)]
        self._turn = 0

    def choose_replica(self, prompt: Sequence[bytes], alive: Collection[int]) -> int | None:
        """Choose the replica for a prompt. Among equals they take turns.

        Args:
            prompt: Hashes of the prompt's blocks.
            alive: Numbers of the replicas to choose from.

        Returns:
            Number of the replica; None where none is alive.
        """
        if not alive:
            return None
        least = min(self.busy[i] for i in alive)
        # A cached prefix is worth a short queue, but not a long one.
        free = [i for i in sorted(alive) if self.busy[i] <= least + SLACK]
        self._turn += 1
        return max(
            free,
            key=lambda i: (
                self.shared_blocks(i, prompt),
                -self.busy[i],
                -((i - self._turn) % len(self.busy)),
            ),
        )

    def shared_blocks(self, replica: int, prompt: Sequence[bytes]) -> int:
        """Count the blocks of a prompt that a replica was sent before.

        Args:
            replica: Number of the replica.
            prompt: Hashes of the prompt's blocks.

        Returns:
            How many, from the prompt's beginning.
        """
        known = self._known[replica]
        return next((n for n, block in enumerate(prompt) if block not in known), len(prompt))

    def note_sent(self, replica: int, prompt: Sequence[bytes]) -> None:
        """Note that a replica was given a prompt.

        Args:
            replica: Number of the replica.
            prompt: Hashes of the prompt's blocks.
        """
        known = self._known[replica]
        for block in prompt:
            known[block] = None
            known.move_to_end(block)
        # What was sent longest ago is most likely out of the replica's own cache as well.
        while len(known) > KEPT:
            known.popitem(last=False)

    def forget_replica(self, replica: int) -> None:
        """A replica has gone, and what it had read with it."""
        self._known[replica].clear()
