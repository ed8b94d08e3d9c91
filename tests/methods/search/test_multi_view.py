"""Multi-view multi-path: its vote by the formula, its law by enumeration, and what it reduces to."""

import math
from collections import defaultdict
from itertools import permutations, product

import pytest

from polydec import Regex
from polydec.base.errors import PolydecError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.enumerate import law_of, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry.kit import OtherPrompts, PromptedLaw
from polydec.methods.search.loop.multi_view import MultiViewSearch
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw

PIECES = ("yes ", "no ", "so ", "hm ", "\n", "?")
PROMPT = (2, 2)
VIEWS = ("so ", "?hm ", "?")


def model(seed, pieces=PIECES, sharp=1.2):
    words = ToyWords((*pieces, "$"), frozenset({len(pieces)}))
    size = len(pieces) + 1
    return CausalLaw(
        OrderTwoNetwork(seed, size, sharp),
        TokenVocabulary(size, frozenset({size - 1}), words=words),
        chunk=2,
    )


def plan(lm, **fields):
    return MultiViewSearch(
        SpeculativeDecoder(lm, NothingDrafter(), MatchVerifier(), FixedPolicy(0)), **fields
    )


def row(lm, text):
    """The law behind the prompt and a text, as the toy's table has it."""
    before, last = (*PROMPT, *text)[-2:]
    return lm.network.weight[before, last].softmax(-1).tolist()


def end_of(lm):
    return len(lm.vocab.words.of) - 1


def over(lm, path, most):
    return bool(path) and (
        path[-1] == end_of(lm) or len(path) == most or lm.vocab.words.of[path[-1]] == "\n"
    )


def greedy(lm, view, path, most):
    while not over(lm, path, most):
        law = row(lm, (*view, *path))
        path = (*path, law.index(max(law)))
    return path


def first(law, width, least):
    best = sorted(range(len(law)), key=lambda x: -law[x])[:width]
    return [x for x in best if law[x] >= least] or best[:1]


def whole(lm, text):
    """As it is written: with an end."""
    return text if text[-1] == end_of(lm) else (*text, end_of(lm))


def votes(lm, view, path, chance):
    """(answer, weight) of a path, None where it gives none."""
    for i, x in enumerate(path):
        if lm.vocab.words.of[x] in ("yes ", "no "):
            law = sorted(row(lm, (*view, *path[:i])), reverse=True)
            return x, chance * (1.0 if not i else law[0] - law[1])
    return None


def elected(lm, views, paths, count):
    """The text and score of a vote. paths: (view, path, chance)."""
    weight, told = defaultdict(float), []
    for view, path, chance in paths:
        said = votes(lm, view, path, chance)
        if said is not None:
            weight[said[0]] += said[1]
            told.append((said[1], said[0], (*view, *path)))
    if not told:
        last = [p for p in paths if p[0] == views[-1]]
        view, path, _ = max(last, key=lambda p: p[2])
        return (*view, *path), 0.0
    best = max(weight, key=weight.get)
    heaviest = max((t for t in told if t[1] == best), key=lambda t: t[0])
    return heaviest[2], weight[best] / count


@pytest.mark.parametrize(
    "fields",
    [{}, {"width": 1}, {"width": 6, "least": 0.0}, {"least": 0.3}, {"most": 2}, {"cue": "hm "}],
    ids=str,
)
def test_the_vote_is_that_of_the_formula(fields):
    answered = 0
    for seed in range(8):
        lm = model(seed)
        spelled = [lm.vocab.words.encode(v + fields.get("cue", "")) for v in VIEWS]
        width, least, most = (fields.get(*f) for f in (("width", 3), ("least", 0.001), ("most", 4)))
        paths = []
        for view in spelled:
            law = row(lm, view)
            paths += [
                (view, greedy(lm, view, (x,), most), law[x]) for x in first(law, width, least)
            ]
        want, score = elected(lm, spelled, paths, len(VIEWS))
        decoder = plan(lm, views=VIEWS, caption=0, drawn=False, **{"most": 4, **fields})
        got = run_coroutines([answer_one(decoder, Request(PROMPT, 24))])[0]
        assert got.token_ids == whole(lm, want)
        assert got.score == pytest.approx(score, abs=1e-9) and 0.0 <= got.score <= 1.0
        answered += score > 0
    assert answered > 3


def test_without_views_at_width_1_it_is_greedy_decoding_of_a_line():
    for seed in range(8):
        lm = model(seed)
        decoder = plan(lm, width=1, drawn=False, most=9)
        got = run_coroutines([answer_one(decoder, Request(PROMPT, 10))])[0]
        assert got.token_ids == whole(lm, greedy(lm, (), (), 9))


def test_if_all_first_tokens_are_answers_their_probabilities_add_up():
    """Over views: the score of an answer is the mean of what each view says."""
    pieces = ("yes ", "no ")
    for seed in range(6):
        lm = model(seed, pieces)
        views = ("yes ", "no no ")
        decoder = plan(lm, views=views, caption=0, width=2, drawn=False, most=1)
        got = run_coroutines([answer_one(decoder, Request((0, 1), 12, ignore_eos=True))])[0]

        async def law(view, lm=lm):
            whole = (0, 1, *lm.vocab.words.encode(view))
            scores = await lm.open_session(whole).score_draft(
                Draft.chain_draft(whole[-1]), ScoreRequest()
            )
            return scores.logprob_row(0).exp().tolist()

        rows = [run_coroutines([law(v)])[0] for v in views]
        total = [
            sum(r[x] for r in rows if r[x] >= sorted(r)[-2]) / 2  # the two likeliest of each
            for x in (0, 1)
        ]
        assert got.score == pytest.approx(max(total), abs=1e-9)


def test_the_order_of_views_is_irrelevant():
    for seed in range(6):
        lm, scores = model(seed), set()
        for views in permutations(VIEWS):
            decoder = plan(lm, views=views, caption=0, drawn=False, most=4)
            scores.add(
                round(run_coroutines([answer_one(decoder, Request(PROMPT, 20))])[0].score, 9)
            )
        assert len(scores) == 1


@pytest.mark.parametrize(
    ("views", "caption", "width"), [(("?",), 1, 2), (("?", "no "), 0, 1)], ids=str
)
def test_the_law_of_drawn_paths_and_captions(views, caption, width):
    """Every draw of a caption's token, and of a second token of each path, enumerated."""
    lm, most = model(3, ("yes ", "no ", "?"), 0.8), 2
    decoder = plan(lm, views=views, caption=caption, width=width, most=most)
    request = Request(PROMPT, 8)
    got = law_of(lambda rng: answer_one(decoder, request, rng))

    def behind(view):
        """(chance, paths, view) of everything that may be written behind a view and its caption."""
        out = []
        captions = [((*view, x), p) for x, p in enumerate(row(lm, view))]
        for begun, p in captions if caption else [(view, 1.0)]:
            if begun[-1] == end_of(lm):  # no room for a path
                out.append((p, [(begun, (), 0.0)], begun))
                continue
            law, ways = row(lm, begun), []
            for y in first(law, width, 0.001):
                rest = [(1.0, (y,))]
                if not over(lm, (y,), most):
                    rest = [(q, (y, z)) for z, q in enumerate(row(lm, (*begun, y)))]
                ways.append([(q, (begun, path, law[y])) for q, path in rest])
            for chosen in product(*ways):
                out.append((p * math.prod(q for q, _ in chosen), [way for _, way in chosen], begun))
        return out

    want = defaultdict(float)
    for parts in product(*(behind(lm.vocab.words.encode(v)) for v in views)):
        paths = [path for _, of, _ in parts for path in of]
        text, _ = elected(lm, [parts[-1][2]], paths, len(views))
        want[whole(lm, text)] += math.prod(p for p, _, _ in parts)
    assert text_law_distance(got, dict(want)) < 1e-9


def test_a_path_without_an_answer_may_count_for_all():
    lm = model(2)
    alone, shared = (
        run_coroutines(
            [answer_one(plan(lm, width=6, least=0.0, drawn=False, shared=s), Request(PROMPT, 8))]
        )[0]
        for s in (False, True)
    )
    assert shared.score > alone.score > 0.0


def others(lm, seen=None, text=""):
    """What a toy would say to other texts, by the last two tokens of each; seen: which were asked."""

    def law_behind(text):
        if seen is not None:
            seen.append(text)
        return PromptedLaw(lm, lm.vocab.words.encode(f"?{text}"))

    return OtherPrompts(text, law_behind)


@pytest.mark.parametrize("width", [1, 3])
def test_views_that_are_asked_apart_stand_before_the_question(width):
    """Without captions: the paths follow view and question, not the prompt, and the text is a path alone."""
    answered = 0
    for seed in range(8):
        lm = model(seed)
        spelled = [lm.vocab.words.encode(f"?{view}\n") for view in VIEWS]
        paths = []
        for text in spelled:
            law = row(lm, text)
            paths += [(text, greedy(lm, text, (x,), 4), law[x]) for x in first(law, width, 0.001)]
        want, score = elected(lm, spelled, paths, len(VIEWS))
        decoder = plan(
            lm, views=VIEWS, caption=0, width=width, drawn=False, most=4, apart=others(lm)
        )
        got = run_coroutines([answer_one(decoder, Request(PROMPT, 24))])[0]
        view = next(text for text in spelled if want[: len(text)] == text)
        assert got.token_ids in {
            whole(lm, want[len(text) :]) for text in (view, *spelled) if want[: len(text)] == text
        }
        assert got.score == pytest.approx(score, abs=1e-9)
        answered += score > 0
    assert answered > 3


def test_the_law_of_captions_that_are_asked_apart():
    """A caption follows its view's own prompt, and the question follows the caption; enumerated."""
    lm = model(3, ("yes ", "no ", "?", "\n"), 0.8)
    words = lm.vocab.words
    decoder = plan(lm, views=("?no ",), caption=1, width=1, most=1, apart=others(lm))
    got = law_of(lambda rng: answer_one(decoder, Request(PROMPT, 8), rng))
    want = defaultdict(float)
    for x, p in enumerate(row(lm, words.encode("?no "))):
        told = "" if x == end_of(lm) else words.of[x]
        law = row(lm, words.encode(f"?{told}\n"))
        want[whole(lm, (law.index(max(law)),))] += p
    assert len(want) > 1
    assert text_law_distance(got, dict(want)) < 1e-9


def test_captions_leave_room_for_the_question_and_a_path():
    lm = model(1)
    seen = []
    decoder = plan(lm, views=VIEWS, caption=100, most=5, apart=others(lm, seen, "so ?"), context=20)
    # The question has three tokens, a path five, and where texts meet four are kept free.
    assert decoder.caption_room == 20 - 3 - 5 - 4
    seen.clear()
    run_coroutines([answer_one(decoder, Request(PROMPT, 24))])
    behind = [text for text in seen if text.endswith("\nso ?")]
    assert len(behind) == len(VIEWS)
    assert max(len(lm.vocab.words.encode(text)) for text in behind) <= 8 + 3
    with pytest.raises(PolydecError, match=r"^most is 14: a caption, the question and a path"):
        plan(lm, views=VIEWS, caption=100, most=14, apart=others(lm, text="so ?"), context=20)


def test_what_stands_apart_is_refused_without_views_or_a_text():
    lm = model(1)
    language = Regex("(yes |no )+").token_language(lm.vocab, lm.vocab.eos)
    allowed = ShapedTarget(lm, ConstraintRule(language))
    for law, fields, name in (
        (lm, {}, "views is empty"),
        (lm, {"views": "so "}, "apart is true: views are asked for"),
        (allowed, {"views": "so "}, "apart is true and the answer is constrained"),
    ):
        with pytest.raises(PolydecError, match=name):
            build("mvp", law, None, {"apart": True, **fields})


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("no, yes", 1), ("Yes.", 0), ("yesterday", None), ("notes: yes", 0), ("in New York", 2),
        ("", None), ("know", None), ("new", 3),
    ],
)  # fmt: skip
def test_answers_are_words(said, found):
    got = plan(model(1), answers=("yes", "no", "New York", "new")).first_answer(said)
    assert (None if got is None else got[0]) == found


def test_refusals():
    lm = model(1)
    for fields, name in (
        ({"answers": "yes"}, "answers"),
        ({"answers": "yes|Yes"}, "answers"),
        ({"views": "zzz"}, "views"),
        ({"cue": "zzz"}, "cue"),
        ({"width": 0}, "width"),
        ({"least": 2}, "least"),
    ):
        with pytest.raises(PolydecError, match=name):
            build("mvp", lm, None, fields)


def test_a_view_that_leaves_no_room_has_no_paths():
    lm = model(4)
    decoder = plan(lm, views=VIEWS, caption=3, cue="hm hm ")
    for most in (1, 2, 3, 4):
        got = run_coroutines([answer_one(decoder, Request(PROMPT, most))])[0]
        assert 1 <= len(got.token_ids) <= most
