"""Drafts, budgets and vocabularies."""

import random
from dataclasses import replace

import pytest
import torch

from polydec.base.errors import RequestError
from polydec.core.types import (
    Draft,
    DrawKind,
    TextEdit,
    TokenVocabulary,
    require_scored_draft,
)
from polydec.methods.speculative.loop.types import DraftBudget, Verdict, follow_draft_path

LAW = torch.zeros(3)
#        0
#       / \
#      1   2        node 3 is a probe, node 5 an EOS (token 9) with a child
#     /|    \
#    3 4     5
#             \
#              6
TREE = Draft(
    (7, 1, 2, 3, 3, 9, 4),
    (-1, 0, 0, 1, 1, 2, 5),
    (DrawKind.CERTAIN,) + (DrawKind.WITHOUT,) * 6,
    (None,) + (LAW,) * 6,
    (False, False, False, True, False, False, False),
)


def test_vocabularies_must_agree():
    a = TokenVocabulary(10, frozenset({9}), "one")
    a.require_same(TokenVocabulary(10, frozenset({8}), "one"), "draft")
    a.require_same(TokenVocabulary(10, frozenset()), "draft")
    with pytest.raises(
        ValueError, match="draft has a vocabulary of 11 tokens, the target one of 10"
    ):
        a.require_same(TokenVocabulary(11, frozenset()), "draft")
    with pytest.raises(ValueError, match="another tokenizer"):
        a.require_same(TokenVocabulary(10, frozenset(), "two"), "draft")


class Letters:
    """Letters a to j, and no mark unless it is asked for."""

    pieces = tuple(bytes([97 + i]) for i in range(10))

    def encode(self, text, special=True):
        if not set(text) <= set("abcdefghij"):
            raise RequestError("no letter of these")
        return ((9,) if special else ()) + tuple(ord(c) - 97 for c in text)

    def decode(self, ids):
        return "".join(chr(97 + i) for i in ids)


def test_a_text_is_spelled_without_marks():
    vocab = TokenVocabulary(10, frozenset(), "letters", Letters())
    assert (
        vocab.spell_text("bad", "note is 'bad'") == (1, 0, 3)
        and vocab.spell_text("", "note is ''") == ()
    )
    with pytest.raises(
        ValueError,
        match=r"^note is 'xy': the model's tokenizer cannot spell it \(no letter of these\)$",
    ):
        vocab.spell_text("xy", "note is 'xy'")
    with pytest.raises(
        ValueError,
        match=r"^note is 'a': this model has no tokenizer to spell it with, so leave it empty$",
    ):
        TokenVocabulary(10, frozenset()).spell_text("a", "note is 'a'")
    assert TokenVocabulary(10, frozenset()).spell_text("", "note is ''") == ()


def test_shape_of_a_tree():
    assert len(TREE) == 7
    assert TREE.children == ((1, 2), (4,), (5,), (), (), (6,), ())  # probes cannot be accepted
    assert TREE.probes == (3,) and Draft.chain_draft(7, (1, 2)).probes == ()
    assert TREE.depth == (0, 1, 1, 2, 2, 2, 3)
    assert TREE.path_to(6) == (2, 5, 6) and TREE.path_to(0) == ()
    assert TREE.child_of(0, 2) == 2 and TREE.child_of(1, 3) == 4 and TREE.child_of(0, 5) is None


def test_chains():
    drawn = Draft.chain_draft(7, (1, 2), (LAW, LAW))
    assert drawn.draw == (
        DrawKind.CERTAIN,
        DrawKind.INDEPENDENT,
        DrawKind.INDEPENDENT,
    ) and drawn.law == (
        None,
        LAW,
        LAW,
    )
    sure = Draft.chain_draft(7, (1, 2))
    assert (
        sure.draw == (DrawKind.CERTAIN,) * 3
        and sure.law == (None,) * 3
        and sure.parent == (-1, 0, 1)
    )
    assert len(Draft.chain_draft(7)) == 1


def test_growing():
    one = Draft.chain_draft(7).with_node(3, 0, DrawKind.INDEPENDENT, LAW)
    assert (one.token, one.parent, one.draw[1], one.law[1]) == (
        (7, 3),
        (-1, 0),
        DrawKind.INDEPENDENT,
        LAW,
    )
    assert (
        one.is_extension_of(Draft.chain_draft(7))
        and not one.is_extension_of(Draft.chain_draft(8))
        and not Draft.chain_draft(7).is_extension_of(one)
    )
    assert TREE.with_node(1, 4, DrawKind.CERTAIN, None).probe == (
        False,
        False,
        False,
        True,
        False,
        False,
        False,
        False,
    )


def test_following():
    picks = {0: 2, 2: 9, 5: 1}
    assert follow_draft_path(TREE, lambda node, depth: picks[node]) == Verdict((2, 5), 1)
    assert follow_draft_path(TREE, lambda node, depth: 100 + depth) == Verdict((), 100)


def test_fit_cuts_by_depth_and_below_an_end():
    assert TREE.cut_draft(9, frozenset()) is TREE
    below = TREE.cut_draft(9, frozenset({9}))
    assert (
        below.token == (7, 1, 2, 3, 3, 9)
        and below.parent == (-1, 0, 0, 1, 1, 2)
        and len(below.law) == 6
    )
    assert below.probe == (False, False, False, True, False, False)
    assert TREE.cut_draft(1, frozenset()).token == (7, 1, 2)
    assert TREE.cut_draft(0, frozenset()).token == (7,)
    assert Draft.chain_draft(9, (1, 2)).cut_draft(9, frozenset({9})).token == (
        9,
        1,
        2,
    )  # the root may be one: it was ignored
    assert Draft.chain_draft(7, (9, 2, 3)).cut_draft(9, frozenset({9})).token == (7, 9)
    assert Draft.chain_draft(7, (9, 2)).cut_draft(1, frozenset()).probe is None


def test_budgets_go_on_unless_told():
    assert DraftBudget().go_on(1, 0.0)
    assert not DraftBudget(go_on=lambda depth, q: q > 0.5).go_on(1, 0.4)


def test_same_vocabularies():
    a = TokenVocabulary(10, frozenset({9}), "one")
    assert a.same_tokens(TokenVocabulary(10, frozenset(), "one")) and a.same_tokens(
        TokenVocabulary(10, frozenset())
    )
    assert not a.same_tokens(TokenVocabulary(11, frozenset(), "one")) and not a.same_tokens(
        TokenVocabulary(10, frozenset(), "two")
    )


def test_expected_nodes():
    draft = Draft.certain_tree((0, 1, 2, 3), (-1, 0, 0, 1), (1.0, 0.5, 0.25, 0.5))
    assert draft.expected == 0.5 + 0.25 + 0.25
    assert Draft.chain_draft(0, (1, 2)).expected == 2.0 and Draft.chain_draft(0).expected == 0.0


def test_branches_that_cannot_stay_are_refused():
    with pytest.raises(ValueError, match="nodes must ascend, with root and all parents"):
        TREE.subtree_below(0, (0, len(TREE) - 1, 1))
    probed = Draft((0, 1), (-1, 0), (DrawKind.CERTAIN,) * 2, (None, None), (False, True))
    with pytest.raises(ValueError, match="a probe is never committed"):
        probed.subtree_below(1, (0, 1))


def test_branches_that_stay():
    path, stay, left = TREE.subtree_below(2, (0, 1, 2, 5, 6))
    assert (path, stay) == ((0,), (2, 5, 6))
    assert (
        left.token == (2, 9, 4)
        and left.parent == (-1, 0, 1)
        and left.draw == (DrawKind.CERTAIN, *[DrawKind.WITHOUT] * 2)
    )
    assert left.law[0] is None and left.law[1:] == (LAW, LAW)
    path, stay, left = Draft.certain_tree((0, 1, 2), (-1, 0, 1), (1.0, 0.5, 0.25)).subtree_below(
        1, (0, 1)
    )
    assert (path, stay, left.token, left.chance) == ((0,), (1,), (1,), (1.0,))


def test_nodes_that_tokens_follow():
    assert TREE.nodes_of((7, 2, 9)) == [0, 2, 5] and TREE.nodes_of((7, 2, 8, 9)) == [0, 2]
    assert TREE.nodes_of((1, 2)) == [] == TREE.nodes_of(())


def test_a_draft_that_grew_extends_what_it_was():
    short, state = Draft.chain_draft(7, (1,)), object()
    assert short.with_node(2, 1, DrawKind.CERTAIN, None).is_extension_of(
        short
    ) and not short.is_extension_of(Draft.chain_draft(7, (2,)))
    stated = [replace(short, state=(None, s)) for s in (state, state, object())]
    assert (
        stated[0].is_extension_of(stated[1])
        and not stated[0].is_extension_of(stated[2])
        and not stated[0].is_extension_of(short)
    )


def test_what_is_kept_of_a_draft_is_the_same_whether_or_not_it_comes_first():
    r = random.Random(3)
    for _ in range(200):
        n = r.randint(1, 8)
        parent = (-1, *[r.randrange(i) for i in range(1, n)])
        law = [None if r.random() < 0.5 else torch.zeros(1) for _ in range(n)]
        draw = [DrawKind.CERTAIN if x is None else DrawKind.INDEPENDENT for x in law]
        fields = {
            "probe": tuple(r.random() < 0.3 for _ in range(n)),
            "chance": tuple(r.random() for _ in range(n)),
            "enter": tuple(r.randint(0, 3) for _ in range(n)),
            "state": tuple(None if r.random() < 0.5 else torch.zeros(2) for _ in range(n)),
        }
        some = {name: each for name, each in fields.items() if r.random() < 0.5}
        draft = Draft(tuple(range(n)), parent, tuple(draw), tuple(law), **some, adapter=r)
        kept = {0, *(i for i in range(1, n) if r.random() < 0.6)}
        keep = [i for i in range(n) if {i, *draft.path_to(i)} <= kept]
        chance = None if r.random() < 0.5 else tuple(r.random() for _ in range(n))
        left = draft.only_nodes(keep, chance)
        assert left.token == tuple(keep)
        assert [keep[p] if p >= 0 else -1 for p in left.parent] == [parent[i] for i in keep]
        said = {**some, "draw": draft.draw, "law": draft.law}
        if chance is not None:
            said["chance"] = chance
        for name in ("draw", "law", *fields):
            each = getattr(left, name)
            if name in said:
                assert all(a is b for a, b in zip(each, [said[name][i] for i in keep], strict=True))
            else:
                assert each is None
        assert left.adapter == r


def test_values_are_what_their_fields_are():
    assert TextEdit(((1, 2),)) == TextEdit(((1, 2),)) != TextEdit(((1, 3),))
    assert len({Verdict((1,), 2), Verdict((1,), 2), Verdict((), 2)}) == 2
    assert replace(Verdict((1,), 2), bonus=3) == Verdict((1,), 3)


def test_a_probe_is_a_node_that_says_so():
    assert [node for node in range(len(TREE)) if TREE.is_probe(node)] == [3]
    plain = Draft.chain_draft(7, (1, 2))
    assert not any(plain.is_probe(node) for node in range(3))
    # The root is on every path, and the nodes of one are named without it.
    assert TREE.path_to(0) == ()


def test_a_draft_that_was_not_scored_cannot_be_kept():
    assert require_scored_draft(TREE) is TREE
    with pytest.raises(RequestError, match="no draft has been scored since the last commit"):
        require_scored_draft(None)
