"""A pass that fails or is interrupted has filled nothing: whatever comes after it is what a fresh session says."""

import pytest
import torch
from test_hf import HFNetwork, theirs_of
from test_kv_cache import network

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.toy import OrderTwoNetwork
from polydec.models.native.library import native_step_availability
from polydec.models.sessions.lm import CausalLaw

ROW, SILENT = ScoreRequest(), ScoreRequest(law=RowDetail.NOTHING)
PROMPT = [7, 3, 9, 20, 4, 11, 30, 2, 8]
SMALL = [0, 1, 2, 3, 1, 0, 2, 2, 1]
KINDS = ["toy", "paths", "torch", "native", "adapter", "adapter, paths", "adapter, recurrent"]


class Failing:
    """Another network whose k-th pass writes some of its entries, or all of them, and then fails."""

    def __init__(self, net):
        self._net, self.passes, self.k, self.error, self.late = net, 0, None, None, False

    def __getattr__(self, name):
        return getattr(self._net, name)

    def forward(self, queries):
        self.passes += 1
        if self.passes - 1 != self.k:
            return self._net.forward(queries)
        if self.late:
            self._net.forward(queries)
        elif isinstance(self._net, HFNetwork):  # the first layer has been written
            with pytest.raises(RuntimeError, match="on the way"):
                handle = self._net._blocks[-1].register_forward_pre_hook(stop)
                try:
                    self._net.forward(queries)
                finally:
                    handle.remove()
        raise self.error("stopped")


def stop(*_):
    raise RuntimeError("on the way")


@pytest.fixture(params=KINDS, scope="module")
def made(request):
    """(a network, a prompt)"""
    kind = request.param
    if kind == "native":
        if not native_step_availability()[0]:
            pytest.skip(native_step_availability()[1])
        from native_checkpoints import config, weights

        from polydec.models.native.network import CpuStep

        c = config(num_hidden_layers=4, vocab_size=50)
        return CpuStep.build(c, weights(c), threads=1), PROMPT
    if kind in ("toy", "paths"):
        return OrderTwoNetwork(1, 4, tree=kind == "toy"), SMALL
    if kind == "torch":
        return network(num_hidden_layers=4), PROMPT
    name = {"adapter": "gpt2", "adapter, paths": "bloom", "adapter, recurrent": "mamba"}[kind]
    return HFNetwork(theirs_of(name)), PROMPT


async def story(session, text, depths, drop):
    """A prompt in chunks, trees, parts, commits of scored and unscored tokens: everything that runs a pass."""
    await session.prefill_prompt(SILENT)
    a, b, c = text[0], text[1], text[2]
    tree = Draft.certain_tree((text[-1], a, b, c), (-1, 0, 0, 1))
    if depths:
        await session.open_part(range(1)).score_draft(tree, ROW)
        await session.open_part(range(2)).score_draft(tree, ScoreRequest(exits=(1,)))
    await session.score_draft(tree, ROW)
    session.commit_tokens((text[-1], a))
    if depths:
        part = session.open_part((0, depths - 1))
        await part.score_draft(Draft.chain_draft(b, (c,)), ROW)
        part.commit_tokens((b, c))
        await part.score_draft(Draft.chain_draft(a, (b,)), ROW)
        session.commit_tokens((a, c, a))
    else:
        session.commit_tokens((b, c, a, c, a))
    await session.score_draft(Draft.certain_tree((c, a, b), (-1, 0, 0)), ROW)
    left = session.keep_nodes((0, 1), 0)
    await session.score_draft(
        Draft.certain_tree((*left.token, b), (*left.parent, 1)), ScoreRequest(hidden=not drop)
    )
    session.commit_tokens((c,))


def law(lm, text):
    """The law after each of the last tokens, as a session says that may find a kept text."""
    session = lm.open_session(text[:-2])
    scores = run_coroutines([session.score_draft(Draft.chain_draft(text[-3], text[-2:]), ROW)])[0]
    session.close()
    return torch.stack([scores.logprob_row(i) for i in range(3)])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("then", ["close", "score"])
def test_every_pass_may_fail(made, error, late, then):
    inner, text = made
    net = Failing(inner)
    vocab, depths = (
        TokenVocabulary(inner.size, frozenset()),
        inner.layers if inner.partial and inner.tree else 0,
    )
    session = CausalLaw(net, vocab, chunk=4).open_session(text)
    run_coroutines([story(session, text, depths, late)])
    total, more = net.passes, [text[4], text[5], text[3]]
    assert total >= 4
    net.error, net.late = error, late
    for k in range(total):
        lm = CausalLaw(net, vocab, chunk=4, keep=2)
        session, net.passes, net.k = lm.open_session(text), 0, k
        coroutine = story(session, text, depths, late)
        with pytest.raises(error):
            run_coroutines([coroutine])
        coroutine.close()
        net.k = None
        if then == "score":  # goes on in the same session
            root = (*session.ledger.text, *more)[len(session.ledger.text)]
            got = run_coroutines([session.score_draft(Draft.chain_draft(root, more[1:]), ROW)])[0]
            want = run_coroutines(
                [
                    CausalLaw(inner, vocab)
                    .open_session([*session.ledger.text, root])
                    .score_draft(Draft.chain_draft(root, more[1:]), ROW)
                ]
            )[0]
            for i in range(3):
                torch.testing.assert_close(
                    got.logprob_row(i),
                    want.logprob_row(i),
                    atol=1e-4,
                    rtol=0.0,
                    msg=f"pass {k}, row {i}",
                )
        told = [*session.ledger.text, *more]
        session.close()
        assert lm._kept == [] or lm._kept[0][2].length == len(lm._kept[0][1])
        torch.testing.assert_close(
            law(lm, told), law(CausalLaw(inner, vocab), told), atol=1e-4, rtol=0.0, msg=f"pass {k}"
        )
