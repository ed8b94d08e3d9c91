"""A refresh that feeds gaps, and each token once."""

from polydec.methods.diffusion.refreshes.written_once import WrittenOnceRefresh


def test_gaps_and_new_tokens_are_fed():
    feed = WrittenOnceRefresh().fed_positions
    first = (7, None, None, 3, None)
    assert feed(first, None, range(1, 5), 0) == [0, 1, 2, 3, 4]
    second = (7, 4, None, 3, None)
    assert feed(second, first, range(1, 5), 1) == [1, 2, 4]
    # Taken back, changed, or cut off.
    assert feed((7, None, None, 5), second, range(1, 4), 2) == [1, 2, 3]
