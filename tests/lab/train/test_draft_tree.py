"""The tree of STAND made from data: places are counted, kept, read, and taken by the recipe."""

import json

import pytest

import micro
from polydec.base.errors import FileError, RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.draft_tree import AcceptedPlaceCounter, count_draft_tree
from polydec.lab.train.specs.draft_tree import DraftTreeSpec
from polydec.methods.speculative.drafters._tree_shapes import (
    USUAL_SHAPE,
    low_rank_paths,
    most_accepted_paths,
    of_counts,
    recorded_places,
    template_child_counts,
    tree_template,
)
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.models.learned import artefact
from polydec.models.learned.kinds import draft_tree
from polydec.models.learned.kinds.draft_tree import DraftTreeCounts

COUNTS = {(0,): 9, (0, 0): 7, (1,): 5, (0, 1): 1}


def test_a_place_is_the_rank_among_siblings_of_each_node_on_the_way():
    counter = AcceptedPlaceCounter()
    # 5 has the children 6 and 7; below 7 stand 8 and 9.
    counter.watch_event(ProposedEvent(0, 3, (5, 6, 7, 8, 9), (-1, 0, 0, 2, 2)))
    counter.watch_event(VerifiedEvent(0, 3, (2, 4), 1))
    counter.watch_event(VerifiedEvent(0, 3, (2,), 1))
    assert counter.accepted == {(1,): 2, (1, 1): 1}


def test_low_ranks_make_a_tree_with_all_that_its_places_need():
    paths = low_rank_paths(625)
    assert len(set(paths)) == 625 and of_counts(template_child_counts(paths)) == tree_template(
        paths
    )
    assert low_rank_paths(3) == ((0,), (1,), (0, 0))


def counted_shape(options, accepted=None):
    target = toy_law(0, 5)
    artefacts = [] if accepted is None else [DraftTreeCounts(accepted, target.vocab)]
    return build("stand", target, options=options, artefacts=artefacts)[0].drafter.shape


def test_the_recipe_takes_the_counted_shape():
    assert counted_shape({}) == USUAL_SHAPE
    assert counted_shape({}, COUNTS) == (2, 2)
    assert counted_shape({"counted": 2}, COUNTS) == (1, 1)
    assert counted_shape({"shape": (3,)}, COUNTS) == (3,)
    with pytest.raises(RequestError, match="shape is 3, and counted is 2: each says"):
        counted_shape({"shape": (3,), "counted": 2})


def test_published_takes_eighty_places_counted_here_where_there_is_no_other_tree():
    recorded = list(recorded_places())
    paths = tuple(sorted(recorded, key=lambda path: (len(path), path)))
    assert len(recorded) == 80 == len(of_counts(template_child_counts(paths)))
    assert counted_shape({"published": True}) == template_child_counts(paths)
    # The first ones are the most accepted, so a smaller tree is made of these.
    few = counted_shape({"counted": 10})
    assert few == template_child_counts(most_accepted_paths(dict.fromkeys(recorded[:10], 1), 10))
    assert counted_shape({"published": True}, COUNTS) == (2, 2)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """What a small model makes of a tree when it writes the same text twice: all is known the second time."""
    root = tmp_path_factory.mktemp("tree")
    model = micro.write(root / "model")
    (root / "own.txt").write_text("\n\n".join(micro.TEXT[:40]))
    spec = DraftTreeSpec(
        str(root / "out"),
        str(model),
        str(root / "own.txt"),
        each=2,
        answers=2,
        max_tokens=40,
        temperature=0.0,
        places=31,
        nodes=4,
    )
    return root / "out", count_draft_tree(spec)


def test_what_was_accepted_becomes_the_tree(counted):
    out, told = counted
    tree = draft_tree.load(out)
    assert len(tree.accepted) == 31 and told["accepted"] == sum(tree.accepted.values()) > 0
    # A path is accepted with all that stands above it, and never more often than that.
    assert all(
        count <= tree.accepted[place[:-1]] for place, count in tree.accepted.items() if place[1:]
    )
    # A text that is known is a chain, which low ranks alone are not.
    assert told["shape"] == [1, 1, 1, 1] != list(template_child_counts(low_rank_paths(4)))
    assert told["held_out"]["counted"] > told["held_out"]["by_rank"]
    assert json.loads((out / "training.json").read_text())["shape"] == told["shape"]


def test_prompts_that_fill_the_context_are_refused(tmp_path):
    model = micro.write(tmp_path / "model")
    (tmp_path / "own.txt").write_text("\n\n".join(f"{i} " * 300 for i in range(40)))
    spec = DraftTreeSpec(str(tmp_path / "out"), str(model), str(tmp_path / "own.txt"), each=2)
    with pytest.raises(RequestError, match=r"with a context of \d+ tokens: no prompt fits"):
        count_draft_tree(spec)


def test_counts_come_back_as_they_were_kept(tmp_path):
    tree = DraftTreeCounts(COUNTS, TokenVocabulary(5, frozenset(), "x"))
    draft_tree.save(tmp_path, tree, {"target": "a"})
    back = draft_tree.load(tmp_path)
    assert (dict(back.accepted), back.vocab.size) == (COUNTS, 5)


@pytest.mark.parametrize(
    "rank, why",
    [
        ([[-1, 0], [1, 0]], "a place in it is no path of ranks"),
        ([[0, -1], [0, -1]], "stands in it twice"),
    ],
)
def test_damaged_counts_are_refused(tmp_path, rank, why):
    tensors = {
        "rank": draft_tree.torch.tensor(rank),
        "accepted": draft_tree.torch.tensor([3, 2]),
    }
    sizes = {"places": 2, "levels": 2, "vocab_size": 5, "tokenizer": "x"}
    artefact.save_artefact(tmp_path, draft_tree.KIND, tensors, sizes)
    with pytest.raises(FileError, match=why):
        draft_tree.load(tmp_path)
