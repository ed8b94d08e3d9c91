"""Texts in one session: their laws are those of fresh sessions, whichever branches stay."""

import random

import pytest

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.examples import SHAPERS, bend_target
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.branches import BranchTree

PROMPT = (0, 1, 0)


async def fresh(target, text):
    session = target.open_session(PROMPT)
    scores = await session.score_draft(
        Draft.chain_draft(PROMPT[-1], text), ScoreRequest(base=RowDetail.ROW)
    )
    return scores.logprob_row(len(text)), scores.base.logprob_row(len(text))


@pytest.mark.parametrize("evict", [False, True], ids=["kept", "given back"])
@pytest.mark.parametrize("tree", [True, False], ids=["tree mask", "path by path"])
@pytest.mark.parametrize("shaping", ["plain", "shaped"])
@pytest.mark.parametrize("seed", range(4))
def test_laws_are_those_of_fresh_sessions(seed, shaping, tree, evict):
    async def walk():
        target, draw = (
            bend_target(toy_law(seed, 4, tree=tree), SHAPERS[shaping]),
            random.Random(seed),
        )
        branches = await BranchTree.open_tree(target, PROMPT, base=RowDetail.ROW)
        texts = {0: ()}
        for _ in range(8):
            scores = await branches.score_texts()
            for node, text in texts.items():
                row, base = await fresh(target, text)
                assert scores.logprob_row(node).allclose(
                    row, atol=1e-12
                ) and scores.base.logprob_row(node).allclose(base, atol=1e-12)
            if evict:
                branches._session.evict_cache()
            after = [
                (node, draw.randrange(4))
                for node in draw.choices(list(texts), k=draw.randint(1, 4))
            ]
            nodes = branches.extend_by_one(after)
            assert [nodes[after.index(text)] for text in after] == nodes and len(set(nodes)) == len(
                set(after)
            )
            texts = {new: (*texts[old], x) for new, (old, x) in zip(nodes, after)}
            assert len(branches._draft) <= 1 + sum(map(len, texts.values()))
        branches.close()

    run_coroutines([walk()])


def test_what_all_texts_begin_with_is_committed():
    async def walk():
        target = toy_law(1, 4)
        branches = await BranchTree.open_tree(target, PROMPT)
        await branches.score_texts()
        nodes = branches.extend_by_one([(0, 1), (0, 2)])
        await branches.score_texts()
        branches.extend_by_one(
            [(nodes[1], 3), (nodes[1], 0)]
        )  # the first text is dropped: one beginning is left
        assert branches._draft.token == (2, 3, 0) and branches._draft.parent == (-1, 0, 0)
        assert branches.extend_by_one([]) == [] and tuple(branches._session.ledger.text) == PROMPT
        branches.close()

    run_coroutines([walk()])
