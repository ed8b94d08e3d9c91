"""The contract of presses: a pressed cache has one law, and something of it was pressed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_target import check_target
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised
from polydec.lab.testing.shaper_contract import is_different_law
from polydec.models.nets.press import CachePress, PackedBlock
from polydec.models.sessions.lm import CausalLaw


@dataclass(frozen=True)
class PressCounts(ContractCounts):
    """What a check saw a press do.

    Attributes:
        packed: Blocks of a layer that were packed.
        dropped: Entries of a head that went.
        rounded: Entries of a head that stayed as other numbers.
        changed: Rows of a text whose law is another one than without the press.
    """

    packed: int = 0
    dropped: int = 0
    rounded: int = 0
    changed: int = 0


@dataclass(frozen=True)
class CountedPress:
    """A press that counts what becomes of the entries it is given.

    Attributes:
        inner: The press.
        seen: What was counted so far, by the names of PressCounts.
    """

    inner: CachePress
    seen: Counter[str] = field(compare=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def pack_block(self, k: int, kv: Tensor, behind: Tensor | None, before: Any) -> PackedBlock:
        """Pack one block of one layer as the inner press does, and count what became of its
        entries.

        Args:
            k: Index of the block, from the beginning of the text.
            kv: Its keys and values, shape ``[2, kv heads, block, head]``.
            behind: Keys and values of the block after it, then its queries; None for a press that
                does not ask for them.
            before: What packing block k - 1 made, where that does not last; else None.

        Returns:
            What the inner press leaves of the block.
        """
        packed = self.inner.pack_block(k, kv, behind, before)
        if before is None:
            given = kv
        else:
            # Where earlier blocks may change once more, what is packed is what they left, and this
            # block.
            given = torch.cat([self._entries(k - 1, before, kv), kv], -2)
        left = self._entries(k, packed, kv)
        # Key and value of an entry side by side, [kv heads, entries, 2 head], to find an entry
        # again by its numbers.
        ours, theirs = (torch.cat([*x], -1) for x in (left, given))
        # Of each entry that stayed, whether it is one of those given, number for number.
        same = (ours[:, :, None] == theirs[:, None]).all(-1).any(-1)
        self.seen["packed"] += 1
        self.seen["dropped"] += len(theirs) * (theirs.shape[1] - ours.shape[1])
        self.seen["rounded"] += int((~same).sum())
        return packed

    def _entries(self, k: int, packed: Any, like: Tensor) -> Tensor:
        """What attention sees of it, [2, kv heads, entries, head]."""
        into = like.new_empty(*like.shape[:2], self.inner.kept_size(k), like.shape[3])
        self.inner.fill_blocks([packed], into)
        return into


def check_press(
    lm: CausalLaw, press: CachePress, *, blocks: int = 2, tolerance: float = 1e-9, seed: int = 0
) -> PressCounts:
    """Raise AssertionError unless the law over caches that `press` makes smaller is a target as any
    other, and it was seen at work.

    Args:
        lm: A model whose network reads pressed caches; several hundred positions are computed.
        press: With blocks of a few entries, so that the check is quick.
        blocks: Blocks of the prompt, at least 1: some twenty tokens are written behind them.
        tolerance: Of probabilities, at least 0.
        seed: Of the prompt.

    Returns:
        The counts. A class attribute `unexercised` of the press says, by the name of a count, why
        that is 0.

    Raises:
        AssertionError: The law depends on how a text came about, or nothing was pressed.
        RequestError: The network cannot read such caches.
    """
    prompt = _text(lm, blocks * press.block + 3, seed)
    # Some blocks are full behind this prompt: the contract of targets then reads pressed and
    # unpressed entries.
    check_target(lm.pressed_law(press), prompt=prompt, tolerance=tolerance, seed=seed)
    return check_pressing(lm, press, seed=seed)


def check_pressing(lm: CausalLaw, press: CachePress, *, seed: int = 0) -> PressCounts:
    """Raise AssertionError unless a press changes what is kept of a text of four blocks, and the
    law of tokens behind it: the part of `check_press` that takes few passes.

    Args:
        lm: A model whose network reads pressed caches.
        press: Of any size that its context has room for.
        seed: Of the text.

    Returns:
        The counts, as of `check_press`.

    Raises:
        AssertionError: Nothing was pressed.
        RequestError: The network cannot read such caches.
    """
    seen = Counter[str]()
    counted: Any = CountedPress(press, seen)
    text = _text(lm, 4 * press.block, seed)
    rows = zip(
        *(_rows(law, text, press.block) for law in (lm, lm.pressed_law(counted))), strict=True
    )
    seen["changed"] = sum(is_different_law(exact_V, pressed_V) for exact_V, pressed_V in rows)
    counts = PressCounts(**seen)
    require_mechanism_exercised(counts, press)
    return counts


def _text(lm: CausalLaw, length: int, seed: int) -> list[int]:
    """Random tokens that end nothing."""
    usual = sorted(set(range(lm.vocab.size)) - lm.vocab.eos)
    return random.Random(seed).choices(usual, k=length)


def _rows(law: Target, text: list[int], step: int) -> list[Tensor]:
    """The law after each token of a text, so many tokens a pass."""

    async def scored_rows() -> list[Tensor]:
        session = law.open_session(text[:1])
        rows = list[Tensor]()
        for at in range(0, len(text), step):
            part = text[at : at + step]
            scores = await session.score_draft(Draft.chain_draft(part[0], part[1:]), ScoreRequest())
            rows += [scores.logprob_row(i) for i in range(len(part))]
            session.commit_tokens(tuple(part))
        session.close()
        return rows

    return run_coroutines([scored_rows()])[0]
