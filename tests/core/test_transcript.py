"""Texts as they are written: ends, stop strings, edits in any order, forks, what several have in common."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polydec.base.errors import RequestError
from polydec.core.request import Request, TokenLogprob
from polydec.core.trace import (
    BranchedEvent,
    EditedEvent,
    FinishedEvent,
    OpenedEvent,
    PrunedEvent,
    ScoredEvent,
    TriedEvent,
    replay,
)
from polydec.core.transcript import Transcript, common_prefix_tokens
from polydec.core.types import TextEdit


class Letters:
    """Token i is the i-th letter; a text stops before `stop`, and what may become it is held back."""

    def __init__(self, stop):
        self.stop, self.held, self.stopped = stop, "", False

    def push_token(self, token):
        self.held += chr(ord("a") + token)
        if self.stop in self.held:
            self.stopped, out, self.held = True, self.held[: self.held.index(self.stop)], ""
            return out
        keep = next(
            (n for n in range(len(self.stop) - 1, 0, -1) if self.held.endswith(self.stop[:n])), 0
        )
        out, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return out

    def end_text(self):
        out, self.held = self.held, ""
        return out

    def fork(self):
        twin = Letters(self.stop)
        twin.held, twin.stopped = self.held, self.stopped
        return twin


def record(eos=frozenset({9}), on=None, prompt=(1,), **fields):
    request = Request(prompt, **fields)
    return Transcript(request, eos) if on is None else Transcript(request, eos, on)


def text(**fields):
    return record(**fields).open_answer(0)


def note(token):
    return TokenLogprob(token, -1.0, -2.0, ())


def test_takes_tokens_up_to_eos():
    t = text()
    assert t.write_tokens([1, 2]) == 2 and t.finish_reason is None and t.room == 126
    assert t.write_tokens([3, 9, 4, 5]) == 2
    assert (t.tokens, t.finish_reason, t.text) == ([1, 2, 3, 9], "stop", "")


def test_several_ends_stop_ids_and_ignore_eos():
    t = text(eos=frozenset({8, 9}), stop_ids=frozenset({5}))
    t.write_tokens([5, 1])
    assert t.tokens == [5]
    t = text(eos=frozenset({8, 9}), stop_ids=frozenset({5}), ignore_eos=True)
    t.write_tokens([8, 9, 5, 1])
    assert (t.tokens, t.finish_reason) == ([8, 9, 5], "stop")


def test_length():
    t = text(max_tokens=3)
    t.write_tokens([1, 2, 3, 4])
    assert (t.tokens, t.finish_reason, t.room) == ([1, 2, 3], "length", 0)
    t = text(max_tokens=2)
    t.write_tokens([1, 9])
    assert t.finish_reason == "stop"  # an end at the last place is an end


def test_stop_string_inside_an_accepted_run():
    events = []
    t = text(writer=lambda: Letters("cd"), on=events.append)
    t.write_tokens([0, 1, 2, 3, 4], accepted=5)
    assert (t.tokens, t.text, t.finish_reason) == ([0, 1, 2, 3], "ab", "stop")
    assert events[1:] == [
        EditedEvent(
            0, TextEdit(write=((1, 0), (2, 1), (3, 2), (4, 3))), (0, 1, 2, 3), ("a", "b", "", ""), 4
        ),
        FinishedEvent(0, "stop"),
    ]


def test_what_is_held_back_comes_at_the_end():
    t = text(writer=lambda: Letters("cd"), max_tokens=3)
    t.write_tokens([0, 1, 2])
    assert t.text == "abc"
    t = text(writer=lambda: Letters("cd"))
    t.write_tokens([0, 2, 9])
    assert t.text == "ac"


def test_nothing_is_written_behind_the_end():
    t = text(max_tokens=1)
    t.write_tokens([1])
    with pytest.raises(ValueError, match="the answer has ended"):
        t.write_tokens([1])
    with pytest.raises(ValueError, match="the answer has ended"):
        t.edit_tokens(TextEdit(write=((3, 1),)))


def test_notes_stand_beside_the_tokens_that_stay():
    t = text(logprobs=0)
    t.write_tokens([1, 9, 3], [note(1), note(9), note(3)])
    assert [n.token for n in t.notes] == [1, 9] and t.finished_answer(None).logprobs == (
        note(1),
        note(9),
    )
    assert text().notes == []


def test_notes_of_an_edit_follow_the_tokens_that_become_final():
    asked = text(logprobs=1)
    asked.edit_tokens(TextEdit(write=((2, 3),)), notes={})
    asked.edit_tokens(TextEdit(write=((1, 2),)), notes={1: note(2), 2: note(3)})
    assert asked.tokens == [2, 3] and asked.notes == [note(2), note(3)]
    silent = text()
    silent.edit_tokens(TextEdit(write=((1, 2),)), notes={1: note(2)})
    assert silent.tokens == [2] and silent.notes == []


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.randoms())
def test_a_canvas_filled_in_any_order_reads_as_one_written_from_left_to_right(tokens, dice):
    """The finished prefix grows as gaps close; ends, stop strings, pieces and the replay of edits are those of appending."""
    straight = text(max_tokens=len(tokens), writer=lambda: Letters("dg"))
    straight.write_tokens(tokens)
    events, places = [], list(range(len(tokens)))
    dice.shuffle(places)
    t = record(max_tokens=len(tokens), writer=lambda: Letters("dg"), on=events.append).open_answer(
        0
    )
    for i in places:
        if t.finish_reason is not None:
            break
        before = len(t.tokens)
        count = t.edit_tokens(TextEdit(write=((1 + i, tokens[i]),)))
        assert len(t.tokens) == before + count
    assert (t.tokens, t.text, t.finish_reason) == (
        straight.tokens,
        straight.text,
        straight.finish_reason,
    )
    edits = [e for e in events if isinstance(e, EditedEvent)]
    assert replay((1,), [e.edit for e in edits]) == straight.tokens
    assert "".join(p for e in edits for p in e.pieces) == straight.text
    assert [x for e in edits for x in e.tokens] == straight.tokens


def test_what_is_not_final_may_change_and_what_is_may_not():
    t = text(max_tokens=4)
    assert t.edit_tokens(TextEdit(write=((1, 5), (2, 6))), final=0) == 0 and t.tokens == []
    assert t.edit_tokens(TextEdit(write=((2, 7),)), final=2) == 1 and t.tokens == [5]
    assert t.edit_tokens(TextEdit(erase=(2,)), final=2) == 0
    assert t.edit_tokens(TextEdit(insert=((2, 3),))) == 1 and t.tokens == [5, 3]
    with pytest.raises(ValueError, match="position 2 is final: edits begin at 3"):
        t.edit_tokens(TextEdit(write=((2, 1),)))
    with pytest.raises(ValueError, match="position 5 lies beyond the 4 tokens of the answer"):
        t.edit_tokens(TextEdit(write=((5, 1),)))


def test_appending_to_a_canvas_with_a_gap_is_refused():
    t = text()
    t.edit_tokens(TextEdit(write=((2, 4),)))
    with pytest.raises(ValueError, match="tokens stand behind a gap"):
        t.write_tokens([1])


def test_a_hypothesis_is_no_answer_and_keeps_its_writer():
    events = []

    def told(event):
        if type(event) in (OpenedEvent, EditedEvent, FinishedEvent):
            events.append(event)

    r = record(writer=lambda: Letters("cd"), on=told)
    first = r.open_hypothesis()
    first.write_tokens([0, 2])
    twin = first.fork()
    first.write_tokens([3])
    twin.write_tokens([4])
    twin.score = -1.5
    assert first.finish_reason == "stop" and first.text == "a"
    assert twin.finish_reason is None and twin.text == "ace" and events == []
    shown = r.open_answer(3)
    shown.follow_text(twin, 1)
    assert shown.tokens == [0] and shown.score is None
    twin.write_tokens([9])
    shown.follow_text(twin)
    assert (shown.tokens, shown.text, shown.score) == ([0, 2, 4, 9], "ace", -1.5)
    assert events[0] == OpenedEvent(3, (1,)) and events[-1] == FinishedEvent(3, "stop")
    with pytest.raises(ValueError, match="begins otherwise"):
        r.open_answer(4).follow_text(first) or shown.follow_text(first)


def test_observers_are_told_of_the_branches_of_a_search():
    events = []
    r = record(writer=lambda: Letters("cd"), on=events.append)
    first = r.open_hypothesis()
    first.write_tokens([0, 2])
    twin = first.fork()
    twin.edit_tokens(TextEdit(write=((3, 4),)))
    twin.score = -1.5
    first.send_rank(0.25)
    first.send_prune()  # a text goes on from it
    left = twin.fork()
    left.send_prune()
    left.send_prune()  # said once
    twin.fork().write_tokens([3])
    assert events == [
        BranchedEvent(0, 0, -1, 0),
        TriedEvent(0, 0, (0, 2), ("a", "")),
        BranchedEvent(0, 1, 0, 2),
        TriedEvent(0, 1, (4,), ("ce",)),
        ScoredEvent(0, 1, -1.5),
        ScoredEvent(0, 0, 0.25),
        BranchedEvent(0, 2, 1, 3),
        PrunedEvent(0, 2),
        BranchedEvent(0, 3, 1, 3),
        TriedEvent(0, 3, (3,), ("d",)),
    ]
    assert left.score == -1.5 and r.open_answer(0).branch == -1
    over = r.open_hypothesis()
    over.write_tokens([3, 9])
    over.send_prune()  # it has ended
    assert not isinstance(events[-1], PrunedEvent)
    said = len(events)
    other = first.fork(7)
    assert events[-1] == BranchedEvent(7, other.branch, 0, 2)
    r.open_answer(7).write_tokens([9])
    other.send_prune()  # its answer has ended
    assert len(events) == said + 1 + 3
    quiet = record()
    quiet.open_hypothesis().send_prune()


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=5))
def test_common(lists):
    r = record(max_tokens=99)
    texts = [r.open_hypothesis() for _ in lists]
    for t, tokens in zip(texts, lists):
        t.write_tokens(tokens)
    got = common_prefix_tokens(texts)
    assert all(t[: len(got)] == got for t in lists)
    longer = {tuple(t[: len(got) + 1]) for t in lists}
    assert not lists or len(longer) > 1 or min(map(len, lists)) == len(got)


def test_events_that_nobody_wants_need_not_be_made():
    class Some:
        kinds = (EditedEvent,)

        def __call__(self, event):
            pass

    assert record(on=Some()).is_observed(EditedEvent) and not record(on=Some()).is_observed(
        FinishedEvent
    )
    assert record(on=lambda event: None).is_observed(FinishedEvent) and not record().is_observed(
        FinishedEvent
    )


def test_replay_leaves_out_what_stands_behind_a_gap():
    assert replay((7,), [TextEdit(write=((3, 5),)), TextEdit(write=((1, 4),))]) == [4]
    assert replay((7,), [TextEdit(write=((3, 5),)), TextEdit(write=((1, 4), (2, 6)))]) == [4, 6, 5]
    rng = random.Random(0)
    places = [(i, rng.randrange(9)) for i in range(1, 9)]
    edits = [TextEdit(write=(w,)) for w in rng.sample(places, 8)]
    assert replay((7,), edits) == [x for _, x in places]


def test_an_answer_that_has_not_ended_has_no_result():
    with pytest.raises(ValueError, match="has not ended"):
        text().finished_answer(None)


def test_a_canvas_whose_text_has_ended_loses_what_stands_behind():
    r = record()
    silent, shown = r.open_hypothesis(), r.open_answer(0)
    for t in (silent, shown):
        t.edit_tokens(TextEdit(write=((2, 4), (3, 5))))
        t.edit_tokens(TextEdit(write=((1, 9),)))
        assert t.tokens == [9] and t.finish_reason == "stop"


def test_a_canvas_may_be_edited_in_silence():
    t = record().open_hypothesis()
    t.edit_tokens(TextEdit(write=((1, 4),)))
    assert t.tokens == [4]


class Ascending:
    """Forbids a token that is no larger than the one before it."""

    def start_state(self, prompt):
        return prompt[-1]

    def next_states(self, last, token):
        if token <= last:
            raise ValueError(f"token {token} follows {last}")
        return token


def test_a_guard_sees_every_token_and_stops_what_must_not_be_written():
    text = record(guard=Ascending(), max_tokens=9).open_answer(0)
    text.write_tokens((2, 5))
    twin = text.fork()
    assert text.guarded == twin.guarded == 5
    twin.write_tokens((6,))
    with pytest.raises(ValueError, match="token 6 follows 6"):
        twin.write_tokens((6,))
    with pytest.raises(ValueError, match="token 3 follows 5"):
        text.write_tokens((3,))
    assert text.guarded == 5 and text.tokens == [2, 5]


class EndsAt:
    """Rules that end a text of some length, and fail behind another one."""

    def __init__(self, length, fails=99):
        self.length, self.fails, self.seen = length, fails, []

    def check_text(self, prompt, tokens):
        if len(tokens) == self.fails:
            raise RequestError(f"no law behind {len(prompt)} and {len(tokens)}")

    def ends_answer(self, tokens, text):
        self.seen.append((tuple(tokens), text))
        return len(tokens) == self.length


def test_rules_end_a_text_inside_an_accepted_run():
    rules, events = EndsAt(3), []
    answer = record(on=events.append, rules=rules, writer=lambda: Letters("cz")).open_answer(0)
    assert answer.write_tokens([0, 1, 2, 3, 4], accepted=4) == 3
    assert answer.finish_reason == "stop" and answer.reported_reason == "stop_when"
    # What was held back for a stop string is told to nobody yet, and comes with the end.
    assert rules.seen == [((0,), "a"), ((0, 1), "ab"), ((0, 1, 2), "ab")]
    assert answer.text == "abc" == "".join(x for e in events[1:-1] for x in e.pieces)
    assert events[-1] == FinishedEvent(0, "stop_when")
    assert answer.finished_answer(None).finish_reason == "stop_when"


def test_rules_are_not_asked_where_a_text_ends_anyway():
    for rules, tokens, fields in (
        (EndsAt(2), [0, 9], {}),
        (EndsAt(2), [0, 2], {"writer": lambda: Letters("c")}),
    ):
        answer = text(rules=rules, **fields)
        answer.write_tokens(tokens)
        assert answer.reported_reason == "stop" and len(rules.seen) == 1
    last = text(rules=EndsAt(2), max_tokens=2)
    last.write_tokens([0, 1])
    assert last.reported_reason == "stop_when"


def test_rules_end_a_canvas_and_raise_at_what_is_written():
    canvas = text(rules=EndsAt(2), max_tokens=8)
    canvas.edit_tokens(TextEdit(write=((3, 5),)))
    assert canvas.edit_tokens(TextEdit(write=((1, 4), (2, 3)))) == 2
    assert canvas.tokens == [4, 3] and canvas.reported_reason == "stop_when"
    broken = text(rules=EndsAt(9, fails=2))
    broken.write_tokens([0, 1])
    with pytest.raises(RequestError, match="no law behind 1 and 2"):
        broken.write_tokens([2])


def test_an_answer_ends_where_the_hypothesis_did_that_it_follows():
    """A function that looks at the clock says yes at another token when it is asked again."""
    rules = EndsAt(3)
    whole = record(rules=rules)
    answer, tried = whole.open_answer(0), whole.open_hypothesis()
    tried.write_tokens([0, 1])
    other = tried.fork()
    tried.write_tokens([2, 3])
    assert other.finish_reason is None and tried.reported_reason == "stop_when"
    rules.length = 1
    answer.follow_text(tried, 1)
    assert answer.finish_reason is None
    answer.follow_text(tried)
    assert answer.tokens == [0, 1, 2] and answer.reported_reason == "stop_when"
    assert tried.fork().reported_reason == "stop_when"
