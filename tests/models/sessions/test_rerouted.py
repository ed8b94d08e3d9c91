"""A mixture whose router is moved for one look: what it says, and that nothing of it stays."""

from __future__ import annotations

import pytest
import torch

from mixtures import EXPERTS, LAYERS, SIZE, mixture
from polydec.core.effects import gather_coroutines
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.models.native.library import native_step_availability
from polydec.models.native.network import CpuStep

PROMPT = (3, 4, 5, 6, 2, 7)


def routing(seed, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    return tuple(map(tuple, (torch.randn(LAYERS, EXPERTS, generator=g) * scale).tolist()))


def law(session, root, by=None):
    return session.score_draft(Draft.chain_draft(root), ScoreRequest(routing=by))


async def text_of(target, prompt, asked):
    """Rows of a text that is written token by token; asked: looks under other routings on the way."""
    session, rows = target.open_session(prompt), []
    await session.prefill_prompt(ScoreRequest())
    root = prompt[-1]
    for i, x in enumerate((8, 3, 9, 2)):
        if asked and i % 2:
            rows.append((await law(session, root, routing(i))).logprob_row(0))
        rows.append((await law(session, root)).logprob_row(0))
        if asked:
            rows.append((await law(session, root, routing(7 + i))).logprob_row(0))
        session.commit_tokens((root,))
        root = x
    session.close()
    return rows


def test_a_look_leaves_the_text_as_it_was():
    target = mixture()
    plain = run_coroutines([text_of(target, PROMPT, False)])[0]
    asked = run_coroutines([text_of(target, PROMPT, True)])[0]
    own = [asked[i] for i in (0, 3, 5, 8)]
    assert len(asked) == 10 and all(map(torch.equal, own, plain))
    others = [asked[i] for i in (1, 2, 4, 6, 7, 9)]
    assert all(min(float((o - p).abs().max()) for p in plain) > 1e-3 for o in others)


def test_the_law_is_that_of_a_text_whose_last_row_alone_is_moved():
    """Whatever of the text no pass has read is read under the router's own choice."""
    target, by = mixture(2), routing(5)

    async def fresh(prompt):
        """The text is read first, then the root."""
        session = target.open_session(prompt)
        await session.prefill_prompt(ScoreRequest(last=True))
        await law(session, prompt[-1])
        return (await law(session, prompt[-1], by)).logprob_row(0)

    async def unread(prompt):
        return (await law(target.open_session(prompt), prompt[-1], by)).logprob_row(0)

    async def committed(prompt):
        session = target.open_session(prompt[:3])
        await session.prefill_prompt(ScoreRequest())
        session.commit_tokens(prompt[2:-1])
        return (await law(session, prompt[-1], by)).logprob_row(0)

    found = run_coroutines([f(PROMPT) for f in (fresh, unread, committed)])
    assert all(torch.allclose(found[0], x, atol=1e-12) for x in found[1:])


def test_several_looks_are_one_pass():
    target, ran = mixture(), []
    forward = target.network.forward
    target.network.forward = lambda queries: ran.append(len(queries)) or forward(queries)

    async def looks(count):
        session = target.open_session(PROMPT)
        await session.prefill_prompt(ScoreRequest(last=True))
        ran.clear()
        found = await gather_coroutines(
            *(law(session, PROMPT[-1], routing(i)) for i in range(count))
        )
        return [s.logprob_row(0) for s in found]

    many = run_coroutines([looks(5)])[0]
    assert ran == [5]
    alone = run_coroutines([looks(1)])[0]
    assert torch.allclose(many[0], alone[0], atol=1e-12)


def test_shapers_bend_the_moved_law_as_they_bend_the_own_one():
    target, by = mixture(3), routing(1)

    async def rows(law_of):
        session = law_of.open_session(PROMPT)
        await session.prefill_prompt(ScoreRequest())
        return (await law(session, PROMPT[-1], by)).logprob_row(0)

    bare, bent = run_coroutines([rows(target), rows(ShapedTarget(target, TemperatureRule(0.5)))])
    assert torch.allclose(torch.log_softmax(bare / 0.5, -1), bent, atol=1e-9)


@pytest.mark.skipif(not native_step_availability()[0], reason=native_step_availability()[1])
def test_the_compiled_step_says_the_same():
    slow, quick = mixture(4), mixture(4, build=lambda c, w: CpuStep.build(c, w, threads=1))

    async def rows(target):
        session = target.open_session(PROMPT)
        await session.prefill_prompt(ScoreRequest())
        return [
            (await law(session, PROMPT[-1], by)).logprob_row(0)
            for by in (None, routing(2), routing(3, 0.2))
        ]

    a, b = run_coroutines([rows(slow), rows(quick)])
    assert all(torch.allclose(x.float(), y.float(), atol=1e-4) for x, y in zip(a, b, strict=True))


def test_what_cannot_be_moved_is_refused():
    async def ask(target, by, draft=None, **want):
        session = target.open_session(PROMPT)
        await session.prefill_prompt(ScoreRequest())
        await session.score_draft(
            draft or Draft.chain_draft(PROMPT[-1]), ScoreRequest(routing=by, **want)
        )

    async def part(target):
        session = target.open_session(PROMPT)
        await session.prefill_prompt(ScoreRequest())
        await session.open_part((0,)).score_draft(
            Draft.chain_draft(PROMPT[-1]), ScoreRequest(routing=routing(1))
        )

    with pytest.raises(ValueError, match="no router of experts"):
        run_coroutines([ask(toy_law(0, SIZE), routing(1))])
    with pytest.raises(ValueError, match="1 layers of 5 experts: this model has 2 of 5"):
        run_coroutines([ask(mixture(), routing(1)[:1])])
    with pytest.raises(ValueError, match="laws of tokens alone"):
        run_coroutines([ask(mixture(), routing(1), hidden=True)])
    with pytest.raises(ValueError, match="of no part of them"):
        run_coroutines([part(mixture())])
