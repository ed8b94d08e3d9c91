"""Entries that move behind an edit: exact where theory says so, never shared, never computed anew in silence."""

import random

import pytest
import torch
from test_kv_cache import network
from test_session import go, rows

from polydec.base.errors import RequestError
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.models.nets.moved_keys import why_still
from polydec.models.sessions import reuse
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.reuse import (
    AGAIN,
    LEAST,
    CacheReuse,
    KeyedTextCache,
    common_prefix_length,
    find_common_runs,
)

SILENT = ScoreRequest(law=RowDetail.NOTHING)
DICE = random.Random(5)
TEXT = tuple(DICE.randrange(50) for _ in range(300))
NEW = tuple(DICE.randrange(50) for _ in range(9))
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}
EDITS = {
    "insert": [(80, 80, NEW[:3])],
    "delete": [(80, 100, ())],
    "replace": [(80, 90, NEW[:2])],
    "same length": [(80, 82, NEW[:2])],
    "several": [(40, 41, NEW), (150, 155, NEW[:1]), (250, 250, NEW[:4])],
    "at the end": [(298, 300, NEW)],
    "nothing": [],
}


def lm(layers=1, dtype="float64", chunk=64, **more):
    net = network(dtype=dtype, num_hidden_layers=layers, max_position_embeddings=600, **more)
    return CausalLaw(net, TokenVocabulary(50, frozenset()), chunk=chunk)


def edited(text, edits):
    out, shift = list(text), 0
    for first, stop, new in edits:
        out[first + shift : stop + shift] = new
        shift += len(new) - (stop - first)
    return tuple(out)


def visit(law, text, then=(7, 8)):
    """Read a text, look at the law behind it, and leave it to whoever comes next."""
    session = law.open_session(text)
    go(session.prefill_prompt(SILENT))
    seen = rows(
        go(session.score_draft(Draft.chain_draft(text[-1], then), ScoreRequest())), len(then) + 1
    )
    session.close()
    return torch.stack(list(seen))


def kl(p, q):
    return float((p.exp() * (p - q)).sum(-1).max())


@pytest.mark.parametrize("rope", [None, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("name", EDITS)
def test_one_layer_is_exact(name, rope):
    """The keys and values of the first layer depend on nothing but token and position."""
    more = {} if rope is None else {"rope_parameters": {**rope, "rope_theta": 10000.0}}
    target, new = lm(**more), edited(TEXT, EDITS[name])
    visit(target.reusing_view("", True), TEXT)
    view = target.reusing_view("", True)
    assert kl(visit(lm(**more), new), visit(view, new)) < 1e-12
    told = view.within[1]
    fed = sum(len(x) + AGAIN for _, _, x in EDITS[name])
    assert told.positions >= len(new) - 1 - fed - 1
    assert told.approximate == (name not in ("at the end", "nothing"))


@pytest.mark.parametrize("again", [0, 1, 40])
def test_so_many_tokens_behind_an_edit_are_fed_again(again):
    """Of the published rule (0) none but the text's last one; one layer is exact under any."""
    new = edited(TEXT, EDITS["replace"])
    target = lm()
    visit(target.reusing_view("", True), TEXT)
    view = target.reusing_view("", True, again=again)
    assert kl(visit(lm(), new), visit(view, new)) < 1e-12
    told = view.within[1]
    assert len(new) - 1 - told.positions == len(EDITS["replace"][0][2]) + again
    assert told.turned == len(new) - 1 - 82 - again


def test_more_tokens_fed_behind_an_edit_are_nearer_to_the_law():
    """In several layers, over edits: what the edit changes most is fed."""
    apart = {0: 0.0, 60: 0.0}
    for at in range(60, 180, 20):
        new = (*TEXT[:at], *NEW[:5], *TEXT[at + 2 :])
        want = visit(lm(layers=3), new)
        for again in apart:
            target = lm(layers=3)
            visit(target.reusing_view("", True), TEXT)
            apart[again] += kl(want, visit(target.reusing_view("", True, again=again), new))
    assert 0 < apart[60] < apart[0]


def test_without_turning_one_layer_is_not_exact(monkeypatch):
    """What makes the test above worth something: the naive splice is far off."""
    target, new = lm(), edited(TEXT, EDITS["insert"])
    monkeypatch.setattr(target.network, "turn_entries", lambda kv, first, by: kv.clone())
    visit(target.reusing_view("", True), TEXT)
    assert kl(visit(lm(), new), visit(target.reusing_view("", True), new)) > 1e-9


def test_the_first_of_many_layers_is_exact_and_values_stay():
    target, new = lm(layers=3), edited(TEXT, EDITS["several"])
    visit(target.reusing_view("", True), TEXT)
    visit(target.reusing_view("", True), new)
    visit(target.reusing_view("whole", True), new)
    got, want = (target.texts.take_text(key).cache.all_entries() for key in ("", "whole"))
    torch.testing.assert_close(got[0], want[0], atol=1e-12, rtol=0.0)
    assert (got[1] - want[1]).abs().max() > 1e-6


def test_an_edit_that_is_taken_back_restores_the_entries():
    target, new = lm(layers=2), edited(TEXT, EDITS["insert"])
    before = visit(target.reusing_view("", True), TEXT)
    visit(target.reusing_view("", True), new)
    assert kl(before, visit(target.reusing_view("", True), TEXT)) < 1e-12


def test_twenty_edits_in_a_row_are_exact_in_one_layer():
    target, text = lm(), TEXT
    for turn in range(20):
        at = 20 + 11 * turn
        text = edited(text, [(at, at + turn % 3, NEW[: turn % 5])])
        got = visit(target.reusing_view("", True), text)
    assert kl(visit(lm(), text), got) < 1e-12


def test_a_prefix_is_exact_in_any_number_of_layers():
    target, new = lm(layers=3), edited(TEXT, EDITS["replace"])
    visit(target.reusing_view("", True), TEXT)
    visit(target.reusing_view("", True), new)
    view = target.reusing_view("", False)
    again = edited(new, [(200, 201, NEW)])
    torch.testing.assert_close(visit(view, again), visit(lm(layers=3), again), atol=1e-10, rtol=0)
    assert view.within[1].told == {
        "name": "prefix",
        "positions": 82 + AGAIN,  # and none of those that were computed with the first text in view
        "turned": 0,
        "approximate": False,
    }


def test_nobody_else_is_given_what_was_edited():
    target, new = lm(layers=2), edited(TEXT, EDITS["insert"])
    target.keep = 4
    visit(target.reusing_view("", True), TEXT)
    view = target.reusing_view("", True)
    session = view.open_session(new)
    go(session.prefill_prompt(SILENT))
    other = target.open_session(new)
    assert not other.ledger.cache.length
    session.close()
    assert not target.open_session(new).ledger.cache.length


def test_nothing_gives_back_what_could_not_be_fed_again():
    target, new = lm(layers=2), edited(TEXT, EDITS["insert"])
    visit(target.reusing_view("", True), TEXT)
    session = target.reusing_view("", True).open_session(new)
    go(session.prefill_prompt(SILENT))
    before = rows(go(session.score_draft(Draft.chain_draft(new[-1], (7,)), ScoreRequest())), 2)
    twin = session.fork()
    for one in (session, twin):
        one.evict_cache()
        assert one.ledger.cache.length == len(new) - 1
        seen = rows(go(one.score_draft(Draft.chain_draft(new[-1], (7,)), ScoreRequest())), 2)
        torch.testing.assert_close(torch.stack(list(seen)), torch.stack(list(before)))
    session.close()
    twin.close()


def test_a_rewind_over_the_edit_makes_the_law_exact_again():
    target, new = lm(layers=2), edited(TEXT, EDITS["insert"])
    visit(target.reusing_view("", True), TEXT)
    session = target.reusing_view("", True).open_session(new)
    go(session.prefill_prompt(SILENT))
    assert session.ledger.edited == 83 + AGAIN
    session.rewind_tokens(len(new) - 1 - 80)
    assert session.ledger.edited is None
    session.commit_tokens(new[80:-1])
    seen = rows(go(session.score_draft(Draft.chain_draft(new[-1], (7, 8)), ScoreRequest())), 3)
    torch.testing.assert_close(torch.stack(list(seen)), visit(lm(layers=2), new))


def test_a_rewind_to_where_edited_entries_begin_leaves_none():
    target, new = lm(layers=2), edited(TEXT, EDITS["insert"])
    visit(target.reusing_view("", True), TEXT)
    session = target.reusing_view("", True).open_session(new)
    go(session.prefill_prompt(SILENT))
    session.rewind_tokens(len(new) - 1 - session.ledger.edited)
    assert session.ledger.edited is None
    session.close()
    assert target.texts.take_text("").edited is None


def test_edited_entries_begin_where_the_first_part_does():
    target, new = lm(layers=2), edited(TEXT, EDITS["several"])
    visit(target.reusing_view("", True), TEXT)
    visit(target.reusing_view("", True), new)
    assert target.texts.take_text("").edited == 40 + len(NEW) + AGAIN


def test_chunks_do_not_change_an_edited_law():
    new = edited(TEXT, [(40, 40, NEW * 4), (200, 201, NEW)])
    seen = list[torch.Tensor]()
    for chunk in (5, 64, 256):
        target = lm(layers=2, chunk=chunk)
        visit(target.reusing_view("", True), TEXT)
        seen.append(visit(target.reusing_view("", True), new))
    torch.testing.assert_close(seen[0], seen[1])
    torch.testing.assert_close(seen[0], seen[2])


@pytest.mark.parametrize("by", [-60, -1, 0, 1, 60])
def test_keys_turn_there_and_back(by):
    net = lm().network
    kv = torch.randn(1, 2, net.config.kv_heads, 20, net.config.head, dtype=torch.float64)
    there = net.turn_entries(kv, 70, by)
    torch.testing.assert_close(net.turn_entries(there, 70 + by, -by), kv, atol=1e-12, rtol=0)
    assert torch.equal(there[:, 1], kv[:, 1]) and torch.equal(there, kv) == (by == 0)


def test_what_cannot_turn_says_so():
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    target = lm(rope_parameters=dynamic)
    with pytest.raises(RequestError, match="reuse is 'edited': rope_type 'dynamic' turns by other"):
        target.reusing_view("", True)
    assert target.reusing_view("", False).within
    assert "transformers" in why_still(object())


def brute(old, new, begin):
    """The longest part that both have behind the beginning."""
    best = 0
    for i in range(begin, len(old)):
        for j in range(begin, len(new)):
            best = max(best, common_prefix_length(old[i:], new[j:]))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_parts_stand_in_both_texts_in_order(seed):
    dice = random.Random(seed)
    old = tuple(dice.randrange(3 if seed % 2 else 40) for _ in range(150))
    edits = sorted(dice.sample(range(10, 140), 4))
    new = edited(old, [(a, a + dice.randrange(4), NEW[: dice.randrange(4)]) for a in edits[::2]])
    n = common_prefix_length(old, new)
    found = find_common_runs(old, new, n)
    at, behind = n, n
    for where, first, stop in found:
        assert stop - first >= LEAST and old[first:stop] == new[where : where + stop - first]
        assert where >= at and first >= behind
        assert stop - first >= 2 * (where - at)
        at, behind = where + stop - first, stop
    if seed % 2 == 0 and (longest := brute(old, new, n)) >= LEAST:
        assert max((stop - first for _, first, stop in found), default=0) == longest


def test_parts_that_changed_places_are_not_both_taken():
    a, b, c = (tuple(range(k, k + 2 * LEAST)) for k in (0, 100, 200))
    parts = find_common_runs((*a, *b, *c), (*a, *c, *b), len(a))
    assert parts == [(2 * LEAST, 4 * LEAST, 6 * LEAST)]


def test_a_part_that_is_short_beside_what_is_new_is_fed():
    a, b, new = tuple(range(2 * LEAST)), tuple(range(100, 100 + LEAST)), tuple(range(500, 600))
    assert find_common_runs((*a, *b), (*a, *new[: LEAST // 2], *b), len(a))
    assert find_common_runs((*a, *b), (*a, *new[: LEAST // 2 + 1], *b), len(a)) == []


def test_what_stands_twice_in_the_old_text_finds_no_place():
    a, b = tuple(range(2 * LEAST)), tuple(range(100, 100 + 2 * LEAST))
    assert find_common_runs((*a, 90, *b, 91, *b), (*a, 92, *b), len(a)) == []


def test_repeated_text_costs_no_more_than_other_text():
    assert find_common_runs((1,) * 4000, (2, *(1,) * 4000), 0) == []


def test_keys_in_use_keep_their_texts():
    now = [0.0]
    texts = KeyedTextCache(lambda: now[0])
    cache = lm().network.new_cache()
    for i in range(reuse.KEYS + 3):
        texts.store_text(str(i), (1, 2), cache, None)
    assert texts.take_text("0") and not texts.take_text(str(reuse.KEYS))
    now[0] = reuse.IDLE + 1
    texts.store_text("0", (1, 2, 3), cache, None)
    texts.store_text("late", (1, 2), cache, None)
    assert texts.take_text("late") and texts.take_text("0") and not texts.take_text("1")
    assert len(texts.caches) == reuse.KEYS
    texts.forget_text("late")
    texts.forget_text("nobody's")
    assert not texts.take_text("late")


def test_another_request_of_the_key_waits():
    target = lm()
    session = target.reusing_view("a", True).open_session(TEXT)
    with pytest.raises(RequestError, match="reuse_key is 'a': another request of this key"):
        target.reusing_view("a", True).open_session(TEXT)
    target.reusing_view("b", True).open_session(TEXT).close()
    target.reusing_view("a", False).open_session(TEXT).close()
    session.close()
    target.reusing_view("a", True).open_session(TEXT).close()


def test_memory_does_not_grow_from_edit_to_edit():
    target, sizes = lm(layers=2), list[int]()
    for turn in range(12):
        visit(target.reusing_view("", True), edited(TEXT, [(90, 95, (turn, 49 - turn, 3, 4, 5))]))
        sizes.append(target.nbytes)
    assert sizes[-1] == sizes[1] and len(target.texts.caches) == 1


def test_rows_of_the_whole_prompt_are_refused_before_a_pass():
    target = lm()
    visit(target.reusing_view("", True), TEXT)
    session = target.reusing_view("", True).open_session(edited(TEXT, EDITS["insert"]))
    with pytest.raises(RequestError, match="reads rows of the whole prompt"):
        go(session.prefill_prompt(ScoreRequest(prompt=True)))
    go(session.prefill_prompt(SILENT))
    with pytest.raises(RequestError, match="reads rows of the whole prompt"):
        go(session.prefill_prompt(ScoreRequest(prompt=True)))


def test_what_was_taken_is_counted():
    told = CacheReuse(KeyedTextCache(), "", True)
    told.note_reuse(10, (reuse.CacheGraft(12, None, 11, 50),), None)
    assert (told.positions, told.turned, told.approximate) == (49, 39, True)
    assert told.told["name"] == "edited"
    told.note_reuse(10, (), 8)
    assert told.approximate, "of what an earlier edit left behind"
