"""Shaped laws: the enumerated law of decodes, states along every way through a text, laziness, laws known without a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polydec.core.decoder import answer_one
from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.enumerate import Law, law_of, target_law, text_law_distance
from polydec.lab.testing.toy import OrderTwoNetwork, toy_law
from polydec.laws.shapers.banned import BannedTokensRule
from polydec.laws.shapers.dry import DryRule
from polydec.laws.shapers.frequency import FrequencyPenaltyRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.min_p import MinPRule
from polydec.laws.shapers.min_tokens import MinTokensRule
from polydec.laws.shapers.no_repeat_ngram import NoRepeatNgramRule
from polydec.laws.shapers.presence import PresencePenaltyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.sampling import ORDERS, Sampling, build_shapers
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.shapers.top_k import TopKRule
from polydec.laws.shapers.top_p import TopPRule
from polydec.laws.shapers.typical import TypicalRule
from polydec.laws.shapers.xtc import XtcRule
from polydec.laws.targets.shaped import KEEP, ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw

PROMPT = (0, 1)
PENALISED = (
    RepetitionPenaltyRule(1.3),
    PresencePenaltyRule(0.4),
    TemperatureRule(0.8),
    TopPRule(0.9),
)


@dataclass(frozen=True)
class Always:
    """Proposes the same tree below any root: what it proposes says nothing about the law."""

    token: tuple[int, ...] = (1, 0, 1, 0, 1)
    parent: tuple[int, ...] = (0, 1, 1, 2, 0)
    want: ScoreRequest = field(default_factory=lambda: ScoreRequest(law=RowDetail.NOTHING))

    def open_guess(self, prompt: Sequence[int], session: Any) -> Always:
        return self

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return Draft.certain_tree((root, *self.token), (-1, *self.parent))

    def learn_round(self, draft: Draft, scores: Any, verdict: Verdict) -> None:
        pass

    def fork(self) -> Always:
        return self

    def close(self) -> None:
        pass


def row(target: Any, prompt: Sequence[int], output: Sequence[int] = ()) -> Tensor:
    """The row after prompt and output, from a fresh session."""

    async def go() -> Tensor:
        session, tokens = target.open_session(tuple(prompt)), (prompt[-1], *output)
        session.commit_tokens(tokens[:-1])
        return (
            await session.score_draft(Draft.chain_draft(tokens[-1]), ScoreRequest())
        ).logprob_row(0)

    return run_coroutines([go()])[0]


def plain_law(target: Any, drafter: Any, length: int) -> Law:
    decoder = SpeculativeDecoder(target, drafter, MatchVerifier(), FixedPolicy())
    return law_of(lambda rng: answer_one(decoder, Request(PROMPT, max_tokens=length), rng))


def hand_law(model: CausalLaw, length: int) -> Law:
    """Repetition 1.3, presence 0.4, temperature 0.8, top-p 0.9, in plain Python, from the toy's table."""
    table, law = model.network.weight.tolist(), Law()

    def walk(output: tuple[int, ...], p: float) -> None:
        text = (*PROMPT, *output)
        z = list(table[text[-2]][text[-1]])
        for x in set(text):
            z[x] = z[x] / 1.3 if z[x] > 0 else z[x] * 1.3
        for x in set(output):
            z[x] -= 0.4
        w = [math.exp(v / 0.8) for v in z]
        kept, mass = {}, 0.0
        for x in sorted(range(len(w)), key=lambda x: -w[x]):
            if mass < 0.9:
                kept[x] = w[x] / sum(w)
            mass += w[x] / sum(w)
        for x, q in kept.items():
            q /= sum(kept.values())
            if x in model.vocab.eos or len(output) + 1 == length:
                law[(*output, x)] = p * q
            else:
                walk((*output, x), p * q)

    walk((), 1.0)
    return law


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("drafter", [NothingDrafter(), Always()], ids=["none", "certain tree"])
def test_decodes_have_the_hand_computed_law(seed: int, drafter: Any) -> None:
    model = toy_law(seed + 1, 3 + seed % 2)
    law = plain_law(ShapedTarget(model, *PENALISED), drafter, 3)
    assert len(law) > 3
    assert text_law_distance(law, hand_law(model, 3)) < 1e-9
    assert text_law_distance(law, target_law(model, PROMPT, 3, PENALISED)) < 1e-9
    assert text_law_distance(law, target_law(model, PROMPT, 3)) > 0.02


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tree", [True, False], ids=["tree mask", "paths"])
def test_every_rule_at_once(order: str, tree: bool) -> None:
    sampling = Sampling(
        temperature=0.9,
        top_k=3,
        top_p=0.97,
        min_p=0.01,
        typical_p=0.97,
        epsilon_cutoff=0.01,
        eta_cutoff=0.01,
        top_n_sigma=2.5,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        no_repeat_ngram_size=3,
        dry_multiplier=0.6,
        dry_allowed_length=1,
        xtc_probability=0.5,
        xtc_threshold=0.1,
        logit_bias={0: 0.3},
        min_tokens=2,
    )
    for seed in range(3):
        model, shapers = (
            toy_law(seed + 20, 4, tree=tree),
            build_shapers(sampling, order=order, eos=(3,), seed=seed),
        )
        assert len(shapers) == 16
        assert (
            text_law_distance(
                plain_law(ShapedTarget(model, *shapers), Always(), 3),
                target_law(model, PROMPT, 3, shapers),
            )
            < 1e-9
        )


def test_greedy_text_is_the_same_under_any_draft() -> None:
    for seed in range(8):
        target = ShapedTarget(
            toy_law(seed, 4),
            RepetitionPenaltyRule(1.4),
            FrequencyPenaltyRule(0.3),
            TemperatureRule(0.5),
            GreedyRule(),
        )
        law = plain_law(target, NothingDrafter(), 6)
        assert list(law.values()) == [1.0] and law == plain_law(target, Always(), 6)


def test_nesting_equals_one_list_of_shapers() -> None:
    model = toy_law(3, 4)
    flat, nested = (
        ShapedTarget(model, *PENALISED),
        ShapedTarget(ShapedTarget(ShapedTarget(model), *PENALISED[:2]), *PENALISED[2:]),
    )
    assert text_law_distance(plain_law(flat, Always(), 3), plain_law(nested, Always(), 3)) < 1e-12
    assert torch.equal(row(ShapedTarget(model), PROMPT), row(model, PROMPT))
    assert (
        text_law_distance(
            plain_law(
                ShapedTarget(ShapedTarget(model, RepetitionPenaltyRule(1.5)), GreedyRule()),
                Always(),
                4,
            ),
            plain_law(ShapedTarget(model, RepetitionPenaltyRule(1.5), GreedyRule()), Always(), 4),
        )
        == 0.0
    )


def test_a_draw_of_xtc_is_one_law_for_all_who_look() -> None:
    coins = [(XtcRule(0.5, 0.1, Rng.of_choice(s)),) for s in range(12)]
    laws = [target_law(toy_law(2, 4), PROMPT, 2, c) for c in coins]
    assert len({tuple(sorted(x.items())) for x in laws}) > 2  # two coins: up to four laws
    for c, law in zip(coins, laws, strict=True):
        assert (
            text_law_distance(plain_law(ShapedTarget(toy_law(2, 4), *c), Always(), 2), law) < 1e-9
        )


SHAPERS = (
    RepetitionPenaltyRule(1.3),
    PresencePenaltyRule(0.5),
    FrequencyPenaltyRule(0.2),
    DryRule(0.5, allowed_length=1),
    NoRepeatNgramRule(3),
    MinTokensRule(2, (3,)),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["score", "commit", "path", "rewind", "fork", "part"]),
            st.integers(0, 2**20),
        ),
        max_size=12,
    ),
    st.booleans(),
)
@settings(max_examples=60)
def test_rows_do_not_depend_on_the_way(steps: list[tuple[str, int]], nested: bool) -> None:
    """Scoring, committing, rewinding (also into the prompt), forking and parts, in any order: rows equal fresh ones."""
    model = toy_law(5, 4, chunk=3)
    model.network.partial = True
    target = (
        ShapedTarget(ShapedTarget(model, *SHAPERS[:3]), *SHAPERS[3:])
        if nested
        else ShapedTarget(model, *SHAPERS)
    )
    prompt, text = (1, 0, 2, 1), [1, 0, 2, 1]

    async def go() -> None:
        nonlocal prompt
        session = whole = target.open_session(prompt)
        root = prompt[-1]
        left = [*prompt[:-1]]  # committed

        async def check(tokens: tuple[int, ...], parent: tuple[int, ...]) -> None:
            draft = Draft.certain_tree((root, *tokens), (-1, *parent))
            scores = await session.score_draft(draft, ScoreRequest())
            head = prompt if len(left) >= len(prompt) else (*left, root)
            for node in reversed(range(len(draft))):
                full = (*left, root, *[draft.token[i] for i in draft.path_to(node)])
                expected_V = row(target, head, full[len(head) :])
                assert torch.allclose(scores.logprob_row(node), expected_V, atol=1e-12)

        for what, n in steps:
            tokens = (n % 3, n // 3 % 3, n // 9 % 3)
            if what == "score":
                await check(tokens, ((0, 1, 1), (0, 0, 2), (0, 1, 2))[n % 3])
            elif what == "commit":  # never scored
                session.commit_tokens((root, *tokens[: n % 3]))
                left += [root, *tokens[: n % 3]]
                root = n % 4
            elif what == "path":
                await check(tokens, (0, 1, 2))
                session.commit_tokens((root, tokens[0], tokens[1]))
                left += [root, tokens[0], tokens[1]]
                root = (n + 1) % 4
            elif what == "rewind":
                k = n % (len(left) + 1)
                session.rewind_tokens(k)
                if k:
                    del left[-k:]
                if len(left) < len(prompt):
                    prompt = tuple(left)  # the next root ends the prompt
                    root = n % 4
                    prompt = (*prompt, root)
            elif what == "fork":
                twin = session.fork()
                twin.commit_tokens((root, 1))
                if n % 2:
                    session.commit_tokens((root,))
                    left.append(root)
                    root = n % 3
            else:
                session = whole.open_part(range(3)) if session is whole else whole
            await check((1, 2), (0, 0))

    run_coroutines([go()])
    assert text


def test_rewinding_past_kept_states() -> None:
    """States of most committed nodes are dropped; a rewind derives them again."""
    target = ShapedTarget(toy_law(8, 4), *SHAPERS)
    text = torch.randint(3, (3 * KEEP + 7,), generator=torch.Generator().manual_seed(1)).tolist()

    async def go() -> None:
        session, root = target.open_session((0,)), 0
        for x in text:
            (await session.score_draft(Draft.chain_draft(root, (x,)), ScoreRequest())).logprob_row(
                0
            )
            session.commit_tokens((root,))
            root = x
        node, states = session._trail.tip, 0
        while node.above is not None:
            states, node = states + (node.states is not None), node.above
        assert states <= len(text) // KEEP + 3
        for back in (1, 5, KEEP, KEEP + 3):
            session.rewind_tokens(back)
            del text[len(text) - back :]
            row_V = (
                await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())
            ).logprob_row(0)
            assert torch.equal(row_V, row(target, (0,), text))

    run_coroutines([go()])


@dataclass(frozen=True)
class Counting:
    """The identity, counting its calls."""

    calls: dict[str, int] = field(default_factory=lambda: {"start": 0, "step": 0, "shape": 0})
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def start_state(self, prompt: Sequence[int]) -> None:
        self.calls["start"] += 1

    def next_state(self, state: None, token: int) -> None:
        self.calls["step"] += 1

    def shape_law(self, state: None, logw_V: Tensor) -> Tensor:
        self.calls["shape"] += 1
        return logw_V


def test_states_are_derived_once_where_somebody_looks() -> None:
    count = Counting()
    target, calls = ShapedTarget(toy_law(1, 4), count), count.calls

    async def go() -> None:
        session = target.open_session(PROMPT)
        draft = Draft.certain_tree((1, 0, 2, 0, 1), (-1, 0, 0, 1, 2))
        scores = await session.score_draft(draft, ScoreRequest())
        assert calls == {"start": 0, "step": 0, "shape": 0}
        (
            scores.logprob_row(3),
            scores.logprob_row(3),
            scores.token_logprobs(3, (0, 1)),
            scores.likeliest_tokens(3, 2),
            scores.log_weights(3),
        )
        assert calls == {"start": 1, "step": 2, "shape": 1}
        scores.logprob_row(1)
        assert calls == {"start": 1, "step": 3, "shape": 2}
        session.commit_tokens((1, 0, 0))
        scores = await session.score_draft(Draft.chain_draft(2), ScoreRequest())
        assert calls == {"start": 1, "step": 3, "shape": 2}
        scores.logprob_row(0)
        assert calls == {"start": 1, "step": 4, "shape": 3}

    run_coroutines([go()])


class Blind(OrderTwoNetwork):
    """A toy whose logits may not be asked for where less is wanted; it remembers what was wanted."""

    def __init__(self, seed: int, size: int) -> None:
        super().__init__(seed, size)
        self.wanted: list[RowDetail] = []

    def forward(self, queries: Sequence[Any]) -> Any:
        self.wanted += [q.want.law for q in queries if len(q.rows)]
        return super().forward(queries)


def test_what_the_model_is_asked_for() -> None:
    none, argmax, topk, row = RowDetail
    for shapers, law, base, asked in [
        ((GreedyRule(),), row, none, argmax),
        ((TemperatureRule(2.0), TopPRule(0.5), GreedyRule()), row, none, argmax),
        ((RepetitionPenaltyRule(1.1), GreedyRule()), row, none, row),
        ((TemperatureRule(2.0),), argmax, none, argmax),
        ((TemperatureRule(2.0),), row, none, row),
        ((TypicalRule(0.5),), argmax, none, row),
        ((GreedyRule(),), none, none, none),
        ((GreedyRule(),), row, row, row),
        ((), topk, none, topk),
        ((RepetitionPenaltyRule(1.1),), none, topk, topk),
    ]:
        network = Blind(1, 4)
        session = ShapedTarget(CausalLaw(network, toy_law(1, 4).vocab), *shapers).open_session(
            PROMPT
        )
        run_coroutines(
            [session.score_draft(Draft.chain_draft(1), ScoreRequest(law=law, base=base))]
        )
        assert network.wanted == [asked]


def test_certain_laws_write_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_law(4, 5)

    async def score(*shapers: Any) -> Any:
        return (
            await ShapedTarget(model, *shapers)
            .open_session(PROMPT)
            .score_draft(Draft.certain_tree((1, 0, 3), (-1, 0, 0)), ScoreRequest())
        )

    inner = run_coroutines(
        [
            model.open_session(PROMPT).score_draft(
                Draft.certain_tree((1, 0, 3), (-1, 0, 0)), ScoreRequest()
            )
        ]
    )[0]
    best = [inner.likeliest_token(i) for i in range(3)]
    lazy, penalised = run_coroutines(
        [
            score(TemperatureRule(0.5), MinPRule(0.1), GreedyRule()),
            score(BannedTokensRule((best[0],)), GreedyRule()),
        ]
    )
    monkeypatch.setattr(
        type(inner), "logprob_row", lambda self, i: pytest.fail("a row was written")
    )
    assert (
        [lazy.certain_token(i) for i in range(3)]
        == [lazy.likeliest_token(i) for i in range(3)]
        == best
    )
    assert lazy.token_logprobs(1, (best[1], (best[1] + 1) % 5)) == (0.0, NEG_INF)
    assert (
        penalised.certain_token(0)
        == int(inner.log_weights(0).index_fill(0, torch.tensor([best[0]]), NEG_INF).argmax())
        != best[0]
    )
    assert penalised.certain_token(0) == penalised.likeliest_token(0)
    assert penalised.logprob_row(0).exp().tolist() == [
        float(x == penalised.certain_token(0)) for x in range(5)
    ]


def test_scores_agree_with_their_rows() -> None:
    for shapers in [
        (),
        (TopKRule(2),),
        PENALISED,
        (TypicalRule(0.3),),
        (GreedyRule(), TemperatureRule(0.5)),
        (RepetitionPenaltyRule(1.5), GreedyRule()),
    ]:
        s = run_coroutines(
            [
                ShapedTarget(toy_law(6, 5), *shapers)
                .open_session(PROMPT)
                .score_draft(
                    Draft.certain_tree((1, 0, 3), (-1, 0, 0)), ScoreRequest(base=RowDetail.ROW)
                )
            ]
        )[0]
        for i in range(3):
            row_V = s.logprob_row(i)
            assert (
                torch.allclose(row_V, normalise_log_weights(s.log_weights(i)))
                and abs(float(row_V.exp().sum()) - 1) < 1e-12
            )
            assert s.likeliest_token(i) == int(row_V.argmax())
            assert s.certain_token(i) in (None, s.likeliest_token(i))
            assert (
                s.likeliest_tokens(i, 2)[0][0] == s.likeliest_token(i)
                and len(s.likeliest_tokens(i, 99)[0]) == 5
            )
            assert s.likeliest_tokens(i, 2)[1] == s.token_logprobs(i, s.likeliest_tokens(i, 2)[0])
            assert s.topk_rows([i], 1) == [[s.likeliest_token(i)]]
            assert torch.equal(
                s.base.logprob_row(i), row(toy_law(6, 5), (*PROMPT, *([(), (0,), (3,)][i])))
            )
        assert s.hidden_NH is None


def test_prompt_rows_are_the_models() -> None:
    prompt, want = (
        (0, 1, 2, 0, 1),
        ScoreRequest(law=RowDetail.NOTHING, base=RowDetail.ROW, prompt=True),
    )
    scores = run_coroutines(
        [
            ShapedTarget(ShapedTarget(toy_law(2, 4), *PENALISED), GreedyRule())
            .open_session(prompt)
            .prefill_prompt(want)
        ]
    )[0]
    plain = run_coroutines(
        [toy_law(2, 4).open_session(prompt).prefill_prompt(replace(want, law=RowDetail.ROW))]
    )[0]
    assert all(torch.equal(scores.base.logprob_row(i), plain.logprob_row(i)) for i in range(4))


def test_rows_in_half_precision_are_shaped_in_float32() -> None:
    class Half(OrderTwoNetwork):
        def forward(self, queries: Sequence[Any]) -> Any:
            return [replace(a, logits_RV=a.logits_RV.bfloat16()) for a in super().forward(queries)]

    session = ShapedTarget(
        CausalLaw(Half(1, 4), toy_law(1, 4).vocab), TemperatureRule(0.7)
    ).open_session(PROMPT)
    scores = run_coroutines([session.score_draft(Draft.chain_draft(1), ScoreRequest())])[0]
    assert (
        scores.logprob_row(0).dtype is torch.float32
        and scores.log_weights(0).dtype is torch.float32
    )


def test_shaped_is_a_value() -> None:
    model = toy_law(1)
    assert (
        ShapedTarget(model, GreedyRule())
        == ShapedTarget(model, GreedyRule())
        != ShapedTarget(model, TemperatureRule(0.5))
    )
    assert ShapedTarget(model, *PENALISED).vocab is model.vocab
    with pytest.raises(AttributeError):
        ShapedTarget(model).shapers = ()  # type: ignore[misc]
    with pytest.raises(ValueError, match="n is 9"):
        ShapedTarget(model, GreedyRule()).open_session(PROMPT).rewind_tokens(9)
    with pytest.raises(ValueError, match="layers"):
        ShapedTarget(model, GreedyRule()).open_session(PROMPT).open_part(range(9))


@pytest.mark.parametrize("nested", [False, True])
def test_rows_after_keep_are_fresh_ones(nested: bool) -> None:
    """Of a scored tree some nodes stay below a new root: what lies above that one is text, for every rule."""
    model = toy_law(5, 4, chunk=3)
    target = (
        ShapedTarget(ShapedTarget(model, *SHAPERS[:3]), *SHAPERS[3:])
        if nested
        else ShapedTarget(model, *SHAPERS)
    )

    async def check(session: Any, draft: Draft, text: Sequence[int]) -> None:
        scores = await session.score_draft(draft, ScoreRequest())
        for node in range(len(draft)):
            path = [draft.token[i] for i in (0, *draft.path_to(node))]
            expected_V = row(target, PROMPT, (*text, *path)[1:])
            assert torch.allclose(scores.logprob_row(node), expected_V, atol=1e-12)

    async def go(root: int) -> None:
        session = target.open_session(PROMPT)
        draft = Draft.certain_tree((PROMPT[-1], 0, 2, 1, 2, 0), (-1, 0, 0, 1, 2, 3))
        await check(session, draft, ())
        left = session.keep_nodes(range(6), root)
        text = [draft.token[i] for i in (0, *draft.path_to(root))][:-1]
        more = Draft.certain_tree((*left.token, 1), (*left.parent, len(left) - 1))
        await check(session, more, text)  # what was kept, and one node more
        session.commit_tokens(more.token[:1])
        await check(session, Draft.certain_tree((2, 0), (-1, 0)), (*text, more.token[0]))

    run_coroutines([go(root) for root in range(6)])
