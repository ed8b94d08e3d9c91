"""Regions of memory, and moving them to huge pages: contents stay what they are."""

import torch

from polydec.models.nets import huge_pages


def test_what_lies_in_none_of_the_others():
    assert huge_pages.subtract_regions([(0, 10)], []) == [(0, 10)]
    assert huge_pages.subtract_regions([(0, 10), (20, 30)], [(3, 5), (8, 22)]) == [
        (0, 3),
        (5, 8),
        (22, 30),
    ]
    assert (
        huge_pages.subtract_regions([(0, 10)], [(0, 10)]) == []
        and huge_pages.subtract_regions([(5, 6)], [(0, 10)]) == []
    )


def test_collapse_keeps_contents_and_its_time():
    before = huge_pages.anonymous_memory_regions()
    x = torch.arange(8 << 20)
    new = huge_pages.subtract_regions(huge_pages.anonymous_memory_regions(), before)
    moved = huge_pages.collapse_huge_pages(new)
    assert 0 <= moved <= sum(b - a for a, b in new)
    assert torch.equal(x, torch.arange(8 << 20))
    assert huge_pages.collapse_huge_pages(new, seconds=-1.0) == 0
