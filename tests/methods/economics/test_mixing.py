"""What tokens are worth beside others, and in one tree of two sources."""

import pytest

from polydec.core.types import Draft
from polydec.methods.economics.mixing import (
    merge_certain_drafts,
    single_source_chance,
    two_source_chance,
    weigh_draft_chances,
)


def test_rivals_make_a_token_less_likely_and_a_second_voice_more():
    assert single_source_chance(0.6, 0.3) < single_source_chance(0.6, 0.0)
    assert two_source_chance(0.6, 0.6, 0.0) > max(
        two_source_chance(0.6, 0.0, 0.0), two_source_chance(0.0, 0.6, 0.0)
    )
    assert two_source_chance(0.6, 0.6, 0.5) < two_source_chance(0.6, 0.6, 0.0)
    for p in (0.0, 1.0):
        assert 0.0 < single_source_chance(p, p) < 1.0 and 0.0 < two_source_chance(p, p, p) < 1.0


def test_two_trees_become_one():
    first = Draft.certain_tree((9, 1, 2, 3), (-1, 0, 1, 0), (1.0, 0.6, 0.9, 0.2))
    second = Draft.certain_tree((9, 1, 5), (-1, 0, 1), (1.0, 0.7, 0.4))
    both = merge_certain_drafts(first, second)
    assert both.token == (9, 1, 2, 3, 5) and both.parent == (-1, 0, 1, 0, 1)
    assert both.chance == pytest.approx(
        (
            1.0,
            two_source_chance(0.6, 0.7, 0.2),
            two_source_chance(0.9, 0.0, 0.4),
            two_source_chance(0.2, 0.0, 0.7),
            two_source_chance(0.0, 0.4, 0.9),
        )
    )
    nobody = merge_certain_drafts(Draft.chain_draft(9), second)
    assert nobody.chance == pytest.approx(
        (1.0, single_source_chance(0.7, 0.0), single_source_chance(0.4, 0.0))
    )
    assert weigh_draft_chances(first).chance == pytest.approx(
        (
            1.0,
            single_source_chance(0.6, 0.2),
            single_source_chance(0.9, 0.0),
            single_source_chance(0.2, 0.6),
        )
    )
