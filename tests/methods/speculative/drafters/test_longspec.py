"""LongSpec's drafter: which tokens and keys it sees, what it keeps, what it refuses."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import micro
from polydec import load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.check_informed import check_informed
from polydec.lab.testing.toy import toy_law
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.longspec import LongSpecDrafter, LongSpecGuess, WindowLaws
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import longspec
from polydec.models.learned.kinds.longspec import LongSpecAnswer, LongSpecSizes

CHAIN = RankedTree(((0,), (0, 0), (0, 0, 0)))


class Oracle:
    """In place of LongSpec's weights: of a toy's memory and tokens the states that the toy will leave. An entry's key is its
    token; the one before a token is what the last place before it holds that is seen, in the window or in the memory."""

    sizes, cost = LongSpecSizes(4, 1, 1, 4, 8, 1e4), 0.1

    def __init__(self, law, window):
        self.network, self.window, self.nothing = self, window, law.vocab.size

    def forward(self, queries):
        return [self._made(q) for q in queries]

    def _made(self, q):
        own, text = (
            q.embed_NW[:, :1].float().expand(-1, 4)[None],
            [int(x) for x in q.memory[0][0, :, 0]],
        )
        kv, past = torch.cat([q.kv, torch.stack([own, own])], 2), q.kv.shape[2]
        for before, after in zip(q.memory[0][0], q.memory[0][0, 1:], strict=False):
            assert int(after[1]) == int(before[0]), "a key stands behind another token than its own"
        states = list[list[int]]()
        for r in q.rows:
            seen = q.sees[r].nonzero().flatten().tolist()
            assert past + r in seen, "an entry does not see itself"
            assert len(seen) <= self.window, "a window shows more than its tokens"
            above = [i for i in seen if i < past + r]
            before = int(kv[0, 0, above[-1], 0]) if above else text[-1] if text else self.nothing
            behind = int(q.place_N[r]) - len(
                text
            )  # the memory ends before the root, which is 0 behind it
            assert behind >= 0, "the memory holds what is not committed"
            assert behind or not text or before == text[-1], (
                "the window and the memory are of other texts"
            )
            states.append([int(own[0, r, 0]), before, 7, 0])
        return LongSpecAnswer(torch.tensor(states, dtype=torch.float64).reshape(-1, 4), kv)


@pytest.mark.parametrize(
    "tree", [CHAIN, BestFirstTree(1), BestFirstTree(3)], ids=["chain", "best-first", "wide"]
)
@pytest.mark.parametrize("window", [2, 3, 50])
def test_who_knows_the_model_is_never_wrong(tree, window):
    check_informed(lambda law: LongSpecDrafter(Oracle(law, window), tree))


class Siblings(WindowLaws):
    """Sees whatever was drafted before."""

    async def score_draft(self, draft, want):
        parent = tuple(range(-1, len(draft) - 1))
        return await super().score_draft(replace(draft, parent=parent), want)


class Bonus(LongSpecGuess):
    """Forgets to read the accepted tokens but the last."""

    def learn_round(self, draft, scores, verdict):
        super().learn_round(draft, scores, replace(verdict, path=()))


@pytest.mark.parametrize("wrong", [Siblings, Bonus])
def test_wrong_paths_are_found(wrong, monkeypatch):
    for name in ("WindowLaws", "LongSpecGuess"):
        if issubclass(wrong, globals()[name]):
            monkeypatch.setattr(f"polydec.methods.speculative.drafters.longspec.{name}", wrong)
    with pytest.raises(AssertionError):
        check_informed(lambda law: LongSpecDrafter(Oracle(law, 50), BestFirstTree(3)))


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load(
        str(micro.write(tmp_path_factory.mktemp("m") / "a")), draft=None, dtype="float32"
    ).checkpoint.lm


def own(lm, window):
    return replace(longspec.examples(lm.vocab, 32, 32)[1], window=window)


def written(lm, window, tokens):
    """What plain decoding writes with this window, and the guess behind it."""
    guesses = []

    class Spy:
        def open_guess(self, prompt, session):
            guesses.append(
                LongSpecDrafter(own(lm, window), BestFirstTree(3)).open_guess(prompt, session)
            )
            guesses[-1].close = lambda: None  # so that it can be looked at
            return guesses[-1]

    out = run_coroutines(
        [
            answer_one(
                SpeculativeDecoder(lm, Spy(), MatchVerifier(), FixedPolicy(3, 8)),
                Request((5, 6, 7, 8), tokens, ignore_eos=True),
            )
        ]
    )[0]
    return (5, 6, 7, 8, *out.token_ids), guesses[0]


async def proposed(lm, window, text):
    session = lm.open_session(text)
    guess = LongSpecDrafter(own(lm, window), BestFirstTree(3)).open_guess(text, session)
    await prefill_for_guess(session, guess, text)
    return await guess.propose_draft(
        text[-1], len(text), DraftBudget(3, 12), Rng.of_choice(0)
    ), guess


def test_what_it_keeps_is_a_window_however_long_the_text_is(lm):
    """And it is what would be computed anew: the draft behind all rounds is the one of a guess that begins there."""
    short, long = written(lm, 6, 20), written(lm, 6, 120)
    for _, guess in (short, long):
        assert (
            guess.kv.shape == (2, 2, 6, 8)
            and guess.kv.untyped_storage().nbytes() == 4 * guess.kv.numel()
        )
    text, guess = long
    text = text[: guess.stop]
    draft, fresh = run_coroutines([proposed(lm, 6, text)])[0]
    assert guess.stop > 100 and fresh.kv.allclose(guess.kv, atol=1e-5)
    assert len(draft) > 3 and fresh.state_W.allclose(guess.state_W, atol=1e-4)


def test_a_window_as_long_as_the_text_is_all_of_it(lm):
    text, _ = written(lm, 8, 30)
    (whole, a), (same, b), (_, narrow) = run_coroutines(
        [proposed(lm, n, text) for n in (1000, len(text) + 3, 5)]
    )
    assert (whole.token, whole.parent, whole.chance) == (
        same.token,
        same.parent,
        same.chance,
    ) and a.state_W.equal(b.state_W)
    assert not narrow.state_W.allclose(a.state_W, atol=1e-3)


def test_a_token_outside_the_window_is_seen_through_the_memory_alone(lm):
    """Its own attention sees the last tokens and no others, also behind drafted ones."""
    text, network = tuple(range(5, 25)), own(lm, 5).network
    memory = tuple(
        torch.randn(2, 19, 8, generator=torch.Generator().manual_seed(i)) for i in (1, 2)
    )

    async def laws(text):
        session = lm.open_session(text)
        guess = LongSpecDrafter(own(lm, 5), BestFirstTree(1)).open_guess(text, session)
        session.layer_memory = lambda: memory
        await guess.propose_draft(text[-1], len(text), DraftBudget(1, 1), Rng.of_choice(0))
        scores = await WindowLaws(guess, guess.state_W, memory).score_draft(
            Draft.chain_draft(text[-1], (30, 31)), ScoreRequest()
        )
        session.close()
        return torch.stack([scores.logprob_row(i) for i in range(3)])

    first, other, near = run_coroutines(
        [laws(text), laws((*text[:15], *text[15:])), laws((*text[:15], 40, *text[16:]))]
    )
    far = run_coroutines([laws((40, *text[1:15], *text[15:]))])[0]
    assert network.cost > 0 and first.equal(other) and first.equal(far)
    assert not near[0].allclose(first[0]) and near[1:].allclose(
        first[1:], atol=1e-6
    )  # it leaves the window of the next


def test_without_the_target_s_entries_it_drafts_with_what_is_there(lm):
    """Evicted, it sees the window alone, and the text stays what it is."""
    text, _ = written(lm, 6, 12)

    async def drafted(evicts):
        session = lm.open_session(text)
        guess = LongSpecDrafter(own(lm, 6), BestFirstTree(2)).open_guess(text, session)
        await prefill_for_guess(session, guess, text)
        if evicts:
            session.evict_cache()
        draft = await guess.propose_draft(text[-1], len(text), DraftBudget(3, 6), Rng.of_choice(0))
        scores = await session.score_draft(
            draft, replace(guess.want, law=RowDetail.ROW, last=False)
        )
        verdict = MatchVerifier().verify_draft(draft, scores, Rng.of_choice(0), len(text))
        session.commit_tokens(verdict.committed_tokens(draft))
        guess.learn_round(draft, scores, verdict)
        assert guess.session.layer_memory()[0].shape[1] == len(text) + len(verdict.path)
        return guess.state_W, scores.logprob_row(0)

    (all_W, row_V), (none_W, same_V) = run_coroutines([drafted(False), drafted(True)])
    assert not all_W.allclose(none_W, atol=1e-3) and row_V.allclose(same_V, atol=1e-5)


@pytest.mark.parametrize("tree", [CHAIN, BestFirstTree(2)], ids=["static", "dynamic"])
def test_the_law_stays(record_counts, tree):
    record_counts(
        check_law(
            lambda target, draft: SpeculativeDecoder(
                target,
                LongSpecDrafter(longspec.examples(target.vocab, 4, 4)[0], tree),
                MatchVerifier(),
                FixedPolicy(2, 4),
            ),
            laws=2,
            length=2,
        )
    )


def test_a_foreign_or_damaged_one_is_told_in_one_sentence(tmp_path):
    vocab = TokenVocabulary(3, frozenset())
    build = lambda one: registry.build("longspec", Kit(toy_law(1), None, (one,)))  # noqa: E731
    fits = longspec.examples(vocab, 4, 4)[0]
    build(fits)
    with pytest.raises(
        ValueError,
        match="read 2 heads of 6 numbers in the target's last layer: this target has 1 of 4",
    ):
        build(longspec.random_longspec(vocab, LongSpecSizes(4, 4, 2, 6, 8, 1e4)))
    with pytest.raises(ValueError, match="trained for states of width 8: this target's have 4"):
        build(longspec.random_longspec(vocab, LongSpecSizes(8, 1, 1, 4, 8, 1e4)))
    with pytest.raises(ValueError, match="vocabulary of 7 tokens"):
        build(replace(fits, vocab=TokenVocabulary(7, frozenset())))
    longspec.save(tmp_path, fits, {})
    config = (tmp_path / "config.json").read_text()
    for old, new, said in (
        ('"head": 4', '"head": 3', "head even"),
        ('"kv_heads": 1', '"kv_heads": 2', "multiple of kv_heads"),
        ('"window": 6', '"window": 0', "window"),
        ('"head": 4', '"head": 8', "asks for"),
    ):
        assert old in config
        (tmp_path / "config.json").write_text(config.replace(old, new))
        with pytest.raises(ValueError, match=said):
            artefacts.load_artefact(str(tmp_path))
    (tmp_path / "config.json").write_text(config)
    tensors = load_file(tmp_path / "longspec.safetensors")
    tensors["layer.cross_attn.q_proj.weight"][0, 0] = float("nan")
    save_file(tensors, tmp_path / "longspec.safetensors")
    with pytest.raises(ValueError, match="NaN"):
        artefacts.load_artefact(str(tmp_path))


@pytest.mark.parametrize("past", [0, 1, 7])
@pytest.mark.parametrize("window", [3, 50])
def test_attention_apart_is_attention_over_both(past, window):
    """The window's part and the tree's, joined by their log-sum-exps, are one masked softmax."""
    g = torch.Generator().manual_seed(past)
    parent = (-1, 0, 0, 1, 2)
    query = torch.randn(2, 3, 5, 8, generator=g, dtype=torch.float64)
    kv = torch.randn(2, 2, past + 5, 8, generator=g, dtype=torch.float64)
    sees = torch.zeros(5, past + 5, dtype=torch.bool)
    for i, p in enumerate(parent):
        if p >= 0:
            sees[i] = sees[p]
        sees[i, past + i] = True
    depth = torch.tensor([0, 1, 1, 2, 2])
    old = torch.arange(-past, 0)[None] > depth[:, None] - window
    sees[:, :past] = old
    scores = query @ kv[0][:, None].transpose(-1, -2) * 8**-0.5
    want = scores.masked_fill(~sees, float("-inf")).softmax(-1) @ kv[1][:, None]
    got = longspec.hybrid_tree_attention(query, kv, past, sees)
    assert torch.allclose(got, want, atol=1e-12)
    if past and bool(old.all()):
        parts = [
            longspec.seen_of(query, kv[0][:, s], kv[1][:, s], sees[:, s])[0]
            for s in (slice(past), slice(past, None))
        ]
        assert not torch.allclose(sum(parts) / 2, want, atol=1e-3)


def test_a_row_behind_its_window_sees_its_own_tree_alone():
    g = torch.Generator().manual_seed(5)
    query, kv = torch.randn(1, 1, 1, 4, generator=g), torch.randn(2, 1, 3, 4, generator=g)
    sees = torch.tensor([[False, False, True]])
    assert torch.allclose(longspec.hybrid_tree_attention(query, kv, 2, sees)[0, 0], kv[1, 0, 2:])
