"""Known bugs of decoders, put into the running package from outside: `verify` catches each one and says where."""

from dataclasses import replace

import pytest

from polydec import load
from polydec.core import transcript
from polydec.core.canvas_law import CanvasSession
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.lab.bench.cache_drift import measure_cache_drift
from polydec.lab.bench.certify import compare_greedy_texts
from polydec.lab.bench.law_distances import measure_law_distances
from polydec.lab.bench.masked import judge_constrained
from polydec.lab.bench.sampled_laws import OTHERS, draw_texts, sample_against_law
from polydec.lab.bench.search_claims import audit_search
from polydec.lab.bench.trials import MethodTrial
from polydec.laws.constraints.regex import Regex
from polydec.methods.search.loop.ranking import LengthRanking
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.verifiers.coupled import CoupledVerifier
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions import denoiser

PROMPTS = [("Once upon a time", True), ("The old man went", True), ("def mean(values):", True)]


@pytest.fixture(scope="module")
def lm():
    return load("zoo:tiny", dtype="float32")


@pytest.fixture(scope="module")
def drawing(lm):
    """What every sampled certificate here asks for, plain decoding's side drawn once."""
    trial = warm_trial(lm, "plain", samples=24)
    return trial, draw_texts(replace(trial, seed=OTHERS), told=True)


def warm_trial(lm, method, samples=8):
    request = {"max_tokens": 8, "sampling": lm.sampling_with(temperature=1.0)}
    return MethodTrial(lm, PROMPTS, method, {}, request, samples)


def law(drawing, method, **more):
    trial, plain = drawing
    return sample_against_law(replace(trial, method=method, **more), plain)


# Methods that draw


def accepts_all(patch):
    """Every drafted token is accepted."""
    patch.setattr(Rng, "draw_bernoulli", lambda self, a: True)


def no_residual(patch):
    """A rejected draft's replacement is drawn from the draft's own law's complement no more, but from the whole of p."""
    patch.setattr("polydec.methods.speculative.verifiers.exact.residual_law", lambda p_V, q_V: p_V)


def residual_turned_round(patch):
    """(q - p)+ in place of (p - q)+."""
    from polydec.core.law import residual_law

    patch.setattr(
        "polydec.methods.speculative.verifiers.exact.residual_law",
        lambda p_V, q_V: residual_law(q_V, p_V),
    )


def draft_law_of_another_temperature(patch):
    """A draft is drawn from one law and says another: its temperature was left out."""
    grown = Draft.with_node

    def lie(self, token, parent, draw, law_V=None, *more, **named):
        cold_V = None if law_V is None else (law_V * 3.0).log_softmax(-1)
        return grown(self, token, parent, draw, cold_V, *more, **named)

    patch.setattr(Draft, "with_node", lie)


def bonus_of_the_row_above(patch):
    """The token behind an accepted path is drawn from the row of the root."""
    verify = ExactVerifier.verify_draft

    def above(self, draft, scores, rng, position):
        v = verify(self, draft, scores, rng, position)
        if not v.path:
            return v
        return replace(
            v,
            bonus=rng.child_stream("again", position).draw_categorical(
                scores.logprob_row(0).exp().double()
            ),
        )

    patch.setattr(ExactVerifier, "verify_draft", above)


def noise_of_the_first_position(patch):
    """Gumbel noise is made once and used at every position of a pass."""

    class Frozen:
        def __init__(self, rng):
            self.rng = rng

        def child_stream(self, *names):
            if names[:1] == ("token",) and len(names) == 2:
                return Rng.of_choice(12).child_stream(*names[:1], names[1] // 2)
            return self.rng.child_stream(*names)

    verify = CoupledVerifier.verify_draft
    patch.setattr(
        CoupledVerifier,
        "verify_draft",
        lambda self, draft, scores, rng, position: verify(
            self, draft, scores, Frozen(rng), position
        ),
    )


def answers_share_a_stream(patch):
    """The number of an answer does not enter its randomness."""
    of = Rng.of_choice
    patch.setattr(Rng, "of_choice", staticmethod(lambda seed, choice=0: of(seed)))


def seeds_do_nothing(patch):
    of = Rng.of_choice
    patch.setattr(Rng, "of_choice", staticmethod(lambda seed, choice=0: of(0, choice)))


def likeliest_in_place_of_a_draw(patch):
    """The token after a pass is the likeliest one."""
    patch.setattr(Rng, "draw_categorical", lambda self, p_V: int(p_V.argmax()))


DRAWN = [
    (accepts_all, "draft-model", "place"),
    (no_residual, "draft-model", "place"),
    (residual_turned_round, "draft-model", "place"),
    (draft_law_of_another_temperature, "draft-model", "place"),
    (bonus_of_the_row_above, "draft-model", "among the tokens of a pass"),
    (noise_of_the_first_position, "draft-model-coupled", "twins"),
    (answers_share_a_stream, "draft-model", "twins"),
    (seeds_do_nothing, "prompt-lookup", "twins"),
    (likeliest_in_place_of_a_draw, "draft-model", "place"),
]


@pytest.mark.parametrize("mutant, method, where", DRAWN, ids=lambda x: getattr(x, "__name__", None))
def test_a_drawn_fault(lm, drawing, monkeypatch, mutant, method, where):
    mutant(monkeypatch)
    found = law(drawing, method)
    monkeypatch.undo()
    assert found.verdict == "fault" and where in found.place, (found.place, found.tests)


CLEAN = ["prompt-lookup", "draft-model", "draft-model-coupled", "spectr", "rsd-s", "lookahead"]


@pytest.mark.parametrize("method", CLEAN[:3])
def test_no_alarm_on_a_clean_seed(lm, drawing, method):
    found = law(drawing, method, samples=12, seed=3)
    assert found.verdict == "keeps it", (found.place, found.tests)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_no_alarm_on_twenty_clean_seeds(lm, drawing, seed):
    for method in CLEAN:
        found = law(drawing, method, samples=8, seed=100 + seed)
        assert found.verdict == "keeps it", (method, found.place, found.tests)


# Greedy methods


def first_draft_is_always_accepted(patch):
    verify = MatchVerifier.verify_draft

    def trusting(self, draft, scores, rng, position):
        children = draft.children[0]
        if not children:
            return verify(self, draft, scores, rng, position)
        return Verdict((children[0],), scores.likeliest_token(children[0]))

    patch.setattr(MatchVerifier, "verify_draft", trusting)


def token_after_a_path_is_the_roots(patch):
    verify = MatchVerifier.verify_draft

    def late(self, draft, scores, rng, position):
        v = verify(self, draft, scores, rng, position)
        return replace(v, bonus=scores.likeliest_token(0)) if v.path else v

    patch.setattr(MatchVerifier, "verify_draft", late)


def a_deep_draft_is_not_checked(patch):
    verify = MatchVerifier.verify_draft

    def long(self, draft, scores, rng, position):
        v = verify(self, draft, scores, rng, position)
        below = draft.children[v.path[-1]] if v.path else ()
        return Verdict((*v.path, below[0]), scores.likeliest_token(below[0])) if below else v

    patch.setattr(MatchVerifier, "verify_draft", long)


ASKED = "The old man went"


@pytest.mark.parametrize(
    "mutant, method, where",
    [
        (
            first_draft_is_always_accepted,
            "token-recycling",
            "place 1 of its tokens (an accepted draft)",
        ),
        (token_after_a_path_is_the_roots, "token-recycling", "(the pass's own token)"),
        (a_deep_draft_is_not_checked, "suffix-automaton", "(an accepted draft)"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_greedy_fault(lm, monkeypatch, mutant, method, where):
    request = {"sampling": lm.sampling_with(), "max_tokens": 64, "raw": True}
    mutant(monkeypatch)
    found = compare_greedy_texts(lm, ASKED, method, {}, **request)
    monkeypatch.undo()
    assert found.verdict == "fault" and where in found.place, found
    assert compare_greedy_texts(lm, ASKED, method, {}, **request).verdict == "equal"


# Approximate ones, searches, constraints, caches


def greedily(patch):
    patch.setattr(Rng, "draw_categorical", lambda self, p_V: int(p_V.argmax()))


def test_an_approximate_method_that_leaves_its_own_law(lm, monkeypatch):
    trial = warm_trial(lm, "entropy-adaptive")
    assert measure_law_distances(trial).verdict == "measured"
    greedily(monkeypatch)
    found = measure_law_distances(trial)
    monkeypatch.undo()
    assert found.verdict == "fault" and found.place.startswith("against its own law, ")


def test_a_model_that_never_takes_over_is_further_off(lm):
    """The measured distance moves with what the method does, beyond its intervals."""
    trial = replace(warm_trial(lm, "entropy-adaptive"), prompts=PROMPTS[:1])
    near, far = (
        measure_law_distances(replace(trial, options={"tau": tau})).all for tau in (1.0, "none")
    )
    assert far.kl_interval[0] > near.kl_interval[1] and far.tv > near.tv


def longer_by_one(patch):
    patch.setattr(LengthRanking, "ranked_score", lambda self, total, length: total / (length + 1))


def tokens_for_nothing(patch):
    plus = SearchStats.plus_stats
    patch.setattr(
        SearchStats, "plus_stats", lambda self, other: replace(plus(self, other), written=0)
    )


@pytest.mark.parametrize(
    "mutant, where",
    [(longer_by_one, "the score is"), (tokens_for_nothing, "booked as written")],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_search_that_keeps_false_books(lm, monkeypatch, mutant, where):
    mutant(monkeypatch)
    request = {"max_tokens": 8, "sampling": lm.sampling_with()}
    found = audit_search(MethodTrial(lm, PROMPTS[:1], "beam", {}, request))
    monkeypatch.undo()
    assert found.verdict == "fault" and where in found.place


def test_log_probabilities_of_other_tokens(lm, monkeypatch):
    told = transcript.logprobs_at_nodes
    monkeypatch.setattr(
        "polydec.methods.search.loop.diverse_beam.logprobs_at_nodes",
        lambda scores, nodes, tokens, k: [
            replace(t, logp=t.logp - 0.5) for t in told(scores, nodes, tokens, k)
        ],
    )
    request = {"max_tokens": 8, "sampling": lm.sampling_with()}
    found = audit_search(MethodTrial(lm, PROMPTS[:1], "beam", {}, request))
    assert found.verdict == "fault" and "token 0: its log-probability" in found.place


def test_a_grammar_that_is_looser_than_the_pattern(lm, monkeypatch):
    request = {"max_tokens": 24, "sampling": lm.sampling_with(temperature=1.0)}
    request["constraint"] = Regex("[0-9]{4}")
    trial = MethodTrial(lm, PROMPTS[:1], "prompt-lookup", {}, request, samples=8)
    assert judge_constrained(trial).verdict == "keeps it"
    language, looser = Regex.token_language, Regex("[a-z]{4}")
    monkeypatch.setattr(Regex, "token_language", lambda self, *rest: language(looser, *rest))
    found = judge_constrained(trial)
    assert found.verdict == "fault" and "does not allow" in found.place


def test_a_cache_that_stays_stale(monkeypatch):
    lm = load("zoo:diffusion", dtype="float32")
    request = {"sampling": lm.sampling_with(), "max_tokens": 14}
    asked = ("shuffle: 504132", "llada", {"block": 4})
    assert measure_cache_drift(lm, *asked, **request).stale is None
    board = next(
        k
        for k in vars(denoiser).values()
        if isinstance(k, type) and "score_canvas" in vars(k) and k is not CanvasSession
    )
    score, first = board.score_canvas, {}

    async def stale(self, canvas, rows, feed):
        got_RV = await score(self, canvas, rows, feed)
        return (
            first.setdefault(id(self), got_RV)
            if len(first.get(id(self), got_RV)) == len(got_RV)
            else got_RV[:] * 0.5
        )

    monkeypatch.setattr(board, "score_canvas", stale)
    found = measure_cache_drift(lm, *asked, **request)
    assert found.stale == 2
