"""The law of whole answers under a language, enumerated against rejection."""

from itertools import product

import pytest
import torch

import polydec
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.check_unmasker import PROMPT
from polydec.lab.testing.enumerate import law_of, text_law_distance
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.laws.constraints.byte_automaton import compile_expression
from polydec.laws.constraints.canvas_language import CanvasLanguage, CanvasSegment
from polydec.laws.constraints.expressions import parse_expression
from polydec.laws.constraints.token_automaton import compile_token_automaton
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.methods.diffusion.loop import types
from polydec.methods.diffusion.loop.allowed_answers import AllowedAnswersDenoiser
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.endings import PredictedEnding
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker
from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker
from polydec.methods.diffusion.unmaskers.early_commit import EarlyCommitUnmasker
from polydec.methods.diffusion.unmaskers.left_to_right import LeftToRightUnmasker
from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker

SIZE, EOS, LENGTH = 3, 2, 3
SPELLED = (b"a", b"b", None, None)
PATTERNS = ("a*b", "(ab|b)a?", "a|bb|aba")


def language(pattern):
    texts = compile_expression(parse_expression(pattern), "regex")
    return CanvasLanguage(
        (CanvasSegment(compile_token_automaton(texts, SPELLED, (EOS,), "regex")),)
    )


def decoder(chain, pattern, unmasker, block=0, shapers=(), **fields):
    denoiser = AllowedAnswersDenoiser(ToyDenoiser(chain, EOS), language(pattern))
    return DenoisingDecoder(denoiser, unmasker, FullRefresh(), block, shapers, **fields)


def enumerated(made):
    request = Request(PROMPT, max_tokens=LENGTH)
    return law_of(lambda rng: answer_one(made, request, rng))


def legal_canvases(pattern):
    """Texts of the language with ends behind them, as many as fill the canvas."""
    texts = compile_expression(parse_expression(pattern), "regex")
    for canvas in product(range(SIZE), repeat=LENGTH):
        end = next((i for i, x in enumerate(canvas) if x == EOS), LENGTH)
        if set(canvas[end:]) <= {EOS} and texts.matches_bytes(bytes(97 + x for x in canvas[:end])):
            yield canvas


def cut(canvas):
    end = next((i for i, x in enumerate(canvas) if x == EOS), LENGTH)
    return canvas[: end + 1]


def of_one_pass(chain, pattern):
    """Every gap drawn by itself, and all of it thrown away where the canvas is not allowed."""
    empty = (*PROMPT, *(None,) * LENGTH)
    laws = [chain.position_law(empty, len(PROMPT) + i).softmax(-1) for i in range(LENGTH)]
    out = {}
    for canvas in legal_canvases(pattern):
        p = 1.0
        for law_V, x in zip(laws, canvas, strict=True):
            p *= float(law_V[x])
        out[cut(canvas)] = out.get(cut(canvas), 0.0) + p
    total = sum(out.values())
    return {text: p / total for text, p in out.items()}


def from_the_left(chain, pattern, known=(), p=1.0):
    """A pass for each gap, from the left: of what rejection leaves of a pass the first gap stays."""
    if EOS in known or len(known) == LENGTH:
        return {known: p}
    canvas = (*PROMPT, *known, *(None,) * (LENGTH - len(known)))
    begin = len(PROMPT)
    laws = {i: chain.position_law(canvas, begin + i).softmax(-1) for i in range(len(known), LENGTH)}
    weight = dict.fromkeys(range(SIZE), 0.0)
    for filled in legal_canvases(pattern):
        if filled[: len(known)] == known:
            q = 1.0
            for i, law_V in laws.items():
                q *= float(law_V[filled[i]])
            weight[filled[len(known)]] += q
    out = {}
    total = sum(weight.values())
    for x, q in weight.items():
        if q:
            for text, r in from_the_left(chain, pattern, (*known, x), p * q / total).items():
                out[text] = out.get(text, 0.0) + r
    return out


UNMASKERS = {
    "one pass": AtRandomUnmasker(1),
    "all above nothing": ThresholdUnmasker(0.0),
    "one pass from the left": LeftToRightUnmasker(1),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", UNMASKERS)
def test_gaps_of_one_pass_are_drawn_together(name, pattern):
    for seed in range(2):
        chain = MarkovChainNetwork(seed, SIZE)
        got = enumerated(decoder(chain, pattern, UNMASKERS[name]))
        assert text_law_distance(got, of_one_pass(chain, pattern)) < 1e-9


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pass_for_each_gap(pattern):
    for seed in range(2):
        chain = MarkovChainNetwork(seed, SIZE)
        got = enumerated(decoder(chain, pattern, LeftToRightUnmasker()))
        assert text_law_distance(got, from_the_left(chain, pattern)) < 1e-9


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_gaps_that_hang_on_nothing_have_the_law_of_rejection_in_any_order(steps):
    """Where the model's positions are independent, passes and their order make no difference."""
    chain = MarkovChainNetwork(5, SIZE, free=True)
    for pattern in PATTERNS:
        wanted = of_one_pass(chain, pattern)
        got = enumerated(decoder(chain, pattern, AtRandomUnmasker(steps)))
        assert text_law_distance(got, wanted) < 1e-9


@pytest.mark.parametrize("shaper", [GreedyRule(), TemperatureRule(0.5)], ids=str)
def test_rules_of_sampling_act_on_what_is_allowed(shaper):
    chain = MarkovChainNetwork(1, SIZE)
    for pattern in PATTERNS:
        law = enumerated(decoder(chain, pattern, AtRandomUnmasker(1), shapers=(shaper,)))
        assert set(law) <= {cut(c) for c in legal_canvases(pattern)}
        assert (len(law) == 1) == isinstance(shaper, GreedyRule)


def test_a_predicted_end_waits_until_one_is_allowed():
    """What is drawn may need more room than the likeliest text, whose end would cut it."""
    lengths = set()
    for seed in range(16):
        chain = MarkovChainNetwork(seed, SIZE, sharp=1.0)
        made = decoder(chain, "a{6}|b{3}", ConfidenceUnmasker(), ending=PredictedEnding(0.0))
        said = run_coroutines([answer_one(made, Request(PROMPT, max_tokens=8, seed=seed))])[0]
        text = tuple(x for x in said.token_ids if x != EOS)
        assert text in ((0,) * 6, (1,) * 3)
        lengths.add(len(text))
    assert lengths == {3, 6}


def test_a_forced_gap_does_not_make_the_rest_sure():
    """Of a row one token of which is possible the distance of the best two is without bound."""
    look = types.UnmaskerView(
        (0, None, None),
        range(1, 3),
        (1, 2),
        torch.log_softmax(torch.tensor([[0.0, 0.1, 0.0, 0.0], [0.0, 0.2, 0.0, 0.0]]).double(), -1),
        allowed=language("b[ab]"),
        begin=1,
    )
    rule = EarlyCommitUnmasker(ConfidenceUnmasker(), 5.0, 5.0, 5.0)
    edit, _ = rule.choose_edit(rule.start_state(look.canvas), look, Rng.of_choice(0))
    assert [p for p, _ in edit.write] == [1]


def _independent(self, i, rng):
    own = rng.child_stream("token", self.rows[i], self.step)
    return own.draw_categorical(self.shaped_RV[i].exp())


MUTANTS = {
    "siblings are not seen": ("draw_token", _independent),
    "the model's own confidence": (
        "logp_RV",
        property(lambda self: types.normalise_log_weights(self.logw_RV)),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    what, instead = MUTANTS[name]
    monkeypatch.setattr(types.UnmaskerView, what, instead)
    with pytest.raises(AssertionError):
        test_gaps_of_one_pass_are_drawn_together("one pass", PATTERNS[1])
        test_a_forced_gap_does_not_make_the_rest_sure()


def test_an_end_that_is_not_asked_about_is_caught(monkeypatch):
    monkeypatch.setattr(DenoisingDecoder, "_may_end", lambda *given: True)
    with pytest.raises((AssertionError, polydec.RequestError)):
        test_a_predicted_end_waits_until_one_is_allowed()
