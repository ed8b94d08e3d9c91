"""A head that draws patches: whose it is, what it writes, and that a pass of many gives what each gives alone."""

from dataclasses import replace

import pytest
import torch

from patch_toys import CANVAS, LEVELS, SIZE, TARGET, made_head
from polydec.base.errors import FileError, RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.models.learned.kinds import patch_head
from polydec.models.learned.kinds.patch_head import PathDraw, PathScore


def draw_of(count, seed):
    torch.manual_seed(seed)
    rows = torch.randn(count, 4), torch.randn(count, 2), torch.randn(count, 3, 2)
    return PathDraw(*(x.double() for x in rows))


def test_queries_of_one_pass_are_answered_as_alone():
    head = made_head()
    asked = [draw_of(count, count) for count in (1, 4, 2)]
    together = head.path_drawer.forward(asked)
    for one, paths in zip(asked, together, strict=True):
        alone = head.path_drawer.forward([one])[0]
        assert torch.allclose(paths.points_NSD, alone.points_NSD, atol=1e-13)
        assert len(paths.value_ND) == len(one.state_NH)
    scores = [PathScore(q.state_NH, p.points_NSD) for q, p in zip(asked, together, strict=True)]
    for paths, scored in zip(together, head.path_scorer.forward(scores), strict=True):
        assert torch.allclose(scored.log_density(), paths.log_density())


def test_values_are_written_as_grey_levels():
    head = made_head()
    assert head.grey_levels(torch.tensor([-1.0, 1.0, 0.0, -7.0, 9.0])) == (0, 63, 32, 0, 63)


def test_what_is_saved_is_read_again(tmp_path):
    head = replace(made_head(), mark_H=torch.arange(4.0))
    patch_head.save(tmp_path, head, {"held_out_nats": 1.0})
    again = patch_head.load(tmp_path)
    assert (again.shape, again.levels, again.patches) == (head.shape, LEVELS, 6)
    assert torch.equal(again.mark_H, head.mark_H)
    asked = draw_of(3, 1)
    assert torch.allclose(
        again.path_drawer.forward([asked])[0].value_ND,
        head.path_drawer.forward([asked])[0].value_ND,
        atol=1e-5,
    )


def test_a_head_knows_its_model():
    own = TARGET.open_session((0,)).embed_tokens((SIZE - 1,))[0].float()
    replace(made_head(), mark_H=own).check_fit(TARGET, None)
    # A draft's weights are rounded when they are loaded.
    replace(made_head(), mark_H=own * 1.01).check_fit(TARGET, None)
    with pytest.raises(FileError, match="trained with another model"):
        replace(made_head(), mark_H=own * 1.5).check_fit(TARGET, None)
    with pytest.raises(FileError, match="states of width 9"):
        wide = replace(made_head().shape, width=9)
        replace(made_head(), shape=wide).check_fit(TARGET, None)
    with pytest.raises(RequestError, match="vocabular"):
        replace(made_head(), vocab=TokenVocabulary(7, frozenset())).check_fit(TARGET, None)
    made_head().check_fit(toy_law(1, SIZE), None)


def test_a_head_knows_the_masked_model_that_it_is_of():
    own = CANVAS.embed_canvas((SIZE - 1,))[0].float()
    replace(made_head(), mark_H=own).check_fit(CANVAS, None)
    made_head().check_fit(CANVAS, None)
    with pytest.raises(FileError, match="trained with another model"):
        replace(made_head(), mark_H=own * 1.5).check_fit(CANVAS, None)
    with pytest.raises(FileError, match="states of width 9"):
        wide = replace(made_head().shape, width=9)
        replace(made_head(), shape=wide).check_fit(CANVAS, None)


def test_guided_queries_hold_both_states_and_a_strength():
    head = made_head().guided_head
    assert head.guided and head.guided_head.guided and head.cost == 2 * made_head().cost
    plain = draw_of(3, 1)
    other = draw_of(3, 2).state_NH
    rows = torch.cat([plain.state_NH, other, torch.zeros(3, 1).double()], 1)
    (guided,) = head.path_drawer.forward([plain._replace(state_NH=rows)])
    (alone,) = made_head().path_drawer.forward([plain])
    assert torch.allclose(guided.points_NSD, alone.points_NSD)
    rows[:, -1] = 2.0
    (strong,) = head.path_drawer.forward([plain._replace(state_NH=rows)])
    assert (strong.value_ND - alone.value_ND).abs().min() > 1e-6
    (scored,) = head.path_scorer.forward([PathScore(rows, strong.points_NSD)])
    assert torch.allclose(scored.log_density(), strong.log_density())
