"""Requests and the ends of answers."""
import pytest

from polydec.core.request import Output, Request


@pytest.mark.parametrize("fields, message", [
    ({"prompt": ()}, "prompt is empty"),
    ({"prompt": (1,), "max_tokens": 0}, "max_tokens is 0: it must be at least 1"),
    ({"prompt": (1,), "logprobs": 65}, "logprobs is 65: it must lie in 0 to 64"),
    ({"prompt": (1,), "logprobs": -1}, "logprobs is -1"),
])
def test_bad_requests(fields, message):
    with pytest.raises(ValueError, match=message):
        Request(**fields)


class Letters:
    """Token i is the i-th letter; a text stops before `stop`, and what may become it is held back."""
    def __init__(self, stop):
        self.stop, self.held, self.stopped = stop, "", False

    def push(self, token):
        self.held += chr(ord("a") + token)
        if self.stop in self.held:
            self.stopped, out, self.held = True, self.held[:self.held.index(self.stop)], ""
            return out
        keep = next((n for n in range(len(self.stop) - 1, 0, -1) if self.held.endswith(self.stop[:n])), 0)
        out, self.held = self.held[:len(self.held) - keep], self.held[len(self.held) - keep:]
        return out

    def end(self):
        out, self.held = self.held, ""
        return out


def output(eos=frozenset({9}), **fields):
    return Output(Request((1,), **fields), eos)


def test_takes_tokens_up_to_eos():
    out = output()
    assert out.append([1, 2]) == ("", "") and out.finish_reason is None and out.room == 126
    out.append([3, 9, 4, 5])
    assert (out.tokens, out.finish_reason, out.text) == ([1, 2, 3, 9], "stop", "")


def test_several_ends_stop_ids_and_ignore_eos():
    out = output(frozenset({8, 9}), stop_ids=frozenset({5}))
    out.append([5, 1])
    assert out.tokens == [5]
    out = output(frozenset({8, 9}), stop_ids=frozenset({5}), ignore_eos=True)
    out.append([8, 9, 5, 1])
    assert (out.tokens, out.finish_reason) == ([8, 9, 5], "stop")


def test_length():
    out = output(max_tokens=3)
    out.append([1, 2, 3, 4])
    assert (out.tokens, out.finish_reason, out.room) == ([1, 2, 3], "length", 0)
    out = output(max_tokens=2)
    out.append([1, 9])
    assert out.finish_reason == "stop"            # an end at the last place is an end


def test_stop_string_inside_an_accepted_run():
    out = output(writer=lambda: Letters("cd"))
    assert out.append([0, 1, 2, 3, 4]) == ("a", "b", "", "")
    assert (out.tokens, out.text, out.finish_reason) == ([0, 1, 2, 3], "ab", "stop")


def test_what_is_held_back_comes_at_the_end():
    out = output(writer=lambda: Letters("cd"), max_tokens=3)
    assert out.append([0, 1, 2]) == ("a", "b", "c")
    out = output(writer=lambda: Letters("cd"))
    assert out.append([0, 2, 9]) == ("a", "", "c")
    assert out.text == "ac"
