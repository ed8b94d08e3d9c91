"""Requests."""

import pytest

from polydec.core.request import Request


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"prompt": (1,), "max_tokens": 0}, "max_tokens is 0: it must be at least 1"),
        ({"prompt": (1,), "n": 0}, "n is 0: it must be at least 1"),
        ({"prompt": (1,), "logprobs": 65}, "logprobs is 65: it must lie in 0 to 64"),
        ({"prompt": (1,), "logprobs": -1}, "logprobs is -1"),
        (
            {"prompt": (1,), "max_tokens": 3, "given": (1, None)},
            "given has 2 positions: max_tokens is 3",
        ),
    ],
)
def test_bad_requests(fields, message):
    with pytest.raises(ValueError, match=message):
        Request(**fields)


def test_choices_are_numbered():
    assert Request((1,)).choices == range(1) and list(Request((1,), choice=2, n=3).choices) == [
        2,
        3,
        4,
    ]
