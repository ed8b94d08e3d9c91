"""What a language leaves possible between what is written on a canvas, against counting by hand."""

import re
from itertools import product
from random import Random

import numpy as np
import pytest
import torch

from polydec.base.errors import RequestError
from polydec.laws.constraints import canvas_language, token_automaton
from polydec.laws.constraints.byte_automaton import compile_expression
from polydec.laws.constraints.canvas_language import CanvasLanguage, CanvasSegment
from polydec.laws.constraints.expressions import parse_expression
from polydec.laws.constraints.token_automaton import compile_token_automaton

SPELLED = (b"a", b"b", b"ab", b"c", None, None)
END, MASK = 4, 5
PATTERNS = ("a*b", "(ab)*c?", "(a|bc){2,3}", "ab?c|cab", "[abc]{3}")


def automaton(pattern, ends=(END,), forbidden=()):
    texts = compile_expression(parse_expression(pattern), "regex")
    return compile_token_automaton(texts, SPELLED, ends, "regex", forbidden)


def language(pattern, **fields):
    return CanvasLanguage((CanvasSegment(automaton(pattern), **fields),))


def belongs(pattern, answer, first_end=0):
    """By its text: tokens up to the first end, and nothing but ends behind it."""
    end = next((i for i, x in enumerate(answer) if x == END), len(answer))
    text = answer[:end]
    if MASK in text or set(answer[end:]) - {END} or (end < len(answer) and end < first_end):
        return False
    return re.fullmatch(pattern, b"".join(SPELLED[x] for x in text).decode()) is not None


def completions(pattern, canvas, begin, first_end=0):
    gaps = [i for i, x in enumerate(canvas) if x is None]
    for tokens in product(range(END + 1), repeat=len(gaps)):
        filled = list(canvas)
        for i, x in zip(gaps, tokens, strict=True):
            filled[i] = x
        if belongs(pattern, filled[begin:], first_end):
            yield dict(zip(gaps, tokens, strict=True))


def canvases(dice, length, begin):
    """Canvases on which some tokens of a possible answer stand."""
    answer = [dice.choice([0, 1, 2, 3, END, None, None, None]) for _ in range(length)]
    return (*(0,) * begin, *answer)


def random_laws(dice, rows):
    logw = torch.tensor([[dice.gauss(0, 2) for _ in range(MASK + 1)] for _ in rows])
    logw = logw.double()
    logw[:, MASK] = float("-inf")
    return torch.log_softmax(logw, -1)


def rejected(pattern, canvas, begin, rows, logp_RV, first_end=0):
    """The product of the rows' laws, without the draws behind which no canvas is left; of the gaps
    without a law (all of them behind the rows) any filling will do."""
    out = {}
    kept = {}
    for filled in completions(pattern, canvas, begin, first_end):
        key = tuple(filled[r] for r in rows)
        kept[key] = sum(float(logp_RV[i, x]) for i, x in enumerate(key))
    total = torch.logsumexp(torch.tensor(list(kept.values()), dtype=torch.float64), 0)
    for key, logp in kept.items():
        out[key] = float(np.exp(logp - float(total)))
    return out


def chained(reading, count):
    """The law of drawing the rows in some order, each given those before it."""
    out = {}

    def go_on(reading, order, key, p):
        if not order:
            out[tuple(key[i] for i in range(count))] = p
            return
        law_V = reading.law_of_row(order[0]).exp()
        for x in torch.nonzero(law_V).flatten().tolist():
            twin = reading.fork_rows()
            twin.fill_row(order[0], x)
            go_on(twin, order[1:], {**key, order[0]: x}, p * float(law_V[x]))

    order = list(range(count))
    Random(count).shuffle(order)
    go_on(reading, order, {}, 1.0)
    return out


def test_the_law_is_that_of_rejection():
    seen = 0
    dice = Random(0)
    while seen < 30:
        pattern = dice.choice(PATTERNS)
        begin, length, first_end = dice.randint(1, 2), dice.randint(1, 4), dice.choice([0, 0, 2])
        canvas = canvases(dice, length, begin)
        gaps = [i for i, x in enumerate(canvas) if x is None]
        allowed = language(pattern, first_end=first_end)
        possible = any(True for _ in completions(pattern, canvas, begin, first_end))
        assert allowed.can_finish(canvas, begin) == possible, (pattern, canvas)
        if not gaps or not possible:
            continue
        rows = gaps[: dice.randint(1, len(gaps))]
        logp_RV = random_laws(dice, rows)
        wanted = rejected(pattern, canvas, begin, rows, logp_RV, first_end)
        reading = allowed.read_rows(canvas, begin, rows, logp_RV)
        # The law of each row alone, from which drawing goes on.
        laws_RV = reading.all_laws().exp()
        got = chained(reading, len(rows))
        assert got.keys() == wanted.keys()
        assert 0.5 * sum(abs(got[x] - wanted[x]) for x in wanted) < 1e-9, (pattern, canvas)
        for i in range(len(rows)):
            for x in range(MASK + 1):
                p = sum(q for key, q in wanted.items() if key[i] == x)
                assert abs(float(laws_RV[i, x]) - p) < 1e-9
        seen += len(wanted) > 1


def test_gaps_between_rows_leave_what_can_be_filled():
    """Whatever is drawn beside a gap without a law, some token still fits there."""
    seen = 0
    dice = Random(1)
    while seen < 15:
        pattern = dice.choice(PATTERNS)
        canvas = canvases(dice, 4, 1)
        gaps = [i for i, x in enumerate(canvas) if x is None]
        allowed = language(pattern)
        if len(gaps) < 3 or not allowed.can_finish(canvas, 1):
            continue
        rows = [gaps[0], gaps[2]]
        reading = allowed.read_rows(canvas, 1, rows, random_laws(dice, rows))
        drawn = chained(reading, 2).keys()
        wanted = {(f[rows[0]], f[rows[1]]) for f in completions(pattern, canvas, 1)}
        assert drawn == wanted
        seen += len(wanted) > 1


def test_parts_of_an_answer_by_themselves():
    """Typed gaps: each part has its own texts, and the rest is free."""
    parts = (
        CanvasSegment(automaton("a|b", ()), 0, 1),
        CanvasSegment(automaton("[ab]{3}", ()), 2, 4),
    )
    allowed = CanvasLanguage(parts)
    canvas = (0, None, None, None, None, None, 3)
    assert allowed.can_finish(canvas, 1)
    rows = list(range(1, 6))
    logp_RV = random_laws(Random(2), rows)
    reading = allowed.read_rows(canvas, 1, rows, logp_RV)
    for key in chained(reading, 5):
        first, free, *middle, last = key
        assert first in (0, 1) and free != MASK and last != MASK
        assert re.fullmatch(b"[ab]{3}", b"".join(SPELLED[x] for x in middle))
    assert not CanvasLanguage((CanvasSegment(automaton("ab{4}", ()), 0, 2),)).can_finish(canvas, 1)
    assert torch.equal(reading.law_of_row(1), logp_RV[1])


def test_small_probabilities_are_kept_apart():
    """Two hundred gaps, at each of which the model gives what is allowed e^-40."""
    allowed = language("(ab|bb){0,200}")
    logp = torch.full((200, MASK + 1), -100.0, dtype=torch.float64)
    logp[:, 3] = 0.0
    logp[:, MASK] = float("-inf")
    logp[:, 0] = -40.0
    logp[:, 1] = -41.0
    logp[:, 2] = -90.0
    logp[:, END] = -60.0
    logp = torch.log_softmax(logp, -1)
    canvas = (0, *(None,) * 200)
    laws = allowed.read_rows(canvas, 1, list(range(1, 201)), logp).all_laws().exp()
    # Alternately a or b, and b; spelled in one token or ended before, it is next to impossible.
    for i in range(0, 198, 2):
        assert abs(float(laws[i, 0]) - 1 / (1 + np.exp(-1))) < 1e-6
        assert abs(float(laws[i + 1, 1]) - 1) < 1e-6


def test_classes_hold_tokens_that_lead_alike():
    made = automaton("(a|b)*c")
    assert made.class_V[0] == made.class_V[1] == made.class_V[2] != made.class_V[3]
    assert made.class_V[MASK] == token_automaton.NO_CLASS and made.class_V[END] == made.end_class
    assert made.classes == 3 and made.state_count == 3


def test_tokens_that_are_forbidden_are_in_no_text():
    made = automaton("ab|ba", forbidden=(2,))
    assert made.class_V[2] == token_automaton.NO_CLASS
    with pytest.raises(RequestError, match="no tokens of this model spell a text"):
        automaton("a|ab|aab", forbidden=(0,), ends=()) and automaton("aa", forbidden=(0,))


def test_what_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(token_automaton, "MOST_EDGES", 3)
    with pytest.raises(RequestError, match="too large"):
        automaton("[abc]{5}")
    monkeypatch.undo()
    monkeypatch.setattr(token_automaton, "MOST_WORK", 3)
    with pytest.raises(RequestError, match="too large"):
        automaton("[abc]{5}")


def test_a_law_that_leaves_nothing_says_so():
    allowed = language("a")
    logp = torch.log_softmax(torch.tensor([[float("-inf"), 0, 0, 0, 0, float("-inf")]]), -1)
    with pytest.raises(RequestError, match="no token is left for a gap"):
        allowed.read_rows((0, None), 1, [1], logp.double()).all_laws()


MUTANTS = {
    "no backward pass": (
        canvas_language._SegmentRows,
        "token_weights",
        lambda self, places: _without_ahead(self, places),
    ),
    "no tail": (
        CanvasSegment,
        "end_weights",
        lambda self, canvas, begin, after: np.zeros(self.automaton.state_count),
    ),
    "siblings ignored": (canvas_language.ConditionedRows, "fill_row", lambda self, i, x: None),
    "what is written to the right ignored": (
        CanvasSegment,
        "end_weights",
        lambda self, canvas, begin, after, old=CanvasSegment.end_weights: old(
            self, (*canvas[: begin + after], *(None,) * (len(canvas) - begin - after)), begin, after
        ),
    ),
    "ends too early": (
        CanvasSegment,
        "is_end_E",
        property(lambda self: np.zeros(len(self.automaton.class_E), bool)),
    ),
    "messages kept": (
        canvas_language._SegmentRows,
        "fill_place",
        lambda self, place, token: self.weights.__setitem__(
            place, self.segment.edge_weights(token, self.segment.start + place, None)
        ),
    ),
    "a fork shares": (
        canvas_language._SegmentRows,
        "fork_rows",
        lambda self: self,
    ),
    "no probability of classes": (
        CanvasSegment,
        "class_laws",
        lambda self, logp_RV: np.zeros((len(logp_RV), self.automaton.classes)),
    ),
}


def _without_ahead(read, places):
    read.ahead = [np.zeros(read.segment.automaton.state_count)] * (len(read.weights) + 1)
    return _TOKEN_WEIGHTS(read, places)


_TOKEN_WEIGHTS = canvas_language._SegmentRows.token_weights


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    where, what, instead = MUTANTS[name]
    monkeypatch.setattr(where, what, instead)
    with pytest.raises((AssertionError, RequestError)):
        test_the_law_is_that_of_rejection()


@pytest.mark.parametrize("broken", ["no end loop", "one class for all", "no forbidden tokens"])
def test_mutants_of_the_automaton_are_caught(broken, monkeypatch):
    made = token_automaton._trimmed
    classes = token_automaton._token_classes

    def without_loop(class_V, end_class, source_E, class_E, target_E, *rest):
        keep = (source_E != target_E) | (class_E != end_class)
        return made(class_V, end_class, source_E[keep], class_E[keep], target_E[keep], *rest)

    def one_class(*given):
        class_V, rows = classes(*given)
        return np.minimum(class_V, 0), rows

    if broken == "no end loop":
        monkeypatch.setattr(token_automaton, "_trimmed", without_loop)
    elif broken == "one class for all":
        monkeypatch.setattr(token_automaton, "_token_classes", one_class)
    else:
        monkeypatch.setattr(
            token_automaton, "_token_classes", lambda t, s, f, c: classes(t, s, frozenset(), c)
        )
    with pytest.raises((AssertionError, RequestError, pytest.fail.Exception)):
        test_the_law_is_that_of_rejection()
        test_tokens_that_are_forbidden_are_in_no_text()
