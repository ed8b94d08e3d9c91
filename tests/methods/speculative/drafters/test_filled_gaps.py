"""Gaps that are filled each from its own law: the output law, what the model is shown, and what is fed again."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

import micro
from polydec import Engine, load
from polydec.core.decoder import answer_one
from polydec.core.law import float64_probabilities, normalise_log_weights, residual_law
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import SHAPERS, bend_target, target_draft_pairs
from polydec.lab.testing.toy import toy_law
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser, left_open
from polydec.methods.speculative.drafters.diffusion import DiffusionDrafter
from polydec.methods.speculative.drafters.filled_gaps import FilledGapsDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.sessions import sources
from polydec.models.sessions.denoiser import writable_vocab_size


def gaps(size, seed=5, **options):
    model = ToyDenoiser(MarkovChainNetwork(seed, size, context=64), masked=False)
    return FilledGapsDrafter(model, **options)


@pytest.mark.parametrize("shaping", ["plain", "shaped", "greedy"])
@pytest.mark.parametrize(
    "options", [{}, {"heat": 0.4}, {"heat": 2.0, "keep": True}, {"heat": 0.0}], ids=str
)
def test_the_output_law_is_the_targets(options, shaping):
    """Eight laws, every draw enumerated, with drafts of two gaps that do not see each other."""
    for i, (model, _) in enumerate(target_draft_pairs(8)):
        target, size = bend_target(model, SHAPERS[shaping]), model.vocab.size
        decoder = SpeculativeDecoder(
            target, gaps(size, i, **options), ExactVerifier(), FixedPolicy(2)
        )
        request = Request((0, 1), max_tokens=3 if i < 2 else 2)
        got = law_of(lambda rng, d=decoder, r=request: answer_one(d, r, rng))
        want = target_law(model, request.prompt, request.max_tokens, SHAPERS[shaping])
        assert text_law_distance(got, want) < 1e-9
    assert not left_open()


def rows(target, prompt, draft):
    """The target's laws behind the prompt and behind each token of a draft of two."""
    session = target.open_session(prompt)
    scores = run_coroutines(
        [session.score_draft(Draft.chain_draft(prompt[-1], draft), ScoreRequest())]
    )[0]
    out = [float64_probabilities(scores.logprob_row(i)) for i in range(3)]
    session.close()
    return out


def joint(target, prompt, q, goes_on):
    """The law of the next two tokens, drafts drawn from q[0] and q[1]; goes_on: the second token of the draft is tested behind
    a replaced first one, against the law behind the rejected one (the published pseudo-code)."""
    law = dict.fromkeys(product(range(3), repeat=2), 0.0)
    for d in product(range(3), repeat=2):
        p = rows(target, prompt, d)
        drawn = float(q[0][d[0]] * q[1][d[1]])

        def second(first, weight, behind, p=p, d=d):
            keep = min(1.0, float(behind[d[1]] / q[1][d[1]]))
            law[first, d[1]] += weight * keep
            if keep < 1:
                for y, share in enumerate(residual_law(behind, q[1]).tolist()):
                    law[first, y] += weight * (1 - keep) * share

        keep = min(1.0, float(p[0][d[0]] / q[0][d[0]]))
        second(d[0], drawn * keep, p[1])
        if keep == 1:
            continue
        for x, share in enumerate(residual_law(p[0], q[0]).tolist()):
            weight = drawn * (1 - keep) * share
            if goes_on:
                second(x, weight, p[1])
            else:
                for y, then in enumerate(rows(target, prompt, (x, 0))[1].tolist()):
                    law[x, y] += weight * then
    return law


def test_to_go_on_behind_a_rejected_token_is_not_exact():
    worst = 0.0
    for seed in range(8):
        target, prompt = toy_law(seed + 1, 3, eos=3), (0, 1)
        chain = MarkovChainNetwork(seed, 3)
        q = [
            float64_probabilities(
                normalise_log_weights(chain.position_law((*prompt, None, None), i))
            )[:3]
            for i in (2, 3)
        ]
        truth = target_law(target, prompt, 2)
        assert text_law_distance(joint(target, prompt, q, False), truth) < 1e-12
        worst = max(worst, text_law_distance(joint(target, prompt, q, True), truth))
    assert worst > 0.01


def test_a_gap_is_accepted_as_often_as_both_laws_agree():
    """One minus their total variation, at the first gap and behind it."""
    target, prompt, config = toy_law(3, 3), (0, 1), gaps(3, 2)
    tried, kept, want = [0, 0], [0, 0], [0.0, 0.0]
    session = target.open_session(prompt)
    for seed in range(3000):
        rng = Rng.of_choice(seed)
        guess = config.open_guess(prompt, None)
        draft = run_coroutines([guess.propose_draft(1, 2, DraftBudget(2, 2), rng)])[0]
        scores = run_coroutines([session.score_draft(draft, ScoreRequest())])[0]
        verdict = ExactVerifier().verify_draft(draft, scores, rng, 2)
        for i in range(min(2, len(verdict.path) + 1)):
            p, q = (
                float64_probabilities(scores.logprob_row(i)),
                float64_probabilities(draft.law[i + 1]),
            )
            tried[i] += 1
            kept[i] += len(verdict.path) > i
            want[i] += float(torch.minimum(p, q).sum())
    for n, k, w in zip(tried, kept, want):
        assert n > 300 and abs(k - w) < 4 * (0.25 * n) ** 0.5


@dataclass(frozen=True)
class Noted:
    """A toy that notes its canvases and what is fed, and has a boundary mark."""

    model: ToyDenoiser
    seen: list
    boundary: int | None = 7

    def __getattr__(self, name):
        return getattr(self.model, name)

    def open_canvas(self, length, prompt=0):
        return NotedBoard(self, self.model.open_canvas(length, prompt))


@dataclass(frozen=True)
class NotedBoard:
    noted: Noted
    board: object

    async def score_canvas(self, canvas, rows, feed):
        self.noted.seen.append((canvas, tuple(feed)))
        plain = tuple(0 if x == self.noted.boundary else x for x in canvas)
        return await self.board.score_canvas(plain, rows, feed)

    def close(self):
        self.board.close()


def test_a_boundary_stands_before_the_gaps_and_kept_text_is_not_fed_again():
    for keep in (False, True):
        seen = []
        config = FilledGapsDrafter(
            Noted(ToyDenoiser(MarkovChainNetwork(1, 3), masked=False), seen), 1.0, keep
        )
        guess = config.open_guess((0, 1, 2), None)
        draft = run_coroutines([guess.propose_draft(2, 3, DraftBudget(3, 3), Rng.of_choice(0))])[0]
        guess.learn_round(draft, None, Verdict((1,), 0))
        text = (0, 1, 2, draft.token[1], 0)
        run_coroutines([guess.propose_draft(0, 5, DraftBudget(2, 2), Rng.of_choice(0))])
        twin = guess.fork_guess(None)
        run_coroutines([twin.propose_draft(0, 5, DraftBudget(1, 1), Rng.of_choice(0))])
        assert [canvas for canvas, _ in seen] == [
            (0, 1, 2, 7, None, None, None),
            (*text, 7, None, None),
            (*text, 7, None),
        ]
        assert [feed[0] for _, feed in seen] == [0, 3 if keep else 0, 0]
        guess.close()
        twin.close()
    assert not left_open()


def test_a_long_text_is_read_from_its_end_and_blocks_bound_the_draft():
    text = tuple(i % 3 for i in range(30))

    def drafted(model, keep, depth=6):
        guess = FilledGapsDrafter(model, 0.0, keep).open_guess(text, None)
        out = run_coroutines(
            [guess.propose_draft(text[-1], 30, DraftBudget(depth, depth), Rng.of_choice(0))]
        )[0]
        guess.close()
        return len(out) - 1

    for keep in (False, True):
        seen = []
        short = Noted(ToyDenoiser(MarkovChainNetwork(1, context=12), masked=False), seen)
        assert drafted(short, keep) == 6 and seen[0][0] == (*text[-5:], 7, *(None,) * 6)
        assert drafted(Noted(ToyDenoiser(MarkovChainNetwork(1, context=4)), []), keep) == 2
        assert drafted(ToyDenoiser(MarkovChainNetwork(1), block=8), keep) == 2
        assert drafted(ToyDenoiser(MarkovChainNetwork(1)), keep, 0) == 0
    assert not left_open()


def test_without_heat_it_is_the_likeliest_path_of_diffuspec():
    for seed in range(8):
        model = ToyDenoiser(MarkovChainNetwork(seed, 5))
        ours, theirs = (
            run_coroutines(
                [
                    config.open_guess((0, 3, 1), None).propose_draft(
                        1, 3, DraftBudget(4, 4), Rng.of_choice(0)
                    )
                ]
            )[0]
            for config in (
                FilledGapsDrafter(model, 0.0),
                DiffusionDrafter(model, 1.0, top=1, beam=1),
            )
        )
        assert ours.token == theirs.token and ours.chance[1] < 1


def marked(folder, seed):
    """A masked-diffusion model with its two marks behind a vocabulary of its own."""
    name = str(micro.write(folder / "ar", seed=seed))
    source = sources.open_source(name)
    size = source.config["vocab_size"]
    weights = {n: t.float() for n, t in source.weights.items()}
    for n in ("model.embed_tokens.weight", "lm_head.weight"):
        if n in weights:
            weights[n] = torch.cat([weights[n], weights[n][:2] * 3])
    config = {
        **source.config,
        "vocab_size": size + 2,
        "polydec_causal": False,
        "polydec_mask": size,
        "polydec_boundary": size + 1,
        "polydec_written": size,
    }
    sources.save_checkpoint(folder / "masked", config, weights, source.text, source.generation)
    return str(folder / "masked")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return str(micro.write(folder / "target", seed=0)), marked(folder, 1)


def test_texts_stay_as_they_are_and_marks_are_never_written(pair):
    lm = load(pair[0], draft=pair[1], dtype="float32")
    assert lm.draft.lm.vocab.size == lm.checkpoint.lm.vocab.size
    engine = Engine(lm)
    for prompt in ("the fox", "one two"):
        texts = [
            engine.run([engine.submit(prompt, method=m, max_tokens=30, options=o)])[0]
            for m, o in (
                ("plain", {}),
                ("deer", {"block": 5}),
                ("deer", {"block": 5, "keep": True}),
                ("diffuspec", {}),
            )
        ]
        assert len({t.token_ids for t in texts}) == 1
    denoiser = lm.draft.lm
    board = denoiser.open_canvas(6)
    logw = run_coroutines(
        [board.score_canvas((3, 4, denoiser.boundary, None, None, None), (3, 4), range(6))]
    )[0]
    assert logw.shape == (2, denoiser.vocab.size) and bool(logw.isfinite().all())
    assert denoiser.mask == denoiser.vocab.size and denoiser.boundary == denoiser.mask + 1


def test_what_is_kept_has_the_law_of_the_first_pass(pair):
    """The first pass is the same, later ones are not: the text there saw other gaps."""
    lm = load(pair[0], draft=pair[1], dtype="float32")
    laws = []
    for keep in (False, True):
        guess = FilledGapsDrafter(lm.draft.lm, 1.0, keep).open_guess((5, 6, 7), None)
        first = run_coroutines([guess.propose_draft(7, 3, DraftBudget(3, 3), Rng.of_choice(0))])[0]
        guess.learn_round(first, None, Verdict((), 9))
        second = run_coroutines([guess.propose_draft(9, 4, DraftBudget(3, 3), Rng.of_choice(0))])[0]
        guess.close()
        laws.append([d.law[1] for d in (first, second)])
    assert torch.allclose(laws[0][0], laws[1][0], atol=1e-5)
    assert not torch.allclose(laws[0][1], laws[1][1], atol=1e-3)


def test_bad_values(pair):
    model = ToyDenoiser(MarkovChainNetwork(1))
    for heat in (-1.0, 1e-7, 2000.0):
        with pytest.raises(ValueError, match=r"heat is .*: it must be 0 or lie in"):
            FilledGapsDrafter(model, heat)
    with pytest.raises(ValueError, match="polydec_written is 9: the model has 8 rows"):
        writable_vocab_size({"polydec_mask": 3, "polydec_written": 9}, 8)
    assert (
        writable_vocab_size({"polydec_written": 9}, 8)
        == writable_vocab_size({"polydec_mask": 3}, 8)
        == 8
    )
    with pytest.raises(ValueError, match="method deer needs a masked-diffusion draft model"):
        Engine(load(pair[0], draft=pair[0])).submit("the fox", method="deer")
    assert replace(FilledGapsDrafter(model), heat=0.0).heat == 0
