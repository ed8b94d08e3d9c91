"""EqSpec and ExSpec as an engine's batching: which answers share a pass, and that no text depends on it."""

import random

import pytest
import torch

import micro
from polydec import Ask, Engine, RequestError, generate, load
from polydec.core.effects import ForwardQuery
from polydec.methods.economics.costs import PassCosts
from polydec.request.batching import EqSpec, ExSpec, RaggedBatching, batching_by_name

METHODS = ("plain", "prompt-lookup", "draft-model", "eagle-2-tree", "token-recycling")
PROMPTS = (
    "The grey fox and the river and the grey fox and the",
    "nobody asked",
    "The tall baker watched the tall baker and",
    "The",
)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("batching")
    a, b = (str(micro.write(at / name, seed=i)) for i, name in enumerate("ab"))
    lm = load(a, draft=b, dtype="float32")
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


def waits(*behind):
    return [ForwardQuery(None, None, 3, behind=n) for n in behind]


def test_eqspec_takes_the_first_and_prompts_apart():
    assert EqSpec(2).choose_queries(waits(9, 4, 9)) == [0, 1]
    prompt = ForwardQuery(None, None, 5, split=lambda n: None)
    assert EqSpec(2).choose_queries([*waits(9), prompt, *waits(4), prompt]) == [1, 3]


def test_exspec_takes_rows_of_one_length_where_there_are_enough():
    assert ExSpec(2).choose_queries(waits(9, 4, 9, 9)) == [0, 2]
    assert ExSpec(3).choose_queries(waits(9, 4, 9)) == [0, 1, 2], "two of one length are too few"
    assert ExSpec(2).choose_queries(waits(9, 4, 7, 5)) == [1, 3], "the shortest are aligned"
    assert ExSpec(8).choose_queries(waits(6, 6)) == [0, 1], "all that are being written"


def test_exspec_equals_brute_force():
    """Of all ways to take `rows` queries: of one length if any way is, else with the least padding among the shortest."""
    dice = random.Random(0)
    for _ in range(300):
        behind = [dice.randrange(1, 5) for _ in range(dice.randrange(1, 9))]
        rows = dice.randrange(1, 5)
        taken = [behind[i] for i in ExSpec(rows).choose_queries(waits(*behind))]
        assert len(taken) in (rows, len(behind)) or len(set(taken)) == 1
        could = max(behind.count(n) for n in behind) >= min(rows, len(behind))
        assert could == (len(set(taken)) == 1)
        if not could:
            assert sorted(taken) == sorted(behind)[:rows]


@pytest.mark.parametrize("batching", [EqSpec(1), EqSpec(3), ExSpec(2), ExSpec(3)], ids=str)
def test_no_text_depends_on_the_batching(lm, batching):
    asks = [
        Ask(
            prompt,
            method=method,
            raw=True,
            max_tokens=12,
            seed=i,
            sampling=lm.sampling_with(temperature=0.9 * (i % 2)),
        )
        for i, (method, prompt) in enumerate((m, p) for m in METHODS for p in PROMPTS)
    ]
    want = [generate(lm, a).token_ids for a in asks]
    engine = Engine(lm, max_running=9, batching=batching)
    assert [a.token_ids for a in engine.run([engine.submit(a) for a in asks])] == want
    account = engine.model.network.account
    if batching.rows > 1:
        assert account.rows > account.passes and account.rows <= batching.rows * account.passes
        assert account.moved > 0
    else:
        assert account.passes == 0


def test_grouping_saves_alignment(lm):
    """Of the same texts: rows that share a length are not aligned, and fewer bytes move."""
    asks = [
        Ask(f"{p} {q}", method="plain", raw=True, max_tokens=24, ignore_eos=True)
        for p in PROMPTS
        for q in ("boat", "train", "fox and the river")
    ]
    moved = {}
    for batching, running in ((EqSpec(2), 2), (ExSpec(2), 12)):
        engine = Engine(lm, max_running=running, batching=batching)
        engine.run([engine.submit(a) for a in asks])
        moved[batching.name] = engine.model.network.account
    eqspec, exspec = moved["eqspec"], moved["exspec"]
    assert exspec.grouped / exspec.passes > 2 * eqspec.grouped / eqspec.passes
    assert exspec.moved < 0.7 * eqspec.moved


def test_what_cannot_be_batched_so_is_refused(lm, tmp_path):
    with pytest.raises(RequestError, match=r"batching is 'exspc'.*nearest is exspec"):
        batching_by_name("exspc", 8)
    with pytest.raises(RequestError, match="rows is 0: it must lie in 1 to 4096"):
        batching_by_name("eqspec", 0)
    assert batching_by_name("ragged", 8) == RaggedBatching()
    native = load("zoo:tiny", draft=None, ngrams=None)
    if native.checkpoint.why:
        pytest.skip("the compiled step does not run here")
    with pytest.raises(RequestError, match="keeps every row at its own end"):
        Engine(native, batching=EqSpec())
