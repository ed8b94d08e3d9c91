"""Pressed caches: what a row sees is decided by its position alone, so one law stands, whatever a text went through."""

import random

import pytest
import torch
from test_cache import network
from test_session import go, rows

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_press import check_press, check_pressing
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import toy_law
from polydec.methods.presses._integers import quantise_to_integers
from polydec.methods.presses._quantised import QuantisedPress, low_rank_factors
from polydec.methods.presses._selected_entries import (
    ExpectedAttentionRule,
    H2OPress,
    KeyDiffRule,
    ScorerPress,
    SnapKVRule,
    TovaPress,
    WindowPress,
)
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.nets.kv_cache import total_cache_bytes
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw

ROW, SILENT = ScoreRequest(), ScoreRequest(law=RowDetail.NOTHING)
NET = network(dtype="float64", num_hidden_layers=3)
TEXT = random.Random(3).choices(range(1, 50), k=70)


def presses(block):
    """One of each kind, over blocks of this size."""
    few = max(1, block // 2)
    return {
        "8 bits": QuantisedPress("a", block, 8),
        "2 bits": QuantisedPress("a", block, 2, 2),
        "gear": QuantisedPress("a", block, 2, 0, 1, 0.3),
        "window": WindowPress("a", block, 1),
        "watched": ScorerPress("a", block, few, 1, SnapKVRule(few)),
        "apart": ScorerPress("a", block, few, 0, KeyDiffRule()),
        "expected": ScorerPress("a", block, few, 1, ExpectedAttentionRule()),
        "last seen": TovaPress("a", block, block + 1),
        "hitters": H2OPress("a", block, block + 1),
    }


KINDS = list(presses(4))


def law(press, chunk=7, keep=0):
    return CausalLaw(NET, TokenVocabulary(50, frozenset({0})), chunk=chunk, keep=keep).pressed_law(
        press
    )


def near(a, b, tolerance=1e-9):
    torch.testing.assert_close(a.exp(), b.exp(), atol=tolerance, rtol=0.0)


async def by_steps(target, text, first):
    """The law after every token of a text from `first` on, one token a pass."""
    session, out = target.open_session(text[: first + 1]), []
    for x in text[first:]:
        out.append((await session.score_draft(Draft.chain_draft(x), ROW)).logprob_row(0))
        session.commit_tokens((x,))
    return torch.stack(out)


@pytest.fixture(scope="module")
def truth():
    """Of every kind the law after each token, fed one a pass."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = go(by_steps(law(presses(4)[kind], chunk=1), TEXT, 0))
        return made[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_a_prompt_and_depths_of_drafts_leave_the_law(kind, truth):
    """Also drafts that are deeper than several blocks."""
    want = truth(kind)
    for chunk, depth in ((1, 9), (5, 2), (50, 30)):
        session, at = law(presses(4)[kind], chunk).open_session(TEXT[:14]), 13
        while at < len(TEXT):
            some = TEXT[at : at + depth]
            scores = go(session.score_draft(Draft.chain_draft(some[0], some[1:]), ROW))
            near(rows(scores, len(some)), want[at : at + len(some)])
            keep = max(1, depth // 2)
            session.commit_tokens(some[:keep])
            at += keep


@pytest.mark.parametrize("kind", KINDS)
def test_company_forks_eviction_rewinds_and_shared_prefixes_leave_the_law(kind, truth):
    want, dice = truth(kind), random.Random(5)
    target = law(presses(4)[kind], keep=2)
    plain = target_of_exact()
    some = [
        target.open_session(TEXT[: dice.randrange(36, 50)]) for _ in range(3)
    ]  # they share a prefix
    others = [plain.open_session(TEXT[:20]), law(presses(5)["8 bits"]).open_session(TEXT[:33])]
    for turn in range(24):
        for at in range(len(some)):
            session = some[at]
            if turn % 6 == 5:
                session.rewind_tokens(dice.choice([1, 3, min(20, len(session.ledger.text) - 1)]))
            if turn % 5 == at:
                session.evict_cache()
            if turn == 12 and at == 1:
                some[at] = session.fork()
                session.close()
        drafts = []
        for session in some:
            n = len(session.ledger.text)
            drafts.append(Draft.chain_draft(TEXT[n], TEXT[n + 1 : n + 1 + dice.randrange(4)]))
        free = [Draft.chain_draft(3, (1, 2)) for _ in others]
        got = run_coroutines(
            [s.score_draft(d, ROW) for s, d in zip((*some, *others), (*drafts, *free), strict=True)]
        )
        for session, draft, scores in zip(some, drafts, got[: len(some)], strict=True):
            n, m = len(session.ledger.text), len(draft)
            near(rows(scores, m), want[n : n + m])
            session.commit_tokens(draft.token[: dice.randrange(1, m + 1)])
            if len(session.ledger.text) > len(TEXT) - 6:
                session.rewind_tokens(20)
    for session in (*some, *others):
        session.close()
    assert not target.live


def target_of_exact():
    return CausalLaw(NET, TokenVocabulary(50, frozenset({0})), chunk=7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_a_pressed_law_is_a_target(record_counts, kind, block):
    lm = CausalLaw(NET, TokenVocabulary(50, frozenset({0})), chunk=9)
    record_counts(check_press(lm, presses(block)[kind], blocks=1))


@pytest.mark.parametrize(
    "press, counts",
    [
        (WindowPress("a", 64, 1), "packed"),
        (ScorerPress("a", 4, 4, 0, KeyDiffRule()), "dropped and 0 changed"),
        (H2OPress("a", 4, 60), "dropped and 0 changed"),
        (QuantisedPress("a", 4, 2, 0, outliers=1.0), "rounded and 0 changed"),
    ],
    ids=str,
)
def test_a_press_that_presses_nothing_is_caught(press, counts, monkeypatch):
    monkeypatch.setattr("polydec.lab.testing.check_press._text", lambda lm, length, seed: TEXT[:64])
    with pytest.raises(AssertionError, match=f"is there for: 0 {counts}"):
        check_pressing(target_of_exact(), press)


TINY = network(dtype="float64", vocab_size=3, hidden_size=16, num_attention_heads=2)


@pytest.mark.parametrize("kind", KINDS)
def test_output_laws_are_the_pressed_one_enumerated(kind):
    """Of a draft that is another model's, and of one that a lookup finds: boundaries of blocks of 2 lie within the answer."""
    target = CausalLaw(TINY, TokenVocabulary(3, frozenset({2})), chunk=2).pressed_law(
        presses(2)[kind]
    )
    small = toy_law(7)
    prompt, want = (0, 1, 1, 0, 1), None
    for make in (
        lambda: SpeculativeDecoder(
            target, ModelDrafter(small, StaticTree((2, 1))), ExactVerifier(), FixedPolicy(2, 4)
        ),
        lambda: SpeculativeDecoder(target, LookupDrafter(), MatchVerifier(), FixedPolicy(3)),
    ):
        decoder, request = make(), Request(prompt, max_tokens=2)
        got = law_of(lambda rng, d=decoder, r=request: answer_one(d, r, rng))
        want = target_law(target, prompt, 2, ()) if want is None else want
        assert text_law_distance(got, want) < 1e-9


def exactly(press, length=60):
    """Whether a press leaves every law as it is without one."""
    want = rows(
        go(target_of_exact().open_session(TEXT[:1]).score_draft(chain(length), ROW)), length
    )
    got = rows(go(law(press).open_session(TEXT[:1]).score_draft(chain(length), ROW)), length)
    return float((got.exp() - want.exp()).abs().max()) < 1e-12


def chain(length):
    return Draft.chain_draft(TEXT[0], TEXT[1:length])


def test_limiting_cases_are_exact_and_others_are_not():
    assert exactly(QuantisedPress("a", 4, 2, 0, rank=4)), "full rank"
    assert exactly(QuantisedPress("a", 16, 2, 0, rank=8)), "full rank: heads have 8 dimensions"
    assert exactly(QuantisedPress("a", 4, 2, 0, outliers=1.0))
    for rule in (SnapKVRule(2), KeyDiffRule(), ExpectedAttentionRule()):
        assert exactly(ScorerPress("a", 4, 4, 0, rule))
    assert exactly(TovaPress("a", 4, 60))
    assert exactly(H2OPress("a", 4, 60))
    for press in presses(64).values():
        assert exactly(press), "no block is packed yet"
    for press in presses(4).values():
        assert not exactly(press)


def test_rank_0_without_outliers_is_the_base_quantiser():
    base, kv = QuantisedPress("a", 32, 2, 8), blocks(1, 32, 16)[0]
    for press in (
        QuantisedPress("a", 32, 2, 8, rank=0, outliers=0.0),
        QuantisedPress("a", 32, 2, 8, 0, 0.01),
    ):
        assert torch.equal(filled(press, [kv]), filled(base, [kv]))


def test_expected_attention_is_its_definition():
    """Attention to keys of queries that are drawn with mean and covariance of the block behind, over those of other keys."""
    dice = torch.Generator().manual_seed(0)
    kv, behind = torch.randn(2, 2, 6, 4, generator=dice), torch.randn(5, 2, 6, 4, generator=dice)
    got = ExpectedAttentionRule().entry_scores(kv, behind)
    for h in range(2):
        chance = torch.zeros(6)
        for query in behind[2:, h].double():
            key, cov = kv[0, h].double(), torch.cov(query.T, correction=0)
            score = key @ query.mean(0) + ((key @ cov) * key).sum(-1) / 2
            chance += score.softmax(-1).float() / 3
        torch.testing.assert_close(got[h], chance * kv[1, h].norm(dim=-1))


def test_keys_apart_from_the_others_stay():
    kv = torch.zeros(2, 1, 4, 3)
    kv[0, 0] = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.0, 0.0, 5.0], [9.0, 0.0, 0.0]])
    kept = ScorerPress("a", 4, 2, 0, KeyDiffRule()).pack_block(1, kv, None, None).kv[0, 0]
    assert torch.equal(kept, kv[0, 0, [1, 2]])


def test_what_the_last_token_sees_stays_in_all_heads():
    kv, behind = torch.zeros(2, 2, 4, 2), torch.zeros(3, 2, 4, 2)
    kv[0, 0, 1, 0] = kv[0, 1, 3, 0] = kv[1, :, 2] = 5.0
    behind[2, :, -1, 0], behind[2, :, 0, 1] = 3.0, 9.0
    kept = TovaPress("a", 4, 2).pack_block(0, kv, behind, None)
    assert torch.equal(kept.kv, kv[..., [1, 3], :])
    far = TovaPress("a", 4, 2).pack_block(1, kv - 1.0, behind, kept)
    assert torch.equal(far.kv, kept.kv), "who was kept competes with the new block"


def blocks(count, size, head, seed=0):
    """Keys and values of several blocks with a few directions that matter, noise, and outliers."""
    dice = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=dice)  # noqa: E731
    x = draw(count, 2, 2, size, 3) @ draw(count, 2, 2, 3, head) + 0.3 * draw(
        count, 2, 2, size, head
    )
    return x + 20.0 * draw(x.shape) * (torch.rand(x.shape, generator=dice) < 0.01)


def filled(press, some):
    packed = [press.pack_block(k, kv, None, None) for k, kv in enumerate(some)]
    size = sum(press.kept_size(k) for k in range(len(some)))
    into = some[0].new_empty(*some[0].shape[:2], size, some[0].shape[3])
    press.fill_blocks(packed, into)
    return into


def test_error_falls_with_outliers_and_with_rank():
    kv = blocks(1, 128, 64)[0]
    off = [
        float(
            (filled(QuantisedPress("a", 128, 2, 64, rank, outliers), [kv]) - kv).norm() / kv.norm()
        )
        for rank, outliers in ((0, 0.0), (0, 0.04), (4, 0.04))
    ]
    assert off[0] > 1.2 * off[1] > off[2]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_is_off_by_half_a_step(bits):
    x = torch.randn(3, 5, 21, generator=torch.Generator().manual_seed(bits))
    made = quantise_to_integers(x, bits, 7)
    off = (made.read_numbers() - x).abs().unflatten(-1, (3, 7))
    assert (off <= made.scale.float() * (0.5 + (1 << bits) / 2048) + 1e-6).all()
    assert torch.equal(
        quantise_to_integers(torch.full((2, 9), 0.75), bits, 0).read_numbers(),
        torch.full((2, 9), 0.75),
    )
    assert made.codes.shape[-1] == -(-21 * bits // 8)
    assert quantise_to_integers(torch.full((1, 4), 1e30), bits, 0).read_numbers().isfinite().all()


def test_the_low_rank_part_is_a_projection_and_nearly_the_best():
    error = torch.randn(2, 40, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    error += 9 * error[..., :1] @ error[..., :1, :]
    left, right = low_rank_factors(error, 2)
    made = left @ right.transpose(-1, -2)
    torch.testing.assert_close(made, left @ left.transpose(-1, -2) @ error)
    u, s, v = torch.linalg.svd(error)
    best = (u[..., :2] * s[:, None, :2]) @ v[:, :2]
    assert (error - made).norm() <= 1.05 * (error - best).norm()


def test_blocks_read_together_are_blocks_read_alone():
    some = list(blocks(3, 16, 8))
    for press in (QuantisedPress("a", 16, 2, 4, 2, 0.2), WindowPress("a", 16, 3)):
        alone = filled(press, some[:1])
        assert torch.equal(filled(press, some)[..., : alone.shape[2], :], alone)


def test_keys_by_channel_bear_a_shifted_channel_and_values_by_token_do_not():
    kv = torch.randn(2, 1, 64, 32, generator=torch.Generator().manual_seed(2))
    kv[..., 5] += 50.0
    off = (filled(QuantisedPress("a", 64, 4), [kv]) - kv).square().mean((1, 2, 3))
    assert off[1] > 30 * off[0]


def test_old_entries_are_given_back():
    text = random.Random(1).choices(range(1, 50), k=500)
    exact, held = target_of_exact(), {}
    for kind, press in presses(16).items():
        session = (
            CausalLaw(NET, TokenVocabulary(50, frozenset({0})))
            .pressed_law(press)
            .open_session(text)
        )
        go(session.prefill_prompt(SILENT))
        go(session.score_draft(Draft.chain_draft(text[-1]), ROW))
        session.commit_tokens(text[-1:])
        go(session.score_draft(Draft.chain_draft(3), ROW))
        held[kind] = total_cache_bytes([session.ledger.cache])
        assert session.ledger.cache.base >= 400, kind
        assert session.ledger.cache.end - session.ledger.cache.base <= 100
    whole = exact.open_session(text)
    go(whole.prefill_prompt(SILENT))
    assert all(size < 0.8 * total_cache_bytes([whole.ledger.cache]) for size in held.values()), held
    assert held["window"] < held["8 bits"] and held["hitters"] < held["watched"]


def test_of_kept_texts_the_one_that_can_go_on_is_taken():
    """A longer text that begins alike has given back what rows behind the common part see, and is no use."""
    target = law(presses(4)["8 bits"], keep=2)
    for length in (70, 30):
        session = target.open_session(TEXT[:length])
        go(session.prefill_prompt(SILENT))
        session.close()
    session = target.open_session(TEXT[:28])
    assert session.ledger.cache.length == 27
    near(
        rows(go(session.score_draft(Draft.chain_draft(TEXT[27]), ROW)), 1),
        go(by_steps(target, TEXT[:28], 0))[-1:],
    )


def test_windows_and_networks_that_see_what_follows_are_refused():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, sliding_window=8,
    )  # fmt: skip
    net = LlamaTransformer.build(
        config.to_dict(), MistralForCausalLM(config).state_dict(), dtype="float32"
    )
    with pytest.raises(RequestError, match="see a window"):
        CausalLaw(net, TokenVocabulary(50, frozenset({0}))).pressed_law(
            WindowPress("window", 16, 4)
        )
