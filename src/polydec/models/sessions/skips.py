"""Scores of a network of which only some layers, or halves of them, run (layer skip).

They read the full network's entries and write their own after them. What they staged goes when the
full network scores again. What they committed stays as it is while nobody else scores, and is noted
(`SessionLedger.skipped`): the full network feeds it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polydec.base.errors import RequestError
from polydec.core.types import Draft, ScoreRequest
from polydec.models.nets.query import Run
from polydec.models.nets.scores import LogitScores
from polydec.models.sessions import depths
from polydec.models.sessions.checks import require_readable
from polydec.models.sessions.ledger import (
    LedgerEntry,
    SessionLedger,
    SkippedRun,
    entries_of,
    entry_of,
)
from polydec.models.sessions.queries import SILENT, build_forward, query_of


async def score_skipping_layers(
    ledger: SessionLedger, run: Run, draft: Draft, want: ScoreRequest
) -> LogitScores:
    """Score a draft with some layers only, over the cache of the full network.

    Nodes that the full network has scored stay as they are.

    Args:
        ledger: Account of the session; it notes the draft, and under which layers its nodes ran.
        run: The layers, their halves that are left out, and how many attentions read the same
            input.
        draft: The draft to score; one that extends the last one feeds its new nodes only.
        want: What is read of the scores.

    Returns:
        The laws at every node.

    Raises:
        RequestError: The network cannot score this draft, or a state enters above the first layer.
    """
    ledger.settle_pass()
    require_readable(ledger.network, draft, want)
    if draft.enter and any(draft.enter):
        raise RequestError(
            f"enter is {max(draft.enter)}: states cannot enter where layers are left out"
        )
    await _restore(ledger, run)
    skipped = ledger.skipped
    # Committed entries of another choice of layers are of no use to these.
    if skipped is not None and (skipped.run != run or len(ledger.text) > ledger.cache.length):
        ledger.forget_entries(skipped.first)
    scored = ledger.scored
    layers = ledger.layers
    # Whether all that is staged has passed every layer: then new nodes may follow it, under these
    # layers.
    whole = scored.run is None and all(entry.depth == layers for entry in scored.entries)
    before = layers if whole else run
    # The staged nodes cannot be built on: feed them anew, with all layers those that all layers had
    # scored before.
    if not (whole or scored.run == run) or not depths.goes_on(scored, draft, before, want):
        if scored.run in (None, run):
            last = scored.draft
        else:
            last = None
        extends = last is not None and draft.is_extension_of(last)
        if extends:
            passed_all = ledger.passed_all_layers
        else:
            passed_all = 0
        ledger.drop_draft()
        ledger.take_slots()
        await depths.advance_to_depth(ledger, layers, SILENT)
        if passed_all:  # they stand as they are, also where their entries were given back
            await depths.score_to_depth(ledger, layers, draft.only_nodes(range(passed_all)), want)
        whole = True
        before = layers
    scored = ledger.scored
    known = len(scored.entries)
    answers = list(scored.answers.get(before, ()))
    # Nodes without an entry run under these layers only.
    if new := range(known, len(draft)):
        first = ledger.cache.stage_slots(draft.parent[known:])
        entries = [entry_of(draft, i) for i in new]
        query = query_of(ledger.cache, first, entries, range(len(new)), want, *run)
        answer = await build_forward(ledger.network, query)
        answers.append((len(new), answer))
        # States at exits belong to the entry, whatever run computed them.
        exits = answer.exits or {}
        scored.entries += [
            LedgerEntry(
                draft.token[i], layers, None, {d: exit_RH[row] for d, exit_RH in exits.items()}
            )
            for row, i in enumerate(new)
        ]
    if whole:
        scored.since = known
    scored.answers[run] = answers
    scored.draft = draft
    scored.run = run
    return depths.scores_of(ledger, run, want)


async def _restore(ledger: SessionLedger, run: Run) -> None:
    """After `evict_cache`: run again what had run under these layers only."""
    skipped = ledger.skipped
    if skipped is None or not skipped.evicted:
        return
    if skipped.run != run:
        ledger.skipped = replace(skipped, evicted=0)
        return
    # First the text before it with all layers, then these entries with their own.
    ledger.drop_draft()
    ledger.take_slots(skipped.first)
    await depths.advance_to_depth(ledger, ledger.layers, SILENT)
    ledger.filling = skipped.first
    entries = entries_of(ledger.text[skipped.first : skipped.evicted])
    slot = ledger.cache.stage_slots(range(-1, len(entries) - 1))
    ledger.cache.commit_path(range(len(entries)))
    query = query_of(ledger.cache, slot, entries, (), SILENT, *run)
    await build_forward(ledger.network, query)
    ledger.filling, ledger.skipped = None, replace(skipped, evicted=0)


def commit_with_skips(ledger: SessionLedger, tokens: Sequence[int]) -> None:
    """Commit tokens. What only some layers have seen of them stays cached: later passes under these
    layers build on it.

    Args:
        ledger: Account of the session.
        tokens: Tokens that are past now, the root first.
    """
    ledger.settle_pass()
    _note(ledger, ledger.nodes_of(tokens))
    ledger.commit_tokens(tokens, cached=True)


def keep_with_skips(ledger: SessionLedger, nodes: Sequence[int], root: int) -> Draft:
    """Keep some nodes of the draft that was scored last; what only some layers have seen stays
    cached.

    Args:
        ledger: Account of the session.
        nodes: The nodes that stay, ascending, each node's parent among them.
        root: The node that becomes the root; the path above it is committed.

    Returns:
        The draft as it now stands.

    Raises:
        RequestError: No draft was scored since the last commit.
    """
    ledger.settle_pass()
    if ledger.scored.draft is not None:
        _note(ledger, ledger.scored.draft.subtree_below(root, nodes)[0])
    return ledger.keep_nodes(nodes, root, cached=True)


def _note(ledger: SessionLedger, path: Sequence[int]) -> None:
    """Note which entries are about to be committed that only some layers have seen."""
    scored = ledger.scored
    end = len(ledger.text) + len(path)
    # These are the last ones of the path, as nodes from `since` on ran under these layers.
    ran = sum(i >= scored.since for i in path)
    if scored.run is None or not ran:
        return
    if ledger.skipped is None:
        ledger.skipped = SkippedRun(end - ran, scored.run)
    if not scored.entries:  # they were given back
        ledger.skipped = replace(ledger.skipped, evicted=end)
