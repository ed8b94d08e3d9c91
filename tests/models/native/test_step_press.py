"""Presses in the compiled step: the torch path's numbers, one law whatever a text went through, bits of the row alone."""

import ctypes as C
import random

import pytest
import torch
from native_checkpoints import config, weights
from test_step_bits import chain, feed, same

from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_target import check_target
from polydec.methods.presses._integers import PackedIntegers
from polydec.methods.presses._quantised import QuantisedPress
from polydec.methods.presses._selected_entries import WindowPress
from polydec.models.native.library import (
    CacheOf,
    PressOf,
    native_instruction_sets,
    native_step_availability,
)
from polydec.models.native.network import CpuStep
from polydec.models.native.press import fill_cache_descriptor, visible_chunks
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)

ROW = ScoreRequest()
CONFIG = config(max_position_embeddings=1024)
WEIGHTS = weights(CONFIG, seed=3)
TEXT = random.Random(1).choices(range(1, 83), k=300)


def press(bits=8, group=32, block=16, hadamard=False):
    return QuantisedPress("quantised", block, bits, group, hadamard=hadamard)


def net(**more):
    return CpuStep.build(CONFIG, WEIGHTS, **more)


NET = net(threads=2)


def laws(network, made, step=50, text=TEXT):
    """Logits of a text's tokens, `step` of them a call, what is packed given back between calls."""
    cache, out = network.new_cache(made), []
    for i in range(0, len(text), step):
        part = text[i : i + step]
        out.append(network.forward([feed(network, cache, part)])[0].logits_RV)
        cache.commit_path(range(len(part)))
        cache.shed_packed(cache.length)
    return torch.cat(out).float()


def distance(a, b):
    p, q = a.double().log_softmax(-1), b.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


WAYS = [
    (8, 32, 64, False),
    (8, 0, 16, False),
    (4, 32, 32, False),
    (4, 0, 128, False),
    (2, 16, 128, False),
    (2, 0, 16, False),
    (4, 32, 64, True),
    (2, 0, 16, True),
]


@pytest.mark.parametrize("bits, group, block, hadamard", WAYS)
@pytest.mark.parametrize("heads, head", [(2, 32), (2, 48), (1, 32)])
def test_packed_numbers_are_those_of_the_torch_path(bits, group, block, hadamard, heads, head):
    """Every code, scale and lowest number, read from the bytes as press.h lays them out."""
    c = config(num_attention_heads=heads, num_key_value_heads=heads, head_dim=head)
    network, made = CpuStep.build(c, weights(c)), press(bits, group, block, hadamard)
    dice = torch.Generator().manual_seed(bits)
    kv = torch.randn(2, heads, block, head, generator=dice)
    kv[0, :, :, 5] += 50.0
    kv[1, 0, 3] = 0.75  # equal numbers
    kv[1, 0, 4] *= 1e30  # beyond the largest half
    kv[1, :, 5] = 0.3  # equal, and their half lies above them: no scale below zero
    kv[1, :, 6] = 0.001  # equal, and their half lies below them, by less than the least scale
    packed = network.new_cache(made).press
    got, want = packed.pack_block(0, kv, None, None), made.pack_block(0, kv, None, None)
    by_token, shape = packed.shape.values, packed.shape
    assert shape.keys in (group, block) and by_token in (group, heads * head, 16)
    halves = got.bytes.view(torch.int16)
    keys = heads * (block // shape.keys) * 2 * head
    values = heads * head // by_token * 2 * block
    key_scales = halves[:keys].view(heads, block // shape.keys, 2, head)
    value_scales = halves[keys : keys + values].view(-1, 2, block)
    codes = got.bytes[2 * (keys + values) :].view(heads, 2, -1)
    exact = lambda t: t.contiguous().view(torch.int16)  # noqa: E731
    for which, (ours, theirs) in enumerate(
        [
            (key_scales.permute(0, 3, 1, 2), want.keys.integers),
            (value_scales.permute(2, 0, 1), want.values.integers),
        ]
    ):
        assert torch.equal(ours[..., 0], exact(theirs.scale).view(ours[..., 0].shape))
        assert torch.equal(ours[..., 1], exact(theirs.low).view(ours[..., 1].shape))
        outputs, count = (block, head) if which == 0 else (head, block)
        got_codes = torch.stack([unpacked(x, bits, outputs, count) for x in codes[:, which]])
        if which == 1:  # [heads, head, block] to [block, heads * head]
            got_codes = got_codes.permute(2, 0, 1).reshape(block, -1)
        else:  # [heads, block, head] to [heads, head, block]
            got_codes = got_codes.transpose(1, 2)
        assert torch.equal(got_codes, plain(theirs))


def plain(x: PackedIntegers):
    """The codes of a tensor, one a number."""
    each = 8 // x.bits
    parts = [x.codes >> (x.bits * i) & ((1 << x.bits) - 1) for i in range(each)]
    return torch.stack(parts, -1).flatten(-2)[..., : x.size].int()


def unpacked(data, bits, outputs, count):
    """[outputs, count] codes of panels, with their centre added."""
    words = data.view(torch.int16).int() & 0xFFFF
    words = words.view(outputs // 16, count * bits // 32, 16, 2)
    fields = torch.stack([words >> (bits * i) & ((1 << bits) - 1) for i in range(16 // bits)], -2)
    codes = fields.permute(0, 2, 1, 3, 4).reshape(outputs, count)
    return codes + (1 << (bits - 1)) & ((1 << bits) - 1)


@pytest.mark.parametrize("bits, group, block, hadamard", WAYS)
def test_the_law_is_that_of_the_torch_path(bits, group, block, hadamard):
    """As near to it as floats of other orders of summation are: far nearer than the exact cache's law is."""
    torch_path = LlamaTransformer.build(CONFIG, WEIGHTS, dtype="float32")
    want, got = (laws(x, press(bits, group, block, hadamard)) for x in (torch_path, NET))
    assert distance(want, got) < 1e-5
    assert distance(want, got) < 0.01 * distance(laws(torch_path, None), want)


def capped(cap):
    """A network whose scores of attention are bounded by tanh, and its tensors."""
    c = config(
        "gemma2", max_position_embeddings=1024, hidden_activation="gelu_pytorch_tanh",
        attn_logit_softcapping=cap, final_logit_softcapping=None, query_pre_attn_scalar=4,
        layer_types=["full_attention"] * 2, sliding_window=None,
    )  # fmt: skip
    tensors = weights(c, seed=3)
    for i in range(c["num_hidden_layers"]):
        before = tensors[f"model.layers.{i}.input_layernorm.weight"]
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            tensors[f"model.layers.{i}.{name}.weight"] = before.flip(0)
    return c, tensors


@pytest.mark.parametrize("bits, group, block", [(8, 32, 64), (4, 0, 16)])
def test_scores_of_packed_keys_have_the_networks_bound(bits, group, block):
    """One cap bends them much, one hardly; both laws are those of the torch path."""
    made, truth = press(bits, group, block), []
    for cap in (0.5, 50.0):
        want = laws(LlamaTransformer.build(*capped(cap), dtype="float32"), made)
        got = laws(CpuStep.build(*capped(cap)), made)
        assert distance(want, got) < 1e-4
        truth.append(got)
    assert distance(*truth) > 1e-3


@pytest.mark.parametrize("name", ["k_proj", "v_proj"])
def test_keys_or_values_that_are_all_zero(name):
    """Their scales are, and so is what queries and weights are folded by."""
    tensors = {n: t * (name not in n) for n, t in WEIGHTS.items()}
    made = press(8, 32, 16)
    want = laws(LlamaTransformer.build(CONFIG, tensors, dtype="float32"), made)
    got = laws(CpuStep.build(CONFIG, tensors), made)
    assert bool(got.isfinite().all()) and distance(want, got) < 1e-5


@pytest.mark.parametrize("bits, group, block, hadamard", WAYS)
def test_every_set_thread_count_and_number_of_rows(bits, group, block, hadamard):
    made = press(bits, group, block, hadamard)
    truth = laws(NET, made, 1)
    for isa in native_instruction_sets():
        for threads in (1, 2) if isa == native_instruction_sets()[0] else (2,):
            network = net(threads=threads, isa=isa)
            for step in (3, 8, 33, 300) if isa != "portable" else (150,):
                assert same(laws(network, made, step), truth), (isa, threads, step)


def test_texts_of_up_to_two_blocks_are_exact_and_floats_keep_their_bits():
    assert same(laws(NET, press(2, 32, 128))[:256], laws(NET, None)[:256])
    assert not same(laws(NET, press(2, 32, 128))[256:], laws(NET, None)[256:])


@pytest.mark.parametrize("bits, block", [(8, 16), (4, 32)])
def test_trees_batches_forks_and_company(bits, block):
    """Rows of trees over forks of one text beside rows over a float cache and over another press; drafts that are longer than
    several blocks, with branches on both sides of a boundary."""
    made, rng = press(bits, 32, block), random.Random(7)
    nets = [
        net(threads=t, isa=i) for i in native_instruction_sets() if i != "portable" for t in (1, 2)
    ]
    _, trunk = pressed_chain(NET, made, TEXT[:200])
    for trial in range(10):
        queries, expected = [], []
        for way in (made, made, None, press(2, 16, 64)):
            start = rng.randint(120, 199)
            if way is made:
                cache = trunk.fork(start)
            else:
                _, cache = pressed_chain(NET, way, TEXT[:start])
            size = rng.choice([5, 12, 70])
            tokens = [rng.randrange(83) for _ in range(size)]
            parent = [i - 1 if rng.random() < 0.9 else rng.randint(-1, i - 1) for i in range(size)]
            some = [i for i in range(size) if rng.random() < 0.3 or i == size - 1]
            for i in some:
                path, p = [], i
                while p >= 0:
                    path.append(tokens[p])
                    p = parent[p]
                expected.append(
                    pressed_chain(nets[1], way, path[::-1], cache=cache.fork(), step=1)[0][-1:]
                )
            queries.append(feed(NET, cache, tokens, parent, rows=some))
        answers = rng.choice(nets).forward(queries)
        assert same(torch.cat([a.logits_RV for a in answers]), torch.cat(expected)), trial


def pressed_chain(network, made, tokens, cache=None, step=50):
    cache, out = cache or network.new_cache(made), []
    for i in range(0, len(tokens), step):
        got, _ = chain(network, tokens[i : i + step], cache=cache)
        cache.shed_packed(cache.length)
        out.append(got)
    return torch.cat(out), cache


def law(made, chunk=7, keep=0):
    return CausalLaw(NET, TokenVocabulary(83, frozenset({0})), chunk=chunk, keep=keep).pressed_law(
        made
    )


def go(coro):
    return run_coroutines([coro])[0]


def rows(scores, n):
    return torch.stack([scores.logprob_row(i) for i in range(n)])


@pytest.mark.parametrize("bits", [8, 4])
def test_company_eviction_rewinds_and_shared_prefixes_leave_the_bits(bits):
    """200 rounds of sessions that are forked, evicted, rewound, opened on what others hold and cut in parts."""
    made, dice = press(bits), random.Random(bits)
    truth = laws(NET, made, 1).log_softmax(-1)
    target, plain_target = (
        law(made, keep=2),
        CausalLaw(NET, TokenVocabulary(83, frozenset({0})), chunk=7),
    )
    some = [target.open_session(TEXT[: dice.randrange(60, 120)]) for _ in range(3)]
    other = plain_target.open_session(TEXT[:20])
    for _ in range(200):
        at = dice.randrange(len(some))
        session = some[at]
        what = dice.randrange(6)
        if what == 0:
            session.rewind_tokens(dice.choice([1, 3, 20, 50]))
        elif what == 1:
            session.evict_cache()
        elif what == 2:
            some[at] = session.fork()
            session.close()
        elif what == 3:
            session.close()
            some[at] = target.open_session(TEXT[: dice.randrange(60, 200)])
        drafts = []
        for session in some:
            n = len(session.ledger.text)
            depth = dice.choice([1, 1, 2, 5, 40])
            drafts.append(Draft.chain_draft(TEXT[n], TEXT[n + 1 : n + depth]))
        got = run_coroutines(
            [
                s.score_draft(d, ROW)
                for s, d in zip((*some, other), (*drafts, Draft.chain_draft(3, (1,))), strict=True)
            ]
        )
        for session, draft, scores in zip(some, drafts, got[:3], strict=True):
            n, m = len(session.ledger.text), len(draft)
            torch.testing.assert_close(rows(scores, m), truth[n : n + m], atol=1e-6, rtol=0.0)
            session.commit_tokens(draft.token[: dice.randrange(1, m + 1)])
            if len(session.ledger.text) > 240:
                session.rewind_tokens(120)
    for session in (*some, other):
        session.close()
    assert not target.live


@pytest.mark.parametrize("bits", [8, 4])
def test_a_pressed_law_is_a_target(bits):
    check_target(law(press(bits), chunk=4), prompt=TEXT[:43], tolerance=1e-6)


def test_some_layers_alone_and_all_of_them_later():
    """Rows that have passed the first layer only pack its blocks; those of the second come when it has run."""
    made = press()
    truth = laws(NET, made, 1)
    cache = NET.new_cache(made)
    for i in range(0, 96, 8):
        part = TEXT[i : i + 8]
        first = feed(NET, cache, part, layers=(0,), want=ScoreRequest(hidden=True))
        hidden = NET.forward([first])[0].hidden_RH
        assert len(cache.packed[1]) <= len(cache.packed[0])
        again = feed_again(cache, first, hidden)
        got = NET.forward([again])[0].logits_RV
        cache.commit_path(range(len(part)))
        cache.shed_packed(cache.length)
        assert same(got, truth[i : i + len(part)])


def feed_again(cache, query, hidden):
    from polydec.models.nets.query import NetworkQuery

    return NetworkQuery(cache, query.first, (), query.rows, ROW, embed=hidden, layers=(1,))


def test_keys_and_values_have_groups_of_their_own():
    """Values in one group of a token take less than those in groups of 16, and both laws are the torch path's."""
    torch_path = LlamaTransformer.build(CONFIG, WEIGHTS, dtype="float32")
    sizes = []
    for value_group in (0, 16):
        made = QuantisedPress("a", 32, 4, 32, hadamard=True, value_group=value_group)
        assert distance(laws(torch_path, made), laws(NET, made)) < 1e-5
        packed = NET.new_cache(made).press
        assert packed.shape.keys == 32
        sizes.append(packed.size)
    values = CONFIG["num_key_value_heads"] * 32
    assert sizes[1] - sizes[0] == 4 * 32 * (values // 16 - 1)


def test_old_entries_are_given_back():
    cache = NET.new_cache(press(block=64))
    _, exact = pressed_chain(NET, None, TEXT)
    _, cache = pressed_chain(NET, press(4, 0, 64), TEXT)
    assert cache.base == 128 and cache.end - cache.base <= 192 and cache.nbytes < exact.nbytes


@pytest.mark.parametrize(
    "made, more, kind, sentence",
    [
        (WindowPress("window", 16, 4), {}, "llama", "by rounding alone"),
        (QuantisedPress("gear", 64, 4, 32, rank=2), {}, "llama", "by rounding alone"),
        (QuantisedPress("q", 24, 8), {}, "llama", "block 24 and group 0"),
        (QuantisedPress("q", 256, 8), {}, "llama", "block 256"),
        (QuantisedPress("q", 64, 8, 8), {}, "llama", "group 8"),
        (press(), {"cache_dtype": "int8"}, "llama", "kept as int8"),
        (press(), {}, "mistral", "see a window"),
    ],
)
def test_what_cannot_be_packed_is_refused(made, more, kind, sentence):
    c = config(kind, **({"sliding_window": 40} if kind == "mistral" else {}))
    network = CpuStep.build(c, weights(c), **more)
    with pytest.raises(RequestError, match=sentence) as error:
        CausalLaw(network, TokenVocabulary(83, frozenset({0}))).pressed_law(made)
    assert len(str(error.value)) <= 300 and str(error.value).startswith("cache is ")


def test_keys_are_not_shown_to_a_drafter():
    with pytest.raises(RequestError, match="not shown to a drafter"):
        NET.read_keys(NET.new_cache(press()), 0)


def test_numbers_that_are_none_stay_an_error():
    """What is packed must be finite: it is never passed over in silence."""
    for which, bad in ((0, float("nan")), (1, float("nan")), (0, float("inf")), (1, -float("inf"))):
        kv = torch.zeros(2, 2, 16, 32)
        kv[which, 1, 3, 5] = bad
        with pytest.raises(ValueError, match="NaN or infinite"):
            NET.new_cache(press()).press.pack_block(0, kv, None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": 1},
        {"blocks": -1},
        {"blocks": 1 << 40},
        {"base": -1},
        {"base": 64},
        {"packed": None},
        {"bits": 3},
        {"block": 0},
        {"block": 48},
        {"keys": 8},
        {"keys": 0},
        {"keys": 64},
        {"values": 24},
        {"values": 0},
        {"values": -16},
        {"hadamard": 2},
        {"hadamard": -1},
        {"hole": 1},
    ],
)
def test_the_library_checks_what_it_is_told_of_packed_blocks(change, monkeypatch):
    """Refused with a code, nothing read."""
    from polydec.models.native import network as module

    _, cache = pressed_chain(NET, press(), TEXT[:64])

    def wrong(to, cache, chunks, layers):
        held = fill_cache_descriptor(to, cache, chunks, layers)
        shape = PressOf.from_address(to.press)
        changed = PressOf(*(change.get(n, getattr(shape, n)) for n, _ in PressOf._fields_))
        to.press = C.addressof(changed)
        for name in ("blocks", "base", "packed"):
            if name in change:
                setattr(to, name, change[name])
        if "hole" in change:
            held[0][1] = 0
        return held, changed

    assert C.sizeof(CacheOf) == 72
    monkeypatch.setattr(module, "fill_cache_descriptor", wrong)
    with pytest.raises(ValueError, match="the native step refused a call"):
        chain(NET, TEXT[64:65], cache=cache)


def test_the_library_checks_lengths_of_what_it_packs():
    lib, model, some = NET._lib, NET._model, torch.zeros(1 << 16)
    shape, at = PressOf(8, 16, 16, 32), some.data_ptr()
    size, count = lib.step_press_bytes(model, C.byref(shape)), 2 * 2 * 16 * 32
    assert size > 0 and lib.step_press(model, C.byref(shape), at, count, at, size) == 0
    for n, room in ((count - 1, size), (count, size - 1), (count, size + 1), (0, size)):
        assert lib.step_press(model, C.byref(shape), at, n, at, room) == 3
    assert lib.step_press(model, C.byref(shape), None, count, at, size) == 3
    assert lib.step_press(model, C.byref(shape), at, count, None, size) == 3
    for bad in ((5, 16, 16, 32), (8, 17, 17, 32), (8, 1 << 30, 16, 32), (8, -16, -16, 32)):
        assert lib.step_press_bytes(model, C.byref(PressOf(*bad))) == 0
        assert lib.step_press(model, C.byref(PressOf(*bad)), at, count, at, size) == 2


@pytest.mark.parametrize("kept", ["float16", "int8"])
def test_the_library_packs_floats_alone(kept):
    """A model that keeps keys and values otherwise has no blocks: nothing is packed for it, and nothing packed is read."""
    other = net(cache_dtype=kept)
    shape, some = PressOf(8, 16, 16, 32), torch.zeros(1 << 16)
    size = NET._lib.step_press_bytes(NET._model, C.byref(shape))
    at, count = some.data_ptr(), 2 * 2 * 16 * 32
    assert size > 0 == other._lib.step_press_bytes(other._model, C.byref(shape))
    for room in (size, 0):
        code = other._lib.step_press(other._model, C.byref(shape), at, count, at, room)
        assert other._lib.step_error(code).decode() == "shape or block type not supported"
    _, cache = pressed_chain(NET, press(), TEXT[:64])
    with pytest.raises(ValueError, match="the native step refused a call"):
        chain(other, TEXT[64:65], cache=cache)


def test_branches_of_a_long_draft_have_packed_blocks_of_their_own():
    made = press()
    _, cache = pressed_chain(NET, made, TEXT[:40])
    arm = 36
    parent = [*range(-1, arm - 1), -1, *range(arm, 2 * arm - 1)]
    cache.stage_slots(parent)
    position = [*range(40, 40 + arm), *range(40, 40 + arm)]
    seen = visible_chunks(cache, 40, position)
    assert [r for _, rows in seen for r in rows if r < arm] != []
    apart = {chunks for chunks, rows in seen if any(path for _, path in chunks)}
    assert len(apart) >= 2 and sorted(r for _, rows in seen for r in rows) == list(range(2 * arm))
