"""Where a stream of embeddings is put into words: by clusters, by change, by the clock."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import normalize

from polydec.base.errors import RequestError
from polydec.request.stream_policies import ChangeSegments, UniformSegments, WardSegments

SIZE = 12


def random_stream(seed, steps=9):
    g = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(steps, SIZE, generator=g), dim=-1)


def stream_of_pieces(lengths, noise=0.05, seed=0):
    """So many steps near each of some directions that lie far from one another."""
    g = torch.Generator().manual_seed(seed)
    pieces = [torch.eye(SIZE)[i].expand(n, -1) for i, n in enumerate(lengths)]
    whole = torch.cat(pieces)
    return normalize(whole + noise * torch.randn(whole.shape, generator=g), dim=-1)


def begins(segments):
    return [segment.first for segment in segments]


def whole(segments, steps):
    """Segments follow one another and leave nothing out."""
    assert segments[0].first == 0 and segments[-1].stop == steps
    assert all(a.stop == b.first for a, b in pairwise(segments))
    return True


def spread_of(rows):
    return float((rows - rows.mean(0)).square().sum())


def test_clusters_are_merged_in_the_order_of_ward():
    """Beside the definition: of all neighbours those whose union has the least more spread."""
    for seed in range(6):
        stream = random_stream(seed).double()
        parts = [[i] for i in range(len(stream))]
        for left in range(len(stream), 0, -1):
            segments = WardSegments(left).part_stream(stream)
            assert whole(segments, len(stream))
            assert begins(segments) == [part[0] for part in parts]
            for segment, part in zip(segments, parts, strict=True):
                want = normalize(stream[part].mean(0), dim=0)
                torch.testing.assert_close(segment.embedding_E, want)
            if left > 1:
                costs = [
                    spread_of(stream[a + b]) - spread_of(stream[a]) - spread_of(stream[b])
                    for a, b in pairwise(parts)
                ]
                at = min(range(len(costs)), key=lambda i: costs[i])
                assert at == 0 or costs[at] < costs[0]
                parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_clusters_end_at_their_cost():
    stream = random_stream(3)
    counts = [len(WardSegments(0, cost).part_stream(stream)) for cost in (0.0, 0.4, 0.8, 9.0)]
    assert counts[0] == len(stream) and counts[-1] == 1
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 2


@pytest.mark.parametrize("change", [0.2, 0.5, 0.8])
def test_pieces_of_a_stream_are_a_text_each(change):
    lengths = (5, 1, 8, 3, 6)
    stream = stream_of_pieces(lengths)
    want = [0, 5, 6, 14, 17]
    for policy in (
        WardSegments(len(lengths)),
        WardSegments(0, change),
        ChangeSegments(change),
        ChangeSegments(2.0, spread=0.1),
    ):
        assert begins(policy.part_stream(stream)) == want
    still = stream_of_pieces((20,))
    for policy in (WardSegments(0, change), ChangeSegments(change), ChangeSegments(2.0, 0.5)):
        assert begins(policy.part_stream(still)) == [0]


def test_changes_do_not_look_ahead():
    for seed in range(8):
        stream = random_stream(seed, 14)
        for policy in (
            ChangeSegments(0.9),
            ChangeSegments(1.2, 0.7),
            ChangeSegments(0.8, None, 2, 5),
        ):
            found = begins(policy.part_stream(stream))
            for steps in range(1, len(stream)):
                assert begins(policy.part_stream(stream[:steps])) == [x for x in found if x < steps]


def test_a_segment_is_told_by_the_step_that_begins_it():
    stream = random_stream(1, 10)
    for policy in (ChangeSegments(0.9), UniformSegments(3)):
        for segment in policy.part_stream(stream):
            assert segment.embedding_E.equal(stream[segment.first])


def test_changes_are_held_against_the_mean_so_far():
    """A slow turn away is seen, step by step nothing is."""
    angle = torch.arange(12) * 0.12
    stream = torch.stack([angle.cos(), angle.sin()], -1)
    steps = 1 - (stream[1:] * stream[:-1]).sum(-1)
    assert float(steps.max()) < 0.01
    assert len(ChangeSegments(0.05).part_stream(stream)) > 2


def test_gaps_and_silences_are_kept():
    for seed in range(6):
        stream = random_stream(seed, 40)
        for gap, silence in ((3, None), (1, 4), (3, 7)):
            policy = ChangeSegments(0.6, None, gap, silence)
            found = begins(policy.part_stream(stream))
            apart = [b - a for a, b in pairwise(found)]
            assert min(apart) >= gap
            assert silence is None or max([*apart, 40 - found[-1]]) <= silence
        # A text a step where no gap holds it back.
        assert len(ChangeSegments(0.0, None, 1, 1).part_stream(stream)) == 40
    still = stream_of_pieces((12,), noise=0.0)
    assert begins(ChangeSegments(0.5, None, 1, 5).part_stream(still)) == [0, 5, 10]


def test_a_text_every_so_many_steps():
    stream = random_stream(2, 10)
    assert begins(UniformSegments(4).part_stream(stream)) == [0, 4, 8]
    assert begins(UniformSegments().part_stream(stream)) == [*range(10)]
    assert begins(WardSegments(10).part_stream(stream)) == [*range(10)]
    assert len(WardSegments(40).part_stream(stream)) == 10


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: UniformSegments(0), "every is 0"),
        (lambda: WardSegments(), "segments is 0 and cost is none"),
        (lambda: WardSegments(-1), "segments is -1"),
        (lambda: WardSegments(0, -0.5), "cost is -0.5"),
        (lambda: ChangeSegments(2.5), "change is 2.5"),
        (lambda: ChangeSegments(0.5, -1.0), "spread is -1.0"),
        (lambda: ChangeSegments(0.5, None, 0), "gap is 0"),
        (lambda: ChangeSegments(0.5, None, 4, 3), "silence is 3"),
    ],
)
def test_what_is_out_of_range_is_refused(make, name):
    with pytest.raises(RequestError, match=name):
        make()
