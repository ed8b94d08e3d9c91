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
    """What a request's prompt begins with: characters or token ids. Whether the body is legal is said by whoever answers it."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(prompt, (str, list)):
        return prompt  # pyright: ignore[reportUnknownVariableType]
    fields = [body.get(name) for name in ("tools", "instructions", "input", "messages")]
    return json.dumps([x for x in fields if x is not None])


def prefix_block_hashes(text: Sequence[Any], credential: str = "") -> list[bytes]:
    """Names of the beginnings of a prompt that are whole blocks, the shortest first: each stands for all before it as well.
    credential: of its client, whose texts share nothing with another one's."""
    out = list[bytes]()
    before = credential.encode()
    for at in range(0, min(len(text) // BLOCK, MOST_BLOCKS) * BLOCK, BLOCK):
        part = repr(text[at : at + BLOCK]).encode("utf-8", "surrogatepass")
        before = blake2b(part, digest_size=16, key=before).digest()
        out.append(before)
    return out


class ReplicaRouter:
    """Remembers what each of `count` replicas was sent. `busy`: how many requests each has under way."""

    def __init__(self, count: int) -> None:
        self.busy = [0] * count
        self._known: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(count)]
        self._turn = 0

    def choose(self, prompt: Sequence[bytes], alive: Collection[int]) -> int | None:
        """The replica for a prompt of these blocks; None where none is alive. Among equals they take turns."""
        if not alive:
            return None
        least = min(self.busy[i] for i in alive)
        free = [i for i in sorted(alive) if self.busy[i] <= least + SLACK]
        self._turn += 1
        return max(
            free,
            key=lambda i: (
                self.shared(i, prompt),
                -self.busy[i],
                -((i - self._turn) % len(self.busy)),
            ),
        )

    def shared(self, replica: int, prompt: Sequence[bytes]) -> int:
        """How many blocks of a prompt a replica was sent before."""
        known = self._known[replica]
        return next((n for n, block in enumerate(prompt) if block not in known), len(prompt))

    def sent(self, replica: int, prompt: Sequence[bytes]) -> None:
        """A replica was given this prompt."""
        known = self._known[replica]
        for block in prompt:
            known[block] = None
            known.move_to_end(block)
        while len(known) > KEPT:
            known.popitem(last=False)

    def lost(self, replica: int) -> None:
        """A replica has gone, and what it had read with it."""
        self._known[replica].clear()
