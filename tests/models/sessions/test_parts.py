"""Parts of a session: early exit goes on where it stopped, layer skip leaves no trace, counters are those of the cost model."""

import random

import pytest
import torch
from test_kv_cache import network
from test_session import go, lm, near, rows

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.depth import parse_layer_halves, remaining_layer_halves
from polydec.models.native.library import native_step_availability

ROW, SILENT = ScoreRequest(), ScoreRequest(law=RowDetail.NOTHING)
L = 4


def run_of(skip):
    return remaining_layer_halves(parse_layer_halves(skip, L), L)


def native(idle=()):
    from native_checkpoints import config, weights

    from polydec.models.native.network import CpuStep

    c = config(num_hidden_layers=L, vocab_size=50)
    return CpuStep.build(c, silenced(weights(c), idle), threads=2)


def silenced(weights, idle):
    """The weights of a network whose halves in `idle` add nothing."""
    for h in idle:
        weights[
            f"model.layers.{h // 2}.{('self_attn.o_proj', 'mlp.down_proj')[h % 2]}.weight"
        ].zero_()
    return weights


def torch_net(dtype, idle=()):
    from transformers import LlamaConfig, LlamaForCausalLM

    from polydec.models.nets.transformer import LlamaTransformer

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=L,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=600,
        initializer_range=0.2,
    )
    return LlamaTransformer.build(
        config.to_dict(), silenced(LlamaForCausalLM(config).state_dict(), idle), dtype=dtype
    )


@pytest.fixture(params=["float64", "float32", "native"])
def net(request):
    if request.param == "native":
        if not native_step_availability()[0]:
            pytest.skip(native_step_availability()[1])
        made = native()
    else:
        made = network(num_hidden_layers=L, dtype=request.param)
    made.tolerance = {"float64": 1e-10, "float32": 1e-4, "native": 0.0}[request.param]
    made.runs, real = 0, made.forward

    def forward(queries):
        made.runs += sum(
            len(q) * ((L if q.layers is None else len(q.layers)) - len(q.without) / 2)
            for q in queries
        )
        return real(queries)

    made.forward = forward
    return made


def fresh(net, text, part=None):
    session = lm(net=net).open_session(text[:1])
    session = (
        session
        if part is None
        else session.open_part(*part)
        if isinstance(part, tuple)
        else session.open_part(part)
    )
    return rows(go(session.score_draft(Draft.chain_draft(text[0], text[1:]), ROW)), len(text))


def same_cache(net, session, text):
    """The cache's contents are those of a prefill of the text (and the lagging entries are known)."""
    n = session.ledger.cache.length
    other = lm(net=net).open_session(text)
    go(other.score_draft(Draft.chain_draft(text[-1]), ROW))
    whole = n - len(session.ledger.lag)
    near(
        session.ledger.cache.all_entries()[..., :whole, :],
        other.ledger.cache.all_entries()[..., :whole, :],
        net.tolerance,
    )
    for i, e in enumerate(session.ledger.lag, whole):
        near(
            session.ledger.cache.all_entries()[: e.depth, ..., i, :],
            other.ledger.cache.all_entries()[: e.depth, ..., i, :],
            net.tolerance,
        )


@pytest.mark.parametrize("exit", [1, 3, L])
def test_the_whole_goes_on_where_the_part_stopped(net, exit):
    dice, text = random.Random(exit), [7, 3, 9, 20, 4, 11]
    session = lm(net=net, chunk=3).open_session(text)
    part = session.open_part(range(exit))
    for depth in (3, 0, 2, 4, 1):
        start, room = net.runs, len(text) - session.ledger.cache.length
        draft = Draft.chain_draft(text[-1])
        for _ in range(depth):
            law = go(part.score_draft(draft, ROW))
            near(
                law.logprob_row(len(draft) - 1),
                fresh(net, [*text[:-1], *draft.token], range(exit))[-1],
                net.tolerance,
            )
            draft = Draft.chain_draft(text[-1], [*draft.token[1:], dice.randrange(50)])
        scores = go(session.score_draft(draft, ROW))
        near(
            rows(scores, len(draft)),
            fresh(net, [*text[:-1], *draft.token])[-len(draft) :],
            net.tolerance,
        )
        got = (
            net.runs
            - start
            - sum((len(text) - 1 + k) * exit for k in range(1, depth + 1))
            - (len(text) + depth) * L
        )
        assert got == (room + depth) * L, "a layer ran twice for a token, or not at all"
        keep = dice.randint(0, depth)
        session.commit_tokens(draft.token[: keep + 1])
        text += [*draft.token[1 : keep + 1], dice.randrange(50)]
        same_cache(net, session, text)


def test_parts_of_growing_depth_and_kept_entries_that_lag(net):
    """What only a part has seen of the committed text passes the other layers in one query when they are needed."""
    text = [5, 8, 2, 14]
    session = lm(net=net).open_session(text)
    for step, exit in enumerate((1, 1, 2, 1, 3, 2, 1, L, 1)):
        law = go(session.open_part(range(exit)).score_draft(Draft.chain_draft(text[-1]), ROW))
        near(law.logprob_row(0), fresh(net, text, range(exit))[-1], net.tolerance)
        if step == 4:  # deeper, of the same node
            law = go(session.open_part(range(L)).score_draft(Draft.chain_draft(text[-1]), ROW))
            near(law.logprob_row(0), fresh(net, text)[-1], net.tolerance)
        if step == 5:
            twin = session.fork()
            near(
                go(twin.score_draft(Draft.chain_draft(text[-1]), ROW)).logprob_row(0),
                fresh(net, text)[-1],
                net.tolerance,
            )
        session.commit_tokens(text[-1:])
        text.append((7 * step + 3) % 50)
        same_cache(net, session, text)
    start = net.runs
    session.rewind_tokens(1)
    assert len(session.ledger.lag) == 0
    near(
        go(session.score_draft(Draft.chain_draft(9), ROW)).logprob_row(0),
        fresh(net, [*text[:-2], 9])[-1],
        net.tolerance,
    )
    assert net.runs - start == (1 + len(text) - 1) * L


def test_trees_at_an_exit(net):
    text = [5, 8, 2, 14]
    session = lm(net=net).open_session(text)
    part = session.open_part(range(2))
    small = Draft.certain_tree((14, 1, 2), (-1, 0, 0))
    large = Draft.certain_tree((14, 1, 2, 3, 4, 6), (-1, 0, 0, 1, 2, 2))
    for draft, deep in ((small, part), (large, part), (large, session)):
        got = go(deep.score_draft(draft, ROW))
        for i in range(len(draft)):
            path = [draft.token[k] for k in draft.path_to(i)]
            near(
                got.logprob_row(i),
                fresh(net, [*text, *path], None if deep is session else range(2))[-1],
                net.tolerance,
            )
    session.commit_tokens((14, 2, 6))
    text += [2, 6, 30]
    near(
        go(session.score_draft(Draft.chain_draft(30), ROW)).logprob_row(0),
        fresh(net, text)[-1],
        net.tolerance,
    )


def without(net, text, skip, prompt):
    """The law after a text whose first tokens all layers saw, and the others what `skip` leaves."""
    session = lm(net=net).open_session(text[:1])
    go(session.score_draft(Draft.chain_draft(text[0], text[1:prompt]), SILENT))
    session.commit_tokens(text[:prompt])
    part = session.open_part(*run_of(skip))
    for x in text[prompt:]:
        row = go(part.score_draft(Draft.chain_draft(x), ROW)).logprob_row(0)
        part.commit_tokens([x])
    return row


@pytest.mark.parametrize("skip", ["1,2", "0,3", "1", "1a", "0m,3a", "0a,1m,2"])
def test_skipped_layers(net, skip):
    text = [7, 3, 9, 20, 4]
    session = lm(net=net).open_session(text)
    part = session.open_part(*run_of(skip))
    draft = Draft.chain_draft(4, [6, 2])
    got = go(part.score_draft(Draft.chain_draft(4, [6]), ROW))
    got = go(part.score_draft(draft, ROW))
    for i, x in enumerate(([], [6], [6, 2])):
        near(got.logprob_row(i), without(net, [*text, *x], skip, 4), net.tolerance)
    near(
        rows(go(session.score_draft(draft, ROW)), 3), fresh(net, [*text, 6, 2])[-3:], net.tolerance
    )
    go(part.score_draft(draft, ROW))
    session.commit_tokens((4, 6))  # scored by the part alone: the whole feeds it again
    text += [6, 13]
    same_cache(net, session, text)
    near(
        go(session.score_draft(Draft.chain_draft(13), ROW)).logprob_row(0),
        fresh(net, text)[-1],
        net.tolerance,
    )
    go(part.score_draft(Draft.chain_draft(13, [1]), ROW))
    part.commit_tokens(
        (13, 1)
    )  # 13 as the whole had it; kept so, and fed again where the whole wants it
    near(
        go(part.score_draft(Draft.chain_draft(8), ROW)).logprob_row(0),
        without(net, [*text, 1, 8], skip, 7),
        net.tolerance,
    )
    part.commit_tokens((8,))
    near(
        go(session.score_draft(Draft.chain_draft(2), ROW)).logprob_row(0),
        fresh(net, [*text, 1, 8, 2])[-1],
        net.tolerance,
    )
    session.close()


def test_what_was_skipped_is_fed_again_once(net):
    """Then the whole has seen it, and knows that it has: passes feed what is new, twins and later texts find it cached, and
    eviction does not bring back what the part had made of it."""
    text, skip = [7, 3, 9, 20, 4], "1,2"
    want = {x: fresh(net, x)[-1] for x in ((*text, 6), (*text, 6, 2), (*text, 6, 2, 11))}
    alone = without(net, [*text, 6, 2, 11, 13], skip, 8)
    session = lm(net=net).open_session(text)
    part = session.open_part(*run_of(skip))
    go(part.score_draft(Draft.chain_draft(4), ROW))
    part.commit_tokens((4,))
    assert session.ledger.filled == 4, "the whole has not seen what the part kept"
    near(
        go(session.score_draft(Draft.chain_draft(6), ROW)).logprob_row(0),
        want[*text, 6],
        net.tolerance,
    )
    session.commit_tokens((6,))
    assert session.ledger.filled == 6
    start = net.runs
    for x in (2, 11):
        text_now = (*session.ledger.text, x)
        near(
            go(session.score_draft(Draft.chain_draft(x), ROW)).logprob_row(0),
            want[text_now],
            net.tolerance,
        )
        session.commit_tokens((x,))
    assert net.runs - start == 2 * L, "what the whole had fed again was fed once more"
    session.evict_cache()
    near(go(part.score_draft(Draft.chain_draft(13), ROW)).logprob_row(0), alone, net.tolerance)


@pytest.mark.parametrize("moment", ["scored", "extended", "kept", "committed"])
def test_layers_go_on_behind_what_the_whole_has_scored_also_where_it_was_evicted(net, moment):
    """The whole scores a root and two nodes, and a part more nodes behind these: what the whole has scored stands as it is,
    whenever entries were given back."""
    text, run = [7, 3, 9, 20, 4], run_of("1,2")

    async def laws(evicts):
        session = lm(net=net).open_session(text)
        part = session.open_part(*run)

        def maybe(now):
            if evicts and now == moment:
                session.evict_cache()

        first = Draft.certain_tree((4, 6, 8), (-1, 0, 0))
        await session.score_draft(first, ROW)
        maybe("scored")
        more = Draft.certain_tree((4, 6, 8, 2), (-1, 0, 0, 1))
        await part.score_draft(more, ROW)
        maybe("extended")
        more = Draft.certain_tree((4, 6, 8, 2, 11), (-1, 0, 0, 1, 3))
        seen = [*rows(await part.score_draft(more, ROW), 5)]
        left = part.keep_nodes((0, 1, 3, 4), 1)  # what was scored by the whole is the root now
        maybe("kept")
        more = Draft.certain_tree((*left.token, 9), (*left.parent, 0))
        seen += [*rows(await part.score_draft(more, ROW), 4)]
        part.commit_tokens((6, 2))
        maybe("committed")
        return [*seen, *rows(await part.score_draft(Draft.chain_draft(11, [5]), ROW), 2)]

    for got_V, want_V in zip(go(laws(True)), go(laws(False)), strict=True):
        near(got_V, want_V, net.tolerance)


@pytest.mark.parametrize("left", [4, 3, 0])
def test_a_rewind_to_what_the_whole_has_seen_forgets_the_part(net, left):
    """Where all that a part has kept is taken back, nothing of it is left to be fed again."""
    text, skip = [7, 3, 9, 20, 4], "1,2"
    session = lm(net=net).open_session(text)
    part = session.open_part(*run_of(skip))
    go(part.score_draft(Draft.chain_draft(4, [6]), ROW))
    part.commit_tokens((4, 6))
    session.rewind_tokens(6 - left)
    assert session.ledger.filled == left
    other = [*text[:left], 8, 1]
    near(
        go(session.score_draft(Draft.chain_draft(8), ROW)).logprob_row(0),
        fresh(net, other[:-1])[-1],
        net.tolerance,
    )
    session.commit_tokens((8,))
    last = fresh(net, other)[-1]
    start = net.runs
    near(go(session.score_draft(Draft.chain_draft(1), ROW)).logprob_row(0), last, net.tolerance)
    assert net.runs - start == L


def test_a_part_is_the_network_that_has_these_layers_only():
    """Against another network, made of the kept layers' weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from polydec.models.nets.transformer import LlamaTransformer

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=L,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=600,
        initializer_range=0.2,
    )
    weights, text = LlamaForCausalLM(config).state_dict(), [7, 3, 9, 20, 4]
    whole = LlamaTransformer.build(config.to_dict(), weights, dtype="float64")
    for layers in ((0, 1), (0, 3), (1, 2), (0, 2, 3)):
        some = {k: v for k, v in weights.items() if ".layers." not in k}
        for to, of in enumerate(layers):
            head = f"model.layers.{of}."
            some |= {
                k.replace(head, f"model.layers.{to}."): v
                for k, v in weights.items()
                if k.startswith(head)
            }
        other = LlamaTransformer.build(
            {**config.to_dict(), "num_hidden_layers": len(layers)}, some, dtype="float64"
        )
        near(fresh(whole, text, (layers,)), fresh(other, text), 1e-10)


@pytest.mark.parametrize("kind", ["float64", "float32", "native"])
@pytest.mark.parametrize(
    "skip", ["1a", "2m", "0a", "3m", "0m,1a,2,3a", "0a,1a,2a,3a", "0m,1m,2m,3m", "1,3"]
)
def test_halves_that_do_not_run(kind, skip):
    """As a network in which they add nothing, alone and in a tree; an attention that does not run leaves the cache as it was,
    and nobody reads it."""
    if kind == "native" and not native_step_availability()[0]:
        pytest.skip(native_step_availability()[1])
    idle, text = parse_layer_halves(skip, L), [7, 3, 9, 20, 4]
    whole, other = (native(h) if kind == "native" else torch_net(kind, h) for h in ((), idle))
    tolerance = {"float64": 1e-12, "float32": 1e-5, "native": 0.0}[kind]
    near(fresh(whole, text, run_of(skip)), fresh(other, text), tolerance)
    assert not torch.allclose(fresh(whole, text), fresh(other, text), atol=1e-3)
    ours, theirs = lm(net=whole).open_session(text[:1]), lm(net=other).open_session(text[:1])
    ours.ledger.cache.kv.fill_(float("nan"))
    part, tree = (
        ours.open_part(*run_of(skip)),
        Draft.certain_tree((7, 3, 9, 20, 4), (-1, 0, 0, 1, 1)),
    )
    near(
        rows(go(part.score_draft(tree, ROW)), 5),
        rows(go(theirs.score_draft(tree, ROW)), 5),
        tolerance,
    )
    part.commit_tokens((7, 3, 4))
    theirs.commit_tokens((7, 3, 4))
    near(
        go(part.score_draft(Draft.chain_draft(8), ROW)).logprob_row(0),
        go(theirs.score_draft(Draft.chain_draft(8), ROW)).logprob_row(0),
        tolerance,
    )
    for i in range(L):
        written = ours.ledger.cache.kv[i, :, :, :4]
        assert (written.isnan() if 2 * i in idle else written.isfinite()).all()
    assert torch.equal(
        rows(go(ours.score_draft(tree, ROW)), 5), fresh_tree(whole, [7, 3, 4], tree)
    ), "the whole reads its own only"


def fresh_tree(net, text, tree):
    session = lm(net=net).open_session([*text, tree.token[0]])
    return rows(go(session.score_draft(tree, ROW)), len(tree))


def test_sessions_that_skip_different_halves_share_nothing(net):
    """Scored at once, in one call of the network."""

    def scores():
        return [
            lm(net=net)
            .open_session([3, 1])
            .open_part(*run_of(s))
            .score_draft(Draft.chain_draft(1, [4, 9]), ROW)
            for s in ("1a", "1m", "", "1a", "0m,2", "1a,2m")
        ]

    for together, alone in zip(run_coroutines(scores()), [go(s) for s in scores()], strict=True):
        near(rows(together, 3), rows(alone, 3), net.tolerance)


def test_exits_of_a_score_and_of_a_prompt(net):
    text, want = [7, 3, 9, 20, 4], ScoreRequest(exits=(1, 2, 3, 4))
    session = lm(net=net, chunk=2).open_session(text)
    scores = go(
        session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING, prompt=True, exits=(1, 3)))
    )
    for d in (1, 3):
        near(
            rows(scores.exit_laws(d, (1, 3)), 2), fresh(net, text, range(d))[[1, 3]], net.tolerance
        )
    draft = Draft.chain_draft(4, [6, 2])
    for exit in (1, 2, 4):
        go(session.open_part(range(exit)).score_draft(Draft.chain_draft(4, [6]), want))
        scores = go(session.score_draft(draft, want))
        for d in range(1, L + 1):
            near(
                rows(scores.exit_laws(d, (0, 2)), 2),
                fresh(net, [*text, 6, 2], range(d))[[4, 6]],
                net.tolerance,
            )
        session.commit_tokens((4,))
        session.rewind_tokens(1)
    with pytest.raises(ValueError, match=r"no exit was wanted.*ScoreRequest\.exits"):
        go(session.score_draft(draft, ROW)).exit_laws(1, (0,))


def test_exits_of_the_last_token_of_a_prompt_in_parts(net):
    """The passes before the last one show nothing at any depth."""
    text = [7, 3, 9, 20, 4]
    scores = go(
        lm(net=net, chunk=2)
        .open_session(text)
        .prefill_prompt(ScoreRequest(law=RowDetail.NOTHING, last=True, exits=(1, 3)))
    )
    for d in (1, 3):
        near(rows(scores.exit_laws(d, (0,)), 1), fresh(net, text, range(d))[[3]], net.tolerance)


def test_kept_texts_hold_no_half_done_entry(net):
    target = lm(net=net, keep=2)
    text = [7, 3, 9, 20, 4]
    session = target.open_session(text)
    go(session.open_part(range(2)).score_draft(Draft.chain_draft(4, [6]), ROW))
    session.commit_tokens((4, 6))
    session.close()
    again = target.open_session([*text, 6, 9])
    near(
        go(again.score_draft(Draft.chain_draft(9), ROW)).logprob_row(0),
        fresh(net, [*text, 6, 9])[-1],
        net.tolerance,
    )


@pytest.mark.parametrize("layers", [(), (2, 1), (0, 0), (-1, 0), (0, L), range(1, L + 1)], ids=str)
def test_layers_that_are_not_there(layers):
    session = lm(net=network(num_hidden_layers=L)).open_session([1, 2])
    with pytest.raises(ValueError, match=r"layers is .*: they must be ascending"):
        session.open_part(layers)


@pytest.mark.parametrize("bad", [{8}, {-1}, {2, 3}, {4}], ids=str)
def test_halves_that_are_not_there(bad):
    session = lm(net=network(num_hidden_layers=L)).open_session([1, 2])
    with pytest.raises(
        ValueError,
        match=r"without is .*: it must hold 2 i \(attention\) or 2 i \+ 1 \(MLP\) of layers i",
    ):
        session.open_part((0, 1, 3), frozenset(bad))
