"""The adapter to transformers: tiny random models of many families against their plain forward pass."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_target import check_target
from polydec.lab.testing.kits import build
from polydec.models.nets.hf import HFCache, HFNetwork
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions import checkpoint
from polydec.models.sessions.lm import CausalLaw

SIZE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPS = {**SIZE, "num_key_value_heads": 2}
WINDOWS = {**GROUPS, "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 9}
EXPERTS = {**GROUPS, "num_local_experts": 4, "num_experts_per_tok": 2}
# name: model type, its size, and what it must declare
FAMILIES = {
    "gpt2": ("gpt2", SIZE, True),
    "opt": ("opt", {**SIZE, "ffn_dim": 48, "word_embed_proj_dim": 32}, True),
    "gpt_neox": ("gpt_neox", SIZE, True),
    "gemma2": (
        "gemma2",
        {**WINDOWS, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
        True,
    ),
    "gemma3": (
        "gemma3_text",
        {**WINDOWS, "layer_types": ["sliding_attention", "full_attention"] * 2},
        True,
    ),
    "phi": ("phi", SIZE, True),
    "phi3, window": ("phi3", {**GROUPS, "sliding_window": 9}, True),
    "mixtral": ("mixtral", EXPERTS, True),
    "mixtral, window": ("mixtral", {**EXPERTS, "sliding_window": 9}, True),
    "bloom": (
        "bloom",
        {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 2},
        False,
    ),
    "mamba": ("mamba", {**SIZE, "state_size": 6}, False),
    "lfm2": (
        "lfm2",
        {**GROUPS, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
        False,
    ),
}
RECURRENT = ("mamba", "lfm2")


def theirs_of(name, seed=0):
    """Every parameter random, norms and biases too."""
    kind, size, _ = FAMILIES[name]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **size), dtype=torch.float32
    ).eval()
    for p in model.parameters():
        p.data = (
            p.data + 0.3 * torch.randn_like(p)
            if p.dim() < 2
            else torch.randn_like(p) * 1.5 * p.shape[-1] ** -0.5
        )
    return model


# one with windows and groups and one that is recurrent by default: the others' contracts take a minute
FAST = ("gpt2", "gemma3", "lfm2")
BOTH = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FAMILIES]


@pytest.fixture(scope="module", params=BOTH)
def pair(request):
    theirs = theirs_of(request.param)
    return request.param, theirs, HFNetwork(theirs)


def lm_of(network, **options):
    return CausalLaw(network, TokenVocabulary(network.size, frozenset()), **options)


def text(n, seed=0):
    return torch.randint(3, 61, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def plain_rows(theirs, ids):
    return theirs(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def test_what_it_declares(pair):
    name, theirs, net = pair
    assert (
        net.tree == FAMILIES[name][2]
        and not net.partial
        and net.rollback == (name not in RECURRENT)
    )
    assert (
        net.layers == theirs.config.num_hidden_layers and net.size == 61 and net.dtype == "float32"
    )
    assert net.cost == sum(p.numel() for p in theirs.parameters())
    assert net.context == 96 or name in ("bloom", "mamba", "lfm2")
    assert net.kernel.startswith("transformers ")


def test_prompt_rows_past_the_window(pair):
    _, theirs, net = pair
    ids = text(40)
    session = lm_of(net, chunk=7).open_session(ids)
    scores = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])[0]
    got = torch.stack([scores.log_weights(i) for i in range(39)])
    torch.testing.assert_close(got, plain_rows(theirs, ids)[:-1], atol=1e-4, rtol=1e-4)


def test_trees_past_the_window(pair):
    _, theirs, net = pair
    ids, draft = text(23), Draft.certain_tree((0, 5, 6, 7, 8, 9, 10), (-1, 0, 0, 1, 2, 4, 2))
    draft = Draft.certain_tree((ids[-1], *draft.token[1:]), draft.parent)
    session = lm_of(net, chunk=8).open_session(ids)
    for round in range(3):
        scores = run_coroutines([session.score_draft(draft, ScoreRequest())])[0]
        for i in range(len(draft)):
            want = plain_rows(theirs, [*ids, *(draft.token[j] for j in draft.path_to(i))])[-1]
            torch.testing.assert_close(scores.log_weights(i), want, atol=1e-4, rtol=1e-4)
        path = [draft.token[i] for i in ((2, 4, 5), (1,), ())[round]]
        session.commit_tokens((ids[-1], *path))
        ids = [*ids, *path, 11 + round]
        draft = Draft.certain_tree((ids[-1], *draft.token[1:]), draft.parent)


def test_contract_of_targets(pair):
    _, _, net = pair
    check_target(lm_of(net, chunk=5), prompt=text(12), tolerance=1e-5)


def test_forks_rewinds_and_kept_texts(pair):
    _, theirs, net = pair
    lm, ids = lm_of(net, keep=1), text(17)
    session = lm.open_session(ids)
    run_coroutines([session.score_draft(Draft.chain_draft(ids[-1], (9, 8, 7)), ScoreRequest())])
    twin = session.fork()
    session.commit_tokens((ids[-1], 9))
    twin.commit_tokens((ids[-1],))
    for s, more in ((session, (9, 30)), (twin, (31,))):
        row = run_coroutines([s.score_draft(Draft.chain_draft(more[-1]), ScoreRequest())])[
            0
        ].log_weights(0)
        torch.testing.assert_close(row, plain_rows(theirs, [*ids, *more])[-1], atol=1e-4, rtol=1e-4)
    session.rewind_tokens(6)
    row = run_coroutines([session.score_draft(Draft.chain_draft(40), ScoreRequest())])[
        0
    ].log_weights(0)
    torch.testing.assert_close(row, plain_rows(theirs, [*ids[:12], 40])[-1], atol=1e-4, rtol=1e-4)
    session.close()
    again = lm.open_session([*ids[:9], 50, 51])  # begins like the text just closed
    assert net.rollback == (again.ledger.cache.length == 9)
    row = run_coroutines([again.score_draft(Draft.chain_draft(51), ScoreRequest())])[0].log_weights(
        0
    )
    torch.testing.assert_close(
        row, plain_rows(theirs, [*ids[:9], 50, 51])[-1], atol=1e-4, rtol=1e-4
    )


def test_embeddings_in_place_of_ids(pair):
    _, theirs, net = pair
    ids = text(9)
    cache = net.new_cache()
    cache.stage_slots(range(-1, 8))
    cache.commit_path(range(9))
    embed = theirs.get_input_embeddings()(torch.tensor(ids)).detach()
    got = net.forward([NetworkQuery(cache, 0, (), range(9), ScoreRequest(), embed=embed)])[
        0
    ].logits_RV
    torch.testing.assert_close(got, plain_rows(theirs, ids), atol=1e-4, rtol=1e-4)


def test_hidden_states_are_those_before_the_final_norm(pair):
    _, theirs, net = pair
    ids, seen = text(9), []
    handle = net._blocks[-1].register_forward_hook(
        lambda m, i, out: seen.append(out[0] if isinstance(out, tuple) else out)
    )
    plain_rows(theirs, ids)
    handle.remove()
    cache = net.new_cache()
    cache.stage_slots(range(-1, 8))
    cache.commit_path(range(9))
    answer = net.forward(
        [
            NetworkQuery(
                cache, 0, tuple(ids), (2, 8), ScoreRequest(law=RowDetail.NOTHING, hidden=True)
            )
        ]
    )[0]
    assert answer.logits_RV is None
    torch.testing.assert_close(answer.hidden_RH, seen[0][0, [2, 8]], atol=1e-4, rtol=1e-4)


def test_greedy_text_is_that_of_generate(pair):
    _, theirs, net = pair
    ids = text(8, seed=3)
    with torch.inference_mode():
        want = theirs.generate(
            torch.tensor([ids]),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    from polydec.laws.shapers.greedy import GreedyRule
    from polydec.laws.targets.shaped import ShapedTarget

    target = ShapedTarget(lm_of(net), GreedyRule())
    request = Request(tuple(ids), max_tokens=24)
    recycling = build(
        "token-recycling", target, None, {"k": 3, "nodes": 6, "depth": 3, "cost_aware": False}
    )[0]
    for decoder in (build("plain", target)[0], recycling):
        assert (
            list(run_coroutines([answer_one(decoder, request)])[0].token_ids)
            == want[0, 8:].tolist()
        )


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mamba"])
def test_a_saved_directory(name, tmp_path):
    theirs = theirs_of(name)
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="no tokenizer"):
        got = checkpoint.load_bundle(str(tmp_path), dtype="float32")
    assert got.lm.vocab.size == 61 and got.lm.vocab.eos == {2} and got.dtype == "float32"
    ids = text(15)
    scores = run_coroutines(
        [got.lm.open_session(ids).score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())]
    )[0]
    torch.testing.assert_close(
        scores.log_weights(0), plain_rows(theirs, ids)[-1], atol=1e-4, rtol=1e-4
    )


def test_half_precision_is_tried_in_full():
    theirs = theirs_of("gemma2").to(torch.bfloat16)
    net = HFNetwork(theirs)
    assert net.tree and net.dtype == "bfloat16" and theirs.dtype == torch.bfloat16
    ids = text(15)
    scores = run_coroutines(
        [lm_of(net).open_session(ids).score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())]
    )[0]
    torch.testing.assert_close(
        scores.log_weights(0), plain_rows(theirs, ids)[-1], atol=0.2, rtol=0.1
    )


def test_a_model_that_ignores_our_mask_is_found_out():
    """The trial itself: a model with the mask taken away must not be declared fit for trees."""

    hearing = type(theirs_of("gpt2"))

    class Deaf(hearing):
        @wraps(hearing.forward)
        def forward(self, *args, attention_mask=None, **options):
            return super().forward(*args, **options)

    theirs = theirs_of("gpt2")
    theirs.__class__ = Deaf
    net = HFNetwork(theirs)
    assert not net.tree and net.rollback


def test_bad_input(tmp_path):
    net = HFNetwork(theirs_of("gpt2"))
    cache = net.new_cache()
    cache.stage_slots((-1, 0))
    with pytest.raises(ValueError, match="layers is \\(0,\\)"):
        net.forward([NetworkQuery(cache, 0, (3, 4), (0,), ScoreRequest(), layers=(0,))])
    with pytest.raises(ValueError, match="first is 1"):
        net.forward([NetworkQuery(cache, 1, (3,), (0,), ScoreRequest())])
    with pytest.raises(RequestError, match="length is 1"):
        cache.truncate_entries(1)
    with pytest.raises(ValueError, match="prompt has 96 tokens"):
        lm_of(net).open_session(text(96))
    with pytest.raises(ValueError, match="whole network only"):
        lm_of(net).open_session(text(5)).open_part(range(1))
    theirs_of("gpt2").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        checkpoint.load_bundle(str(tmp_path), dtype="int8")
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning), pytest.raises(ValueError, match="no CUDA"):
            checkpoint.load_bundle(str(tmp_path), device="cuda")


def test_bytes_of_a_cache():
    net = HFNetwork(theirs_of("gpt2"))
    cache = net.new_cache()
    assert isinstance(cache, HFCache) and cache.nbytes == 0
    cache.stage_slots(range(-1, 3))
    net.forward([NetworkQuery(cache, 0, (3, 4, 5, 6), (3,), ScoreRequest())])
    assert cache.nbytes == 2 * 2 * 4 * 32 * 4  # layers, keys and values, entries, width, bytes
    cache.commit_path((0, 1))
    assert cache.nbytes == 2 * 2 * 2 * 32 * 4
    recurrent = HFNetwork(theirs_of("mamba")).new_cache()
    assert recurrent.nbytes == 0
