"""Drafters over the target's states: heads and feature drafters know the right state, keep the law, and come back from disk."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.functional import one_hot

import micro
from polydec import load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, TokenVocabulary
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.check_informed import check_informed
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.own_text import read_target_states
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters._states import LAYER, StateGuess, pad_last_tokens
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.falcon import FalconDrafter
from polydec.methods.speculative.drafters.heads import HeadLaws, HeadsDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import chimera, clover, eagle, eagle3, falcon, heads
from polydec.models.learned.kinds.heads import DraftHeads
from polydec.models.nets.query import NetworkAnswer, NetworkQuery

CHAIN = RankedTree(((0,), (0, 0), (0, 0, 0)))
ROOT = Draft.chain_draft(1)


@dataclass(frozen=True, eq=False)
class Oracle:
    """In place of Hydra's weights: the state that a toy leaves after the tokens of the path; own: in the published form, where
    such a state is a mark in the place of its two tokens, and this matrix makes laws of it."""

    reads, cost, network, window, depth = True, 0.1, None, 1, 3
    marks: torch.Tensor  # of each token what `even` makes of its embedding
    own: torch.Tensor | None = None

    @property
    def normed(self):
        return self.own is not None

    def level_head(self, k):
        return self.own

    def start_levels(self, state_NH):
        return heads.rms_normalised(state_NH)

    def forward(self, queries):
        out = []
        for _, carry_NC, embed_NH in queries:
            inputs_NI = torch.cat([carry_NC, heads.rms_normalised(embed_NH)], 1)
            token_NT = [
                [int((self.marks - row).abs().sum(-1).argmin()) for row in rows.split(4)]
                for rows in inputs_NI
            ]
            before = [t[1:-1] or None for t in token_NT]
            first = [round(float(rows[0] / rows[2] * 7)) for rows in inputs_NI]
            state_N4 = torch.tensor(
                [
                    [t[-1], b[-1] if b else x, 7, 0]
                    for t, b, x in zip(token_NT, before, first, strict=True)
                ]
            )
            place_N = state_N4[:, 1] * (len(self.marks) + 1) + state_N4[:, 0]
            out.append(
                (
                    inputs_NI,
                    state_N4 if self.own is None else one_hot(place_N, self.own.shape[1]).double(),
                )
            )
        return out


def oracle(law, published=False):
    own = law.network.weight.flatten(0, 1).T if published else None
    return Oracle(
        heads.rms_normalised(law.open_session((0,)).embed_tokens(range(law.vocab.size))), own
    )


@pytest.mark.parametrize("published", [False, True], ids=["ours", "published"])
@pytest.mark.parametrize("tree", [CHAIN, BestFirstTree(1)], ids=lambda t: type(t).__name__)
def test_who_knows_the_model_is_never_wrong(tree, published):
    check_informed(lambda law: HeadsDrafter(oracle(law, published), tree))


class Fed:
    """In place of EAGLE's weights: of a toy's state (token, the one before, 7, 0) and the next token the next state. The cache
    holds the tokens, each of which must stand behind the one that its state says. Of Falcon's as well, with blocks of one."""

    depth, block = 64, 1

    def __init__(self, law, depths=(), window=1, normed=False):
        self.network, self.depths, self.window, self.normed = self, depths, window, normed
        self.new_cache, self.cost = law.network.new_cache, 0.1

    def layer_inputs(self, embed_NWH, state_NH):
        token, before = embed_NWH[:, -1, 0], state_NH[:, 0].double()
        assert embed_NWH.shape[1] == self.window and state_NH.shape[1] in (4, 4 * len(self.depths))
        assert self.window == 1 or embed_NWH[:, -2, 0].equal(before), (
            "the window is another one than the state's"
        )
        return torch.stack([token, before, torch.full_like(token, 7), torch.zeros_like(token)], 1)

    drafted_inputs = layer_inputs

    def read_states(self, k, true_H, out_NS):
        return out_NS, out_NS

    def forward(self, queries):
        for q in queries:
            cache = q.cache
            for slot, (token, before, *_) in enumerate(q.embed.tolist(), q.first):
                staged = slot - cache.length
                above = cache.length + cache.parent[staged] if staged >= 0 else slot - 1
                cache.text[slot] = int(token)
                assert above < 0 or cache.text[above] == int(before), (
                    "an entry stands behind another token than its state's"
                )
        return [NetworkAnswer(None, q.embed[list(q.rows)]) for q in queries]


@pytest.mark.parametrize(
    "tree, prompt, more",
    [
        (CHAIN, True, {}),
        (BestFirstTree(1), False, {}),
        (BestFirstTree(1), True, {"window": 3}),
        (CHAIN, True, {"depths": (1, 3)}),
        (BestFirstTree(1), True, {"normed": True}),
    ],
    ids=["prompt", "last", "window", "depths", "published"],
)
def test_a_cache_of_its_own_holds_the_text(tree, prompt, more):
    """Of states, of windows of tokens, of states at several depths (where layers can run alone), and behind the last norm."""
    check_informed(lambda law: EagleDrafter(Fed(law, **more if law.layers else {}), tree, prompt))


@pytest.mark.parametrize(
    "tree, prompt", [(CHAIN, True), (BestFirstTree(2), False)], ids=["chain", "last"]
)
def test_blocks_of_one_state_are_an_eagle(tree, prompt):
    """Falcon's tree, cache and states, where a block is one state: the one that knows the model is never wrong."""
    check_informed(lambda law: FalconDrafter(Fed(law), tree, prompt))


def test_a_block_is_guessed_in_one_pass_and_seen_as_a_whole():
    """Two levels a pass; and what stands last in a block bears on all that the block guesses, on no block before it."""
    vocab, calls = TokenVocabulary(5, frozenset()), []
    one = falcon.examples(vocab, 4, 4)[0]
    network, rows = one.network, torch.randn(6, 8, generator=torch.Generator().manual_seed(0))

    def guesses(rows, *asked):
        cache = network.new_cache()
        first = cache.stage_slots(range(-1, len(rows) - 1))
        cache.commit_path(range(len(rows)))
        return network.forward([NetworkQuery(cache, first, (), asked, LAYER, rows)])[0].hidden_RH

    other = torch.cat([rows[:5], rows[5:] + 1.0])
    before, now = guesses(rows, 4, 5), guesses(other, 4, 5)
    assert before.shape == (2, 8) and before[0].equal(now[0])
    assert not before[1, :4].allclose(now[1, :4]) and not before[1, 4:].allclose(now[1, 4:])

    class Counted:
        def __init__(self, own):
            self.own, self.new_cache, self.cost = own, own.new_cache, 0.1

        def forward(self, queries):
            calls.append(len(queries))
            return self.own.forward(queries)

    object.__setattr__(one, "network", Counted(network))
    law = ShapedTarget(toy_law(3, 5, eos=-1), GreedyRule())
    decoder = SpeculativeDecoder(law, FalconDrafter(one, CHAIN), MatchVerifier(), FixedPolicy(4))
    done = run_coroutines([answer_one(decoder, Request((0, 1, 2), 12, ignore_eos=True))])[0]
    assert done.stats.drafted > sum(calls) > 0  # a layer of one state a pass takes a pass a token


def test_an_eagle_keeps_the_law(record_counts):
    record_counts(
        check_law(
            lambda target, draft: SpeculativeDecoder(
                target,
                EagleDrafter(eagle.examples(target.vocab, 4, 4)[0], BestFirstTree(2), False),
                MatchVerifier(),
                FixedPolicy(2, 4),
            ),
            laws=2,
            length=2,
        )
    )


@pytest.mark.parametrize(
    "module, draws",
    [
        (eagle, EagleDrafter),
        (falcon, FalconDrafter),
        (chimera, EagleDrafter),
        (heads, HeadsDrafter),
        (clover, HeadsDrafter),
    ],
    ids=["eagle", "falcon", "chimera", "hydra++", "clover"],
)
def test_what_is_kept_between_rounds_is_what_would_be_computed_anew(module, draws, tmp_path):
    """On a network: the state behind all rounds equals the one from an empty cache, over true states alone."""
    lm = load(str(micro.write(tmp_path)), draft=None, dtype="float32").checkpoint.lm
    own, tips = module.examples(lm.vocab, 32, 32)[-1], []

    class Spy:
        def open_guess(self, prompt, session):
            tips.append(draws(own, BestFirstTree(3)).open_guess(prompt, session))
            tips[-1].close = lambda: None  # so that the cache can be looked at
            return tips[-1]

    out = run_coroutines(
        [
            answer_one(
                SpeculativeDecoder(lm, Spy(), MatchVerifier(), FixedPolicy(3, 8)),
                Request((5, 6, 7, 8), 30, ignore_eos=True),
            )
        ]
    )[0]
    kept = tips[0].cache.length // (2 if module is chimera else 1)  # a state and the code behind it
    text = (5, 6, 7, 8, *out.token_ids)[: kept + 1]
    assert kept > 20
    state_NH, _ = read_target_states(lm, text)

    async def anew():
        guess = draws(own, BestFirstTree(3)).open_guess(text, lm.open_session(text))
        windows = [pad_last_tokens(text[: i + 2], own.window) for i in range(kept)]
        guess.pending, guess.true_H = list(zip(windows, state_NH, strict=True)), state_NH[-1]
        await guess.propose_draft(text[-1], len(text), DraftBudget(1, 1), Rng.of_choice(0))
        return guess.tip.hidden_RH

    assert run_coroutines([anew()])[0].allclose(tips[0].tip.hidden_RH, atol=1e-4)


def some(vocab, reads):
    return next(h for h in heads.examples(vocab, 4, 4) if h.reads == reads)


@pytest.mark.parametrize("reads", [False, True], ids=["medusa", "hydra"])
def test_a_dynamic_tree_grows_on_heads(record_counts, reads):
    record_counts(
        check_drafter(HeadsDrafter(some(TokenVocabulary(3, frozenset()), reads), BestFirstTree(2)))
    )


@pytest.mark.parametrize(
    "verifier, tree",
    [
        (MatchVerifier(), RankedTree()),
        (ExactVerifier(), RankedTree()),
        (ExactVerifier(), StaticTree((2, 1))),
    ],
    ids=["match", "exact", "drawn"],
)
def test_the_law_stays(record_counts, verifier, tree):
    record_counts(
        check_law(
            lambda target, draft: SpeculativeDecoder(
                target, HeadsDrafter(some(target.vocab, True), tree), verifier, FixedPolicy(2, 4)
            ),
            laws=2,
            length=2,
        )
    )


def test_the_last_state_of_the_prompt_is_asked_for_and_no_more():
    """The first round has a draft, and a prompt that is in the cache stays there."""
    law = toy_law(2, 5, eos=-1)
    law.keep = 2
    decoder = SpeculativeDecoder(
        law, HeadsDrafter(some(law.vocab, True), CHAIN), MatchVerifier(), FixedPolicy(3)
    )
    first = run_coroutines([answer_one(decoder, Request((0, 1, 2, 3, 4, 0, 1, 2), 1, seed=1))])[0]
    before = law.network.runs
    again = run_coroutines([answer_one(decoder, Request((0, 1, 2, 3, 4, 0, 1, 2), 8, seed=1))])[0]
    rows = again.stats.drafted + again.stats.passes
    assert again.token_ids[:1] == first.token_ids and again.stats.drafted >= 3
    assert law.network.runs - before <= law.layers * (
        rows + 2
    )  # not the prompt of eight a second time


def test_untrained_heads_say_what_the_state_says():
    """Heads that pass the state on give the model's own law: the state is the right one, before the norm."""
    law = toy_law(3, 5)
    same = DraftHeads(heads.new_draft_heads(4, 2, False, 0), False, law.vocab, ((1.0,),) * 2)
    session, state_H = law.open_session((0, 1)), torch.tensor([2.0, 1.0, 7.0, 0.0])
    for shaped in (session, ShapedTarget(law, TemperatureRule(0.5)).open_session((0, 1))):
        known = StateGuess(None, shaped, None, true_H=state_H)
        got = run_coroutines([HeadLaws(same, known).score_draft(ROOT, None)])[0]
        assert got.logprob_row(0).isfinite().all()
    network = torch.nn.functional.normalize(state_H, dim=0) * 2  # rms 1 at width 4
    assert heads.rms_normalised(state_H[None])[0].allclose(network, atol=1e-5)


def test_hydra_that_reads_nothing_is_medusa():
    vocab = TokenVocabulary(3, frozenset())
    small = some(vocab, False)
    wide = [
        tuple(torch.nn.functional.pad(t, (0, 4 * (k + 1))) if t.ndim == 2 else t for t in head)
        for k, head in enumerate(small.heads)
    ]
    blind = DraftHeads(wide, True, vocab, small.rates)
    for k in range(3):
        x = torch.randn(2, 4)
        carry = torch.cat([x, torch.randn(2, 4 * k)], 1)
        assert blind.guess_level(k, carry, torch.randn(2, 4))[1].allclose(
            small.guess_level(k, x, x)[1], atol=1e-6
        )


def test_a_head_of_several_blocks_is_the_published_loop():
    """y = R u + SiLU(S u), then y + SiLU(W y) block by block, each with weights of its own."""
    deep = heads.examples(toy_law(1).vocab, 4, 4)[-1]
    assert [len(blocks) for blocks in deep.more] == [2, 2, 2]
    u, e = torch.randn(5, 4), torch.randn(5, 4)
    for k in range(3):
        carry, made = deep.guess_level(k, u, e)
        weight, bias, skip = deep.heads[k]
        want = carry @ skip.T + torch.nn.functional.silu(carry @ weight.T + bias)
        for into, shift in deep.more[k]:
            want = want + torch.nn.functional.silu(want @ into.T + shift)
        assert made.allclose(want, atol=1e-6)
        one = replace(deep, more=()).guess_level(k, u, e)[1]
        assert not one.allclose(made, atol=1e-3)
        u = carry
    own = [t for blocks in deep.more for block in blocks for t in block]
    assert len({t.data_ptr() for t in own}) == len(own)  # no block is another's


def test_queries_together_are_queries_alone():
    own = some(TokenVocabulary(3, frozenset()), True)
    queries = [
        (k, torch.randn(n, 4 * (k + 1)), torch.randn(n, 4))
        for k, n in ((0, 1), (2, 3), (0, 2), (1, 1))
    ]
    for query, got in zip(queries, own.forward(queries), strict=True):
        for mine, alone in zip(got, own.forward([query])[0], strict=True):
            assert mine.allclose(alone, atol=1e-6)


def test_a_tree_by_rates():
    assert RankedTree.of_rates(((0.5, 0.3), (0.4, 0.3)), 4).paths == ((0,), (1,), (0, 0), (0, 1))
    assert len(RankedTree.of_rates(((0.5, 0.3), (0.4, 0.3)), 64).paths) == 6
    law = toy_law(4, 5)

    async def grown():
        return await RankedTree.of_rates(((0.5, 0.3), (0.4, 0.3)), 4).grow_tree(
            law.open_session((0, 1)), 1, 2, DraftBudget(3, 8), Rng.of_choice(0)
        )

    draft, weight = run_coroutines([grown()])[0], law.network.weight
    first = weight[0, 1].topk(2).indices.tolist()
    second = weight[1, first[0]].topk(2).indices.tolist()
    assert draft.token == (1, *first, *second) and draft.parent == (-1, 0, 0, 1, 1)
    with pytest.raises(ValueError, match="every beginning of each path"):
        RankedTree(((0, 0),))


@pytest.mark.parametrize(
    "one",
    [
        a
        for m in artefacts.MODULES.values()
        for a in m.examples(TokenVocabulary(5, frozenset()), 4, 4)
    ],
    ids=lambda a: a.kind,
)
def test_artefacts_come_back_as_they_were(one, tmp_path):
    """Every kind: what is read is what was written, and written again it is the same file."""
    module = artefacts.MODULES[one.kind]
    module.save(tmp_path / "a", one, {})
    module.save(tmp_path / "b", artefacts.load_artefact(str(tmp_path / "a")), {})
    for name in (module.KIND.weights, "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_wrong_heads_are_told_in_one_sentence():
    medusa, hydra, *_ = heads.examples(TokenVocabulary(3, frozenset()), 4, 4)
    build = lambda name, *have: registry.build(name, Kit(toy_law(1), None, have))  # noqa: E731
    build("hydra", medusa, hydra)
    with pytest.raises(ValueError, match="hydra needs draft heads that read tokens: name one"):
        build("hydra", medusa)
    with pytest.raises(ValueError, match="hydra-plus-plus needs draft heads behind a layer"):
        build("hydra-plus-plus", medusa, hydra)
    deep = eagle3.examples(TokenVocabulary(3, frozenset()), 4, 4)[0]
    with pytest.raises(
        ValueError, match="read the states after layer 9: this target shows 3 of its layers"
    ):
        build("eagle-3", replace(deep, depths=(1, 9)))
    with pytest.raises(ValueError, match="vocabulary of 7 tokens"):
        build("medusa", replace(medusa, vocab=TokenVocabulary(7, frozenset())))
    with pytest.raises(ValueError, match="trained for states of width 8: this target's have 4"):
        build("medusa", heads.examples(TokenVocabulary(3, frozenset()), 8, 8)[0])


def test_cost_aware_weighs_what_a_draft_costs():
    """Free, it is fed; at fifty passes a draft, nothing is ever proposed, and the text is the same."""
    law, costs, said = ShapedTarget(toy_law(1), GreedyRule()), PassCosts((1.0, 1.01)), {}
    for share in (0.0, 50.0):
        kit = Kit(law, None, (replace(some(law.vocab, True), share=share),), lambda: costs)
        decoder, _ = registry.build("hydra", kit, {"cost_aware": "true"})
        said[share] = run_coroutines([answer_one(decoder, Request((0, 1), 40, ignore_eos=True))])[0]
    assert said[50.0].stats.drafted == 0 < said[0.0].stats.drafted
    assert said[50.0].token_ids == said[0.0].token_ids
