"""Thoughts in the middle of an answer: a mark that is read as a vector, and a cache that is read again
behind each so many tokens."""

from collections import Counter
from concurrent.futures import Executor, Future
from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.laws.targets.augmented import CacheAugmentationMaker
from polydec.laws.targets.hidden_thought import HiddenThoughtMaker
from polydec.laws.targets.marked_thoughts import MarkedThoughtTarget
from polydec.laws.targets.recurring_thoughts import RecurringThoughtTarget
from polydec.laws.targets.thinking import LatentPrefixTarget
from polydec.models.learned.kinds import coprocessor, thought
from polydec.models.sessions.soft import make_soft_tokens
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel
from polydec.request.room import tokens_between_vectors

PROMPT = "The grey fox and the river and the grey fox and the"
METHODS = ("plain", "auto", "prompt-lookup", "draft-model", "token-recycling", "lookahead", "pearl")
START = (7, 8, 9)
TEXT = (30, 31, 5, 32, 5, 5, 33, 34, 5, 35, 36, 37, 5)
"""What follows START, with the mark 5 in it."""


async def no_rows(checker):
    """A beginning of the prompt has no thoughts: it is another text."""


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """A model by which the token is a mark that it writes most often behind its first thought."""
    lm = micro.trained(tmp_path_factory.mktemp("marked"), examples=thought.examples)
    asked = ask("hidden-cot", {"within": False}, max_tokens=40)
    ((wrote,),) = texts(lm, [asked])
    mark, count = Counter(wrote[:12]).most_common(1)[0]
    made = replace(lm.artefacts[0], mark=mark)
    assert count
    return LoadedModel(lm.checkpoint, lm.draft, (made,))


@pytest.fixture(scope="module")
def augmented(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("again"), examples=coprocessor.examples)


def ask(way, options, **fields):
    return Ask(
        PROMPT,
        **{"raw": True, "ignore_eos": True, "steer": way, "steer_options": options}
        | {"max_tokens": 16}
        | fields,
    )


def texts(lm, asks, **limits):
    return micro.completed_ids(Engine(lm, **limits), asks)


def row_behind(session, root):
    """The law behind a root that is not committed."""
    return run_coroutines([session.score_draft(Draft.chain_draft(root), ScoreRequest())])[
        0
    ].logprob_row(0)


def marked_law(lm, mark):
    made = replace(lm.artefacts[0], mark=mark)
    thinker = HiddenThoughtMaker(lm.draft.lm, made, lm.checkpoint.lm.vocab.size)
    law = LatentPrefixTarget(lm.checkpoint.lm, START, thinker)
    return MarkedThoughtTarget(law, START, thinker, mark), thinker


def augmented_law(lm, every, count=2, late=0):
    made = lm.artefacts[0]
    maker = CacheAugmentationMaker(made, 2, lm.checkpoint.lm.vocab.size, count, late)
    return RecurringThoughtTarget(lm.checkpoint.lm, START, maker, every), maker


def marked_by_hand(lm, thinker, text):
    """What the model reads of a text, whose last token is the root: one vector in the place of each
    mark, made of all words before."""
    read = [*START[:-1], *run_coroutines([thinker._vectors(START[:-1])])[0], START[-1]]
    for at in range(len(START), len(text)):
        if text[at] == 5:
            read += run_coroutines([thinker._vectors(text[:at])])[0]
        else:
            read.append(text[at])
    return read


def augmented_by_hand(lm, maker, text, every):
    """The same with vectors before the prompt's last token and each `every` tokens further, or so many
    tokens later as the maker is late, each made in a new session of what stood there before."""
    read, begun, size = list(text[: len(START) - 1]), len(START) - 1, maker.size
    for at in range(len(START) - 1, len(text)):
        if (at - len(START) + 1) % every == 0:
            begun = len(read)
        if (
            at >= len(START) - 1 + maker.tokens_late
            and (at - len(START) + 1 - maker.tokens_late) % every == 0
        ):
            session = lm.checkpoint.lm.open_session((*read[:begun], 0))
            run_coroutines([session.score_draft(Draft.chain_draft(0), ScoreRequest())])
            memory = [tuple(x.clone() for x in session.layer_memory(i)) for i in range(2)]
            vectors = maker.maker.make_vectors(memory, maker.count)
            read += make_soft_tokens(vectors, size, vectors.shape[1], "x")
            session.close()
        read.append(text[at])
    return read


def law_by_hand(lm, read):
    session = lm.checkpoint.lm.open_session((*read[:-1], 0))
    return row_behind(session, read[-1])


def test_a_mark_is_read_as_the_vector_of_the_text_before_it(marked):
    law, thinker = marked_law(marked, 5)
    session, text = law.open_session(START), START
    for token in TEXT:
        want = law_by_hand(marked, marked_by_hand(marked, thinker, text))
        torch.testing.assert_close(row_behind(session, text[-1]), want, atol=1e-4, rtol=0.0)
        session.commit_tokens(text[-1:])
        text += (token,)
    given = law.open_session(text)
    want = law_by_hand(marked, marked_by_hand(marked, thinker, text))
    torch.testing.assert_close(row_behind(given, text[-1]), want, atol=1e-4, rtol=0.0)
    # Without a vector the law behind a mark is another one.
    plain = law.target.open_session(text)
    assert not torch.allclose(row_behind(plain, text[-1]), want, atol=1e-2)
    # A mark in the prompt is read as it is.
    alone = MarkedThoughtTarget(marked.checkpoint.lm, (7, 5, 8), thinker, 5)
    torch.testing.assert_close(
        row_behind(alone.open_session((7, 5, 8)), 8),
        row_behind(marked.checkpoint.lm.open_session((7, 5, 8)), 8),
    )


@pytest.mark.parametrize("every", [1, 2, 3, 5, 40])
def test_the_cache_is_read_again_behind_so_many_tokens(augmented, every):
    law, maker = augmented_law(augmented, every)
    session, text = law.open_session(START), START
    for token in TEXT:
        want = law_by_hand(augmented, augmented_by_hand(augmented, maker, text, every))
        torch.testing.assert_close(row_behind(session, text[-1]), want, atol=1e-4, rtol=0.0)
        session.commit_tokens(text[-1:])
        text += (token,)
    given = law.open_session(text)
    want = law_by_hand(augmented, augmented_by_hand(augmented, maker, text, every))
    torch.testing.assert_close(row_behind(given, text[-1]), want, atol=1e-4, rtol=0.0)
    once = LatentPrefixTarget(augmented.checkpoint.lm, START, maker).open_session(text)
    same = torch.allclose(row_behind(once, text[-1]), want, atol=1e-3)
    assert same == (every == 40)


@pytest.mark.parametrize(("every", "late"), [(2, 1), (3, 1), (5, 3), (40, 4)])
def test_vectors_of_a_call_that_ran_beside_the_decoding_come_late(augmented, every, late):
    """Made of what stood where the call began, and read so many tokens later."""
    law, maker = augmented_law(augmented, every, late=late)
    session, text = law.open_session(START), START
    for token in TEXT:
        want = law_by_hand(augmented, augmented_by_hand(augmented, maker, text, every))
        torch.testing.assert_close(row_behind(session, text[-1]), want, atol=1e-4, rtol=0.0)
        session.commit_tokens(text[-1:])
        text += (token,)
    given = law.open_session(text)
    want = law_by_hand(augmented, augmented_by_hand(augmented, maker, text, every))
    torch.testing.assert_close(row_behind(given, text[-1]), want, atol=1e-4, rtol=0.0)
    # Read where they are due, of all that stands before them, they would be others.
    waited = augmented_law(augmented, every)[0].open_session(text)
    assert not torch.allclose(row_behind(waited, text[-1]), want, atol=1e-3)


class NotedExecutor(Executor):
    """Notes which models are started, and runs each at once."""

    def __init__(self):
        self.started = []

    def submit(self, run, model, group):
        self.started.append(model)
        done = Future()
        done.set_result(run(model, group))
        return done


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_late_call_is_waited_for_together_with_a_pass_of_the_model(augmented, late):
    """The first pass behind the prompt and the coprocessor's are started in one step; without delay the
    coprocessor's comes first."""
    law, maker = augmented_law(augmented, 8, late=late)
    session, noted = law.open_session(START), NotedExecutor()
    scheduler = Scheduler(pool=noted)

    def started_with(coro):
        begun = len(noted.started)
        scheduler.submit_coroutine(coro)
        scheduler.step()
        first = noted.started[begun:]
        while scheduler.step():
            pass
        return first, noted.started[begun:]

    rows = ScoreRequest()
    started_with(session.prefill_prompt(rows))
    made = noted.started.count(maker.maker)
    first, _ = started_with(session.score_draft(Draft.chain_draft(START[-1]), rows))
    if not late:
        # It was made before anything was decoded.
        assert made == 1 and maker.maker not in first
        return
    assert made == 0
    assert maker.maker in first and len(first) == 2
    # What was made ahead is read where it is due, and not made once more.
    for token in (START[-1], *TEXT[: late - 1]):
        session.commit_tokens((token,))
    _, all_started = started_with(session.score_draft(Draft.chain_draft(TEXT[late - 1]), rows))
    assert maker.maker not in all_started


def test_vectors_made_ahead_are_those_of_the_text_that_is_kept(augmented):
    """Taken back behind where they were begun they stay, and before it they are made anew."""
    law, _ = augmented_law(augmented, 6, late=3)
    for kept in (2, 7, 8):
        session = law.open_session(START)
        for token in (START[-1], *TEXT[:7]):
            row_behind(session, token)
            session.commit_tokens((token,))
        session.rewind_tokens(8 - kept)
        text = (*START, *TEXT[: kept - 1])
        for token in (50, 51, 52, 53, 54, 55, 56, 57):
            text += (token,)
            want = row_behind(law.open_session(text), token)
            torch.testing.assert_close(row_behind(session, token), want, atol=1e-4, rtol=0.0)
            session.commit_tokens((token,))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_rows_of_a_text_are_those_behind_its_vectors(augmented, late):
    law, maker = augmented_law(augmented, 3, late=late)
    text = (*START, *TEXT[:6])
    rows = ScoreRequest(prompt=True)
    got = run_coroutines([law.open_session(text).prefill_prompt(rows)])[0]
    for at in range(1, len(text) - 1):
        read = augmented_by_hand(augmented, maker, (*text[: at + 1], 0), 3)
        want = law_by_hand(augmented, read[:-1])
        torch.testing.assert_close(got.logprob_row(at), want, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("mark", [5, 9, 30])
def test_a_law_with_marks_is_a_target(marked, monkeypatch, mark):
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    check_target(marked_law(marked, mark)[0], prompt=START, tolerance=1e-4)


@pytest.mark.parametrize(("every", "late"), [(2, 0), (3, 0), (7, 0), (2, 1), (4, 2)])
def test_a_law_with_recurring_vectors_is_a_target(augmented, monkeypatch, every, late):
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    check_target(augmented_law(augmented, every, late=late)[0], prompt=START, tolerance=1e-4)


def tree_rows_are_those_of_paths(law, draft, tolerance=1e-4):
    """Every node of a tree against its path alone; what is kept of it, and what is taken back."""
    session = law.open_session(START)
    session.commit_tokens((START[-1], 40))
    scores = run_coroutines([session.score_draft(draft, ScoreRequest())])[0]
    for node in range(len(draft)):
        path = [draft.token[i] for i in ((0, *draft.path_to(node)) if node else (0,))]
        alone = law.open_session((*START, 40, *path))
        want = row_behind(alone, path[-1])
        torch.testing.assert_close(scores.logprob_row(node), want, atol=tolerance, rtol=0.0)
    kept = [0, *draft.path_to(len(draft) - 1)]
    left = session.keep_nodes(sorted(kept), kept[2])
    assert left.token == tuple(draft.token[i] for i in kept[2:])
    scores = run_coroutines([session.score_draft(left, ScoreRequest())])[0]
    for node in range(len(left)):
        alone = law.open_session((*START, 40, *(draft.token[i] for i in kept[: 3 + node])))
        want = row_behind(alone, left.token[node])
        torch.testing.assert_close(scores.logprob_row(node), want, atol=tolerance, rtol=0.0)
    session.commit_tokens(left.token)
    session.rewind_tokens(len(left) + 1)
    want = row_behind(
        law.open_session((*START, 40, *(draft.token[i] for i in kept[:2]))),
        kept and draft.token[kept[1]],
    )
    torch.testing.assert_close(
        row_behind(session, draft.token[kept[1]]), want, atol=tolerance, rtol=0.0
    )


TREE = Draft.certain_tree((41, 5, 42, 5, 43, 5, 44, 45, 5, 46), (-1, 0, 0, 1, 1, 2, 3, 5, 7, 8))


def test_a_tree_with_marks_has_the_laws_of_its_paths(marked):
    tree_rows_are_those_of_paths(marked_law(marked, 5)[0], TREE)


@pytest.mark.parametrize(
    ("every", "late"), [(1, 0), (2, 0), (3, 0), (4, 0), (6, 0), (2, 1), (4, 2), (6, 4)]
)
def test_a_tree_over_places_of_vectors_has_the_laws_of_its_paths(augmented, every, late):
    tree_rows_are_those_of_paths(augmented_law(augmented, every, late=late)[0], TREE)


@pytest.mark.parametrize("way", ["marked", "augmented", "late"])
def test_every_method_writes_the_same(marked, augmented, way):
    if way == "marked":
        lm, name, options = marked, "hidden-cot", {}
        ((wrote,), (without,)) = texts(lm, [ask(name, o) for o in ({}, {"within": False})])
        assert lm.artefacts[0].mark in wrote and wrote != without
    else:
        lm, name, options = augmented, "cache-augmentation", {"latents": 2, "every": 3}
        options |= {"late": 2} if way == "late" else {}
        wrote, without = texts(lm, [ask(name, o) for o in (options, {"latents": 2})])
        assert wrote != without
    got = texts(lm, [ask(name, options, method=m) for m in METHODS])
    assert got == got[:1] * len(METHODS)
    for more in (
        {"sampling": Sampling(temperature=0.8), "n": 2, "seed": 4},
        {"sampling": Sampling(temperature=0.0, repetition_penalty=1.4)},
    ):
        alone, copied = texts(
            lm, [ask(name, options, method=m, **more) for m in ("plain", "prompt-lookup")]
        )
        assert alone == copied
    asks = [ask(name, options, seed=i, n=1 + i % 2) for i in range(4)]
    alone = [texts(lm, [a])[0] for a in asks]
    for limits in ({"max_cache_bytes": 1}, {"max_positions": 7}):
        assert texts(lm, asks, **limits) == alone


def test_without_vectors_nothing_recurs(augmented):
    plain = texts(augmented, [ask(None, {})])
    for more in ({"every": 2}, {"late": 2}, {"every": 2, "late": 3}):
        assert texts(augmented, [ask("cache-augmentation", {"latents": 0, **more})]) == plain


def test_vectors_that_are_read_once_may_be_late(augmented):
    wrote, late, never = texts(
        augmented,
        [ask("cache-augmentation", {"latents": 2, "late": n}) for n in (0, 4, 40)],
    )
    plain = texts(augmented, [ask(None, {})])[0]
    assert late != wrote and never == plain
    assert late[0][:4] == plain[0][:4]


def test_vectors_within_an_answer_take_room(augmented):
    """By hand: four tokens and two vectors in turn."""
    fits = [max(n for n in range(40) if n + 2 * (n // 4) <= left) for left in range(30)]
    assert [tokens_between_vectors(left, 2, 4) for left in range(30)] == fits
    assert tokens_between_vectors(7, 2, 0) == 7
    asked = ask("cache-augmentation", {"latents": 2, "every": 4}, max_tokens=200)
    with pytest.raises(ValueError, match="max_tokens is 200: the prompt has"):
        plan_request(augmented, asked)
    assert plan_request(augmented, replace(asked, max_tokens=140))
    with pytest.raises(ValueError, match="late is 4: it must be below every, which is 4"):
        plan_request(augmented, ask("cache-augmentation", {"every": 4, "late": 4}))
    with pytest.raises(ValueError, match="every is -1"):
        plan_request(augmented, ask("cache-augmentation", {"every": -1}))


def test_what_cannot_be_read_is_refused(marked, augmented):
    session = augmented_law(augmented, 2)[0].open_session(START)
    vectors = (session.text_vectors(), session.text_grids())
    assert not any(vectors), "thoughts stand in the place of no token"
    for refused, sentence in (
        (lambda: session.rewind_tokens(9), "n is 9: it must lie in 0 to"),
        (lambda: session.layer_memory(), "keys cannot be read behind a prompt with thoughts"),
        (lambda: session.open_part((0,)), "layers cannot run alone behind thoughts"),
        (lambda: session.keep_nodes([0]), "no draft has been scored"),
        (lambda: RecurringThoughtTarget(augmented.checkpoint.lm, (1,), None, 2), "has one token"),
        (lambda: RecurringThoughtTarget(augmented.checkpoint.lm, (1, 2), None, 0), "every is 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            refused()
    other = marked_law(marked, 5)[0].open_session(START)
    with pytest.raises(ValueError, match="no draft has been scored"):
        other.keep_nodes([0])
    assert marked_law(marked, 5)[0].open_session((1, 2, 3, 5)) is not None
    assert augmented_law(augmented, 2)[0].open_session((1, 2, 3)) is not None
