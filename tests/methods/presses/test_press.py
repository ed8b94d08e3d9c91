"""Pressed caches: what a row sees is decided by its position alone, so one law stands, whatever a text went through."""

import random
from dataclasses import dataclass

import pytest
import torch
from test_kv_cache import network
from test_session import go, rows

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_press import check_press, check_pressing
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import toy_law
from polydec.methods.presses import _quantised
from polydec.methods.presses._hadamard import (
    apply_signed_hadamard,
    dimension_signs,
    undo_signed_hadamard,
)
from polydec.methods.presses._integers import quantise_to_integers
from polydec.methods.presses._quantised import QuantisedPress, low_rank_factors
from polydec.methods.presses._selected_entries import (
    ExpectedAttentionRule,
    H2OPress,
    KeyDiffRule,
    ReconstructionRule,
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
        "ranks by part": QuantisedPress(
            "a",
            block,
            2,
            0,
            1,
            value_rank=0,
            prompt=3 * block,
            decoded_rank=0,
            decoded_value_rank=1,
        ),
        "mixed": QuantisedPress("a", block, 4, 2, hadamard=True, value_group=0),
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


def decode_in_company(some, others, want, dice, deepest, left):
    """Drafts in the company of other sessions, behind forks, evictions and rewinds: rows are those of `want`.

    Args:
        some: Sessions of the text that are looked at; they are closed.
        others: Sessions that are only there.
        want: Rows behind each token of the text.
        dice: Draws what happens.
        deepest: A draft has fewer tokens than this behind its first one.
        left: Tokens that stay before the end of the text.
    """
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
            drafts.append(Draft.chain_draft(TEXT[n], TEXT[n + 1 : n + 1 + dice.randrange(deepest)]))
        free = [Draft.chain_draft(3, (1, 2)) for _ in others]
        got = run_coroutines(
            [s.score_draft(d, ROW) for s, d in zip((*some, *others), (*drafts, *free), strict=True)]
        )
        for session, draft, scores in zip(some, drafts, got[: len(some)], strict=True):
            n, m = len(session.ledger.text), len(draft)
            near(rows(scores, m), want[n : n + m])
            session.commit_tokens(draft.token[: dice.randrange(1, m + 1)])
            if len(session.ledger.text) > len(TEXT) - left:
                session.rewind_tokens(20)
    for session in (*some, *others):
        session.close()


@pytest.mark.parametrize("kind", KINDS)
def test_company_forks_eviction_rewinds_and_shared_prefixes_leave_the_law(kind, truth):
    want, dice = truth(kind), random.Random(5)
    target = law(presses(4)[kind], keep=2)
    plain = target_of_exact()
    some = [
        target.open_session(TEXT[: dice.randrange(36, 50)]) for _ in range(3)
    ]  # they share a prefix
    others = [plain.open_session(TEXT[:20]), law(presses(5)["8 bits"]).open_session(TEXT[:33])]
    decode_in_company(some, others, want, dice, 4, 6)
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


def exactly(press, length=60, tolerance=1e-12, chunk=None):
    """Whether a press leaves every law as it is without one; chunk: tokens of a pass."""
    if chunk is not None:
        want = go(by_steps(target_of_exact(), TEXT[:length], 0))
        got = go(by_steps(law(press, chunk), TEXT[:length], 0))
        return float((got.exp() - want.exp()).abs().max()) < tolerance
    want = rows(
        go(target_of_exact().open_session(TEXT[:1]).score_draft(chain(length), ROW)), length
    )
    got = rows(go(law(press).open_session(TEXT[:1]).score_draft(chain(length), ROW)), length)
    return float((got.exp() - want.exp()).abs().max()) < tolerance


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


@pytest.mark.parametrize(
    "more, ranks",
    [
        ({}, [(3, 3), (3, 3), (3, 3)]),
        ({"value_rank": 1}, [(3, 1), (3, 1), (3, 1)]),
        ({"prompt": 17, "decoded_rank": 2}, [(3, 3), (3, 3), (2, 2)]),
        ({"prompt": 16, "decoded_rank": 0, "decoded_value_rank": 1}, [(3, 3), (0, 1), (0, 1)]),
        ({"prompt": 1, "value_rank": 0, "decoded_value_rank": 4}, [(3, 0), (3, 4), (3, 4)]),
    ],
)
def test_every_part_of_a_text_has_the_ranks_that_were_given(more, ranks):
    """Of keys and of values, in the prompt and behind it: what is packed has factors of these, and reads as if packed alone."""
    press = QuantisedPress("gear", 16, 2, 0, 3, **more)
    some = list(blocks(3, 16, 8))
    packed = [press.pack_block(k, kv, None, None) for k, kv in enumerate(some)]
    for block, want in zip(packed, ranks, strict=True):
        sizes = [0 if x.left is None else x.left.shape[-1] for x in (block.keys, block.values)]
        assert tuple(sizes) == want
    into = torch.empty(2, 2, 48, 8)
    press.fill_blocks(packed, into)
    for k, (kv, want) in enumerate(zip(some, ranks, strict=True)):
        for which, rank in enumerate(want):
            alone = filled(QuantisedPress("gear", 16, 2, 0, rank), [kv])[which]
            torch.testing.assert_close(into[which, :, 16 * k : 16 * (k + 1)], alone)
    assert press.rounding is None and press.has_factors


def test_factors_of_what_is_decoded_alone_are_no_rounding_alone():
    press = QuantisedPress("gear", 16, 2, prompt=40, decoded_rank=1)
    assert press.rounding is None and press.has_factors
    with pytest.raises(RequestError, match="prompt is 0"):
        QuantisedPress("gear", 16, 2, decoded_rank=1)


def test_factors_multiplied_apart_give_what_their_product_gives():
    """Scores and what weights gather, over blocks of two ranks: and nothing of the product is laid among the entries."""
    press = QuantisedPress("gear", 16, 2, 0, 3, 0.1, value_rank=2, prompt=20, decoded_rank=1)
    packed = [press.pack_block(k, kv, None, None) for k, kv in enumerate(blocks(3, 16, 8))]
    whole, bare = torch.empty(2, 2, 2, 48, 8).unbind()
    press.fill_blocks(packed, whole)
    parts = press.fill_backbones(packed, bare)
    assert [part.first for part in parts] == [0, 32]
    assert all((whole[which] - bare[which]).abs().max() > 0.01 for which in (0, 1))
    dice = torch.Generator().manual_seed(4)
    query, weights = torch.randn(2, 5, 8, generator=dice), torch.rand(2, 5, 50, generator=dice)
    scores, gathered = torch.zeros(2, 5, 50), weights[..., :48] @ bare[1]
    scores[..., :48] = query @ bare[0].transpose(-1, -2)
    for part in parts:
        part.add_scores(scores, query)
        part.add_gathered(gathered, weights)
    torch.testing.assert_close(scores[..., :48], query @ whole[0].transpose(-1, -2))
    torch.testing.assert_close(gathered, weights[..., :48] @ whole[1])
    assert not scores[..., 48:].any()


def test_few_rows_multiply_factors_apart_and_many_rows_read_their_sum(monkeypatch):
    press, seen = presses(4)["gear"], []
    for name in ("fill_blocks", "fill_backbones"):
        real = getattr(QuantisedPress, name)
        monkeypatch.setattr(
            QuantisedPress, name, lambda *a, n=name, f=real: (seen.append(n), f(*a))[1]
        )
    go(by_steps(law(press), TEXT[:20], 17))
    assert set(seen) == {"fill_backbones"}
    seen.clear()
    go(law(press, 50).open_session(TEXT[:60]).prefill_prompt(SILENT))
    assert "fill_blocks" in seen


def test_mixed_vectors_keep_their_products_and_come_back():
    dice = torch.Generator().manual_seed(3)
    for size in (8, 48, 64, 7):
        x, y = torch.randn(2, 5, size, generator=dice, dtype=torch.float64).unbind()
        mixed = apply_signed_hadamard(x)
        torch.testing.assert_close(undo_signed_hadamard(mixed), x)
        torch.testing.assert_close((mixed * apply_signed_hadamard(y)).sum(-1), (x * y).sum(-1))
    one = torch.zeros(64)
    one[5] = 8.0
    assert torch.equal(apply_signed_hadamard(one).abs(), torch.ones(64)), "one number is in all"
    assert abs(int(dimension_signs(64).sum())) <= 16 and len(set(dimension_signs(64).tolist())) == 2


@pytest.mark.parametrize("hadamard", [True, False])
def test_mixing_without_rounding_leaves_the_law(hadamard, monkeypatch):
    """What is packed is other numbers, and the law is the model's."""
    stored = []

    class Exact:
        nbytes = 0

        def __init__(self, x, bits, group):
            self.x = x
            stored.append(x)

    class Stack:
        def __init__(self, parts):
            self.parts = parts

        def read_numbers(self):
            return torch.stack([part.x for part in self.parts])

    monkeypatch.setattr(_quantised, "quantise_to_integers", Exact)
    monkeypatch.setattr(_quantised, "stack_packed_integers", Stack)
    assert exactly(QuantisedPress("a", 4, 4, hadamard=hadamard), tolerance=1e-9)
    assert stored
    kv = blocks(1, 4, 8)[0]
    stored.clear()
    QuantisedPress("a", 4, 4, hadamard=hadamard).pack_block(0, kv, None, None)
    values = kv[1].transpose(0, 1).flatten(-2)
    assert torch.allclose(stored[1], values) is not hadamard


def test_values_with_a_dimension_that_stands_out_are_nearer_when_mixed():
    kv = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(2))
    kv[..., 5] *= 30.0
    off = [
        (filled(QuantisedPress("a", 64, 4, 0, hadamard=h), [kv]) - kv).square().mean((1, 2, 3))
        for h in (False, True)
    ]
    assert off[0][1] > 1.5 * off[1][1]
    assert off[0][0] == off[1][0], "keys stay as they are"


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


def repeating(block=8, kept=4, sinks=1):
    return ScorerPress("kvzip", block, kept, sinks, ReconstructionRule())


def test_a_text_whose_repeat_chooses_has_one_law():
    """However it was cut: one token a pass, in chunks, drafts, behind forks, evictions, rewinds and shared prefixes."""
    want, dice = go(by_steps(law(repeating(), chunk=1), TEXT, 0)), random.Random(5)
    assert (want - go(by_steps(target_of_exact(), TEXT, 0))).abs().max() > 0.01
    target = law(repeating(), keep=2)
    some = [target.open_session(TEXT[: dice.randrange(36, 50)]) for _ in range(3)]
    others = [target_of_exact().open_session(TEXT[:20])]
    decode_in_company(some, others, want, dice, 6, 8)
    assert not target.live
    assert not target.layers, "no layer may lag behind a repeat"


def test_of_the_prompts_rows_and_of_old_repeats():
    """Rows of the whole prompt are those that were fed alone; what every layer has packed has no repeat any more."""
    target, want = law(repeating(), chunk=50), go(by_steps(law(repeating(), chunk=1), TEXT, 0))
    session = target.open_session(TEXT)
    got = rows(go(session.prefill_prompt(ScoreRequest(prompt=True))), len(TEXT) - 1)
    near(got, want[: len(TEXT) - 1])
    cache = session.ledger.cache
    assert cache.base >= 40 and not any(t is not None for t in cache.repeats[: cache.base // 8])
    assert exactly(repeating(4, 4, 0), chunk=4)


def test_a_draft_that_reaches_beyond_a_block_is_refused():
    session = law(repeating()).open_session(TEXT[:14])
    with pytest.raises(RequestError, match="draft is 30 deep: cache is kvzip over blocks of 8"):
        go(session.score_draft(Draft.chain_draft(TEXT[13], TEXT[14:44]), ROW))


def test_what_one_row_of_a_repeat_needs_stays():
    """A fact that one row of the repeat looks at, in one head of a group; the others look at nothing in particular."""
    dice = torch.Generator().manual_seed(0)
    kv, behind = 0.1 * torch.randn(2, 2, 8, 4, generator=dice), torch.zeros(4, 2, 8, 4)
    kv[0, 0, 5] = kv[0, 1, 2] = torch.tensor([0.0, 3.0, 0.0, 0.0])
    behind[2, 0, 7, 1] = behind[3, 1, 0, 1] = 4.0
    kept = ScorerPress("a", 8, 1, 0, ReconstructionRule()).pack_block(1, kv, behind, None).kv
    assert torch.equal(kept[:, 0, 0], kv[:, 0, 5]) and torch.equal(kept[:, 1, 0], kv[:, 1, 2])
    behind[0, 0, 7] = (
        9.0  # the repeat's own entry takes the attention of its row, and of none before it
    )
    kept = ScorerPress("a", 8, 1, 0, ReconstructionRule()).pack_block(1, kv, behind, None).kv
    assert not torch.equal(kept[:, 0, 0], kv[:, 0, 5]) and torch.equal(kept[:, 1, 0], kv[:, 1, 2])


def test_many_rows_of_a_repeat_that_need_a_little_do_not_outweigh_one():
    kv, behind = torch.zeros(2, 1, 8, 4), torch.zeros(3, 1, 8, 4)
    kv[1, 0] = torch.arange(8.0)[:, None]
    kv[0, 0, 5, 1] = kv[0, 0, 1, 2] = 3.0
    behind[2, 0, :7, 2] = 0.7  # seven rows look at entry 1 with about half of their attention
    behind[2, 0, 7, 1] = 4.0  # the last one looks at entry 5 alone
    kept = ScorerPress("a", 8, 1, 0, ReconstructionRule()).pack_block(1, kv, behind, None).kv
    assert torch.equal(kept[:, 0, 0], kv[:, 0, 5])


@dataclass(frozen=True)
class DrawnRule:
    """Keeps entries by lot."""

    seed: int
    asks = False

    def entry_scores(self, kv, behind):
        dice = torch.Generator().manual_seed(self.seed + int(kv[0, 0, 0, 0].abs() * 1e6))
        return torch.rand(kv.shape[1:3], generator=dice)


def test_a_text_that_is_said_again_is_nearer_than_with_entries_by_lot():
    """The law of the second saying, at equal budget: in a network whose attention is sharp, over ten texts."""
    net = network(dtype="float64", num_hidden_layers=2, initializer_range=0.5)
    off = dict.fromkeys(("repeated", "drawn"), 0.0)
    for seed in range(10):
        once = random.Random(seed).choices(range(1, 50), k=48)
        text = (*once, *once)
        for name, rule in (("repeated", ReconstructionRule()), ("drawn", DrawnRule(seed))):
            lm = CausalLaw(net, TokenVocabulary(50, frozenset({0})), chunk=8)
            pressed = lm.pressed_law(ScorerPress("a", 8, 2, 1, rule))
            p, q = (go(by_steps(x, text, 48)) for x in (lm, pressed))
            off[name] += float((p.exp() * (p - q)).sum(-1).mean())
    assert off["repeated"] < 0.8 * off["drawn"], off


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
    with pytest.raises(RequestError, match="see parts of the text"):
        CausalLaw(net, TokenVocabulary(50, frozenset({0}))).pressed_law(
            WindowPress("window", 16, 4)
        )
