"""Drafts that spell the text in other tokens: what they read, what they propose, and that the law stays the target's."""

from dataclasses import replace

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, TokenVocabulary
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import SHAPERS, bend_target
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords, toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters._reader import (
    OtherTokenizerReader,
    retokenise_addition,
    shared_token_map,
)
from polydec.methods.speculative.drafters.other_tokenizer import OtherTokenizerDrafter
from polydec.methods.speculative.drafters.shared_tokens import (
    SharedTokensDrafter,
    SharedTokensGuess,
)
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw
from reasoned import Reasoned

RECIPES = ("universal-draft", "universal-draft-intersection")


def spelled(seed, pieces, eos, **options):
    """A toy whose ids are these pieces."""
    silent = frozenset({eos})
    return CausalLaw(
        OrderTwoNetwork(seed, len(pieces), **options),
        TokenVocabulary(
            len(pieces), silent, "of " + " ".join(pieces), ToyWords(tuple(pieces), silent)
        ),
        chunk=2,
    )


def pair(seed=1):
    """Target and draft whose vocabularies overlap in part: a, b and the end are shared, ab, c and ba are not."""
    return spelled(seed, ("a", "b", "ab", "$"), 3), spelled(
        seed + 30, ("c", "$", "b", "ba", "a"), 1, cost=0.1
    )


@pytest.mark.parametrize(
    "drafter, reasons",
    [
        (OtherTokenizerDrafter(toy_law(91, 3, cost=0.1), toy_law(1).vocab), {}),
        (OtherTokenizerDrafter(pair()[1], toy_law(1).vocab, 16), {}),
        (SharedTokensDrafter(pair()[1], toy_law(1).vocab), {}),
        (
            SharedTokensDrafter(spelled(7, ("x", "$"), 1), toy_law(1).vocab),
            dict.fromkeys(
                ("drafted", "accepted", "rejected", "proposing", "distinct", "learned"),
                "the draft has no token of the target's texts",
            ),
        ),
    ],
    ids=["text", "text 16", "shared", "nearly nothing shared"],
)
def test_contract(record_counts, drafter, reasons):
    record_counts(check_drafter(Reasoned(drafter, reasons)))


@pytest.mark.parametrize("shaping", SHAPERS)
@pytest.mark.parametrize("name", RECIPES)
def test_the_law_is_the_targets(name, shaping):
    for seed in (1, 2, 3):
        target, draft = (bend_target(m, SHAPERS[shaping]) for m in pair(seed))
        decoder, _ = build(name, target, draft)
        for prompt in ((0, 1, 0), (2,), (3, 2, 1)):
            law = law_of(lambda rng, d=decoder, p=prompt: answer_one(d, Request(p, 3), rng))
            off = text_law_distance(
                law,
                target_law(
                    target.target if shaping != "plain" else target, prompt, 3, SHAPERS[shaping]
                ),
            )
            assert off < 1e-9


@pytest.mark.parametrize("name", RECIPES)
def test_the_greedy_text_is_the_targets(name):
    for seed in range(8):
        target, draft = (ShapedTarget(m, GreedyRule()) for m in pair(seed))
        request = Request((0, 2, 1), 40, ignore_eos=True)
        texts = [
            run_coroutines([answer_one(build(n, target, draft)[0], request)])[0].token_ids
            for n in (name, "plain")
        ]
        assert texts[0] == texts[1]


def test_with_one_tokenizer_it_is_the_draft_model():
    for seed in range(4):
        target, draft = toy_law(seed, 5), toy_law(seed + 1, 5, cost=0.1)
        results = [
            run_coroutines(
                [
                    answer_one(
                        build(n, target, draft, {"depth": 3})[0], Request((0, 1, 2), 40, seed=seed)
                    )
                ]
            )[0]
            for n in ("universal-draft-intersection", "draft-model")
        ]
        assert results[0] == results[1]
    greedy, draft = (
        ShapedTarget(toy_law(3, 5, eos=-1, cost=cost), GreedyRule()) for cost in (1.0, 0.1)
    )
    stats = run_coroutines(
        [
            answer_one(
                build("universal-draft", greedy, draft, {"depth": 3})[0],
                Request((0, 1, 2), 40, ignore_eos=True),
            )
        ]
    )[0].stats
    assert stats.accepted >= 0.9 * stats.drafted > 0, "a draft that is the target is accepted"


def test_twins_are_pairs():
    target, draft = pair()
    assert shared_token_map(draft.vocab, target.vocab) == {4: 0, 2: 1, 1: 3}
    double = ToyWords(("a", "a", "b"))
    assert shared_token_map(
        TokenVocabulary(3, frozenset(), "", double),
        TokenVocabulary(2, frozenset(), "", ToyWords(("a", "b"))),
    ) == {0: 0, 2: 1}


def test_a_longer_piece_is_spelled_as_the_target_spells_it():
    words = ToyWords(("a", "b", "ab", " "))
    assert retokenise_addition(words, (0, 1), "ab b") == (2, 3, 1), (
        "what is written stays as it is spelled"
    )
    assert retokenise_addition(words, (3, 0), "b") == (1,), (
        "a piece is not merged with what is written"
    )


async def rounds(drafter, texts, depth=2):
    """What is proposed after each of these texts, one after another, and what the draft had been fed."""
    guess, out = drafter.open_guess(texts[0], None), []
    for text in texts:
        guess.reader.text[:] = text
        draft = await guess.propose_draft(
            text[-1], len(text), DraftBudget(depth, depth), Rng.of_choice(len(out))
        )
        out.append((draft, list(guess.reader.fed)))
    guess.close()
    return out


def test_the_draft_reads_its_own_spelling_and_goes_back_where_it_changes():
    """ "b", "a", then "bab": what the draft was fed becomes part of another token."""
    target, draft = (
        pair()[0],
        ShapedTarget(spelled(8, ("c", "$", "b", "bab", "a"), 1, cost=0.1), GreedyRule()),
    )
    texts = [(0, 1), (0, 1, 0), (0, 1, 0, 1), (0, 1, 0, 1, 1), (0, 2, 1)]
    out = run_coroutines([rounds(OtherTokenizerDrafter(draft, target.vocab), texts)])[0]
    assert [fed for _, fed in out] == [[4], [4, 2], [4], [4, 3], [4, 4, 2]]
    for text, (got, _) in zip(texts, out, strict=True):
        fresh = run_coroutines([rounds(OtherTokenizerDrafter(draft, target.vocab), [text])])[0][0][
            0
        ]
        assert got.token == fresh.token, "reading along is not the same as reading afresh"


def test_beyond_its_context_the_draft_reads_the_last_half():
    target, draft = pair()
    text = tuple([0, 1] * 30)
    for drafter in (
        OtherTokenizerDrafter(draft, target.vocab, 16),
        SharedTokensDrafter(draft, target.vocab, 16),
    ):
        out = run_coroutines([rounds(drafter, [text[:n] for n in range(2, 60)])])[0]
        assert max(len(fed) for _, fed in out) <= 16 and all(len(d) > 0 for d, _ in out)


@pytest.mark.parametrize(
    "text", [(3,), (0, 4), (5,)], ids=["special tokens", "half a character", "no spelling"]
)
def test_where_nothing_can_be_read_nothing_is_proposed(text):
    words = ToyWords(("a", "b", "ab", "$", "\ufffd", "z"), frozenset({3}))
    vocab, draft = TokenVocabulary(6, frozenset({3}), "", words), pair()[1]
    for drafter in (OtherTokenizerDrafter(draft, vocab), SharedTokensDrafter(draft, vocab)):
        assert run_coroutines([rounds(drafter, [text])])[0][0][0].token == (text[-1],)


def test_a_law_lies_on_shared_tokens_only():
    target, draft = pair()
    for seed in range(10):
        got = run_coroutines(
            [
                SharedTokensDrafter(draft, target.vocab)
                .open_guess((0, 1), None)
                .propose_draft(1, 2, DraftBudget(3, 3), Rng.of_choice(seed))
            ]
        )[0]
        for node in range(1, len(got)):
            p_V = got.law[node].exp()
            assert float(p_V[2]) == 0.0 and float(p_V.sum()) == pytest.approx(1.0)


class FirstIds(SharedTokensGuess):
    """Takes an id of the draft for one of the target."""

    async def propose_draft(self, root, position, budget, rng):
        draft = await super().propose_draft(root, position, budget, rng)
        return replace(
            draft, token=(root, *[self.shared.back[x] % self.size for x in draft.token[1:]])
        )


class Unmapped(SharedTokensGuess):
    """Says that its tokens were drawn from another law."""

    async def propose_draft(self, root, position, budget, rng):
        draft = await super().propose_draft(root, position, budget, rng)
        return replace(
            draft, law=tuple(None if law_V is None else law_V.roll(1) for law_V in draft.law)
        )


@pytest.mark.parametrize("fault", [FirstIds, Unmapped])
def test_faults_show_in_the_output_law(fault, monkeypatch):
    monkeypatch.setattr(
        "polydec.methods.speculative.drafters.shared_tokens.SharedTokensGuess", fault
    )
    with pytest.raises(AssertionError):
        test_the_law_is_the_targets("universal-draft-intersection", "plain")


class Forgets(OtherTokenizerReader):
    """Never goes back where the spelling changes."""

    async def catch_up(self):
        place = await super().catch_up()
        self.session.rewind_tokens = lambda n: None
        return place


def test_a_cache_that_does_not_go_back_shows(monkeypatch):
    monkeypatch.setattr(
        "polydec.methods.speculative.drafters.other_tokenizer.OtherTokenizerReader", Forgets
    )
    with pytest.raises(AssertionError):
        test_the_draft_reads_its_own_spelling_and_goes_back_where_it_changes()


def test_words_are_needed():
    mute = CausalLaw(OrderTwoNetwork(1), TokenVocabulary(3, frozenset({2})))
    for name in RECIPES:
        for target, draft, who in ((mute, toy_law(1), "target"), (toy_law(1), mute, "draft")):
            with pytest.raises(ValueError, match=f"the {who} has no tokenizer"):
                build(name, target, draft)
        with pytest.raises(ValueError, match="context is 8: it must lie in 16 to 65536"):
            build(name, toy_law(1), toy_law(2), {"context": 8})
    with pytest.raises(ValueError, match="the draft has a vocabulary of 5 tokens"):
        build("draft-model", *pair())
    assert build("prompt-lookup", *pair())[0].target.vocab.size == 4, (
        "a draft for other methods is left alone"
    )


def test_ends_meet():
    """The draft's end stands for the target's."""
    target, draft = pair()
    draft.network.weight[:] = 0.0
    draft.network.weight[..., 1] = 9.0
    got = run_coroutines(
        [
            OtherTokenizerDrafter(ShapedTarget(draft, GreedyRule()), target.vocab)
            .open_guess((0, 1), None)
            .propose_draft(1, 2, DraftBudget(3, 3), Rng.of_choice(0))
        ]
    )[0]
    assert got.token == (1, 3) and got.draw[1] is DrawKind.CERTAIN
    got = run_coroutines(
        [
            SharedTokensDrafter(ShapedTarget(draft, GreedyRule()), target.vocab)
            .open_guess((0, 1), None)
            .propose_draft(1, 2, DraftBudget(1, 1), Rng.of_choice(0))
        ]
    )[0]
    assert got.token == (1, 3) and isinstance(got, Draft)


@pytest.mark.parametrize("name", RECIPES)
def test_real_tokenizers(name):
    """zoo:tiny drafts for another vocabulary of 49,152: the texts are the same, and words are accepted."""
    from polydec.models.formats import zoo

    if not (zoo.find_zoo_entry("smollm2").here and zoo.find_zoo_entry("tiny").here):
        pytest.skip("zoo:smollm2 or zoo:tiny is not here")
    from polydec import api

    lm = api.load("zoo:smollm2", draft="zoo:tiny", threads=1)
    prompt = "Once upon a time there was a little dog. He liked to"
    plain, got = (
        api.generate(
            lm,
            prompt,
            method=m,
            raw=True,
            max_tokens=24,
            sampling=lm.sampling_with(temperature=0.0, logit_bias={260: -1.0}),
        )
        for m in ("plain", name)
    )
    assert got.token_ids == plain.token_ids and got.metrics["draft_acceptance_rate"] > 0


def test_decoders_compose_by_hand():
    target, draft = pair()
    decoder = SpeculativeDecoder(
        target, SharedTokensDrafter(draft, target.vocab), MatchVerifier(), FixedPolicy(2)
    )
    law = law_of(lambda rng: answer_one(decoder, Request((0, 1), 2), rng))
    assert text_law_distance(law, target_law(target, (0, 1), 2)) < 1e-9
    decoder = SpeculativeDecoder(
        target, OtherTokenizerDrafter(draft, target.vocab), ExactVerifier(), FixedPolicy(2)
    )
    assert (
        text_law_distance(
            law_of(lambda rng: answer_one(decoder, Request((0, 1), 2), rng)),
            target_law(target, (0, 1), 2),
        )
        < 1e-9
    )
